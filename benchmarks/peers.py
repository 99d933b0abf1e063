"""The same streams through OpenDP and jax-privacy, to see whether releases have the same law.

    make peers

Nothing is shared with rillet but the public numbers: lattice, scale, poles and weights.  Samples
are compared by the two-sample test of Kolmogorov and Smirnov and by their variances; what is a
number on both sides (sensitivities, variances of errors) is compared as a number.  The chance that
any of the tests fails although all is well is below one in a thousand, for all of them together.
Noise that is larger by a twentieth must be found to differ, or nothing would be tested.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rillet.noise import GAUSSIAN, LAPLACE, LatticeNoise, Law, Secret
from rillet.strategy import BinaryTree, BufferedToeplitz, HonakerTree, Strategy

FALSE_ALARMS = 1e-3
DRAWS = 200_000
RUNS = 3_000
LEAVES = 256
STEPS = 1 << 20
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Check:
    """One comparison: a p-value, or two numbers and how near they must be."""

    what: str
    p: float | None = None
    own: float = 0.0
    other: float = 0.0
    within: float = 0.0

    def holds(self, alpha: float) -> bool:
        if self.p is not None:
            return self.p >= alpha
        return abs(self.own - self.other) <= self.within * abs(self.other)


def same_law(what: str, own: NDArray[Any], other: NDArray[Any]) -> list[Check]:
    """Two samples: shape, and variance by the deviations that fourth moments allow."""
    own, other = np.asarray(own, float), np.asarray(other, float)
    scale = np.sqrt(np.mean(other**2))
    squares = [(sample / scale) ** 2 for sample in (own, other)]
    return [
        Check(f"{what}: shape", p=float(stats.ks_2samp(own, other).pvalue)),
        Check(f"{what}: variance", p=float(stats.ttest_ind(*squares, equal_var=False).pvalue)),
    ]


# --- OpenDP --------------------------------------------------------------------------------------


def samplers() -> list[Check]:
    """Exact integer noise, drawn in two very different ways."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    checks = []
    domain = dp.vector_domain(dp.atom_domain(T="i64"))
    laws: tuple[Law, ...] = (LAPLACE, GAUSSIAN)
    for law in laws:
        # OpenDP's laws are discrete, rillet's rounded: 1/(8·scale²) apart, less than can be seen.
        for scale in (300.0, 20 * 2.0**20):
            if law is LAPLACE:
                measurement = dp.m.make_laplace(domain, dp.l1_distance(T="i64"), scale=scale)
            else:
                measurement = dp.m.make_gaussian(domain, dp.l2_distance(T=float), scale=scale)
            other = np.array(measurement(np.zeros(DRAWS, np.int64)))
            own = LatticeNoise(law, scale, Secret.generate(), ("peers",)).draw(0, DRAWS)
            checks += same_law(f"OpenDP, {law.name} draws of scale {scale:,.0f}", own, other)
    return checks


def releases(strategy: Strategy, exact_leaves: NDArray[np.int64], scale: float) -> Floats:
    """Noise of all running sums of one stream, in many runs."""
    law = LAPLACE if strategy.law == "laplace" else GAUSSIAN
    count, found = len(exact_leaves), []
    for _ in range(RUNS):
        secret = Secret.generate()
        encoder, decoder = strategy.encoder(count), strategy.decoder(count)
        _, exact_nodes = encoder.encode(encoder.start(), 1, exact_leaves)
        process = strategy.noise_process(count)

        def levels(level: int, secret: Secret = secret) -> LatticeNoise:
            return LatticeNoise(law, scale, secret, ("peers", level))

        _, noise = process.draw(process.start(), levels, 1, count)
        _, sums = decoder.decode(decoder.start(), 1, exact_nodes + noise)
        found.append(np.asarray(sums, float) - np.cumsum(exact_leaves))
    return np.array(found)


def power() -> list[Check]:
    """A twentieth more noise, which must be seen."""
    own, other = (
        LatticeNoise(LAPLACE, scale, Secret.generate(), ("power",)).draw(0, DRAWS)
        for scale in (315.0, 300.0)
    )
    return same_law("a twentieth too much", own, other)


