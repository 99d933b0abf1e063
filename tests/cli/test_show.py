"""``rillet plot`` and ``rillet watch``: releases as pictures and in the terminal."""

import json
import subprocess
import sys

import pytest

from rillet.cli import main
from web.worlds import World, releases, wave


@pytest.fixture
def world(tmp_path):
    with World(tmp_path / "run") as made:
        for number, key in enumerate([("north",), ("south",)]):
            made.add(releases(key, *wave(1, 50, seed=number)))
        yield made


@pytest.mark.parametrize("end", ["png", "svg"])
def test_a_picture_of_a_database(world, tmp_path, end, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    picture = tmp_path / f"picture.{end}"
    assert main(["plot", str(world.folder), "--out", str(picture)]) == 0
    begin = {"png": b"\x89PNG", "svg": b"<?xml"}[end]
    assert picture.read_bytes().startswith(begin)
    assert "2 keys" in capsys.readouterr().out


@pytest.mark.parametrize(
    "names", [("up to 10", "10 to 20", "above 20"), ("0.1", "0.5", "0.9"), ("mean", "count")]
)
def test_a_picture_of_several_numbers(tmp_path, names):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    with World(tmp_path / "several") as world:
        width = len(names)
        values = [[float(t + k) for k in range(width)] for t in range(1, 30)]
        world.add(releases((), range(1, 30), values, names=names))
        assert main(["plot", str(world.folder), "--out", str(tmp_path / "picture.svg")]) == 0
        text = (tmp_path / "picture.svg").read_text(encoding="utf-8")
        assert text.count("<path") > width


def test_a_picture_of_json_lines(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "values.csv").write_text("x\n" + "3\n" * 40, encoding="utf-8")
    plan = ["--epsilon", "1", "--upper", "9", "--length", "40", "--mechanism", "baseline"]
    assert main(["run", "values.csv", *plan, "--out", "out.jsonl", "--quiet"]) == 0
    assert main(["plot", "out.jsonl", "--out", "picture.png"]) == 0
    assert (tmp_path / "picture.png").stat().st_size > 10_000


@pytest.mark.parametrize("command", ["plot", "watch"])
def test_a_folder_of_parquet_files_is_shown_too(tmp_path, command, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    with World(tmp_path / "many", form="parquet") as world:
        world.add(releases(("north",), *wave(1, 50)))
        for path in (world.folder, world.folder / "releases"):
            more = ["--for", "0.01"] if command == "watch" else ["--out", str(tmp_path / "a.png")]
            assert main([command, str(path), *more]) == 0
            assert capsys.readouterr().out


def test_a_key_that_is_not_there(world, tmp_path, capsys):
    assert main(["plot", str(world.folder), "--key", "west", "--out", str(tmp_path / "a.png")]) == 2
    assert "--key: expected one of north, south, found 'west'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["plot", "watch"])
def test_nothing_to_show(tmp_path, command, capsys):
    assert main([command, str(tmp_path / "nowhere" / "releases.db")]) == 5
    assert "expected" in capsys.readouterr().err


def test_another_file_is_refused(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("hello\n", encoding="utf-8")
    assert main(["plot", str(tmp_path / "notes.txt")]) == 5
    assert "JSON lines of releases" in capsys.readouterr().err


def test_lines_where_there_is_no_terminal(world, capsys):
    assert main(["watch", str(world.folder), "--for", "0.01"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2:4] for line in lines] == [["north", "t=50"], ["south", "t=50"]]
    assert main(["watch", str(world.folder), "--for", "0.01", "--key", "south"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_new_releases_come_as_they_are_made(world):
    words = [sys.executable, "-m", "rillet", "watch", str(world.folder), "--every", "0.1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            for _ in range(2):
                process.stdout.readline()
            world.add(releases(("south",), [51], [77.5]))
            assert "south t=51 mean 77.50 (" in process.stdout.readline()
        finally:
            process.kill()


def test_a_table_in_a_terminal(world):
    """In a pseudo-terminal the table is drawn, and drawn again in place."""
    code = (
        "import pty, sys\n"
        f"sys.exit(pty.spawn([sys.executable, '-m', 'rillet', 'watch', {str(world.folder)!r},"
        " '--for', '0.3', '--every', '0.1']) >> 8)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "95 % interval" in done.stdout
    assert "north" in done.stdout
    assert "\x1b[" in done.stdout


def test_before_the_first_release_it_says_what_is_needed(tmp_path):
    import rillet
    from rillet.cli.watch import _waiting
    from rillet.web.live import Live

    plan = rillet.Plan(epsilon=1.0, delta=1e-6, upper=9.0, length=2000, lag=100)
    with World(tmp_path / "new", plan) as world:
        world.progress(absorbed=30)
        assert _waiting(Live(world.folder)) == "learning: 30 of 100 observations before the first"
        assert json.loads((world.folder / "about.json").read_text())["lag"] == 100
