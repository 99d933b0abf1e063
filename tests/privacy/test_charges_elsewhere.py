"""The charges of whole plans, added up by dp-accounting from sensitivities and scales alone.

Nothing of :mod:`rillet.privacy` is used but the promise: what one unit moves is written down here
once more, for each strategy, and what it costs is composed numerically.
"""

import math
from functools import reduce

import pytest
from dp_accounting.pld import privacy_loss_distribution

import rillet

INTERVAL = 1e-4
PROMISE = {"epsilon": 1.0, "delta": 1e-6, "upper": 100.0}


def composed(parts):
    return reduce(lambda one, other: one.compose(other), parts)


def gaussian(mu):
    return privacy_loss_distribution.from_gaussian_mechanism(
        1 / mu, value_discretization_interval=INTERVAL
    )


def laplace(epsilon):
    return privacy_loss_distribution.from_laplace_mechanism(
        1 / epsilon, value_discretization_interval=INTERVAL
    )


def by_hand(plan, t):
    """What observation ``t`` of a plan pays: its look, and its leaf in the main mechanism."""
    layout = plan.layout
    scale, leaves = layout.main.scale, layout.main.leaves
    if t <= layout.lag:
        return None
    segment = layout.segment_at(t)
    steps, parts = segment.steps, []
    if isinstance(layout.main.strategy, rillet.BinaryTree):
        levels = math.floor(math.log2(leaves)) + 1
        parts.append(laplace(levels * steps / scale))
    else:
        coefficients, value = [1.0], 1.0
        for k in range(1, leaves):
            value *= 1 - 1 / (2 * k)
            coefficients.append(value)
        norm = math.sqrt(sum(value * value for value in coefficients))
        parts.append(gaussian(norm * steps / scale))
    if segment.look is not None:
        # 256 parts of an observation move from one knot to another.
        parts.append(gaussian(math.sqrt(2) * 256 / segment.look.scale))
    return composed(parts)


@pytest.mark.parametrize(
    ("plan", "least"),
    [
        (rillet.Plan.baseline(epsilon=1.0, upper=100.0, length=1000), 0.999),
        (
            rillet.Plan(
                **PROMISE,
                length=4000,
                threshold=rillet.FixedThreshold(),
                strategy=rillet.SquareRootToeplitz(),
                missing="none",
            ),
            0.97,
        ),
        (
            rillet.Plan(
                **PROMISE, length=4000, strategy=rillet.SquareRootToeplitz(), missing="none"
            ),
            0.97,
        ),
    ],
    ids=["tree", "square root", "square root with looks"],
)
def test_a_plan_pays_what_dp_accounting_adds_up(plan, least):
    """Within the promise, and most of it used; otherwise nothing would be checked."""
    epsilon, delta = plan.guarantee.epsilon, plan.guarantee.delta
    ends = [segment.last for segment in plan.layout.segments]
    for t in ends:
        paid = by_hand(plan, t)
        if paid is None:
            continue
        spent = paid.get_epsilon_for_delta(max(delta, 1e-12))
        assert least * epsilon <= spent <= epsilon * (1 + 2e-3), (t, spent)
