"""Numbers of a layout that no release shows at once: what noise it states, when secrets move on."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from rillet import Plan, Secret, TailHistogram
from rillet.statistic import Range

SECRET = Secret.for_tests(11)


@pytest.mark.parametrize(
    ("keys", "every"),
    [
        (0, 16_384),
        (1, 1_024),
        (1_024, 1_024),
        (1_025, 512),
        (4_096, 256),
        (10_000, 64),
        (16_384, 64),
        (1_000_000, 64),
    ],
)
def test_when_secrets_move_on_is_pinned(keys, every):
    """Every release after the first ratchet step depends on it, and so does what a store holds."""
    layout = replace(Plan(epsilon=1.0, upper=100.0, length=100_000).layout, keys=keys)
    assert layout.ratchet_every == every
    assert layout.mechanism["ratchet_every"] == every
    assert [layout.ratchet_steps(leaf) for leaf in (0, every - 1, every, 3 * every)] == [1, 1, 2, 4]


UPPERS = (10.0, 40.0, 5.0, 20.0)


def releases(delta, uppers, removed=0.0, removed_each=0.0, growth=1.5, **more):
    """Releases of a stream that is told which ranges to use, and what clipping removed."""
    judge = TailHistogram.judge

    def told(self, bounds, looks, ranges, outlook):
        found = judge(self, bounds, looks, ranges, outlook)
        upper = uppers[(len(looks) - 1) % len(uppers)]
        learned = Range(bounds.lower, upper)
        return replace(found, range=learned, removed=removed, removed_each=removed_each)

    words = {"epsilon": 1.0, "upper": 100.0, "length": 600, "lag": 50, **more}
    plan = Plan(delta=delta, threshold=TailHistogram(growth=growth), **words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TailHistogram, "judge", told)
        stream = plan.open(secret=SECRET)
        return plan.layout, stream, stream.update_many(np.full(600, 3.0))


@pytest.mark.parametrize("missing", ["none", "skip"])
@pytest.mark.parametrize("delta", [0.0, 2.0**-20])
def test_stated_noise_of_a_range_that_changes(delta, missing):
    """The warm-up's noise stays what it was; a later node counts as much as its range was worth.

    Where values may be missing, a lattice unit of the second column is worth a part of the middle.
    """
    # With 3 as the only value a good many of 600 may be taken to be missing, or none.
    layout, _, found = releases(delta, UPPERS, missing=missing)
    std = dict(zip(found.t.tolist(), found.sum_noise_std.tolist(), strict=True))
    complete = dict(zip(found.t.tolist(), (found.count == found.t).tolist(), strict=True))
    main = layout.main
    ends = [segment.last for segment in layout.segments]
    assert len(ends) >= 3
    # The warm-up's own total is one Laplace draw for each column.
    steps, count = layout.warm_up_leaf.cut(layout.warm_up.steps)
    of_values = (UPPERS[0] / steps) ** 2 * layout.warm_up.node_variance
    of_counts = (UPPERS[0] / 2 / count) ** 2 * layout.warm_up.node_variance if count else 0.0
    warm_up = {True: of_values, False: of_values + of_counts}
    assert std[50] == pytest.approx(warm_up[complete[50]] ** 0.5)
    checked = 0
    for t in (51, 60, ends[0], ends[0] + 1, ends[1], ends[1] + 1, 600):
        number = next(number for number, end in enumerate(ends) if t <= end)
        cuts = [layout.leaf.cut(segment.steps) for segment in layout.segments]
        columns = [[UPPERS[at % 4] / cuts[at][0] for at in range(number + 1)]]
        if not complete[t]:
            columns.append([UPPERS[at % 4] / 2 / cuts[at][1] for at in range(number + 1)])
        # The noisy prefix sums that a release is made of, and how often each is in it.
        leaves = [layout.complete_leaves(end) for end in ends[:number]]
        leaves.append(layout.complete_leaves(t))
        variance = warm_up[complete[t]]
        for worth in columns:
            factors = [a - b for a, b in pairwise(worth)] + [worth[-1]]
            for first, one in zip(leaves, factors, strict=True):
                for second, other in zip(leaves, factors, strict=True):
                    low, high = np.array([min(first, second)]), np.array([max(first, second)])
                    shared = main.strategy.covariance(main.leaves, low, high)[0]
                    variance += one * other * shared * main.node_variance
        assert std[t] == pytest.approx(variance**0.5, rel=1e-5)
        checked += number > 0
    assert checked >= 4
    # The warm-up is a good part of it: were it counted with a later range, it would show.
    assert std[50] > 0.05 * std[ends[0] + 1]


@pytest.mark.parametrize("missing", ["none", "skip"])
@pytest.mark.parametrize("backfill", [False, True])
def test_what_clipping_removed_is_added_back_from_the_warm_up_on(backfill, missing):
    # One look: the mass stays what the warm-up found.
    words = {"growth": None, "backfill": backfill, "missing": missing}
    _, plain_stream, plain = releases(2.0**-20, (20.0,), **words)
    layout, stream, found = releases(2.0**-20, (20.0,), 30.0, 0.25, **words)
    assert len(layout.segments) == 1
    gained = dict(zip(found.t.tolist(), (found.sum - plain.sum).tolist(), strict=True))
    assert gained[50] == pytest.approx(30.0)
    # Of as many values as are known to have been there.
    counted = dict(zip(found.t.tolist(), found.count.tolist(), strict=True))
    for t in (51, 100, 600):
        assert gained[t] == pytest.approx(30.0 + 0.25 * (counted[t] - counted[50]))
    if backfill:
        early = stream.backfill.sum - plain_stream.backfill.sum
        assert early == pytest.approx(30.0 * stream.backfill.t / 50)
