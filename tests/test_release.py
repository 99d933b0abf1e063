"""Releases: intervals that cover, arrays that agree with single releases, records."""

from __future__ import annotations

import json
import math
import pickle
import struct
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.laws import gaussian_with_laplace_tail, laplace_tail, laplace_variance
from helpers.records import unstamped
from helpers.streams import SECRET, awkward_values, baseline, paper
from rillet import BinaryTree, MissingExtra, ParameterError, Release, Releases, StateError, Sum
from rillet.release import FIELDS, NUMBERS, noise_deviations, origins, time_text
from rillet.testing import Budget, StatisticalFailure, binomial_p_value, check
from rillet.testing.sink_contract import made_up_releases

CONFIDENCES = (0.5, 0.68, 0.8, 0.9, 0.91, 0.95, 0.99, 0.999)
#: Scales of one further draw, in units of the others'; None: there is none.
OTHERS = (None, 0.05, 0.2, 0.4, 0.8, 1.25, 3.0, 20.0)


def stream_releases(**more) -> Releases:
    plan = paper(300, 100, **more)
    return plan.open(secret=SECRET, key=("north", 3)).update_many(awkward_values(300, 1))


# --- Coverage ----------------------------------------------------------------------------------


@pytest.mark.parametrize("confidence", ["a", None, 0, 1, 2.0, float("nan"), [0.9]])
def test_what_is_no_confidence_is_refused(confidence):
    with pytest.raises(ParameterError, match=r"^confidence: expected a number between 0 and 1"):
        noise_deviations(confidence, "laplace")


@pytest.mark.parametrize("confidence", CONFIDENCES)
def test_interval_covers_every_sum_of_laplace_draws(confidence):
    """Exactly, for 1 to 25 draws with and without one of another scale (the opening's)."""
    reach = noise_deviations(confidence, "laplace")
    missed = {}
    for count in range(1, 26):
        for other in OTHERS:
            std = laplace_variance(count, other) ** 0.5
            missed[count, other] = laplace_tail(count, reach * std, other)
    worst = max(missed, key=missed.__getitem__)
    assert missed[worst] <= (1 - confidence) * (1 + 1e-12), worst
    # Not far too wide either: some sum comes close to the promised share.
    assert missed[worst] > 0.9 * (1 - confidence)


@pytest.mark.parametrize("confidence", CONFIDENCES)
@pytest.mark.parametrize("std", [0.01, 0.1, 0.5, 1.0, 2.0, 10.0, 100.0])
def test_interval_covers_gaussian_noise_after_a_laplace_opening(confidence, std):
    reach = noise_deviations(confidence, "laplace") * (std**2 + 2) ** 0.5
    assert gaussian_with_laplace_tail(std, reach) <= (1 - confidence) * (1 + 1e-12)


@pytest.mark.parametrize("confidence", CONFIDENCES)
def test_gaussian_interval_is_exact(confidence):
    reach = noise_deviations(confidence, "gaussian")
    assert math.erfc(reach / 2**0.5) == pytest.approx(1 - confidence, rel=1e-12)


def test_the_gaussian_multiple_alone_would_not_cover():
    """Power: at 95 % one Laplace draw needs 2.12 deviations, not 1.96."""
    gaussian = noise_deviations(0.95, "gaussian")
    assert laplace_tail(1, gaussian * 2**0.5) > 0.06
    assert noise_deviations(0.95, "laplace") == pytest.approx(math.log(20) / 2**0.5)


def test_intervals_of_streams_cover_the_clipped_mean():
    """End to end: as often as promised, at steps with one and with many nodes."""
    plan = baseline(127, lower=-10.0)
    values = np.full(127, 40.0)
    covered = np.zeros((127, 2))
    runs = 1500
    for run in range(runs):
        releases = plan.open(secret=SECRET, key=(run,)).update_many(values)
        for place, confidence in enumerate((0.9, 0.99)):
            low, high = releases.noise_interval(confidence)
            covered[:, place] += (low <= 40.0) & (high >= 40.0)
    for t in (1, 3, 64, 127):
        for place, confidence in enumerate((0.9, 0.99)):
            nodes = t.bit_count()
            reach = noise_deviations(confidence, "laplace") * (2 * nodes) ** 0.5
            exact = 1 - laplace_tail(nodes, reach)
            assert exact >= confidence - 1e-12
            p_value = float(binomial_p_value(covered[t - 1, place], runs, exact))
            check(f"coverage of {confidence} at t = {t}", p_value)
    # Power: intervals four fifths as wide cover less often, and that would be seen.
    for t in (1, 127):
        nodes = t.bit_count()
        reach = 0.8 * noise_deviations(0.9, "laplace") * (2 * nodes) ** 0.5
        fewer = round((1 - laplace_tail(nodes, reach)) * runs)
        with pytest.raises(StatisticalFailure):
            check("power", float(binomial_p_value(fewer, runs, 0.9)), budget=Budget())


