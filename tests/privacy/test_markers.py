"""No private value in any log, message, metric, repr, file or crash dump.

Values that occur nowhere else are fed through every source, while things go wrong; then everything
that the process wrote is searched for them, in every form in which a program writes a number.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from helpers.servers import free_port
from privacy.markers import (
    DROPPED,
    NAME,
    PERSONS,
    VALUES,
    Written,
    id_forms,
    long_forms,
    short_forms,
)
from rillet import ParameterError, Person, Plan, Secret
from rillet.cli import main
from rillet.source import Block
from rillet.state.base import Absorbed, Kept, Pool
from rillet.state.uses import Uses
from rillet.strategy import BinaryTree
from rillet.threshold import FixedThreshold

KEYS = (("north",), ("south",))
PLAN = Plan(
    epsilon=0.5,
    upper=2000.0,
    length=400,
    lag=0,
    threshold=FixedThreshold(),
    strategy=BinaryTree(),
    keys=KEYS,
)
LEARNING = Plan(epsilon=0.5, delta=2**-20, upper=2000.0, length=400, lag=60, keys=KEYS)
INPUTS = ("in.csv", "in.jsonl", "in.parquet", "run.toml", "given.json")


def rows() -> list[tuple[str, float]]:
    """Markers among ordinary values, of declared keys and of another."""
    random = np.random.default_rng(2)
    found = [
        (str(random.choice(["north", "south"])), float(value))
        for value in random.exponential(20.0, 150).round(3)
    ]
    for number, value in enumerate(VALUES * 3):
        found.insert(10 * number + 3, (("north", "south")[number % 2], value))
    for number in range(DROPPED):
        found.insert(4 * number, (NAME, VALUES[number % len(VALUES)]))
    return found


ROWS = rows()


def give(folder: Path, kind: str, data=None) -> None:
    data = ROWS if data is None else data
    if kind == "csv":
        text = "".join(f"{key},{value!r}\n" for key, value in data)
        (folder / "in.csv").write_text("k,x\n" + text)
    elif kind == "jsonl":
        lines = [json.dumps({"k": key, "x": value}) for key, value in data]
        # And some that are no objects at all.
        lines[20:20] = [f'{{"k": "north", "x": "{VALUES[0]!r}', f"{VALUES[1]!r}", f"[{VALUES[0]!r}"]
        (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        keys, values = zip(*data, strict=True)
        table = pyarrow.table({"k": list(keys), "x": list(values)})
        parquet.write_table(table, folder / "in.parquet")


def configure(folder: Path, source: str, *, plan: Plan = PLAN, more: str = "", state=True) -> None:
    (folder / "given.json").write_text(plan.to_json())
    durable = '[state]\nfolder = "live"\n' if state else ""
    (folder / "run.toml").write_text(
        f'[plan]\nfile = "given.json"\n[source]\n{source}\n'
        f'[keys]\ncolumns = ["k"]\nvalues = ["north", "south"]\n{durable}'
        f'[[sink]]\nkind = "jsonl"\npath = "out.jsonl"\n{more}'
    )


def start(folder: Path, *options: str, code: str = "", stdin: bytes | None = None):
    """The command in a process of its own, after some code that makes trouble."""
    program = f"{code}\nimport sys\nfrom rillet.cli import main\nsys.exit(main(sys.argv[1:]))"
    environment = {name: value for name, value in os.environ.items() if name != "RILLET_TRACEBACK"}
    return subprocess.Popen(
        [
            *(sys.executable, "-X", "faulthandler", "-W", "always", "-c", program),
            *("run", "--config", "run.toml", "--log-level", "debug", *options),
        ],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def written(folder: Path, out: bytes, err: bytes) -> Written:
    found = Written({"standard output": out, "standard error": err})
    found.take_folder(folder, leave_out=INPUTS)
    return found


# --- The search finds what is there --------------------------------------------------------------


def test_search_finds_every_form(tmp_path):
    for value in VALUES:
        raw = np.array([value])
        little, big = raw.astype("<f8").tobytes(), raw.astype(">f8").tobytes()
        for shift in range(7):
            before = os.urandom(shift)
            for content in (little, big):
                forms = {**long_forms(value), **short_forms(value)}
                for text in (
                    before + content,
                    (before + content + b"rest").hex().encode(),
                    (before + content).hex().upper().encode(),
                    base64.b64encode(before + content + b"and the rest"),
                    f"found {value!r} here".encode(),
                    f"found {value:.6g} here".encode(),
                    json.dumps({"value": round(value, 2)}).encode(),
                    repr(np.float64(value)).encode(),
                    str([value]).encode(),
                ):
                    assert any(form in text for form in forms.values()), text
    from rillet.gather.grid import Grid

    for value in VALUES[:2]:
        unit = Grid(0.0, 2000.0, PLAN.layout.segments[0].steps).quantise(np.array([value]))
        forms = {**long_forms(value, PLAN), **short_forms(value, PLAN)}
        for text in (
            unit.astype("<i8").tobytes(),
            unit.astype(">i8").tobytes(),
            unit.astype("<i4").tobytes(),
            str(unit.tolist()).encode(),
            base64.b64encode(b"a" + unit.astype("<i8").tobytes() + b"b"),
            np.array([value], "<f4").tobytes(),
        ):
            assert any(form in text for form in forms.values()), text


def test_search_finds_every_form_of_a_person():
    for person in PERSONS:
        forms = set(id_forms(person).values())
        for content in (
            f"unknown person {person!r}".encode(),
            json.dumps({"who": person}).encode(),
            person.encode().hex().encode(),
            b"ab" + base64.b64encode(b"x" + person.encode()),
            hashlib.sha256(person.encode()).digest(),
            hashlib.md5(person.encode()).hexdigest().encode(),
        ):
            assert any(form in content for form in forms), content


def test_check_fails_where_something_is_written(tmp_path):
    hashed = hashlib.sha256(PERSONS[0].encode()).hexdigest()
    planted = (NAME, PERSONS[0], hashed, f"{PERSONS[1]},")
    for content in (f"x={VALUES[0]:.6g}", str(np.array(VALUES[1]).tobytes().hex()), *planted):
        with pytest.raises(AssertionError):
            Written({"log": content.encode()}).check(PLAN)
    Written({"log": b"12 observations, 7 releases"}).check(PLAN)


# --- Every source --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "form", "plan"),
    [
        ("csv", "text", PLAN),
        ("csv", "json", LEARNING),
        ("jsonl", "json", PLAN),
        ("parquet", "text", LEARNING),
    ],
    ids=["csv", "csv, learned", "jsonl", "parquet, learned"],
)
def test_files(tmp_path, kind, form, plan):
    give(tmp_path, kind)
    configure(tmp_path, f'path = "in.{kind}"\ncolumn = "x"\nblock_rows = 50', plan=plan)
    process = start(tmp_path, "--log-format", form)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert b"committed" in err
    assert b"arning" not in err
    found = written(tmp_path, out, err)
    assert {"live/state.db", "live/releases.db", "live/plan.json", "out.jsonl"} <= set(found.files)
    found.check(PLAN)
    check_dropped(err)


@pytest.mark.parametrize("state", [True, False])
def test_standard_input(tmp_path, state):
    give(tmp_path, "csv")
    configure(tmp_path, 'path = "-"\ncolumn = "x"\nformat = "csv"', state=state)
    process = start(tmp_path)
    out, err = process.communicate((tmp_path / "in.csv").read_bytes(), timeout=60)
    assert process.returncode == 0, err
    written(tmp_path, out, err).check(PLAN)
    check_dropped(err)


def check_dropped(err: bytes) -> None:
    """How many rows were dropped, or how many there were, is in no number that was printed."""
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", "", err.decode())
    text = re.sub(r'"time": [0-9.]+', "", text)
    text = re.sub(r"[0-9.]+ s \([0-9,]+ observations a second\)", "", text)
    # Counted among noisy means: any number, by chance also this one.
    text = re.sub(r"noise put [0-9,]+ of", "", text)
    assert "rillet" in text
    numbers = {number.replace(",", "") for number in re.findall(r"\d[\d,]*", text)}
    assert str(DROPPED) not in numbers
    assert str(len(ROWS)) not in numbers


def wait_for(path: Path, process, what, seconds=30.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGABRT, signal.SIGKILL])
def test_signals_metrics_and_dumps_while_following(tmp_path, how):
    """SIGABRT makes the interpreter dump its stacks, as any crash would."""
    give(tmp_path, "csv")
    port = free_port()
    more = f'[metrics]\naddress = "127.0.0.1:{port}"\n'
    configure(tmp_path, 'path = "in.csv"\ncolumn = "x"\nfollow = true', more=more, plan=PLAN)
    process = start(tmp_path)
    out = tmp_path / "out.jsonl"
    wait_for(out, process, lambda: out.exists() and out.stat().st_size > 1000)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        metrics = answer.read()
    assert b"rillet_observations" in metrics
    process.send_signal(how)
    said, err = process.communicate(timeout=60)
    assert process.returncode == (0 if how in (signal.SIGTERM, signal.SIGINT) else -how)
    if how == signal.SIGABRT:
        assert b"Fatal Python error" in err
    found = written(tmp_path, said, err)
    found.texts["metrics"] = metrics
    found.check(PLAN)
    assert not list(tmp_path.rglob("core*"))


def test_broker(tmp_path, broker):
    """Payloads and topics, also of a key that was not declared."""
    paho = pytest.importorskip("paho.mqtt.client")
    name = f"markers-{os.getpid()}"
    source = (
        f'kind = "mqtt"\naddress = "{broker.host}:{broker.port}"\ntopic = "{name}/{{k}}"\n'
        f'client_id = "{name}"\nfield = "x"\nsequence = "n"'
    )
    configure(tmp_path, source)
    process = start(tmp_path, "--log-format", "json")
    wait_for(tmp_path, process, lambda: (tmp_path / "live" / "releases.db").exists())
    client = paho.Client(paho.CallbackAPIVersion.VERSION2)
    client.connect(broker.host, broker.port)
    client.loop_start()
    for number, (key, value) in enumerate(ROWS):
        payload = json.dumps({"x": value, "n": number})
        payload = payload if number % 9 else f'{{"x": {value!r}, '  # and broken ones
        client.publish(f"{name}/{key}", payload, qos=1).wait_for_publish(10)
    out = tmp_path / "out.jsonl"
    wait_for(out, process, lambda: out.exists() and out.read_bytes().count(b"\n") > 50)
    client.disconnect()
    client.loop_stop()
    process.send_signal(signal.SIGTERM)
    said, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    written(tmp_path, said, err).check(PLAN)


# --- When something goes wrong -------------------------------------------------------------------

#: Code that makes trouble, and the exit code that it leads to.
TROUBLE = {
    "engine": (
        """
