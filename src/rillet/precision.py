"""Multiple precision that nobody else can change.

The precision of ``mpmath.mp`` is global to the process: another thread that sets it, or sets it
back, would change what is computed here, and noise with it.  So there is a context of our own, and
one thread at a time computes in it, because a context's precision is state as well: functions raise
it while they work.  The numbers it makes compute in it, whoever holds them: outside of
:func:`precision` only compare or convert them.

mpmath keeps π and ln 2, as precisely as anybody ever asked for, in two steps that are not atomic.
They are asked for here once, with more digits than a thread of somebody else is likely to want.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import mpmath

_CONSTANT_BITS: Final = 8192

_context: Any = mpmath.MPContext()
_lock = threading.RLock()


@contextmanager
def precision(bits: int) -> Iterator[Any]:
    """Our own mpmath context, with so many bits, for one thread."""
    with _lock:
        before = _context.prec
        _context.prec = bits
        try:
            yield _context
        finally:
            _context.prec = before


def _after_fork() -> None:
    """Another thread may have held the lock, and is not in the child."""
    global _lock  # noqa: PLW0603 - there is one for the process
    _lock = threading.RLock()
    _context.prec = 53


os.register_at_fork(after_in_child=_after_fork)
with precision(_CONSTANT_BITS) as _mp:
    _ = +_mp.pi, +_mp.ln2
