"""From the words of a keystream to rounded draws, in floats: the inner loop of :mod:`rillet.noise`.

**Privacy.** No randomness and no data here.  What floats cannot decide is told, not guessed:
:mod:`rillet.noise` decides it in multiple precision.
"""

from __future__ import annotations

import importlib
import sys
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rillet.law import FloatArray, Law

Words: TypeAlias = NDArray[np.uint64]


@lru_cache(maxsize=1)
def _compiled() -> Any | None:
    try:
        return importlib.import_module("rillet.rounding_kernels")
    except (ImportError, RuntimeError):
        return None  # no place to keep what it compiles: the plain form serves


def _kernels() -> Any | None:
    """Compiled loops if something has loaded Numba, which takes longer than they would save."""
    return _compiled() if "numba" in sys.modules else None


def round_words(
    words: Words,
    law: Law,
    scale: float,
    limit: float,
    smallest: np.uint64,
    out: NDArray[np.int64],
) -> tuple[NDArray[np.bool_], FloatArray]:
    """Fill ``out`` with ``±round(scale·quantile(u))``, sign and ``u`` from each word.

    Bit 0 of a word is the sign; the other 63 bits are the leading bits of ``u``.  Returns where
    those are at least ``smallest`` and what was rounded lies within ``limit`` of an integer, and
    the numbers that were rounded.  A number that is not finite counts as far from any integer.
    """
    fast = _kernels()
    if fast is not None:
        uniform, likely = np.empty(len(words)), np.empty(len(words), np.bool_)
        fast.uniforms(words, uniform)
        magnitude = law.float_quantile(uniform)
        fast.round_signed(words, magnitude, scale, limit, smallest, likely, out)
        return likely, magnitude
    leading = words >> np.uint64(1)
    magnitude = law.float_quantile(uniform_of(leading))
    magnitude *= scale
    rounded = np.rint(magnitude)
    gap = magnitude - rounded
    likely = np.abs(gap, out=gap) < limit
    likely &= leading >= smallest
    signed = rounded.view(np.uint64)
    signed |= words << np.uint64(63)
    np.copyto(out, rounded, casting="unsafe")
    return likely, magnitude


def uniform_of(leading: Words) -> FloatArray:
    """63 bits as a number from 0 to 1."""
    uniform = leading.view(np.int64).astype(np.float64)
    uniform *= 2.0**-63
    return uniform
