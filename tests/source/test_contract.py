"""Every source keeps the contract, and the contract notices a source that does not."""

from __future__ import annotations

import itertools
import json
import math
import os
import threading
import uuid
import warnings

import numpy as np
import pytest

from rillet.errors import InputError
from rillet.gather.clock import NO_TIME
from rillet.source import UNDECLARED, Block, DeclaredKeys, Source, open_source
from rillet.testing import ContractViolation, check_source
from rillet.times import now
from source.test_mqtt import address, publish, subscribe

KEYS = DeclaredKeys([("north",), ("south",)], ["line"])
CELLS = [
    "12.625",
    "",
    "late",
    "1e400",
    "-Infinity",
    "1_000",
    " 7 ",
    "٣",
    "0x10",
    "-0",
    "1,5",
    "271.8",
]
NUMBERS = [12.625, math.nan, math.nan, math.inf, -math.inf, math.nan, 7, math.nan, math.nan, 0]
NUMBERS += [math.nan, 271.8]
LINES = ["north", "south", "west", " north", "", "south"] * 2
KEY_OF = [0, 1, UNDECLARED, 0, UNDECLARED, 1] * 2
SEQUENCE = [3, 5, -1, 0, 2**63 - 1, -1, -1, 8, 9, 9, 1, -1]
TEXTS = ["3", "5", "x", "0", str(2**63 - 1), str(2**63), "-4", "8", "9", " 9", "1", ""]
TIMES = ["2026-01-01T00:00Z", "2026-01-01 00:00:00", "", "1767225600", "1.5", "soon"]
TIMES += ["1969-12-31T23:59:59Z", "2099-01-01", "9999-12-31T23:59:59.999999Z", "x", "1e300", "NaT"]
NEW_YEAR = 1_767_225_600_000_000
AT = [NEW_YEAR, NEW_YEAR - 3_600_000_000, NO_TIME, NEW_YEAR, 1_500_000, NO_TIME, -1_000_000]
AT += [4_070_905_200_000_000, 253_402_300_799_999_999, NO_TIME, NO_TIME, NO_TIME]
PERSONS = ["household-1", "17", "", " 17", "1_7", "None", "né", "x" * 300, "0", "-3", "é", "17"]
NAMES = ("line", "x", "n", "at", "who")
ROWS = list(zip(LINES, CELLS, TEXTS, TIMES, PERSONS, strict=True))
EXPECTED = {
    "key_of": KEY_OF,
    "sequence": SEQUENCE,
    "at": AT,
    "person": [person.strip().encode() for person in PERSONS],
}
WANTED = {"sequence": "n", "time": "at", "zone": "Europe/Berlin", "person": "who"}


def csv_file(folder):
    body = "".join(f'{line},"{cell}",{text},{at},{who}\n' for line, cell, text, at, who in ROWS)
    (folder / "d.csv").write_text("line,x,n,at,who\n" + body)
    return folder / "d.csv"


