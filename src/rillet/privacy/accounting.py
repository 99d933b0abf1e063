"""What is promised, what is spent: the guarantee, the costs, the ledger.

Costs compose by proved closed forms (docs/proofs/ledger.md), in exact rationals where the form is
rational and otherwise in 200-bit arithmetic rounded outward: the ledger may overstate a spend by a
relative 2^-150, and never understates it.

**Privacy.** Everything here is a function of public numbers.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, TypeAlias

import mpmath

from rillet.errors import BudgetExceeded, LedgerClosed, ParameterError

Number: TypeAlias = int | float | Fraction

_PRECISION: Final = 200
_OUTWARD: Final = 2.0**-150
_HUGE: Final = Fraction(2**200)
#: No smaller ε is promised: its noise fits no lattice, and formulas would divide by nothing.
SMALLEST_EPSILON: Final = 2.0**-40
REPLACE_ONE: Final = "the value of any one observation (replace-one, event level)"


# --- Rounding ------------------------------------------------------------------------------------


def round_up(value: Fraction) -> float:
    """Smallest float that is at least ``value``; infinite beyond the largest."""
    try:
        nearest = float(value)
    except OverflowError:
        return math.inf if value > 0 else -sys.float_info.max
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def round_down(value: Fraction) -> float:
    """Largest float that is at most ``value``."""
    return -round_up(-value)


def root_up(value: Fraction) -> float:
    """A float that is at least the square root of ``value``, and next to it."""
    with mpmath.workprec(_PRECISION):
        nearest = float(mpmath.sqrt(mpmath.mpf(value.numerator) / value.denominator))
    while Fraction(nearest) ** 2 < value:
        nearest = math.nextafter(nearest, math.inf)
    return nearest


def _mpf(value: Number) -> mpmath.mpf:
    exact = Fraction(value)
    return mpmath.mpf(exact.numerator) / exact.denominator


def _float_up(value: mpmath.mpf) -> float:
    nearest = float(value)
    return nearest if mpmath.mpf(nearest) >= value else math.nextafter(nearest, math.inf)


# --- The promise ---------------------------------------------------------------------------------


def check_epsilon(epsilon: object, name: str = "epsilon") -> float:
    """Refuse anything but a positive finite number."""
    number = _plain_number(epsilon)
    if not 0 < number < math.inf:
        raise ParameterError(name, "a positive finite number", epsilon)
    return number


def check_delta(delta: object, name: str = "delta") -> float:
    """Refuse anything but a number with 0 ≤ delta < 1."""
    number = _plain_number(delta)
    if not 0 <= number < 1:
        raise ParameterError(name, "a number with 0 <= delta < 1", delta)
    return number


def _plain_number(value: object) -> float:
    """The value as a float; NaN, which every check refuses, when it is not a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Fraction)):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


@dataclass(frozen=True)
class Guarantee:
    """Differential privacy: ``P(M(x) ∈ S) ≤ e^ε · P(M(x′) ∈ S) + δ`` for neighbours x, x′.

    Examples
    --------
    >>> print(Guarantee(1.0, 2**-20, protects="one reading"))
    (1, 9.54e-07)-differential privacy for one reading
    """

    epsilon: float
    delta: float = 0.0
    protects: str = REPLACE_ONE

    def __post_init__(self) -> None:
        epsilon = check_epsilon(self.epsilon)
        if epsilon < SMALLEST_EPSILON:
            raise ParameterError(
                "epsilon",
                f"a number of at least {SMALLEST_EPSILON:.2g}",
                self.epsilon,
                hint="noise for less would drown any data",
            )
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", check_delta(self.delta))

    def __str__(self) -> str:
        return f"({self.epsilon:g}, {self.delta:.3g})-differential privacy for {self.protects}"


