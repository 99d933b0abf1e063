"""Many draws: their law, their independence, and laws that only have a quantile function."""

import mpmath
import numpy as np
import pytest

from rillet.noise import GAUSSIAN, LAPLACE, LatticeNoise, Law, Secret
from rillet.testing import lattice
from rillet.testing.statistics import (
    SUITE,
    binomial_p_value,
    check,
    goodness_of_fit,
    laplace_scale_p_value,
    normal_scale_p_value,
    sign_p_value,
)

LAWS = pytest.mark.parametrize("law", [LAPLACE, GAUSSIAN], ids=repr)
ALPHA = 1e-9
DRAWS = 10**6


def fit(values, tail, law, scale, cells=64):
    edges = lattice.cell_edges(law, scale, cells)
    counts = lattice.count_cells(values, edges)
    return goodness_of_fit(counts, lattice.cell_probabilities(tail, scale, edges)).p_value


@LAWS
@pytest.mark.parametrize("scale", [0.5, 1.0, 3.7, 2.0**10, 2.0**20, 2.0**30])
def test_draws_have_exactly_the_lattice_probabilities(law, scale):
    noise = LatticeNoise(law, scale, Secret.for_tests(1), ("fit", law.name, repr(scale)))
    drawn = noise.draw(0, DRAWS)
    tail = lattice.TAILS[law.name]
    check(f"law of {law} at {scale}", fit(drawn, tail, law, scale))
    # Power: noise whose scale is 1.5 % off is found, and so is noise without its rarest values.
    wrong = LatticeNoise(law, scale * 1.015, Secret.for_tests(2), ("fit",)).draw(0, DRAWS)
    assert fit(wrong, tail, law, scale) < ALPHA
    reach = round(scale * law.upper_quantile(1e-3)) - 1
    assert fit(np.clip(drawn, -reach, reach), tail, law, scale) < ALPHA


@pytest.mark.long
@LAWS
@pytest.mark.parametrize("scale", [0.5, 3.7, 2.0**20, 2.0**38])
def test_draws_have_exactly_the_lattice_probabilities_at_length(law, scale):
    noise = LatticeNoise(law, scale, Secret.for_tests(3), ("fit at length",))
    drawn = noise.draw(0, 20 * DRAWS)
    check(f"law of {law} at {scale}, long", fit(drawn, lattice.TAILS[law.name], law, scale, 256))


