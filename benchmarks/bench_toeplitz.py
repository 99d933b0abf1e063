"""The Toeplitz strategy with exact noise, beside jax-privacy's compiled scan with its own noise.

Both make noisy running sums of the same values with the same coefficients.  jax-privacy computes in
floats with JAX's counter-based generator; rillet in exact integers with noise from AES.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

from frame import Comparison, Contender, Figure
from rillet.noise import CHUNK, GAUSSIAN, FloatArray, IntArray, LatticeNoise, Secret, sampling
from rillet.strategy import BufferedToeplitz
from rillet.strategy.toeplitz import encoder as blt_encoder

LENGTH = 1_000_000
#: For a way that takes microseconds for each.
FEWER = 20_000
STEPS = 2**20
#: Standard deviation of the noise of a node, in lattice units: ε = 1, δ = 2^-20 ask for about this.
SCALE = 10.0 * STEPS


def bench_plain() -> Comparison:
    """Without Numba, at most four times as long."""
    return _comparison("rillet, plain NumPy", _never_compiled, 4.0)


def bench_fast() -> Comparison:
    """With Numba, at most one and a half times as long."""
    if blt_encoder.kernels(LENGTH) is None:
        raise SystemExit("Numba is not installed; type: pip install 'rillet[fast]'")
    return _comparison("rillet, with Numba", lambda run: run, 1.5)


def _comparison(name: str, path: Callable[[Any], Any], within: float) -> Comparison:
    leaves = np.random.default_rng(1).integers(0, STEPS, LENGTH, endpoint=True)
    strategy = BufferedToeplitz()
    scan, privatizer = _jax_privacy(strategy, leaves)
    run = path(lambda: _own(strategy, leaves))
    run()  # compiles
    return Comparison(
        f"{LENGTH:,} running sums by a Toeplitz strategy, {strategy.blt(LENGTH).buffers} buffers",
        "observation",
        [
            Contender(name, run, LENGTH),
            Contender("jax-privacy, one scan", scan, LENGTH, rillet_within=within),
            Contender("jax-privacy, privatizer", privatizer, FEWER, most_rounds=2),
        ],
    )


def _own(strategy: BufferedToeplitz, leaves: IntArray) -> FloatArray:
    """Encode, add exact noise, decode, in the blocks that a stream uses."""
    encoder, decoder = strategy.encoder(LENGTH), strategy.decoder(LENGTH)
    noise = LatticeNoise(GAUSSIAN, SCALE, Secret.generate(), ("benchmark",))
    encoded, decoded = encoder.start(), decoder.start()
    sums = np.empty(LENGTH)
    for begin in range(0, len(leaves), CHUNK):
        block = slice(begin, begin + CHUNK)
        encoded, nodes = encoder.encode(encoded, begin + 1, leaves[block])
        nodes += noise.draw(begin + 1, len(nodes))
        decoded, sums[block] = decoder.decode(decoded, begin + 1, nodes)
    return sums


def _nothing(module: str) -> None:
    """What is found where Numba is not installed."""


def _never_compiled(run: Callable[[], object]) -> Callable[[], object]:
    """``run`` as on a machine without Numba."""

    def plainly() -> object:
        with (
            mock.patch.object(blt_encoder, "compiled", _nothing),
            mock.patch.object(sampling, "compiled", _nothing),
        ):
            return run()

    return plainly


def _jax_privacy(
    strategy: BufferedToeplitz, leaves: IntArray
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Two ways to the same sums, compiled: the quickest there is, and the one for training.

    The first draws all noise at once and then runs two scans of the library, one for the inverse
    of the strategy and one for the running sum.  The second calls the library's privatizer, which
    draws at each step; it is given fewer values.
    """
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax
    from jax_privacy import noise_addition
    from jax_privacy.matrix_factorization import buffered_toeplitz, streaming_matrix

    jax.config.update("jax_enable_x64", True)  # what the library asks for
    numpy = jax.numpy
    blt = strategy.blt(LENGTH)
    inverse = buffered_toeplitz.BufferedToeplitz.build(
        [float(1 - rate) for rate in blt.phi], [float(weight) for weight in blt.omega]
    ).inverse_as_streaming_matrix()
    sums = streaming_matrix.prefix_sum()

    def scan(key: Any, values: Any) -> Any:
        noise = SCALE * jax.random.normal(key, values.shape)
        return sums @ (values + inverse @ noise)

    def privatizer(key: Any, values: Any) -> Any:
        private = noise_addition.matrix_factorization_privatizer(
            inverse, stddev=SCALE, prng_key=key
        )

        def step(state: Any, value: Any) -> Any:
            noise_state, total = state
            noisy, noise_state = private.update(value, noise_state)
            return (noise_state, total + noisy), total + noisy

        return jax.lax.scan(step, (private.init(values[0]), numpy.zeros(())), values)[1]

    values, key = numpy.asarray(leaves, float), jax.random.key(0)
    fast_scan, fast_privatizer, few = jax.jit(scan), jax.jit(privatizer), values[:FEWER]
    runs: tuple[Callable[[], object], Callable[[], object]] = (
        lambda: fast_scan(key, values).block_until_ready(),
        lambda: fast_privatizer(key, few).block_until_ready(),
    )
    for run in runs:
        run()  # compiles
    return runs


# A process of its own for each length; see bench_stream.py for where the peak is read.
_CONSUME = """
import re, resource, sys
from pathlib import Path
import numpy as np
from rillet import Plan
from rillet.strategy import BufferedToeplitz
length, block = int(sys.argv[1]), 2**16
plan = Plan.baseline(
    epsilon=1.0, delta=2**-20, upper=1440.0, length=length, strategy=BufferedToeplitz()
)
stream, generator = plan.open(), np.random.default_rng(1)
for begin in range(0, length, block):
    stream.update_many(generator.exponential(10.0, min(block, length - begin)))
assert stream.t == length
status = Path("/proc/self/status")
if status.exists():
    print(int(re.search(r"VmHWM:\\s*(\\d+) kB", status.read_text())[1]) / 2**10)
else:
    unit = 2**20 if sys.platform == "darwin" else 2**10
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit)
"""


def bench_memory() -> Figure:
    """Peak memory of ten million observations over that of one million, in blocks of 65,536."""

    def peak_mib(length: int) -> float:
        done = subprocess.run(
            [sys.executable, "-c", _CONSUME, str(length)],
            capture_output=True,
            text=True,
            check=True,
        )
        return float(done.stdout)

    return Figure(
        "10,000,000 values through a Toeplitz strategy",
        "rillet, peak over that of 1,000,000",
        "MiB",
        lambda: peak_mib(10_000_000) - peak_mib(1_000_000),
        at_most=8.0,
    )
