"""Noise whose uniforms are chosen by the test, and the truth about them, computed another way."""

import importlib
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from unittest import mock

import mpmath
import numpy as np

from rillet.noise import Keystream, LatticeNoise, Law, Secret, sampling
from rillet.testing.lattice import Tail

#: Further words of a uniform that the reference reads: more than any draw here needs.
DEPTH = 6


class ForcedWords(Keystream):
    """A keystream that says what it was told: ``words[i]`` at index ``i``."""

    __slots__ = ("_forced",)

    def __init__(self, words: Sequence[int]) -> None:
        super().__init__(b"\0" * 32)
        self._forced = np.array(words, np.uint64)

    def words(self, start: int, count: int) -> np.ndarray:
        return self._forced[start : start + count]


class ForcedRefinement(Keystream):
    """Further words: chosen ones for some indices, a keystream's own for all others."""

    __slots__ = ("_chosen", "_own")

    def __init__(self, own: Keystream, chosen: Mapping[int, Sequence[int]]) -> None:
        super().__init__(b"\0" * 32)
        self._own = own
        self._chosen = chosen

    def words(self, start: int, count: int) -> np.ndarray:
        index, number = start >> 20, start & (2**20 - 1)
        chosen = self._chosen.get(index, ())
        if number < len(chosen):
            assert count == 1
            return np.array([chosen[number]], np.uint64)
        return self._own.words(start, count)


def forced_noise(
    law: Law,
    scale: float,
    words: Sequence[int],
    further: Mapping[int, Sequence[int]] | None = None,
    slack: float = 1.0,
) -> LatticeNoise:
    """Noise that reads ``words`` (63 bits of uniform, then the sign bit) instead of a keystream."""
    noise = LatticeNoise(law, scale, Secret.for_tests(0), ("forced",), slack)
    object.__setattr__(noise, "_words", ForcedWords(words))
    object.__setattr__(noise, "_more", ForcedRefinement(noise._more, further or {}))
    return noise


def uniform_interval(noise: LatticeNoise, index: int, word: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """The interval in which the uniform lies, once ``DEPTH`` further words are known."""
    known = word >> 1
    for number in range(DEPTH):
        known = known << 64 | int(noise._more.words((index << 20) + number, 1)[0])
    bits = 63 + 64 * DEPTH
    return mpmath.ldexp(known, -bits), mpmath.ldexp(known + 1, -bits)


def drawn_both_ways(noise: LatticeNoise, count: int) -> np.ndarray:
    """The draws, which must be the same in plain NumPy and, where it is installed, with Numba."""
    with mock.patch.object(sampling, "compiled", return_value=None):
        plain = noise.draw(0, count)
    with suppress(ImportError):
        importlib.import_module("numba")
    assert (sampling._kernels() is not None) == ("numba" in sys.modules)
    assert np.array_equal(noise.draw(0, count), plain)
    return plain


def assert_rounded_right(noise: LatticeNoise, tail: Tail, words: Sequence[int]) -> None:
    """Every draw is the one integer whose half-integer neighbours' tails enclose the uniform.

    ``k = round(scale·Q(U))`` means ``tail((k + ½)/scale) < U < tail((k − ½)/scale)``: only the
    tail function is used here, only its inverse in the code under test.
    """
    drawn = drawn_both_ways(noise, len(words))
    with mpmath.workprec(63 + 64 * DEPTH + 100):
        scale, half = mpmath.mpf(noise.scale), mpmath.mpf(1) / 2
        for index, (word, value) in enumerate(zip(words, drawn.tolist(), strict=True)):
            low, high = uniform_interval(noise, index, word)
            k = abs(value)
            where = f"word {word} (j = {word >> 1}) at scale {noise.scale} became {value}"
            assert tail((k + half) / scale) <= low, f"{where}: should be farther out"
            assert k == 0 or high <= tail((k - half) / scale), f"{where}: should be nearer"
            assert value == 0 or (value < 0) == bool(word & 1), f"{where}: wrong sign"


def float_points() -> np.ndarray:
    """Uniforms as the code forms them: everywhere, the ends, and where implementations branch."""
    generator = np.random.default_rng(7)
    ends = [2.0**-43, 2.0**-42, 1.0, *(1 - np.arange(1, 2000) * 2.0**-53)]
    # The Gaussian quantile changes its formula at v/2 = e^-2 and e^-32, the logarithm at √½.
    branches = [2 * np.exp(-2), 2 * np.exp(-32), 0.5**0.5, 0.5, 2 - 2 * np.exp(-2)]
    near = [b * (1 + np.arange(-400, 400) * 2.0**-52) for b in branches]
    near += [b * (1 + generator.uniform(-1e-3, 1e-3, 800)) for b in branches]
    points = np.concatenate(
        [
            ends,
            *near,
            generator.random(10_000),
            2.0 ** generator.uniform(-43, 0, 10_000),
            1 - 2.0 ** generator.uniform(-52, -1, 4000),
        ]
    )
    return points[(points >= 2.0**-43) & (points <= 1)]
