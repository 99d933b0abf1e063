"""Whatever comes in: a clear error or the documented clipping, nothing lost, nothing shown."""

import json
import shutil
import subprocess
import sys

import pytest

from rillet.cli import main

BASELINE = ("--epsilon", 1, "--upper", 1000, "--mechanism", "baseline", "--length", 100)


def csv(path, values, header="x"):
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([str(header), *map(str, values)]) + "\n", encoding="utf-8")
    return path


def records(text):
    """All but when they were released."""
    return [{**json.loads(line), "at": None} for line in text.splitlines()]


@pytest.mark.parametrize(
    ("strange", "counts_as"),
    [
        (["-inf", "-5", "-1e400"], -2),
        (["nan", "NaN", "", "abc", "1_0", "None"], 499),  # the middle: none was to be missing
        (["inf", "1e400", "1e9", "1000.01"], 1000),
    ],
)
def test_what_is_no_number_or_out_of_bounds_is_clipped(
    rillet, tmp_path, marker, strange, counts_as
):
    # The same secret, kept under two names so that neither run knows of the other, and the same
    # name of the input: the noise is the same, so the clipped values must be.
    odd = csv(tmp_path / "odd" / "in.csv", [*strange, marker])
    plain = csv(tmp_path / "plain" / "in.csv", [*[counts_as] * len(strange), marker])
    options = (*BASELINE, "--lower", -2, "--column", "x")
    first = rillet("run", odd, *options, "--secret", "a.key")
    shutil.copy(tmp_path / "a.key", tmp_path / "b.key")
    second = rillet("run", plain, *options, "--secret", "b.key")
    assert first.returncode == second.returncode == 0, first.stderr
    assert len(records(first.stdout)) == len(strange) + 1
    assert records(first.stdout) == records(second.stdout)
    assert "123.45" not in first.stderr


@pytest.mark.parametrize("mechanism", ["auto", "baseline", "paper"])
@pytest.mark.parametrize("missing", [None, "none", "7"])
def test_who_did_not_say_what_becomes_of_missing_values_is_warned(
    tmp_path, capsys, mechanism, missing
):
    file = csv(tmp_path / "in.csv", [10, "nan"] * 5)
    given = [] if missing is None else ["--missing", missing]
    numbers = ["--epsilon", "1", "--delta", "1e-6", "--upper", "100", "--length", "10"]
    assert main(["run", str(file), *numbers, "--mechanism", mechanism, *given, "--quiet"]) == 0
    told = capsys.readouterr().err
    warned = f"--mechanism {mechanism} counts a missing value" in told
    assert warned == (mechanism != "auto" and missing is None)
    assert ("or --missing skip" in told) == (warned and mechanism == "baseline")


def test_the_same_secret_with_other_values_differs(rillet, tmp_path):
    # Power for the test above: one value that is not clipped alike shows.
    csv(tmp_path / "a" / "in.csv", [5, 7])
    csv(tmp_path / "b" / "in.csv", [5, 8])
    first = rillet("run", "a/in.csv", *BASELINE, "--secret", "a.key")
    shutil.copy(tmp_path / "a.key", tmp_path / "b.key")
    second = rillet("run", "b/in.csv", *BASELINE, "--secret", "b.key")
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    same, other = zip(records(first.stdout), records(second.stdout), strict=True)
    assert same[0] == same[1]
    assert other[1]["sum"] - other[0]["sum"] == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("content", ["", "\n", "x\n"])
def test_an_empty_file(rillet, tmp_path, complains, content):
    (tmp_path / "in.csv").write_text(content, encoding="utf-8")
    done = rillet("run", "in.csv", *BASELINE)
    complains(done, 5, "in.csv")
    assert done.stdout == ""


def test_a_missing_file_and_a_missing_column(rillet, tmp_path, complains, marker):
    complains(rillet("run", "none.csv", *BASELINE), 5, "none.csv", "No such file")
    csv(tmp_path / "in.csv", [marker])
    complains(rillet("run", "in.csv", "--column", "y", *BASELINE), 5, "'y'", "found 1 with")


