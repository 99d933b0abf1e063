"""Draws of exact integer noise, beside NumPy's insecure floats and OpenDP's exact integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from frame import Comparison, Contender
from rillet.noise import GAUSSIAN, LAPLACE, LatticeNoise, Law, Secret

DRAWS = 1_000_000
#: OpenDP's exact samplers take microseconds a draw: fewer of them, counted per draw.
FEWER = 20_000
#: What a stream of a million observations needs: 20 levels on a lattice of 2^20 steps.
SCALE = 20 * 2.0**20


def bench_laplace() -> Comparison:
    generator = np.random.default_rng(1)
    return Comparison(
        "Laplace noise",
        "draw",
        [
            Contender("rillet, exact, keyed", _own(LAPLACE), DRAWS),
            Contender(
                "NumPy, floats",
                lambda: generator.laplace(0.0, SCALE, DRAWS),
                DRAWS,
                rillet_within=1.5,
            ),
            Contender("OpenDP, exact", _opendp("laplace"), FEWER, rillet_within=0.01),
        ],
    )


def bench_gaussian() -> Comparison:
    generator = np.random.default_rng(1)
    return Comparison(
        "Gaussian noise",
        "draw",
        [
            Contender("rillet, exact, keyed", _own(GAUSSIAN), DRAWS),
            Contender(
                "NumPy, floats",
                lambda: generator.normal(0.0, SCALE, DRAWS),
                DRAWS,
                rillet_within=5.0,
            ),
            Contender("OpenDP, exact", _opendp("gaussian"), FEWER, rillet_within=0.01),
        ],
    )


def _own(law: Law) -> Callable[[], object]:
    noise = LatticeNoise(law, SCALE, Secret.generate(), ("benchmark",))
    return lambda: noise.draw(0, DRAWS)


def _opendp(law: str) -> Callable[[], object]:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T="i64"))
    if law == "laplace":
        measurement = dp.m.make_laplace(domain, dp.l1_distance(T="i64"), scale=SCALE)
    else:
        measurement = dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=SCALE)
    zeros = np.zeros(FEWER, np.int64)
    return lambda: measurement(zeros)
