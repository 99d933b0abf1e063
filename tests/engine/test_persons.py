"""Persons through whole runs: configuration, command line, files in any order, brokers, kills."""

from __future__ import annotations

import json
import random
import signal
import uuid
from collections import Counter

import numpy as np
import pytest

from engine.clocks import EXACT, HOURLY, LiveJob, counts, hour, ticks, toml
from engine.jobs import CLOCK_METERS
from gather.test_gate import accepted_one_by_one
from helpers.crash import POINTS, Kill, Leg
from rillet import Plan, engine
from rillet.cli import main
from rillet.errors import ParameterError, StateError
from rillet.gather.gate import GateRule

PLAN = {**EXACT, "epsilon": 1e9, **HOURLY}
UNIT = {"kind": "person", "most": 4, "apart": "6h"}
RULE = GateRule(4, 6)


def rows_of(count, seed, persons=25, keys=CLOCK_METERS):
    """Key, value, time and person, in any order."""
    chance = random.Random(seed)
    return [
        (
            chance.choice((*keys, "ghost")),
            chance.choice(["1.5", "20", "99", "", "late"]),
            hour(chance.uniform(-5, 245)),
            chance.choice(["", *(f"person-{number}" for number in range(persons))]),
        )
        for _ in range(count)
    ]


def write(path, rows):
    lines = [f"{key},{value},{at / 1e6},{who}\n" for key, value, at, who in rows]
    if path.suffix == ".csv":
        path.write_text("k,x,when,who\n" + "".join(lines))
        return
    records = [
        {"k": key, "x": float(value) if value.isdigit() else value, "when": at / 1e6, "who": who}
        for key, value, at, who in rows
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def expected(rows, rule=RULE, keys=CLOCK_METERS):
    """How many enter each tick of each key: the rule, in the order of time."""
    used = [
        (int((at - hour(0)) // 3_600_000_000) + 1, who, key)
        for key, value, at, who in rows
        if key in keys and hour(0) <= at < hour(240) and value not in ("", "late")
    ]
    used.sort(key=lambda row: row[0])
    accepted = accepted_one_by_one(rule, [row[1] for row in used], [row[0] for row in used])
    return Counter((key, tick) for ok, (tick, _, key) in zip(accepted, used, strict=True) if ok)


def configuration(folder, name="in.csv", *, unit=UNIT, state=True, **source):
    return {
        "plan": {**PLAN, "unit": unit} if unit else PLAN,
        "source": {
            "path": str(folder / name),
            "column": "x",
            "time": "when",
            "person": "who",
            "block_rows": 97,
            **source,
        },
        "keys": {"columns": ["k"], "values": list(CLOCK_METERS)},
        "sink": [{"kind": "jsonl", "path": str(folder / "out.jsonl")}],
        **({"state": {"folder": str(folder / "live")}} if state else {}),
    }


@pytest.mark.parametrize("name", ["in.csv", "in.jsonl"])
@pytest.mark.parametrize("state", [True, False])
def test_a_file_in_any_order_gives_what_the_rule_says(tmp_path, name, state):
    rows = rows_of(1500, 3)
    write(tmp_path / name, rows)
    engine.run(configuration(tmp_path, name, state=state))
    found = ticks(counts(tmp_path / "out.jsonl"))
    assert found == expected(rows)
    assert 50 < sum(found.values()) <= 25 * 4


def test_a_file_that_has_changed_hands_is_refused(tmp_path):
    """The same values of other persons are another input."""
    rows = rows_of(300, 4)
    write(tmp_path / "in.csv", rows)
    config = configuration(tmp_path)
    engine.run(config)
    changed = [(*row[:3], "somebody") for row in rows]
    write(tmp_path / "in.csv", changed)
    with pytest.raises(StateError, match="not what was absorbed"):
        engine.run(config)
    with pytest.raises(StateError, match="not what was absorbed"):
        list(engine.check(config))
    write(tmp_path / "in.csv", rows)
    assert "all checks passed" in list(engine.check(config))[-1]


def test_the_command_line_says_the_same(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [row for row in rows_of(400, 5, keys=("a",)) if row[0] == "a"]
    write(tmp_path / "in.csv", rows)
    options = [
        *("run", "in.csv", "--column", "x", "--time", "when", "--every", "1h", "--length", "10d"),
        *("--start", HOURLY["start"], "--epsilon", "1e9", "--delta", "2^-20", "--upper", "50"),
        *("--statistic", "count", "--threshold", "fixed", "--state", "live", "--out", "out.jsonl"),
        *("--strategy", "binary-tree:law=gaussian", "--quiet"),
    ]
    person = ("--most", "4", "--apart", "6h")
    assert main([*options, *person]) == 2
    assert "--person" in capfd.readouterr().err
    assert main([*options, "--person", "who"]) == 2
    assert "--most" in capfd.readouterr().err
    assert main([*options, "--person", "who", "--apart", "6h"]) == 2
    assert "most" in capfd.readouterr().err
    assert not (tmp_path / "live").exists()
    assert main([*options, "--person", "who", *person]) == 0
    found = {("a", t): count for (_, t), count in ticks(counts(tmp_path / "out.jsonl")).items()}
    assert found == expected(rows, keys=("a",))
    capfd.readouterr()
    assert main(["state", "live"]) == 0
    shown = capfd.readouterr().out
    assert "gate         " in shown
    assert " bytes" in shown
    assert "at most 4, at least 6 hours apart" in shown
    assert main(["run", "in.csv", "--config", "c.toml", "--person", "who"]) == 2


@pytest.mark.parametrize(
    ("unit", "source", "name"),
    [
        (UNIT, {"person": None}, "source.person"),
        (None, {"person": "who"}, "source.person"),
        (UNIT, {"person": 7}, "source.person"),
    ],
)
def test_a_person_needs_a_column_and_the_column_a_person(tmp_path, unit, source, name):
    write(tmp_path / "in.csv", rows_of(10, 1))
    config = configuration(tmp_path, unit=unit, **source)
    config["source"] = {key: value for key, value in config["source"].items() if value is not None}
    with pytest.raises(ParameterError, match=rf"^{name}:"):
        engine.run(config)
    assert not (tmp_path / "live").exists()


# --- Live ----------------------------------------------------------------------------------------


SECONDS = 7


def live_job(folder, path):
    unit = {"kind": "person", "most": 2, "apart": "2s"}
    source = f"path = '{path}'\ncolumn = 'kwh'\nperson = 'who'\nfollow = true\nblock_rows = 40"
    return LiveJob(folder, source, seconds=SECONDS, unit=unit, epsilon=1e9)


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=() if point in ("committing", "committed") else pytest.mark.long)
        for point in POINTS
    ],
)
def test_killed_and_restarted_nobody_is_over_the_bound(tmp_path, point):
    """A growing file: every person writes all the time, and gets in twice, not once more."""
    path = tmp_path / "in.csv"
    path.write_text("meter,kwh,who\n")
    job = live_job(tmp_path / "job", path)
    chance, persons = random.Random(7), [f"person-{number}" for number in range(30)]
    leg, kills = job.leg(Kill(point, 1 if point == "counted" else 3)), 0
    with path.open("a") as stream:
        for half in range(2 * SECONDS - 1):
            job.wait_for(half / 2)
            chance.shuffle(persons)
            stream.writelines(f"meter-{chance.randint(1, 3)},1.0,{who}\n" for who in persons)
            stream.flush()
            if leg.process.poll() is not None and not kills:
                leg, kills = job.leg(), 1
    assert leg.end() == 0, leg.tail()
    assert kills
    assert sum(job.counts().values()) == 2 * len(persons)


def test_persons_of_messages(tmp_path, broker):
    """The field of the payload tells whose it is, as text or as a number."""
    paho = pytest.importorskip("paho.mqtt.client")
    name = f"persons-{uuid.uuid4().hex}"
    source = (
        f"kind = 'mqtt'\naddress = '{broker.host}:{broker.port}'\ntopic = '{name}/{{meter}}'\n"
        f"client_id = '{name}'\nfield = 'kwh'\nperson = 'who'\nwait = 0.05\n"
    )
    unit = {"kind": "person", "most": 1}
    job = LiveJob(tmp_path / "job", source, seconds=5, unit=unit, epsilon=1e9)
    leg = job.leg()
    assert leg.wait_until_opened(), leg.tail()
    client = paho.Client(paho.CallbackAPIVersion.VERSION2)
    client.connect(broker.host, broker.port)
    client.loop_start()
    job.wait_for(0.5)
    for number in range(120):
        person = [number % 20, str(number % 20), None, ""][number % 4]
        payload = json.dumps({"kwh": 1.0, "who": person})
        client.publish(f"{name}/meter-{number % 3 + 1}", payload, qos=1).wait_for_publish(10)
    client.disconnect()
    client.loop_stop()
    assert leg.end() == 0, leg.tail()
    # Of every four the first two tell a person: numbers 0, 1, 4, 5, …, 16, 17.
    assert sum(job.counts().values()) == 10


@pytest.mark.long
def test_a_million_persons_killed_and_restarted(tmp_path):
    """Everybody comes twice and gets in once; what the gate takes on disk."""
    persons, rows = 1_000_000, 2_000_000
    random_order = np.random.default_rng(1).permutation(rows) % persons
    hours = np.sort(np.random.default_rng(2).uniform(0, 239, rows))
    with (tmp_path / "in.csv").open("w") as stream:
        stream.write("when,x,who\n")
        stream.writelines(
            f"{hour(at) / 1e6:.0f},1.5,h{who}\n"
            for at, who in zip(hours.tolist(), random_order.tolist(), strict=True)
        )
    plan = {**PLAN, "unit": {"kind": "person", "most": 1}}
    config = tmp_path / "run.toml"
    config.write_text(
        f"[plan]\n{toml(plan)}\n[source]\npath = 'in.csv'\ncolumn = 'x'\ntime = 'when'\n"
        "person = 'who'\n[state]\nfolder = 'live'\n[[sink]]\nkind = 'jsonl'\npath = 'out.jsonl'\n"
    )
    for number, point in enumerate(("committing", "committed", "delivered", None)):
        kill = None if point is None else Kill(point, 3)
        leg = Leg(["--config", str(config)], tmp_path / f"log-{number}", kill)
        assert leg.end(600.0) == (0 if kill is None else -signal.SIGKILL), leg.tail()
    last = json.loads((tmp_path / "out.jsonl").read_bytes().splitlines()[-1])
    assert (last["t"], round(last["value"])) == (240, persons)
    plan = Plan.from_json((tmp_path / "live" / "plan.json").read_text())
    with plan.open_folder(tmp_path / "live", only_look=True) as streams:
        assert len(streams.store.gate) == persons
        assert streams.store.gate_bytes < 64 * persons
