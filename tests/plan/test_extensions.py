"""A strategy, a threshold and statistics from another package, through every door of a plan."""

from __future__ import annotations

import itertools
import json
import sys
import textwrap
import tomllib
from dataclasses import dataclass
from fractions import Fraction
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest

from rillet import BinaryTree, FixedThreshold, Mean, ParameterError, Plan, Secret
from rillet.gather.grid import Grid
from rillet.statistic import Range, Setting, Statistic
from rillet.testing import check, check_strategy, check_threshold
from rillet.testing.statistics import normal_scale_p_value

PACKAGE = '''
"""What a user of rillet might write: one file, and the entry points below."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np

from rillet.noise import LAWS, LatticeNoise, LawName
from rillet.options import option
from rillet.privacy import Cost, laplace_scale
from rillet.statistic import Range, Statistic
from rillet.strategy import Decoder, Encoder, Strategy
from rillet.threshold import Finding, Look, Threshold
from rillet.threshold.base import clip_to_bounds, learned_range


@dataclass(frozen=True)
class Share(Statistic):
    """The share of values above a limit."""

    above: float
    name: ClassVar[str] = "beyond"
    clips: ClassVar[bool] = False

    def contribute(self, raw_values, lattice):
        return np.where(raw_values > self.above, lattice.steps, 0)

    def spans(self, clipping):
        return (Range(0.0, 1.0),)

    def numbers(self, totals):
        return {
            "value": lambda: totals.sums[0] / totals.count,
            "noise_std": lambda: totals.std() / totals.count,
            "count": lambda: totals.count * 1.0,
        }


@dataclass(frozen=True)
class Bins(Statistic):
    """How many values lie in each of the bins between declared limits."""

    limits: tuple[float, ...] = option("the limits between the bins")
    name: ClassVar[str] = "bins"
    clips: ClassVar[bool] = False

    @property
    def width(self):
        return len(self.limits) + 1

    @property
    def names(self):
        return tuple(f"below {limit:g}" for limit in self.limits) + ("above",)

    def contribute(self, raw_values, lattice):
        bins = np.searchsorted(self.limits, raw_values, side="right")
        return np.eye(self.width, dtype=np.int64)[bins] * lattice.steps

    def moves(self, steps):
        # The value leaves one bin and enters another.
        return ((steps, steps) + (0,) * (self.width - 2),)

    def spans(self, clipping):
        return (Range(0.0, 1.0),) * self.width

    def numbers(self, totals):
        return {
            "value": lambda: np.stack(totals.sums, axis=-1).ravel(),
            "noise_std": lambda: np.stack(
                [totals.std(reading) for reading in range(self.width)], axis=-1
            ).ravel(),
        }


@dataclass(frozen=True)
class Blocks(Strategy):
    """Sums of whole blocks, and single leaves within a block."""

    law: LawName = "laplace"
    size: int = option("leaves in a block", default=8, ge=2)
    name: ClassVar[str] = "blocks"

    def sensitivity(self, leaves, steps):
        nodes = 2 if leaves >= self.size else 1
        return Fraction(nodes * steps ** (1 if self.law == "laplace" else 2))

    def weights(self, leaves, t):
        return (t // self.size + t % self.size).astype(np.float64)

    def covariance(self, leaves, earlier, later):
        same = earlier // self.size == later // self.size
        return earlier // self.size + np.where(same, earlier % self.size, 0).astype(np.float64)

    def encoder(self, leaves):
        return BlockEncoder(self.size)

    def decoder(self, leaves):
        return BlockDecoder(self.size)


@dataclass(frozen=True)
class BlockEncoder(Encoder):
    size: int

    def start(self):
        return (np.zeros(1, np.int64),)

    def encode(self, state, first, exact_leaves):
        exact_nodes, exact_block = np.array(exact_leaves), int(state[0][0])
        for index, leaf in enumerate(exact_leaves.tolist()):
            exact_block += leaf
            if (first + index) % self.size == 0:
                exact_nodes[index], exact_block = exact_block, 0
        return (np.array([exact_block]),), exact_nodes


@dataclass(frozen=True)
class BlockDecoder(Decoder):
    size: int

    def start(self):
        return (np.zeros(2, np.int64),)

    def decode(self, state, first, noisy):
        blocks, block = state[0].tolist()
        prefix = np.empty(len(noisy), np.int64)
        for index, node in enumerate(noisy.tolist()):
            if (first + index) % self.size == 0:
                blocks, block = blocks + node, 0
            else:
                block += node
            prefix[index] = blocks + block
        return (np.array([blocks, block]),), prefix


@dataclass(frozen=True)
class Octaves(Threshold):
    """The first power of two below the bound above which few values lie, by noisy counts."""

    share: float = option("the share of values above", default=0.05, gt=0, le=0.5)
    name: ClassVar[str] = "octaves"
    hides_count: ClassVar[bool] = True

    def cost(self, budget, delta):
        return Cost.pure(budget)

    def measure(self, raw_values, bounds, budget, delta, secret, setting):
        raw_heights = clip_to_bounds(raw_values, bounds) - bounds.lower
        with np.errstate(divide="ignore"):
            octaves = np.clip(-np.floor(np.log2(raw_heights / bounds.width)), 1, 32)
        exact_counts = np.bincount(octaves.astype(np.int64), minlength=33)[1:]
        scale = laplace_scale(Fraction(2), budget)
        noise = LatticeNoise(LAWS["laplace"], scale, secret, ("threshold", self.name))
        noisy = exact_counts + noise.draw(0, 32)
        return Look(max(1, int(noisy.sum())), noisy=noisy, scale=scale)

    def judge(self, bounds, looks, ranges, outlook):
        above = np.cumsum(looks[-1].noisy)
        few = np.flatnonzero(above <= self.share * looks[-1].observations)
        octave = int(few[-1]) + 1 if len(few) else 0
        return Finding(learned_range(bounds, math.ldexp(bounds.width, -octave)))
'''
ENTRIES = """
[rillet.statistics]
beyond = {module}:Share
bins = {module}:Bins
[rillet.strategies]
blocks = {module}:Blocks
not-one = {module}:Share
[rillet.thresholds]
octaves = {module}:Octaves
"""
MODULE = "streams_of_our_own"
COMMON: dict[str, Any] = {"epsilon": 1.0, "length": 2000}
SECRET = Secret.for_tests(7)


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """An installed package, as far as Python can tell."""
    folder = tmp_path_factory.mktemp("site")
    info = folder / "ours-1.0.dist-info"
    info.mkdir()
    (folder / f"{MODULE}.py").write_text(PACKAGE, encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ours\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES.format(module=MODULE))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield __import__(MODULE)
    del sys.modules[MODULE]


