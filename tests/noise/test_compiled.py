"""The compiled form of draws: the table of the Gaussian quantile, and the same integers.

Lemma 3a of docs/proofs/noise.md says what is true of the table.
"""

import re
from typing import Any

import mpmath
import numpy as np
import pytest

from helpers.forced_noise import float_points, forced_noise
from rillet.noise import GAUSSIAN, LAPLACE, LARGEST_SCALE, LatticeNoise, Secret, decide, sampling
from rillet.noise.laws import (
    FIRST,
    INSIDE_BITS,
    OCTAVES,
    PIECE_BITS,
    TERMS,
    gaussian_table,
)


@pytest.mark.parametrize("law", [LAPLACE, GAUSSIAN], ids=repr)
@pytest.mark.parametrize("scale", [0.5, 3.7, 2.0**20, LARGEST_SCALE])
@pytest.mark.parametrize("slack", [1.0, 1e6])
def test_compiled_draws_are_the_plain_ones(law, scale, slack, monkeypatch):
    """Whichever float a word becomes, and whether it must be refined or not."""
    pytest.importorskip("numba")
    words = LatticeNoise(law, scale, Secret.for_tests(5), ("compiled",))._words.words(0, 5000)
    words = words.copy()
    words[::7] >>= np.uint64(20)
    words[::11] >>= np.uint64(42)
    words[:4] = 0, 1, 2, 3
    words[4:8] = np.uint64(2**64 - 1) - np.arange(4, dtype=np.uint64)  # u is 1 as a float
    noise = forced_noise(law, scale, words.tolist(), {}, slack)
    found, refined = [], []
    for compiled in (True, False):
        if not compiled:
            monkeypatch.setattr(sampling, "compiled", lambda _: None)
        assert (sampling._kernels() is not None) == compiled
        drawn = np.empty(len(words), np.int64)
        indices = noise._round_words(words, drawn)
        refined.append(set(indices.tolist()))
        found.append(drawn)
    either = sorted(refined[0] | refined[1])
    same = found[0] == found[1]
    same[either] = True
    assert same.all()
    # What is refined in one form only is refined by a hair, and rounds to the same there.
    apart = sorted(refined[0] ^ refined[1])
    assert len(apart) <= 2 + 0.02 * len(either)
    for index in apart:
        word = int(words[index])
        exact = decide(law, scale, word >> 1, noise._extra_words(index))
        accepted = found[0] if index in refined[1] else found[1]
        assert accepted[index] == (-exact if word & 1 else exact)


def test_the_table_of_the_gaussian_quantile_is_as_good_as_proved():
    """At the left end of every piece, where it is worst: the stored polynomial, evaluated exactly.

    The quantile there is the one that the piece to the left begins with, but for the first.
    """
    table, pieces = gaussian_table(), 1 << PIECE_BITS
    assert table.shape == (OCTAVES * pieces + 1, TERMS)
    assert np.all(table[:-1, 1:-1] >= 0)
    assert not table[-1].any()
    errors = []
    with mpmath.workprec(120):
        for number, row in enumerate(table[:-1].tolist()):
            octave, piece = divmod(number, pieces)
            left = mpmath.ldexp(1 + mpmath.mpf(piece) / pieces, octave - OCTAVES)
            value = mpmath.fsum(
                mpmath.ldexp(coefficient, INSIDE_BITS * power)
                for power, coefficient in enumerate(row)
            )
            exact = GAUSSIAN.quantile(left)
            errors.append(abs(value - exact) / exact)
    assert max(errors) <= 3 * 2.0**-53


def table_points() -> np.ndarray:
    points = float_points()
    return points[points >= 2.0**-OCTAVES]


def test_the_compiled_quantile_is_the_table_s_operation_by_operation():
    """NumPy rounds after each operation: so must the compiled loop, or the proof is of another."""
    kernels = pytest.importorskip("rillet.noise.kernels")
    v = table_points()
    found = v.copy()
    kernels.evaluate(gaussian_table(), found)
    bits = v.view(np.int64)
    rows = gaussian_table()[(bits >> INSIDE_BITS) - FIRST]
    left = ((1 << INSIDE_BITS) - (bits & ((1 << INSIDE_BITS) - 1))).astype(np.float64)
    expected = rows[:, -1]
    for power in range(TERMS - 2, -1, -1):
        expected = expected * left + rows[:, power]
    assert np.array_equal(found, expected)
    assert found[v == 1].tolist() == [0.0]


def test_the_compiled_quantile_is_as_good_as_proved():
    kernels = pytest.importorskip("rillet.noise.kernels")
    v = table_points()
    found = v.copy()
    kernels.evaluate(gaussian_table(), found)
    # SciPy's own error is a quarter of what is assumed of it, so both cannot be off by much more.
    apart = np.abs(found - GAUSSIAN.float_quantile(v.copy()))
    assert np.all(apart <= (2.0**-49 + 8 * 2.0**-53) * found)


FUSED = re.compile(r"v?fn?m(add|sub)\w*|fml[as]\w*")


def machine_code(function: Any, **options: Any) -> str:
    """What Numba makes of a loop for the types it was called with, compiled afresh."""
    numba = pytest.importorskip("numba")
    again = numba.jit(**{**function.targetoptions, **options})(function.py_func)
    for signature in function.signatures:
        again.compile(signature)
    return "\n".join(again.inspect_asm().values())


def test_no_two_operations_are_fused_in_compiled_rounding():
    kernels = pytest.importorskip("rillet.noise.kernels")
    blt = pytest.importorskip("rillet.strategy.toeplitz.kernels")
    numba = pytest.importorskip("numba")
    LatticeNoise(GAUSSIAN, 9.0, Secret.for_tests(1), ("code",)).draw(0, 10)
    blt.decode(np.ones(2), np.ones(1), np.zeros(2), np.arange(300), np.empty(300))
    loops = (kernels.uniforms, kernels.evaluate, kernels.round_signed, blt.decode)
    for loop in loops:
        assert loop.signatures
        assert not FUSED.search(machine_code(loop)), loop
    # Where the processor can fuse, the search would find it.
    if numba.core.config.CPU_NAME is None and "+fma" in host_features():
        assert FUSED.search(machine_code(kernels.evaluate, fastmath=True))


def host_features() -> str:
    from llvmlite import binding

    return binding.get_host_cpu_features().flatten()