@pytest.mark.parametrize("confidence", [0, 1, -0.1, 1.5, float("nan"), 95])
def test_bad_confidence_is_refused(confidence):
    release = stream_releases()[-1]
    with pytest.raises(ParameterError, match="confidence"):
        release.noise_interval(confidence)


# --- One release and many ----------------------------------------------------------------------

ARRAYS = [
    "t",
    "sum",
    "sum_noise_std",
    "mean",
    "mean_noise_std",
    "value",
    "noise_std",
    "clip_upper",
    "clip_lower",
    "count",
]


@pytest.mark.parametrize("more", [{}, {"statistic": Sum()}, {"every": 7, "lower": -5.0}], ids=str)
def test_arrays_agree_with_single_releases(more):
    releases = stream_releases(**more)
    assert len(releases) == len(list(releases)) > 25
    for place, release in enumerate(list(releases)):
        assert release == releases[place]
        for name in ARRAYS:
            assert getattr(release, name) == getattr(releases, name)[place], name
        for confidence in (0.5, 0.95):
            low, high = releases.noise_interval(confidence)
            assert release.noise_interval(confidence) == (low[place], high[place])
    assert releases[-1] == releases[len(releases) - 1]


def test_slices_are_releases():
    releases = stream_releases()
    part = releases[5:50:3]
    assert isinstance(part, Releases)
    assert list(part) == list(releases)[5:50:3]
    assert list(releases[-1:]) == [releases[-1]]
    assert list(releases[0:0]) == []


def test_value_is_the_statistic():
    mean, total = stream_releases()[-1], stream_releases(statistic=Sum())[-1]
    assert (mean.name, mean.value, mean.noise_std) == ("mean", mean.mean, mean.mean_noise_std)
    assert (total.name, total.value, total.noise_std) == (
        "sum",
        total.sum,
        total.sum_noise_std,
    )
    assert mean.mean == mean.sum / mean.t
    assert mean.mean_noise_std == pytest.approx(mean.sum_noise_std / mean.t, rel=1e-15)


def test_noise_law_is_gaussian_only_when_all_noise_is():
    plan = baseline(10, strategy=BinaryTree("gaussian"), delta=2**-20)
    assert plan.open().update(1.0).noise_law == "gaussian"
    assert stream_releases()[0].noise_law == "laplace"


def test_equal_releases_are_equal_and_others_not():
    one, same = stream_releases()[3], stream_releases()[3]
    assert one == same
    assert hash(one) == hash(same)
    assert one != stream_releases()[4]
    assert one != stream_releases(statistic=Sum())[3]
    assert one != "a release"


def test_record_is_json_with_the_same_names():
    release = stream_releases()[-1]
    (record,) = json.loads(json.dumps(list(release), allow_nan=False))
    assert list(record) == [field.name for field in FIELDS]
    for name, value in record.items():
        if name in ("key", "post_processing"):
            assert tuple(value) == getattr(release, name)
        elif name == "at":
            assert datetime.fromisoformat(value) == release.at
        elif value is not None:
            assert value == getattr(release, name)
    unknown = {name for name, value in record.items() if value is None}
    only_of_some = {"noise_covariance", "noise_slack", "noise_lower", "noise_upper"}
    # The paper's threshold measures no tail.
    assert unknown == {"clipped_share", "clipping_below", "clipping_above", *only_of_some}
    assert record["tail"] == "unknown"
    assert record["count_noise_std"] == 0.0


