"""Windows with Gaussian noise: near the best, exact, proved, and the same in every form."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad

from rillet import extras
from rillet.errors import ParameterError
from rillet.privacy import Guarantee
from rillet.strategy import WindowToeplitz
from rillet.strategy.base import AWAY, Mechanism
from rillet.strategy.toeplitz.window import FineWindowToeplitz, blt_for_window
from rillet.testing import check_strategy

STEPS = 2**30


def best(window: int) -> float:
    """``(1/2π)∫|sin(wt/2)/sin(t/2)| dt``: the norm of the square root, for ever."""

    def inside(t: float) -> float:
        return abs(math.sin(window * t / 2) / math.sin(t / 2))

    ends = 2 * np.pi * np.arange(window // 2 + 1) / window
    half = sum(quad(inside, a, b)[0] for a, b in pairwise(ends))
    if window % 2:
        half += quad(inside, ends[-1], math.pi)[0]
    return half / math.pi


def noise_of_windows(strategy: WindowToeplitz, leaves: int, t: np.ndarray) -> np.ndarray:
    before = t - strategy.window
    found = strategy.weights(leaves, t) + strategy.weights(leaves, before)
    return found - 2 * strategy.covariance(leaves, before, t)


@pytest.mark.parametrize("window", [2, 3, 10, 60, 168, 1000, 1440, 10080, 40000])
def test_windows_are_near_the_best(window):
    strategy, leaves = WindowToeplitz(window=window), 2**40
    norm = math.sqrt(strategy.sensitivity(leaves, 2**50)) / 2**50
    late = np.array([60 * window, 2**30])
    error = norm * np.sqrt(noise_of_windows(strategy, leaves, late))
    least = best(window) if window <= 1440 else 4 / math.pi**2 * math.log(window) + 0.98943
    assert np.all((error / least > 1) & (error / least < 1.006))


def test_more_buffers_are_no_worse():
    errors = []
    for buffers in range(2, 7):
        strategy = WindowToeplitz(window=5000, buffers=buffers)
        noise = noise_of_windows(strategy, 2**30, np.array([10**6]))[0]
        errors.append(float(strategy.sensitivity(2**30, STEPS)) * noise)
    assert errors == sorted(errors, reverse=True)
    assert blt_for_window(4, 6) == blt_for_window(4, 2)  # as many as were fitted


# --- Sensitivity ---------------------------------------------------------------------------------


def column(window: int, leaves: int) -> np.ndarray:
    """``8 c_j − 4 c_{j−w} − c_{j−2w}`` in floats."""
    blt = WindowToeplitz(window=window).blt(leaves)
    omega, theta = (
        np.array([float(each) for each in part])
        for part in (blt.omega, [1 - rate for rate in blt.phi])
    )
    c = np.append(1.0, (omega[:, None] * theta[:, None] ** np.arange(leaves - 1)).sum(axis=0))
    found = 8 * c
    found[window:] -= 4 * c[:-window]
    found[2 * window :] -= c[: -2 * window]
    return found


def nodes(strategy, exact_leaves):
    encoder = strategy.encoder(len(exact_leaves))
    return encoder.encode(encoder.start(), 1, exact_leaves)[1]


@pytest.mark.parametrize("bits", [0, 5])
@pytest.mark.parametrize("window", [2, 5, 60, 300])
def test_a_leaf_moves_what_is_claimed(window, bits):
    leaves = 1500
    strategy = FineWindowToeplitz(window=window, bits=bits)
    for leaf in (0, 63, 700):
        move = np.zeros(leaves, np.int64)
        move[leaf] = STEPS
        found = nodes(strategy, move)
        expected = column(window, leaves)[: leaves - leaf] * (STEPS << bits)
        assert np.allclose(found[leaf:], expected, rtol=0, atol=2**bits * STEPS * 1e-5)
        moved = float(np.sum(found.astype(object) ** 2))
        claimed = float(strategy.sensitivity(leaves - leaf, STEPS))
        assert 1 - 1e-4 < moved / claimed <= 1


@pytest.mark.parametrize("steps", [1, 3, 1000, STEPS])
@pytest.mark.parametrize("window", [3, 20])
def test_nodes_never_move_more(window, steps):
    """One leaf or several, any signs, on any stream; rounding shows where steps are few."""
    strategy, leaves = WindowToeplitz(window=window), 400
    generator = np.random.default_rng(window)
    for most, apart in [(1, 1), (2, 1), (2, window), (5, window // 2), (8, 2 * window)]:
        claimed = float(strategy.repeated(leaves, steps, most, apart))
        for _ in range(20):
            around = generator.integers(0, 2**20, leaves)
            where = np.cumsum(np.full(most, apart) + generator.integers(0, 3, most)) - apart
            move = np.zeros(leaves, np.int64)
            move[where[where < leaves]] = steps
            move *= generator.choice([-1, 1], leaves)
            moved = nodes(strategy, around + move) - nodes(strategy, around)
            assert float(np.sum(moved.astype(object) ** 2)) <= claimed


def test_rounding_has_to_be_charged():
    strategy, leaves, window = WindowToeplitz(window=20), 3000, 20
    around = np.random.default_rng(1).integers(0, 2**20, leaves)
    move = np.zeros(leaves, np.int64)
    move[0] = 1
    moved = nodes(strategy, around + move) - nodes(strategy, around)
    norm = np.linalg.norm(column(window, leaves))
    assert norm < np.linalg.norm(moved) <= math.sqrt(strategy.sensitivity(leaves, 1))


@pytest.mark.parametrize(("most", "apart"), [(2, 1), (6, 1), (3, 20), (4, 7), (5, 30), (40, 13)])
def test_the_bound_for_several_leaves_is_that_of_the_coefficients(most, apart):
    window, leaves = 20, 2000
    c = column(window, leaves)
    gram = np.array([abs(c[: leaves - lag] @ c[lag:]) for lag in range(500)])
    bound = np.maximum.accumulate(gram[::-1])[::-1]
    i = np.arange(1, most)
    expected = most * gram[0] + 2 * np.sum((most - i) * bound[np.minimum(i * apart, 499)])
    found = float(WindowToeplitz(window=window).repeated(leaves, STEPS, most, apart)) / STEPS**2
    assert found == pytest.approx(expected, rel=3e-3)
    assert found >= expected * (1 - 1e-9)
    # Signs are chosen for the lags at hand: what they attain is a good part of it.
    signs = [math.copysign(1, c[: leaves - apart] @ c[apart:]) ** k for k in range(most)]
    attained = np.zeros(leaves)
    for k, sign in enumerate(signs):
        attained[k * apart :] += sign * c[: leaves - k * apart]
    assert 0.3 < attained @ attained / found <= 1


@pytest.mark.parametrize(
    ("most", "apart", "std"), [(1, 1, 3.08), (10, 1, 24.4), (50, 24, 47.8), (50, 168, 27.7)]
)
def test_noise_of_a_week_of_hours_for_a_person(most, apart, std):
    strategy, leaves = WindowToeplitz(window=168), 8760
    norm = math.sqrt(strategy.repeated(leaves, STEPS, most, apart)) / STEPS
    found = norm * math.sqrt(noise_of_windows(strategy, leaves, np.array([leaves]))[0])
    assert found == pytest.approx(std, rel=0.02)


def test_several_leaves_of_a_long_stream():
    strategy = WindowToeplitz(window=1000)
    norms = [math.sqrt(strategy.repeated(2**40, 2**30, most, 5000)) for most in (1, 100, 10**6)]
    # Far apart, columns are almost orthogonal.
    assert norms[1] == pytest.approx(10 * norms[0], rel=0.01)
    assert norms[2] == pytest.approx(1000 * norms[0], rel=0.1)
    group = [math.sqrt(strategy.repeated(2**40, 2**30, most, 1)) for most in (1, 2, 3)]
    assert all(each <= (k + 1) * group[0] * (1 + 1e-6) for k, each in enumerate(group))


# --- Noise ---------------------------------------------------------------------------------------


def response(window: int, leaves: int) -> np.ndarray:
    """``e_j``: decoded sums of a large impulse on the first node."""
    decoder = WindowToeplitz(window=window).decoder(leaves)
    impulse = np.zeros(leaves, np.int64)
    impulse[0] = 2**50
    return decoder.decode(decoder.start(), 1, impulse)[1] / 2.0**50


@pytest.mark.parametrize("window", [2, 7, 64])
def test_covariances_are_those_of_the_decoder(window):
    strategy, leaves = WindowToeplitz(window=window), 60 * window
    e = response(window, leaves)

    def by_definition(a, b):
        a, b = np.broadcast_arrays(np.minimum(a, b), np.maximum(a, b))
        pairs = zip(a.ravel(), b.ravel(), strict=True)
        return np.array([e[:s] @ e[u - s : u] for s, u in pairs]).reshape(a.shape)

    t = np.unique(np.linspace(1, leaves, 200).astype(int))
    middle = np.array(leaves // 3)
    scattered = np.random.default_rng(window).integers(1, leaves + 1, (2, 50))
    cases = {
        "variance": (t, t),
        "a window apart": (t[t > window] - window, t[t > window]),
        "another lag": (t[t > 3] - 3, t[t > 3]),
        "one before": (middle, t[t >= middle]),
        "one after": (t[t <= middle], middle),
        "one in between": (np.minimum(t, middle), np.maximum(t, middle)),
        "scattered": (scattered.min(axis=0), scattered.max(axis=0)),
        "a table": (np.minimum(t[:20, None], t[:30]), np.maximum(t[:20, None], t[:30])),
        "a table of all pairs": (t[:20, None], t[20:50]),
        "a row and a table": (t[:5], t[20:35].reshape(3, 5)),
        "two numbers": (middle, middle + 5),
    }
    for name, (earlier, later) in cases.items():
        found, expected = strategy.covariance(leaves, earlier, later), by_definition(earlier, later)
        assert np.shape(found) == np.shape(expected), name
        assert np.allclose(found, expected, rtol=2e-6, atol=1e-9 * e[0] ** 2), name
    assert np.array_equal(strategy.weights(leaves, t), strategy.covariance(leaves, t, t))


def test_covariances_of_long_arrays_take_the_fast_ways():
    """By one transform, and by single products."""
    strategy, leaves = WindowToeplitz(window=300), 2**40
    t = np.arange(5000, 9000)
    long = strategy.covariance(leaves, np.array(5000), t)
    assert np.allclose(long[::400], [strategy.covariance(leaves, 5000, u) for u in t[::400]])
    back = strategy.covariance(leaves, t, np.array(9000))
    assert np.allclose(back[::400], [strategy.covariance(leaves, u, 9000) for u in t[::400]])


def test_noise_of_a_window_stays_while_that_of_the_sum_grows():
    strategy, leaves = WindowToeplitz(window=50), 2**40
    t = np.array([10**4, 10**6, 10**9, 2**40])
    window = noise_of_windows(strategy, leaves, t)
    assert np.allclose(window, window[0], rtol=1e-4)
    assert np.all(np.diff(strategy.weights(leaves, t)) > 0)


# --- Forms ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [3, 70])
@pytest.mark.parametrize("bits", [0, 4])
def test_contract_of_a_strategy(window, bits):
    check_strategy(
        FineWindowToeplitz(window=window, bits=bits),
        linear=False,
        tight=False,
        tolerance=4.0,
        variance_tolerance=1e-6,
        largest_leaf=2**20,
        max_leaves=4,
    )


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("size", ["usual", "largest"])
@pytest.mark.parametrize("window", [2, 63, 64, 500])
def test_blocks_and_single_steps_give_the_same_bits(window, size, plain, monkeypatch):
    if plain:
        monkeypatch.setattr(extras, "compiled", lambda _name: None)
        monkeypatch.setattr("rillet.strategy.toeplitz.encoder.compiled", lambda _name: None)
    strategy, leaves = FineWindowToeplitz(window=window, bits=3), 2300
    generator = np.random.default_rng(window)
    largest = 2**20 if size == "usual" else 2**62  # clipped
    values = generator.integers(-largest, largest, leaves)
    if size == "largest":
        values[: 2 * window] = largest
    noise = generator.integers(-(2**24), 2**24, leaves)
    encoder, decoder = strategy.encoder(leaves), strategy.decoder(leaves)
    encoded, decoded, sums = encoder.start(), decoder.start(), []
    first = 1
    for count in [1, 0, 700, 63, 1, 1200, 335]:
        block = slice(first - 1, first - 1 + count)
        encoded, exact_nodes = encoder.encode(encoded, first, values[block])
        decoded, prefix = decoder.decode(decoded, first, exact_nodes + noise[block])
        sums.append(prefix)
        first += count
    whole = np.concatenate(sums)
    stepper = strategy.stepper(leaves, 0, encoder.start(), decoder.start())
    pairs = zip((values + AWAY).tolist(), (noise - AWAY).tolist(), strict=True)
    assert whole.tolist() == [stepper.step(*pair) for pair in pairs]
    for ours, theirs in zip(stepper.states(), (encoded, decoded), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
    # Without its noise a sum is that of the clipped leaves.
    limit = strategy.largest_leaf(leaves, 3)
    assert (limit < largest) == (size == "largest")
    _, exact_nodes = encoder.encode(encoder.start(), 1, values)
    _, clean = decoder.decode(decoder.start(), 1, exact_nodes)
    exact = np.cumsum(np.clip(values, -limit, limit).astype(object)).astype(float)
    assert np.allclose(clean, exact, rtol=0, atol=1e-5 * min(limit, largest))


@pytest.mark.parametrize("window", [2, 50, 1000])
def test_sums_are_decoded(window):
    leaves = 5000
    values = np.random.default_rng(window).integers(0, 2**24, leaves)
    for strategy in (WindowToeplitz(window=window), FineWindowToeplitz(window=window, bits=6)):
        decoder = strategy.decoder(leaves)
        _, sums = decoder.decode(decoder.start(), 1, nodes(strategy, values))
        assert np.max(np.abs(sums - np.cumsum(values))) < 200


def test_leaves_of_a_plan_are_never_clipped():
    """Up to 2^28 observations on their usual lattice; and the finest nodes leave room too."""
    for leaves in (100, 2**20, 2**28):
        largest = WindowToeplitz(window=168).largest_leaf(leaves, 0)
        assert largest * leaves >= 2**56


def test_calibration_makes_nodes_finer_for_ever():
    found = Mechanism.calibrate(
        WindowToeplitz(window=168), 2**40, Guarantee(1.0, 2**-20), observations=2**40
    )
    strategy = found.strategy
    assert isinstance(strategy, FineWindowToeplitz)
    norm = float(np.linalg.norm(column(168, 20000))) * (found.steps << strategy.bits)
    assert 1 < math.sqrt(found.sensitivity(found.steps)) / norm < 1 + 2**-6
    short = Mechanism.calibrate(WindowToeplitz(window=168), 1000, Guarantee(1.0, 2**-20))
    assert type(short.strategy) is WindowToeplitz


def test_options_are_checked():
    for wrong in (1, 2**16 + 1, 2.5):
        with pytest.raises(ParameterError, match="window"):
            WindowToeplitz(window=wrong)
    with pytest.raises(ParameterError, match="law"):
        WindowToeplitz(window=10, law="laplace")
    with pytest.raises(ParameterError, match="buffers"):
        WindowToeplitz(window=10, buffers=7)
