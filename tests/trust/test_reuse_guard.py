"""A secret serves one sequence of observations, whatever they came through (FINDINGS A2, A3, D1).

Each test publishes twice under one secret. Where the noise is the same and the data are not, the
released difference is the true one, which ``difference`` shows in the assertion.
"""

from __future__ import annotations

import numpy as np
import pytest

from rillet import NotReady, Plan, Secret, StateError
from trust.runs import DONE, REFUSED, difference

# --- Other data: refused -------------------------------------------------------------------------


def test_another_key_column_is_other_data(desk):
    desk.csv("in.csv", ["a,b,1", "b,a,900"], header="k,l,x")
    (desk / "keys").write_text("a\nb\n")
    command = ("in.csv", "--column", "x", "--keys", "keys", "--secret", desk.secret())
    assert desk.run(*command, "--key-column", "k", "--out", "one.jsonl").code == DONE
    ended = desk.run(*command, "--key-column", "l", "--out", "two.jsonl")
    one, two = desk.sums("one.jsonl"), desk.sums("two.jsonl")
    assert ended.code == REFUSED, difference(one, two, 1, ("a",))  # 899


def test_another_delimiter_is_other_data(desk):
    desk.csv("in.csv", ["1,2;300", "3,4;500"], header="x,y;x")
    command = ("in.csv", "--column", "x", "--secret", desk.secret())
    assert desk.run(*command, "--out", "one.jsonl").code == DONE
    ended = desk.run(*command, "--delimiter", ";", "--out", "two.jsonl")
    one, two = desk.sums("one.jsonl"), desk.sums("two.jsonl")
    assert ended.code == REFUSED, difference(one, two, 1)  # 299


def test_another_format_is_other_data(desk):
    """As JSON lines of bare values the header counts as an observation too."""
    desk.csv("in.csv", [5, 700, 20], header='"x"')
    command = ("in.csv", "--secret", desk.secret())
    assert desk.run(*command, "--out", "one.jsonl").code == DONE
    ended = desk.run(*command, "--format", "jsonl", "--out", "two.jsonl")
    one, two = desk.sums("one.jsonl"), desk.sums("two.jsonl")
    assert ended.code == REFUSED, difference(one, two, 2)  # 5 - 705


def test_a_last_line_that_grows_is_other_data(desk):
    command = ("in.csv", "--secret", desk.secret())
    desk.csv("in.csv", [10, 3], end="")
    assert desk.run(*command, "--out", "one.jsonl").code == DONE
    desk.csv("in.csv", [10, 357])
    ended = desk.run(*command, "--out", "two.jsonl")
    one, two = desk.sums("one.jsonl"), desk.sums("two.jsonl")
    assert ended.code == REFUSED, difference(one, two, 2)  # 354


def test_sequence_numbers_make_other_data(desk):
    """With them the second row is one that came twice; without them it counts."""
    desk.csv("in.csv", ["1,10", "1,20", "2,800"], header="n,x")
    command = ("in.csv", "--column", "x", "--secret", desk.secret())
    with_numbers = ("--sequence", "n", "--state", "live", "--out", "one.jsonl")
    assert desk.run(*command, *with_numbers).code == DONE
    ended = desk.run(*command, "--out", "two.jsonl")
    one, two = desk.sums("one.jsonl"), desk.sums("two.jsonl")
    assert ended.code == REFUSED, difference(one, two, 2)  # 20 - 800


def test_rows_that_a_state_absorbed_later_are_guarded_too(desk):
    command = ("in.csv", "--secret", desk.secret())
    desk.csv("in.csv", [1, 2])
    assert desk.run(*command, "--state", "live", "--out", "one.jsonl").code == DONE
    desk.append("in.csv", [3, 4, 5])
    assert desk.run(*command, "--state", "live", "--out", "one.jsonl").code == DONE
    desk.csv("in.csv", [1, 2, 903, 4, 5])
    ended = desk.run(*command, "--out", "two.jsonl")
    one, two = desk.sums("one.jsonl"), desk.sums("two.jsonl")
    assert ended.code == REFUSED, difference(one, two, 5)  # 900