def test_a_file_without_a_header_does_not_show_its_first_value(rillet, tmp_path, complains, marker):
    csv(tmp_path / "in.csv", [1, 2], header=marker)
    complains(rillet("run", "in.csv", "--column", "y", *BASELINE), 5, "found 1 with")
    complains(rillet("run", "in.csv", *BASELINE), 5, "header")


@pytest.mark.parametrize("name", ["in.parquet", "in.xyz"])
def test_a_file_that_is_something_else(rillet, tmp_path, complains, marker, name):
    csv(tmp_path / name, [marker] * 5)
    complains(rillet("run", name, "--column", "x", *BASELINE), 5, name)


def test_a_stream_that_is_longer_than_the_plan(rillet, tmp_path, complains, marker):
    csv(tmp_path / "in.csv", [marker] * 250)
    done = rillet("run", "in.csv", *BASELINE, "--out", "out.jsonl")
    complains(done, 3, "--length", "at most 100")
    written = records((tmp_path / "out.jsonl").read_text(encoding="utf-8"))
    assert [record["t"] for record in written] == list(range(1, 101))
    assert "observations 1 … 100" in done.stderr  # the charges are shown all the same


def test_a_stream_that_is_exactly_as_long(rillet, tmp_path):
    csv(tmp_path / "in.csv", [1] * 100)
    done = rillet("run", "in.csv", *BASELINE)
    assert done.returncode == 0, done.stderr
    assert len(records(done.stdout)) == 100


def test_a_lag_that_is_longer_than_the_stream(rillet, tmp_path, complains, marker):
    csv(tmp_path / "in.csv", [marker] * 40)
    options = ("--epsilon", 1, "--delta", "2^-20", "--upper", 1000, "--length", 1000, "--lag", 500)
    done = rillet("run", "in.csv", *options, "--mechanism", "paper", "--out", "out.jsonl")
    complains(done, 5, "500", "found 40", "nothing was released")
    assert (tmp_path / "out.jsonl").read_text(encoding="utf-8") == ""
    assert "nothing yet" in done.stderr  # nor spent


def test_a_lag_that_is_longer_than_the_plan(rillet, tmp_path, complains):
    csv(tmp_path / "in.csv", [1])
    options = ("--epsilon", 1, "--delta", "2^-20", "--upper", 1000, "--length", 10, "--lag", 11)
    complains(rillet("run", "in.csv", *options), 2, "--lag")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--epsilon", -1, "--upper", 10), ("--epsilon", "positive", "-1")),
        (("--epsilon", "one", "--upper", 10), ("--epsilon", "'one'")),
        (("--upper", 10), ("--epsilon",)),
        (("--epsilon", 1, "--mechanism", "baseline"), ("--upper",)),
        (("--epsilon", 1, "--upper", 10, "--lower", 11), ("11",)),
        (("--epsilon", 1, "--upper", 10, "--length", 2.5), ("--length", "'2.5'")),
        (("--epsilon", 1, "--upper", 10, "--every", 0), ("--every",)),
        (("--epsilon", 1, "--upper", 10, "--mechanism", "paper"), ("--delta",)),
        (("--epsilon", 1, "--upper", 10, "--mechanism", "magic"), ("--mechanism",)),
        (("--epsilon", 1, "--upper", 10, "--lag", 5, "--mechanism", "baseline"), ("--lag",)),
        (("--epsilon", 1, "--upper", 10, "--plan", "plan.json"), ("--epsilon", "--plan")),
        (
            (
                *("--epsilon", 1, "--upper", 10),
                *("--statistic", "mean:share=0.7", "--statistic", "sum:share=0.7"),
            ),
            ("--statistic: expected shares that add up to 1",),
        ),
    ],
)
def test_wrong_parameters(tmp_path, capsys, complains, options, words):
    # In this process, which saves eleven starts; what comes before and after is shown above.
    file = csv(tmp_path / "in.csv", [1])
    try:
        code = main(["run", str(file), *map(str, options)])
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    complains(subprocess.CompletedProcess([], code, captured.out, captured.err), 2, *words)


