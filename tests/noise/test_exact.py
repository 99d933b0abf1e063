"""Exactness of one draw: words in the far tail and next to half-integers, by the tail function.

docs/proofs/noise.md proves what these tests try to refute.
"""

import mpmath
import numpy as np
import pytest

from helpers.forced_noise import assert_rounded_right, float_points, forced_noise
from rillet.errors import ParameterError
from rillet.noise import (
    CHUNK,
    GAUSSIAN,
    LAPLACE,
    LARGEST_SCALE,
    LatticeNoise,
    Law,
    Secret,
    decide,
    draw_each,
    uniform_below,
)
from rillet.noise.sampling import _SMALLEST_COMMON_UNIFORM, SMALLEST_FAST_UNIFORM
from rillet.testing.lattice import TAILS, lattice_probability

LAWS = pytest.mark.parametrize("law", [LAPLACE, GAUSSIAN], ids=repr)
SCALES = pytest.mark.parametrize("scale", [0.5, 1.0, 3.7, 2.0**10, 2.0**20, 2.0**30, LARGEST_SCALE])
TOP = 2**63


def boundary(law: Law, scale: float, near: int) -> mpmath.mpf | None:
    """The uniform, in units of 2^-63, at which the draw changes next to ``near``."""
    with mpmath.workprec(200):
        magnitude = scale * law.quantile(mpmath.mpf(near) / TOP)
        k = int(mpmath.floor(magnitude))
    with mpmath.workprec(600):
        place = TAILS[law.name]((k + mpmath.mpf(1) / 2) / mpmath.mpf(scale)) * TOP
    return place if 1 <= place < TOP - 4 else None


# The same tests on more words, for those who have the time.
AMOUNTS = pytest.mark.parametrize("amount", [1, pytest.param(8, marks=pytest.mark.long)])