import rillet.streams
def fail(self, layout, key_of, raw):
    raise ValueError(f'cannot absorb {raw.tolist()} of {key_of}')
rillet.streams.Streams._step_each = fail
""",
        1,
    ),
    "engine, in the middle": (
        """
import rillet.step, rillet.strategy.tree as tree
encode, calls = tree.TreeEncoder.encode, []
def fail(self, state, first, exact_leaves):
    calls.append(1)
    if len(calls) > 5: raise ArithmeticError(exact_leaves.tolist())
    return encode(self, state, first, exact_leaves)
tree.TreeEncoder.encode = fail
""",
        1,
    ),
    "chained": (
        """
import rillet.gather.grid
def fail(self, raw):
    try: raise KeyError(raw.tolist())
    except KeyError as error: raise RuntimeError(str(raw.max())) from error
rillet.gather.grid.Grid.quantise = fail
""",
        1,
    ),
    "sealing": (
        """
from rillet.noise import Secret
def fail(self, content, *, associated): raise MemoryError(content)
import rillet.state.store as store
commit = store.SqliteStore.commit
def later(self, progress, *more):
    if progress.batch: Secret.seal = fail
    return commit(self, progress, *more)
store.SqliteStore.commit = later
""",
        1,
    ),
    "sink": (
        """