def plans(ours: ModuleType) -> dict[str, Plan]:
    return {
        "share": Plan(**COMMON, statistic=ours.Share(above=20.0)),
        "bins": Plan(**COMMON, delta=1e-6, statistic=ours.Bins(limits=(10.0, 30.0))),
        "blocks": Plan.baseline(**COMMON, upper=100.0, strategy=ours.Blocks(size=16)),
        "octaves": Plan(**COMMON, upper=1000.0, threshold=ours.Octaves(), lag=400),
    }


@pytest.mark.parametrize("name", ["share", "bins"])
def test_what_does_not_clip_shows_no_clipping_range(ours, name):
    stream = plans(ours)[name].open(secret=Secret.for_tests(1))
    block, one = stream.update_many(np.arange(10.0)), stream.update(10.0)
    assert np.isnan(block.clip_lower).all() and np.isnan(block.clip_upper).all()
    assert all(np.isnan([row["clip_lower"], row["clip_upper"]]).all() for row in one.rows)
    assert "clipped" not in repr(one)
    assert all(record["clip_upper"] is None for record in one)


TABLES = {
    "share": """
        epsilon = 1.0
        length = 2000
        statistic = "beyond:above=20"
        """,
    "bins": """
        epsilon = 1.0
        delta = 1e-6
        length = 2000
        [statistic]
        kind = "bins"
        limits = [10, 30]
        """,
    "blocks": """
        mechanism = "baseline"
        epsilon = 1.0
        length = 2000
        upper = 100
        [strategy]
        kind = "blocks"
        size = 16
        """,
    "octaves": """
        epsilon = 1.0
        length = 2000
        upper = 1000
        lag = 400
        threshold.kind = "octaves"
        """,
}


@pytest.mark.parametrize("name", TABLES)
def test_every_door_leads_to_the_same_plan(ours, name):
    plan = plans(ours)[name]
    raw_values = np.random.default_rng(3).exponential(20.0, 2000)
    expected = plan.open(secret=SECRET).update_many(raw_values)
    assert len(expected) > 1000
    by_toml = Plan.from_table(tomllib.loads(textwrap.dedent(TABLES[name])))
    for again in (Plan.from_json(plan.to_json()), by_toml):
        assert again == plan
        assert again.digest == plan.digest
        found = again.open(secret=SECRET).update_many(raw_values)
        for column in ("t", "name", "value", "noise_std"):
            assert np.array_equal(getattr(found, column), getattr(expected, column))
    stream = plan.open(secret=SECRET)  # one at a time gives the same
    one_by_one = [stream.update(value) for value in raw_values[:450].tolist()]
    released = [release for release in one_by_one if release is not None]
    assert released == list(expected[: len(released)])


