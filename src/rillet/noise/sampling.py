"""Exact, integer-valued draws: the only module that draws noise for a release.

A draw is ``round(Z)`` for a continuous law ``Z`` (Laplace, Gaussian, or any law given by its
quantile function), by the inverse of the distribution function at a keyed uniform.

**Privacy.** Because the data are integers, ``k + round(Z) = round(k + Z)``: rounding is
post-processing and the integer mechanism inherits the guarantee of the continuous law with no
loss.  The draw is exact: a float result is accepted only when every value that the still unknown
bits of the uniform could give rounds to the same integer (docs/proofs/noise.md); otherwise the
same uniform is extended with more bits and decided in multiple precision.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Final, Protocol, TypeAlias

import mpmath
import numpy as np
from numpy.typing import NDArray

from rillet.errors import ParameterError
from rillet.extras import compiled
from rillet.noise.laws import GAUSSIAN, FloatArray, Law, gaussian_table
from rillet.noise.secret import KeyPart, Keystream, Secret
from rillet.precision import precision

IntArray: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint64]

#: Largest noise scale, in lattice units, for which the float path is proved (docs/proofs/noise.md).
LARGEST_SCALE: Final = 2.0**38
#: Uniforms below this many units of 2^-63 are always decided in multiple precision.
SMALLEST_FAST_UNIFORM: Final = 2**20
#: Uniforms from here on, all but a millionth, share one bound that is tried first.
_SMALLEST_COMMON_UNIFORM: Final = np.uint64(2**43)
#: Draws are made in blocks of this many: the working arrays then stay in the second-level cache.
CHUNK: Final = 2**14
#: So many times as many draws are made as are asked for, where more are expected soon; and so many
#: at least: what a single one takes is then told by no call.
_AHEAD: Final = 8
_LEAST_AHEAD: Final = 2**8
#: Room for extra words in the refinement keystream: index · 2^20 + word number.
_REFINE_SHIFT: Final = 20


def _check_scale(scale: object) -> float:
    number = isinstance(scale, (int, float, np.integer, np.floating))
    if not number or isinstance(scale, bool) or not 0.0 < scale <= LARGEST_SCALE:  # type: ignore[operator]
        raise ParameterError(
            "scale",
            "a noise scale between 0 and 2^38 lattice units",
            scale,
            hint="use a coarser grid, a shorter stream or a larger epsilon",
        )
    return float(scale)  # type: ignore[arg-type]


def decide(law: Law, scale: float, known: int, more: Iterator[int]) -> int:
    """Round ``scale·|Z|`` exactly for the uniform that starts with the 63 bits ``known``.

    ``more`` yields further 64-bit words of the same uniform.  At each precision the quantile is
    taken at both ends of the interval that the known bits leave; when both round to the same
    integer, so does everything between, because the quantile is monotone.
    """
    bits = 63
    for word in more:
        known = known << 64 | word
        bits += 64
        if known == 0:
            continue  # the interval still reaches 0, where the quantile is infinite
        with precision(bits + 128) as mp:
            unit = mp.ldexp(mp.mpf(1), -bits)
            nearest = law.quantile((known + 1) * unit) * scale
            farthest = law.quantile(known * unit) * scale
            margin = (farthest + scale + 1) * mp.ldexp(mp.mpf(1), -bits - 64)
            half = mp.mpf(1) / 2
            lowest = int(mp.floor(nearest - margin + half))
            highest = int(mp.floor(farthest + margin + half))
        if max(lowest, 0) == highest:
            return highest
    raise AssertionError("unreachable: the keystream does not end")


@dataclass(frozen=True)
class LatticeNoise:
    """Independent integer draws ``round(scale · Z)``, addressed by index.

    **Privacy.** Draws at different indices, or from different purposes or secrets, are
    independent (computationally); the same address always gives the same integer.

    Parameters
    ----------
    law
        The continuous law of scale 1.
    scale
        Scale in lattice units, at most 2^38.
    secret
        Where the keystream comes from.
    purpose
        Public name of what the noise is for.
    slack
        Factor on the error bound that decides when to refine; at least 1, and every value gives
        the same integers (tests use it).

    Examples
    --------
    >>> from rillet.noise import LAPLACE
    >>> noise = LatticeNoise(LAPLACE, 100.0, Secret.for_tests(1), ("example",))
    >>> (noise.draw(5, 3) == noise.draw(0, 8)[5:]).all()
    np.True_
    """

    law: Law
    scale: float
    secret: Secret = field(repr=False)
    purpose: tuple[KeyPart, ...]
    slack: float = 1.0
    _words: Keystream = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", _check_scale(self.scale))
        if not 1.0 <= self.slack < float("inf"):  # less would lose exactness
            raise ParameterError("slack", "a finite factor of at least 1", self.slack)
        object.__setattr__(self, "_words", self.secret.keystream("noise", *self.purpose))

    @property
    def variance(self) -> float:
        """Variance of one draw, in lattice units squared."""
        return self.law.variance(self.scale)

    def draw(self, start: int, count: int) -> IntArray:
        """Draws ``start`` to ``start + count - 1``."""
        start = int(start)  # the arithmetic of addresses below must not wrap round at 64 bits
        drawn = np.empty(count, np.int64)
        for offset in range(0, count, CHUNK):
            block = drawn[offset : offset + CHUNK]
            words = self._words.words(start + offset, len(block))
            for index in self._round_words(words, block):
                word, address = int(words[index]), start + offset + int(index)
                magnitude = decide(self.law, self.scale, word >> 1, self._extra_words(address))
                block[index] = -magnitude if word & 1 else magnitude
        return drawn

    def _round_words(self, words: NDArray[np.uint64], out: IntArray) -> NDArray[np.intp]:
        """Fill ``out`` where floats decide; return the indices that must be refined.

        Bit 0 of a word is the sign; the other 63 bits are the leading bits of the uniform.
        """
        if not np.isfinite(self.law.log_slope):
            return np.arange(len(words))
        # Most draws are certain by a bound that holds for all common words; the others are made
        # again, and the bound of their own word decides: infinite or NaN, where u is 0.
        with np.errstate(divide="ignore", invalid="ignore"):
            common, smallest = self._common_limit, _SMALLEST_COMMON_UNIFORM
            indices = round_words(words, self.law, self.scale, common, smallest, out)
            if not len(indices):
                return indices
            left = words[indices]
            magnitude = scaled_quantile(left, self.law, self.scale)
            certain = self._certain(left >> np.uint64(1), magnitude)
        out[indices[certain]] = with_sign(np.rint(magnitude), left)[certain]
        return indices[~certain]

    def _certain(self, leading: NDArray[np.uint64], magnitude: FloatArray) -> NDArray[np.bool_]:
        """Whether every value that a draw can still take rounds to the same integer."""
        law, scale, slack = self.law, self.scale, self.slack
        # How far the unknown bits can move the result: 2·log_slope·scale/j, j = uniform·2^63.
        reach = np.divide(slack * scale * law.log_slope * 2.0**-62, uniform_of(leading))
        reach += magnitude * (slack * (2 * law.float_error + 2.0**-51))
        reach += np.abs(magnitude - np.rint(magnitude))
        certain: NDArray[np.bool_] = reach < self._limit
        certain &= leading >= np.uint64(SMALLEST_FAST_UNIFORM)
        return certain

    @cached_property
    def _limit(self) -> float:
        return 0.5 - self.slack * self.scale * (self.law.log_slope * 2.0**-51)

    @property
    def _common_limit(self) -> float:
        """A gap below this is below ``_limit`` with the reach of any common word added, twice."""
        return self._limit - 2 * _common_reach(self.law, self.scale, self.slack) - 2.0**-50

    @cached_property
    def _more(self) -> Keystream:
        """Further words, for the few draws that need them."""
        return self.secret.keystream("refine", *self.purpose)

    def _extra_words(self, index: int) -> Iterator[int]:
        first = index << _REFINE_SHIFT
        for number in range(1 << _REFINE_SHIFT):
            yield int(self._more.words(first + number, 1)[0])


class NoiseSource(Protocol):
    """Independent keyed integer draws, addressed by index, such as :class:`LatticeNoise`."""

    def draw(self, start: int, count: int) -> IntArray:
        """Draws ``start`` to ``start + count - 1``."""


class ReadAhead:
    """The draws of a source, some ahead where few are asked for: each call has a cost of its own.

    The same draws whatever was asked before, and each of them made once if they are asked for in
    order; none after the ``last`` that the source is for.
    """

    def __init__(self, source: NoiseSource, last: int) -> None:
        self._source, self._last = source, last
        self._kept = 0, np.empty(0, np.int64)

    def draw(self, start: int, count: int) -> IntArray:
        """Draws ``start`` to ``start + count - 1``."""
        first, drawn = self._kept  # both at once: several threads may ask
        known = drawn[start - first :][:count] if start >= first else drawn[:0]
        wanted, begin = count - len(known), start + len(known)
        if not wanted:
            return known.copy()
        ahead = min(max(_AHEAD * count, _LEAST_AHEAD), CHUNK, self._last + 1 - begin)
        more = self._source.draw(begin, max(wanted, ahead))
        self._kept = begin, more
        return np.concatenate([known, more[:wanted]])


def draw_each(
    law: Law,
    scale: float,
    secrets: Sequence[Secret],
    purpose: tuple[KeyPart, ...],
    start: int,
    count: int,
) -> IntArray:
    """Draws ``start`` to ``start + count - 1`` of each of many secrets, a row for each.

    What :meth:`LatticeNoise.draw` gives for each, rounded together.
    """
    rows = len(secrets)
    words = np.empty((rows, count), np.uint64)
    for row, secret in enumerate(secrets):
        words[row] = secret.keystream("noise", *purpose).words(start, count)
    drawn = np.empty((rows, count), np.int64)
    flat_words, flat_drawn = words.reshape(-1), drawn.reshape(-1)
    rounding = LatticeNoise(law, scale, secrets[0], purpose)
    for offset in range(0, rows * count, CHUNK):
        part = slice(offset, offset + CHUNK)
        for index in rounding._round_words(flat_words[part], flat_drawn[part]).tolist():
            row, place = divmod(offset + index, count)
            own = LatticeNoise(law, scale, secrets[row], purpose)
            drawn[row, place] = own.draw(start + place, 1)[0]
    return drawn


@lru_cache(maxsize=64)
def _common_reach(law: Law, scale: float, slack: float) -> float:
    """How far the unknown bits of any common word can move a draw."""
    rarest = float(_SMALLEST_COMMON_UNIFORM) * 2.0**-63
    reach = slack * scale * law.log_slope * 2.0**-62 / rarest
    largest = scale * float(law.float_quantile(np.array([rarest]))[0])
    return reach + largest * (slack * (2 * law.float_error + 2.0**-51))


def continuous_draw(
    law: Law, secret: Secret, purpose: tuple[KeyPart, ...], index: int = 0, bits: int = 256
) -> mpmath.mpf:
    """One draw of ``Z`` in multiple precision, for scales that depend on data.

    **Privacy.** The result has more digits than may be published: whoever uses it must land on a
    public grid (see :mod:`rillet.threshold`), where the truncation of the uniform to ``bits`` bits
    changes the outcome with probability below ``2^(60 − bits)``.
    """
    word = secret.keystream("continuous", bits, *purpose).integer(index, bits)
    with precision(bits + 64) as mp:
        magnitude = law.quantile((2 * (word >> 1) + 1) * mp.ldexp(mp.mpf(1), -bits))
        return -magnitude if word & 1 else magnitude


def uniform_below(
    total: int, secret: Secret, purpose: tuple[KeyPart, ...], index: int = 0, bits: int = 512
) -> int:
    """A uniform integer from 0 to ``total − 1``, exactly, for totals that depend on data.

    **Privacy.** ``⌊U·total⌋`` for a uniform ``U`` whose bits are read until they decide, so nothing
    is truncated.  The first ``bits`` decide but for a chance of ``total·2^-bits``, whatever the
    total: neither time nor the number of words read tells anything about it.
    """
    if total < 1 or bits < 64 or bits % 64:
        raise ParameterError("total, bits", "at least 1, and a multiple of 64", (total, bits))
    words, first = secret.keystream("uniform", *purpose), index << _REFINE_SHIFT
    count = bits // 64
    known = int.from_bytes(words.words(first, count).astype(">u8").tobytes(), "big")
    for number in range(count, 1 << _REFINE_SHIFT):
        lowest = known * total >> 64 * number
        if lowest == (known + 1) * total - 1 >> 64 * number:  # all that U can still be
            return lowest
        known = known << 64 | int(words.words(first + number, 1)[0])
    raise AssertionError("unreachable: the keystream does not end")


# --- In floats: what they cannot decide is returned as undecided ---------------------------------


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
    indices where those are below ``smallest`` or what was rounded is not within ``limit`` of an
    integer, as a number that is not finite never is; what ``out`` holds there means nothing.
    """
    fast = _kernels()
    if fast is not None:
        magnitude, indices = np.empty(len(words)), np.empty(len(words), np.int64)
        fast.uniforms(words, magnitude)
        if law is GAUSSIAN:
            fast.evaluate(gaussian_table(), magnitude)
        else:
            magnitude = law.float_quantile(magnitude)
        return indices[: fast.round_signed(words, magnitude, scale, limit, smallest, out, indices)]
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