from rillet.sink.json_lines import JsonLinesSink
from rillet.errors import OutputError
def fail(self, table): raise OutputError('out.jsonl: out of order')
JsonLinesSink.deliver = fail
""",
        5,
    ),
    "sink, unforeseen": (
        """
from rillet.sink.json_lines import JsonLinesSink
def fail(self, table): raise ZeroDivisionError('what?')
JsonLinesSink.deliver = fail
""",
        1,
    ),
    "disk": (
        """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, 120_000))
""",
        5,
    ),
    "database": (
        """
import sqlite3, rillet.state.store as store
put = store.SqliteStore._progress_content
def fail(self, progress, pool, bound):
    if progress.observations: raise sqlite3.DatabaseError(str(progress))
    return put(self, progress, pool, bound)
store.SqliteStore._progress_content = fail
""",
        4,
    ),
}


@pytest.mark.parametrize("trouble", TROUBLE)
def test_errors_in_the_middle(tmp_path, trouble):
    code, expected = TROUBLE[trouble]
    give(tmp_path, "csv", ROWS * 3)
    configure(tmp_path, 'path = "in.csv"\ncolumn = "x"\nblock_rows = 40')
    process = start(tmp_path, code=code)
    out, err = process.communicate(timeout=60)
    assert process.returncode == expected, err.decode()
    assert b"Traceback" not in err
    if expected == 1:
        assert b"unforeseen" in err
    written(tmp_path, out, err).check(PLAN)


def test_other_input_is_refused_without_a_word_of_it(tmp_path):
    give(tmp_path, "csv")
    configure(tmp_path, 'path = "in.csv"\ncolumn = "x"')
    process = start(tmp_path)
    process.communicate(timeout=60)
    assert process.returncode == 0
    give(tmp_path, "csv", [*ROWS[:-1], ("north", VALUES[0] + 1e-3)])
    process = start(tmp_path)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 4
    written(tmp_path, out, err).check(PLAN)
    check_dropped(err)


# --- Objects -------------------------------------------------------------------------------------


def block(values=VALUES) -> Block:
    key_of = np.array([0, 1, 0, -1])
    rows = 20 + DROPPED
    return Block(np.array(values), {"rows": rows + 4}, None, {"rows": rows}, key_of)


def test_repr_of_everything_that_holds_data(tmp_path):
    raw = np.array(VALUES)
    shown = {}
    for name, plan in (("fixed", PLAN), ("learning", LEARNING)):
        stream = plan.open(secret=Secret.for_tests(1), key=("north",))
        stream.update_many(raw)
        state = stream._state()
        many = plan.open_many(secret=Secret.for_tests(1))
        key_of = np.array([0, 1, 0, -1])
        many.absorb(raw, key_of)
        durable = plan.open_folder(tmp_path / name, secret=Secret.for_tests(1))
        absorbed = Absorbed({"rows": DROPPED}, {"rows": DROPPED + 4}, 4, "0" * 32)
        durable.absorb(raw, key_of, absorbed=absorbed)
        store = durable._store
        stored = list(store._cached.values())
        for thing in (
            *(stream, state, many, many._store, durable, store, store.progress, *stored),
            *(Kept(state), plan, plan.layout, stream.charges, stream.secret, many.stream("north")),
        ):
            shown[f"{name}: {type(thing).__name__}"] = repr(thing) + str(thing) + f"{thing}"
        durable.close()
    pool = Pool(Secret.for_tests(1), (np.array([0]),), (raw,))
    for thing in (block(), pool):
        shown[type(thing).__name__] = repr(thing)
    assert len(shown) > 20
    Written({name: text.encode() for name, text in shown.items()}).check(PLAN)
    for text in shown.values():
        assert Secret.for_tests(1)._material.hex() not in text


# --- Sizes and lines -----------------------------------------------------------------------------


def log_lines(log: str) -> list[str]:
    """All lines but the one that counts releases without a value, which are public."""
    of_releases = "releases have no value", "means outside of their range"
    lines = log.splitlines()
    return sorted(line for line in lines if not any(words in line for words in of_releases))


def outcome(folder: Path, data, plan: Plan, block_rows: int = 10_000):
    """Sizes of everything that is in the clear, and the lines of the log without times."""
    folder.mkdir()
    give(folder, "csv", data)
    configure(folder, f'path = "in.csv"\ncolumn = "x"\nblock_rows = {block_rows}', plan=plan)
    Secret(bytes(32)).save(folder / "secret")
    said = io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stderr(said),
        pytest.MonkeyPatch.context() as patch,
    ):
        # Each as in a process of its own: within one, the same secret is refused for other data.
        patch.setattr("rillet.state.uses._IN_PROCESS", Uses())
        options = ["--log-level", "debug", "--secret", "secret"]
        assert main(["run", "--config", "run.toml", *options]) == 0
    sizes = {}
    with contextlib.closing(sqlite3.connect(folder / "live" / "state.db")) as connection:
        for table in ("progress", "streams", "learning", "outbox", "sinks", "gate"):
            query = f"SELECT length(sealed) FROM {table}"
            sizes[table] = [size for (size,) in connection.execute(query)]
    sizes["files"] = {
        path.name: path.stat().st_size for path in folder.rglob("*") if path.name not in INPUTS
    }
    del sizes["files"]["secret.uses"]
    del sizes["files"]["progress.json"]  # has the time of day, with as many digits as it takes
    log = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", "", said.getvalue())
    log = re.sub(r"[0-9.]+ s \([0-9,]+ observations a second\)", "", log)
    # Two threads write to it.
    return sizes, log_lines(log)


def test_one_value_changes_no_size_and_no_line(tmp_path):
    """In a learning buffer, and in a leaf that is not complete."""
    plan = Plan(epsilon=0.5, upper=2000.0, length=4000, every=150, lag=160, keys=KEYS)
    data = [(key, value) for key, value in ROWS if key != NAME][:150]
    first = outcome(tmp_path / "first", data, plan)
    for number, value in enumerate((0.0, VALUES[3], float("nan"))):
        changed = [*data[:70], (data[70][0], value), *data[71:]]
        assert outcome(tmp_path / str(number), changed, plan) == first


@pytest.mark.parametrize("plan", [PLAN, LEARNING], ids=["fixed", "learned"])
def test_which_rows_are_undeclared_changes_no_size_and_no_line(tmp_path, plan):
    declared = [row for row in ROWS if row[0] != NAME]
    first = outcome(tmp_path / "first", ROWS, plan)
    others = {
        "none": declared,
        "at the end": [*declared, *[(NAME, 1.0)] * 5000],
        "at the front": [*[("", 7.5)] * 123, *declared],
    }
    for name, data in others.items():
        assert outcome(tmp_path / name, data, plan) == first, name


# --- By the clock: nothing tells how many there are ----------------------------------------------

CLOCK = Plan(
    epsilon=0.5,
    upper=2000.0,
    every="1h",
    start="2026-03-01T00:00Z",
    length="48h",
    threshold=FixedThreshold(),
    strategy=BinaryTree(),
    keys=KEYS,
)
CLOCK_LEARNING = Plan(
    epsilon=0.5, delta=2**-20, upper=2000.0, every="1h", start=CLOCK.start, length="48h", lag=6,
    keys=KEYS,
)  # fmt: skip
#: Numbers of rows that are no numbers of anything else.
MANY, HELD = 4567, 3571


def timed(count: int, *, hours: float = 50.0) -> list[tuple[str, float, float]]:
    """Key, value and time of so many rows, some of them of no key or in no tick."""
    begin = 1_772_323_200  # CLOCK.start
    random = np.random.default_rng(3)
    times = begin + (random.uniform(-1.0, hours, count) * 3600).round(3)
    rows = [ROWS[number % len(ROWS)] for number in range(count)]
    return [(key, value, float(at)) for (key, value), at in zip(rows, times, strict=True)]


def by_clock(
    folder: Path, data, *, plan: Plan = CLOCK, more: str = "", follow=False, extra="time = 'when'"
):
    text = "".join(f"{key},{value!r},{at!r}\n" for key, value, at in data)
    (folder / "in.csv").write_text("k,x,when\n" + text)
    source = f'path = "in.csv"\ncolumn = "x"\n{extra}\nfollow = {str(follow).lower()}'
    configure(folder, source, plan=plan, more=more)


def numbers_in(text: bytes) -> set[str]:
    plain = re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[,.]\d+", "", text.decode())
    plain = re.sub(r'"time": [0-9.]+', "", plain)
    plain = re.sub(r"[0-9.]+ s \([0-9,]+ ticks a second\)", "", plain)
    return {number.replace(",", "") for number in re.findall(r"\d[\d,]*", plain)}


def told(data) -> set[str]:
    """Numbers of rows that nothing may show: all, those of keys, those in ticks, of each key."""
    begin, end = 1_772_323_200, 1_772_323_200 + 48 * 3600
    kept = [row for row in data if row[0] != NAME]
    inside = [row for row in kept if begin <= row[2] < end]
    counts = {len(data), len(kept), len(inside), len(data) - len(inside)}
    counts |= {sum(row[0] == key for row in rows) for (key,) in KEYS for rows in (kept, inside)}
    return {str(count) for count in counts if count > 100}


@pytest.mark.parametrize("plan", [CLOCK, CLOCK_LEARNING], ids=["fixed", "learned"])
def test_by_the_clock_over_a_file(tmp_path, plan, capfd):
    data = timed(MANY)
    by_clock(tmp_path, data, plan=plan)
    process = start(tmp_path, "--log-format", "json", "--progress")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert b"48 ticks" in err
    found = written(tmp_path, out, err)
    found.check(PLAN)
    with contextlib.chdir(tmp_path):
        assert main(["state", "live"]) == 0
    shown = capfd.readouterr().out.encode()
    assert b"48 ticks" in shown
    clear = found.files["state.db, in the clear"]
    for text in (out, err, shown):
        assert not told(data) & numbers_in(text)
        assert b"observations so far" not in text
    for number in told(data):
        assert f'"{number}"'.encode() not in clear
        assert f": {number}".encode() not in clear


def test_by_the_clock_while_following(tmp_path, capfd):
    """Metrics, logs and the state of a live run, with rows that are late, early and held."""
    data = timed(HELD)
    port = free_port()
    plan = Plan.from_json(
        CLOCK.to_json()
        .replace('"1h"', '"1s"')
        .replace(CLOCK.start, f"{time.time() - 20:.0f}")
        .replace('"2d"', '"48s"')
        .replace('"48h"', '"48s"')
    )
    begin = float(plan.clock.start) / 1e6
    data = [(key, value, begin + 60 * index / HELD) for index, (key, value, _) in enumerate(data)]
    by_clock(
        tmp_path, data, plan=plan, follow=True, more=f'[metrics]\naddress = "127.0.0.1:{port}"\n'
    )
    process = start(tmp_path)
    out = tmp_path / "out.jsonl"
    wait_for(out, process, lambda: out.exists() and out.stat().st_size > 1000)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        metrics = answer.read()
    assert b"rillet_ticks_total" in metrics
    assert b"rillet_observations" not in metrics
    process.send_signal(signal.SIGTERM)
    said, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert b"ticks so far" in err
    found = written(tmp_path, said, err)
    found.texts["metrics"] = metrics
    found.check(PLAN)
    with contextlib.chdir(tmp_path):
        assert main(["state", "live"]) == 0
    shown = capfd.readouterr().out.encode()
    lengths = {str(len(data)), str(sum(row[0] != NAME for row in data))}
    for text in (metrics, said, err, shown):
        assert not lengths & numbers_in(text)


def clock_outcome(folder: Path, data, plan: Plan, level: str = "debug"):
    """As `outcome`, by the clock, with what ``rillet state`` says."""
    folder.mkdir()
    by_clock(folder, data, plan=plan)
    Secret(bytes(32)).save(folder / "secret")
    said, looked = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stderr(said),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("rillet.state.uses._IN_PROCESS", Uses())
        options = ["--log-level", level, "--secret", "secret"]
        assert main(["run", "--config", "run.toml", *options]) == 0
        with contextlib.redirect_stdout(looked):
            assert main(["state", "live"]) == 0
    sizes = {}
    with contextlib.closing(sqlite3.connect(folder / "live" / "state.db")) as connection:
        for table in ("progress", "streams", "learning", "outbox", "sinks", "gate"):
            query = f"SELECT length(sealed) FROM {table}"
            sizes[table] = [size for (size,) in connection.execute(query)]
    log = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", "", said.getvalue())
    log = re.sub(r"[0-9.]+ s \([0-9,]+ ticks a second\)", "", log)
    return log_lines(log), looked.getvalue(), sizes


@pytest.mark.parametrize("plan", [CLOCK, CLOCK_LEARNING], ids=["fixed", "learned"])
def test_by_the_clock_what_is_there_changes_no_line(tmp_path, plan):
    """One observation more or less, of a key or of none, in a tick or not; or none at all."""
    data = timed(800)
    first = clock_outcome(tmp_path / "first", data, plan)
    others = {
        "one less": data[1:],
        "one more": [*data, ("north", VALUES[0], data[0][2])],
        "undeclared": [*data, (NAME, 1.0, data[0][2])],
        "in no tick": [*data, ("south", 5.0, 0.0), ("south", 5.0, 4e9)],
        "no number": [*data, ("south", float("nan"), data[5][2])],
        "none": [],
    }
    for name, changed in others.items():
        assert clock_outcome(tmp_path / name, changed, plan)[:2] == first[:2] or not changed, name
    # Where there is nothing no block is read, which a line says at level debug alone.
    quiet = clock_outcome(tmp_path / "quiet", data, plan, "info")
    assert clock_outcome(tmp_path / "nothing", [], plan, "info") == quiet


# --- Persons -------------------------------------------------------------------------------------

PEOPLE = dataclasses.replace(CLOCK, unit=Person(most=5, apart="2h", within="24h"))


def of_persons(count: int) -> list[tuple[str, float, float, str]]:
    """Rows by the clock, half of them of the planted persons, some of nobody."""
    others = ["", *(f"p{number}" for number in range(337))]
    return [
        (*row, PERSONS[index % 4 // 2] if index % 2 else others[index % len(others)])
        for index, row in enumerate(timed(count))
    ]


def give_persons(folder: Path, kind: str, data, *, plan=PEOPLE, more="", follow=False) -> None:
    """As `by_clock`, with a column of persons."""
    columns = ("k", "x", "when", "who")
    if kind == "csv":
        text = "".join(f"{key},{value!r},{at!r},{who}\n" for key, value, at, who in data)
        (folder / "in.csv").write_text(",".join(columns) + "\n" + text)
    elif kind == "jsonl":
        records = [dict(zip(columns, row, strict=True)) for row in data]
        for record in records:
            record["who"] = int(record["who"]) if record["who"].isdecimal() else record["who"]
        lines = [json.dumps(record) for record in records]
        lines[20:20] = [f'{{"k": "north", "who": "{PERSONS[0]}', f'["{PERSONS[0]}"]']
        (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        table = pyarrow.table(dict(zip(columns, map(list, zip(*data, strict=True)), strict=True)))
        parquet.write_table(table, folder / "in.parquet")
    source = f'path = "in.{kind}"\ncolumn = "x"\ntime = "when"\nperson = "who"\nblock_rows = 500'
    configure(folder, f"{source}\nfollow = {str(follow).lower()}", plan=plan, more=more)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_persons_over_a_file(tmp_path, kind, capfd):
    data = of_persons(MANY)
    give_persons(tmp_path, kind, data)
    process = start(tmp_path, "--log-format", "json", "--progress")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert b"48 ticks" in err
    found = written(tmp_path, out, err)
    with contextlib.chdir(tmp_path):
        assert main(["state", "live"]) == 0
    shown = capfd.readouterr().out.encode()
    assert b"gate " in shown
    found.texts["rillet state"] = shown
    found.check(PLAN)
    entered = set(map(str, range(320, 341)))  # about as many persons as there are
    for text in (out, err, shown):
        assert not (told([row[:3] for row in data]) | entered) & numbers_in(text)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGABRT, signal.SIGKILL])
def test_persons_while_following(tmp_path, how):
    """SIGABRT makes the interpreter dump its stacks, as any crash would."""
    plan = Plan.from_json(
        PEOPLE.to_json()
        .replace('"1h"', '"1s"')
        .replace('"2h"', '"2s"')
        .replace('"24h"', '"24s"')
        .replace('"1d"', '"24s"')
        .replace(CLOCK.start, f"{time.time() - 20:.0f}")
        .replace('"2d"', '"48s"')
    )
    begin, port = float(plan.clock.start) / 1e6, free_port()
    data = [
        (key, value, begin + 60 * index / HELD, who)
        for index, (key, value, _, who) in enumerate(of_persons(HELD))
    ]
    more = f'[metrics]\naddress = "127.0.0.1:{port}"\n'
    give_persons(tmp_path, "csv", data, plan=plan, more=more, follow=True)
    process = start(tmp_path)
    out = tmp_path / "out.jsonl"
    wait_for(out, process, lambda: out.exists() and out.stat().st_size > 1000)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        metrics = answer.read()
    process.send_signal(how)
    said, err = process.communicate(timeout=60)
    assert process.returncode == (0 if how == signal.SIGTERM else -how)
    found = written(tmp_path, said, err)
    found.texts["metrics"] = metrics
    found.check(PLAN)
    assert b"person" not in metrics


#: Code that makes trouble where persons are.
PERSON_TROUBLE = {
    "gate": """
