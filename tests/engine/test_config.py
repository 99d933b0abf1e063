"""A job from a TOML file: every table, every kind of mistake, and a check that spends nothing."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from pathlib import Path

import pytest

from rillet.cli import main
from rillet.engine import Config, load_config
from rillet.engine.config import read_keys
from rillet.errors import InputError, ParameterError
from rillet.source import DeclaredKeys, open_source

WHOLE = """
[plan]
epsilon = 1.0
delta = "2^-20"
upper = 50.0
length = 100
lag = 0
strategy = "auto"
refresh = "none"

[keys]
columns = ["meter", "hour"]
values = [["m1", 7], ["m2", 8]]

[source]
path = "data/readings.csv"
column = "kwh"
format = "csv"
delimiter = ";"
follow = false
sequence = "n"
block_rows = 100

[state]
folder = "live"
key_file = "keys/own"

[[sink]]
kind = "jsonl"
path = "out/releases.jsonl"
fsync = true

[[sink]]
kind = "sqlite"
path = "/elsewhere/other.db"

[[sink]]
kind = "stdout"

[log]
format = "json"
level = "warning"

[metrics]
address = "127.0.0.1:9464"
"""

SMALL = """
[plan]
epsilon = 1.0
upper = 50.0
length = 100
lag = 0

[keys]
columns = ["meter"]
values = ["m1", "m2"]

[source]
path = "readings.csv"
column = "kwh"

[state]
folder = "live"

[[sink]]
kind = "jsonl"
path = "releases.jsonl"
"""


def write(folder: Path, text: str) -> str:
    path = folder / "job.toml"
    path.write_text(text)
    return str(path)


@pytest.fixture
def job(tmp_path):
    """A folder with an input and a configuration; returns how to run it."""
    (tmp_path / "readings.csv").write_text("meter,kwh\nm1,1\nm2,2\nm3,3\nm1,4\n")

    def run(text: str, *options: str) -> tuple[int, str]:
        said = io.StringIO()
        path = write(tmp_path, text)
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            code = main(["run", "--config", path, *options])
        return code, said.getvalue()

    run.folder = tmp_path
    return run


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "job.toml"
    }


# --- What it says --------------------------------------------------------------------------------


def test_every_table(tmp_path):
    config = load_config(write(tmp_path, WHOLE))
    assert isinstance(config, Config)
    assert config.plan.epsilon == 1.0
    assert config.plan.delta == 2.0**-20
    assert config.plan.refresh is None
    assert config.plan.keys == (("m1", 7), ("m2", 8))
    assert config.key_columns == ("meter", "hour")
    assert config.source["column"] == "kwh"
    assert config.source["delimiter"] == ";"
    assert config.source["sequence"] == "n"
    assert config.source["block_rows"] == 100
    assert [sink["kind"] for sink in config.sinks] == ["jsonl", "sqlite", "stdout"]
    assert config.sinks[0]["fsync"] is True
    assert (config.log_format, config.log_level) == ("json", "warning")
    assert config.metrics == ("127.0.0.1", 9464)


def test_paths_are_seen_from_the_configuration(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    config = load_config(write(tmp_path, WHOLE))
    assert config.source["path"] == str(tmp_path / "data/readings.csv")
    assert config.state == tmp_path / "live"
    assert config.key_file == tmp_path / "keys/own"
    assert config.sinks[0]["path"] == str(tmp_path / "out/releases.jsonl")
    assert config.sinks[1]["path"] == "/elsewhere/other.db"
    standard = WHOLE.replace('path = "data/readings.csv"', 'path = "-"')
    assert load_config(write(tmp_path, standard)).source["path"] == "-"


def test_keys_from_a_file_are_those_of_a_list(tmp_path):
    (tmp_path / "meters.txt").write_text("m1, 7\n\n m2 ,8\n")
    text = WHOLE.replace('values = [["m1", 7], ["m2", 8]]', 'file = "meters.txt"')
    config = load_config(write(tmp_path, text))
    assert config.plan.keys == (("m1", "7"), ("m2", "8"))
    assert read_keys(tmp_path / "meters.txt", 2) == config.plan.keys
    with pytest.raises(InputError, match="expected 3 parts"):
        read_keys(tmp_path / "meters.txt", 3)
    (tmp_path / "meters.txt").write_bytes(b"m1\xff\n")
    with pytest.raises(InputError, match="not UTF-8"):
        read_keys(tmp_path / "meters.txt", 1)


BY_THE_CLOCK = """
[plan]
epsilon = 1.0
delta = "2^-20"
upper = 50.0
every = "1h"
start = "2026-01-01T00:00Z"
length = "2d"
lag = 0
levels = ["all", "region"]

