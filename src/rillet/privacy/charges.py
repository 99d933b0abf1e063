"""What each observation is charged: fixed when a plan is made, before anything is drawn.

**Privacy.** Public numbers only.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from fractions import Fraction
from typing import Any, Final

import mpmath

from rillet.errors import BudgetExceeded, ParameterError
from rillet.privacy.costs import Cost, float_up, root_up, round_up
from rillet.privacy.guarantee import Guarantee

_FORMAT: Final = "rillet-charges-1"


def _span(first: int, last: int | None) -> str:
    """A range of observation numbers, for a person."""
    return f"{first:,} … {'' if last is None else format(last, ',')}".rstrip()


@dataclass(frozen=True)
class Event:
    """Something that is charged: what happens, what it costs, and which observations pay.

    Observations ``first`` to ``last`` pay, both included; ``last=None`` has no end.  They are
    charged when observation ``due`` arrives (``first`` by default), before anything is drawn.
    """

    label: str
    cost: Cost
    first: int
    last: int | None
    due: int | None = None

    def __post_init__(self) -> None:
        if self.due is None:
            object.__setattr__(self, "due", self.first)
        numbers: list[Any] = [1, self.first, self.due, *([] if self.last is None else [self.last])]
        if any(type(n) is not int for n in numbers) or numbers != sorted(numbers):
            raise ParameterError("first, last", "1 <= first <= due <= last", numbers[1:])

    def to_dict(self) -> dict[str, Any]:
        """Exact JSON form: rationals as strings."""
        public = {"label": self.label, "first": self.first, "last": self.last, "due": self.due}
        return public | {part.name: str(getattr(self.cost, part.name)) for part in fields(Cost)}

    @classmethod
    def from_dict(cls, entry: dict[str, Any]) -> Event:
        """Undo :meth:`to_dict`."""
        cost = Cost(*(Fraction(entry[part.name]) for part in fields(Cost)))
        return cls(entry["label"], cost, entry["first"], entry["last"], entry["due"])


@dataclass(frozen=True)
class Charge:
    """What every observation from ``first`` to ``last`` pays in all."""

    first: int
    last: int | None
    cost: Cost


@dataclass(frozen=True)
class Charges:
    """What each observation pays for all events together: never more than was promised.

    Raises
    ------
    BudgetExceeded
        When it is made of events of which some observation would pay more than the promise.

    Examples
    --------
    >>> threshold = Event("threshold", Cost.pure(0.8), 1, 100)
    >>> Charges(Guarantee(1.0), (threshold,)).worst()
    Charge(first=1, last=100, cost=Cost(epsilon=Fraction(...), ...))
    >>> Charges(Guarantee(1.0), (threshold, Event("again", Cost.pure(0.3), 1, 100)))
    Traceback (most recent call last):
    rillet.errors.BudgetExceeded: expected at most ε = 1, δ = 0 ..., found ε = 1.1 for ...
    """

    guarantee: Guarantee
    events: tuple[Event, ...] = ()
    #: What the numbers of events count: observations, or what holds them, such as ticks.
    unit: str = "observations"
    #: Other promises that were made later, each with the first of the observations it holds for.
    later: tuple[tuple[int, Guarantee], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", tuple(self.events))
        for charge in self.totals():
            promise = self.promised(charge.first)
            if not charge.cost.within(promise):
                paid = ", ".join(event.label for event in self._over(charge.first))
                raise BudgetExceeded(
                    f"expected at most ε = {promise.epsilon:g}, δ = {promise.delta:.3g} for each "
                    f"observation, as promised, found {charge.cost} for {self.unit} "
                    f"{_span(charge.first, charge.last)} ({paid}); nothing was drawn"
                )

    def promised(self, t: int) -> Guarantee:
        """What was promised for observation ``t``."""
        return [self.guarantee, *(other for first, other in self.later if first <= t)][-1]

    def _over(self, t: int) -> list[Event]:
        """The events that observation ``t`` pays for."""
        return [e for e in self.events if e.first <= t and (e.last is None or t <= e.last)]

    def totals(self) -> list[Charge]:
        """Total per observation: cut where an event begins or ends, add up what overlaps."""
        cuts = {event.first for event in self.events}
        cuts |= {event.last + 1 for event in self.events if event.last is not None}
        edges = sorted(cuts | {first for first, _ in self.later})
        totals = []
        for first, following in zip(edges, [*edges[1:], None], strict=False):
            if over := self._over(first):
                last = None if following is None else following - 1
                totals.append(Charge(first, last, sum((e.cost for e in over), Cost())))
        return totals

    def worst(self) -> Charge | None:
        """The observations that pay most: the largest δ at the promised ε, then the largest ε."""

        def paid(charge: Charge) -> tuple[mpmath.mpf, Fraction, Fraction]:
            at_promise = charge.cost.delta_at(self.promised(charge.first).epsilon)
            return (at_promise, charge.cost.epsilon, charge.cost.mu_squared)

        return max(self.totals(), key=paid, default=None)

    def after(self, t: int) -> Charges:
        """What the first ``t`` observations have been charged: those to come pay when they come."""
        due = tuple(
            replace(event, last=t if event.last is None else min(event.last, t))
            for event in self.events
            if event.due is not None and event.due <= t
        )
        return replace(self, events=due, later=tuple(one for one in self.later if one[0] <= t))

    def to_json(self) -> str:
        """JSON; :meth:`from_json` reads it back exactly."""
        charged = [
            {
                "first": charge.first,
                "last": charge.last,
                "epsilon": round_up(charge.cost.epsilon),
                "mu": root_up(charge.cost.mu_squared),
                "delta_at_promised_epsilon": float_up(
                    charge.cost.delta_at(self.promised(charge.first).epsilon)
                ),
            }
            for charge in self.totals()
        ]
        content = {
            "format": _FORMAT,
            "promised": asdict(self.guarantee),
            **(
                {"later": [{"first": first, **asdict(other)} for first, other in self.later]}
                if self.later
                else {}
            ),
            "unit": self.unit,
            "events": [event.to_dict() for event in self.events],
            "charged": charged,
        }
        return json.dumps(content, ensure_ascii=False, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Charges:
        """Read what :meth:`to_json` wrote."""
        try:
            content = json.loads(text)
            if content["format"] != _FORMAT:
                raise KeyError
            events = tuple(Event.from_dict(entry) for entry in content["events"])
            later = [dict(each) for each in content.get("later", ())]
            promises = tuple((each.pop("first"), Guarantee(**each)) for each in later)
            return cls(Guarantee(**content["promised"]), events, content["unit"], promises)
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            expected = f'JSON with "format": "{_FORMAT}", as to_json wrote it'
            raise ParameterError("charges", expected, "another text") from error

    def __str__(self) -> str:
        """For a person: the promise, each event, and what the worst-off observation pays."""
        rows = [(e.label, _span(e.first, e.last), str(e.cost)) for e in self.events]
        width, spans = (max((len(row[i]) for row in rows), default=0) for i in (0, 1))
        lines = [f"promised  {self.guarantee}"]
        lines += [f"promised  {other}, from {self.unit} {at:,} on" for at, other in self.later]
        lines += [f"charged   {a:<{width}}  {self.unit} {b:<{spans}}  {c}" for a, b, c in rows]
        worst = self.worst()
        total = "nothing yet"
        if worst is not None:
            epsilon = self.promised(worst.first).epsilon
            delta = float(worst.cost.delta_at(epsilon))
            total = f"worst {self.unit} {_span(worst.first, worst.last)}: {worst.cost}, which is "
            total += f"({epsilon:g}, {delta:.3g})-private"
        return "\n".join([*lines, f"total     {total}"])
