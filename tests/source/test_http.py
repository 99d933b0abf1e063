"""Observations by HTTP: counted once, answered when durable, refused without a trace of them."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from helpers.servers import free_port
from rillet.web.access import Tokens

PATIENCE = 30.0
SECRET_VALUE = 7.654321


class Ingest:
    """A real ``rillet run`` with a source by HTTP, in a process of its own."""

    def __init__(self, folder: Path, *, length: int = 1_000_000, source: str = "") -> None:
        self.folder, self.port = folder, free_port()
        folder.mkdir(parents=True, exist_ok=True)
        self.url = f"http://127.0.0.1:{self.port}/observations"
        (folder / "live.toml").write_text(
            f"""
[plan]
mechanism = "baseline"
epsilon = 1.0
upper = 50.0
length = {length}
every = 1

[keys]
columns = ["meter"]
values = ["m1", "m2"]

[source]
kind = "http"
address = "127.0.0.1:{self.port}"
column = "kwh"
retries_file = "live/retries.db"
rate = 0
{source}

[state]
folder = "live"
""",
            encoding="utf-8",
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Ingest:
        words = [sys.executable, "-m", "rillet", "run", "--config", "live.toml", "--quiet"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(words, cwd=self.folder, stderr=log)
        end = time.monotonic() + PATIENCE
        while True:
            try:
                httpx.get(self.url.replace("observations", "healthz"), timeout=5)
                return self
            except httpx.TransportError:
                assert self.process.poll() is None, self.log()
                assert time.monotonic() < end, self.log()
                time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        return self.process.wait(PATIENCE)

    def log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8")

    def counts(self) -> dict[str, int]:
        """How many observations of each key were released, of a run that has ended."""
        connection = sqlite3.connect(self.folder / "live" / "releases.db")
        try:
            return dict(connection.execute("SELECT key, t FROM latest").fetchall())
        finally:
            connection.close()

    def __enter__(self) -> Ingest:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE)


def row(value: float = 1.5, key: str = "m1") -> dict[str, object]:
    return {"meter": key, "kwh": value}


def arrow_body(rows: list[dict[str, object]]) -> bytes:
    import pyarrow as pa

    table = pa.Table.from_pylist(rows)
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    return stream.getvalue().to_pybytes()


def test_every_form_counts_and_bad_input_is_refused_without_a_trace(tmp_path):
    """One run for all of it: after each refusal it still serves."""
    csv = {"content-type": "text/csv"}
    arrow = {"content-type": "application/vnd.apache.arrow.stream"}
    private = str(SECRET_VALUE)
    with Ingest(tmp_path, source="most_bytes = 20_000") as ingest, httpx.Client(timeout=20) as ask:

        def post(content, headers=None):
            given = {"content-type": "application/json", **(headers or {})}
            return ask.post(ingest.url, content=content, headers=given)

        good = [
            (json.dumps(row()), {}),
            (json.dumps([row(), row(2.5, "m2")]), {}),
            (json.dumps(row(), indent=2), {}),
            (json.dumps({"meter": "m1", "kwh": None}), {}),  # a missing value, as the plan says
            (
                "\n".join(json.dumps(row()) for _ in range(3)),
                {"content-type": "application/x-ndjson"},
            ),
            ("meter,kwh\nm1,3.5\nm2,late\n", csv),
            ("kwh,meter\r\n3.5,m1\r\n", csv),
            (arrow_body([row(), row(4.5, "m2")]), arrow),
        ]
        accepted = [post(*each) for each in good]
        assert [each.status_code for each in accepted] == [200] * len(good)
        assert [each.json()["accepted"] for each in accepted] == [1, 2, 1, 1, 3, 2, 1, 2]
        bad = [
            (f'{{"meter": "m1", "kwh": {private}', {}, 400),
            (f"[{private}", {}, 400),
            ("", {}, 422),
            ("[]", {}, 422),
            (f"{private}", {}, 422),
            (f"[[{private}]]", {}, 422),
            ('{"meter": "m1", "kwh": NaN}', {}, 400),
            ("[" * 100_000, {}, 413),
            ("[" * 10_000, {}, 400),
            (json.dumps(row(SECRET_VALUE, "m3")), {}, 422),
            (json.dumps({"kwh": SECRET_VALUE}), {}, 422),
            (json.dumps([row(SECRET_VALUE)] * 2000), {}, 413),
            (f"minutes\n{private}\n", csv, 422),
            ("meter,kwh\n", csv, 422),
            (b"\xff\xfe" + private.encode(), arrow, 400),
            (arrow_body([{"meter": "m1", "kwh": [SECRET_VALUE]}]), arrow, 422),
            (private, {"content-type": "text/plain"}, 415),
            (json.dumps(row()), {"idempotency-key": "k" * 201}, 422),
            (json.dumps(row()), {"host": "elsewhere.example"}, 421),
        ]
        for content, headers, status in bad:
            found = post(content, headers)
            assert found.status_code == status, (content[:60], found.text)
            assert private not in found.text
            assert "m3" not in found.text
            assert list(found.json()) == ["error"]
            assert "traceback" not in found.text.lower()
        assert ask.get(ingest.url).status_code == 405
        assert post(json.dumps(row())).status_code == 200
        assert ingest.stop() == 0
        assert ingest.counts() == {"m1": 11, "m2": 3}
        assert private not in ingest.log()


def test_a_retry_counts_once(tmp_path):
    with Ingest(tmp_path) as ingest, httpx.Client(timeout=20) as ask:

        def post(key: str) -> bool:
            body = [row(), row(1.5, "m2")]
            found = ask.post(ingest.url, json=body, headers={"idempotency-key": key})
            assert found.json()["accepted"] == 2
            return bool(found.json()["repeated"])

        assert [post(key) for key in ("a", "a", "b", "a")] == [False, True, False, True]
        # At the same time, too.
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: post("c"), range(8)))
        assert ingest.stop(signal.SIGKILL) == -signal.SIGKILL
        ingest.start()
        assert [post(key) for key in ("a", "c", "d")] == [True, True, False]
        assert ingest.stop() == 0
        assert ingest.counts() == {"m1": 4, "m2": 4}
        retries = tmp_path / "live" / "retries.db"
        assert retries.stat().st_mode & 0o777 == 0o600


def test_killed_under_load_nothing_is_lost_or_counted_twice(tmp_path):
    """Clients retry with the same key until they are answered, over three kills."""
    clients, wanted = 6, 60
    with Ingest(tmp_path) as ingest:
        answered = [0] * clients

        def client(number: int) -> None:
            with httpx.Client(timeout=10) as ask:
                while answered[number] < wanted:
                    key = f"{number}-{answered[number]}"
                    try:
                        found = ask.post(
                            ingest.url,
                            json=[row(key="m1" if number % 2 else "m2")] * 5,
                            headers={"idempotency-key": key},
                        )
                    except httpx.TransportError:
                        time.sleep(0.05)
                        continue
                    if found.status_code == 200:
                        answered[number] += 1
                    else:
                        assert found.status_code == 503
                        time.sleep(0.05)

        threads = [threading.Thread(target=client, args=(n,), daemon=True) for n in range(clients)]
        for thread in threads:
            thread.start()
        for share in (0.2, 0.5, 0.8):
            end = time.monotonic() + PATIENCE
            while sum(answered) < share * clients * wanted:
                assert time.monotonic() < end
                time.sleep(0.005)
            ingest.stop(signal.SIGKILL)
            ingest.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert answered == [wanted] * clients
        assert ingest.stop() == 0
        each = wanted * 5 * clients // 2
        assert ingest.counts() == {"m1": each, "m2": each}


def test_tokens_to_write(tmp_path):
    Tokens.add(tmp_path / "tokens", "write", "to write")
    Tokens.add(tmp_path / "tokens", "read", "to read")
    with Ingest(tmp_path, source='tokens_file = "tokens"') as ingest:
        codes = [
            httpx.post(ingest.url, json=row(), headers={"authorization": header}).status_code
            for header in ("Bearer to write", "Bearer to read", "Bearer nothing", "")
        ]
        assert codes == [200, 401, 401, 401]
        assert ingest.stop() == 0
        assert ingest.counts() == {"m1": 1}


@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
def test_no_body_makes_a_server_error(tmp_path, mode):
    import schemathesis
    from hypothesis import HealthCheck, given, settings

    with Ingest(tmp_path) as ingest:
        document = httpx.get(ingest.url.replace("observations", "openapi.json")).json()
        content = document["paths"]["/observations"]["post"]["requestBody"]["content"]
        content.pop("application/vnd.apache.arrow.stream")  # no generator of these; tested above
        schema = schemathesis.openapi.from_dict(document)
        schema.config.update(base_url=ingest.url.removesuffix("/observations"))
        (operation,) = [result.ok() for result in schema.get_all_operations()]
        codes = set()

        @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode[mode]))
        def probe(case):
            codes.add(case.call().status_code)

        probe()
        assert codes
        assert max(codes) < 500, codes
        assert httpx.post(ingest.url, json=row()).status_code == 200


@pytest.mark.long
def test_slow_clients_do_not_hold_up_a_healthy_one(tmp_path):
    """500 connections that send a byte a second, for a minute."""
    slow, seconds = 500, 60
    with Ingest(tmp_path) as ingest:
        ended = threading.Event()
        opened = []

        def dribble() -> None:
            head = "POST /observations HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            head += f"Content-Length: {seconds}\r\n\r\n"
            for number in range(slow):
                made = socket.create_connection(("127.0.0.1", ingest.port), 10)
                made.send(head.encode() if number % 2 else head[:20].encode())
                opened.append(made)
            while not ended.wait(1.0):
                for made in opened:
                    with contextlib.suppress(OSError):  # those that were given up
                        made.send(b"x")

        thread = threading.Thread(target=dribble, daemon=True)
        thread.start()
        took = []
        end = time.monotonic() + seconds
        with httpx.Client(timeout=20) as ask:
            while time.monotonic() < end:
                begun = time.perf_counter()
                assert ask.post(ingest.url, json=row()).status_code == 200
                took.append(time.perf_counter() - begun)
                time.sleep(0.02)
        ended.set()
        thread.join(10)
        for made in opened:
            made.close()
        assert len(opened) == slow
        p99 = sorted(took)[int(0.99 * len(took))]
        sys.stdout.write(f"p99 {p99:.4f} s of {len(took)} requests\n")
        assert p99 < 1.0, f"{p99:.3f} s of {len(took)} requests"
        assert ingest.stop() == 0
        assert ingest.counts() == {"m1": len(took)}