def test_a_release_has_the_time_at_which_it_was_released():
    plan = baseline(100)
    for one_by_one in (True, False):
        stream = plan.open(secret=SECRET)
        before = datetime.now(UTC)
        release = stream.update(1.0) if one_by_one else stream.update_many([1.0, 2.0])[1]
        after = datetime.now(UTC)
        assert before - timedelta(microseconds=1) <= release.at <= after
        assert release.at.tzinfo is UTC
        assert stream.latest().at == release.at
        assert pickle.loads(pickle.dumps(release)).at == release.at


def test_a_block_has_one_time_and_takes_no_room_for_it():
    plan = baseline(10_000, keys=["a", "b"])
    releases = plan.open_many(secret=SECRET).update_many(np.ones(9_000), key=["a", "b", "b"] * 3000)
    assert releases.at.dtype == "M8[us]"
    assert set(releases.at.view(np.int64).tolist()) == {releases[7].at_microseconds}
    several = Releases.join([releases[:5], unstamped(releases[5:])])
    assert len(several.to_bytes()) - len(releases.to_bytes()) >= 8 * 8_999
    for table in (releases, releases[:0], several, releases[1:2]):
        back = Releases.from_bytes(table.to_bytes())
        assert back.at.tolist() == table.at.tolist()
    single = baseline(1000).open(secret=SECRET).update_many(np.ones(1000))
    assert single.at.strides == (0,)


def test_backfilled_releases_have_the_time_at_which_the_warm_up_ended():
    stream = paper(300, 100, backfill=True).open(secret=SECRET)
    stream.update_many(awkward_values(99, 1))
    begun = datetime.now(UTC) - timedelta(microseconds=1)
    last = stream.update_many(awkward_values(1, 1))[-1]
    backfill = stream.backfill
    assert backfill is not None
    assert begun <= last.at
    assert {release.at for release in backfill} == {last.at}


def test_equality_leaves_the_time_out():
    releases = stream_releases()
    assert list(unstamped(releases)) == list(releases)
    assert unstamped(releases)[0].at != releases[0].at


@given(st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)))  # noqa: DTZ001
def test_times_are_spelled_so_that_they_sort(when):
    moment = (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    text, later = time_text(np.array([moment, moment + 1], np.int64).view("M8[us]"))
    assert datetime.fromisoformat(text) == when
    assert text < later
    assert len(text) == len(later) == 27
    assert Release((), 1, moment, []).at == when


def test_a_release_may_have_several_rows():
    releases = several()
    assert len(releases) == 3
    assert releases.value.tolist() == [0.0, 2.0, 4.0]
    assert releases["0.9"].value.tolist() == [1.0, 3.0, 5.0]
    release = releases[1]
    assert (release.name, release.value, release["0.9"].value) == ("0.5", 2.0, 3.0)
    assert [row["name"] for row in release] == ["0.5", "0.9"]
    assert [row["t"] for row in release] == [20, 20]
    assert np.isnan(release.sum)
    with pytest.raises(ParameterError, match=r"name: expected one of '0\.5', '0\.9'"):
        release["0.95"]
    with pytest.raises(ParameterError, match=r"name: expected one of '0\.5', '0\.9'"):
        releases["0.95"]
    assert list(releases[::-1]) == list(releases)[::-1]
    assert list(Releases.from_bytes(releases.to_bytes())) == list(releases)
    assert releases.latest() == {("b",): releases[2], ("a",): releases[1]}
    assert releases[:0].latest() == {}
    order = [np.array([5, 1, 3])]
    assert list(Releases.join([releases], order)) == [releases[1], releases[2], releases[0]]
    assert list(Releases.join([releases[:1], releases[1:]])) == list(releases)
    table = releases.to_pandas()
    assert table["name"].tolist() == ["0.5", "0.9"] * 3
    assert table["key"].tolist() == ["b", "b", "a", "a", "b", "b"]
    with pytest.raises(AttributeError, match="no column 'values'"):
        _ = releases.values


def several() -> Releases:
    return Releases(
        (("a",), ("b",)),
        np.array([1, 0, 1]),
        np.array([10, 20, 30]),
        np.array([5, 5, 7]),
        ("0.5", "0.9"),
        {"value": np.arange(6.0), "noise_std": lambda _, part: np.ones(6)[part]},
        "gaussian",
    )


def test_repr_is_public():
    release = stream_releases()[-1]
    text = repr(release)
    assert text.startswith("Release(mean of ('north', 3) at t=300: ")
    assert f"{release.value:.6g}" in text
    assert f"clipped at {release.clip_upper:.6g}" in text


def test_pandas_has_a_row_for_every_release():
    pytest.importorskip("pandas")
    releases = stream_releases(every=9)
    table = releases.to_pandas()
    assert len(table) == len(releases)
    for name in ARRAYS:
        assert np.array_equal(table[name].to_numpy(), getattr(releases, name))
    assert str(table["at"].dtype) == "datetime64[us, UTC]"
    assert table["at"].tolist() == [release.at for release in releases]


def test_without_pandas_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"rillet\[data\]"):
        stream_releases().to_pandas()


