"""Compiled kernels for the BLT strategy, where the extra ``fast`` (Numba) is installed."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any, Final

#: Shorter blocks are not worth the first call of a kernel.
SHORTEST: Final = 256


@lru_cache(maxsize=1)
def _module() -> Any | None:
    try:
        return importlib.import_module("rillet.strategy.toeplitz.kernels")
    except (ImportError, RuntimeError):
        # Not installed, or no place to keep what it compiles: the plain form serves.
        return None


def kernels(count: int) -> Any | None:
    """The kernels for a block of ``count`` leaves, or ``None``: the numbers are the same."""
    return _module() if count >= SHORTEST else None
