"""``rillet.run``: what a program gets, what is told at the end, and sinks that fail or hang."""

from __future__ import annotations

import json
import os
import random
import threading
import time
import urllib.request

import pyarrow.dataset
import pyarrow.parquet
import pytest

import rillet
from helpers.servers import free_port
from rillet.cli import main
from rillet.engine import check
from rillet.engine.job import Courier
from rillet.errors import OutputError, ParameterError, StreamEnded
from rillet.release import NUMBERS
from rillet.sink import SINKS
from rillet.sink.base import Sink, SinkOptions

PLAN = {"mechanism": "baseline", "epsilon": 1.0, "upper": 50.0, "length": 100}


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """A job of five rows, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.csv").write_text("meter,kwh\nm1,1\nm2,2\nm3,3\nm1,4\nm1,5\n")
    return {
        "plan": PLAN,
        "source": {"path": "in.csv", "column": "kwh", "block_rows": 2},
        "sink": [{"kind": "jsonl", "path": "out.jsonl"}],
    }


@pytest.fixture
def keyed(tables):
    keys = {"columns": ["meter"], "values": ["m1", "m2"]}
    return {**tables, "keys": keys, "state": {"folder": "live"}}


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


class Slow(Sink):
    """Waits before it takes anything, fails at once, or both."""

    class Options(SinkOptions, frozen=True, tag="slow"):
        wait: float = 0.0
        fails: bool = False

    name = "slow"
    waiting = threading.Event()

    def _open(self, position):
        self.waiting.clear()

    def _deliver(self, releases):
        self.waiting.wait(self.options.wait)
        if self.options.fails:
            raise OutputError("slow: out of order")

    def _close(self):
        pass


@pytest.fixture(autouse=True)
def slow():
    with SINKS.registered("slow", Slow):
        yield


# --- from Python ---------------------------------------------------------------------------------


def test_a_mapping_is_a_job(tables, tmp_path):
    seen = []
    summary = rillet.run(tables, watch=seen.append)
    assert (summary.observations, summary.releases, summary.delivered) == (5, 5, 5)
    assert [record["t"] for record in lines(tmp_path / "out.jsonl")] == [1, 2, 3, 4, 5]
    assert [one.observations for one in seen] == [0, 2, 4, 5, 5]
    assert summary.charges == rillet.Plan.from_table(PLAN).layout.charges().after(5)


def test_a_plan_may_be_an_object(tables):
    assert rillet.run({**tables, "plan": rillet.Plan.from_table(PLAN)}).observations == 5


def test_a_program_can_stop_it(keyed):
    stop = threading.Event()
    source = {**keyed["source"], "follow": True}
    seen = []

    def watch(summary):
        seen.append(summary)
        if summary.observations == 4:
            stop.set()

    summary = rillet.run({**keyed, "source": source}, watch=watch, stop=stop)
    assert (summary.observations, summary.delivered) == (4, 4)


def test_charges_are_those_of_what_has_come(keyed, tmp_path):
    """A stop before a segment charges nothing for it; of keys, the furthest one counts."""
    plan = {"epsilon": 1.0, "delta": 1e-6, "upper": 50.0, "length": 10_000, "lag": 2, "refresh": 2}
    summary = rillet.run({**keyed, "plan": plan})
    layout = rillet.Plan.from_table({**plan, "keys": ["m1", "m2"]}).layout
    assert len(summary.charges.events) < len(layout.charges().events)
    assert summary.charges == layout.charges().after(3)
    assert "for each of 2 keys" in str(summary)
    again = rillet.run({**keyed, "plan": plan})  # nothing new: the same
    assert again.charges == summary.charges
    assert again.observations == again.before == 4


def test_without_a_sink_or_a_state_there_is_nothing_to_do(tables):
    with pytest.raises(ParameterError, match="at least one sink"):
        rillet.run({**tables, "sink": []})


def test_releases_as_parquet_in_place_of_a_database(keyed, tmp_path, capsys):
    """The same records in the same order; the ledger and a second run know how far it was."""
    keyed["state"] = {"folder": "live", "releases": "parquet"}
    summary = rillet.run(keyed)
    assert summary.delivered == 4
    assert not (tmp_path / "live/releases.db").exists()
    found = pyarrow.dataset.dataset(tmp_path / "live/releases").to_table().to_pylist()
    written = lines(tmp_path / "out.jsonl")
    assert [[row["key"]] for row in found] == [record["key"] for record in written]
    for name in ("t", "name", *NUMBERS):
        assert [row[name] for row in found] == [record[name] for record in written]
    (tmp_path / "in.csv").write_text((tmp_path / "in.csv").read_text() + "m2,1\n")
    assert main(["ledger", "live", "--json"]) == 0
    assert summary.charges.to_json() in capsys.readouterr().out
    again = rillet.run(keyed)
    assert (again.before, again.delivered) == (4, 1)
    assert again.charges == summary.charges
    assert len(pyarrow.dataset.dataset(tmp_path / "live/releases").to_table()) == 5


@pytest.mark.parametrize(("begun", "then"), [("sqlite", "parquet"), ("parquet", "sqlite")])
def test_a_state_keeps_its_releases_in_one_form(keyed, begun, then):
    rillet.run({**keyed, "state": {"folder": "live", "releases": begun}})
    with pytest.raises(ParameterError, match=f"releases: expected '{begun}', as this state was"):
        rillet.run({**keyed, "state": {"folder": "live", "releases": then}})


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_rows_of_a_block_in_any_order_of_keys(keyed, tmp_path, monkeypatch, kind):
    """A key's releases do not depend on what stands between its rows, declared or not."""
    monkeypatch.setattr(
        "rillet.plan.plan.Secret.generate", staticmethod(lambda: rillet.Secret.for_tests(5))
    )
    chance = random.Random(4)
    declared = [("north", 1), ("north", 2), ("south", 1)]
    rows = [(*chance.choice(declared), chance.expovariate(0.1)) for _ in range(200)]
    by_key = sorted(rows, key=lambda row: row[:2])
    others = [("west", 1, 7.0), ("north", 3, 8.0), ("", 0, 9.0)]
    mixed = list(rows)
    for _ in range(100):
        mixed.insert(chance.randrange(len(mixed)), chance.choice(others))
    keys = {"columns": ["site", "meter"], "values": [list(key) for key in declared]}
    found = []
    for turn, order in enumerate((rows, by_key, mixed)):
        path, out = tmp_path / f"{turn}.{kind}", tmp_path / f"{turn}.out"
        sites, meters, values = zip(*order, strict=True)
        table = pyarrow.table({"site": sites, "meter": meters, "kwh": values})
        if kind == "parquet":
            pyarrow.parquet.write_table(table, path)
        elif kind == "csv":
            path.write_text("site,meter,kwh\n" + "".join(f"{a},{b},{x!r}\n" for a, b, x in order))
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
        summary = rillet.run(
            {
                "plan": {**PLAN, "length": 200},
                "keys": keys,
                "source": {"path": str(path), "column": "kwh", "block_rows": 50},
                "sink": [{"kind": "jsonl", "path": str(out)}],
            }
        )
        assert (summary.observations, summary.releases) == (200, 200)
        found.append({(*r["key"], r["t"]): {**r, "at": None} for r in lines(out)})
    assert found[0] == found[1] == found[2]