def test_one_secret_serves_one_state(desk):
    command = ("in.csv", "--secret", desk.secret())
    desk.csv("in.csv", [1, 2])
    assert desk.run(*command, "--state", "first", "--out", "one.jsonl").code == DONE
    desk.append("in.csv", [3, 4, 5])
    assert desk.run(*command, "--state", "first", "--out", "one.jsonl").code == DONE
    desk.csv("in.csv", [1, 2, 903, 4, 5])
    ended = desk.run(*command, "--state", "second", "--out", "two.jsonl")
    one, two = desk.sums("one.jsonl"), desk.sums("two.jsonl")
    assert ended.code == REFUSED, difference(one, two, 5)  # 900


# --- The same data: recognised -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [("copy.csv", ()), ("in.csv", ("--column", "x")), ("lines.jsonl", ("--column", "x"))],
    ids=["another file name", "the column named", "another format"],
)
def test_the_same_data_get_the_same_noise(desk, name, options):
    values = [5, 700, 20, 31]
    desk.csv("in.csv", values)
    desk.csv("copy.csv", values)
    (desk / "lines.jsonl").write_text("".join(f'{{"x": {value}}}\n' for value in values))
    secret = desk.secret()
    assert desk.run("in.csv", "--secret", secret, "--out", "one.jsonl").code == DONE
    ended = desk.run(name, *options, "--secret", secret, "--out", "two.jsonl")
    one, two = desk.sums("one.jsonl"), desk.sums("two.jsonl")
    assert ended.code == REFUSED or one == two


# --- Python --------------------------------------------------------------------------------------

PLAN = Plan.baseline(epsilon=1.0, upper=1000.0, length=5_000)


@pytest.mark.parametrize("at", [0, 1, 2_000])
def test_a_secret_is_refused_for_other_data(at):
    """Before anything that was computed from the other value is released."""
    secret = Secret.generate()
    values = np.arange(3_000.0) % 900
    PLAN.open(secret=secret).update_many(values)
    values[at] += 50.0
    second = PLAN.open(secret=secret)
    with pytest.raises(StateError, match="secret"):
        second.update_many(values)
    with pytest.raises(NotReady):
        second.latest()


def test_a_secret_is_refused_for_other_data_one_at_a_time():
    secret = Secret.generate()
    first, second = PLAN.open(secret=secret), PLAN.open(secret=secret)
    for value in (1.0, 2.0, 3.0):
        first.update(value)
    second.update(1.0)
    with pytest.raises(StateError, match="secret"):
        second.update(902.0)


def test_a_snapshot_resumed_twice_does_not_take_two_continuations():
    secret = Secret.generate()
    stream = PLAN.open(secret=secret)
    stream.update_many(range(10))
    blob = stream.snapshot()
    stream.update_many([1.0, 2.0])
    again = PLAN.resume(blob, secret=secret)
    with pytest.raises(StateError, match="secret"):
        again.update_many([1.0, 902.0])


def test_a_secret_of_many_keys_is_refused_for_other_data():
    plan = Plan(epsilon=1.0, upper=1000.0, length=500, keys=[("a",), ("b",)])
    secret = Secret.generate()
    plan.open_many(secret=secret).update_many([1.0, 2.0], key=["a", "b"])
    with pytest.raises(StateError, match="secret"):
        plan.open_many(secret=secret).update_many([1.0, 902.0], key=["a", "b"])


def test_the_same_data_in_other_blocks_are_the_same_data():
    """Blocks are no part of what was absorbed."""
    secret = Secret.generate()
    values = np.arange(3_000.0) % 900
    whole = PLAN.open(secret=secret).update_many(values)
    cut = PLAN.open(secret=secret)
    parts = [cut.update_many(part) for part in np.split(values, [1, 7, 1_024, 2_500])]
    assert np.array_equal(np.concatenate([part.sum for part in parts]), whole.sum)
    single = PLAN.open(secret=secret)
    sums = [single.update(value).sum for value in values.tolist()]
    assert np.array_equal(sums, whole.sum)


def test_a_stream_that_went_further_is_the_same_data():
    """A prefix, and a continuation, of what the secret was used for."""
    secret = Secret.generate()
    values = np.arange(300.0)
    longer = PLAN.open(secret=secret).update_many(values)
    shorter = PLAN.open(secret=secret).update_many(values[:200])
    further = PLAN.open(secret=secret).update_many(np.arange(400.0))
    assert np.array_equal(shorter.sum, longer.sum[:200])
    assert np.array_equal(further.sum[:300], longer.sum)