def json_file(folder):
    records = [dict(zip(NAMES, row, strict=True)) for row in ROWS]
    (folder / "d.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder / "d.jsonl"


def parquet_file(folder):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pa.table(dict(zip(NAMES, zip(*ROWS, strict=True), strict=True)))
    pq.write_table(table, folder / "d.parquet", row_group_size=5)
    return folder / "d.parquet"


@pytest.mark.parametrize("write", [csv_file, json_file, parquet_file])
@pytest.mark.parametrize("follow", [False, True])
def test_files(tmp_path, write, follow):
    path = write(tmp_path)
    options = {"path": path, "column": "x", **WANTED}
    if follow:
        if write is parquet_file:
            return
        options["follow"] = True
    check_source(
        lambda stop: open_source(options, keys=KEYS, stop=stop),
        NUMBERS,
        **EXPECTED,
    )


@pytest.mark.parametrize("name", ["long.csv", "long.jsonl", "long.parquet"])
def test_memory_of_files(tmp_path, name):
    def make_long(rows):
        path = tmp_path / f"{rows}-{name}"
        if not path.exists():
            if name.endswith("parquet"):
                pa = pytest.importorskip("pyarrow")
                import pyarrow.parquet as pq

                pq.write_table(pa.table({"x": np.arange(float(rows))}), path, row_group_size=5000)
            else:
                head, row = (
                    ("line,x\n", "north, 12.5\n") if name.endswith("csv") else ("", '{"x": 12.5}\n')
                )
                path.write_text(head + row * rows)
        return open_source({"path": path, "column": "x"})

    check_source(
        lambda stop: open_source({"path": csv_file(tmp_path), "column": "x"}, stop=stop),
        NUMBERS,
        make_long=make_long,
    )


def test_named_pipes(tmp_path):
    text, numbers = csv_file(tmp_path).read_bytes(), itertools.count()

    def make(stop):
        pipe = tmp_path / f"pipe{next(numbers)}"
        os.mkfifo(pipe)
        source = open_source({"path": pipe, "column": "x"}, stop=stop)

        def write():
            with pipe.open("wb") as stream:
                stream.write(text)

        threading.Thread(target=write, daemon=True).start()
        return source

    assert not make(threading.Event()).replayable
    check_source(make, NUMBERS)


def test_mqtt(broker):
    payloads = [json.dumps(dict(zip(NAMES, row, strict=True))) for row in ROWS]
    opened = []

    def make(stop):
        name = f"contract-{uuid.uuid4().hex}"  # each time a session of its own
        options = {"client_id": name, "field": "x", "wait": 0.05, **WANTED}
        topic = f"{name}/{{line}}"
        subscribe(broker, topic, **options)
        lines = [line or "nowhere" for line in LINES]
        publish(broker, [(f"{name}/{k}", p) for k, p in zip(lines, payloads, strict=True)])
        table = {"kind": "mqtt", "address": address(broker), "topic": topic, **options}
        opened.append(name)
        return open_source(table, keys=DeclaredKeys(KEYS.keys), stop=stop)

    check_source(make, NUMBERS, **EXPECTED)
    assert len(opened) > 5


# --- A contract that cannot fail checks nothing ---------------------------------------------------


class Broken(Source):
    """Twenty numbers, with one fault."""

    replayable, redelivers = True, False
    name = identity = "broken"

    def __init__(self, fault, stop):
        self.fault, self.stop = fault, stop
        self.values = np.arange(20) + 0.125

    def __repr__(self):
        return f"Broken({self.values[3] if self.fault == 'repr' else ''})"

    def check(self):
        if self.fault == "check":
            self.values = self.values[1:]

    def blocks(self, start=None, *, block_rows=None):
        row, step = start["rows"] if start else 0, block_rows or 100
        if self.fault == "resume" and row:
            row += 1
        while row < len(self.values) and not (self.stop.is_set() and self.fault != "stop"):
            end = min(row + step + (self.fault == "blocks"), len(self.values))
            values = self.values[row:end].copy()
            if self.fault == "skip":
                values = values[values != 4.125]
                row = row if values.size else end
                if row == end:
                    continue
            if self.fault == "cut":
                values[-1:] += step == 3
            if self.fault == "warning":
                warnings.warn("a value", RuntimeWarning, stacklevel=1)
            position = {"rows": end} if self.fault != "positions" else {"rows": (end,)}
            arrived = {
                "arrived late": np.full(values.size, 2**62),
                "arrived alone": np.array([now()] * (values.size + 1)),
            }.get(self.fault)
            at = np.zeros(values.size, np.int64) if self.fault == "unasked" else None
            who = np.array([b"%d" % (value != 4.125) for value in values.tolist()], object)
            person = who if self.fault == "person" else None
            yield Block(
                values, position, None, {"rows": row}, at=at, person=person, arrived=arrived
            )
            row = end


@pytest.mark.parametrize(
    ("fault", "promise"),
    [
        ("blocks", "blocks"),
        ("check", "one row"),
        ("skip", "one row"),
        ("cut", "one row"),
        ("resume", "resume"),
        ("positions", "positions"),
        ("stop", "stop"),
        ("repr", "silence"),
        ("arrived late", "arrival"),
        ("arrived alone", "arrival"),
        ("unasked", "expected no at"),
    ],
)
def test_a_broken_promise_is_named(fault, promise):
    with pytest.raises(ContractViolation, match=promise):
        check_source(lambda stop: Broken(fault, stop), np.arange(20) + 0.125)


def test_another_person_is_noticed():
    values, persons = np.arange(20) + 0.125, [b"1"] * 20
    with pytest.raises(ContractViolation, match="other persons"):
        check_source(lambda stop: Broken("person", stop), values, person=persons)
    persons[4] = b"0"
    check_source(lambda stop: Broken("person", stop), values, person=persons)


def test_persons_are_text_or_integers_in_every_format(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    found = ['"a"', "7", "7.0", "null", "true", "[7]", "1e400", "7.5", '" 7"']
    lines = "".join(f'{{"x": 1, "who": {who}}}\n' for who in found)
    (tmp_path / "d.jsonl").write_text(lines + '{"x": 1}\nnothing\n')
    options = {"path": tmp_path / "d.jsonl", "column": "x", "person": "who"}
    (block,) = open_source(options).blocks()
    expected = [b"a", b"7", b"7", b"", b"", b"", b"", b"", b"7", b"", b""]
    assert block.person.tolist() == expected
    pq.write_table(pa.table({"x": [1.0, 2.0], "who": [7, None]}), tmp_path / "d.parquet")
    (block,) = open_source({**options, "path": tmp_path / "d.parquet"}).blocks()
    assert block.person.tolist() == [b"7", b""]
    pq.write_table(pa.table({"x": [1.0], "who": [7.5]}), tmp_path / "d.parquet")
    with pytest.raises(InputError, match="text or integers in the column 'who'"):
        open_source({**options, "path": tmp_path / "d.parquet"}).check()
    (tmp_path / "d.csv").write_text("x\n1\n")
    with pytest.raises(InputError, match="'who'"):
        open_source({**options, "path": tmp_path / "d.csv"}).check()


def test_a_warning_is_noticed():
    with pytest.raises(RuntimeWarning):
        check_source(lambda stop: Broken("warning", stop), np.arange(20) + 0.125)


def test_what_is_held_is_noticed():
    class Hoarder(Broken):
        def __init__(self, rows):
            super().__init__("", threading.Event())
            self.values = np.zeros(rows)

        def blocks(self, start=None, *, block_rows=None):
            held = self.values + 1.0
            yield from super().blocks(start, block_rows=block_rows)
            del held

    check = Broken("", threading.Event()).values
    check_source(lambda stop: Broken("", stop), check)
    with pytest.raises(ContractViolation, match="bounded memory"):
        check_source(lambda stop: Broken("", stop), check, make_long=Hoarder)