def test_what_they_release_is_near_the_truth(ours):
    raw_values = np.random.default_rng(4).exponential(20.0, 2000)
    made = {
        name: plan.open(secret=SECRET).update_many(raw_values)[-1]
        for name, plan in plans(ours).items()
    }
    assert made["share"].value == pytest.approx(np.mean(raw_values > 20), abs=0.2)
    rows = made["bins"]
    exact = np.histogram(raw_values, [-np.inf, 10, 30, np.inf])[0]
    for name, count in zip(("below 10", "below 30", "above"), exact, strict=True):
        assert abs(rows[name].value - count) < 6 * rows[name].noise_std
    assert 50 < made["octaves"].clip_upper < 200
    assert made["blocks"].value == pytest.approx(raw_values.mean(), abs=30)


def test_they_keep_the_contracts(ours):
    for law in ("laplace", "gaussian"):
        check_strategy(ours.Blocks(law=law, size=3))
    check_threshold(ours.Octaves(), budget=Fraction(2))


# --- Sensitivity and noise -----------------------------------------------------------------------


def statistics(ours: ModuleType) -> list[Statistic]:
    return [ours.Share(above=2.0), ours.Bins(limits=(1.0, 2.0, 3.0))]


@pytest.mark.parametrize("missing", [True, False], ids=["missing", "none"])
@pytest.mark.parametrize("index", range(2), ids=["share", "bins"])
def test_a_replaced_observation_moves_a_leaf_by_no_more_than_is_said(ours, index, missing):
    leaf = statistics(ours)[index].leaf(Setting(missing=missing))
    lattice = Grid(0.0, 4.0, 8)
    raw_values = np.array([-np.inf, -1.0, 0.0, 0.7, 1.0, 1.5, 2.0, 2.5, 3.0, 9.0, np.inf, np.nan])
    vectors = leaf.contribute(raw_values, lattice).reshape(len(raw_values), leaf.width)
    assert vectors.min() >= 0
    assert vectors.max() == lattice.steps
    assert vectors[-1].any() == (not missing and leaf.width > 1)  # what is missing adds nothing
    moves = [np.array(move) for move in leaf.moves(lattice.steps)]
    largest = 0
    for one, other in itertools.product(vectors, repeat=2):
        moved = np.sort(np.abs(one - other))[::-1]
        # In every norm: some movement that is said moves the columns, in some order, by more.
        assert any((np.sort(move)[::-1] >= moved).all() for move in moves)
        largest = max(largest, int(moved.sum()))
    assert largest == max(int(move.sum()) for move in moves)  # and no more is said than needed


@pytest.mark.parametrize("name", ["share", "bins"])
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_nodes_of_small_streams_move_by_what_is_charged(ours, name, delta):
    """All streams of four observations from a few values, and all their neighbours."""
    statistic = {"share": ours.Share(above=2.0), "bins": ours.Bins(limits=(1.0, 3.0))}[name]
    plan = Plan(
        epsilon=1.0,
        delta=delta,
        length=4,
        statistic=statistic,
        strategy=(BinaryTree("gaussian") if delta else BinaryTree()),
    )
    main = plan.layout.main
    assert main is not None
    lattice, encoder = Grid(0.0, 1.0, main.steps), main.strategy.encoder(main.leaves)

    def nodes(stream):
        exact = statistic.contribute(np.array(stream), lattice).reshape(4, -1)
        return np.array([encoder.encode(encoder.start(), 1, column)[1] for column in exact.T])

    known = {stream: nodes(stream) for stream in itertools.product((0.0, 2.0, 5.0), repeat=4)}
    worst = 0
    for stream, place, value in itertools.product(known, range(4), (0.0, 2.0, 5.0)):
        other = (*stream[:place], value, *stream[place + 1 :])
        moved = np.abs(known[stream] - known[other]).astype(object)
        worst = max(worst, int((moved**2).sum() if delta else moved.sum()))
    scale = Fraction(main.scale)
    cost = main.cost.mu_squared if delta else main.cost.epsilon
    assert Fraction(worst) / (scale**2 if delta else scale) == cost


