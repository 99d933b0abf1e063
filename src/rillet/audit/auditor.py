"""Audit a mechanism: every check, and what each of them says.

**Privacy.** For audits, on made-up streams with fresh secrets: no data of a user is read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from rillet.audit.black_box import BlackBox
from rillet.audit.exposure import Exposure, exposure, exposure_of_look, in_miniature
from rillet.audit.mechanisms import DELTA, EPSILON, OneLook, Secrets, Subject
from rillet.audit.replay import Diverged
from rillet.audit.trials import BATCH, Bound, Trials, epsilon_bound
from rillet.noise import Secret
from rillet.plan import Plan
from rillet.privacy import Guarantee
from rillet.statistic import Range, Setting
from rillet.testing import ContractViolation, check_threshold
from rillet.threshold import ExponentialQuantile, SmoothQuantile, TailHistogram, Threshold

__all__ = ["FULL", "QUICK", "Check", "Effort", "Report", "audit"]

#: The chance that any correct mechanism of an audit fails, or that any of its bounds is wrong.
FAMILY_ALPHA: Final = 0.01
#: Statistical statements on one mechanism: two bounds, and tests of its noise.
_STATEMENTS: Final = 8
#: Thresholds whose looks can be replayed.
_REPLAYED: Final = (TailHistogram, ExponentialQuantile, SmoothQuantile)
#: By count each key has a secret of its own, which takes its time: so many times fewer trials.
_LESS_BY_COUNT: Final = 8


@dataclass(frozen=True)
class Effort:
    """How much is tried: trials by law, keys at once, runs of the black box, places of units."""

    laplace: int
    gaussian: int
    keys: int
    runs: int
    learned_runs: int
    places: int


#: So many of Gaussian noise that 0.7 of ε = 1 is missed by chance less than once in a thousand.
FULL: Final = Effort(2**19, 6 * 2**23, BATCH, 2**13, 100, 16)
QUICK: Final = Effort(2**15, 2**16, 2**12, 2**11, 32, 4)


@dataclass(frozen=True)
class Check:
    """One check of one mechanism: whether it passed, and what it found."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Report:
    """What an audit found of one mechanism.

    ``claimed`` is the promised ε; ``exact`` what the most exposed unit that was found pays, by the
    proved formulas for what was measured left of the noise; ``bound`` what trials show with
    confidence; ``asked`` what they should show at least.
    """

    name: str
    about: str
    claimed: float
    delta: float
    exact: float | None
    bound: float | None
    black_box: float | None
    trials: int
    unit: str
    checks: tuple[Check, ...]
    seconds: float
    asked: float | None = None

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    @property
    def found(self) -> str:
        """What is wrong, in words."""
        return "; ".join(
            f"{check.name}: {check.detail}" for check in self.checks if not check.passed
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain fields, for JSON."""
        plain = {name: finite(value) for name, value in asdict(self).items()}
        return {**plain, "passed": self.passed}


def finite(value: Any) -> Any:
    """JSON knows no infinity."""
    return "infinite" if isinstance(value, float) and math.isinf(value) else value


class _Auditor:
    """The checks of one mechanism, one after the other."""

    def __init__(self, subject: Subject, effort: Effort, alpha: float) -> None:
        self.subject, self.effort, self.alpha = subject, effort, alpha / _STATEMENTS
        self.checks: list[Check] = []
        self.exposure: Exposure | None = None
        self.bounds: dict[str, Bound] = {}

    def note(self, name: str, passed: bool, detail: str) -> None:
        """Keep a check."""
        self.checks.append(Check(name, passed, detail))

    def run(self, made: Plan | OneLook | Secrets, *, until_found: bool) -> None:
        """All checks, or as many as it takes to find something."""
        for name, check in self._checks_of(made).items():
            try:
                check()
            except Diverged as error:
                self.note(name, False, str(error))
            except Exception as error:  # noqa: BLE001 - whatever a made-up value raises is a finding
                self.note(name, False, f"a made-up stream raises {type(error).__name__}")
            if until_found and not all(each.passed for each in self.checks):
                return

    def _checks_of(self, made: Plan | OneLook | Secrets) -> dict[str, Callable[[], None]]:
        if isinstance(made, Secrets):
            return {"secrets": lambda: self._secrets(made)}
        if isinstance(made, OneLook):
            return {"replay": lambda: self._exposed(lambda: _exposure_of(made))}
        small, secret = in_miniature(made), Secret.generate()
        places, threshold = self.effort.places, made.layout.threshold
        found: dict[str, Callable[[], None]] = {}
        if threshold.learns and not isinstance(threshold, _REPLAYED):
            found["contract"] = lambda: self._contract(threshold)
        else:
            found["replay"] = lambda: self._exposed(lambda: exposure(small, secret, places=places))
        if made.layout.main is not None:
            found["trials"] = lambda: self._tried(made)
        if not made.levels:
            found["black box"] = lambda: self._black_box(small)
        return found

    def _exposed(self, find: Callable[[], Exposure]) -> None:
        """Record and replay, and what the most exposed unit pays."""
        self.exposure = found = find()
        self.note("replay", True, f"{found.pairs} pairs of neighbours, the same control flow")
        detail = f"{found.unit}: ε = {found.epsilon:.4f} at δ = {found.promised.delta:.3g}"
        if found.cost.delta:
            detail = f"{found.unit}: δ = {float(found.cost.delta):.2g} at ε = "
            detail += f"{float(found.cost.epsilon):g}"
        self.note("exposure", found.within, f"{detail}; promised {found.promised.epsilon:g}")

    def _contract(self, threshold: Threshold) -> None:
        """The noise of somebody else's threshold is its own: its contract is checked instead."""
        try:
            check_threshold(threshold)
        except ContractViolation as violation:
            raise Diverged(str(violation)) from violation
        self.note("contract", True, f"{threshold.name} keeps the contract of a threshold")

    def _tried(self, plan: Plan) -> None:
        """Variance and independence of the noise; a lower bound on ε by likelihood ratios."""
        effort, asked = self.effort, self.subject.asked if self.effort is FULL else None
        trials = Trials(plan, len(plan.keys) if plan.layout.crowd else effort.keys)
        self._noise(trials)
        pure = trials.mechanism.strategy.law == "laplace"
        # Millions where much is to be seen; elsewhere they would show little more.
        count = effort.laplace if pure or self.subject.asked is None else effort.gaussian
        count *= self.subject.times
        if plan.layout.crowd:
            count //= _LESS_BY_COUNT
        bound = epsilon_bound(trials.scores(), count, plan.delta, self.alpha, normal=not pure)
        self._bounded("trials", bound, plan.epsilon, asked)

    def _noise(self, trials: Trials) -> None:
        """What is claimed of the noise fails if fresh draws contradict it a second time.

        Somebody audits every night: one false alarm in a hundred nights would be too many, and a
        real fault is still there in the next draws.
        """
        first = trials.noise_p_values(Secret.generate())
        suspects = {name for name, p_value in first.items() if p_value < self.alpha}
        again = trials.noise_p_values(Secret.generate()) if suspects else {}
        for name, p_value in first.items():
            detail = f"p-value {p_value:.2g}"
            if name in suspects:
                detail += f", and {again[name]:.2g} of other draws"
            failed = name in suspects and again[name] < self.alpha
            self.note(f"noise {name}", not failed, detail)

    def _black_box(self, plan: Plan) -> None:
        """A lower bound on ε from the public interface alone."""
        runs = self.effort.learned_runs if plan.layout.lag else self.effort.runs
        self._bounded("black box", BlackBox(plan).bound(runs, self.alpha), plan.epsilon)

    def _bounded(self, name: str, bound: Bound, claimed: float, asked: float | None = None) -> None:
        """A lower bound on ε must not be above what is claimed, nor below what it should see."""
        self.bounds[name] = bound
        words = f"ε ≥ {bound.epsilon:.3f} from {bound.trials:,} runs, {bound.hits[0]:,} hits with "
        words += f"the unit and {bound.hits[1]:,} without"
        seen = asked is None or bound.epsilon >= asked
        if not seen:
            words += f"; expected at least {asked:g}, so this audit sees too little"
        self.note(name, bound.epsilon <= claimed and seen, words)

    def _secrets(self, made: Secrets) -> None:
        """Fresh secrets must not repeat: with 31 bits among so many some would."""
        repeated = made.count - len({Secret.generate().to_bytes() for _ in range(made.count)})
        self.note("secrets", not repeated, f"{repeated} of {made.count:,} fresh secrets repeat")


def _exposure_of(look: OneLook) -> Exposure:
    return exposure_of_look(
        look.threshold,
        Range(0.0, look.upper),
        Guarantee(EPSILON, DELTA),
        Secret.generate(),
        setting=Setting(),
        observations=look.observations,
    )


def audit(
    subject: Subject,
    effort: Effort = FULL,
    *,
    alpha: float = FAMILY_ALPHA,
    until_found: bool = False,
) -> Report:
    """Audit one mechanism; ``alpha`` is the chance that a correct one fails, or a bound is wrong.

    ``until_found`` leaves out what comes after the first check that fails.

    Examples
    --------
    >>> from rillet.audit import SUBJECTS
    >>> report = audit(SUBJECTS["binary-tree"], QUICK)
    >>> report.passed, report.claimed >= report.bound > 0.5
    (True, True)
    """
    began, made = time.process_time(), subject.make()
    auditor = _Auditor(subject, effort, alpha)
    auditor.run(made, until_found=until_found)
    found, bounds = auditor.exposure, auditor.bounds
    trials, black_box = bounds.get("trials"), bounds.get("black box")
    plan = made if isinstance(made, Plan) else None
    return Report(
        name=subject.name,
        about=subject.about,
        claimed=EPSILON if plan is None else plan.epsilon,
        delta=DELTA if plan is None else plan.delta,
        exact=None if found is None else found.epsilon,
        bound=None if trials is None else trials.epsilon,
        black_box=None if black_box is None else black_box.epsilon,
        trials=0 if trials is None else trials.trials,
        unit="" if found is None else found.unit,
        checks=tuple(auditor.checks),
        seconds=time.process_time() - began,
        asked=subject.asked,
    )
