"""BLT and a comb for windows: the sum of the last ``window`` leaves, for ever.

The matrix of these sums has the generating function ``(1 − z^w)/(1 − z)``, and its square root is
the best encoder: ``(1 − z)^(−1/2)·(1 − z^w)^(1/2)``.  The first factor is fitted by a BLT ``c(z)``,
the second by its first terms, the comb ``p(x) = 1 − x/2 − x²/8`` at ``x = z^w``, whose coefficients
are dyadic, so that eight times a comb of leaves is a whole number.  What is fitted is the product,
for the window: within half a percent of the square root (scripts/fit_window.py).

The decoder gives prefix sums, as every decoder does; a window is the difference of two of them.
Their own noise grows without end, but slowly, and the difference of two that are ``w`` apart, in
which almost all of it cancels, does not.

| here | meaning |
|---|---|
| ``c_j``, ``g_j`` | coefficients of the BLT, and of ``1/((1 − z) c(z))`` |
| ``C_j`` | coefficients of the encoder, ``8 c_j − 4 c_{j−w} − c_{j−2w}`` |
| ``e_j`` | coefficients of ``1/((1 − z) c(z) p(z^w))``: ``e_j = g_j + e_{j−w}/2 + e_{j−2w}/8`` |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Final

import mpmath
import numpy as np
from numpy.typing import NDArray

from rillet.noise import FloatArray, IntArray, LawName
from rillet.options import option
from rillet.precision import precision
from rillet.strategy.base import AWAY, Decoder, Encoder, RowsOf, State, Stepper, Strategy
from rillet.strategy.toeplitz.blt import PRECISION, Blt, shipped, squared_sensitivity
from rillet.strategy.toeplitz.buffered import BltDecoder, BltStrategy
from rillet.strategy.toeplitz.encoder import BltEncoder, encoder_tables, largest_leaf
from rillet.strategy.toeplitz.stepper import BltStepper

#: (log2 of the window, buffers): φ_1, ψ_1, φ_2, ψ_2, …, in increasing order.
RATES: Final = shipped("window_rates.txt")
FEWEST_BUFFERS: Final = min(buffers for _, buffers in RATES)
MOST_BUFFERS: Final = max(buffers for _, buffers in RATES)
LONGEST_WINDOW: Final = 1 << max(log_window for log_window, _ in RATES)
#: The comb: 2^3·(1 − x/2 − x²/8), the sum of the sizes, and the bits that hold it.
TAPS: Final = (8, -4, -1)
_GAIN: Final = sum(map(abs, TAPS))
_COMB_BITS: Final = 3
_GAIN_BITS: Final = (_GAIN - 1).bit_length()
#: Windows after which the coefficients ``e_j`` have settled: what is left falls by 1.46 in each.
_SETTLED: Final = 48
#: So many tables of products are kept.
_KEPT: Final = 32
#: Shorter windows are decoded leaf by leaf: arrays would be too short.
_SHORT: Final = 64


@dataclass(frozen=True)
class WindowToeplitz(BltStrategy):
    """A BLT strategy whose noise nearly cancels between two prefix sums ``window`` leaves apart.

    **Privacy.** Squared L2 sensitivity ``(steps·‖C̃‖ + (1 + 4E)·√(leaves − 1))²``: the column of
    the BLT and the comb, and the rounding of every node it touches (docs/proofs/memory.md).

    Parameters
    ----------
    window
        Leaves of a window, 2 to 2^16.
    law
        ``"gaussian"``.
    buffers
        Number of buffers, 2 to 6, of which short windows take fewer; ``None`` takes as few as come
        within 0.6 % of the square root.

    Examples
    --------
    >>> strategy, t = WindowToeplitz(window=168), np.array([10**6])
    >>> before, after = (strategy.weights(2**30, leaf) for leaf in (t - 168, t))
    >>> noise = before + after - 2 * strategy.covariance(2**30, t - 168, t)
    >>> round(float(strategy.sensitivity(2**30, 2**30) * Fraction(noise[0])) ** 0.5 / 2**30, 2)
    3.08
    """

    window: int = option(ge=2, le=LONGEST_WINDOW)
    law: LawName = "gaussian"
    buffers: int | None = option(default=None, ge=FEWEST_BUFFERS, le=MOST_BUFFERS)
    name: ClassVar[str] = "window-toeplitz"
    comb_bits = _COMB_BITS

    def blt(self, leaves: int) -> Blt:
        """The rates fitted to the window."""
        few = 2 + sum(self.window > longest for longest in (16, 256, 4096))
        return blt_for_window(self.window, self.buffers or few)

    def variant(self, bits: int, *, small: bool) -> FineWindowToeplitz:
        """The same rates."""
        return FineWindowToeplitz(self.window, self.law, self.buffers, bits, small)

    def sensitivity(self, leaves: int, steps: int) -> Fraction:
        """Square of the L2 norm, rounded up."""
        norm, rounding = _column(self.blt(leaves), self.window, leaves, small=self.small)
        return squared_sensitivity(norm, steps << self.bits, leaves, rounding)

    def spread(self, leaves: int, steps: int, most: int, apart: int) -> Fraction:
        """That is already so for several: their columns have no end."""
        return Strategy.spread(self, leaves, steps, most, apart)

    def several(self, leaves: int, steps: int, count: int, apart: int) -> Fraction:
        """Square of the L2 norm, rounded up, whatever the signs."""
        blt = self.blt(leaves)
        one, rounding = _column(blt, self.window, leaves, small=self.small)
        with precision(PRECISION) as mp:
            norm = mp.sqrt(mp.mpf(_correlations(blt, self.window).several(count, apart)))
            norm *= 1 + mp.sqrt(count) * _GAIN * self.tables(leaves).deviation
            norm = min(norm, count * one)
        return squared_sensitivity(norm, steps << self.bits, leaves, rounding)

    def weights(self, leaves: int, t: IntArray) -> FloatArray:
        """``Σ_{j < t} e_j²``."""
        return self.covariance(leaves, t, t)

    def covariance(self, leaves: int, earlier: IntArray, later: IntArray) -> FloatArray:
        """``Σ_{j < earlier} e_j e_{j + later − earlier}``; fastest at lags 0 and ``window``."""
        noise = window_noise(self.blt(leaves), self.window)
        first, second = np.asarray(earlier, np.int64), np.asarray(later, np.int64)
        return noise.covariance(first, second) * 4.0 ** -(self.bits + _COMB_BITS)

    def encoder(self, leaves: int) -> Encoder:
        """The comb, then exact fixed-point recurrences."""
        largest = self.largest_leaf(leaves, self.bits)
        tables = self.tables(leaves)
        return WindowEncoder(
            BltEncoder(tables, leaves, self.bits, _GAIN * largest), self.window, largest
        )

    def decoder(self, leaves: int) -> Decoder:
        """The inverse filter and the running sum, then the inverse of the comb."""
        return WindowDecoder(BltDecoder(self.blt(leaves), self.bits + _COMB_BITS), self.window)

    def stepper(
        self, leaves: int, absorbed: int, encoder_state: State, decoder_state: State
    ) -> Stepper:
        """Both, one leaf at a time in plain integers and floats."""
        exact_past, *encoder_states = encoder_state
        past, *decoder_states = decoder_state
        largest = self.largest_leaf(leaves, self.bits)
        inner = BltStepper(
            *(self.blt(leaves), leaves, absorbed),
            *(tuple(encoder_states), tuple(decoder_states), self.bits),
            limit=_GAIN * largest,
            comb_bits=_COMB_BITS,
            small=self.small,
        )
        return WindowStepper(inner, self.window, largest, exact_past, past)

    def largest_leaf(self, leaves: int, bits: int) -> int:
        """Size of the leaves whose combs there is room for."""
        return largest_leaf(self.tables(leaves), leaves, bits + _GAIN_BITS)


@dataclass(frozen=True)
class FineWindowToeplitz(WindowToeplitz):
    """The same with finer nodes or a small state; a plan takes it by itself."""

    bits: int = 0
    small: bool = False


@lru_cache(maxsize=64)
def blt_for_window(window: int, buffers: int) -> Blt:
    """The fitted rates; between two powers of two ``1/rate`` is interpolated, exactly."""
    log_window = window.bit_length() - 1
    while (log_window, buffers) not in RATES:
        buffers -= 1
    above = log_window + (window > 1 << log_window)
    share = Fraction(window, 1 << log_window) - 1
    pairs = zip(RATES[log_window, buffers], RATES[above, buffers], strict=True)
    slowness = [(1 - share) / Fraction(low) + share / Fraction(high) for low, high in pairs]
    return Blt(tuple(round(2**53 / each) for each in slowness))


# --- Sensitivity ---------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _column(blt: Blt, window: int, leaves: int, *, small: bool) -> tuple[mpmath.mpf, mpmath.mpf]:
    """``‖C̃‖`` over ``leaves`` nodes, rounded up, and ``4E``: a leaf moves three of the BLT's."""
    tables = encoder_tables(blt, small=small)
    with precision(PRECISION) as mp:
        total = mp.mpf(0)
        for i, tap in enumerate(TAPS):
            for j, other in enumerate(TAPS):
                shared = leaves - max(i, j) * window
                if shared > 0:
                    total += tap * other * blt.product(abs(i - j) * window, shared)
        return mp.sqrt(total) + _GAIN * tables.deviation, 2 * tables.rounding


