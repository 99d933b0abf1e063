"""A finished file by the clock: in any order it releases what the library does, tick by tick."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest

import rillet
from engine.clocks import (
    BEGIN,
    EXACT,
    HOUR,
    HOURLY,
    LEARNED,
    SECRET,
    START,
    counts,
    directly,
    hour,
    random_rows,
    spelled,
    ticks,
)
from rillet.cli import main
from rillet.engine import check, run
from rillet.errors import InputError, ParameterError, StateError
from rillet.times import moment, show_moment

END = "2026-03-11T00:00Z"
KEYS = ("north", "south", "west")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder to run in, with fresh secrets that are known."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rillet.plan.plan.Secret.generate", staticmethod(lambda: SECRET))
    return tmp_path


OPTIONS = (
    *("--column", "x", "--time", "when", "--every", "1h", "--start", START, "--length", "10d"),
    *("--epsilon", "1e6", "--delta", "2^-20", "--upper", "50", "--statistic", "count"),
    *("--threshold", "fixed", "--strategy", "binary-tree:law=gaussian", "--quiet"),
)


def without(name):
    index = OPTIONS.index(name)
    return OPTIONS[:index] + OPTIONS[index + 2 :]


def write(path, rows, kind="csv"):
    if kind == "csv":
        text = "".join(f"{key},{value!r},{show_moment(at)}\n" for key, value, at in rows)
        path.write_text("k,x,when\n" + text)
    elif kind == "jsonl":
        lines = [json.dumps({"k": key, "x": value, "when": at / 1e6}) for key, value, at in rows]
        path.write_text("".join(f"{line}\n" for line in lines))
    else:
        pyarrow = pytest.importorskip("pyarrow")
        keys, values, times = zip(*rows, strict=True) if rows else ((), (), ())
        table = {
            "k": pyarrow.array(keys, pyarrow.string()),
            "x": pyarrow.array(values, pyarrow.float64()),
            "when": pyarrow.array(times, pyarrow.timestamp("us", "UTC")),
        }
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(table), path)


def released(path, plan=LEARNED, *, keys=(), state=None, **source):
    """Run over a file; return what it wrote."""
    tables = {
        "plan": {**HOURLY, **plan},
        "source": {"path": str(path), "column": "x", "time": "when", **source},
        "sink": [{"kind": "jsonl", "path": "out.jsonl", "existing": "replace"}],
    }
    if keys:
        tables["keys"] = {"columns": ["k"], "values": list(keys)}
    if state is not None:
        tables["state"] = {"folder": state}
        tables["sink"] = [{"kind": "jsonl", "path": "out.jsonl"}]
    summary = run(tables)
    text = (path.parent / "out.jsonl").read_bytes()
    assert summary.delivered == len(text.splitlines())
    return text


# --- Any order, any format -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("plan", [LEARNED, EXACT], ids=["learned", "count"])
def test_any_order_releases_what_the_library_does(folder, kind, plan):
    rows = random_rows(3_000, seed=1)
    expected = spelled(directly(rillet.Plan.from_table({**HOURLY, **plan}), rows, END))
    assert len(expected.splitlines()) > 200
    by_time = sorted(rows, key=lambda row: row[2])
    shuffled = random.Random(2).sample(rows, len(rows))
    for number, order in enumerate((rows, by_time, by_time[::-1], shuffled)):
        path = folder / f"d{number}.{kind}"
        write(path, order, kind)
        assert released(path, plan, block_rows=(70, 5_000)[number % 2]) == expected


def test_keys(folder):
    """Declared ones, empty or not; what another key has is nowhere."""
    rows = random_rows(3_000, seed=3, keys=("north", "south", "ghost"))
    plan = rillet.Plan.from_table({**HOURLY, **LEARNED, "keys": list(KEYS)})
    expected = spelled(directly(plan, rows, END))
    for seed in range(3):
        write(folder / "d.csv", random.Random(seed).sample(rows, len(rows)))
        assert released(folder / "d.csv", keys=KEYS) == expected
    exact = counts(released(folder / "d.csv", EXACT, keys=KEYS))
    assert len(exact) == 3 * 240
    inside = [(key, (at - BEGIN) // HOUR + 1) for key, _, at in rows if key != "ghost"]
    assert ticks(exact) == Counter(place for place in inside if 1 <= place[1] <= 240)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("state", [None, "live"])
def test_an_empty_file_releases_every_tick(folder, kind, state):
    write(folder / f"d.{kind}", [], kind)
    found = counts(released(folder / f"d.{kind}", EXACT, state=state))
    assert len(found) == 240
    assert not ticks(found)


def test_more_ticks_than_are_closed_at_once(folder):
    """A day of seconds with three rows in it: the ticks between are released in parts."""
    plan = {**EXACT, "every": "1s", "length": "1d"}
    rows = [("", 1.0, BEGIN + second * 1_000_000) for second in (5, 70_000, 70_000, 86_399)]
    write(folder / "d.csv", rows)
    for block_rows in (1, 100):
        found = counts(released(folder / "d.csv", plan, block_rows=block_rows))
        assert len(found) == 86_400
        assert ticks(found) == {("", 6): 1, ("", 70_001): 2, ("", 86_400): 1}


# --- Times ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
@pytest.mark.parametrize("length", ["10d", None])
def test_times_that_are_in_no_tick_are_left_out_without_a_word(folder, capfd, zone, length):
    rows = [
        ("1970-01-01T00:00:00Z", 0),
        ("2099-01-01T00:00:00Z", 0),
        ("9999-12-31T23:59:59.999999Z", 0),
        ("1e300", 0),
        ("", 0),
        ("soon", 0),
        ("2026-02-28T23:59:59.999999Z", 0),
        ("2026-03-01T00:00:00Z", 1),
        ("2026-03-01T00:59:59.999999Z", 1),
        ("2026-03-01T01:00:00Z", 2),
        (f"{BEGIN // 10**6 + 3600 * 5}", 6),
        ("2026-03-10T23:59:59.999999Z", 240),
        ("2026-03-11T00:00:00Z", 0 if length else 241),
        ("2026-03-01 12:30:00", 12 if zone else 0),  # 11:30 in UTC
    ]
    lines = [f"{index},{text}\n" for index, (text, _) in enumerate(rows)]
    random.Random(4).shuffle(lines)
    (folder / "d.csv").write_text("x,when\n" + "".join(lines))
    plan = {**EXACT, "length": length} | ({"zone": zone} if zone else {})
    found = counts(released(folder / "d.csv", plan))
    assert ticks(found) == Counter(("", tick) for _, tick in rows if tick)
    if length is None:  # Up to now, as far as that is behind the start.
        assert len(found) == (moment(datetime.now(UTC)) - BEGIN) // HOUR
    else:
        assert len(found) == 240
    out = capfd.readouterr()
    assert out.out == out.err == ""


def test_naive_times_where_clocks_change(folder):
    """Europe/Berlin, 2026-03-29 and 2026-10-25: 23 and 25 hours, each row in its own."""
    berlin = ZoneInfo("Europe/Berlin")
    for day in (datetime(2026, 3, 28, 22, tzinfo=UTC), datetime(2026, 10, 24, 20, tzinfo=UTC)):
        walls, expected = [], Counter()
        for minutes in range(0, 12 * 60, 20):
            when = day + timedelta(minutes=minutes)
            wall = when.astimezone(berlin)
            walls.append(f"1,{wall.replace(tzinfo=None).isoformat()}\n")
            # The wall shows one hour twice: the first of the two is meant.
            meant = wall.replace(fold=0).astimezone(UTC)
            expected["", (meant - day) // timedelta(hours=1) + 1] += 1
        random.Random(5).shuffle(walls)
        (folder / "d.csv").write_text("x,when\n" + "".join(walls))
        plan = {**EXACT, "start": day, "length": "12h", "zone": "Europe/Berlin"}
        found = counts(released(folder / "d.csv", plan))
        assert ticks(found) == expected
        assert max(expected.values()) == (6 if day.month == 10 else 3)


def test_no_known_end_goes_on_later(folder, monkeypatch):
    """A durable run up to now; rows of the future are held until a later run releases them."""
    clock = [hour(3.2)]
    monkeypatch.setattr("rillet.engine.job.now", lambda: clock[0])
    rows = [("", 1.0, hour(tick)) for tick in (0.5, 2.5, 2.6, 3.1, 3.5, 7.5)]
    write(folder / "d.csv", rows)
    plan = {**EXACT, "length": None}
    assert ticks(counts(released(folder / "d.csv", plan, state="live"))) == {("", 1): 1, ("", 3): 2}
    clock[0] = hour(9)
    expected = Counter({("", 1): 1, ("", 3): 2, ("", 4): 2, ("", 8): 1})
    run_again = run(
        {
            "plan": {**HOURLY, **plan},
            "source": {"path": "d.csv", "column": "x", "time": "when"},
            "sink": [{"kind": "jsonl", "path": "out.jsonl"}],
            "state": {"folder": "live"},
        }
    )
    assert (run_again.before, run_again.observations) == (3, 9)
    assert ticks(counts(folder / "out.jsonl")) == expected


def test_a_run_each_night_over_a_file_that_grows(folder):
    """Ticks that end later stay open, and what comes for them later counts there."""
    rows = sorted(random_rows(2_000, seed=8, keys=KEYS), key=lambda row: row[2])
    expected = spelled(
        directly(rillet.Plan.from_table({**HOURLY, **LEARNED, "keys": KEYS}), rows, END)
    )
    tables = {
        "plan": {**HOURLY, **LEARNED},
        "keys": {"columns": ["k"], "values": list(KEYS)},
        "source": {"path": "in.csv", "column": "x", "time": "when"},
        "state": {"folder": "live"},
        "sink": [{"kind": "jsonl", "path": "out.jsonl"}],
    }
    for night, until in enumerate((START, "2026-03-02T00:00Z", "2026-03-05T10:30Z", None)):
        far = len(rows) if until is None else sum(at < moment(until) for _, _, at in rows)
        write(folder / "in.csv", rows[: far + 50])  # some came already for what is open
        summary = run(tables, until=until)
        assert summary.observations == (0, 24, 4 * 24 + 10, 240)[night]
    assert (folder / "out.jsonl").read_bytes() == expected


def test_how_far_a_file_is_complete_is_said_by_the_clock_only(folder, capfd):
    write(folder / "in.csv", random_rows(10, seed=1))
    assert main(["run", "in.csv", *OPTIONS, "--until", "yesterday"]) == 2
    assert "until: expected a time such as" in capfd.readouterr().err
    assert main(["run", "in.csv", *OPTIONS, "--until", "2026-03-01T03:00Z"]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 3
    by_count = {
        "plan": LEARNED,
        "source": {"path": "in.csv", "column": "x"},
        "sink": [{"kind": "stdout"}],
    }
    with pytest.raises(ParameterError, match="until: expected none but by the clock"):
        run(by_count, until=START)


def test_nothing_has_ended_yet(folder):
    write(folder / "d.csv", [])
    plan = {**EXACT, "start": "2999-01-01T00:00Z", "length": None}
    with pytest.raises(InputError, match=r"tick 1 is over, at 2999-01-01T01:00.*an earlier start"):
        released(folder / "d.csv", plan)


# --- Much in one tick ----------------------------------------------------------------------------


def crowd(path, rows):
    """So many rows in tick 3, a multiple of 100,000, and one before and behind it; their sum."""
    random = np.random.default_rng(6)
    values = random.integers(0, 1000, 100_000).tolist()
    times = random.uniform(hour(2) / 1e6, hour(2) / 1e6 + 3599, 100_000).tolist()
    text = "".join(f"{value},{at:.3f}\n" for value, at in zip(values, times, strict=True))
    with path.open("w") as stream:
        stream.write(f"x,when\n1,{hour(1.5) / 1e6}\n1,{hour(3.5) / 1e6}\n")
        for _ in range(rows // 100_000):
            stream.write(text)
    return sum(values) * (rows // 100_000) + 2


def crowded(folder, rows):
    """Release it in a process of its own; how many bytes of memory that took."""
    total = crowd(folder / "d.csv", rows)
    program = (
        "import resource, sys\nfrom rillet.cli import main\nassert main(sys.argv[1:]) == 0\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    words = [*without("--statistic"), "--out", "out.jsonl", "--existing", "replace"]
    words += ["--upper", "1000", "--length", "6h"]
    run_it = [sys.executable, "-c", program, "run", "d.csv", *words]
    peak = int(subprocess.run(run_it, check=True, capture_output=True).stdout) * 1024
    records = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert [round(record["count"], 1) for record in records] == [
        *(0, 1, rows + 1, rows + 2, rows + 2, rows + 2)
    ]
    assert records[-1]["sum"] == pytest.approx(total, abs=20)
    return peak


def test_very_many_rows_in_one_tick(folder):
    crowded(folder, 100_000)


@pytest.mark.long
def test_ten_million_rows_in_one_tick_in_flat_memory(folder):
    some = crowded(folder, 1_500_000)
    many = crowded(folder, 10_000_000)
    assert many < some + 20e6
    assert many < 300e6


# --- A pipe --------------------------------------------------------------------------------------


@pytest.fixture
def standard_input(monkeypatch):
    def give(text):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    return give


def test_a_pipe_is_read_to_its_end_and_put_in_order(folder, standard_input, capfd):
    rows = random_rows(500, seed=7)
    write(folder / "d.csv", rows)
    standard_input((folder / "d.csv").read_text())
    assert main(["run", "-", *OPTIONS]) == 0
    out = capfd.readouterr().out.encode()
    inside = Counter((at - BEGIN) // HOUR + 1 for _, _, at in rows)
    expected = {("", tick): count for tick, count in inside.items() if 1 <= tick <= 240}
    assert ticks(counts(out)) == expected
    os.mkfifo(folder / "pipe.csv")
    threading.Thread(target=write, args=(folder / "pipe.csv", rows)).start()
    assert main(["run", "pipe.csv", *OPTIONS]) == 0
    assert capfd.readouterr().out.encode() == out


@pytest.mark.parametrize("kind", [(), ("--format", "jsonl")])
def test_an_empty_pipe_releases_every_tick(standard_input, capfd, kind):
    """That nothing came is protected: it is no error."""
    standard_input("")
    assert main(["run", "-", *OPTIONS, *kind]) == 0
    found = counts(capfd.readouterr().out.encode())
    assert (len(found), ticks(found)) == (240, Counter())


def test_a_pipe_is_refused_with_a_state(folder, standard_input, capfd):
    standard_input("x,when\n")
    assert main(["run", "-", *OPTIONS, "--state", "live"]) == 2
    assert "state: expected none for a pipe by the clock" in capfd.readouterr().err
    assert not (folder / "live").exists()


# --- What is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (without("--start"), "start: expected when the clock starts"),
        (without("--time"), "type --time COLUMN"),
        ((*OPTIONS, "--sequence", "x"), "sequence: expected none for a finished file"),
        ((*OPTIONS, "--time", "never"), "never"),
        ((*OPTIONS, "--zone", "Europe/Nowhere"), "zone"),
        ((*OPTIONS, "--length", "100"), 'length: expected a duration such as "365d"'),
        ((*OPTIONS, "--length", "90m"), "length: expected a multiple of every"),
        ((*OPTIONS, "--secret", "mine"), "type --state DIR as well"),
        (("--column", "x", "--epsilon", "1", "--upper", "9", "--time", "when"), 'give every="1h"'),
    ],
)
def test_errors(folder, capfd, options, message):
    write(folder / "d.csv", random_rows(10, seed=8))
    assert main(["run", "d.csv", *options]) in (2, 5)
    err = capfd.readouterr().err
    assert message in err
    assert "Traceback" not in err
    assert not (folder / "mine").exists(), "a secret was made, and nothing done with it"


# --- Durable -------------------------------------------------------------------------------------


def test_a_secret_of_ones_own_serves_a_state(folder, monkeypatch):
    """And that state alone, as by count."""
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    write(folder / "d.csv", random_rows(500, seed=9))
    assert main(["run", "d.csv", *OPTIONS, "--state", "live", "--secret", "mine"]) == 0
    assert len(rillet.Secret.load("mine").to_bytes()) > 32
    assert main(["run", "d.csv", *OPTIONS, "--state", "other", "--secret", "mine"]) == 4
    # There it goes on, with or without the file: nothing is left to do.
    assert main(["run", "d.csv", *OPTIONS, "--state", "live", "--secret", "mine"]) == 0
    plan = rillet.Plan.from_table({**HOURLY, **EXACT})
    with pytest.raises(ParameterError, match=r"secret: expected none by the clock.*open_folder"):
        plan.open_many(secret=rillet.Secret.load("mine"))


def test_many_small_blocks_of_a_warm_up_are_few_rows_of_the_state(folder):
    """And the state goes on from them as if it had never stopped."""
    plan = rillet.Plan.from_table({**HOURLY, **LEARNED, "keys": ["north", "south"]})
    rows = random_rows(400, seed=14, keys=("north", "south"))
    expected = spelled(directly(plan, rows, END))
    for first in range(0, 400, 100):
        with plan.open_folder("live", secret=None if first else SECRET) as streams:
            for key, value, at in rows[first : first + 100]:
                streams.update(value, key=key, at=at / 1e6)
        with contextlib.closing(sqlite3.connect("live/state.db")) as connection:
            assert connection.execute("SELECT count(*) FROM learning").fetchone()[0] <= 2
    with plan.open_folder("live") as streams:
        assert spelled(streams.advance(until=END)) == expected


def test_a_run_that_has_ended_does_nothing_more(folder):
    write(folder / "d.csv", random_rows(500, seed=10))
    first = released(folder / "d.csv", EXACT, state="live")
    again = run(
        {
            "plan": {**HOURLY, **EXACT},
            "source": {"path": "d.csv", "column": "x", "time": "when"},
            "sink": [{"kind": "jsonl", "path": "out.jsonl"}],
            "state": {"folder": "live"},
        }
    )
    assert (again.before, again.observations, again.releases) == (240, 240, 0)
    assert (folder / "out.jsonl").read_bytes() == first


def test_a_changed_file_is_refused(folder):
    rows = [*random_rows(500, seed=11), ("", 1.0, hour(0.5))]
    write(folder / "d.csv", rows)
    released(folder / "d.csv", EXACT, state="live")
    other = ("", 2.0, hour(0.5))
    for changed in ([*rows[:-1], other], [*rows, other], rows[:-1]):
        write(folder / "d.csv", changed)
        with pytest.raises(StateError, match="not what was absorbed"):
            released(folder / "d.csv", EXACT, state="live")
    write(folder / "d.csv", rows)
    with pytest.raises(StateError, match="not what was absorbed"):
        released(folder / "d.csv", EXACT, state="live", follow=True)


def test_checking_changes_and_spends_nothing(folder):
    write(folder / "d.csv", random_rows(10, seed=12))
    tables = {
        "plan": {**HOURLY, **EXACT},
        "source": {"path": "d.csv", "column": "x", "time": "when"},
        "state": {"folder": "live"},
    }
    assert "all checks passed" in list(check(tables))[-1]
    assert not (folder / "live").exists()
    run(tables)
    assert any("goes on after 240 ticks" in line for line in check(tables))
    assert sorted(path.name for path in folder.iterdir()) == ["d.csv", "live"]
