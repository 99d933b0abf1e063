"""The time of a row, from a column or field, and when it arrived."""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from rillet import InputError, ParameterError
from rillet.gather.clock import NO_TIME
from rillet.source import open_source
from rillet.source.base import RawRows
from rillet.times import SECOND, moment, now
from source.test_follow import Reader
from source.test_mqtt import address, publish, subscribe

TIME = datetime(2026, 7, 1, 12, 30, tzinfo=UTC)
AT = moment(TIME)
WALL = TIME.astimezone(ZoneInfo("Europe/Berlin")).replace(tzinfo=None)


def read(path, **options):
    source = open_source({"path": path, "column": "x", "time": "at", **options})
    source.check()
    return np.concatenate([block.at for block in source.blocks(block_rows=2)]).tolist()


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_csv(tmp_path, ending):
    rows = ["at,x", f"{TIME.isoformat()},1", f"{WALL},2", '"2026-07-01T12:30Z ",3', "4", ",5"]
    rows += [f"{TIME.timestamp()},6", "2026-07-01T08:30:00.000-04:00,7"]
    (tmp_path / "d.csv").write_text(ending.join([*rows, ""]))
    expected = [AT, AT, AT, 4 * SECOND, NO_TIME, AT, AT]
    assert read(tmp_path / "d.csv", zone="Europe/Berlin") == expected
    expected[1] = NO_TIME
    assert read(tmp_path / "d.csv") == expected
    # The time as the last column, where a carriage return would stick to it.
    (tmp_path / "e.csv").write_text(ending.join(["x,at", f"1,{TIME.isoformat()}", "2", ""]))
    assert read(tmp_path / "e.csv") == [AT, NO_TIME]


def test_json_lines(tmp_path):
    values = [TIME.isoformat(), WALL.isoformat(), TIME.timestamp(), int(TIME.timestamp())]
    values += [None, True, [], {}, "x", 10**30, -1e300, "1e9"]
    lines = [json.dumps({"x": 1, "at": value}) for value in values]
    lines += ['{"x": 1}', "[", '{"x": 1, "at": NaN}', '{"x": 1, "at": ' + "9" * 5000 + "}"]
    (tmp_path / "d.jsonl").write_text("\n".join(lines))
    expected = [AT] * 4 + [NO_TIME] * 7 + [10**9 * SECOND] + [NO_TIME] * 4
    assert read(tmp_path / "d.jsonl", zone="Europe/Berlin") == expected
    numbers = [json.dumps({"x": 1, "at": value}) for value in (5, 2.5, 10**400)]
    (tmp_path / "e.jsonl").write_text("\n".join(numbers))
    assert read(tmp_path / "e.jsonl") == [5 * SECOND, 2_500_000, NO_TIME]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Kathmandu"])
def test_parquet_timestamps(tmp_path, unit, zone):
    pa = pytest.importorskip("pyarrow")
    raw = [WALL if zone is None else TIME, None, *[TIME.replace(tzinfo=None)] * 3]
    at = pa.array(raw, pa.timestamp(unit, zone))
    write(pa, tmp_path / "d.parquet", at)
    later = AT if zone else moment(raw[2], "Europe/Berlin")
    expected = [AT, NO_TIME, *[later] * 3]
    assert read(tmp_path / "d.parquet", zone="Europe/Berlin") == expected
    if zone is None:
        with pytest.raises(ParameterError, match=r"zone: .* column 'at' .* such as"):
            read(tmp_path / "d.parquet")
    else:
        assert read(tmp_path / "d.parquet") == expected


def write(pa, path, at):
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": np.arange(float(len(at))), "at": at}), path, row_group_size=3)


def test_parquet_of_other_types(tmp_path):
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / "d.parquet"
    seconds = int(TIME.timestamp())
    for column in (
        pa.array([seconds, None], pa.int64()),
        pa.array([seconds, None], pa.uint32()),
        pa.array([float(seconds), float("nan")]),
        pa.array([TIME.isoformat(), "x"]),
        pa.array([TIME.isoformat(), None]).dictionary_encode(),
        pa.array([str(seconds), ""]),
    ):
        write(pa, path, column)
        assert read(path) == [AT, NO_TIME]
    for kind in (pa.date32(), pa.date64()):
        write(pa, path, pa.array([date(2026, 7, 1), None], kind))
        assert read(path, zone="Europe/Berlin") == [moment("2026-06-30T22:00Z"), NO_TIME]
        with pytest.raises(ParameterError, match="zone"):
            read(path)
    for column in (pa.array([True, None]), pa.array([1, 2], pa.duration("s")), pa.array([[1], []])):
        write(pa, path, column)
        with pytest.raises(InputError, match="expected times, numbers or text in the column 'at'"):
            read(path)