def test_a_secret_for_tests_is_refused(rillet, tmp_path, complains):
    from rillet.noise import Secret

    Secret.for_tests(7).save(tmp_path / "known.key")
    csv(tmp_path / "in.csv", [1])
    done = rillet("run", "in.csv", *BASELINE, "--secret", "known.key")
    complains(done, 2, "--secret", "for_tests")
    assert done.stdout == ""


def test_a_file_that_is_no_secret(rillet, tmp_path, complains):
    csv(tmp_path / "in.csv", [1])
    complains(rillet("run", "in.csv", *BASELINE, "--secret", "in.csv"), 4, "--secret")


def test_a_secret_serves_one_input(rillet, tmp_path, complains):
    file = csv(tmp_path / "in.csv", [1, 2, 3])
    first = rillet("run", "in.csv", *BASELINE, "--secret", "key")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    again = rillet("run", "in.csv", *BASELINE, "--secret", "key")
    assert records(again.stdout) == records(first.stdout)
    csv(file, [1, 2, 3, 4])  # grown: the same, and more
    grown = rillet("run", "in.csv", *BASELINE, "--secret", "key")
    assert grown.returncode == 0, grown.stderr
    assert records(grown.stdout)[:3] == records(first.stdout)
    assert len(records(grown.stdout)) == 4
    csv(file, [1, 2, 3])  # a row gone: the same again
    again = rillet("run", "in.csv", *BASELINE, "--secret", "key")
    assert records(again.stdout) == records(first.stdout)
    csv(file, [1, 2, 3, 5])  # a row changed
    done = rillet("run", "in.csv", *BASELINE, "--secret", "key")
    complains(done, 4, "--secret", "other data")
    assert done.stdout == ""
    (tmp_path / "key.uses").write_bytes(b"damaged")
    complains(rillet("run", "in.csv", *BASELINE, "--secret", "key"), 4, "key.uses is damaged")


def test_an_input_that_ends_within_a_chunk_says_what_is_missing(rillet, tmp_path, complains):
    plan = ("--mechanism", "baseline", "--epsilon", "1", "--upper", "9", "--length", "9000")
    file = csv(tmp_path / "in.csv", range(5_000))
    first = rillet("run", "in.csv", *plan, "--secret", "key")
    csv(file, range(4_100))
    fewer = rillet("run", "in.csv", *plan, "--secret", "key")
    complains(fewer, 5, "last 4 observations")
    assert records(fewer.stdout) == records(first.stdout)[:4_096]
    csv(file, range(4_000))
    ended = rillet("run", "in.csv", *plan, "--secret", "key")
    complains(ended, 5, "last 4,000 observations")
    assert ended.stdout == ""


def test_a_secret_knows_standard_input_by_its_values(rillet, complains):
    first = rillet("run", "-", *BASELINE, "--secret", "key", stdin="x\n1\n")
    assert first.returncode == 0, first.stderr
    again = rillet("run", "-", *BASELINE, "--secret", "key", stdin="x\n1\n")
    assert records(again.stdout) == records(first.stdout)
    other = rillet("run", "-", *BASELINE, "--secret", "key", stdin="x\n2\n")
    complains(other, 4, "other data")
    assert other.stdout == ""


def test_published_numbers_are_not_overwritten(rillet, tmp_path, complains):
    csv(tmp_path / "in.csv", [1])
    (tmp_path / "out.jsonl").write_text("{}\n", encoding="utf-8")
    complains(rillet("run", "in.csv", *BASELINE, "--out", "out.jsonl"), 5, "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text(encoding="utf-8") == "{}\n"
    complains(rillet("run", "in.csv", *BASELINE, "--out", "no/such/folder"), 5, "no/such")


def test_a_reader_that_leaves_is_no_matter(tmp_path):
    csv(tmp_path / "in.csv", [1] * 60_000)
    options = ["--epsilon", "1", "--upper", "10", "--mechanism", "baseline", "--missing", "none"]
    process = subprocess.Popen(
        [sys.executable, "-m", "rillet", "run", str(tmp_path / "in.csv"), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline().startswith('{"key"')
    process.stdout.close()
    told = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 5
    assert told == ""
