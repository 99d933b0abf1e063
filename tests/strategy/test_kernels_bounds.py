"""Compiled loops do not look where an index points: without compiling, NumPy does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import numpy as np
from rillet.noise import GAUSSIAN, LatticeNoise, Secret
from rillet.strategy import BufferedToeplitz
from rillet.strategy.toeplitz import encoder as blt_encoder

import rillet.strategy.toeplitz.kernels as kernels
assert not hasattr(kernels.decode, "py_func"), "compiled after all"
strategy, leaves, count = BufferedToeplitz(buffers=3), 2**20, 1300
values = np.random.default_rng(1).integers(-(2**40), 2**40, count)
ends = []
for form in ("plain", "compiled"):
    if form == "plain":
        exact, blt_encoder.compiled = blt_encoder.compiled, lambda _: None
    else:
        blt_encoder.compiled, blt_encoder.SHORTEST_COMPILED = exact, 1
    encoder, decoder = strategy.encoder(leaves), strategy.decoder(leaves)
    state, first = encoder.encode(encoder.start(), 1, values[:700])
    state, second = encoder.encode(state, 701, values[700:])
    _, sums = decoder.decode(decoder.start(), 1, np.concatenate([first, second]))
    ends.append([*state, first, second, sums])
assert all(np.array_equal(one, other) for one, other in zip(*ends, strict=True))
import numba
LatticeNoise(GAUSSIAN, 1e6, Secret.for_tests(1), ("bounds",)).draw(0, 500)
"""


def test_compiled_loops_stay_within_their_arrays() -> None:
    pytest.importorskip("numba", reason="the extra fast (Numba) is not installed")
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", CODE],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
