"""``rillet run``: the same releases as the library, to the last character."""

import dataclasses
import io
import json
import math
from contextlib import redirect_stdout

import numpy as np
import pytest

import rillet
from rillet.cli import main
from rillet.sink import JsonLinesSink
from rillet.sink.spelling import spell


def write(folder, values):
    file = folder / "in.csv"
    file.write_text("\n".join(["x", *map(repr, values)]) + "\n", encoding="utf-8")
    return file


def values_of(count, seed=1):
    return np.random.default_rng(seed).exponential(30.0, count).tolist()


def lines_of(releases):
    """What the sink writes for one record after the other."""
    printed = io.StringIO()
    with redirect_stdout(printed), JsonLinesSink("-") as sink:
        sink.write_many(release.to_record() for release in releases)
    return printed.getvalue()


PLANS = {
    "baseline": rillet.Plan.baseline(epsilon=1.0, upper=300.0, length=5000),
    "sum, every 7": rillet.Plan.baseline(
        epsilon=0.5, upper=300.0, lower=-3.0, length=None, every=7, statistic=rillet.Sum()
    ),
    "paper": rillet.Plan.paper(epsilon=1.0, delta=2**-20, upper=300.0, length=5000, lag=1000),
    "paper, backfilled": rillet.Plan.paper(
        epsilon=1.0, delta=2**-20, upper=300.0, length=5000, lag=1000, every=3, backfill=True
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_run_writes_what_the_library_releases(name, tmp_path, capsys):
    plan, values = PLANS[name], values_of(4000)
    (tmp_path / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    write(tmp_path, values)
    options = ["--plan", "plan.json", "--secret", "key", "--out", "out.jsonl"]
    arguments = [str(tmp_path / part) if "." in part or part == "key" else part for part in options]
    assert main(["run", str(tmp_path / "in.csv"), *arguments]) == 0
    stream = plan.open(secret=rillet.Secret.load(tmp_path / "key"), run="in.csv:")
    releases = list(stream.update_many(values))
    if stream.backfill is not None:
        releases = [*list(stream.backfill)[:-1], *releases]
        assert releases[0].t < plan.lag
    assert len(releases) > 500
    assert (tmp_path / "out.jsonl").read_text(encoding="utf-8") == lines_of(releases)
    assert str(stream.charges) in capsys.readouterr().err


def releases_of(**changes):
    """Real releases with columns of our own in place of theirs."""
    releases = PLANS["baseline"].open(key=("north %s", 7)).update_many(np.ones(7))
    return dataclasses.replace(releases, **changes)


@pytest.mark.parametrize("statistic", ["mean", "sum"])
def test_the_quick_spelling_is_that_of_the_sink(statistic):
    releases = releases_of(
        sum=np.array([1e-7, -0.0, 1e22, 123456789.125, 1 / 3, 5e-324, 1.7e308]),
        threshold=np.linspace(1.0, 2.0, 7),
        statistic=statistic,
        noise_law='100 % "exact"',
        post_processing=("rounded",),
    )
    assert b"".join(spell(releases)).decode() == lines_of(releases)
    assert list(spell(releases[:0])) == []


def test_what_json_cannot_say_is_null(tmp_path):
    sums = np.array([math.nan, math.inf, -math.inf, 3.0, 4.0, 5.0, 6.0])
    releases = releases_of(sum=sums)
    with JsonLinesSink(tmp_path / "out.jsonl") as sink:
        assert sink.write_releases(releases) == 7
    text = (tmp_path / "out.jsonl").read_text(encoding="utf-8")
    assert text == lines_of(releases)
    assert [json.loads(line)["sum"] for line in text.splitlines()] == [None] * 3 + [3, 4, 5, 6]


def test_two_runs_without_a_secret_draw_different_noise(tmp_path, capsys):
    file = write(tmp_path, values_of(50))
    options = ["--epsilon", "1", "--upper", "300", "--mechanism", "baseline", "--quiet"]
    assert main(["run", str(file), *options]) == 0
    first = capsys.readouterr()
    assert main(["run", str(file), *options]) == 0
    assert capsys.readouterr().out != first.out
    assert first.err == ""


def test_other_columns_get_other_noise_from_one_secret(tmp_path, capsys):
    file = tmp_path / "in.csv"
    file.write_text("a,b\n" + "1,1\n" * 20, encoding="utf-8")
    options = ["--epsilon", "1", "--upper", "9", "--mechanism", "baseline", "--quiet"]
    printed = []
    for column in ("a", "b"):
        secret = ["--secret", str(tmp_path / "key"), "--column", column]
        assert main(["run", str(file), *options, *secret]) == 0
        printed.append([json.loads(line)["sum"] for line in capsys.readouterr().out.splitlines()])
    assert not set(printed[0]) & set(printed[1])


def test_json_lines_and_bare_numbers_on_standard_input(rillet):
    options = ("--epsilon", 1, "--upper", 9, "--mechanism", "baseline", "--quiet")
    done = rillet("run", "-", "--column", "x", *options, stdin='{"x": 1}\n{"y": 2}\n')
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 2), done.stderr
    done = rillet("run", "-", "--format", "jsonl", *options, stdin="1\n2\n3\n")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 3), done.stderr


def test_parquet(tmp_path, capsys):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"x": [1.0, None, 3.0]}), tmp_path / "in.parquet")
    options = ["--epsilon", "1", "--upper", "9", "--mechanism", "baseline", "--quiet"]
    assert main(["run", str(tmp_path / "in.parquet"), *options]) == 0
    assert [json.loads(line)["t"] for line in capsys.readouterr().out.splitlines()] == [1, 2, 3]