def test_release_is_small():
    """No dictionary for each: a stream makes one at every observation."""
    assert not hasattr(stream_releases()[0], "__dict__")
    assert isinstance(stream_releases()[0], Release)


# --- Releases of many keys ---------------------------------------------------------------------

KEYS = [("north", 3), ("south", -1), (), ("1",), (1,), ("Zürich\n\0\ud800 %s",), ("10**30", 10**30)]


def parts_and_arrivals(plan, keys, cuts, count=120, seed=5):
    """Streams fed in blocks: observation i of the input goes to a key at random."""
    random = np.random.default_rng(seed)
    whose = random.integers(0, len(keys), count * len(keys))
    values = awkward_values(len(whose), 9)
    streams = [plan.open(secret=SECRET, key=key) for key in keys]
    tables = []
    for first, last in zip([0, *cuts], [*cuts, len(whose)], strict=True):
        parts, arrivals = [], []
        for place, stream in enumerate(streams):
            raw_places = np.flatnonzero(whose[first:last] == place) + first
            room = plan.last_t - stream.t
            raw_places = raw_places[:room]
            before = stream.t
            parts.append(stream.update_many(values[raw_places]))
            arrivals.append(raw_places[parts[-1].t - before - 1])
        tables.append(Releases.join(parts, arrivals))
    return tables


def table_of(keys=KEYS, *, lag=40, **more) -> Releases:
    (table,) = parts_and_arrivals(paper(150, lag, **more), keys, [])
    return table


@cache
def whole_table() -> Releases:
    return table_of()


def same(one: Releases, other: Releases) -> bool:
    return (
        [one.keys[place] for place in one.key_of] == [other.keys[place] for place in other.key_of]
        and all(one.rows(n).tobytes() == other.rows(n).tobytes() for n in ("t", *NUMBERS))
        and one.common == other.common
    )


def test_a_table_has_the_releases_of_its_parts():
    plan = paper(150, 40)
    parts = [
        plan.open(secret=SECRET, key=key).update_many(awkward_values(100, place))
        for place, key in enumerate(KEYS)
    ]
    arrivals = [np.arange(len(part)) * len(KEYS) + place for place, part in enumerate(parts)]
    table = Releases.join(parts, arrivals)
    in_turn = [release for turn in zip(*parts, strict=True) for release in turn]
    assert list(table) == in_turn
    assert len(table) == len(in_turn) > 300
    assert table.keys == tuple(KEYS)
    assert [table[place] for place in (0, 7, -1)] == [in_turn[place] for place in (0, 7, -1)]
    assert [list(r) for r in table[5:50:3]] == [list(r) for r in in_turn[5:50:3]]
    for name in ("mean", "value", "noise_std", "sum_noise_std", "mean_noise_std"):
        assert getattr(table, name).tolist() == [getattr(release, name) for release in in_turn]


@settings(max_examples=12)
@given(st.lists(st.integers(0, 7 * 120), max_size=6).map(sorted))
def test_the_order_does_not_depend_on_the_cuts(cuts):
    whole = whole_table()
    tables = parts_and_arrivals(paper(150, 40), KEYS, cuts)
    assert same(Releases.join(tables), whole)
    assert unstamped(Releases.join(tables)).to_bytes() == unstamped(whole).to_bytes()


def test_equal_arrivals_keep_the_order_of_the_parts():
    stream = paper(150, 40).open(secret=SECRET, key=("a",)).update_many(awkward_values(100, 1))
    pieces = [stream[:20], stream[20:]]
    merged = Releases.join(pieces, [np.zeros(20, int), np.zeros(len(stream) - 20, int)])
    assert list(merged) == list(stream)
    assert merged.keys == (("a",),)