# --- the end -------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True])
def test_a_single_stream_takes_what_fits(tables, tmp_path, durable):
    state = {"state": {"folder": "live"}} if durable else {}
    with pytest.raises(StreamEnded, match="the first 3 were released"):
        rillet.run({**tables, **state, "plan": {**PLAN, "length": 3}})
    assert [record["t"] for record in lines(tmp_path / "out.jsonl")] == [1, 2, 3]
    if durable:  # what is left of the file is refused again, and changes nothing
        with pytest.raises(StreamEnded):
            rillet.run({**tables, **state, "plan": {**PLAN, "length": 3}})
        assert len(lines(tmp_path / "out.jsonl")) == 3


def test_of_keys_the_block_is_refused_and_the_key_named(keyed, tmp_path):
    with pytest.raises(StreamEnded, match=r"m1.*to 3; nothing of the block was absorbed"):
        rillet.run({**keyed, "plan": {**PLAN, "length": 2}})
    assert [(record["key"], record["t"]) for record in lines(tmp_path / "out.jsonl")] == [
        (["m1"], 1),
        (["m2"], 1),
        (["m1"], 2),
    ]


# --- sinks ---------------------------------------------------------------------------------------


def test_one_that_hangs_does_not_hold_up_the_others(keyed, tmp_path):
    sinks = [{"kind": "slow", "wait": 60.0}, *keyed["sink"]]
    found = []

    def look():
        end = time.monotonic() + 30
        while len(found) < 4 and time.monotonic() < end:
            if (tmp_path / "out.jsonl").exists():
                found[:] = lines(tmp_path / "out.jsonl")
            time.sleep(0.02)
        Slow.waiting.set()

    thread = threading.Thread(target=look)
    thread.start()
    summary = rillet.run({**keyed, "sink": sinks})
    thread.join()
    assert len(found) == 4
    assert summary.delivered == 4


def test_one_that_fails_ends_a_job_that_waits_for_its_source(keyed):
    source = {**keyed["source"], "follow": True}
    tables = {**keyed, "source": source, "sink": [{"kind": "slow", "fails": True}]}
    with pytest.raises(OutputError, match="out of order"):
        rillet.run(tables)