import rillet.gather.gate as gate
def fail(self, person_of, tick_of):
    raise ValueError(f'cannot decide {person_of} {tick_of.tolist()}')
gate.Gate.decide = fail
""",
    "pseudonyms": """
import rillet.gather.gate as gate
def fail(self, raw_ids): raise KeyError(raw_ids[:50])
gate.Pseudonyms.__call__ = fail
""",
    "columns": """
import rillet.source.keys as keys
def fail(self, raw_values, raw_columns, raw_at, *, plain=False): raise TypeError(raw_columns)
keys.Wanted.raw_rows = fail
""",
}


@pytest.mark.parametrize("trouble", PERSON_TROUBLE)
def test_persons_when_something_goes_wrong(tmp_path, trouble):
    give_persons(tmp_path, "csv", of_persons(800))
    process = start(tmp_path, code=PERSON_TROUBLE[trouble])
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"unforeseen" in err
    assert b"Traceback" not in err
    written(tmp_path, out, err).check(PLAN)


def test_repr_of_everything_that_holds_persons(tmp_path):
    persons, at = [*PERSONS, *PERSONS], 1_772_323_200 + 60.0
    memory = PEOPLE.open_many(secret=Secret.for_tests(1))
    durable = PEOPLE.open_folder(tmp_path / "live", secret=Secret.for_tests(1))
    shown = {}
    for name, streams in (("memory", memory), ("durable", durable)):
        streams.update_many(np.array(VALUES), key="north", at=at, person=persons)
        gate = streams.store.gate
        for thing in (streams, streams.stream("north"), streams.store, gate, gate.pseudonyms):
            shown[f"{name}: {type(thing).__name__}"] = f"{thing!r} {thing}"
        with pytest.raises(ParameterError) as refused:
            streams.update_many([1.0], key="north", at=at, person=persons)
        shown[f"{name}: length"] = str(refused.value)
        key, pseudonym = gate.key.hex(), gate.pseudonyms([PERSONS[0].encode()]).tobytes().hex()
        assert key not in str(shown)
        assert pseudonym not in str(shown)
    durable.close()
    person = np.array([who.encode() for who in persons], object)
    shown["block"] = repr(dataclasses.replace(block(), person=person))
    plain = Plan(epsilon=0.5, upper=2000.0, length=400).open()
    with pytest.raises(ParameterError) as refused:
        plain.update(1.0, person=PERSONS[0])
    shown["refused"] = str(refused.value)
    assert len(shown) > 12
    found = Written({name: text.encode() for name, text in shown.items()})
    found.take_folder(tmp_path, leave_out=())
    found.check(PLAN)


def test_who_is_there_changes_no_line(tmp_path):
    """One reading more or less of a person, another person, or nobody."""
    data = of_persons(800)
    first = person_outcome(tmp_path / "first", data)
    others = {
        "one less": data[1:],
        "one more": [*data, (*data[5][:3], "somebody new")],
        "nobody": [(*row[:3], "" if index == 7 else row[3]) for index, row in enumerate(data)],
        "over the bound": [*data, *[data[1]] * 20],
    }
    for name, changed in others.items():
        assert person_outcome(tmp_path / name, changed) == first, name


def person_outcome(folder: Path, data):
    """Lines of the log and of ``rillet state``."""
    folder.mkdir()
    give_persons(folder, "csv", data)
    said, looked = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stderr(said):
        assert main(["run", "--config", "run.toml", "--log-level", "info"]) == 0
        with contextlib.redirect_stdout(looked):
            assert main(["state", "live"]) == 0
    log = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", "", said.getvalue())
    log = re.sub(r"[0-9.]+ s \([0-9,]+ ticks a second\)", "", log)
    return log_lines(log), looked.getvalue()
