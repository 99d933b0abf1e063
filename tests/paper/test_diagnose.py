"""The command: refuses without the word, and tells what it may."""

import csv
import io
import json

import numpy as np
import pytest

from rillet.cli import diagnose
from rillet.cli.common import CommandParser
from rillet.errors import InputError, ParameterError


def command(*words):
    parser = CommandParser(prog="rillet")
    diagnose.add_parser(parser.add_subparsers(dest="command"))
    args = parser.parse_args(["diagnose", *(str(word) for word in words)])
    return args.run(args)


@pytest.fixture
def trips(tmp_path):
    """A week of trips, one a minute, a quarter of them without a number."""
    generator = np.random.default_rng(1)
    values = 2 + generator.gamma(2.6, 14.0, 20_160)
    start = np.datetime64("2024-01-01T00:00")
    path = tmp_path / "trips.csv"
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["stamp", "minutes"])
        for index, value in enumerate(values):
            cell = "" if index % 4 == 3 else f"{value:.2f}"
            writer.writerow([start + np.timedelta64(index // 2, "m"), cell])
    return path


def test_refuses_before_it_opens_anything(tmp_path):
    with pytest.raises(ParameterError, match="public or historical") as caught:
        command(tmp_path / "no such file.csv")
    assert caught.value.exit_code == 2
    assert "--public" in str(caught.value)


def test_tells_in_words(trips, capsys):
    assert command(trips, "--column", "minutes", "--public") == 0
    told = capsys.readouterr().out
    assert told.startswith("NOT PRIVATE")
    assert "15,120 values (5,040 without a number)" in told
    assert "p_max" in told
    assert "By hour" not in told


def test_json_with_times(trips, capsys):
    assert command(trips, "--column", "minutes", "--time", "stamp", "--public", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["private"] is False
    assert told["count"] == 15_120
    assert len(told["by_hour"]) == 24
    assert list(told["by_weekday"]) == [
        "Monday",
        "Tuesday",
        "Wednesday",
        "Thursday",
        "Friday",
        "Saturday",
        "Sunday",
    ]
    assert sum(check["count"] for check in told["by_weekday"].values()) == 15_120
    assert told["check"]["verdict"] in ("light", "consistent with light")
    assert told["verdict"]


def test_the_same_from_json_lines_parquet_and_standard_input(trips, tmp_path, capsys, monkeypatch):
    words = ("--column", "minutes", "--time", "stamp", "--public", "--json")
    command(trips, *words)
    expected = capsys.readouterr().out
    rows = list(csv.DictReader(io.StringIO(trips.read_text())))
    lines = tmp_path / "trips.jsonl"
    lines.write_text("\n".join(json.dumps(row) for row in rows))
    command(lines, *words)
    assert capsys.readouterr().out == expected
    monkeypatch.setattr("sys.stdin", io.StringIO(trips.read_text()))
    command("-", *words)
    assert capsys.readouterr().out == expected
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    numbers = [float(row["minutes"]) if row["minutes"] else None for row in rows]
    stamps = np.array([row["stamp"] for row in rows], dtype="datetime64[s]")
    table = arrow.table({"minutes": numbers, "stamp": stamps})
    parquet.write_table(table, tmp_path / "trips.parquet")
    command(tmp_path / "trips.parquet", *words)
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize(
    ("stamp", "hour", "weekday"),
    [
        ("2024-05-31T18:20:00", 18, 4),
        ("2024-05-31 18:20", 18, 4),
        ("2024-05-31T18:20:00+05:00", 18, 4),
        ("20240531", 0, 4),
        ("1717179600", 18, 4),
        (1717179600.5, 18, 4),
    ],
)
def test_times_as_people_write_them(stamp, hour, weekday):
    found = diagnose._as_time(stamp)
    assert found is not None
    assert (found.hour, found.weekday()) == (hour, weekday)


@pytest.mark.parametrize("stamp", ["", None, "soon", "1e400", "99999999999999999999"])
def test_what_is_no_time(stamp):
    assert diagnose._as_time(stamp) is None


def test_plots(trips, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    folder = tmp_path / "pictures"
    command(trips, "--column", "minutes", "--time", "stamp", "--public", "--plots", folder)
    names = {path.name for path in folder.iterdir()}
    assert names == {"survival.png", "quantiles.png", "hours.png", "weekdays.png"}
    for path in folder.iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")
    assert str(folder) in capsys.readouterr().err


def test_errors_say_what_is_missing(trips, tmp_path):
    with pytest.raises(InputError, match="expected a column when, found stamp, minutes"):
        command(trips, "--column", "minutes", "--time", "when", "--public")
    with pytest.raises(InputError, match="expected times in column minutes"):
        command(trips, "--column", "stamp", "--time", "minutes", "--public")
    with pytest.raises(ParameterError, match="column"):
        command(trips, "--time", "stamp", "--public")
    with pytest.raises(ParameterError, match="quantile"):
        command(trips, "--public", "--quantile", "2")
    with pytest.raises(InputError):
        command(tmp_path / "none.csv", "--column", "a", "--time", "b", "--public")
