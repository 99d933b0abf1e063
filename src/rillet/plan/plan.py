"""The plan: public parameters in, a promise and a way to keep it out.

**Privacy.** A plan holds public parameters only; nothing here ever sees an observation.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np

from rillet.amendments import Amendment, declared_amendments, roster_of
from rillet.crowd import Crowd
from rillet.errors import ParameterError, StateError
from rillet.fleet import Fleet
from rillet.gather.clock import Clock
from rillet.gather.gate import Gate
from rillet.gather.grid import UNKNOWN_LENGTH_CAP, check_range
from rillet.layout import Layout
from rillet.levels import (
    Groups,
    Level,
    Tree,
    declared_groups,
    declared_keys,
    declared_levels,
    with_shares,
)
from rillet.noise import KeyPart, Secret
from rillet.options import (
    Option,
    check_names,
    converted,
    option,
    options_of,
    schema,
    settle,
    table_of,
    within,
)
from rillet.paper.recommended import RECOMMENDED, tuned
from rillet.plan.calibrate import layout_of
from rillet.plan.choose import Choice, choose
from rillet.plan.describe import describe
from rillet.privacy import ADD_ONE, REPLACE_ONE, UNITS, Guarantee, Person
from rillet.release import Key
from rillet.state.base import Kept, MemoryStore
from rillet.state.uses import Guard, guard_of_state
from rillet.statistic import OPEN_END, STATISTICS, Mean, Memory, Range, Setting, Several, Statistic
from rillet.strategy import STRATEGIES, BinaryTree, Strategy
from rillet.streams import Stream, Streams
from rillet.threshold import THRESHOLDS, FixedThreshold, SmoothQuantile, Threshold
from rillet.threshold.tail import LEAST_GROWTH, MOST_GROWTH
from rillet.times import duration, moment, per_period, show_duration, show_moment

if TYPE_CHECKING:
    from rillet.state.store import SqliteStore

Auto: TypeAlias = Literal["auto"]
Frame = TypeVar("Frame")

FORMAT = "rillet-plan-3"
#: Ways to make a plan of a table: everything chosen, or one of the named plans.
MECHANISMS = ("auto", "paper", "baseline")
_KINDS = {
    "threshold": THRESHOLDS,
    "strategy": STRATEGIES,
    "statistic": STATISTICS,
    "unit": UNITS,
}
#: By the clock a stream without a known end may run this long, and at most 2^32 ticks.
_UNKNOWN_DURATION = duration("73000d")
_MOST_TICKS = 2**32
#: A window is kept, release by release.
LONGEST_WINDOW = 2**16
#: Options that a plan's JSON has only where they say something.
_LEFT_OUT: dict[str, Any] = {
    "keys": (),
    "levels": (),
    "groups": None,
    "amendments": (),
    "shared_threshold": False,
    "start": None,
    "zone": None,
    "late": "enter",
    "early": "hold",
    "grace": None,
    "unit": None,
    "tail": "fitted",
    "sane": False,
}


#: What the paper's parameters may be fitted to; it is not a part of the plan.
_GUESS = Option(
    "public_guess",
    float,
    about="fit the parameters to values of this scale above the lower bound: their mean if the "
    "tail is exponential. It must be public",
)


@schema
class Plan:
    """What is promised and how it is kept, from public numbers alone.

    ``"auto"`` is replaced by what was chosen when the plan is made, so that a plan is complete: the
    same JSON is the same plan for ever.

    {options}

    Examples
    --------
    >>> plan = Plan.baseline(epsilon=1.0, upper=3000.0, length=1000)
    >>> stream = plan.open()
    >>> release = stream.update(12.5)
    >>> release.t, release.clip_upper
    (1, 3000.0)
    """

    epsilon: float = option("the promise ε for each unit", metavar="E")
    delta: float = option(
        "the promise δ, such as 2^-20; 0 rules out what needs it", default=0.0, metavar="D"
    )
    unit: Person | None = option(
        "what the promise protects: none, a single observation; by the clock also a person, of "
        "whom a bounded number of observations is used",
        default=None,
        kinds=UNITS,
    )
    lower: float | None = option(
        "a public lower bound; values below it count as the bound; none: values of either sign, of "
        "any size",
        default=0.0,
        metavar="A",
    )
    upper: float | None = option(
        "a public bound that values are clipped to; none: values of any size up to 1.8e19, where "
        "the range is learned",
        default=None,
        metavar="B",
    )
    length: int | str | None = option(
        "the number of observations, which the noise is scaled for, or by the clock a duration "
        'such as "365d"; none: no end known',
        metavar="N",
        ge=1,
        le=UNKNOWN_LENGTH_CAP,
    )
    every: int | str = option(
        "the number of observations between releases, which is public, or a period of the clock "
        'such as "1h", and then how many there are in it is protected',
        default=1,
        metavar="C",
        ge=1,
    )
    start: Any = option(
        'by the clock, when it starts: "2026-01-01T00:00Z", a datetime, or seconds since 1970',
        default=None,
        metavar="WHEN",
        converter=lambda given: given,
    )
    zone: str | None = option(
        "by the clock, the zone of times that have none, such as Europe/Berlin; without one they "
        "are no times",
        default=None,
        metavar="ZONE",
    )
    late: Literal["enter", "drop"] = option(
        "by the clock, of an observation whose tick is closed: enter puts it into the tick that is "
        "open when it arrives, drop leaves it out",
        default="enter",
        metavar="RULE",
    )
    early: Literal["hold", "drop"] = option(
        "by the clock, of an observation whose tick is not open yet: hold keeps it until it is, "
        "drop leaves it out",
        default="hold",
        metavar="RULE",
    )
    grace: str | None = option(
        "by the clock, how long after its end a tick stays open in a live run, such as 5m; none: "
        "not at all",
        default=None,
        metavar="TIME",
        converter=lambda given: None if given is None else str(given),
    )
    missing: Literal["skip", "none"] | float = option(
        "what becomes of a value that is no number: skip leaves it out (at most 15 % more noise by "
        "count), a number stands in for it; none declares that there is none, and the middle of "
        "the range stands in",
        default="skip",
        metavar="RULE",
    )
    lag: int | Auto = option(
        "the number of observations, by the clock of ticks, that teach the threshold before the "
        "first release",
        default="auto",
        metavar="M",
        ge=0,
    )
    statistic: Statistic = option(
        "what is released; a list of statistics shares the promise",
        default=Mean(),
        kinds=STATISTICS,
        several=Several,
    )
    threshold: Threshold | Auto = option(
        "how the clipping range is chosen", default="auto", kinds=THRESHOLDS
    )
    strategy: Strategy | Auto = option(
        "how running totals are released", default="auto", kinds=STRATEGIES
    )
    threshold_share: float | Auto = option(
        "the share of ε that learning the threshold takes from the first lag observations",
        default="auto",
        metavar="S",
    )
    refresh: float | Auto | None = option(
        "the factor by which the stream grows before the range is learned again; none: never",
        default="auto",
        metavar="G",
        ge=LEAST_GROWTH,
        le=MOST_GROWTH,
    )
    backfill: bool = option(
        "also release the first lag observations, once the threshold is known", default=False
    )
    keys: tuple[Key, ...] = option(
        "declared keys, a stream for each; length, lag and the promise hold for each of them",
        default=(),
        converter=declared_keys,
    )
    levels: tuple[Level, ...] = option(
        "totals of several keys, by the clock: names from the total of all keys down, each for "
        "keys that begin with one more of the same parts, as in all,region; or with its share of "
        "the budget, as in all=0.1,region=0.07",
        default=(),
        metavar="NAMES",
        converter=declared_levels,
    )
    shared_threshold: bool = option(
        "all keys share a clipping range, learned from the first lag observations of any; each "
        "observation then has the threshold's share less to spend",
        default=False,
    )
    groups: Groups | None = option(
        "groups of keys that each share a clipping range of their own, by the clock with "
        "shared_threshold: how many leading parts of a key name its group, or each group with its "
        "keys",
        default=None,
        metavar="PARTS",
        converter=declared_groups,
    )
    amendments: tuple[Amendment, ...] = option(
        "what was changed in a running state since it began: keys that were added, retired or "
        "renamed, and another ε, as rillet amend writes them",
        default=(),
        converter=declared_amendments,
    )
    tail: Literal["fitted", "bound"] = option(
        "what intervals say of values beyond the clipping range: fitted assumes the tail that the "
        "counts of a learned range fit best, bound assumes none and goes up to the bounds",
        default="fitted",
        metavar="RULE",
    )
    sane: bool = option(
        "mend numbers that no data could have, and say so in the record: a mean within the "
        "clipping range, a sum of non-negative values that does not fall, counts not below 0",
        default=False,
    )
    _choice: Choice = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        settle(self)
        self.guarantee  # noqa: B018 - checks epsilon and delta
        check_range(*self._declared_bounds)
        if self.tail == "bound" and self.bounds.is_open and self.statistic.clips:
            expected = "fitted where an end is not declared, since intervals would have none"
            raise ParameterError("tail", expected, self.tail, "declare lower and upper")
        self._check_clock()
        self._check_unit()
        if isinstance(self.missing, float) and not math.isfinite(self.missing):
            raise ParameterError("missing", "skip, none or a finite number", self.missing)
        if self.leaf_every > self.last_t:
            raise ParameterError("every", f"at most length ({self.last_t:,})", self.every)
        if self.memory.forgets:
            expected = "false where the statistic has a window or a half-life"
            if self.backfill:
                raise ParameterError("backfill", expected, True)
            if self.shared_threshold and self.clock is None:
                raise ParameterError("shared_threshold", f"{expected}, by count", True)
        self._check_sharing()
        self._check_levels()
        choice = choose(self)
        object.__setattr__(self, "_choice", choice)
        if self.shared_threshold and not choice.lag:
            raise ParameterError(
                "shared_threshold", "a threshold that is learned", choice.threshold
            )
        for name in ("lag", "threshold", "strategy", "threshold_share", "refresh"):
            object.__setattr__(self, name, getattr(choice, name))
        if self.levels:
            self._settle_levels(choice)
        self._check_amendments(choice)
        # Refuse now what cannot be calibrated or does not fit, not at the first value.
        self.layout.declared_range  # noqa: B018
        self.layout.charges()

    def _check_clock(self) -> None:
        """Spell what belongs to the clock in one way, and refuse what does not fit."""
        set_option = object.__setattr__
        if isinstance(self.every, int):
            if isinstance(self.length, str):
                raise ParameterError(
                    "length", "a number of observations", self.length, 'or give every="1h"'
                )
            for name in ("start", "zone", "late", "early", "grace"):
                if getattr(self, name) != _LEFT_OUT[name]:
                    raise ParameterError(
                        name, "none in a run by count", getattr(self, name), 'or give every="1h"'
                    )
            return
        every = duration(self.every, "every")
        set_option(self, "every", show_duration(every))
        if self.start is None:
            raise ParameterError(
                "start",
                "when the clock starts, such as 2026-01-01T00:00Z",
                None,
                "it must be public: taken from the data it would reveal them",
            )
        set_option(self, "start", show_moment(moment(self.start, self.zone)))
        if isinstance(self.length, int):
            raise ParameterError(
                "length",
                'a duration such as "365d", or none',
                self.length,
                "by the clock how many observations there are is protected",
            )
        if self.length is not None:
            length = duration(self.length, "length")
            if length % every:
                raise ParameterError("length", f"a multiple of every ({self.every})", self.length)
            set_option(self, "length", show_duration(length))
        if self.grace is not None:
            set_option(self, "grace", show_duration(duration(self.grace, "grace")))
        if self.backfill:
            raise ParameterError("backfill", "false by the clock", True)

    def _check_unit(self) -> None:
        """A person is protected by the clock only, and counted in whole ticks."""
        if self.unit is None:
            return
        if isinstance(self.every, int):
            raise ParameterError(
                "unit", "none in a run by count", self.unit.name, 'it needs a clock: every="1h"'
            )
        with within("unit"):
            unit = replace(self.unit, apart=self.unit.apart or self.every)
            for name in ("apart", "within"):
                given = getattr(unit, name)
                if given is not None and duration(given) % duration(self.every):
                    raise ParameterError(name, f"a multiple of every ({self.every})", given)
        object.__setattr__(self, "unit", unit)

    def _check_sharing(self) -> None:
        if self.groups is not None and (
            not self.shared_threshold or self.clock is None or self.levels
        ):
            raise ParameterError(
                "groups",
                "none but by the clock with shared_threshold, and without totals, which need one "
                "range",
                self.groups if isinstance(self.groups, int) else "some",
            )
        if not self.shared_threshold:
            return
        if not self.keys:
            raise ParameterError("shared_threshold", "False where no keys are declared", True)
        if self.backfill:
            raise ParameterError(
                "backfill", "False with a shared threshold, which releases every observation", True
            )
        if self.clock is None and self.refresh not in ("auto", None):
            expected = "None with a shared threshold by count"
            raise ParameterError("refresh", expected, self.refresh)

    def _check_levels(self) -> None:
        """Totals need keys that release together."""
        if not self.levels:
            return
        if not self.keys:
            raise ParameterError("levels", "none where no keys are declared", self._level_names)
        if self.statistic.one_lattice:
            expected = "a single mean, sum, count or share, where keys have totals"
            raise ParameterError("statistic", expected, self.statistic.name)
        if self.sane:
            raise ParameterError(
                "sane", "false with totals by level: mended keys would not add up to them", True
            )
        if self.clock is None:
            raise ParameterError(
                "levels",
                "none in a run by count, where keys do not release at the same time",
                self._level_names,
                'give every="1h"',
            )
        self.tree  # noqa: B018 - checks that totals and keys fit

    def _settle_levels(self, choice: Choice) -> None:
        """Totals need one clipping range; settle their shares."""
        if choice.lag and not self.shared_threshold:
            raise ParameterError(
                "levels",
                "one clipping range for all keys, or totals would not be the sums of their keys",
                f"a range learned for each key ({choice.threshold.name})",
                "give shared_threshold=True, or lag=0 to clip at the bounds",
            )
        if choice.lag and self.unit is not None:
            raise ParameterError(
                "levels",
                "a declared range where persons are protected",
                f"a range that is learned ({choice.threshold.name})",
                "give lag=0 to clip at the bounds",
            )
        object.__setattr__(self, "levels", with_shares(self.levels, choice.strategy.law))

    def _check_amendments(self, choice: Choice) -> None:
        """Refuse what cannot change in a running state of this plan."""
        changed = self.amendments
        if not changed:
            return
        if [each.after for each in changed] != sorted(each.after for each in changed):
            raise ParameterError("amendments", "in the order of their ticks", "another order")
        alone = "begin a state of its own for it, in another folder"
        if not self.keys and any(each.add or each.retire or each.rename for each in changed):
            raise ParameterError("amendments", "none of keys, since none are declared", "some")
        if self.unit is not None and any(each.add or each.epsilon for each in changed):
            raise ParameterError(
                "amendments",
                "the same keys and ε where persons are protected: what one of them pays would add "
                "up over both",
                "a change",
                alone,
            )
        if self.levels and any(each.add or each.rename for each in changed):
            raise ParameterError("amendments", "the same keys where they have totals", "a change")
        if self.groups is not None and any(each.rename for each in changed):
            raise ParameterError("amendments", "the same names where keys have groups", "others")
        if any(each.epsilon is not None for each in changed):
            if self.clock is None:
                raise ParameterError(
                    "amendments",
                    "the same ε in a run by count, where each key is at another observation",
                    "another",
                    alone,
                )
            if choice.lag and self.keys and not self.shared_threshold:
                raise ParameterError(
                    "amendments",
                    "the same ε where each key learns a range of its own",
                    "another",
                    alone,
                )
            for each in changed:
                if each.epsilon is not None:
                    Guarantee(each.epsilon, self.delta)
        self.tree  # noqa: B018 - checks the names

    @property
    def _level_names(self) -> list[str]:
        return [level.name for level in self.levels]

    # --- named plans -----------------------------------------------------------------------------

    @classmethod
    def paper(cls, **options: Any) -> Plan:
        """Mechanism 1 of Perrier, Asghar, Kaafar (NDSS 2019), corrected (docs/errata.md).

        Takes the options of a plan except ``strategy`` and ``threshold``, and those of
        :class:`rillet.SmoothQuantile`: ``quantile`` is the paper's p, ``rank_factor`` λ,
        ``multiplier`` r, ``beta_lt`` the probability that the threshold falls below the quantile;
        ``threshold_share`` is ε₁/ε.  What is not given, or ``"auto"``, has the value that the
        paper's section VI recommends, and the exact calibration, for which its criteria ask for a
        shorter lag than with its own constants.

        With a ``public_guess`` (the scale of an exponential tail above ``lower``: its mean, or the
        median over ln 2) these parameters are those of the paper's optimiser, and where the bound
        predicts no gain the plan is the plain binary tree from the first observation.
        """
        check_names(options_for("paper"), options)
        given = _not_auto(options)
        guess = given.pop("public_guess", None)
        if isinstance(given.get("every"), str):
            raise ParameterError(
                "every",
                "a number of observations",
                given["every"],
                "the paper's threshold does not protect how many there are",
            )
        local = {name: given.pop(name) for name in options_of(SmoothQuantile) if name in given}
        threshold = SmoothQuantile(**{**RECOMMENDED, **local})
        for name in (*RECOMMENDED, "threshold_share"):
            if guess is not None and (name in local or name in given):
                raise ParameterError(name, "none beside public_guess, which it is fitted to", name)
        given = {"missing": "none", **given}
        plan = cls(**given, threshold=threshold, strategy=BinaryTree())
        return plan if guess is None else plan._fitted(float(guess))

    def _fitted(self, guess: float) -> Plan:
        """The paper's plan with its optimiser's parameters, or its fallback."""
        threshold, lag = self.threshold, self.layout.lag
        if not isinstance(threshold, SmoothQuantile):  # it fell back already
            return self
        length = None if self.length is None else self.last_t
        found = tuned(threshold, self.guarantee, self.bounds, length, lag, guess)
        if found.gain:
            fitted = replace(
                threshold,
                quantile=found.parameters.quantile,
                rank_factor=found.parameters.rank_factor,
                multiplier=found.parameters.multiplier,
                beta_lt=found.parameters.shares.low,
            )
            share = found.parameters.threshold_share
            return replace(self, threshold=fitted, threshold_share=share, refresh="auto")
        facts = options_for("baseline").keys() - {"strategy", "lag"}
        plain = Plan.baseline(**{name: getattr(self, name) for name in facts})
        reason = (
            f"for a lag of {lag:,} observations and values of scale {guess:g} the paper's bound "
            "predicts no gain over the plain binary tree, which releases from the first "
            "observation on."
        )
        object.__setattr__(plain, "_choice", replace(plain._choice, reasons=(reason,)))
        return plain

    @classmethod
    def baseline(cls, **options: Any) -> Plan:
        """The plain binary tree with noise scaled to the bound: what the paper improves on.

        Takes the options of a plan that need no learning; ``strategy`` may be another one, and is
        another one for a half-life, which a tree cannot answer.  ``missing`` is ``"none"`` by
        default, as in the paper: a missing value counts as the middle of the range.
        """
        check_names(options_for("baseline"), options)
        fades = getattr(options.get("statistic"), "half_life", None) is not None
        known = {"strategy": "auto" if fades else BinaryTree(), "missing": "none", **options}
        return cls(**{**known, "threshold": FixedThreshold()})

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Plan:
        """Make a plan from a table as in TOML, or from the texts of the command line.

        ``mechanism`` is ``"auto"``, ``"paper"`` or ``"baseline"``; numbers may be texts such as
        ``"2^-20"``, kinds texts such as ``"binary-tree:law=gaussian"``; no length is no end known.

        Examples
        --------
        >>> Plan.from_table(
        ...     {
        ...         "epsilon": 1.0,
        ...         "delta": "2^-20",
        ...         "upper": 10,
        ...         "strategy": {"kind": "honaker-tree", "law": "gaussian"},
        ...     }
        ... ).strategy
        HonakerTree(law='gaussian')
        """
        given = {"length": None, **_not_auto(table)}
        mechanism = given.pop("mechanism", "auto")
        if mechanism not in MECHANISMS:
            raise ParameterError("mechanism", f"one of {', '.join(MECHANISMS)}", mechanism)
        known = options_for(mechanism)
        check_names(known, given)
        make = cls if mechanism == "auto" else getattr(cls, mechanism)
        plan: Plan = make(**converted(known, given, texts=True))
        return plan

    # --- what it promises ------------------------------------------------------------------------

    @property
    def guarantee(self) -> Guarantee:
        """The promise, for each unit."""
        protects = REPLACE_ONE if isinstance(self.every, int) else ADD_ONE
        if self.unit is not None:
            protects = self.unit.protects
        return Guarantee(self.epsilon, self.delta, protects)

    @property
    def bounds(self) -> Range:
        """The public bounds, open where none is declared; else those of what is counted."""
        return Range(*self._declared_bounds) if self.statistic.clips else Range(0.0, 1.0)

    @property
    def _declared_bounds(self) -> tuple[float, float]:
        return (
            -OPEN_END if self.lower is None else self.lower,
            OPEN_END if self.upper is None else self.upper,
        )

    @cached_property
    def clock(self) -> Clock | None:
        """The clock, in a run by the clock."""
        if isinstance(self.every, int):
            return None
        return Clock(
            start=moment(self.start, self.zone),
            every=duration(self.every, "every"),
            zone=self.zone,
            late=self.late,
            early=self.early,
            grace=0 if self.grace is None else duration(self.grace, "grace"),
        )

    def setting(self, law: str) -> Setting:
        """What is public, for statistics and thresholds."""
        return Setting(self.clock is not None, self.missing == "skip", law)

    @cached_property
    def memory(self) -> Memory:
        """What the statistic looks back on, in leaves."""
        return self.statistic.memory(self._leaves)

    def _leaves(self, name: str, given: int | str) -> float:
        """A window or half-life in leaves; a window has a whole number of them."""
        name = f"statistic.{name}"
        if self.clock is None:
            if isinstance(given, str):
                raise ParameterError(name, "a number of observations", given, 'or give every="1h"')
            each, of, span = self.leaf_every, f"every ({self.leaf_every:,})", given
        else:
            if not isinstance(given, str):
                raise ParameterError(name, 'a duration such as "7d", by the clock', given)
            each, of, span = self.clock.every, f"every ({self.every})", duration(given, name)
        if name.endswith("window"):
            if span % each:
                raise ParameterError(name, f"a multiple of {of}", given)
            if span // each > LONGEST_WINDOW:
                raise ParameterError(
                    name,
                    f"at most {LONGEST_WINDOW:,} release intervals",
                    given,
                    "give a larger every",
                )
        elif span < each:
            raise ParameterError(name, f"at least {of}", given, "values fade between releases")
        return span // each if span % each == 0 else span / each

    @property
    def last_t(self) -> int:
        """The last ``t``: ``length`` in observations or ticks; a public cap if none is known."""
        if self.clock is None:
            assert not isinstance(self.length, str)
            return UNKNOWN_LENGTH_CAP if self.length is None else self.length
        if self.length is None:
            return min(_MOST_TICKS, _UNKNOWN_DURATION // self.clock.every)
        return duration(str(self.length)) // self.clock.every

    @property
    def leaf_every(self) -> int:
        """How many observations make a leaf; by the clock a tick does."""
        return self.every if isinstance(self.every, int) else 1

    @cached_property
    def tree(self) -> Tree:
        """The keys, those that were added included, and the totals that they belong to."""
        return Tree(roster_of(self.keys or ((),), self.amendments), self.levels, self.groups)

    @property
    def keys_that_share(self) -> int:
        """How many keys share a clipping range at least, where they do: those of a group."""
        return int(np.bincount(self.tree.group_of).min())

    @property
    def keys_now(self) -> tuple[Key, ...]:
        """The declared keys after all amendments."""
        return self.tree.roster.live if self.keys else ()

    @property
    def guarantee_now(self) -> Guarantee:
        """The promise for observations that are still to come, after all amendments."""
        return self.layout.later[-1][1] if self.layout.later else self.guarantee

    @cached_property
    def layout(self) -> Layout:
        """The calibrated mechanisms."""
        return layout_of(self)

    def unit_noise_std(self, t: Any, *, rate: float | str | None = None) -> Any:
        """Noise std of the statistic at ``t``, per unit of clipping range; also of an array.

        As if one range were in force from the first release on.  By count, times its width, this is
        then ``release.noise_std`` of a mean or a sum, up to rounding.  Where the range was learned
        again it is not: what was released before has the noise of the range of then.  A count, and
        so a histogram, has the noise of :meth:`expected_error`, whatever the width.  By the clock
        values are taken to lie at the lower end, and a sum's range to be the public one, since its
        noise depends on where the range lies.  ``rate`` is as in :meth:`expected_error`.
        """
        unit = self.clock is None or self.bounds.is_open
        clipping = Range(0.0, 1.0) if unit else self.bounds
        return self.expected_noise(t, clipping, rate=rate)["noise_std"] / clipping.width

    def expected_error(
        self,
        t: Any,
        clip_upper: float | None = None,
        *,
        rate: float | str | None = None,
        mean: float | None = None,
    ) -> Any:
        """Standard deviation of the noise in the statistic at ``t``, in the statistic's unit.

        A learned range is not known in advance: give a guess of its upper end as ``clip_upper``;
        without one the public bound stands in, which is the worst case.  A plan without a bound
        needs the guess, and without a lower one takes it for both ends: the error is a multiple of
        it (:meth:`unit_noise_std`).

        By the clock ``t`` is a tick, and ``rate`` a public guess of how many observations each has,
        or a text such as ``"400/h"``; only a mean needs one.  ``mean`` is a guess of their mean;
        without one they are taken to lie at the lower end, where counting costs most.  NaN where
        the count would be lost in noise, so that there is no mean yet.

        Examples
        --------
        >>> plan = Plan(
        ...     epsilon=1, delta=1e-6, upper=11, every="1h", start="2026-01-01T00:00Z", length="60d"
        ... )
        >>> week = 7 * 24
        >>> print(f"± {1.96 * plan.expected_error(week, clip_upper=8, rate='400/h'):.2g} kW")
        ± 0.0037 kW
        """
        lower, upper = self.bounds.lower, self.bounds.upper
        if clip_upper is None:
            declared = self.layout.declared_range
            clip_upper = upper if declared is None else declared.upper
            if self.bounds.is_open:
                raise ParameterError(
                    "clip_upper",
                    "a guess of the upper end of the clipping range",
                    None,
                    "the plan has no bound that could stand in for it",
                )
        if lower == -OPEN_END:
            lower = min(-clip_upper, clip_upper - abs(clip_upper))
        clipping = Range(*check_range(lower, clip_upper))
        return self.expected_noise(t, clipping, rate=rate, mean=mean)["noise_std"]

    def expected_noise(
        self,
        t: Any,
        clipping: Range,
        *,
        rate: float | str | None = None,
        mean: float | None = None,
    ) -> dict[str, Any]:
        """Noise std of each number of a release, by its name in the record: ``sum_noise_std``.

        As :meth:`expected_error`, in a given clipping range.
        """
        if self.clock is None and rate is not None:
            raise ParameterError("rate", "none in a run by count", rate)
        in_tick = None
        if self.clock is not None and rate is not None:
            in_tick = per_period(rate, self.clock.every)
        found = self.layout.expected_noise(t, clipping, in_tick, mean)
        if self.clock is not None and rate is None and np.isnan(found["noise_std"]).any():
            expected = 'a public guess of how many observations come, such as "400/h"'
            raise ParameterError(
                "rate", expected, None, f"the noise of a {self.statistic.name} depends on it"
            )
        return found

    def describe(self) -> str:
        """What this plan does and why, for a person."""
        return describe(self.layout, self._choice)

    # --- running it ------------------------------------------------------------------------------

    def open(
        self,
        *,
        secret: Secret | None = None,
        key: Key | str | int = (),
        run: str = "",
        uses: str | os.PathLike[str] | None = None,
    ) -> Stream:
        """Start a stream.

        Without a ``secret`` a fresh one comes from the operating system.  With the same secret,
        plan, key and run the noise is the same: the same data give the same releases again, and
        other data are refused.  ``uses`` is a file that remembers what the secret was used for;
        without it only this process does.  A secret of ``Secret.for_tests`` is not guarded.
        """
        if self.shared_threshold:
            raise ParameterError(
                "shared_threshold", "open_many() for keys that share one", "open()"
            )
        if self.unit is not None and len(self.keys) > 1:
            raise ParameterError(
                "unit", "open_many() for a person, who is protected in all keys together", "open()"
            )
        if self.levels:
            raise ParameterError("levels", "open_many() for keys that have totals", "open()")
        own = key if isinstance(key, tuple) else (key,)
        if self.keys and own not in self.keys:
            raise ParameterError("key", "one of the plan's declared keys", key)
        self._check_kept(secret)
        master = Secret.generate() if secret is None else secret
        tree = Tree((own,))
        store = self.memory_store(tree, master, run, self.keys.index(own) if self.keys else 0)
        guard = self.guard(secret, (own,), run, uses)
        return Streams(self.layout, tree, store, guard).stream(own)

    def open_many(
        self,
        *,
        secret: Secret | None = None,
        run: str = "",
        uses: str | os.PathLike[str] | None = None,
    ) -> Streams:
        """Start a stream for each declared key, each with its own secret derived from ``secret``.

        Without declared keys there is one stream, with the key ``()``.  ``secret`` and ``uses``
        are as in :meth:`open`.
        """
        self._check_kept(secret)
        master = Secret.generate() if secret is None else secret
        guard = self.guard(secret, self.tree.keys, run, uses)
        store = self.memory_store(self.tree, master, run)
        return Streams(self.layout, self.tree, store, guard)

    def memory_store(self, tree: Tree, master: Secret, run: str, offset: int = 0) -> MemoryStore:
        """Keys at their beginning, in memory: all, or some in a row, from number ``offset`` on."""
        gate, together = self._new_gate(master, run), self.stream_secret(master, (), run)
        if self.layout.fleet:
            fleet = Fleet.begin(self.layout, tree, together, offset=offset)
            return MemoryStore((), None, gate, fleet)
        secrets = (self.stream_secret(master, key, run) for key in tree.keys)
        shared = together if self.shared_threshold else None
        if self.layout.crowd and len(tree.keys) > 1:
            return MemoryStore((), shared, gate, crowd=Crowd(self.layout, tree.keys, secrets))
        return MemoryStore(secrets, shared, gate)

    def release(
        self,
        frame: Frame,
        value: str | None = None,
        *,
        key: str | Sequence[str] | None = None,
        at: str | None = None,
        person: str | None = None,
        until: object = None,
    ) -> Frame:
        """Release a whole data frame at once: pandas, Polars or Arrow in, and the same out.

        One row of the result is one record, with the names of every sink.

        **Privacy.** The plan's promise, for this call.  It opens fresh streams, so that each call
        spends anew: released twice, the same rows pay twice.  Rows of keys that the plan does not
        declare are left out, and nothing tells how many there were.

        Parameters
        ----------
        frame
            A data frame, or one column of it.
        value
            The column with the values; not needed where there is only one.
        key
            The column with the keys, or one column for each part of a key.
        at, person
            The columns with the time of each row, for a plan by the clock, and with the person.
            Rows may be in any order of time.
        until
            By the clock, when the last tick ends: by default when the plan does.

        Examples
        --------
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"minutes": [12.5, 80.0, None, 33.1]})
        >>> plan = Plan(epsilon=1.0, upper=1440.0, length=4, every=2)
        >>> plan.release(frame, "minutes")["t"].to_list()
        [2, 4]
        """
        from rillet.plan.frames import release_frame

        found: Frame = release_frame(self, frame, value, key, at, person, until)
        return found

    def open_folder(
        self,
        folder: str | os.PathLike[str],
        *,
        secret: Secret | None = None,
        key_file: str | os.PathLike[str] | None = None,
        run: str | None = None,
        source: str | None = None,
        restored: bool = False,
        only_look: bool = False,
        uses: str | os.PathLike[str] | None = None,
    ) -> Streams:
        """The streams of this plan, kept in a folder: killed at any instant, they go on.

        A ``secret`` that is given serves this state alone, and ``uses`` remembers that.  See
        :func:`rillet.state.folder.open_folder` for the other parameters.
        """
        store = self._open_store(
            folder,
            secret=secret,
            key_file=key_file,
            run=run,
            source=source,
            restored=restored,
            only_look=only_look,
            guard=self.guard(secret, self.tree.keys, run or "", uses),
        )
        return Streams(self.layout, self.tree, store)

    def _open_store(
        self,
        folder: str | os.PathLike[str],
        *,
        key_file: str | os.PathLike[str] | None = None,
        run: str | None = None,
        **more: Any,
    ) -> SqliteStore:
        from rillet.state.folder import open_folder

        return open_folder(
            Path(folder),
            self.layout,
            self.tree,
            self.to_json(),
            lambda master, key: self.stream_secret(master, key, run or ""),
            lambda master: self._new_gate(master, run or ""),
            key_file=None if key_file is None else Path(key_file),
            run=run,
            amendments=self.amendments,
            **more,
        )

    @classmethod
    def kept_in(cls, folder: str | os.PathLike[str]) -> Plan:
        """The plan of the state in a folder, with all its amendments."""
        path = Path(folder) / "plan.json"
        try:
            return cls.from_json(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8"
            raise StateError(f"{path}: expected the plan of a state, found: {reason}") from None

    def amend_folder(
        self,
        folder: str | os.PathLike[str],
        *,
        add: Sequence[Key | str | int] = (),
        retire: Sequence[Key | str | int] = (),
        rename: Mapping[Any, Any] | Sequence[tuple[Any, Any]] = (),
        epsilon: float | None = None,
        key_file: str | os.PathLike[str] | None = None,
    ) -> Plan:
        """Change a state that is not running, and return its plan from now on.

        Keys that are added begin now, with the charges of every other key; the range that keys
        share is theirs as well.  Retired ones take and release nothing any more, and keep their
        number; a name is used once.  By the clock ``epsilon`` holds for observations of ticks that
        have not begun: from the second one after those that are closed.

        **Privacy.** What was promised for observations of earlier ticks is kept.  Every change is
        sealed in the state, each bound to those before it.
        """
        from rillet.state.folder import amend_folder

        if not (Path(folder) / "state.db").exists():
            raise StateError(f"{folder}: expected the folder of a state, found none")
        found = [self]

        def amended(ticks: int) -> tuple[Layout, Tree, tuple[Amendment, ...], str]:
            change = Amendment(ticks, tuple(add), tuple(retire), rename, epsilon)  # type: ignore[arg-type]
            plan = found[0] = replace(self, amendments=(*self.amendments, change))
            return plan.layout, plan.tree, plan.amendments, plan.to_json()

        amend_folder(lambda: self._open_store(folder, key_file=key_file), Path(folder), amended)
        return found[0]

    def resume(
        self,
        blob: bytes,
        *,
        secret: Secret,
        run: str = "",
        uses: str | os.PathLike[str] | None = None,
    ) -> Stream:
        """Continue from :meth:`rillet.Stream.snapshot`, as if the stream had never stopped.

        ``secret`` is the one given to :meth:`open`, or ``stream.secret`` as it was at the snapshot;
        ``uses`` is as there.  Two streams that go on from one snapshot take the same observations,
        or one of them is refused.
        """
        from rillet.state.snapshot import open_state

        def own(key: Key) -> Secret:
            return self.stream_secret(secret, key, run)

        key, state, guarded = open_state(self.layout, blob, secret, own)
        if self.clock is None:
            guard = guard_of_state(guarded, key, state.t, uses)
            store = MemoryStore.of({0: Kept(state)}, state.t)
        else:
            guard, store = None, MemoryStore.of({0: Kept(state)}, 0, state.t)
        return Streams(self.layout, Tree((key,)), store, guard).stream(key)

    def _check_kept(self, secret: Secret | None) -> None:
        """By the clock a secret of one's own serves a folder, where it is known what it saw."""
        if self.clock is not None and secret is not None and not secret.for_tests_only:
            raise ParameterError(
                "secret",
                "none by the clock, unless the stream is kept in a folder",
                "one of your own",
                "use open_folder(), or rillet run --state DIR",
            )

    def guard(
        self,
        secret: Secret | None = None,
        keys: tuple[Key, ...] | None = None,
        run: str = "",
        uses: str | os.PathLike[str] | None = None,
    ) -> Guard | None:
        """Guard of a secret that others may have; a fresh one, and one of tests, need none."""
        if secret is None or secret.for_tests_only:
            if uses is not None:
                raise ParameterError("uses", "a secret for releases, whose uses are kept", "none")
            return None
        key = secret.keystream("uses", self.layout.digest, run).integer(0, 128)
        return Guard(key.to_bytes(16, "big"), keys or self.keys or ((),), uses)

    def stream_secret(self, secret: Secret, key: tuple[KeyPart, ...], run: str) -> Secret:
        """The secret of one stream, derived from the master secret by mechanism, run and key."""
        if secret.scope:
            raise StateError(
                "secret: this one belongs to one stream and cannot open another; "
                "use Secret.generate(), or resume the stream from its snapshot"
            )
        named = type(key) is tuple and all(type(part) in (str, int) for part in key)
        if not named:
            raise ParameterError("key", 'a tuple of text and whole numbers, as ("north", 7)', key)
        return secret.derive("stream", self.layout.digest, run, *key)

    def _new_gate(self, secret: Secret, run: str) -> Gate | None:
        """The gate of streams that begin; its key opens nothing that noise is drawn from."""
        if self.layout.gate is None:
            return None
        key = secret.keystream("gate", self.layout.digest, run).integer(0, 256)
        return Gate(self.layout.gate, key.to_bytes(32, "big"))

    # --- JSON ------------------------------------------------------------------------------------

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the options, by which plans are told apart."""
        return hashlib.sha256(
            json.dumps(self._table(for_digest=True), sort_keys=True).encode()
        ).digest()

    def _table(self, *, for_digest: bool = False) -> dict[str, Any]:
        """The options; empty keys are left out."""
        table: dict[str, Any] = {"format": FORMAT}
        for name in options_of(Plan):
            value = getattr(self, name)
            if name in _KINDS and value is not None:
                value = table_of(value, _KINDS[name], "" if for_digest else name)
            elif name in ("levels", "amendments"):
                value = tuple(each.table() for each in value)
            if value != _LEFT_OUT.get(name, ...):
                table[name] = value
        return table

    def to_json(self, indent: int | None = 2) -> str:
        """The complete plan; :meth:`from_json` reads it back.

        A strategy, threshold or statistic of your own must be registered by an entry point.
        Without an ``indent`` many keys are written ten times as fast.
        """
        return json.dumps(self._table(), indent=indent)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan that :meth:`to_json` wrote."""
        try:
            table = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ParameterError("plan", "JSON", f"text that is not ({error})") from None
        if not isinstance(table, dict) or table.pop("format", None) != FORMAT:
            raise ParameterError("plan", f'a JSON object with "format": "{FORMAT}"', "another one")
        return cls(**table)


def options_for(mechanism: str) -> dict[str, Option]:
    """The options that a plan of this mechanism takes."""
    plan = options_of(Plan)
    if mechanism == "paper":
        guess = {"public_guess": _GUESS}
        return {**_but(plan, "threshold", "strategy"), **options_of(SmoothQuantile), **guess}
    if mechanism == "baseline":
        return _but(plan, "threshold", "threshold_share", "refresh", "backfill", "shared_threshold")
    return plan


def _not_auto(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in options.items()
        if not (isinstance(value, str) and value == "auto")
    }


def _but(options: Mapping[str, Option], *names: str) -> dict[str, Option]:
    return {name: each for name, each in options.items() if name not in names}