@LAWS
@pytest.mark.parametrize("scale", [2.0**12, 2.0**33])
def test_low_digits_of_large_noise_are_uniform(law, scale):
    """Large integers must not come from coarse floats: the last bits are as random as the rest."""
    drawn = LatticeNoise(law, scale, Secret.for_tests(4), ("digits",)).draw(0, 200_000)
    # Modulo 64 the law is uniform up to its transform at 2π/64, at most (64/2π scale)².
    off = 64.0**2 / scale**2
    counts = np.bincount(drawn & 63, minlength=64)
    p_values = binomial_p_value(counts, drawn.size, (1 - off) / 64, (1 + off) / 64)
    check(f"last six bits, {law} at {scale}", min(1.0, 64 * p_values.min()))
    coarse = np.bincount(drawn // 4 * 4 & 63, minlength=64)
    wrong = binomial_p_value(coarse, drawn.size, (1 - off) / 64, (1 + off) / 64)
    assert 64 * wrong.min() < ALPHA


@pytest.mark.parametrize("scale", [40.0, 2.0**21])
def test_variance_is_that_of_the_law(scale):
    """The scale is a scale, the standard deviation a standard deviation: neither its square."""
    count = 40_000
    gauss = LatticeNoise(GAUSSIAN, scale, Secret.for_tests(5), ("variance",)).draw(0, count)
    check(f"Gaussian std {scale}", normal_scale_p_value(gauss, scale, error=0.5))
    laplace = LatticeNoise(LAPLACE, scale, Secret.for_tests(5), ("variance",)).draw(0, count)
    check(f"Laplace scale {scale}", laplace_scale_p_value(laplace, scale, error=0.5))
    for factor in (0.93, 1.07):
        assert normal_scale_p_value(gauss, factor * scale, error=0.5) < ALPHA
        assert laplace_scale_p_value(laplace, factor * scale, error=0.5) < ALPHA


@pytest.mark.parametrize("count", [2, 7])
def test_sums_of_draws_have_the_variance_of_independent_draws(count):
    """What a decoder adds up: the tail of a sum of ``count`` Laplace variables, in closed form."""
    scale, trials = 2.0**24, 60_000
    noise = LatticeNoise(LAPLACE, scale, Secret.for_tests(6), ("sums",))
    drawn = noise.draw(0, count * trials).reshape(trials, count)
    for threshold in (1.0, 2.5 * count**0.5):
        # Rounding moves the sum by at most count/2 units.
        near = [
            lattice.laplace_sum_tail(count, threshold + side * count / scale) for side in (1, -1)
        ]

        def exceed(sums, limit=threshold * scale):
            return int(np.sum(np.abs(sums) > limit))

        found = exceed(drawn.sum(1, dtype=np.float64))
        check(
            f"sum of {count} beyond {threshold:.2f}", float(binomial_p_value(found, trials, *near))
        )
        # Power: one shared draw instead of independent ones, which is what a noise cache would do.
        shared = exceed(drawn[:, :1].repeat(count, axis=1).sum(1, dtype=np.float64))
        assert binomial_p_value(shared, trials, *near) < ALPHA


# --- Independence --------------------------------------------------------------------------------


def joint_fit(x, y, law, scale):
    """Exact test of the joint law on a 12 × 12 table of cells with known probabilities."""
    edges = np.array(
        sorted({round(scale * law.upper_quantile(u)) for u in np.arange(1, 12) / 12}), np.int64
    )
    single = lattice.cell_probabilities(lattice.TAILS[law.name], scale, edges)
    places = [np.searchsorted(edges, v, side="left") for v in (x, y)]
    counts = np.bincount(places[0] * len(single) + places[1], minlength=len(single) ** 2)
    return goodness_of_fit(counts, np.outer(single, single).ravel()).p_value


def neighbours_of(noise_of):
    """Pairs of places that a mistake in keying would couple, each as two arrays of draws."""
    secret = Secret.for_tests(7)
    stream = secret.derive("plan", "north")
    count = 100_000
    base = noise_of(stream, ("main",)).draw(0, 2 * count + 1)
    return {
        "one index and the next": (base[0 : 2 * count : 2], base[1 : 2 * count : 2]),
        "halves of an AES block": (base[1 : 2 * count : 2], base[2 : 2 * count + 1 : 2]),
        "two purposes": (base[:count], noise_of(stream, ("opening",)).draw(0, count)),
        "two levels": (base[:count], noise_of(stream, ("main", "level", 1)).draw(0, count)),
        "two epochs": (base[:count], noise_of(stream.ratchet(), ("main",)).draw(0, count)),
        "two streams": (
            base[:count],
            noise_of(secret.derive("plan", "south"), ("main",)).draw(0, count),
        ),
        "master and stream": (base[:count], noise_of(secret, ("main",)).draw(0, count)),
    }


def test_draws_at_different_addresses_are_independent():
    scale = 2.0**20
    pairs = neighbours_of(lambda secret, purpose: LatticeNoise(LAPLACE, scale, secret, purpose))
    for name, (x, y) in pairs.items():
        check(f"signs: {name}", sign_p_value(np.sign(x) * np.sign(y)))
        check(f"joint law: {name}", joint_fit(x, y, LAPLACE, scale))
    x, y = pairs["two purposes"]
    mixed = np.where(np.arange(len(y)) % 20 == 0, x, y)  # one draw in twenty shared
    assert sign_p_value(np.sign(x) * np.sign(mixed)) < ALPHA
    assert joint_fit(x, mixed, LAPLACE, scale) < ALPHA
    # Shared sizes with fresh signs: the signs say nothing, the joint law does.
    sizes = np.abs(mixed) * np.sign(y)
    assert joint_fit(x, sizes, LAPLACE, scale) < ALPHA


def test_no_two_of_a_million_addresses_share_a_draw():
    """Over secrets, keys, epochs, purposes and indices: as 64-bit words, all different.

    A true random function repeats one of 10^6 words of 64 bits with probability 2.8·10^-8.
    """
    blocks = []
    for number in range(5):
        master = Secret.for_tests(number)
        for key in (
            ("a", "bc"),
            ("ab", "c"),
            ("abc",),
            (b"abc",),
            (1,),
            ("1",),
            (1, "a"),
            ("", ""),
        ):
            stream = master.derive("stream", *key)
            for epoch in range(5):
                for purpose in (("noise", "x"), ("refine", "x"), ("noise", "x", 0), ("x", "noise")):
                    keystream = stream.keystream(*purpose)
                    blocks += [keystream.words(0, 1000), keystream.words(2**62, 250)]
                if epoch < 4:
                    stream = stream.ratchet()
    words = np.concatenate(blocks)
    assert len(words) == 1_000_000
    SUITE.charge("a million words differ", 3e-8)
    assert len(np.unique(words)) == len(words)


def test_a_draw_and_its_refinement_use_different_words():
    noise = LatticeNoise(LAPLACE, 1.0, Secret.for_tests(8), ("x",))
    first = set(noise._words.words(0, 5000).tolist())
    further = {next(noise._extra_words(index)) for index in range(2000)}
    assert len(further) == 2000
    assert not first & further
    assert list(zip(noise._extra_words(3), range(4), strict=False)) != list(
        zip(noise._extra_words(4), range(4), strict=False)
    )


# --- Laws given by their quantile alone ----------------------------------------------------------


class Logistic(Law):
    """P(|Z| > x) = 2/(1 + e^x)."""

    name = "logistic"

    def quantile(self, u):
        return u.context.log(2 / u - 1)

    def variance(self, scale):
        return float(scale**2 * mpmath.pi**2 / 3)


class StudentTwo(Law):
    """Student's t with two degrees of freedom: P(|Z| > x) = 1 − x/√(2 + x²).  No variance."""

    name = "student-2"

    def quantile(self, u):
        return (1 - u) * u.context.sqrt(2) / u.context.sqrt(u * (2 - u))

    def variance(self, scale):
        return float("inf")


QUANTILE_ONLY = [
    (Logistic(), lambda x: 2 / (1 + mpmath.exp(x))),
    (StudentTwo(), lambda x: 1 - x / mpmath.sqrt(2 + x * x)),
]


@pytest.mark.parametrize(("law", "tail"), QUANTILE_ONLY, ids=["logistic", "student"])
@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_a_law_that_has_only_a_quantile_function(law, tail, scale):
    drawn = LatticeNoise(law, scale, Secret.for_tests(9), ("own law",)).draw(0, 8000)
    check(f"law of {law} at {scale}", fit(drawn, tail, law, scale, 32))
    assert fit(drawn, lattice.TAILS["gaussian"], law, scale, 32) < ALPHA


def test_a_float_path_for_an_own_law_changes_nothing():
    """Adding float_quantile, log_slope and float_error is an optimisation, not another law."""

    class Faster(Logistic):
        log_slope = 2.0  # 1/hazard = 1 + e^-x
        float_error = 2.0**-20  # generous: 2/v − 1 loses digits where v is near 1

        def float_quantile(self, v):
            return np.log(2 / v - 1)

    slow = LatticeNoise(Logistic(), 50.0, Secret.for_tests(10), ("own",))
    fast = LatticeNoise(Faster(), 50.0, Secret.for_tests(10), ("own",))
    places = fast._round_words(fast._words.words(0, 3000), np.empty(3000, np.int64))
    assert len(places) < 100
    assert np.array_equal(slow.draw(0, 3000), fast.draw(0, 3000))
