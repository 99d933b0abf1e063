"""``rillet run``: the same releases as the library, to the last character."""

import json

import numpy as np
import pyarrow.dataset
import pytest

import rillet
from helpers.records import without_times
from rillet.cli import main
from rillet.sink.reading import read_releases
from rillet.sink.spelling import spell


def write(folder, values):
    file = folder / "in.csv"
    file.write_text("\n".join(["x", *map(repr, values)]) + "\n", encoding="utf-8")
    return file


def values_of(count, seed=1):
    return np.random.default_rng(seed).exponential(30.0, count).tolist()


def lines_of(releases):
    """What a sink writes for releases, without their times."""
    return without_times(b"".join(spell(releases)))


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
    stream = plan.open(secret=rillet.Secret.load(tmp_path / "key"))
    releases = stream.update_many(values)
    assert len(releases) > 500
    assert (releases.t[0] < plan.lag) == plan.backfill
    assert without_times((tmp_path / "out.jsonl").read_bytes()) == lines_of(releases)
    assert str(stream.charges) in capsys.readouterr().err


def test_a_name_that_ends_with_parquet_is_a_dataset(tmp_path, capsys):
    file, plan = write(tmp_path, values_of(50)), PLANS["baseline"]
    (tmp_path / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    options = ["--plan", str(tmp_path / "plan.json"), "--out", str(tmp_path / "out.parquet")]
    assert main(["run", str(file), *options, "--secret", str(tmp_path / "key")]) == 0
    stream = plan.open(secret=rillet.Secret.load(tmp_path / "key"))
    found = pyarrow.dataset.dataset(tmp_path / "out.parquet").to_table()
    assert found["value"].to_pylist() == stream.update_many(values_of(50)).value.tolist()
    assert main(["run", str(file), *options]) == 5  # other noise: nothing published is replaced
    assert "a published value is never replaced" in capsys.readouterr().err
    assert main(["run", str(file), *options, "--existing", "append"]) == 2
    assert main(["run", str(file), *options, "--releases", "parquet"]) == 2
    assert "a folder, since --releases is given" in capsys.readouterr().err


def test_two_runs_without_a_secret_draw_different_noise(tmp_path, capsys):
    file = write(tmp_path, values_of(50))
    options = ["--epsilon", "1", "--upper", "300", "--mechanism", "baseline", "--quiet"]
    options += ["--missing", "none"]
    assert main(["run", str(file), *options]) == 0
    first = capsys.readouterr()
    assert main(["run", str(file), *options]) == 0
    one, other = (without_times(out.encode()) for out in (first.out, capsys.readouterr().out))
    assert one != other
    assert first.err == ""


def test_a_secret_knows_data_by_their_values(tmp_path, capsys):
    """Another column of the same values is the same data; one with other values is not."""
    file = tmp_path / "in.csv"
    file.write_text("a,b,c\n" + "1,1,2\n" * 20, encoding="utf-8")
    options = ["--epsilon", "1", "--upper", "9", "--mechanism", "baseline", "--quiet"]
    printed = []
    for column, code in (("a", 0), ("b", 0), ("c", 4)):
        secret = ["--secret", str(tmp_path / "key"), "--column", column]
        assert main(["run", str(file), *options, *secret]) == code
        printed.append([json.loads(line)["sum"] for line in capsys.readouterr().out.splitlines()])
    assert printed[0] == printed[1]
    assert printed[2] == []


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


def test_a_column_without_numbers_is_said_after_the_noise(tmp_path, capsys):
    (tmp_path / "in.csv").write_text("x;line\n" + "12,5;north\n" * 4000, encoding="utf-8")
    options = ["--delimiter", ";", "--epsilon", "1", "--upper", "300", "--length", "4000"]
    out = ["--every", "100", "--out", str(tmp_path / "out.jsonl"), "--existing", "replace"]
    for column, more, words in (
        ("x", [], True),
        ("line", [], True),
        ("x", ["--decimal", ","], False),
    ):
        run = ["run", str(tmp_path / "in.csv"), "--column", column, *options, *out, *more]
        assert main(run) == 0
        assert ("releases have no value" in capsys.readouterr().err) == words


def test_means_outside_of_their_range_are_said_and_sane_output_has_none(tmp_path, capsys):
    file = str(write(tmp_path, [0.0] * 50))
    for more, words in (([], True), (["--sane"], False)):
        out = tmp_path / f"{words}.jsonl"
        options = ["--epsilon", "0.1", "--upper", "10", "--length", "50", "--lag", "0"]
        assert main(["run", file, *options, "--missing", "none", "--out", str(out), *more]) == 0
        assert ("means outside of their range" in capsys.readouterr().err) == words
        found = read_releases(out)
        assert (found.value.min() >= 0) != words
        assert ("mean kept within its range" in found.post_processing) != words


def test_learning_is_said_with_how_far_it_is(tmp_path, capsys):
    file = write(tmp_path, values_of(700))
    options = ["--epsilon", "1", "--upper", "300", "--length", "5000", "--lag", "1000"]
    assert main(["run", str(file), *options, "--state", str(tmp_path / "live")]) == 0
    assert "nothing released yet: learning, 700 of 1,000 observations" in capsys.readouterr().err
    assert main(["state", str(tmp_path / "live")]) == 0
    assert "learning     700 of 1,000 observations" in capsys.readouterr().out


def test_of_many_keys_it_is_said_for_each(tmp_path, capsys):
    rows = "".join(f"k{index % 3},{index}\n" for index in range(700))
    (tmp_path / "in.csv").write_text("key,x\n" + rows, encoding="utf-8")
    (tmp_path / "keys.txt").write_text("k0\nk1\nk2\nk3\n", encoding="utf-8")
    options = ["--epsilon", "1", "--upper", "300", "--length", "5000", "--lag", "1000"]
    keys = ["--column", "x", "--key-column", "key", "--keys", str(tmp_path / "keys.txt")]
    run = ["run", str(tmp_path / "in.csv"), *options, *keys, "--state", str(tmp_path / "live")]
    assert main(run) == 0
    words = "learning, 4 of 4 keys; the furthest has 234 of 1,000 observations"
    assert f"nothing released yet: {words}" in capsys.readouterr().err
    assert main(["state", str(tmp_path / "live")]) == 0
    assert "learning     4 of 4 keys; the furthest has 234 of 1,000" in capsys.readouterr().out
    assert main(["ledger", str(tmp_path / "live")]) == 0
    assert capsys.readouterr().out.startswith("for each of 4 keys, up to the latest release:\n")
    # What differs is named, as it was typed.
    assert main([*run, "--epsilon", "2"]) == 4
    complaint = capsys.readouterr().err
    assert "belongs to another plan: epsilon was 1.0, is 2.0; go on with the plan in" in complaint
    (tmp_path / "keys.txt").write_text("k0\nk1\nk2\nk3\nk4\n", encoding="utf-8")
    assert main(run) == 4
    assert "it has 4, 5 are declared now (new: k4)" in capsys.readouterr().err