def trees() -> list[Check]:
    """The noisy tree, read as a running sum, and made consistent."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    tree = dp.t.make_b_ary_tree(
        dp.vector_domain(dp.atom_domain(T="i64")),
        dp.l1_distance(T="i64"),
        leaf_count=LEAVES,
        branching_factor=2,
    )
    checks = [
        Check(
            "OpenDP, L1 sensitivity of the tree",
            own=float(BinaryTree().sensitivity(LEAVES, STEPS)),
            other=float(tree.map(STEPS)),
        )
    ]
    scale = float(tree.map(STEPS))
    exact = np.random.default_rng(1).integers(0, STEPS + 1, LEAVES)
    noisy = tree >> dp.m.then_laplace(scale=scale)
    consistent = dp.t.make_consistent_b_ary_tree(2, TIA="i64", TOA="f64")
    plain, best = [], []
    for _ in range(RUNS):
        nodes = np.array(noisy(exact))
        plain.append(prefixes(nodes) - np.cumsum(exact))
        best.append(np.sum(consistent(nodes)) - exact.sum())
    own = releases(BinaryTree(), exact, scale)
    for t in (1, 128, 171, 255, 256):
        checks += same_law(f"OpenDP, tree at {t}", own[:, t - 1], np.array(plain)[:, t - 1])
    own = releases(HonakerTree(), exact, scale)
    return checks + same_law("OpenDP, consistent tree at its end", own[:, -1], np.array(best))


def prefixes(nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Running sums from a tree that is stored level by level, its root first."""
    sums = []
    for t in range(1, LEAVES + 1):
        total, begun = 0, 0
        for bit in reversed(range(LEAVES.bit_length())):
            if t >> bit & 1:
                level = LEAVES >> bit  # as many nodes as this level has, and their first number + 1
                total += int(nodes[level - 1 + (begun >> bit)])
                begun += 1 << bit
        sums.append(total)
    return np.array(sums)


# --- jax-privacy ---------------------------------------------------------------------------------


def toeplitz() -> list[Check]:
    """BLT with the same poles and weights: sensitivities, variances, law of the noise."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax
    from jax_privacy.matrix_factorization import buffered_toeplitz, streaming_matrix
    from jax_privacy.matrix_factorization import toeplitz as toeplitz_matrices

    jax.config.update("jax_enable_x64", True)
    count, strategy = 1024, BufferedToeplitz()
    blt = strategy.blt(count)
    other = buffered_toeplitz.BufferedToeplitz.build(
        [float(1 - rate) for rate in blt.phi], [float(weight) for weight in blt.omega]
    )
    matrix = np.asarray(other.materialize(count))
    noise = np.asarray(
        (streaming_matrix.prefix_sum() @ other.inverse_as_streaming_matrix()).materialize(count)
    )
    sensitivity = float(buffered_toeplitz.sensitivity_squared(other, count)) * STEPS**2
    checks = [
        Check(
            "jax-privacy, squared L2 sensitivity (rillet charges its rounding on top)",
            own=float(strategy.sensitivity(count, STEPS)),
            other=sensitivity,
            within=1e-3,
        ),
        Check(
            "jax-privacy, the same from its matrix",
            own=float(strategy.sensitivity(count, STEPS)),
            other=float(np.max(np.sum(matrix**2, axis=0))) * STEPS**2,
            within=1e-3,
        ),
    ]
    for most, apart in ((2, 1), (10, 7), (40, 24)):
        several = toeplitz_matrices.minsep_sensitivity_squared(
            other.toeplitz_coefs(count), min_sep=apart, max_participations=most, n=count
        )
        checks.append(
            Check(
                f"jax-privacy, the same for {most} leaves of a person, {apart} apart",
                own=float(strategy.repeated(count, STEPS, most, apart)),
                other=float(several) * STEPS**2,
                within=2e-3,
            )
        )
    times = np.array([1, 2, 10, 100, 777, count])
    own_weights = strategy.weights(count, times)
    for t, weight in zip(times, own_weights, strict=True):
        expected = float(np.sum(noise[t - 1] ** 2))
        checks.append(Check(f"jax-privacy, variance at {t}", None, float(weight), expected, 1e-9))
    scale = 4.0 * STEPS
    exact = np.random.default_rng(2).integers(0, STEPS + 1, count)
    own = releases(strategy, exact, scale)
    draws = np.asarray(jax.random.normal(jax.random.key(3), (RUNS, count))) * scale
    peer = draws @ noise.T
    for t in (1, 10, 777, count):
        checks += same_law(f"jax-privacy, BLT at {t}", own[:, t - 1], peer[:, t - 1])
    return checks


def main() -> None:
    checks = [*samplers(), *trees(), *toeplitz()]
    alpha = FALSE_ALARMS / sum(check.p is not None for check in checks)
    print("| compared | rillet | other | p |\n|---|---|---|---|")
    for check in checks:
        numbers = f"{check.own:.8g} | {check.other:.8g} |" if check.p is None else " | |"
        p = "" if check.p is None else f"{check.p:.2g}"
        mark = "" if check.holds(alpha) else " **differs**"
        print(f"| {check.what} | {numbers} {p}{mark} |")
    failed = [check.what for check in checks if not check.holds(alpha)]
    failed += [f"{check.what} is not seen" for check in power() if check.holds(alpha)]
    print(
        f"\n{len(checks)} comparisons, p at least {alpha:.1g} asked of each: {len(failed)} differ"
    )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