def test_what_one_has_is_not_forgotten_before_all_have_it(keyed, tmp_path):
    failing = {**keyed, "sink": [{"kind": "slow", "fails": True}, *keyed["sink"]]}
    with pytest.raises(OutputError):
        rillet.run(failing)
    whole = {**keyed, "sink": [{"kind": "slow"}, *keyed["sink"]]}
    summary = rillet.run(whole)
    assert summary.releases == summary.delivered >= 1  # those that were left, and the rest
    assert [record["t"] for record in lines(tmp_path / "out.jsonl")] == [1, 1, 2, 3]


# --- metrics, logs, checks -----------------------------------------------------------------------


def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    rows = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in rows}


def test_metrics_are_right_when_nothing_comes(keyed):
    pytest.importorskip("prometheus_client")
    port, stop, found = free_port(), threading.Event(), {}
    source = {**keyed["source"], "follow": True}
    tables = {**keyed, "source": source, "metrics": {"address": f"127.0.0.1:{port}"}}

    def look():
        end = time.monotonic() + 30
        while found.get("rillet_delivered_total") != 4 and time.monotonic() < end:
            time.sleep(0.05)
            try:
                found.update(scrape(port))
            except OSError:
                continue
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            found["health"] = answer.read()
        stop.set()

    thread = threading.Thread(target=look)
    thread.start()
    rillet.run(tables, stop=stop)
    thread.join()
    names = ("observations", "releases", "delivered", "left_out")
    assert [found[f"rillet_{name}_total"] for name in names] == [4, 4, 4, 0]
    assert found["rillet_keys"] == 2
    assert found["rillet_last_block_timestamp_seconds"] == pytest.approx(time.time(), abs=60)
    assert found["health"] == b"ok\n"


def test_a_port_that_is_taken_is_found_before_a_state_is_made(keyed, tmp_path):
    pytest.importorskip("prometheus_client")
    from rillet.engine.metrics import listening

    port = free_port()
    tables = {**keyed, "metrics": {"address": f"127.0.0.1:{port}"}}
    with listening(("127.0.0.1", port)):
        for attempt in (lambda: list(check(tables)), lambda: rillet.run(tables)):
            with pytest.raises(OutputError, match=f"listen on 127.0.0.1:{port}"):
                attempt()
    assert not (tmp_path / "live").exists()


def test_a_check_says_for_how_many_keys(keyed, tmp_path):
    said = list(check(keyed))
    assert "keys: this holds for each of 2 keys" in said
    assert not (tmp_path / "live").exists()


COMMAND = ("run", "in.csv", "--column", "kwh", "--mechanism", "baseline", "--epsilon", "1")
COMMAND += ("--upper", "50", "--missing", "none", "--state", "live")


@pytest.mark.parametrize("length", ["100", "3"], ids=["to the end", "refused"])
def test_json_logs_are_json_lines_only(tables, capsys, length):
    main([*COMMAND, "--length", length, "--log-format", "json"])
    said = capsys.readouterr().err.splitlines()
    messages = [json.loads(line)["message"] for line in said]
    assert any(message.startswith("beginning") for message in messages)
    assert any("promised" in message for message in messages)  # the summary


def test_quiet_is_quiet(tables, capsys):
    assert main([*COMMAND, "--length", "100", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_position_is_told_again_until_it_is_noted():
    """An acknowledgement that fails on a full disk is tried again, for the same batch."""
    sink = Slow(Slow.Options()).open()
    sink.position = lambda: {"rows": 7}
    courier = Courier(sink, lambda: None)
    plan = rillet.Plan.from_table(PLAN)
    courier.take(1, plan.open().update_many([1.0, 2.0]))
    courier.wait()
    assert courier.position(1) == courier.position(1) == {"rows": 7}
    courier.end()


def test_what_a_pipe_has_given_is_released_before_it_gives_more(keyed, tmp_path):
    """A file's next block is absorbed while the disk writes; a pipe may have none for hours."""
    pipe, out = tmp_path / "pipe.csv", tmp_path / "out.jsonl"
    os.mkfifo(pipe)
    keyed["source"] |= {"path": "pipe.csv", "sequence": "n"}
    done = threading.Thread(target=rillet.run, args=(keyed,), daemon=True)
    done.start()
    with pipe.open("w", buffering=1) as given:
        given.write("meter,kwh,n\n")
        for number in range(3):
            given.write(f"m1,{number},{number}\n")
            for _ in range(400):
                if out.exists() and len(out.read_text().splitlines()) > number:
                    break
                time.sleep(0.05)
            assert len(lines(out)) == number + 1
    done.join(20)
    assert not done.is_alive()