[keys]
columns = ["meter"]
file = "meters.txt"

[source]
path = "readings.csv"
column = "kwh"
time = "at"
"""


def test_a_file_of_keys_may_name_their_totals(tmp_path):
    (tmp_path / "meters.txt").write_text("north,m1\nsouth,m2\n north , m3\n")
    named = load_config(write(tmp_path, BY_THE_CLOCK)).plan
    assert named.keys == (("m1",), ("m2",), ("m3",))
    assert named.tree.totals == ((), ("north",), ("south",))
    assert named.levels[1].of == ((("north",), (("m1",), ("m3",))), (("south",), (("m2",),)))
    two = load_config(write(tmp_path, BY_THE_CLOCK.replace('["meter"]', '["area", "meter"]'))).plan
    assert two.keys == (("north", "m1"), ("south", "m2"), ("north", "m3"))
    assert two.tree.totals == named.tree.totals
    shares = BY_THE_CLOCK.replace('["all", "region"]', "{all = 0.2, region = 0.1}")
    assert [level.share for level in load_config(write(tmp_path, shares)).plan.levels] == [0.2, 0.1]
    (tmp_path / "plan.json").write_text(named.to_json())
    _, rest = BY_THE_CLOCK.split("[keys]")
    (tmp_path / "meters.txt").write_text("m1\nm2\nm3\n")
    by_file = load_config(write(tmp_path, '[plan]\nfile = "plan.json"\n[keys]' + rest)).plan
    assert by_file == named
    (tmp_path / "meters.txt").write_text("north,m1\nm2\n")
    with pytest.raises(InputError, match="expected 2 parts"):
        load_config(write(tmp_path, BY_THE_CLOCK))
    (tmp_path / "meters.txt").write_text("m1\nm2\n")
    with pytest.raises(ParameterError, match=r"plan\.levels\.region: expected keys of at least 2"):
        load_config(write(tmp_path, BY_THE_CLOCK))


def test_numbers_as_keys_are_found_in_text(job):
    """7 in TOML is the cell "7" in a file."""
    (job.folder / "readings.csv").write_text("meter,kwh\n7,1\n8,2\n07,3\n7,4\n")
    text = SMALL.replace('["m1", "m2"]', "[7, 8]")
    code, said = job(text, "--quiet")
    assert code == 0, said
    lines = (job.folder / "releases.jsonl").read_text().splitlines()
    assert [json.loads(line)["key"] for line in lines] == [[7], [8], [7]]


def test_plan_from_a_file(tmp_path):
    config = load_config(write(tmp_path, SMALL))
    (tmp_path / "plan.json").write_text(config.plan.to_json())
    _, rest = SMALL.split("[keys]")
    by_file = load_config(write(tmp_path, '[plan]\nfile = "plan.json"\n[keys]' + rest))
    assert by_file.plan == config.plan
    _, rest = rest.split("[source]")
    without = load_config(write(tmp_path, '[plan]\nfile = "plan.json"\n[source]' + rest))
    assert without.plan == config.plan


@pytest.mark.parametrize("mechanism", ["auto", "paper", "baseline"])
def test_mechanisms(tmp_path, mechanism):
    lag = "lag = 20\n" if mechanism == "paper" else ""
    text = (
        f'[plan]\nmechanism = "{mechanism}"\nepsilon = 1.0\ndelta = 1e-6\nupper = 9\nlength = 100\n'
        f'{lag}statistic = "sum"\n[source]\npath = "x.csv"\n'
    )
    config = load_config(write(tmp_path, text))
    assert config.plan.statistic.name == "sum"
    assert config.plan.keys == ()
    assert config.state is None


def test_shared_threshold(tmp_path):
    text = SMALL.replace("lag = 0", "lag = 20").replace("[keys]", "[keys]\nshared_threshold = true")
    assert load_config(write(tmp_path, text)).plan.shared_threshold
    refreshed = text.replace("lag = 20", "lag = 20\nrefresh = 2.0")
    with pytest.raises(ParameterError, match="refresh"):
        load_config(write(tmp_path, refreshed))


# --- Mistakes ------------------------------------------------------------------------------------

#: What is replaced by what, and words that the message must have; None replaces the whole text.
MISTAKES = {
    "no TOML": (None, "[plan\nepsilon", "TOML"),
    "no plan": ("[plan]", "[plain]", "plain"),
    "no tables": (None, "", "[plan]"),
    "no source": (None, "[plan]\nepsilon = 1.0\nupper = 1.0\n", "[source]"),
    "unknown table": ("[state]", "[stat]", "stat"),
    "a table that is none": ("[state]\nfolder", "[log]\n[other]\nfolder", "other"),
    "plan is a number": (None, "plan = 1\n[source]\npath = 'x'", "plan: expected a table"),
    "sink is a table": ("[[sink]]", "[sink]", "sink: expected a list"),
    "unknown name of the plan": ("lag = 0", "lagg = 0", "lagg"),
    "wrong number": ("epsilon = 1.0", "epsilon = -1.0", "epsilon"),
    "text for a number": ("epsilon = 1.0", 'epsilon = "one"', "epsilon"),
    "wrong statistic": ("lag = 0", 'lag = 0\nstatistic = "median"', "plan.statistic"),
    "statistic is a number": ("lag = 0", "lag = 0\nstatistic = 3", "plan.statistic"),
    "statistic is a list": ("lag = 0", "lag = 0\nstatistic = []", "plan.statistic"),
    "wrong mechanism": ("lag = 0", 'lag = 0\nmechanism = "best"', "plan.mechanism"),
    "mechanism is a list": ("lag = 0", "lag = 0\nmechanism = []", "plan.mechanism"),
    "keys in the plan": ("lag = 0", 'lag = 0\nkeys = ["m1"]', "keys"),
    "a file and more": ("lag = 0", 'lag = 0\nfile = "plan.json"', "plan"),
    "plan file is a number": ("lag = 0", "file = 3", "plan"),
    "unknown name of the keys": ("columns", "column", "keys"),
    "columns are no list": ('["meter"]', '"meter"', "keys.columns"),
    "two parts, one column": ('["m1", "m2"]', '[["m1", "x"]]', "key_columns"),
    "values and a file": ("[source]", 'file = "f"\n[source]', "found 'both'"),
    "no values": ('values = ["m1", "m2"]', "", "keys"),
    "values are text": ('["m1", "m2"]', '"m1"', "keys.values"),
    "a key that is no key": ('["m1", "m2"]', "[1.5]", "keys"),
    "a key twice": ('["m1", "m2"]', '["m1", "m1"]', "keys"),
    "key file is a number": ('values = ["m1", "m2"]', "file = 3", "keys.file"),
    "shared is text": ("[source]", 'shared_threshold = "no"\n[source]', "shared_threshold"),
    "unknown name of the source": ('column = "kwh"', 'colum = "kwh"', "colum"),
    "no path": ('path = "readings.csv"', "", "source.path"),
    "path is a number": ('path = "readings.csv"', "path = 3", "source.path"),
    "column is a number": ('column = "kwh"', "column = 3", "source.column"),
    "follow is text": ('column = "kwh"', 'column = "kwh"\nfollow = "yes"', "source.follow"),
    "block_rows is text": ('column = "kwh"', 'column = "kwh"\nblock_rows = "9"', "block_rows"),
    "block_rows is zero": ('column = "kwh"', 'column = "kwh"\nblock_rows = 0', "block_rows"),
    "unknown kind of source": ('column = "kwh"', 'kind = "kafka"', "source.kind"),
    "unknown format": ('column = "kwh"', 'column = "kwh"\nformat = "xml"', "format"),
    "a broker without address": (
        'path = "readings.csv"\ncolumn = "kwh"',
        'kind = "mqtt"',
        "address",
    ),
    "unknown name of the broker": (
        'path = "readings.csv"\ncolumn = "kwh"',
        'kind = "mqtt"\naddress = "h:1"\ntopic = "a/{meter}"\nclient_id = "a"\ncolour = 1',
        "colour",
    ),
    "unknown name of the state": ("folder", "dir", "state"),
    "folder is a number": ('folder = "live"', "folder = 3", "state.folder"),
    "key_file without folder": ('folder = "live"', 'key_file = "k"', "state.folder"),
    "key_file is a number": ('folder = "live"', 'folder = "live"\nkey_file = 3', "state.key_file"),
    "sink without kind": ('kind = "jsonl"', "", "sink.kind"),
    "unknown kind of sink": ('kind = "jsonl"', 'kind = "kafka"', "sink.kind"),
    "kind is a number": ('kind = "jsonl"', "kind = 3", "sink.kind"),
    "unknown name of the sink": ('path = "releases.jsonl"', 'file = "r"', "sink"),
    "sink without path": ('path = "releases.jsonl"', "", "sink.path"),
    "the same sink twice": (
        "[[sink]]",
        '[[sink]]\nkind = "jsonl"\npath = "releases.jsonl"\n[[sink]]',
        "each sink once",
    ),
    "unknown log format": ("[state]", '[log]\nformat = "xml"\n[state]', "log.format"),
    "unknown log level": ("[state]", '[log]\nlevel = "loud"\n[state]', "log.level"),
    "unknown name of the log": ("[state]", '[log]\nfile = "x"\n[state]', "log"),
    "metrics without a port": ("[state]", '[metrics]\naddress = "localhost"\n[state]', "metrics"),
    "metrics is a number": ("[state]", "[metrics]\naddress = 9464\n[state]", "metrics"),
    "follow without a state": (
        '[state]\nfolder = "live"\n',
        "",
        "follow",
    ),
}


@pytest.mark.parametrize("check", [True, False], ids=["check", "run"])
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named_and_change_nothing(job, name, check):
    old, new, word = MISTAKES[name]
    if old is None:
        text = new
    else:
        assert old in SMALL
        text = SMALL.replace(old, new, 1)
    if name == "follow without a state":
        text = text.replace('column = "kwh"', 'column = "kwh"\nfollow = true')
    before = files(job.folder)
    code, said = job(text, *(["--check"] if check else []))
    last = said.splitlines()[-1]
    assert code == 2, last
    assert last.startswith("rillet: ")
    assert word in last, last
    assert "Traceback" not in said
    assert files(job.folder) == before


def test_missing_files_are_named(job):
    for old, new in (
        ("readings.csv", "nowhere.csv"),
        ('column = "kwh"', 'column = "watt"'),
        ('"meter"', '"counter"'),
        ('values = ["m1", "m2"]', 'file = "nowhere.txt"'),
        ("epsilon = 1.0\nupper = 50.0\nlength = 100\nlag = 0", 'file = "nowhere.json"'),
        ('path = "releases.jsonl"', 'path = "nowhere/releases.jsonl"'),
    ):
        assert old in SMALL
        before = files(job.folder)
        code, said = job(SMALL.replace(old, new, 1), "--check")
        assert code == 5, said
        assert "Traceback" not in said
        assert files(job.folder) == before
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        assert main(["run", "--config", str(job.folder / "nowhere.toml")]) == 5
    assert "nowhere.toml" in said.getvalue()


# --- Checking ------------------------------------------------------------------------------------


def test_check_spends_nothing(job):
    before = files(job.folder)
    for _ in range(2):
        code, said = job(SMALL, "--check")
        assert code == 0, said
        assert "nothing was released and nothing spent" in said
    assert files(job.folder) == before
    assert not (job.folder / "live").exists()
    assert job(SMALL, "--quiet")[0] == 0
    before = files(job.folder)
    for _ in range(2):
        code, said = job(SMALL, "--check")
        assert code == 0, said
        assert "goes on after 3 observations" in said
    # Byte for byte: neither the state nor what it has published.
    assert files(job.folder) == before
    with (job.folder / "readings.csv").open("a") as stream:
        stream.write("m2,5\n")
    code, said = job(SMALL, "--quiet")
    assert code == 0, said
    assert len((job.folder / "releases.jsonl").read_text().splitlines()) == 4


def test_check_finds_what_is_wrong_with_a_state(job):
    assert job(SMALL, "--quiet")[0] == 0
    key = job.folder / "live" / "key"

    def found(*words: str, code: int = 4, text: str = SMALL) -> None:
        before = files(job.folder)
        ended, said = job(text, "--check")
        assert ended == code, said
        for word in words:
            assert word in said.splitlines()[-1]
        assert files(job.folder) == before

    found("another plan", text=SMALL.replace("epsilon = 1.0", "epsilon = 2.0"))
    (job.folder / "readings.csv").write_text("meter,kwh\nm1,1\nm2,2\nm3,3\nm1,5\n")
    found("is not what was absorbed")
    (job.folder / "readings.csv").write_text("meter,kwh\nm1,1\nm2,2\nm3,3\nm1,4\n")
    key.chmod(0o644)
    found("mode 644")
    key.chmod(0o600)
    mark = job.folder / "live" / "opening"
    text = mark.read_text()
    mark.write_text("somebody 3 else\n")
    found("copied or restored")
    mark.write_text(text)
    database = job.folder / "live" / "state.db"
    content = database.read_bytes()
    database.write_bytes(content[:5000])
    found("damaged")
    database.write_bytes(content)
    lines = (job.folder / "releases.jsonl").read_bytes()
    (job.folder / "releases.jsonl").write_bytes(lines[:-10])
    found("releases.jsonl", code=5)
    (job.folder / "releases.jsonl").write_bytes(lines)
    assert job(SMALL, "--check")[0] == 0


@pytest.mark.parametrize(
    "options",
    [
        ["readings.csv"],
        ["--epsilon", "1"],
        ["--upper", "1"],
        ["--plan", "plan.json"],
        ["--column", "kwh"],
        ["--key-column", "meter"],
        ["--keys", "meters.txt"],
        ["--state", "live"],
        ["--key-file", "key"],
        ["--out", "out.jsonl"],
        ["--follow"],
        ["--sequence", "n"],
        ["--format", "jsonl"],
        ["--delimiter", ";"],
        ["--length", "7"],
        ["--every", "7"],
        ["--lag", "0"],
    ],
    ids=lambda options: options[0],
)
def test_other_options_beside_a_configuration_are_refused(job, options):
    before = files(job.folder)
    code, said = job(SMALL, *options)
    assert code == 2, said
    assert "--config" in said.splitlines()[-1]
    assert files(job.folder) == before


def test_options_that_go_with_a_configuration(job):
    code, said = job(SMALL, "--log-level", "debug", "--log-format", "json")
    assert code == 0, said
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert {"committed", "delivered"} <= {line["message"] for line in lines}


@pytest.mark.parametrize(
    "source",
    [
        'path = "readings.csv"\ncolumn = "kwh"\nfollow = true',
        'path = "readings.csv"\ncolumn = "kwh"\nsequence = "n"',
        'kind = "mqtt"\naddress = "127.0.0.1:1"\ntopic = "a/{meter}"\nclient_id = "a"',
    ],
    ids=["follow", "sequence", "mqtt"],
)
def test_what_may_come_twice_needs_a_state(job, source):
    """Nobody would remember what was counted, and the broker would think that it is safe."""
    text = SMALL.replace('[state]\nfolder = "live"\n', "")
    text = text.replace('path = "readings.csv"\ncolumn = "kwh"', source)
    before = files(job.folder)
    code, said = job(text)
    assert code == 2, said
    assert "durable run" in said
    assert files(job.folder) == before


def test_the_example_by_the_clock_is_a_configuration():
    """All of it but the broker, which is not there."""
    path = Path(__file__).parents[2] / "examples" / "by-the-clock.toml"
    config = load_config(path)
    assert config.plan.last_t == 365 * 24
    assert config.plan.keys == (("north",), ("south",))
    keys = DeclaredKeys(config.plan.keys, config.key_columns)
    assert open_source(config.source, keys=keys).live
