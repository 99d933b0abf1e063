"""Every mechanism passes a quick audit, every broken one is caught, and a user's own is audited."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction
from inspect import getattr_static
from typing import Any, ClassVar

import numpy as np
import pytest

import rillet
from rillet import BinaryTree, Plan
from rillet.audit import QUICK, SUBJECTS, Subject, audit
from rillet.audit.auditor import FAMILY_ALPHA
from rillet.audit.broken import BROKEN, catch
from rillet.audit.exposure import exposure, in_miniature
from rillet.audit.family import SECRETS, audit_one, caught_of
from rillet.audit.mechanisms import OneLook, Secrets
from rillet.audit.trials import Trials
from rillet.noise import Secret
from rillet.statistic import STATISTICS
from rillet.strategy import STRATEGIES, Strategy
from rillet.strategy.independent import IndependentDecoder, IndependentEncoder
from rillet.threshold import THRESHOLDS

#: So rarely does a correct mechanism fail here; each has a dozen statements.
ALPHA = 1e-6


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_mechanism_passes(name):
    report = audit(SUBJECTS[name], QUICK, alpha=ALPHA)
    assert report.passed, report.found
    made = SUBJECTS[name].make()
    if isinstance(made, Secrets):
        return
    assert report.exact is not None
    assert 0.85 < report.exact <= 1.0 + 1e-9
    if not isinstance(made, OneLook):
        assert report.bound is not None
        assert report.bound <= report.claimed


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.name)
def test_a_broken_mechanism_is_caught(broken):
    report = catch(broken, alpha=FAMILY_ALPHA / len(BROKEN) / SECRETS)
    assert not report.passed


def test_a_mistake_is_undone_afterwards():
    parts = {(owner, name) for broken in BROKEN for owner, name, _ in broken.replacements}
    kept = {part: getattr_static(*part) for part in parts}
    for broken in BROKEN:
        with broken.made():
            assert any(getattr_static(*part) is not own for part, own in kept.items())
        assert all(getattr_static(*part) is own for part, own in kept.items())


@pytest.mark.long
@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.name)
def test_a_broken_mechanism_is_caught_with_every_secret(broken):
    assert caught_of(broken, SECRETS).caught == SECRETS


def test_all_strategies_statistics_and_thresholds_are_audited():
    plans = [made for subject in SUBJECTS.values() if isinstance(made := subject.make(), Plan)]
    looks = [made for subject in SUBJECTS.values() if isinstance(made := subject.make(), OneLook)]
    assert {plan.strategy.name for plan in plans} >= set(STRATEGIES.own)
    thresholds = {look.threshold.name for look in looks} | {plan.threshold.name for plan in plans}
    assert thresholds >= set(THRESHOLDS.own)
    statistics = set()
    for plan in plans:
        parts = getattr(plan.statistic, "parts", (plan.statistic,))
        statistics |= {part.name for part in parts}
    assert statistics >= set(STATISTICS.own)


def test_the_chances_of_all_statements_together():
    """No report has more statistical statements than α is divided by."""
    from rillet.audit.auditor import _STATEMENTS

    report = audit(SUBJECTS["independent"], QUICK)
    statistical = [c for c in report.checks if c.name.split()[0] in ("noise", "trials", "black")]
    assert 6 <= len(statistical) <= _STATEMENTS
    assert FAMILY_ALPHA == 0.01


@pytest.mark.parametrize(("second", "passed"), [(0.5, True), (1e-9, False)])
def test_noise_fails_where_other_draws_contradict_it_too(monkeypatch, second, passed):
    """One test in a thousand that is below its α is no fault, and such an audit is no alarm."""
    drawn = iter((1e-4, second))
    monkeypatch.setattr(Trials, "noise_p_values", lambda *_: {"scale": next(drawn), "repeats": 1.0})
    report = audit(SUBJECTS["binary-tree"], QUICK)
    scale, repeats = (one for one in report.checks if one.name.startswith("noise"))
    assert (scale.passed, repeats.passed) == (passed, True)
    assert scale.detail == f"p-value 0.0001, and {second:.2g} of other draws"
    assert repeats.detail == "p-value 1"


# --- A user's own ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Blocks(Strategy):
    """Somebody's own strategy: independent noise, and a mistake if ``careless``."""

    careless: bool = False
    law: Any = "laplace"
    name: ClassVar[str] = "own-blocks"

    def sensitivity(self, leaves: int, steps: int) -> Fraction:
        return Fraction(steps, 2 if self.careless else 1)

    def weights(self, leaves: int, t: Any) -> Any:
        return t.astype(np.float64)

    def covariance(self, leaves: int, earlier: Any, later: Any) -> Any:
        return np.minimum(earlier, later).astype(np.float64)

    def encoder(self, leaves: int) -> Any:
        return IndependentEncoder()

    def decoder(self, leaves: int) -> Any:
        return IndependentDecoder()


def own_plan(careless: bool, length: int = 200) -> Plan:
    return Plan(epsilon=1.0, upper=10.0, length=length, lag=0, strategy=Blocks(careless=careless))


def test_a_users_own_strategy():
    right = audit_one(Subject("own", "", lambda: own_plan(careless=False)), quick=True)
    assert right.passed, right.reports[0].found
    assert right.reports[0].bound > 0.7
    wrong = audit_one(Subject("own", "", lambda: own_plan(careless=True)), quick=True)
    assert not wrong.passed
    (report,) = wrong.reports
    assert report.exact == pytest.approx(2.0)
    assert report.bound > 1.5  # seen by trials as well
    assert "exposure" in report.found
    json.dumps(wrong.to_dict(), allow_nan=False)


def test_a_long_plan_is_enumerated_in_miniature():
    plan = Plan(epsilon=1.0, delta=1e-6, upper=3000.0, length=150_000)
    small = in_miniature(plan)
    assert (small.strategy, small.threshold) == (plan.strategy, plan.threshold)
    assert small.layout.main.leaves == 16
    assert small.lag == plan.lag
    tiny = rillet.Plan(epsilon=1.0, upper=3.0, length=9, lag=0, strategy=BinaryTree())
    assert in_miniature(tiny) is tiny


def test_each_unit_counts_where_it_is_worst():
    """The first observation of a tree of eight is in four nodes, the last in one."""
    plan = Plan(epsilon=1.0, upper=3.0, length=8, lag=0, strategy=BinaryTree(), missing="none")
    found = exposure(plan, Secret.generate())
    assert found.epsilon == 1.0
    assert found.unit.startswith("observation 1,")
    assert found.within
