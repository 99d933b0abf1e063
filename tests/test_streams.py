"""One stream: every way of feeding it gives the same bits; nothing in the data makes it fail."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as some
import numpy as np
import pytest
from hypothesis import example, given, settings

import rillet.layout
from helpers.streams import (
    SECRET,
    all_releases,
    awkward_values,
    baseline,
    looks_back,
    made,
    paper,
    recorded,
    small_chunks,
    state_text,
)
from rillet import (
    BinaryTree,
    Mean,
    NotReady,
    Plan,
    Secret,
    SmoothQuantile,
    StreamEnded,
    Sum,
)
from rillet.gather.grid import Grid
from rillet.strategy import STRATEGIES
from rillet.strategy.tree import BinaryTree as Tree
from rillet.threshold import ExponentialQuantile, TailHistogram, Threshold

# --- Every way of feeding a stream -------------------------------------------------------------

LENGTHS = {1: 70, 3: 130, 7: 250, 1000: 2600}


def make_plan(kind: str, every: int, lower: float, missing: str | float) -> Plan:
    n = LENGTHS[every]
    if kind in ("paper", "backfill") and missing == "skip":
        missing = "none"
    common: dict[str, Any] = {"every": every, "lower": lower, "missing": missing}
    learning = {"epsilon": 1.0, "delta": 2**-20, "upper": 100.0, "length": n, "lag": n // 4}
    if kind in STRATEGIES.own:
        strategy = made(kind)
        statistic = Mean(**looks_back(strategy, lambda leaves: int(leaves * every)))
        return baseline(n, strategy=strategy, statistic=statistic, delta=2**-20, **common)
    if kind in FORGETTING:
        memory = {name: leaves * every for name, leaves in FORGETTING[kind].items()}
        return Plan(**learning, **common, statistic=Mean(**memory), threshold=TailHistogram())
    if kind in LEARNERS:
        return Plan(**learning, **common, threshold=LEARNERS[kind])
    if kind == "backfill":
        return paper(n, n // 4, backfill=True, statistic=Sum(), **common)
    if kind == "gaussian":
        return baseline(n, strategy=BinaryTree("gaussian"), delta=2**-20, **common)
    assert kind == "endless"
    return Plan.baseline(epsilon=1.0, upper=100.0, length=None, **common)


MISSING = ["skip", "none", 7.5]
LEARNERS: dict[str, Threshold] = {
    "paper": SmoothQuantile(),
    "exponential": ExponentialQuantile(),
    "refreshed": TailHistogram(two_sided=False),
    "refreshed, two sides": TailHistogram(two_sided=True),
}
#: Learned ranges, in leaves: their segments repeat, and windows are longer or shorter than those.
FORGETTING = {"window": {"window": 2}, "long window": {"window": 30}, "half-life": {"half_life": 1}}
KINDS = [*LEARNERS, *FORGETTING, "backfill", *STRATEGIES.own, "gaussian", "endless"]
#: What to do next with a stream, and for how many observations.
ACTS = some.tuples(
    some.sampled_from(["block", "one by one", "restart", "restart with own secret", "ask"]),
    some.integers(0, 40),
)


@settings(max_examples=200)
@given(
    kind=some.sampled_from(KINDS),
    every=some.sampled_from(sorted(LENGTHS)),
    lower=some.sampled_from([0.0, -3.25, 2.0]),
    missing=some.sampled_from(MISSING),
    seed=some.integers(0, 2**16),
    acts=some.lists(ACTS, min_size=1, max_size=25),
)
@example("paper", 1, 0.0, "none", 1, [("one by one", 40)])
@example("backfill", 3, -3.25, "none", 2, [("block", 31), ("restart", 0), ("one by one", 2)])
@example("refreshed", 1, 0.0, "skip", 3, [("one by one", 60), ("restart", 0), ("block", 20)])
def test_any_split_with_restarts_gives_the_same_bits(kind, every, lower, missing, seed, acts):
    plan = make_plan(kind, every, lower, missing)
    n = LENGTHS[every]
    values = awkward_values(n, seed)
    with small_chunks():
        whole = plan.open(secret=SECRET, key=("north", 1))
        expected = after_warm_up(plan, whole.update_many(values))

        stream = plan.open(secret=SECRET, key=("north", 1))
        parts, at = [], 0
        for act, size in [*acts, ("block", n)]:
            piece = values[at : at + size * max(1, every // 10)]
            if act == "block":
                parts.append(stream.update_many(piece))
            elif act == "one by one":
                parts += [stream.update(value) for value in piece.tolist()]
            elif act == "ask":
                piece = piece[:0]
                if found := all_releases(parts):
                    assert stream.latest() == found[-1]
            else:
                piece = piece[:0]
                secret = SECRET if act == "restart" else stream.secret
                stream = plan.resume(stream.snapshot(), secret=secret)
            at += len(piece)
            assert stream.t == at
        parts.append(stream.update_many(values[at:]))

        assert after_warm_up(plan, all_releases(parts)) == expected
        assert state_text(stream) == state_text(whole)
        assert stream.latest() == expected[-1]
        if kind == "backfill":
            assert list(stream.backfill) == list(whole.backfill)


def after_warm_up(plan, releases):
    """Without what was backfilled: one ``update`` returns one release."""
    return [release for release in releases if release.t >= plan.lag]


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("kind", KINDS)
def test_one_by_one_is_the_block(kind, missing):
    """The same without patched boundaries, so that the real read-ahead is crossed."""
    every = 3
    plan = make_plan(kind, every, 1.5, missing)
    values = awkward_values(LENGTHS[every], 5)
    block, single = plan.open(secret=SECRET), plan.open(secret=SECRET)
    expected = after_warm_up(plan, block.update_many(values))
    assert all_releases(map(single.update, values.tolist())) == expected
    assert state_text(single) == state_text(block)


@pytest.mark.parametrize("lag", [0, 1000])
def test_across_a_real_ratchet(lag):
    """2^14 leaves after the start the secret moves on, the same for every way of feeding."""
    crossing = lag + rillet.layout.RATCHET_EVERY
    n = crossing + 40_000
    plan = paper(n, lag) if lag else baseline(n)
    values = awkward_values(n, 3)
    whole = plan.open(secret=SECRET)
    expected = whole.update_many(values)

    pieces = plan.open(secret=SECRET)
    parts = [pieces.update_many(values[: crossing - 1000])]
    assert pieces.secret.epoch == 1
    parts += [pieces.update(value) for value in values[crossing - 1000 : crossing + 1000].tolist()]
    assert pieces.secret.epoch == 2
    pieces = plan.resume(pieces.snapshot(), secret=SECRET)
    parts.append(pieces.update_many(values[crossing + 1000 :]))
    assert all_releases(parts) == list(expected)
    assert state_text(pieces) == state_text(whole)


def test_endless_stream_does_not_wait_for_its_end():
    plan = Plan.paper(epsilon=1.0, delta=2**-20, upper=100.0, length=None, lag=10)
    stream = plan.open(secret=SECRET)
    assert [stream.update(1.0) is not None for _ in range(20)] == [False] * 9 + [True] * 11


def test_strategy_without_a_scalar_form(monkeypatch):
    """Then ``update`` goes through blocks of one."""
    plan = baseline(50, every=3)
    values = awkward_values(50, 8).tolist()
    expected = list(plan.open(secret=SECRET).update_many(values))
    monkeypatch.setattr(Tree, "stepper", lambda *_: None)
    stream = plan.open(secret=SECRET)
    assert all_releases(map(stream.update, values)) == expected
    # A value that happens to be a list is still one observation.
    stream = plan.open(secret=SECRET)
    stream.update([1.0, 2.0])
    assert stream.t == 1


# --- What is released --------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("lower", [0.0, -20.0])
def test_release_is_the_exact_sum_plus_the_noise_of_its_nodes(every, lower):
    """An independent account of the tree, node by node, in Python integers."""
    n, lag = 100, 30
    plan = paper(n, lag, every=every, lower=lower, statistic=Sum())
    values = awkward_values(n, 11)
    with small_chunks(ratchet=16), recorded(threshold=17.5):
        releases = plan.open(secret=SECRET).update_many(values)
        layout = plan.layout
        own = SECRET.derive("stream", plan.layout.digest, "")

        threshold = releases[0].clip_upper
        assert threshold == 17.5
        opening_grid = Grid(lower, threshold, layout.warm_up.steps)
        exact = int(opening_grid.quantise(values[:lag]).sum())
        noise = int(layout.warm_up.noise(own, "warm-up").draw(1, 1)[0])
        opening = (exact + noise) * opening_grid.step + lower * lag
        assert releases[0].t == lag
        assert releases[0].sum == opening

        grid = Grid(lower, threshold, layout.main.steps)
        exact_units = grid.quantise(values[lag:]).tolist()

        def node_noise(leaf: int) -> int:
            secret = own.ratchet(1 + (leaf - 1) // 16)
            return int(layout.main.noise(secret, "main").draw(leaf, 1)[0])

        leaves = -(-(n - lag) // every)
        assert len(releases) == 1 + leaves
        for leaf in range(1, leaves + 1):
            total = sum(exact_units[: leaf * every])
            rest = leaf
            while rest:
                total += node_noise(rest)
                rest &= rest - 1
            release = releases[leaf]
            t = min(lag + leaf * every, n)
            expected = total * grid.step + opening
            if lower:
                expected += lower * (t - lag)
            assert (release.t, release.sum) == (t, expected)


def test_opening_clips_the_first_block_too():
    """Unclipped, one huge value among the first would move the sum by the whole public range."""
    values = np.full(400, 1.0)
    values[7] = 1e9
    with recorded(threshold=2.0):
        stream = paper(500, 400, upper=1e10, statistic=Sum()).open(secret=SECRET)
        release = stream.update_many(values)[0]
    assert release.clip_upper == 2.0
    assert abs(release.sum - 401.0) < 12 * release.noise_std


def test_backfill_ends_with_the_opening_release():
    plan = paper(200, 100, backfill=True, every=7)
    stream = plan.open(secret=SECRET)
    assert stream.backfill is None
    releases = stream.update_many(awkward_values(110, 1))
    assert stream.backfill is not None
    assert stream.backfill.t.tolist() == [*range(7, 100, 7), 100]
    assert list(releases[:15]) == list(stream.backfill)
    assert releases[15].t > 100


def test_noise_std_is_what_the_plan_expects():
    for plan in (paper(300, 100), paper(300, 100, every=7, statistic=Sum()), baseline(300)):
        for release in plan.open(secret=SECRET).update_many(awkward_values(300, 2)):
            width = release.clip_upper - release.clip_lower
            unit = plan.unit_noise_std(release.t)
            assert release.noise_std == pytest.approx(unit * width, rel=1e-15)
            expected = plan.expected_error(release.t, release.clip_upper)
            assert release.noise_std == pytest.approx(expected, rel=1e-15)


# --- Asking, and asking too early or too much --------------------------------------------------


def test_release_gives_the_same_again():
    stream = baseline(10).open(secret=SECRET)
    first = stream.update(3.0)
    assert stream.latest() is first
    assert stream.latest() == stream.latest() == first
    many = stream.update_many([1.0, 2.0])
    assert stream.latest() == many[-1]
    assert stream.t == 3


@pytest.mark.parametrize(
    ("plan", "first"),
    [(baseline(10), 1), (baseline(10, every=4), 4), (paper(20, 15), 15), (paper(20, 20), 20)],
)
def test_not_ready_before_the_first_release(plan, first):
    stream = plan.open(secret=SECRET)
    for absorbed in range(first):
        with pytest.raises(NotReady, match=rf"after {first} observations, and {absorbed} have"):
            stream.latest()
        release = stream.update(1.0)
    assert release is not None
    assert stream.latest() == release


@pytest.mark.parametrize("plan", [baseline(10), baseline(10, every=4), paper(20, 15), paper(9, 9)])
def test_stream_ended_leaves_everything_as_it_was(plan):
    n = plan.length
    stream = plan.open(secret=SECRET)
    stream.update_many(np.ones(n - 2))
    before = state_text(stream)
    with pytest.raises(StreamEnded, match=r"length: .* at most"):
        stream.update_many(np.ones(3))
    assert state_text(stream) == before
    assert stream.t == n - 2

    stream.update(1.0)
    last = stream.update(1.0)
    assert last is not None
    assert last.t == n
    before = state_text(stream)
    for extra in (1.0, np.nan, "x"):
        with pytest.raises(StreamEnded):
            stream.update(extra)
        with pytest.raises(StreamEnded):
            stream.update_many([extra])
    assert stream.update_many([]).t.tolist() == []
    assert state_text(stream) == before
    assert stream.latest() == last


def test_refused_block_draws_nothing():
    stream = baseline(10).open(secret=SECRET)
    with recorded() as recording, pytest.raises(StreamEnded):
        stream.update_many(np.ones(11))
    assert not recording.draws
    assert not recording.nodes


# --- What a stream shows of itself -------------------------------------------------------------


def test_repr_shows_nothing_from_data():
    plan = paper(400, 100)
    shown = set()
    for values in (np.zeros(150), np.full(150, 73.21), awkward_values(150, 6)):
        stream = plan.open(secret=SECRET)
        texts = []
        for t in range(0, 150, 10):
            stream.update_many(values[t : t + 9])
            stream.update(values[t + 9])
            texts.append(repr(stream) + str(stream))
        shown.add(tuple(texts))
    assert len(shown) == 1
    text = shown.pop()[-1]
    assert "t=150" in text
    assert "(1, 9.54e-07)" in text


def test_repr_of_the_state_shows_no_unreleased_value():
    values = np.full(50, 73.21)
    learning, running = paper(400, 100).open(secret=SECRET), baseline(400, every=60).open()
    for stream in (learning, running):
        stream.update_many(values)
        text = repr(stream._state())
        assert "73.2" not in text
        assert str(stream._state().exact_partial or "73.2") not in text
        for name in ("raw_buffer", "exact_partial", "encoder", "secret"):
            assert name not in text


def test_fresh_secret_for_every_stream():
    plan = baseline(5)
    assert plan.open().update(1.0) != plan.open().update(1.0)
    assert plan.open().secret != plan.open().secret


def test_plan_key_run_and_secret_each_change_the_noise():
    base = {"secret": SECRET, "key": ("north",), "run": "a"}
    plan = baseline(5)
    seen = {plan.open(**base).update(1.0).sum}
    for change in ({"secret": Secret.for_tests(1)}, {"key": ("south",)}, {"run": "b"}, {"key": ()}):
        seen.add(plan.open(**{**base, **change}).update(1.0).sum)
    seen.add(baseline(5, epsilon=1.0000001).open(**base).update(1.0).sum)
    seen.add(baseline(5, upper=100.00001).open(**base).update(1.0).sum)
    assert len(seen) == 7
    # Joined strings would collide here.
    pairs = [("a", "bc"), ("ab", "c"), ("abc",), ("a", "b", "c"), (1,), ("1",)]
    assert len({plan.open(secret=SECRET, key=pair).update(1.0).sum for pair in pairs}) == len(pairs)
