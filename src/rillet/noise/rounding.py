"""From the words of a keystream to rounded draws, in floats: the inner loop of :mod:`rillet.noise`.

**Privacy.** No randomness and no data here.  What floats cannot decide is told, not guessed:
:mod:`rillet.noise` decides it in multiple precision.
"""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rillet.extras import compiled
from rillet.noise.laws import GAUSSIAN, FloatArray, Law
from rillet.noise.quantile_table import gaussian_table

Words: TypeAlias = NDArray[np.uint64]


def _kernels() -> Any | None:
    """Compiled loops if something has loaded Numba, which takes longer than they would save."""
    return compiled("rillet.noise.kernels") if "numba" in sys.modules else None


def round_words(
    words: Words,
    law: Law,
    scale: float,
    limit: float,
    smallest: np.uint64,
    out: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Fill ``out`` with ``±round(scale·quantile(u))``, sign and ``u`` from each word.

    Bit 0 of a word is the sign; the other 63 bits are the leading bits of ``u``.  Returns the
    places where those are below ``smallest`` or what was rounded is not within ``limit`` of an
    integer, as a number that is not finite never is; what ``out`` holds there means nothing.
    """
    fast = _kernels()
    if fast is not None:
        magnitude, places = np.empty(len(words)), np.empty(len(words), np.int64)
        fast.uniforms(words, magnitude)
        if law is GAUSSIAN:
            fast.evaluate(gaussian_table(), magnitude)
        else:
            magnitude = law.float_quantile(magnitude)
        return places[: fast.round_signed(words, magnitude, scale, limit, smallest, out, places)]
    magnitude = scaled_quantile(words, law, scale)
    rounded = np.rint(magnitude)
    magnitude -= rounded
    likely = np.abs(magnitude, out=magnitude) < limit
    likely &= words >= smallest << np.uint64(1)
    np.copyto(out, with_sign(rounded, words), casting="unsafe")
    return np.flatnonzero(~likely)


def scaled_quantile(words: Words, law: Law, scale: float) -> FloatArray:
    """``scale·quantile(u)`` in floats."""
    magnitude = law.float_quantile(uniform_of(words >> np.uint64(1)))
    magnitude *= scale
    return magnitude


def with_sign(rounded: FloatArray, words: Words) -> FloatArray:
    """Set the sign of numbers that have none, in place."""
    signed = rounded.view(np.uint64)
    signed |= words << np.uint64(63)
    return rounded


def uniform_of(leading: Words) -> FloatArray:
    """63 bits as a number from 0 to 1."""
    uniform = leading.view(np.int64).astype(np.float64)
    uniform *= 2.0**-63
    return uniform
