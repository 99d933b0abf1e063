"""Releases by HTTP: what is answered, in which form, to whom, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import signal
import socket
import subprocess
import sys
import time

import httpx
import numpy as np
import pytest

from helpers.servers import free_port
from rillet.release import FIELDS
from rillet.web.access import Guard, Tokens
from rillet.web.app import make_app
from web.serving import served
from web.worlds import World, releases, wave


@pytest.fixture
def form():
    """How releases are kept, unless a test tries both."""
    return "sqlite"


each_form = pytest.mark.parametrize("form", ["sqlite", "parquet"])


@pytest.fixture
def world(tmp_path, form):
    with World(tmp_path / "run", form=form) as made:
        if form == "parquet":  # where keys are text, whatever they were declared as
            declared = json.dumps({"keys": ["north", "south", 7]})
            (made.folder / "about.json").write_text(declared, encoding="utf-8")
        for number, key in enumerate([("north",), ("south",), (7,)]):
            made.add(releases(key, *wave(1, 100, seed=number)))
        yield made


@pytest.fixture
def client(world):
    with (
        served(make_app(world.folder, rate=0)) as server,
        httpx.Client(base_url=server.url, timeout=20) as made,
    ):
        yield made


@each_form
def test_the_latest_of_each_key(client):
    found = client.get("/api/latest").json()["releases"]
    assert [(row["key"], row["t"]) for row in found] == [("north", 100), ("south", 100), (7, 100)]
    assert set(found[0]) == {field.name for field in FIELDS} | {"low", "high"}
    (one,) = client.get("/api/latest", params={"key": "7"}).json()["releases"]
    assert one == found[2]


@each_form
def test_a_range_has_the_numbers_to_the_last_bit(client):
    _, values = wave(1, 100, seed=1)
    ask = {"key": "south", "after": 90}
    found = client.get("/api/releases", params=ask).json()["releases"]
    assert [row["t"] for row in found] == list(range(91, 101))
    assert [row["value"] for row in found] == values[90:].tolist()
    since, until = found[3]["at"], found[7]["at"]
    part = client.get("/api/releases", params={"key": "south", "since": since, "until": until})
    assert part.json()["releases"] == found[3:7]
    some = client.get("/api/releases", params={"key": "south", "most": 3}).json()["releases"]
    assert some == found[-3:]
    thin = client.get("/api/releases", params={"key": "south", "most": 10, "thin": True}).json()
    assert [row["t"] for row in thin["releases"]] == list(range(10, 101, 10))


@each_form
def test_all_forms_have_the_same_numbers(client):
    import pyarrow as pa

    ask = {"key": "north", "most": 20}
    records = client.get("/api/releases", params=ask).json()["releases"]
    text = client.get("/api/releases", params={**ask, "format": "csv"})
    assert text.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(text.text)))
    binary = client.get(
        "/api/releases", params=ask, headers={"accept": "application/vnd.apache.arrow.stream"}
    )
    table = pa.ipc.open_stream(binary.content).read_all()
    columns = client.get("/api/releases", params={**ask, "format": "columns"}).json()
    for name in ("value", "low", "high"):
        expected = [row[name] for row in records]
        assert [float(row[name]) for row in rows] == expected
        assert table[name].to_pylist() == expected
        assert columns[name] == [expected]
    assert rows[0]["noise_covariance"] == ""
    assert table["noise_covariance"].null_count == 20


@each_form
def test_news_are_pushed(client, world):
    with client.stream("GET", "/api/live", params={"key": "north", "after": 98}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = response.iter_lines()
        event = _next_event(lines)
        assert (event["event"], event["id"], event["data"]["t"]) == ("releases", "100", [99, 100])
        world.add(releases(("north",), [101], [55.0]))
        world.add(releases(("south",), [101], [56.0]))
        seen = {}
        while len(seen) < 2:
            event = _next_event(lines)
            if event["event"] == "releases":
                assert event["data"]["value"] == [[55.0]]
            else:
                seen |= {row["key"]: row["value"] for row in event["data"]["rows"]}
        assert seen == {"north": [55.0], "south": [56.0]}
    again = {"Last-Event-ID": "100"}
    with client.stream("GET", "/api/live", params={"key": "north"}, headers=again) as response:
        assert _next_event(response.iter_lines())["data"]["t"] == [101]


def test_what_moved_before_a_client_follows_is_told_first(client, world):
    asked = client.get("/api/keys").json()
    assert len(asked["keys"]) == 3
    world.add(releases(("south",), [101], [56.0]))
    end = time.monotonic() + 20
    while client.get("/api/keys").json()["look"] == asked["look"]:
        assert time.monotonic() < end
        time.sleep(0.05)
    with client.stream("GET", "/api/live", params={"look": asked["look"]}) as response:
        event = _next_event(response.iter_lines())
    assert [(row["key"], row["t"]) for row in event["data"]["rows"]] == [("south", 101)]


def _next_event(lines):
    found = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            found[name] = json.loads(value) if name == "data" else value
        elif "data" in found:
            return found
        else:
            found = {}
    raise AssertionError("the stream has ended")


def test_metrics_have_values_on_request(client, world):
    from prometheus_client.parser import text_string_to_metric_families as families

    world.add(releases(('say "hi"\\',), [1], [3.25]))
    end = time.monotonic() + 20
    while True:
        text = client.get("/metrics", params={"values": "true"}).text
        found = {family.name: family.samples for family in families(text)}
        values = {sample.labels["key"]: sample.value for sample in found["rillet_value"]}
        if len(values) == 4:
            break
        assert time.monotonic() < end
        time.sleep(0.1)
    assert values['say "hi"\\'] == 3.25
    assert values["north"] == wave(1, 100, seed=0)[1][-1]
    plain = client.get("/metrics").text
    assert "rillet_value" not in plain
    assert "rillet_absorbed_total 0" in plain
    assert 'rillet_keys{state="releasing"} 4' in plain


def test_metrics_say_how_far_each_key_is(client, world):
    from prometheus_client.parser import text_string_to_metric_families as families

    declared = {"keys": ["north", "south", 7, "west"], "first_release": 40}
    (world.folder / "about.json").write_text(json.dumps(declared), encoding="utf-8")
    world.progress(absorbed=310, learning={"west": 10})
    text = client.get("/metrics", params={"values": "true"}).text
    found = {family.name: family.samples for family in families(text)}
    (west,) = found["rillet_key_learning_ratio"]
    assert (west.labels, west.value) == ({"key": "west"}, 0.25)
    assert found["rillet_learning_ratio"][0].value == 3.25 / 4


def test_several_numbers_to_a_release(tmp_path):
    with World(tmp_path / "several") as world:
        names = ("mean", "0.5", "0.9")
        values = np.arange(30.0).reshape(10, 3)
        world.add(releases(("a",), range(1, 11), values, names=names))
        with served(make_app(world.folder)) as server:
            found = httpx.get(server.url + "api/releases?format=columns").json()
            assert found["names"] == list(names)
            assert found["value"] == values.T.tolist()
            rows = httpx.get(server.url + "api/latest").json()["releases"]
            assert [(row["name"], row["value"]) for row in rows] == list(
                zip(names, values[-1].tolist(), strict=True)
            )


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/releases", 404),  # which of three keys?
        ("/api/releases?key=west", 404),
        ("/api/releases?key=north&format=xml", 422),
        ("/api/releases?key=north&most=0", 422),
        ("/api/releases?key=north&most=-1", 422),
        ("/api/releases?key=north&after=1.5", 422),
        ("/api/releases?key=north&after=99999999999999999999999", 422),
        ("/api/releases?key=north&since=yesterday", 422),
        ("/api/live?key=%5Bnonsense", 404),
        ("/state.db", 404),
        ("/../state.db", 404),
        ("/static/app.js", 404),
    ],
)
def test_what_is_wrong_is_said_and_not_repeated(client, path, status):
    found = client.get(path)
    assert found.status_code == status
    assert list(found.json()) == ["error"]
    for word in ("west", "xml", "yesterday", "nonsense"):
        assert word not in found.text


def test_other_methods_are_refused(client):
    assert client.post("/api/latest", content=b"x").status_code == 405


def test_before_there_is_a_database(tmp_path):
    with served(make_app(tmp_path / "nothing")) as server:
        assert httpx.get(server.url + "readyz").status_code == 503
        assert httpx.get(server.url + "healthz").status_code == 200
        assert httpx.get(server.url + "api/latest").status_code == 503
        assert httpx.get(server.url + "api/about").json()["about"] is None


def test_headers_keep_the_page_to_itself(client):
    for path in ("/", "/api/latest", "/nowhere"):
        headers = client.get(path, headers={"origin": "http://elsewhere.example"}).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers


def test_another_name_for_this_host_is_refused(client):
    assert client.get("/api/latest", headers={"host": "rebound.example"}).status_code == 421
    assert client.get("/api/latest", headers={"host": "localhost:9"}).status_code == 200


def test_tokens(world):
    tokens = Tokens({"read": {Tokens.hashed("right")}, "write": {Tokens.hashed("other")}})
    with served(make_app(world.folder, tokens=tokens)) as server:

        def status(header: str | None) -> int:
            headers = {} if header is None else {"authorization": header}
            return httpx.get(server.url + "api/latest", headers=headers).status_code

        assert status("Bearer right") == 200
        for wrong in (None, "Bearer other", "Bearer", "Basic right", "right", "Bearer right x"):
            assert status(wrong) == 401
        # The page itself asks for the token.
        assert httpx.get(server.url).status_code == 200


def test_tokens_are_kept_as_hashes_for_their_owner_alone(tmp_path):
    file = tmp_path / "tokens"
    words = [sys.executable, "-m", "rillet", "serve", "--tokens", str(file), "--new-token"]
    read, write = (
        subprocess.run([*words, role], capture_output=True, text=True, check=True).stdout.strip()
        for role in ("read", "write")
    )
    assert file.stat().st_mode & 0o777 == 0o600
    assert read not in file.read_text()
    tokens = Tokens.load(file)
    assert tokens.allow(f"Bearer {read}", "read")
    assert not tokens.allow(f"Bearer {read}", "write")
    assert tokens.allow(f"Bearer {write}", "write")


def test_a_client_that_asks_too_often_waits(world):
    with served(make_app(world.folder, rate=2)) as server, httpx.Client() as client:
        found = [client.get(server.url + "healthz").status_code for _ in range(30)]
        assert found[:20] == [200] * 20
        assert 429 in found[20:]


def test_a_body_that_is_too_large_is_refused(world):
    async def app(scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    guarded = Guard(app, role_of=lambda *_: None, tokens=Tokens(), most_bytes=1000)

    def parts(count):
        for _ in range(count):
            yield b"x" * 100

    with served(_with_lifespan(guarded)) as server:
        assert httpx.post(server.url, content=b"x" * 1000).status_code == 200
        assert httpx.post(server.url, content=b"x" * 1001).status_code == 413
        # Without a length it is counted as it comes.
        assert httpx.post(server.url, content=parts(10)).status_code == 200
        assert httpx.post(server.url, content=parts(11)).status_code == 413
        # Who is still sending can read the answer: it is not lost in a reset.
        where = httpx.URL(server.url)
        with socket.create_connection((where.host, where.port)) as raw:
            raw.sendall(b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 300000\r\n\r\n")
            for _ in range(3):
                raw.sendall(b"x" * 100_000)
                time.sleep(0.1)
            assert raw.recv(1000).startswith(b"HTTP/1.1 413")


def _with_lifespan(app):
    async def outer(scope, receive, send):
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
        else:
            await app(scope, receive, send)

    return outer


def test_the_process_that_shows_loads_nothing_that_touches_raw_data(world):
    code = (
        "import sys, threading, urllib.request\n"
        "import rillet.cli.serve\n"
        "from rillet.cli import build_parser\n"
        "import rillet.web.server as server\n"
        "def serve(app, listener):\n"
        "    listener.close()\n"
        "    rooms = ('state', 'streams', 'source', 'gather', 'noise', 'step', 'engine', 'plan')\n"
        "    print([name for name in sys.modules if name.split('.')[:1] == ['rillet']\n"
        "        and name.split('.')[1:2] and name.split('.')[1] in rooms])\n"
        "server.serve = serve\n"
        f"words = ['serve', {str(world.folder)!r}, '--address', '0']\n"
        "args = build_parser('serve').parse_args(words)\n"
        "args.run(args)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_command_serves_and_stops(world):
    words = [sys.executable, "-m", "rillet", "serve", str(world.folder), "--address", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().split()[0]
        assert url.startswith("http://127.0.0.1:")
        assert httpx.get(url + "api/latest").status_code == 200
        with httpx.stream("GET", url + "api/live"):  # open answers do not hold it up
            process.send_signal(signal.SIGTERM)
            begun = time.monotonic()
            assert process.wait(10) == 0
            assert time.monotonic() - begun < 5
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
def test_no_question_makes_a_server_error(world, mode):
    """Within the document answers are as it says; beyond it, whatever is asked is only refused."""
    import schemathesis
    from hypothesis import HealthCheck, given, settings

    with served(make_app(world.folder, rate=0)) as server:
        document = httpx.get(server.url + "openapi.json").json()
        document["paths"].pop("/api/live")  # never ends; tested above
        if mode == "NEGATIVE":  # wrong parameters, of what has any
            asks = document["paths"].items()
            document["paths"] = {path: ask for path, ask in asks if ask["get"]["parameters"]}
        schema = schemathesis.openapi.from_dict(document)
        schema.config.update(base_url=server.url)
        asked = set()
        for result in schema.get_all_operations():
            operation = result.ok()
            generation = schemathesis.GenerationMode[mode]

            @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
            @given(case=operation.as_strategy(generation_mode=generation))
            def probe(case):
                response = case.call()
                asked.add(case.path)
                assert response.status_code < 500
                if mode == "POSITIVE":
                    case.validate_response(response)

            probe()
        assert asked == set(document["paths"])


def test_one_command_runs_a_plan_and_shows_it(tmp_path):
    """Two processes: one that takes observations, and one that shows releases."""
    port = free_port()
    (tmp_path / "live.toml").write_text(
        "[plan]\nmechanism = 'baseline'\nepsilon = 1.0\nupper = 9.0\nlength = 100\n"
        f"[source]\nkind = 'http'\naddress = '127.0.0.1:{port}'\nretries_file = 'live/retries.db'\n"
        "[state]\nfolder = 'live'\n",
        encoding="utf-8",
    )
    words = [sys.executable, "-m", "rillet", "serve", "--address", "0"]
    words += ["--config", str(tmp_path / "live.toml")]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        url = process.stdout.readline().split()[0]
        end = time.monotonic() + 30
        while True:
            try:
                found = httpx.post(f"http://127.0.0.1:{port}/observations", json={"value": 3})
                break
            except httpx.TransportError:
                assert time.monotonic() < end
                time.sleep(0.1)
        assert found.json() == {"accepted": 1, "repeated": False}
        while httpx.get(url + "api/latest").status_code != 200:
            assert time.monotonic() < end
            time.sleep(0.1)
        while not (rows := httpx.get(url + "api/latest").json()["releases"]):
            assert time.monotonic() < end
            time.sleep(0.1)
        assert rows[0]["t"] == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        # The run was stopped with it.
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}/healthz")
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()