def test_keys_stand_in_the_order_in_which_they_first_appear():
    parts = [
        paper(150, 40).open(secret=SECRET, key=(key,)).update_many(awkward_values(43, 1))
        for key in "abc"
    ]
    arrivals = [np.array([3, 4, 5, 6]), np.array([2, 7, 8, 9]), np.array([0, 1, 10, 11])]
    assert Releases.join(parts, arrivals).keys == (("c",), ("b",), ("a",))


def test_a_compact_table_knows_its_own_keys_only():
    whole = whole_table()
    part = whole[30:33]
    assert part.keys == whole.keys
    assert list(part.compact()) == list(part)
    assert set(part.compact().keys) == {release.key for release in part} < set(whole.keys)
    assert whole[:0].compact().keys == ()


def test_merge_refuses_what_does_not_fit():
    releases = paper(150, 40).open(secret=SECRET).update_many(awkward_values(60, 1))
    other = paper(150, 40, delta=2.0**-30, statistic=Sum()).open(secret=SECRET)
    other_releases = other.update_many(awkward_values(60, 1))
    with pytest.raises(ParameterError, match="parts: expected at least one"):
        Releases.join([])
    count = np.arange(len(releases))
    with pytest.raises(ParameterError, match="parts: expected releases of one plan"):
        Releases.join([releases, other_releases], [count, np.arange(len(other_releases))])
    with pytest.raises(ParameterError, match="columns: expected arrays of 2 rows"):
        Releases(
            *(((),), np.zeros(2, int), np.ones(2, int), np.ones(2, int), ("mean",)),
            *({"value": np.ones(3)}, "laplace"),
        )


# --- Bytes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "place", [slice(None), slice(0, 0), slice(3, 4), slice(10, 300, 7)], ids=str
)
@pytest.mark.parametrize("more", [{}, {"statistic": Sum()}, {"lower": -3.5}], ids=str)
def test_bytes_come_back_exactly(place, more):
    table = table_of(**more)[place]
    back = Releases.from_bytes(table.to_bytes())
    assert same(table, back)
    assert back.to_bytes() == table.to_bytes()
    assert list(back) == list(table)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), *[st.floats(width=64)] * 5, st.integers(-(2**60), 2**60)),
        max_size=20,
    ),
    st.lists(
        st.lists(st.text() | st.integers(), max_size=3).map(tuple),
        min_size=4,
        max_size=4,
        unique=True,
    ),
)
def test_any_doubles_and_keys_come_back(rows, keys):
    columns = list(zip(*rows, strict=True)) or [()] * 7
    table = Releases(
        tuple(keys),
        np.array(columns[0], np.int64),
        np.arange(1, len(rows) + 1) * 10**17,
        np.array(columns[6], np.int64),
        ("sum",),
        dict(
            zip(
                ("value", "noise_std", "clip_lower", "clip_upper", "clipped_share"),
                (np.array(column, np.float64) for column in columns[1:6]),
                strict=True,
            )
        ),
        "gaussian",
        ("rounded",),
    )
    assert same(table, Releases.from_bytes(table.to_bytes()))


def test_a_column_is_worked_out_by_one_thread_at_a_time() -> None:
    """Several sinks read the same releases, and what works out a column remembers things."""
    inside: list[str] = []
    crowds: list[int] = []

    def column(name: str, part: slice) -> np.ndarray:
        inside.append(name)
        time.sleep(0.002)
        crowds.append(len(inside))
        inside.remove(name)
        return np.full(part.stop - part.start, float(NUMBERS.index(name)))

    names = dict.fromkeys(NUMBERS, column)
    count = 10
    own = Releases(
        ((),), np.zeros(count, int), np.arange(count), np.arange(count), ("mean",), names, "laplace"
    )

    def read(order: int) -> bool:
        for number, name in list(enumerate(NUMBERS))[::order]:
            for found in (own.rows(name), own[1:4].rows(name)):
                assert set(found.tolist()) == {float(number)}
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, (1, -1, 1, -1)))
    assert set(crowds) == {1}