def words_near_half_integers(law, scale, count, seed):
    """Words around boundaries from the far tail to the middle, as (word, further words)."""
    generator = np.random.default_rng(seed)
    near = [int(2.0 ** generator.uniform(4, 63)) for _ in range(count // 2)]
    near += [int(generator.integers(1, TOP)) for _ in range(count // 4)]
    near += [TOP - int(2.0 ** generator.uniform(54, 62)) for _ in range(count // 4)]
    words, further = [], {}
    for place in filter(None, (boundary(law, scale, n) for n in near)):
        with mpmath.workprec(600):
            j = int(place)
            first = int((place - j) * 2**64)
            rest = int((place - j) * 2**256) % 2**192
        tail_words = [rest >> 128, rest >> 64 & (2**64 - 1), rest & (2**64 - 1)]
        words += [(j + step) << 1 | int(generator.integers(2)) for step in (-2, -1, 1, 2)]
        # On the boundary itself the further bits decide: one, and then four words further on.
        for shift in (-1, 0, 1):
            further[len(words)] = [min(max(first + shift, 0), 2**64 - 1)]
            words.append(j << 1)
        for last in (tail_words[2] - 1, tail_words[2] + 1):
            further[len(words)] = [first, *tail_words[:2], min(max(last, 0), 2**64 - 1)]
            words.append(j << 1)
    return words, further


@LAWS
@SCALES
@AMOUNTS
def test_words_in_the_far_tail(law, scale, amount):
    generator = np.random.default_rng(1)
    j = [*range(50 * amount)]
    j += (2.0 ** generator.uniform(5, 21.2, 80 * amount)).astype(np.int64).tolist()
    j += [SMALLEST_FAST_UNIFORM - 1, SMALLEST_FAST_UNIFORM, 2**21, TOP - 1, TOP - 2, TOP - 1024]
    words = [n << 1 | int(generator.integers(2)) for n in j]
    assert_rounded_right(forced_noise(law, scale, words), TAILS[law.name], words)


@LAWS
@SCALES
@AMOUNTS
def test_words_next_to_half_integers(law, scale, amount):
    words, further = words_near_half_integers(law, scale, 20 * amount, seed=2)
    assert len(words) > 50 * amount
    noise = forced_noise(law, scale, words, further)
    assert_rounded_right(noise, TAILS[law.name], words)


@LAWS
@pytest.mark.parametrize("scale", [2.0**30, 2.0**34, LARGEST_SCALE])
def test_unknown_bits_decide_far_out_where_floats_would_not_know(law, scale):
    """Between 2^20 and 2^33 one word covers many integers or a boundary that floats resolve well.

    A test of float error alone would accept here: this is the hole that costs pure ε.
    """
    generator = np.random.default_rng(3)
    words, further = [], {}
    for n in 2.0 ** generator.uniform(20.01, 33, 50):
        place = boundary(law, scale, int(n))
        if place is not None:
            with mpmath.workprec(600):
                j, first = int(place), int((place - int(place)) * 2**64)
            for shift in (-(2**61), 2**61):
                further[len(words)] = [min(max(first + shift, 0), 2**64 - 1)]
                words.append(j << 1)
    assert_rounded_right(forced_noise(law, scale, words, further), TAILS[law.name], words)


@LAWS
@SCALES
def test_random_words(law, scale):
    noise = LatticeNoise(law, scale, Secret.for_tests(0), ("forced",))
    words = noise._words.words(0, 300).tolist()
    assert_rounded_right(noise, TAILS[law.name], words)


@LAWS
@SCALES
def test_wider_tolerances_change_nothing(law, scale):
    words, further = words_near_half_integers(law, scale, 6, seed=4)
    words += LatticeNoise(law, scale, Secret.for_tests(1), ("wide",))._words.words(0, 60).tolist()
    narrow = forced_noise(law, scale, words, further)
    expected = narrow.draw(0, len(words))
    refined = [len(narrow._round_words(np.array(words, np.uint64), np.empty(len(words), np.int64)))]
    for slack in (2.0, 100.0, 1e6, 1e12, 1e15):
        wide = forced_noise(law, scale, words, further, slack)
        assert np.array_equal(wide.draw(0, len(words)), expected)
        places = wide._round_words(np.array(words, np.uint64), np.empty(len(words), np.int64))
        refined.append(len(places))
    assert refined == sorted(refined)
    # Otherwise the tolerances compared would all have been the same.
    assert refined[-1] > refined[0]


@LAWS
@pytest.mark.parametrize(("scale", "most"), [(1.0, 1e-5), (2.0**20, 1e-4), (2.0**38, 0.02)])
def test_floats_decide_nearly_always(law, scale, most):
    """Exactness must not cost speed: what is refined is rare, and decreases with the scale."""
    noise = LatticeNoise(law, scale, Secret.for_tests(2), ("speed",))
    words = noise._words.words(0, 200_000)
    assert len(noise._round_words(words, np.empty(len(words), np.int64))) <= 200_000 * most


@LAWS
@pytest.mark.parametrize("scale", [2.0**20, 2.0**33, 2.0**38])
@pytest.mark.parametrize("slack", [1.0, 30.0])
def test_the_bound_tried_first_accepts_nothing_that_the_proved_one_refuses(law, scale, slack):
    """What is refined is what docs/proofs/noise.md says, word by word in plain floats."""
    noise = LatticeNoise(law, scale, Secret.for_tests(3), ("bounds",), slack)
    words = noise._words.words(0, 20_000).copy()
    words[::7] >>= np.uint64(15)  # small uniforms, where one bound for all would not do
    words[::11] >>= np.uint64(35)
    refined = noise._round_words(words, np.empty(len(words), np.int64))
    limit = 0.5 - slack * scale * (law.log_slope * 2.0**-51)
    expected = []
    for place, word in enumerate(words.tolist()):
        uniform = (word >> 1) * 2.0**-63
        magnitude = float(law.float_quantile(np.array([uniform]))[0]) * scale
        reach = slack * scale * law.log_slope * 2.0**-62 / uniform
        reach += magnitude * (slack * (2 * law.float_error + 2.0**-51))
        reach += abs(magnitude - round(magnitude))
        if not reach < limit or word >> 1 < SMALLEST_FAST_UNIFORM:
            expected.append(place)
    # One float may differ in its last digit between one value and many.
    assert len(set(expected) ^ set(refined.tolist())) <= 2
    assert scale < 2.0**33 or len(expected) > 20


@pytest.mark.parametrize("slack", [0.0, 0.999, -1.0, float("nan"), float("inf")])
def test_a_tolerance_below_the_proved_one_is_refused(slack):
    with pytest.raises(ParameterError, match="slack"):
        LatticeNoise(LAPLACE, 1.0, Secret.for_tests(0), ("x",), slack)


# --- What the float path assumes (A1 and A2 of the proof) ----------------------------------------


def test_the_logarithm_is_as_good_as_assumed():
    v = float_points()
    found = LAPLACE.float_quantile(v.copy())
    with mpmath.workprec(120):
        exact = [-mpmath.log(mpmath.mpf(x)) for x in v.tolist()]
        errors = [
            abs(q - e) / e if e else abs(q) for q, e in zip(found.tolist(), exact, strict=True)
        ]
    assert len(v) > 20_000
    assert max(errors) <= LAPLACE.float_error


def test_the_gaussian_quantile_is_as_good_as_assumed():
    """By the tail at the float result: |x̂ − x| = |ln tail(x̂) − ln v| / hazard, to first order."""
    v = float_points()
    found = GAUSSIAN.float_quantile(v.copy())
    errors = []
    with mpmath.workprec(120):
        root_half, density = mpmath.sqrt(mpmath.mpf(1) / 2), mpmath.sqrt(2 / mpmath.pi)
        for x, u in zip(found.tolist(), v.tolist(), strict=True):
            tail = mpmath.erfc(x * root_half)
            hazard = density * mpmath.exp(-(mpmath.mpf(x) ** 2) / 2) / tail
            moved = abs(mpmath.log(tail / u)) / hazard
            errors.append(moved / x if x else moved)
    assert len(v) > 20_000
    assert max(errors) <= GAUSSIAN.float_error * (1 - 1e-9)


@LAWS
def test_the_slope_in_log_u_is_bounded_as_stated(law):
    """|dQ/d ln u| = tail/density = 1/hazard, largest at 0 for both laws."""
    with mpmath.workprec(100):
        for x in (*np.linspace(0, 45, 181),):
            slope = -TAILS[law.name](mpmath.mpf(x)) / mpmath.diff(TAILS[law.name], mpmath.mpf(x))
            assert slope <= law.log_slope * (1 + mpmath.mpf(2) ** -50)


# --- The exact side ------------------------------------------------------------------------------


@LAWS
@pytest.mark.parametrize("precision", [255, 319, 1000])
def test_quantiles_are_as_precise_as_promised(law, precision):
    u_values = [mpmath.mpf(1), 1 - mpmath.mpf(2) ** -60, mpmath.mpf("0.5"), mpmath.mpf("0.3173")]
    u_values += [mpmath.ldexp(mpmath.mpf(1), -n) for n in (63, 64, 127, 900, 3000)]
    for u in u_values:
        with mpmath.workprec(precision):
            x = law.quantile(u)
        with mpmath.workprec(precision + 200):
            error = (1 + x) * mpmath.ldexp(mpmath.mpf(1), 20 - precision)
            assert TAILS[law.name](x + error) <= u <= TAILS[law.name](max(x - error, mpmath.mpf(0)))


@LAWS
@pytest.mark.parametrize("zeros", [1, 3, 20])
def test_a_uniform_that_starts_with_many_zeros_is_decided(law, zeros):
    """Q(2^-(63 + 64·zeros)…): far beyond where floats reach, and finite."""
    further = iter([*[0] * zeros, 2**63, 12345, 67890])
    found = decide(law, 1000.0, 0, further)
    with mpmath.workprec(64 * zeros + 400):
        u = mpmath.ldexp((2**63 << 128) + (12345 << 64) + 67890, -(63 + 64 * zeros + 192))
        half = mpmath.mpf(1) / 2
        assert TAILS[law.name]((found + half) / 1000) < u < TAILS[law.name]((found - half) / 1000)


@LAWS
@pytest.mark.parametrize("beta", [0.5, 0.25, 0.006, 1e-12, 1e-300, 0.75, 0.994])
def test_upper_quantiles(law, beta):
    x = law.upper_quantile(beta)
    with mpmath.workprec(100):
        tail = TAILS[law.name](abs(mpmath.mpf(x))) / 2
        wanted = mpmath.mpf(beta) if beta <= 0.5 else 1 - mpmath.mpf(beta)
        hazard = 2 * abs(x) + 2  # both laws' hazard rate is below this
        assert abs(tail / wanted - 1) <= hazard * abs(x) * 2.0**-52 + 2.0**-52
    assert (x < 0) == (beta > 0.5)


@LAWS
@pytest.mark.parametrize("scale", [0.05, 0.5, 1.0, 1.99, 2.0, 3.7, 40.0])
def test_variance_of_a_draw_is_the_sum_over_the_lattice(law, scale):
    with mpmath.workprec(120):
        reach = int(100 * scale) + 60
        exact = 2 * mpmath.fsum(
            k * k * lattice_probability(TAILS[law.name], scale, k) for k in range(1, reach)
        )
    assert law.variance(scale) == pytest.approx(float(exact), rel=1e-13)


def test_variances_at_the_ends_of_what_is_allowed():
    assert LAPLACE.variance(LARGEST_SCALE) == pytest.approx(2 * LARGEST_SCALE**2)
    assert GAUSSIAN.variance(LARGEST_SCALE) == pytest.approx(LARGEST_SCALE**2)
    for law in (LAPLACE, GAUSSIAN):
        assert law.variance(2.0**-12) == 0.0
        assert law.variance(5e-324) == 0.0
        assert law.variance(2.0**-5) > 0.0


# --- Any index, any block, any order -------------------------------------------------------------


@LAWS
@pytest.mark.parametrize("scale", [3.7, 2.0**38])
def test_block_equals_one_by_one(law, scale):
    noise = LatticeNoise(law, scale, Secret.for_tests(3), ("block",))
    start = 5
    whole = noise.draw(start, 700)
    assert whole.tolist() == [noise.draw(start + i, 1)[0] for i in range(700)]


@LAWS
def test_any_block_in_any_order_gives_the_same_integers(law):
    generator = np.random.default_rng(8)
    noise = LatticeNoise(law, 2.0**35, Secret.for_tests(3), ("order",))
    whole = noise.draw(0, 3 * CHUNK + 17)
    again = LatticeNoise(law, 2.0**35, Secret.for_tests(3), ("order",))
    starts = [*generator.integers(0, 3 * CHUNK, 20).tolist(), CHUNK - 1, CHUNK, 2 * CHUNK + 1, 0]
    for start in starts:
        count = int(generator.integers(0, min(CHUNK + 9, len(whole) - start)))
        assert np.array_equal(again.draw(start, count), whole[start : start + count])


@LAWS
def test_further_bits_belong_to_the_address_not_to_the_block(law):
    """On a boundary the further bits decide: they must be the same in whatever block they lie."""
    words, further = words_near_half_integers(law, 1000.0, 8, seed=5)
    noise = forced_noise(law, 1000.0, words, further)
    whole = noise.draw(0, len(words))
    for start in range(1, len(words), 5):
        assert np.array_equal(noise.draw(start, len(words) - start), whole[start:])


def test_far_addresses_do_not_wrap_round():
    """Addresses are arbitrary integers; a NumPy integer must not make the arithmetic wrap."""
    noise = LatticeNoise(LAPLACE, 2.0**38, Secret.for_tests(4), ("far",), slack=1e4)
    for start in (2**43 - 3, 2**44, 2**62):
        plain = noise.draw(start, 200)
        assert np.array_equal(noise.draw(np.int64(start), 200), plain)  # type: ignore[arg-type]
        assert np.array_equal(noise.draw(start + 100, 100), plain[100:])
    assert not np.array_equal(noise.draw(2**44, 50), noise.draw(0, 50))


@pytest.mark.parametrize("scale", [3.0, 2.0**20, LARGEST_SCALE])
def test_draws_of_many_secrets_are_those_of_each(scale: float) -> None:
    """Also where floats do not decide: at the largest scale that is a good part of them."""
    secrets = [Secret.for_tests(number) for number in range(40)]
    together = draw_each(GAUSSIAN, scale, secrets, ("test", 1), 1000, 700)
    for secret, own in zip(secrets, together, strict=True):
        alone = LatticeNoise(GAUSSIAN, scale, secret, ("test", 1)).draw(1000, 700)
        assert own.tolist() == alone.tolist()


def test_uniform_integers_may_begin_with_one_word():
    assert 0 <= uniform_below(5, Secret.for_tests(1), ("one",), bits=64) < 5
    for total, bits in ((0, 64), (5, 0), (5, 65)):
        with pytest.raises(ParameterError, match="total, bits"):
            uniform_below(total, Secret.for_tests(1), ("one",), bits=bits)


@pytest.mark.parametrize("law", [LAPLACE, GAUSSIAN], ids=str)
def test_nearly_all_draws_are_certain_by_the_bound_that_all_share(law):
    """Else each would be made twice: the integers would be the same, and late."""
    noise = LatticeNoise(law, 20 * 2.0**20, Secret.for_tests(1), ("common",))
    assert 0.499 < noise._common_limit < noise._limit < 0.5


@pytest.mark.parametrize("law", [LAPLACE, GAUSSIAN], ids=str)
@pytest.mark.parametrize("scale", [300.0, 20 * 2.0**20, 2.0**30])
def test_the_shared_bound_covers_twice_what_the_rarest_common_word_may_be_off(law, scale):
    """By its unknown bits, and by floats, each as the proof has it."""
    noise = LatticeNoise(law, scale, Secret.for_tests(1), ("common",))
    rarest = float(_SMALLEST_COMMON_UNIFORM) * 2.0**-63
    largest = scale * float(law.float_quantile(np.array([rarest]))[0])
    bits = scale * law.log_slope * 2.0**-62 / rarest
    floats = largest * (2 * law.float_error + 2.0**-51)
    assert noise._limit - noise._common_limit >= 2 * (bits + floats) * (1 - 1e-9)