def test_observations_after_the_last_release_are_told(tmp_path, capsys):
    file = write(tmp_path, values_of(25))
    options = ["--epsilon", "1", "--upper", "300", "--every", "10", "--mechanism", "baseline"]
    assert main(["run", str(file), *options]) == 0
    captured = capsys.readouterr()
    assert [json.loads(line)["t"] for line in captured.out.splitlines()] == [10, 20]
    assert "last release is at observation 20: the 5 after it" in captured.err


def test_what_is_charged_is_written_and_read_back(tmp_path, capsys):
    file, ledger = write(tmp_path, values_of(1500)), tmp_path / "ledger.json"
    options = ["--epsilon", "1", "--delta", "2^-20", "--upper", "300", "--length", "5000"]
    more = ["--lag", "1000", "--mechanism", "paper", "--ledger", str(ledger), "--out"]
    assert main(["run", str(file), *options, *more, str(tmp_path / "out")]) == 0
    told = capsys.readouterr().err
    assert main(["ledger", str(ledger)]) == 0
    assert capsys.readouterr().out.strip() in told
    assert main(["ledger", str(ledger), "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert fields["promised"]["epsilon"] == 1.0
    assert len(fields["events"]) == 3


def test_a_plan_has_the_charges_of_a_complete_run(tmp_path, capsys):
    plan = PLANS["paper"]
    (tmp_path / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    assert main(["ledger", str(tmp_path / "plan.json")]) == 0
    assert capsys.readouterr().out.strip() == str(plan.layout.charges())


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "rillet-charges-1"}', "\xff"])
def test_what_is_no_account_of_charges_is_refused(tmp_path, capsys, content):
    (tmp_path / "file").write_text(content, encoding="latin-1")
    assert main(["ledger", str(tmp_path / "file")]) == 5
    assert capsys.readouterr().err.startswith(f"rillet: {tmp_path / 'file'}: expected charges")


def test_progress_in_lines(tmp_path, capsys, monkeypatch):
    from rillet.cli import progress

    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.0)
    file = write(tmp_path, values_of(50))
    options = ["--epsilon", "1", "--upper", "300", "--mechanism", "baseline"]
    assert main(["run", str(file), *options, "--progress", "--out", str(tmp_path / "o")]) == 0
    assert "50 rows, 50 releases" in capsys.readouterr().err