class _Correlations:
    """``G_l = Σ_k C_k C_{k+l}`` of a column without an end, in floats, and bounds on it."""

    #: Lags, in windows, up to which they are computed one by one.
    WINDOWS: Final = 4

    def __init__(self, blt: Blt, window: int) -> None:
        w = window
        with precision(PRECISION):
            # Σ_k c_k c_{k+l} = Σ_i weights_i θ_i^l for l ≥ 1.
            weights = [
                weight / (1 - rate)
                + weight
                * sum(
                    other_weight / (rate + other - rate * other)
                    for other_weight, other in zip(blt.omega, blt.phi, strict=True)
                )
                for weight, rate in zip(blt.omega, blt.phi, strict=True)
            ]
            self._weights = np.array([float(weight) for weight in weights])
            self._logs = np.array([float(rate.context.log1p(-rate)) for rate in blt.phi])
            alone = float(blt.product(0, 1 << 200))
        lags = np.arange((self.WINDOWS + 2) * w + 1)
        c = np.zeros(len(lags))
        for weight, log in zip(self._weights, self._logs, strict=True):
            c += weight * np.exp(log * lags)
        c[0] = alone
        count = self.WINDOWS * w + 1
        lag_1 = c[w : w + count] + c[np.abs(np.arange(count) - w)]
        lag_2 = c[2 * w : 2 * w + count] + c[np.abs(np.arange(count) - 2 * w)]
        a, b, d = TAPS
        found = (a * a + b * b + d * d) * c[:count] + (a * b + b * d) * lag_1 + a * d * lag_2
        # Beyond, in each buffer, the size of what the taps leave of it: from 2w before the lag.
        left = np.exp(self._logs * w)
        self._rest = self._weights * np.abs(
            (a * a + b * b + d * d) * left**2
            + (a * b + b * d) * (left + left**3)
            + a * d * (1 + left**4)
        )
        self._shift = 2 * w
        slack = 2.0**-30 * found[0]  # far more than floats can be off
        beyond = max(np.abs(found[-1]), self._beyond(count)) + slack
        self._alone = float(found[0]) + slack
        self._bounds = np.maximum.accumulate(np.append(np.abs(found) + slack, beyond)[::-1])[::-1]

    def _beyond(self, lag: int) -> float:
        return float(np.sum(self._rest * np.exp(self._logs * (lag - self._shift))))

    def several(self, count: int, apart: int) -> float:
        """``count·R_0 + 2·Σ_i (count − i)·R_{i·apart}``, ``R_l ≥ |G_l'|`` for all ``l' ≥ l``."""
        near = min(count - 1, (len(self._bounds) - 2) // apart)
        i = np.arange(1, near + 1)
        total: float = count * self._alone
        total += 2 * float(np.sum((count - i) * self._bounds[i * apart]))
        if near < count - 1:  # a geometric series, without end
            first = np.exp(self._logs * ((near + 1) * apart - self._shift))
            series = self._rest * first / -np.expm1(self._logs * apart)
            total += 2 * (count - near - 1) * float(np.sum(series))
        return total * (1 + 2.0**-30)


@lru_cache(maxsize=8)
def _correlations(blt: Blt, window: int) -> _Correlations:
    return _Correlations(blt, window)


# --- Noise ---------------------------------------------------------------------------------------


class WindowNoise:
    """Covariances of the decoded noise, from ``e_j``, which tends to ``e_∞``.

    Within 10^-7: what is left of it after 48 windows.
    """

    def __init__(self, blt: Blt, window: int) -> None:
        self.window = window
        weights, _ = blt.decoder_floats
        rows = np.full((_SETTLED, window), weights[0])
        for weight, rate in zip(weights[1:], blt.psi, strict=True):
            log = np.log1p(-float(rate))
            begin = np.exp(log * window * np.arange(_SETTLED))
            rows += weight * begin[:, None] * np.exp(log * np.arange(window))
        for row in range(1, _SETTLED):
            rows[row] += rows[row - 1] / 2 + (rows[row - 2] / 8 if row > 1 else 0.0)
        self.limit = float(weights[0]) * 8 / 3
        self.coefficients = rows.ravel()

    def covariance(self, earlier: IntArray, later: IntArray) -> FloatArray:
        """``Σ_{j < earlier} e_j e_{j + lag}``, the same whatever else is asked for beside it.

        One leaf against many (a scalar and an array) is fast, and so are the lags 0 and ``window``.
        """
        if np.ndim(earlier) != np.ndim(later) and 0 in (np.ndim(earlier), np.ndim(later)):
            return self._from_one(earlier, later)
        earlier, later = np.broadcast_arrays(earlier, later)
        lag = later - earlier
        known = int(np.ravel(lag)[0]) if np.size(lag) else 0
        if np.ndim(lag) and known in (0, self.window) and np.all(lag == known):
            table = self._table(known)
            size = len(table) - 1
            found: FloatArray = table[np.minimum(earlier, size)]
            return found + np.maximum(earlier - size, 0) * self.limit**2
        pairs = zip(np.ravel(earlier).tolist(), np.ravel(later).tolist(), strict=True)
        f, _ = self._rest
        products = [
            f[: min(a, max(0, len(f) - (b - a)))]
            @ f[b - a : b - a + min(a, max(0, len(f) - b + a))]
            for a, b in pairs
        ]
        whole: FloatArray = self._constant_part(earlier, later)
        return whole + np.reshape(products, np.shape(lag))

    @cached_property
    def _tables(self) -> dict[int, FloatArray]:
        return {}

    def _table(self, lag: int) -> FloatArray:
        """Running sums of ``e_j e_{j + lag}``."""
        if lag not in self._tables:
            e = self.coefficients
            shifted = np.full(len(e), self.limit)
            shifted[: len(e) - lag] = e[lag:]
            self._tables[lag] = np.append(0.0, np.cumsum(e * shifted))
        return self._tables[lag]

    @cached_property
    def _rest(self) -> tuple[FloatArray, FloatArray]:
        """``f_j = e_j − e_∞`` and its running sums."""
        rest = self.coefficients - self.limit
        return rest, np.append(0.0, np.cumsum(rest))

    def _constant_part(self, earlier: IntArray, later: IntArray) -> FloatArray:
        """All products but those of ``f`` with ``f``."""
        _, running = self._rest
        size = len(running) - 1
        near, far, lag = (running[np.minimum(t, size)] for t in (earlier, later, later - earlier))
        constant: FloatArray = earlier * self.limit**2 + self.limit * (near + far - lag)
        return constant

    def _from_one(self, earlier: IntArray, later: IntArray) -> FloatArray:
        """One leaf against many: products of ``f`` for all lags up to a window, made once."""
        fixed = int(earlier if np.ndim(earlier) == 0 else later)
        size, lag = len(self._rest[0]), later - earlier
        key = min(fixed, size), np.ndim(earlier) == 0 and fixed < size
        if key not in self._products:
            while len(self._products) >= _KEPT:
                self._products.pop(next(iter(self._products)))
            self._products[key] = self._of_all_lags(*key)
        products = np.append(self._products[key], 0.0)
        found: FloatArray = self._constant_part(earlier, later)
        found = found + products[np.minimum(lag, self.window + 1)]
        if np.any(lag > self.window):  # nothing here asks for it
            beyond = lag > self.window
            first, second = np.broadcast_arrays(earlier, later)
            found[beyond] = self.covariance(first[beyond], second[beyond])
        return found

    @cached_property
    def _products(self) -> dict[tuple[int, bool], FloatArray]:
        return {}

    def _of_all_lags(self, count: int, begins: bool) -> FloatArray:
        """``Σ_{j < count} f_j f_{j + lag}``; up to a fixed end no product reaches beyond it."""
        f, _ = self._rest
        part, line = f[:count], f if begins else f[:count]
        line = np.append(line, np.zeros(self.window))[: count + self.window]
        from scipy.signal import fftconvolve

        found: FloatArray = fftconvolve(line, part[::-1])[count - 1 : count + self.window]
        return found


@lru_cache(maxsize=4)
def window_noise(blt: Blt, window: int) -> WindowNoise:
    """Made once: its tables take 25 MB for the longest window."""
    return WindowNoise(blt, window)


# --- Encoder and decoder -------------------------------------------------------------------------


@dataclass(frozen=True)
class WindowEncoder(Encoder):
    """State: the leaves of the last two windows, oldest first; then the state of the BLT."""

    blt: BltEncoder
    window: int
    largest: int

    def start(self) -> State:
        """Everything is 0."""
        return np.zeros(2 * self.window, np.int64), *self.blt.start()

    def encode(self, state: State, first: int, exact_leaves: IntArray) -> tuple[State, IntArray]:
        """Nodes of ``8 x_t − 4 x_{t−w} − x_{t−2w}``.

        **Privacy.** Touches raw data.  Total: leaves beyond the room of the arithmetic, which a
        plan excludes, are clipped, and clipping cannot increase a difference.
        """
        w, count = self.window, len(exact_leaves)
        exact_past, *inner = state
        exact_line = np.concatenate(
            [exact_past, np.clip(exact_leaves, -self.largest, self.largest)]
        )
        exact_comb = TAPS[0] * exact_line[2 * w :]
        exact_comb += TAPS[1] * exact_line[w : w + count]
        exact_comb += TAPS[2] * exact_line[:count]
        following, nodes = self.blt.encode(tuple(inner), first, exact_comb)
        return (exact_line[count:].copy(), *following), nodes

    def encode_each(
        self, state: State, rows: RowsOf, leaf: IntArray | int, exact_leaves: IntArray
    ) -> IntArray:
        """The same for one leaf of each of some keys.  **Privacy.** As :meth:`encode`."""
        exact_past, *inner = state
        exact = np.clip(exact_leaves, -self.largest, self.largest)
        exact_comb = TAPS[0] * exact + TAPS[1] * exact_past[rows, self.window]
        exact_comb += TAPS[2] * exact_past[rows, 0]
        _take_in(exact_past, rows, exact)
        return self.blt.encode_each(tuple(inner), rows, leaf, exact_comb)


@dataclass(frozen=True)
class WindowDecoder(Decoder):
    """State: the prefix sums of the last two windows, oldest first; then the state of the BLT's."""

    blt: BltDecoder
    window: int

    def start(self) -> State:
        """Everything is 0."""
        return np.zeros(2 * self.window), *self.blt.start()

    def decode(self, state: State, first: int, noisy: IntArray) -> tuple[State, FloatArray]:
        """``M_t = u_t + (M_{t−2w}/8 + M_{t−w}/2)``, the same floats for any split.

        **Privacy.** Post-processing.
        """
        w, count = self.window, len(noisy)
        past, *inner = state
        following, sums = self.blt.decode(tuple(inner), first, noisy)
        if w < _SHORT:
            line: list[float] = past.tolist()
            for t, value in enumerate(sums.tolist()):
                line.append(value + (line[t] * 0.125 + line[t + w] * 0.5))
            whole = np.array(line)
        else:
            whole = np.concatenate([past, sums])
            for begin in range(0, count, w):
                end = min(count, begin + w)
                whole[2 * w + begin : 2 * w + end] += (
                    whole[begin:end] * 0.125 + whole[w + begin : w + end] * 0.5
                )
        return (whole[count:].copy(), *following), whole[2 * w :].copy()

    def decode_each(
        self, state: State, rows: RowsOf, leaf: IntArray | int, noisy: IntArray
    ) -> FloatArray:
        """The same for one leaf of each of some keys.  **Privacy.** Post-processing."""
        past, *inner = state
        sums = self.blt.decode_each(tuple(inner), rows, leaf, noisy)
        sums += past[rows, 0] * 0.125 + past[rows, self.window] * 0.5
        _take_in(past, rows, sums)
        return sums


def _take_in(past: NDArray[Any], rows: RowsOf, latest: NDArray[Any]) -> None:
    """The oldest goes, the latest comes."""
    past[rows, :-1] = past[rows, 1:]
    past[rows, -1] = latest


class WindowStepper(Stepper):
    """One leaf at a time.

    **Privacy.** Touches raw data; holds what the state of the encoder holds.
    """

    def __init__(
        self, blt: BltStepper, window: int, largest: int, exact_past: IntArray, past: FloatArray
    ) -> None:
        self._blt, self._window, self._largest = blt, window, largest
        # Rings that begin with what is oldest; `_at` is where the next one goes.
        self._exact_past, self._past, self._at = exact_past.copy(), past.copy(), 0
        self._exact_leaf: Callable[[int], int] = self._exact_past.item
        self._sum: Callable[[int], float] = self._past.item

    def step(self, exact_leaf: int, noise: int) -> float:
        """Absorb one leaf and the noise of its node; return the noisy prefix sum."""
        at, before = self._at, self._at - self._window
        exact_leaf = max(-self._largest, min(exact_leaf - AWAY, self._largest))
        exact_comb = TAPS[0] * exact_leaf + TAPS[1] * self._exact_leaf(before)
        exact_comb += TAPS[2] * self._exact_leaf(at)
        prefix = self._blt.step(exact_comb + AWAY, noise) + (
            self._sum(at) * 0.125 + self._sum(before) * 0.5
        )
        self._exact_past[at], self._past[at] = exact_leaf, prefix
        self._at = (at + 1) % len(self._past)
        return prefix

    def states(self) -> tuple[State, State]:
        """The states of encoder and decoder."""
        encoder_state, decoder_state = self._blt.states()
        exact_past, past = (np.roll(ring, -self._at) for ring in (self._exact_past, self._past))
        return (exact_past, *encoder_state), (past, *decoder_state)
