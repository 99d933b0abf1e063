"""Toeplitz strategies: exact encoders, proved sensitivities, variances, and equal forms."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest

from rillet import extras
from rillet.errors import ParameterError, StreamEnded
from rillet.extras import compiled
from rillet.noise import GAUSSIAN, LARGEST_SCALE, LatticeNoise, Secret
from rillet.privacy import Guarantee
from rillet.strategy import recurrence
from rillet.strategy.base import AWAY, Mechanism
from rillet.strategy.toeplitz import BufferedToeplitz, SquareRootToeplitz
from rillet.strategy.toeplitz import encoder as blt_encoder
from rillet.strategy.toeplitz.blt import LARGEST_LOG_LENGTH, RATES, Blt, blt_for
from rillet.strategy.toeplitz.buffered import FineToeplitz
from rillet.strategy.toeplitz.encoder import (
    CHUNK,
    LARGEST_TOTAL,
    SPAN,
    BltEncoder,
    difference,
    encoder_tables,
    largest_leaf,
    plain,
    split,
    wide,
)
from rillet.strategy.toeplitz.square_root import square_root_coefficients
from rillet.testing import check_strategy

STEPS = 2**20


def same(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def encode(strategy, leaves, values, pieces=None):
    encoder = strategy.encoder(leaves)
    return in_pieces(encoder.encode, encoder.start(), values, pieces)


def decode(strategy, leaves, noisy, pieces=None):
    decoder = strategy.decoder(leaves)
    return in_pieces(decoder.decode, decoder.start(), noisy, pieces)


def in_pieces(step, state, values, pieces):
    done, results = 0, []
    sizes = itertools.cycle(pieces or [len(values)])
    while done < len(values):
        block = values[done : done + next(sizes)]
        state, result = step(state, done + 1, block)
        results.append(result)
        done += len(block)
    return state, np.concatenate(results)


def force(monkeypatch, form):
    """Have blocks of any length encoded and decoded by one form."""
    if form == "compiled":
        pytest.importorskip("numba", reason="the extra fast (Numba) is not installed")
    monkeypatch.setattr(blt_encoder, "SHORTEST_COMPILED", 1)
    loaded = compiled if form == "compiled" else lambda _: None
    monkeypatch.setattr(blt_encoder, "compiled", loaded)
    assert (blt_encoder.kernels(1) is not None) == (form == "compiled")


def test_compiled_loops_are_loaded_for_a_long_block_or_for_many_short_ones(monkeypatch):
    monkeypatch.setattr(blt_encoder, "compiled", lambda module: module)
    kernels = type(blt_encoder.kernels)()
    assert kernels(blt_encoder.SHORTEST_COMPILED - 1) is None
    assert kernels(blt_encoder.SHORTEST_COMPILED) is not None
    assert kernels(1) is not None  # they are there now
    others = type(kernels)()
    found = [others(1) is not None for _ in range(blt_encoder.ENOUGH_SHORT)]
    assert found.index(True) == blt_encoder.ENOUGH_SHORT - 1


# --- The fitted constants ------------------------------------------------------------------------


@pytest.mark.parametrize("key", sorted(RATES))
def test_rates_are_in_order_and_give_positive_coefficients(key):
    log_length, buffers = key
    rates = RATES[key]
    assert len(rates) == 2 * buffers
    assert 0 < rates[0]
    assert rates[-1] < 1
    assert all(a < b for a, b in itertools.pairwise(rates))
    blt = blt_for(2**log_length, buffers)
    assert min(blt.omega) > 0
    assert min(blt.beta) > 0
    assert sum(blt.beta) == pytest.approx(1, rel=1e-30)


@pytest.mark.parametrize(("log_length", "buffers"), [(8, 2), (12, 4), (20, 6), (30, 5), (40, 8)])
def test_encoder_and_decoder_are_inverse_up_to_the_sum(log_length, buffers):
    blt = blt_for(2**log_length, buffers)
    c, g = coefficients(blt, 400), decoder_coefficients(blt, 400)
    assert np.allclose(np.convolve(c, g)[:400], 1, atol=1e-12)


def coefficients(blt, count):
    j = np.arange(count - 1)
    tail = sum(
        float(w) * np.exp(j * np.log1p(-float(r))) for w, r in zip(blt.omega, blt.phi, strict=True)
    )
    return np.append(1.0, tail)


def decoder_coefficients(blt, count):
    j = np.arange(count)
    pairs = zip(blt.beta[1:], blt.psi, strict=True)
    return float(blt.beta[0]) + sum(float(b) * np.exp(j * np.log1p(-float(r))) for b, r in pairs)


def largest_variance(blt, n):
    return float(blt.encoder_norm(n)) ** 2 * blt.error_variance(np.array([n]))[0]


@pytest.mark.parametrize(
    ("log_length", "buffers", "digits", "printed"),
    [
        (10, 3, 3, 10.743),
        (10, 4, 3, 10.712),
        (10, 5, 3, 10.710),
        (16, 3, 2, 22.06),
        (16, 4, 2, 21.32),
        (16, 5, 2, 21.16),
        (20, 3, 2, 33.48),
        (20, 4, 2, 30.96),
        (20, 5, 2, 30.27),
    ],
)
def test_largest_variance_at_unit_sensitivity(log_length, buffers, digits, printed):
    n = 2**log_length
    assert round(largest_variance(blt_for(n, buffers), n), digits) == printed


@pytest.mark.parametrize(
    ("log_length", "mean", "largest"), [(10, 9.67, 10.71), (16, 19.66, 21.13), (20, 28.28, 30.02)]
)
def test_variances_of_the_square_root(log_length, mean, largest):
    running = np.cumsum(square_root_coefficients(2**log_length) ** 2)
    assert round(running[-1] * running.mean(), 2) == mean
    assert round(running[-1] ** 2, 2) == largest
    series = (math.log(2**log_length) + 0.5772156649 + 4 * math.log(2)) / math.pi
    assert running[-1] == pytest.approx(series, abs=2e-4)


@pytest.mark.parametrize("n", [*(2**p for p in range(8, 26)), 100, 3000, 150_000, 25_000_000])
def test_deviation_is_within_two_percent_of_the_square_root(n):
    """With the sensitivity that is really charged, on the lattice that a plan chooses."""
    strategy, steps = BufferedToeplitz(), max(STEPS, n)
    charged = float(strategy.sensitivity(n, steps)) ** 0.5 / steps
    deviation = charged * strategy.weights(n, np.array([n]))[0] ** 0.5
    if n <= 2**16:
        yardstick = float(np.sum(square_root_coefficients(n) ** 2))
    else:  # Σ f_k² = (ln n + γ + 4 ln 2)/π + O(1/n)
        yardstick = (math.log(n) + 0.5772156649 + 4 * math.log(2)) / math.pi
    assert deviation < (1.003 if n <= 2**20 else 1.006) * yardstick


@pytest.mark.parametrize("log_length", range(26, LARGEST_LOG_LENGTH + 1))
def test_long_streams_stay_close_to_the_square_root(log_length):
    """On the lattice that a plan chooses, with all that is charged."""
    n = 2**log_length
    mechanism = Mechanism.calibrate(BufferedToeplitz(), n, Guarantee(1.0, 2**-20))
    deviation = math.sqrt(mechanism.unit_variance(n)[0] * float(mechanism.cost.mu_squared))
    yardstick = (math.log(n) + 0.5772156649 + 4 * math.log(2)) / math.pi
    assert deviation < 1.021 * yardstick


@pytest.mark.parametrize(("n", "buffers"), [(5000, 3), (2**20, 6)])
def test_variance_table_and_covariance_against_sums(n, buffers):
    blt = blt_for(n, buffers)
    g = decoder_coefficients(blt, 20_000)
    exact = np.cumsum(g**2)
    t = np.arange(1, len(g) + 1)
    assert np.allclose(blt.error_variance(t), exact, rtol=2.0**-21, atol=0)
    assert np.allclose(blt.error_variance(t[:512]), exact[:512], rtol=1e-12)
    strategy = BufferedToeplitz(buffers=buffers)
    for first, second in [(1, 1), (1, 500), (700, 701), (64, 20_000)]:
        shared = g[:first] @ g[second - first : second]
        assert strategy.covariance(n, first, second) == pytest.approx(shared, rel=1e-9)
    many = strategy.covariance(n, 7, np.arange(7, 30))
    assert np.allclose(many, [g[:7] @ g[u - 7 : u] for u in range(7, 30)])


# --- Sensitivity ---------------------------------------------------------------------------------


def column_error(blt, tables, n, leaf, length):
    """``‖c̃ − c‖₂`` of one column, from the response to one large leaf, and its own rounding."""
    bits = most_bits(tables, n)
    amplitude = LARGEST_TOTAL // n
    values = np.zeros(length, np.int64)
    values[leaf] = amplitude
    amplitude <<= bits
    encoder = BltEncoder(tables, n, bits)
    _, nodes = encoder.encode(encoder.start(), 1, values)
    assert not nodes[:leaf].any()
    with mpmath.workprec(200):
        exact = [mpmath.mpf(1)]
        powers = list(blt.omega)
        for _ in range(length - leaf - 1):
            exact.append(mpmath.fsum(powers))
            powers = [power * (1 - rate) for power, rate in zip(powers, blt.phi, strict=True)]
        off = [mpmath.mpf(int(a)) / amplitude - b for a, b in zip(nodes[leaf:], exact, strict=True)]
        distance = mpmath.sqrt(mpmath.fsum(x * x for x in off))
        return distance, mpmath.sqrt(length) / amplitude


def most_bits(tables, n):
    """By how many bits nodes may be finer before leaves are clipped for it."""
    return max(bits for bits in range(40) if largest_leaf(tables, n, bits) == LARGEST_TOTAL // n)


@pytest.mark.parametrize(
    ("n", "buffers"), [(200, 2), (2600, 3), (2600, 5), (2**25, 6), (2**40, 2), (2**40, 8)]
)
@pytest.mark.parametrize("leaf", [0, 63, 64, 1000, 1023])
def test_columns_stay_within_the_proved_deviation(n, buffers, leaf):
    """What the fixed-point coefficients really are."""
    blt = blt_for(n, buffers)
    tables, length = encoder_tables(blt), min(n, 2600)
    found, rounding = column_error(blt, tables, n, min(leaf, length - 1), length)
    assert found <= tables.deviation + rounding


@pytest.mark.parametrize(
    ("name", "bits"), [("GROWTH_BITS", 22), ("LADDER_BITS", 21), ("DECAY_BITS", 21)]
)
@pytest.mark.parametrize("n", [2600, 2**25, 2**40])
def test_each_term_of_the_deviation_covers_its_coefficients(name, bits, n, monkeypatch):
    """With one kind of coefficient made coarse, its term decides, and is not far above."""
    blt = blt_for(n, 4)
    usual = encoder_tables(blt).deviation
    monkeypatch.setattr(blt_encoder, name, bits)
    tables = encoder_tables.__wrapped__(blt)
    found = [column_error(blt, tables, n, leaf, 2600) for leaf in (1, 70, 500, 1020)]
    assert all(distance <= tables.deviation + rounding for distance, rounding in found)
    assert max(distance for distance, _ in found) > usual / 100
    assert tables.deviation > 2 * usual


@pytest.mark.parametrize(
    "strategy",
    [BufferedToeplitz(buffers=3), BufferedToeplitz(), FineToeplitz(bits=4), SquareRootToeplitz()],
)
@pytest.mark.parametrize("steps", [1, 1000, STEPS])
def test_neighbours_are_never_farther_apart_than_charged(strategy, steps):
    """Replace one leaf in random streams, all over chunks and spans."""
    n = 2100
    generator = np.random.default_rng(steps)
    charged = strategy.sensitivity(n, steps)
    farthest = 0
    for leaf in [0, 1, 62, 63, 64, 500, 1023, 1024, 2099]:
        values = generator.integers(0, steps + 1, n)
        other = values.copy()
        values[leaf], other[leaf] = 0, steps
        difference = encode(strategy, n, values)[1] - encode(strategy, n, other)[1]
        assert not difference[:leaf].any()
        assert abs(int(difference[leaf])) == steps << getattr(strategy, "bits", 0)
        farthest = max(farthest, int(np.sum(difference.astype(object) ** 2)))
    assert farthest <= charged
    if steps == STEPS:
        assert farthest > Fraction(99, 100) * charged


def test_rounding_of_nodes_needs_its_charge():
    """Without the charge for rounding, small steps would go over: the charge is not idle."""
    n, strategy = 2000, BufferedToeplitz()
    norm = float(strategy.blt(n).encoder_norm(n))
    generator = np.random.default_rng(1)
    over = 0
    for _ in range(20):
        values = generator.integers(0, 2, n)
        other = values.copy()
        other[0] = 1 - other[0]
        difference = encode(strategy, n, values)[1] - encode(strategy, n, other)[1]
        over += int(np.sum(difference**2)) > norm**2
    assert over > 0


@pytest.mark.parametrize("log_length", [8, 16, 25, 30])
def test_charge_for_rounding_is_small_and_the_bound_is_above_the_norm(log_length):
    n = 2**log_length
    strategy, steps = BufferedToeplitz(), max(STEPS, n)
    tables = encoder_tables(strategy.blt(n))
    assert tables.rounding < 1e-5
    assert tables.deviation < 1e-5
    charged = strategy.sensitivity(n, steps)
    norm = Fraction(float(strategy.blt(n).encoder_norm(n))) * steps
    assert charged > norm**2
    assert float(charged) ** 0.5 < float(norm) * 1.0005


@pytest.mark.parametrize(
    ("log_length", "observations", "bits"),
    # A leaf holds many observations in the last two: the lattice is coarser than 2^61/n.
    [
        *((10, 2**10, 0), (30, 2**30, 0), (34, 2**34, 0), (37, 2**37, 1), (40, 2**40, 5)),
        *((33, 2**40, 2), (24, 2**48, 5)),
    ],
)
def test_nodes_are_so_fine_that_their_rounding_costs_little(log_length, observations, bits):
    n, guarantee = 2**log_length, Guarantee(1.0, 2**-20)
    found = Mechanism.calibrate(BufferedToeplitz(), n, guarantee, observations=observations)
    assert getattr(found.strategy, "bits", 0) == bits
    norm = float(found.strategy.blt(n).encoder_norm(n)) * (found.steps << bits)
    assert norm < math.sqrt(found.strategy.sensitivity(n, found.steps)) < norm * (1 + 2.0**-6 / 2)
    # What they release has the same unit as ever, with less noise than without the bits.
    plain_std = math.sqrt(BufferedToeplitz().sensitivity(n, found.steps)) / found.steps
    mu = math.sqrt(found.cost.mu_squared)
    expected = (plain_std / mu) ** 2 * BufferedToeplitz().weights(n, np.array([n]))[0]
    ratio = found.unit_variance(n)[0] / expected
    assert ratio == pytest.approx(1, rel=1e-9) if bits == 0 else ratio < 0.995


def test_finer_nodes_never_make_the_noise_too_large():
    """With a small epsilon there is less room for bits, and then for steps."""
    n = 2**40
    bits = []
    for epsilon in (1.0, 1e-2, 1e-4, 1e-5):
        found = Mechanism.calibrate(BufferedToeplitz(), n, Guarantee(epsilon, 2**-20))
        assert found.scale <= LARGEST_SCALE
        bits.append(getattr(found.strategy, "bits", 0))
    assert bits == sorted(bits, reverse=True)
    assert bits[0] == 5
    assert bits[-1] < 5


# --- Equal forms ---------------------------------------------------------------------------------


def by_definition(blt, values, starts=None):
    """The nodes as docs/proofs/toeplitz.md defines them, in plain integers.

    The stream begins with the buffers ``starts`` at the start of a span.
    """
    tables = encoder_tables(blt).coefficients
    a, q = tables.leaf_mix[0, :CHUNK].astype(int).tolist(), tables.buffer_mix.astype(int).tolist()
    v, rho = tables.leaf_mix[:, CHUNK:].T.astype(int).tolist(), tables.ladder.T.tolist()
    f, e = tables.fraction_bits.tolist(), tables.growth_shift.tolist()
    shift = tables.ladder_shift.tolist()
    decay, decay_shift = tables.decay.tolist(), tables.decay_shift.tolist()
    buffers = range(blt.buffers)
    nodes, starts = [], starts or [0] * blt.buffers
    for span_first in range(0, len(values), CHUNK * SPAN):
        span, grown = values[span_first : span_first + CHUNK * SPAN], []

        def climbed(i, b, start, grown=grown):
            """Buffer i after b chunks that began with `start`."""
            lost = sum(rho[i][b - 1 - k] * grown[k][i] for k in range(b))
            lost += rho[i][b] * start if 0 < b < SPAN else 0
            return start + sum(g[i] for g in grown[:b]) - (lost >> shift[i])

        for first in range(0, len(span), CHUNK):
            chunk = span[first : first + CHUNK]
            here = [climbed(i, len(grown), starts[i]) for i in buffers]
            for r in range(len(chunk)):
                total = sum(a[r - s] * chunk[s] for s in range(r + 1)) << 21
                total += sum(q[i][r] * (here[i] >> 21) for i in buffers)
                nodes.append((total + 2**47) >> 48)
            if len(chunk) == CHUNK:
                lost = [sum(map(int.__mul__, v[i], chunk)) << e[i] for i in buffers]
                grown.append([(sum(chunk) << f[i]) - lost[i] for i in buffers])
        if len(grown) == SPAN:
            ended = [climbed(i, SPAN, start) for i, start in enumerate(starts)]
            starts = [ended[i] - (starts[i] * decay[i] >> decay_shift[i]) for i in buffers]
    return nodes


def by_recursion(blt, noisy, bits):
    """The decoded sums: a running sum and first-order filters, one operation after the other."""
    weights, poles = (part.tolist() for part in blt.decoder_floats)
    weights = [weight / 2**bits for weight in weights]
    carried, sums = [0.0] * (blt.buffers + 1), []
    for value in map(float, noisy):
        decoded = 0.0
        for i, pole in enumerate(poles):
            filtered = weights[i] * value + carried[i]
            carried[i] = pole * filtered
            decoded += filtered
        sums.append(decoded)
    return sums


SIZES = [(300, 3, 300), (4000, 5, 4000), (2**25, 6, 2300), (2**40, 8, 2300)]


@pytest.mark.parametrize(("leaves", "buffers", "length"), SIZES)
@pytest.mark.parametrize("size", ["usual", "largest", "negative"])
@pytest.mark.parametrize("bits", [0, 8])
def test_every_form_is_the_definition(leaves, buffers, length, size, bits, monkeypatch):
    """Blocks, compiled blocks and single steps, bit for bit."""
    values = some_leaves(leaves, length, size)
    noise = np.random.default_rng(8).integers(-(2**30), 2**30, length)
    strategy = BufferedToeplitz(buffers=buffers)
    blt = strategy.blt(leaves)
    if bits:
        strategy = FineToeplitz(buffers=buffers, bits=bits)
        limit = largest_leaf(encoder_tables(blt), leaves, bits)
        values = np.clip(values, -limit, limit)
    defined = np.array(by_definition(blt, (values << bits).tolist()))
    decoded = by_recursion(blt, (defined + noise).tolist(), bits)
    ends = []
    for form in ("plain", "compiled"):
        force(monkeypatch, form)
        encoded, nodes = encode(strategy, leaves, values)
        assert np.array_equal(nodes, defined)
        carried, sums = decode(strategy, leaves, nodes + noise)
        assert sums.tolist() == decoded
        ends.append((*encoded, *carried))
    stepper = strategy.stepper(
        leaves, 0, strategy.encoder(leaves).start(), strategy.decoder(leaves).start()
    )
    given = (values + AWAY).tolist(), (noise - AWAY).tolist()
    assert list(map(stepper.step, *given)) == decoded
    encoded, carried = stepper.states()
    assert same(ends[0], ends[1])
    assert same(ends[0], (*encoded, *carried))


@pytest.mark.parametrize(("leaves", "buffers"), [(4000, 5), (2**25, 6), (2**32, 8), (2**40, 8)])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("finest", [False, True])
def test_nothing_overflows_late_in_a_stream(leaves, buffers, sign, finest, monkeypatch):
    """Buffers as full as leaves of the largest size can make them, and then more such leaves."""
    blt = blt_for(leaves, buffers)
    tables = encoder_tables(blt)
    bits = most_bits(tables, leaves) if finest else 0
    limit, length = LARGEST_TOTAL // leaves, CHUNK * SPAN
    before = leaves // length * length - 2 * length
    full = [sign * part for part in fullest(tables, before, limit << bits)]
    assert max(map(abs, full)) < 2**105
    values = np.full(2 * length, sign * limit)
    defined = by_definition(blt, (values << bits).tolist(), full)
    assert max(map(abs, defined)) < 2**62
    strategy = FineToeplitz(buffers=buffers, bits=bits)
    encoder, decoder = strategy.encoder(leaves), strategy.decoder(leaves)
    exact_open, exact_added, _ = encoder.start()
    state = exact_open, exact_added, np.array(wide(full))
    ends = []
    for form in ("plain", "compiled"):
        force(monkeypatch, form)
        end, nodes = encoder.encode(state, before + 1, values)
        assert nodes.tolist() == defined
        ends.append(end)
    stepper = strategy.stepper(leaves, before, state, decoder.start())
    for value in values.tolist():
        stepper.step(value + AWAY, -AWAY)
    assert same(ends[0], ends[1])
    assert same(ends[0], stepper.states()[0])


def fullest(tables, leaves, size):
    """Buffers after ``leaves`` leaves of one size, a whole number of spans, but for rounding."""
    numbers = tables.coefficients
    buffers = []
    for i in range(len(numbers.decay)):
        kept = Fraction(CHUNK << int(numbers.fraction_bits[i]))
        kept -= int(numbers.leaf_mix[:, CHUNK + i].sum()) << int(numbers.growth_shift[i])
        lost = Fraction(int(numbers.ladder[:, i].sum()), 1 << int(numbers.ladder_shift[i]))
        with mpmath.workprec(200):
            rate = mpmath.ldexp(int(numbers.decay[i]), -int(numbers.decay_shift[i]))
            spans = -mpmath.expm1(leaves // (CHUNK * SPAN) * mpmath.log1p(-rate)) / rate
            buffers.append(int(spans * int(size * kept * (SPAN - lost))))
    return buffers


@pytest.mark.parametrize("error", [ImportError, RuntimeError])
def test_plain_form_serves_where_nothing_can_be_compiled(error, monkeypatch):
    def refuse(name):
        raise error(name)

    monkeypatch.setattr(extras, "importlib", SimpleNamespace(import_module=refuse))
    monkeypatch.setattr(blt_encoder, "compiled", extras.compiled.__wrapped__)
    assert blt_encoder.kernels(2**20) is None
    _, nodes = encode(BufferedToeplitz(), 300, some_leaves(300, 300, "usual"))
    assert len(nodes) == 300


def some_leaves(leaves, length, size):
    generator = np.random.default_rng(length)
    limit = LARGEST_TOTAL // leaves
    if size == "usual":
        return generator.integers(0, STEPS + 1, length)
    if size == "largest":
        return np.full(length, limit)
    return generator.integers(-limit, limit, length)


@pytest.mark.parametrize(
    "strategy", [BufferedToeplitz(buffers=4), FineToeplitz(bits=5), SquareRootToeplitz()]
)
@pytest.mark.parametrize("form", ["compiled", "plain"])
def test_any_split_gives_the_same_nodes_sums_and_states(strategy, form, monkeypatch):
    force(monkeypatch, form)
    n = 2500
    generator = np.random.default_rng(4)
    values, noise = generator.integers(0, STEPS, n), generator.integers(-(2**30), 2**30, n)
    encoder_state, nodes = encode(strategy, n, values)
    decoder_state, sums = decode(strategy, n, nodes + noise)
    for pieces in [(1, 300), (64,), (63, 65, 1), (1024, 7), (0, 999)]:
        other_state, other_nodes = encode(strategy, n, values, pieces)
        assert np.array_equal(other_nodes, nodes)
        assert same(other_state, encoder_state)
        other_state, other_sums = decode(strategy, n, nodes + noise, pieces)
        assert np.array_equal(other_sums, sums)
        assert same(other_state, decoder_state)


@pytest.mark.parametrize("begin", [0, 1, 64, 1000, 1024, 2047])
def test_single_steps_give_the_same_bits(begin):
    n, strategy = 2200, BufferedToeplitz()
    generator = np.random.default_rng(begin)
    values, noise = generator.integers(0, STEPS, n), generator.integers(-(2**30), 2**30, n)
    encoder_state, nodes = encode(strategy, n, values)
    decoder_state, sums = decode(strategy, n, nodes + noise)
    encoder, decoder = strategy.encoder(n), strategy.decoder(n)
    before = encoder.encode(encoder.start(), 1, values[:begin])[0]
    after = decoder.decode(decoder.start(), 1, (nodes + noise)[:begin])[0]
    stepper = strategy.stepper(n, begin, before, after)
    pairs = zip((values[begin:] + AWAY).tolist(), (noise[begin:] - AWAY).tolist(), strict=True)
    assert [stepper.step(*pair) for pair in pairs] == sums[begin:].tolist()
    ended = stepper.states()
    assert same(ended[0], encoder_state)
    assert same(ended[1], decoder_state)


def test_filter_without_fused_operations_is_the_loop(monkeypatch):
    noisy = np.random.default_rng(3).integers(-(2**40), 2**40, 500)
    decoder = BufferedToeplitz().decoder(500)
    force(monkeypatch, "plain")
    usual = decoder.decode(decoder.start(), 1, noisy)
    monkeypatch.setattr(recurrence, "_rounds_each_operation", lambda: False)
    slow = decoder.decode(decoder.start(), 1, noisy)
    assert same(usual[0], slow[0])
    assert np.array_equal(usual[1], slow[1])


def test_wide_integers_against_plain_ones():
    generator = np.random.default_rng(0)
    high, low = generator.integers(-(2**40), 2**40, 200), generator.integers(0, 2**63 - 1, 200)
    exact = plain(np.stack([high, low]))
    assert exact == [(h << 63) + x for h, x in zip(high.tolist(), low.tolist(), strict=True)]
    limbs = np.stack(split(high, low))
    assert [sum(x << 21 * i for i, x in enumerate(c)) for c in limbs.T.tolist()] == exact
    for shift in (21, 27, 41, 60, 83):
        found = np.stack(difference(3 * limbs[:, ::-1], limbs * 12345, np.int64(shift)))
        expected = [3 * a - ((12345 * b) >> shift) for a, b in zip(exact[::-1], exact, strict=True)]
        assert plain(found) == expected
        assert found[1].min() >= 0


# --- Decoding ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["all the largest", "random", "every other", "a late jump"])
@pytest.mark.parametrize(
    ("strategy", "leaves"), [(BufferedToeplitz(), 2**20), (FineToeplitz(bits=5), 2**40)]
)
def test_decoded_sums_without_noise_are_exact_but_for_rounding(kind, strategy, leaves):
    """At most a hundredth of the clipping range off, where the noise has some twenty of them."""
    n = 2**20
    values = np.full(n, STEPS)
    if kind == "random":
        values = np.random.default_rng(2).integers(0, STEPS, n)
    elif kind == "every other":
        values[::2] = 0
    elif kind == "a late jump":
        values[: n // 2] = 0
    _, nodes = encode(strategy, leaves, values)
    _, sums = decode(strategy, leaves, nodes)
    assert np.max(np.abs(sums - np.cumsum(values))) < 0.01 * STEPS


def test_square_root_is_rounded_to_nearest():
    n = 60
    values = np.random.default_rng(2).integers(0, STEPS, n)
    _, nodes = encode(SquareRootToeplitz(), n, values)
    running = [round(total * 2**24) for total in np.cumsum(square_root_coefficients(n))]
    a = [after - before for before, after in itertools.pairwise([0, *running])]
    exact = [sum(a[k] * int(values[t - k]) for k in range(t + 1)) for t in range(n)]
    assert nodes.tolist() == [math.floor(Fraction(x, 2**24) + Fraction(1, 2)) for x in exact]


def test_square_root_decodes_its_own_encoding():
    n = 3000
    values = np.random.default_rng(2).integers(0, STEPS, n)
    _, nodes = encode(SquareRootToeplitz(), n, values)
    exact = np.convolve(values, square_root_coefficients(n))[:n]
    assert np.max(np.abs(nodes - exact)) < 0.5 + STEPS * 1e-5
    _, sums = decode(SquareRootToeplitz(), n, nodes)
    assert np.max(np.abs(sums - np.cumsum(values))) < 1e-4 * STEPS


@pytest.mark.parametrize("strategy", [BufferedToeplitz(), SquareRootToeplitz()])
def test_measured_variance_at_several_leaves(strategy):
    n, runs = 150, 4000
    mechanism = Mechanism.calibrate(strategy, n, Guarantee(1.0, 2**-20))
    drawn = LatticeNoise(GAUSSIAN, mechanism.scale, Secret.for_tests(5), ("runs",)).draw(
        0, n * runs
    )
    decoder = strategy.decoder(n)
    sums = np.array([decoder.decode(decoder.start(), 1, run)[1] for run in drawn.reshape(runs, n)])
    for t in (1, 2, 64, 65, 150):
        expected = mechanism.unit_variance(t)[0] * mechanism.steps**2
        # The ratio has deviation √(2/runs) = 0.0224.
        assert sums[:, t - 1].var() / expected == pytest.approx(1, abs=6 * 0.0224)


@pytest.mark.parametrize(
    "strategy", [BufferedToeplitz(buffers=2), FineToeplitz(bits=3), SquareRootToeplitz()]
)
def test_contract_of_a_strategy(strategy):
    check_strategy(
        strategy,
        max_leaves=3 if isinstance(strategy, FineToeplitz) else 5,
        linear=False,
        tight=False,
        tolerance=16,
        variance_tolerance=1e-6,
        largest_leaf=STEPS,
    )


# --- Refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [BufferedToeplitz(), SquareRootToeplitz()])
def test_nothing_beyond_the_length(strategy):
    encoder = strategy.encoder(100)
    state, _ = encoder.encode(encoder.start(), 1, np.zeros(100, np.int64))
    with pytest.raises(StreamEnded, match="101"):
        encoder.encode(state, 101, np.zeros(1, np.int64))


def test_single_steps_end_too():
    strategy = BufferedToeplitz()
    states = strategy.encoder(3).start(), strategy.decoder(3).start()
    stepper = strategy.stepper(3, 0, *states)
    for _ in range(3):
        stepper.step(1 + AWAY, -AWAY)
    with pytest.raises(StreamEnded):
        stepper.step(1 + AWAY, -AWAY)


def test_leaves_beyond_the_room_are_clipped_not_wrapped():
    n = 200
    limit = LARGEST_TOTAL // n
    encoder = BltEncoder(encoder_tables(blt_for(n, 3)), n)
    for extreme in (2**63 - 1, -(2**63)):
        wild = np.full(n, extreme)
        tame = np.clip(wild, -limit, limit)
        assert np.array_equal(
            encoder.encode(encoder.start(), 1, wild)[1], encoder.encode(encoder.start(), 1, tame)[1]
        )


def test_refuses_what_it_cannot_do():
    for make in (BufferedToeplitz, SquareRootToeplitz):
        with pytest.raises(ParameterError, match="law"):
            make(law="laplace")
    with pytest.raises(ParameterError, match="buffers"):
        BufferedToeplitz(buffers=9)
    with pytest.raises(ParameterError, match="length"):
        BufferedToeplitz().sensitivity(2**41, 1)
    with pytest.raises(ParameterError, match="length"):
        SquareRootToeplitz().encoder(2**17)


def test_tables_refuse_coefficients_without_room():
    with pytest.raises(AssertionError, match="room"):
        encoder_tables(Blt((1, 2**52 + 2**51)))  # c_j = ¾ for ever: a chunk sums to 48


def test_rounding_costs_several_leaves_of_a_person_hardly_more_than_one():
    """Where nothing moves, the rounding of nodes alone is left: half a unit each, twice."""
    for strategy in (BufferedToeplitz(buffers=2), BufferedToeplitz()):
        once = strategy.sensitivity(300, 0)
        assert 298 < once < 301
        for charged in (strategy.several(300, 0, 2, 1), strategy.spread(300, 0, 2, 1)):
            assert once <= charged < once * Fraction(1001, 1000)


def test_the_table_of_variances_is_as_precise_as_stated():
    blt = BufferedToeplitz(buffers=2).blt(2**30)  # of which it is least precise
    t = np.unique(np.geomspace(1, 2**30, 20_000).astype(np.int64))
    exact = blt.error_covariance(t, t)
    assert np.allclose(blt.error_variance(t), exact, rtol=2.0**-21, atol=0)