def test_what_is_not_there_is_refused(tmp_path):
    (tmp_path / "d.csv").write_text("x,when\n1,2\n")
    with pytest.raises(InputError, match="'at'"):
        read(tmp_path / "d.csv")
    (tmp_path / "d.jsonl").write_text('{"x": 1, "when": 2}\n')
    with pytest.raises(InputError, match="'at'"):
        read(tmp_path / "d.jsonl")
    (tmp_path / "e.jsonl").write_text("1\n")
    with pytest.raises(ParameterError, match="column"):
        read(tmp_path / "e.jsonl", column=None)
    with pytest.raises(ParameterError, match="zone"):
        read(tmp_path / "d.csv", zone="Europe/Atlantis")
    with pytest.raises(ParameterError, match="since time names one"):
        open_source({"kind": "mqtt", "address": "h", "topic": "t", "client_id": "c", "time": "at"})


def test_rows_are_cut_and_joined_with_their_times():
    raw = RawRows(np.arange(4.0), None, None, np.arange(4) * 10)
    assert raw.part(slice(1, 3)).at.tolist() == [10, 20]
    assert raw.joined(raw.part(slice(1))).at.tolist() == [0, 10, 20, 30, 0]
    assert raw.part(slice(2)).key_of is None


# --- Arrival --------------------------------------------------------------------------------------


def test_a_finished_file_has_no_arrival(tmp_path):
    (tmp_path / "d.csv").write_text("x\n1\n")
    (block,) = open_source({"path": tmp_path / "d.csv"}).blocks()
    assert block.arrived is None
    assert block.at is None


def test_rows_of_a_followed_file_arrive_when_they_are_read(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("x\n1\n2\n")
    began = now()
    with Reader(path) as reader:
        reader.wait_for(2)
        between = now()
        with path.open("a") as stream:
            stream.write("3\n")
        reader.wait_for(3)
    arrived = np.concatenate([block.arrived for block in reader.blocks])
    assert began <= arrived[0] == arrived[1] <= between <= arrived[2] <= now()


def test_rows_of_a_pipe_arrive_when_they_are_read_and_not_when_they_are_asked_for(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    threading.Thread(target=lambda: pipe.write_text("x\n1\n2\n3\n"), daemon=True).start()
    blocks = open_source({"path": pipe, "format": "csv"}).blocks(block_rows=1)
    first = next(blocks)
    time.sleep(0.05)
    before = now()
    assert [block.arrived.tolist() for block in blocks] == [first.arrived.tolist()] * 2
    assert first.arrived[0] < before


def test_messages_arrive_when_they_are_received(broker):
    name = f"arrival-{uuid.uuid4().hex}"
    options = {"client_id": name, "field": "x", "wait": 0.2}
    subscribe(broker, name, **options)
    payloads = [json.dumps({"x": 1, "at": value}) for value in (TIME.isoformat(), 5, "x")]
    publish(broker, [(name, payload) for payload in payloads])
    began = now()
    table = {"kind": "mqtt", "address": address(broker), "topic": name, "time": "at", **options}
    blocks = open_source(table).blocks(block_rows=3)
    block = next(blocks)
    received = now()
    assert block.at.tolist() == [AT, 5 * SECOND, NO_TIME]
    assert np.all((began <= block.arrived) & (block.arrived <= received))
    assert np.all(np.diff(block.arrived) >= 0)
    blocks.close()


def moves_on(source, beyond):
    """Wait until everything before a time was handed over, as it is while nothing comes."""
    end = time.monotonic() + 30
    while source.heard_until <= beyond:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_followed_file_tells_until_when_it_has_handed_over_everything(tmp_path):
    path, stop = tmp_path / "d.csv", threading.Event()
    path.write_text("")
    source = open_source({"path": path, "column": "x", "follow": True}, stop=stop)
    with ThreadPoolExecutor() as pool:
        opened = pool.submit(source.blocks)
        moves_on(source, now())  # while it waits for the first line
        path.write_text("x\n")
        waiting = pool.submit(next, opened.result(30))
        for _ in range(3):
            moves_on(source, now())
            with path.open("a") as stream:
                stream.write("1\n")
            block = waiting.result(30)
            # Not asked for more, it may hold rows that came together with these.
            assert source.heard_until <= block.arrived[0]
            waiting = pool.submit(next, opened.result())
        stop.set()
        assert isinstance(waiting.exception(30), StopIteration)


def test_a_broker_is_heard_until_the_first_message_that_is_held(broker):
    name, stop = f"heard-{uuid.uuid4().hex}", threading.Event()
    options = {"client_id": name, "field": "x", "wait": 3.0}
    table = {"kind": "mqtt", "address": address(broker), "topic": name, **options}
    source = open_source(table, stop=stop)
    blocks = source.blocks()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(next, blocks)
        moves_on(source, now())
        publish(broker, [(name, '{"x": 1}')])
        published, heard = now(), []
        while not waiting.done():
            heard.append((source.heard_until, now()))
            time.sleep(0.01)
        (arrived,) = waiting.result().arrived
        assert source.heard_until <= arrived
        # It was gathered for a while, and all that while nothing later was said to be complete.
        assert heard[-1][1] > published + SECOND // 3
        assert max(until for until, _ in heard) <= arrived
        waiting = pool.submit(next, blocks)
        moves_on(source, now())
        stop.set()
        assert isinstance(waiting.exception(30), StopIteration)
