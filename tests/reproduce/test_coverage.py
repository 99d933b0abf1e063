"""Coverage of the truth: the shortcut says what streams say, and a few runs come out as asked."""

from __future__ import annotations

import numpy as np
import pytest

from rillet import Plan, Secret, TailHistogram
from rillet.reproduce.coverage import ASKED, covered, main, measure
from rillet.reproduce.simulator import draw_paths
from rillet.reproduce.streams import Work

LENGTH = 4000


@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize("tail", ["fitted", "bound"])
def test_margins_are_those_of_a_stream(tail, two_sided):
    """Of the same secret: what the shortcut takes for off is in the records."""
    values = np.random.default_rng(5).exponential(20.0, LENGTH)
    plan = Plan(
        epsilon=2.0,
        delta=2.0**-20,
        upper=1000.0,
        length=LENGTH,
        lag=500,
        missing="none",
        threshold=TailHistogram(two_sided=two_sided),
        tail=tail,
    )
    paths, layout = draw_paths(plan, values, 2, seed=3), plan.layout
    for run in range(2):
        releases = plan.open(secret=Secret.for_tests(3), key=(run,)).update_many(values)
        for t in (1000, 2000, LENGTH - 1, LENGTH):
            place = int(np.searchsorted(paths.ends, t)) + (t == LENGTH)
            below, above = layout.margin(paths.margins[run][place], t, layout.bounds).of(t)
            one = releases[t - layout.lag]
            assert (one.t, one.clipping_below) == (t, pytest.approx(below))
            assert one.clipping_above == pytest.approx(above)


def test_without_a_tail_the_truth_is_covered_all_the_more():
    values = np.random.default_rng(6).lognormal(2.0, 1.0, LENGTH)
    chances = []
    for tail in ("fitted", "bound"):
        plan = Plan(
            epsilon=1.0,
            delta=2.0**-20,
            upper=3000.0,
            length=LENGTH,
            missing="none",
            tail=tail,
            threshold=TailHistogram(two_sided=False),
        )
        found = covered(plan, values, 24, seed=1)
        assert np.all(found.width >= 1) and np.all(found.chance >= found.by_noise - 1e-12)
        chances.append(found.chance.mean(0))
    assert np.all(chances[1] >= 0.95)


def test_the_table_says_what_was_asked(capsys):
    main(["Weibull 2", "--runs", "4", "--seed", "1"])
    shown = capsys.readouterr().out
    assert "| Weibull 2 | 20,000 | 3000 |" in shown
    assert "93 %, width 1.3" in shown


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, one in ASKED.items() if one.least is not None])
def test_coverage_is_what_was_asked(name):
    """Two points and a twentieth of a width for chance: 200 runs."""
    asked = ASKED[name]
    _, (chance, _, width) = measure(asked.stream, Work(200, seed=1))
    assert asked.kept(chance + 0.02, width - 0.05)