@pytest.mark.parametrize("name", ["share", "bins"])
def test_the_noise_is_as_large_as_it_says(ours, name):
    statistic = {"share": ours.Share(above=20.0), "bins": ours.Bins(limits=(10.0, 30.0))}[name]
    plan = Plan(epsilon=1.0, delta=1e-6, length=64, statistic=statistic)
    raw_values = np.linspace(0.0, 40.0, 64)
    exact = {
        "share": [np.mean(raw_values > 20)],
        "bins": np.histogram(raw_values, [-np.inf, 10, 30, np.inf])[0],
    }[name]
    errors = []
    for number in range(300):
        release = plan.open(secret=Secret.for_tests(number)).update_many(raw_values)[-1]
        assert [row["name"] for row in release] == list(statistic.names)
        for row, truth in zip(release, exact, strict=True):
            assert row["noise_std"] == plan.unit_noise_std(64)
            errors.append((row["value"] - truth) / row["noise_std"])
    # Gaussian noise, of each row and each secret for itself.
    check(f"noise of {name}", normal_scale_p_value(np.array(errors), 1.0))
    assert abs(np.mean(errors)) < 6 / np.sqrt(len(errors))


# --- What does not clip --------------------------------------------------------------------------


def test_a_statistic_that_does_not_clip_needs_no_range(ours):
    plan = Plan(epsilon=1.0, length=100_000, statistic=ours.Share(above=3.0))
    assert (plan.upper, plan.lag, plan.threshold) == (None, 0, FixedThreshold())
    assert "clip" not in plan.describe()
    for name, value in (("lag", 500), ("threshold", ours.Octaves()), ("refresh", 2.0)):
        with pytest.raises(ParameterError, match=f"^{name}: "):
            Plan(epsilon=1.0, length=100_000, statistic=ours.Share(above=3.0), **{name: value})
    # With a bound, as for other statistics, the noise is the same.
    wide = Plan(epsilon=1.0, length=100_000, upper=3000.0, statistic=ours.Share(above=3.0))
    assert wide.expected_error(50_000) == plan.expected_error(50_000)


# --- Refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"statistic": {"kind": "beyond"}}, "statistic.above: expected a value, found nothing"),
        ({"statistic": {"kind": "beyond", "above": "x"}}, "statistic.above: expected a number"),
        ({"statistic": {"kind": "beyond", "abov": 1}}, "statistic.abov: .* did you mean above"),
        ({"statistic": "bins:limits=[1,x]"}, r"statistic.limits\[1\]: expected a number"),
        ({"strategy": "blocks:size=1"}, "strategy.size: expected an integer >= 2, found 1"),
        ({"strategy": "not-one"}, "strategy.kind: expected a Strategy that is a frozen dataclass"),
        ({"statistic": "median"}, "statistic.kind: expected a statistic, one of mean, sum, co"),
    ],
)
def test_their_options_are_checked_alike(ours, table, message):
    with pytest.raises(ParameterError, match=f"^{message}"):
        Plan.from_table({"epsilon": 1.0, "upper": 10.0, **table})


def test_a_class_that_is_not_registered_works_but_cannot_be_written(ours):
    @dataclass(frozen=True)
    class Twice(Mean):
        name: ClassVar[str] = "twice"

    @dataclass(frozen=True)
    class Impostor(Mean):
        name: ClassVar[str] = "mean"

    made = [Plan(**COMMON, upper=10.0, statistic=kind()) for kind in (Mean, Twice, Impostor)]
    assert len({plan.digest for plan in made}) == 3
    assert len({plan.layout.digest for plan in made}) == 3  # so they share no noise
    for plan in made:
        assert len(plan.open(secret=SECRET).update_many(np.ones(2000))) == 2000
    json.loads(made[0].to_json())
    for plan in made[1:]:
        with pytest.raises(ParameterError, match=r"^statistic: .* entry points rillet.statistics"):
            plan.to_json()


def test_a_higher_version_is_another_plan(ours):
    plan = Plan(**COMMON, statistic=ours.Share(above=1.0))
    digest, noise = plan.digest, plan.layout.digest
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ours.Share, "version", 2)
        later = Plan(**COMMON, statistic=ours.Share(above=1.0))
        assert later.digest != digest
        assert later.layout.digest != noise
    assert later.to_json() == plan.to_json()


def test_what_is_no_frozen_dataclass_is_refused():
    class Careless(Mean):
        name: ClassVar[str] = "careless"

    for thing in (Careless(), object(), "mean", Mean, Range(0.0, 1.0)):
        with pytest.raises(ParameterError, match=r"^statistic: expected "):
            Plan(**COMMON, upper=10.0, statistic=thing)