def test_keys_that_the_reader_knows_are_not_written() -> None:
    keys = tuple((f"a rather long name of a meter {index}",) for index in range(1000))
    table = made_up_releases(keys, 2)[500:1500]
    known = (("before",), *keys[::-1], ("behind",))
    content = table.to_bytes(known)
    assert len(content) < len(table.to_bytes()) - 20 * len(keys)
    assert list(Releases.from_bytes(content, known)) == list(table)
    assert Releases.from_bytes(table.to_bytes(keys), keys).keys is keys
    for wrong in (
        lambda: Releases.from_bytes(content),
        lambda: Releases.from_bytes(table.to_bytes(), known),
    ):
        with pytest.raises(StateError, match="expected to be read as they were written"):
            wrong()


def test_joined_parts_keep_the_keys_that_they_all_know() -> None:
    whole = made_up_releases(tuple((name,) for name in "cab"), 4)
    joined = Releases.join([whole[6:], whole[:6]], [np.arange(6, 12), np.arange(6)])
    assert joined.keys is whole.keys
    assert list(joined) == list(whole)
    assert whole.compact() is whole
    assert whole[:2].compact().keys == (("c",), ("a",))


def test_bytes_are_compact():
    table = unstamped(table_of([("key", place) for place in range(40)]))
    assert len(table) > 2000
    # A number and its noise, and what tells key and time; the others follow from them.
    assert len(table.to_bytes()) < 24 * len(table)
    # Keys that are not in the rows cost nothing.
    assert len(table[:1].to_bytes()) < 900


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from([0.0, -0.0, 1.0, 3.0, np.nan]))))
def test_columns_that_follow_from_others_come_back(rows):
    """Also in chains, of which only the first is stored."""
    t, whole = np.array([t for t, _ in rows], np.int64), np.array([one for _, one in rows])
    columns = {"value": whole / t / t, "sum": whole / t, "mean": whole, "count": t.astype(float)}
    found = origins(columns, t)
    stored = {origin for origin, _ in found.values()}
    assert all(found[name] == (name, False) for name in stored - {"t"})
    table = Releases(
        ((1,),),
        np.zeros(len(t), np.int64),
        t,
        np.zeros(len(t), "M8[us]"),
        ("sum",),
        columns,
        "gaussian",
        ("rounded",),
    )
    assert same(table, Releases.from_bytes(table.to_bytes()))


@pytest.mark.parametrize("names", [("mean",), ("0.5", "0.9")], ids=len)
def test_numbers_of_a_t_take_no_room_for_each_key(names):
    """As the noise of keys that are at the same release; also where some are nan."""
    key_of, t = np.repeat(np.arange(40), 25), np.tile(np.arange(7, 32), 40)
    of_t = np.add.outer(np.sqrt(t), np.arange(len(names))).ravel()
    of_t[np.repeat(t == 9, len(names))] = np.nan
    own = np.random.default_rng(1).random(len(of_t))
    keys = tuple((key,) for key in range(40))
    size = []
    for noise_std in (of_t, np.where(np.arange(len(of_t)) == 5, 0.5, of_t)):
        columns = {"value": own, "noise_std": noise_std}
        table = Releases(keys, key_of, t, np.zeros(len(t), "M8[us]"), names, columns, "gaussian")
        assert same(table, Releases.from_bytes(table.to_bytes()))
        size.append(len(table.to_bytes()))
    assert size[1] - size[0] > 8 * (len(of_t) - 25 * len(names)) - 20


def test_bytes_of_another_version_are_refused():
    content = bytearray(table_of().to_bytes())
    content[8:12] = struct.pack("<I", 5)
    with pytest.raises(StateError, match="expected version 4, found 5"):
        Releases.from_bytes(bytes(content))


def test_damaged_bytes_are_refused():
    content = table_of().to_bytes()
    header = json.loads(content[16 : 16 + struct.unpack("<II", content[8:16])[1]])
    assert header["names"] == ["mean"]
    for place in range(0, len(content), 331):
        damaged = bytearray(content)
        damaged[place] ^= 4
        with pytest.raises(StateError):
            Releases.from_bytes(bytes(damaged))
    for length in (0, 5, 12, 20, len(content) // 2, len(content) - 1):
        with pytest.raises(StateError):
            Releases.from_bytes(content[:length])
    assert zlib.crc32(content[:-4]) == struct.unpack("<I", content[-4:])[0]


def test_a_table_says_little_about_itself():
    assert repr(table_of([("a",)])[:3]) == "Releases(3 of mean, 1 keys)"