# --- Costs ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """What one event costs an observation: three numbers that compose exactly.

    ``epsilon`` and ``delta``: the event is (ε, δ)-private; pure when ``delta`` is 0.
    ``mu_squared``: besides, a Gaussian mechanism with (sensitivity / standard deviation)² at most
    this.  Use :meth:`pure`, :meth:`approximate` or :meth:`gaussian`.
    """

    epsilon: Fraction = Fraction(0)
    delta: Fraction = Fraction(0)
    mu_squared: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta", "mu_squared"):
            value = getattr(self, name)
            if not 0 <= _plain_number(value) < math.inf or (name == "delta" and value > 1):
                raise ParameterError(name, "a finite cost of at least 0", value)
            object.__setattr__(self, name, Fraction(value))

    @classmethod
    def pure(cls, epsilon: Number) -> Cost:
        """An ε-private event (Laplace, exponential mechanism)."""
        check_epsilon(epsilon)
        return cls(epsilon=Fraction(epsilon))

    @classmethod
    def approximate(cls, epsilon: Number, delta: Number) -> Cost:
        """An (ε, δ)-private event of which nothing more is known (smooth sensitivity)."""
        check_epsilon(epsilon)
        check_delta(delta)
        return cls(epsilon=Fraction(epsilon), delta=Fraction(delta))

    @classmethod
    def gaussian(cls, mu_squared: Number) -> Cost:
        """A Gaussian mechanism with squared sensitivity-to-noise ratio ``mu_squared``."""
        check_epsilon(mu_squared, "mu_squared")
        return cls(mu_squared=Fraction(mu_squared))

    def __add__(self, other: Cost) -> Cost:
        """Adaptive composition on the same observation."""
        return Cost(
            epsilon=self.epsilon + other.epsilon,
            delta=self.delta + other.delta - self.delta * other.delta,
            mu_squared=self.mu_squared + other.mu_squared,
        )

    def __str__(self) -> str:
        parts = []
        if self.epsilon:
            parts.append(f"ε = {float(self.epsilon):.6g}")
        if self.delta:
            parts.append(f"δ = {float(self.delta):.3g}")
        if self.mu_squared:
            parts.append(f"Gaussian μ = {math.sqrt(self.mu_squared):.6g}")
        return ", ".join(parts) or "nothing"

    def delta_at(self, epsilon: Number) -> mpmath.mpf:
        """Smallest δ for which this cost is (ε, δ)-private, rounded up."""
        return delta_at(epsilon, self)

    def within(self, guarantee: Guarantee) -> bool:
        """Whether this cost keeps the promise; exact for pure and approximate costs."""
        if not self.mu_squared and self.epsilon <= Fraction(guarantee.epsilon):
            return self.delta <= Fraction(guarantee.delta)
        # A float and an mpf compare exactly, whatever the precision in force.
        return bool(self.delta_at(guarantee.epsilon) <= mpmath.mpf(guarantee.delta))


def _gaussian_delta(epsilon: mpmath.mpf, mu: mpmath.mpf, slack: mpmath.mpf) -> mpmath.mpf:
    """Hockey-stick divergence of N(μ, 1) from N(0, 1) at e^ε (Balle & Wang 2018, Theorem 8).

    Rounded up: the difference can cancel; ``slack`` bounds its error, relative to its first term.
    """
    if mu == 0:
        return max(mpmath.mpf(0), -mpmath.expm1(epsilon))
    root_half = mpmath.sqrt(mpmath.mpf(1) / 2)

    def lower_tail(x: mpmath.mpf) -> mpmath.mpf:
        return mpmath.erfc(-x * root_half) / 2

    above = lower_tail(mu / 2 - epsilon / mu)
    below = mpmath.exp(epsilon) * lower_tail(-mu / 2 - epsilon / mu)
    return max(mpmath.mpf(0), above - below) + above * slack


@lru_cache(maxsize=1024)
def delta_at(epsilon: Number, cost: Cost) -> mpmath.mpf:
    """Smallest δ with which ``cost`` is (ε, δ)-private, rounded up.

    A pure ε₀ is dominated by randomised response with odds e^ε₀ (Kairouz, Oh, Viswanath 2015);
    composed with a Gaussian of ratio μ that gives
    ``δ = p·δ_G(ε − ε₀; μ) + (1 − p)·δ_G(ε + ε₀; μ)`` with ``p = e^ε₀/(1 + e^ε₀)``.
    """
    # Absurd numbers are moved to where the tails can be computed; δ only grows by that.
    target_epsilon, mu_squared = min(Fraction(epsilon), _HUGE), cost.mu_squared
    if mu_squared:
        mu_squared = max(mu_squared, 1 / _HUGE)
        if max(mu_squared, cost.epsilon) > _HUGE:
            return mpmath.mpf(1)
    # Bits lost to cancellation, to tails far out and to a large exponent (docs/proofs/ledger.md).
    far = abs(target_epsilon) + cost.epsilon
    cancelled = int((far + 1) / mu_squared).bit_length() if mu_squared else 0
    spread = mu_squared + 2 * far * far / mu_squared if mu_squared else far
    lost = cancelled + int(spread).bit_length() + int(far).bit_length()
    with mpmath.workprec(_PRECISION + lost + 8):
        target, pure = _mpf(target_epsilon), _mpf(cost.epsilon)
        mu = mpmath.sqrt(_mpf(mu_squared))
        slack = mpmath.ldexp(mpmath.mpf(1), 10 - _PRECISION - cancelled)
        likely = 1 / (1 + mpmath.exp(-pure))
        inner = likely * _gaussian_delta(target - pure, mu, slack)
        inner += (1 - likely) * _gaussian_delta(target + pure, mu, slack)
        missing = _mpf(cost.delta)
        return (missing + (1 - missing) * inner) * (1 + mpmath.mpf(_OUTWARD))


# --- Calibration ---------------------------------------------------------------------------------


def laplace_scale(sensitivity: Number, epsilon: Number) -> float:
    """Scale of Laplace noise that makes an L1 sensitivity ε-private, rounded up."""
    check_epsilon(epsilon)
    return round_up(Fraction(sensitivity) / Fraction(epsilon))


@lru_cache(maxsize=256)
def gaussian_mu(guarantee: Guarantee, already: Cost = Cost()) -> float:  # noqa: B008 - frozen
    """Largest ratio μ that keeps the promise beside what is ``already`` spent, rounded down.

    With nothing spent before, this is the analytic Gaussian calibration of Balle & Wang (2018).
    """
    if guarantee.delta <= float(already.delta):
        raise ParameterError(
            "delta",
            "a positive delta that is not spent already, since Gaussian noise is never pure",
            guarantee.delta,
            hint="give delta a positive value, or use Laplace noise",
        )

    def keeps(mu: float) -> bool:
        return (already + Cost.gaussian(Fraction(mu) ** 2)).within(guarantee)

    high = 1.0
    while keeps(high):
        high *= 2
    low = high / 2
    while not keeps(low):
        low /= 2
        if low < 1e-12:
            raise ParameterError("epsilon", "a budget with room for Gaussian noise", guarantee)
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def gaussian_std(sensitivity_squared: Number, mu: float) -> float:
    """Standard deviation that makes a squared L2 sensitivity cost less than μ, rounded up.

    One float more than would be enough: then the cost is below ``mu`` by more than the ledger's
    rounding, and a mechanism calibrated to exactly its promise is never refused.
    """
    return math.nextafter(root_up(Fraction(sensitivity_squared) / Fraction(mu) ** 2), math.inf)


# --- The ledger ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """One spend: what happened, what it costs, and which observations it touches.

    ``first`` to ``last`` are observation numbers, both included; ``last=None`` has no end.
    """

    label: str
    cost: Cost
    first: int
    last: int | None

    def __post_init__(self) -> None:
        ends: list[object] = [self.first] if self.last is None else [self.first, self.last]
        whole = all(isinstance(end, int) and not isinstance(end, bool) for end in ends)
        if not whole or self.first < 1 or (self.last is not None and self.last < self.first):
            raise ParameterError("first, last", "1 <= first <= last", (self.first, self.last))

    @property
    def observations(self) -> str:
        """The range of observation numbers, for a person."""
        return f"{self.first:,} … {'' if self.last is None else format(self.last, ',')}".rstrip()

    def to_dict(self) -> dict[str, Any]:
        """Exact JSON form: rationals as strings."""
        return {
            "label": self.label,
            "first": self.first,
            "last": self.last,
            "epsilon": str(self.cost.epsilon),
            "delta": str(self.cost.delta),
            "mu_squared": str(self.cost.mu_squared),
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Event:
        """Undo :meth:`to_dict`."""
        cost = Cost(*(Fraction(fields[name]) for name in ("epsilon", "delta", "mu_squared")))
        return cls(fields["label"], cost, fields["first"], fields["last"])


@dataclass(frozen=True)
class Charge:
    """Total cost of every observation from ``first`` to ``last``."""

    first: int
    last: int | None
    cost: Cost


def charges(events: Iterable[Event]) -> list[Charge]:
    """Total per observation: cut where an event begins or ends, add up what overlaps."""
    events = list(events)
    cuts = {event.first for event in events}
    cuts |= {event.last + 1 for event in events if event.last is not None}
    edges: list[int | None] = [*sorted(cuts), None]
    totals = []
    for first, following in pairwise(edges):
        assert first is not None
        over = [e for e in events if e.first <= first and (e.last is None or first <= e.last)]
        if over:
            last = None if following is None else following - 1
            totals.append(Charge(first, last, sum((e.cost for e in over), Cost())))
    return totals


@dataclass
class Ledger:
    """What each observation has been charged; refuses to go beyond the promise.

    A refused spend changes nothing but closes the ledger, for ever: a program that goes on after a
    refusal cannot spend by accident.  Entries are never removed.

    Examples
    --------
    >>> ledger = Ledger(Guarantee(1.0))
    >>> ledger.spend(Event("threshold", Cost.pure(0.8), 1, 100))
    >>> ledger.spend(Event("again", Cost.pure(0.3), 1, 100))
    Traceback (most recent call last):
    rillet.errors.BudgetExceeded: again: would bring observations 1 … 100 to ε = 1.1, ...
    """

    guarantee: Guarantee
    _entries: list[Event] = field(default_factory=list)
    _refused: str | None = None

    @property
    def entries(self) -> Sequence[Event]:
        """Every spend, in order."""
        return tuple(self._entries)

    @property
    def closed(self) -> bool:
        """Whether a spend was refused."""
        return self._refused is not None

    def spend(self, *events: Event) -> None:
        """Charge ``events`` together, before anything is drawn for them: all of them or none."""
        if self._refused is not None:
            raise LedgerClosed(f"the ledger is closed: it refused a spend before ({self._refused})")
        for charge in charges([*self._entries, *events]):
            if not charge.cost.within(self.guarantee):
                label = ", ".join(event.label for event in events)
                where = Event("", charge.cost, charge.first, charge.last).observations
                self._refused = (
                    f"{label}: would bring observations {where} to {charge.cost}, "
                    f"beyond the promised ε = {self.guarantee.epsilon:g}, "
                    f"δ = {self.guarantee.delta:.3g}"
                )
                raise BudgetExceeded(
                    f"{self._refused}; nothing was drawn, and the ledger is closed"
                )
        self._entries.extend(events)

    def charges(self) -> list[Charge]:
        """Total of every observation that was charged."""
        return charges(self._entries)

    def worst(self) -> Charge | None:
        """The observations that paid most: the largest δ at the promised ε, then the largest ε."""

        def paid(charge: Charge) -> tuple[mpmath.mpf, Fraction, Fraction]:
            at_promise = charge.cost.delta_at(self.guarantee.epsilon)
            return (at_promise, charge.cost.epsilon, charge.cost.mu_squared)

        return max(self.charges(), key=paid, default=None)

    def to_json(self) -> str:
        """The whole ledger as JSON; :meth:`from_json` reads it back exactly."""
        promise = self.guarantee
        return json.dumps(
            {
                "format": "rillet-ledger-1",
                "promised": {
                    "epsilon": promise.epsilon,
                    "delta": promise.delta,
                    "protects": promise.protects,
                },
                "entries": [event.to_dict() for event in self._entries],
                "charged": [
                    {
                        "first": charge.first,
                        "last": charge.last,
                        "epsilon": round_up(charge.cost.epsilon),
                        "mu": root_up(charge.cost.mu_squared),
                        "delta_at_promised_epsilon": _float_up(
                            charge.cost.delta_at(promise.epsilon)
                        ),
                    }
                    for charge in self.charges()
                ],
                "refused": self._refused,
            },
            ensure_ascii=False,
            indent=2,
        )

    @classmethod
    def from_json(cls, text: str) -> Ledger:
        """Read what :meth:`to_json` wrote."""
        try:
            fields = json.loads(text)
            if fields["format"] != "rillet-ledger-1":
                raise KeyError
            entries = [Event.from_dict(entry) for entry in fields["entries"]]
            return cls(Guarantee(**fields["promised"]), entries, fields["refused"])
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise ParameterError(
                "ledger",
                'JSON with "format": "rillet-ledger-1", as to_json wrote it',
                "another text",
            ) from error

    def __str__(self) -> str:
        """For a person: the promise, each spend, and what the worst-off observation has paid."""
        lines = [f"promised  {self.guarantee}"]
        width = max((len(event.label) for event in self._entries), default=0)
        ranges = max((len(event.observations) for event in self._entries), default=0)
        lines += [
            f"spent     {e.label:<{width}}  observations {e.observations:<{ranges}}  {e.cost}"
            for e in self._entries
        ]
        worst = self.worst()
        if worst is None:
            lines.append("total     nothing yet")
        else:
            where = Event("", worst.cost, worst.first, worst.last).observations
            delta = float(worst.cost.delta_at(self.guarantee.epsilon))
            lines.append(
                f"total     worst observations {where}: {worst.cost}, which is "
                f"({self.guarantee.epsilon:g}, {delta:.3g})-private"
            )
        if self._refused is not None:
            lines.append(f"closed    refused {self._refused}")
        return "\n".join(lines)
