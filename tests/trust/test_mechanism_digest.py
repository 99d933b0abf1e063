"""Noise belongs to a mechanism, not to the JSON that stands for it (FINDINGS A1)."""

from __future__ import annotations

import pytest

from rillet import Plan, Secret, StateError, TailHistogram
from trust import faults

#: Learns its range again and again, so that every constant matters; and one that never does.
LEARNS = Plan(epsilon=1.0, delta=2.0**-20, upper=500.0, length=2_000, lag=50)
DECLARED = Plan.baseline(epsilon=1.0, upper=500.0, length=2_000)
VALUES = [float(7 * t % 90) for t in range(600)]


def test_two_versions_of_the_code_do_not_share_noise():
    secret = Secret.generate()
    before = DECLARED.open(secret=secret).update_many(VALUES)[-1]
    with faults.another_version("noise") as read_again:
        try:
            after = read_again(DECLARED).open(secret=secret).update_many(VALUES)[-1]
        except StateError:
            return  # refused, which is as good
    assert after.noise_std == pytest.approx(1.1 * before.noise_std)
    # Of X + W and X + 1.1·W whoever saw both knows X.
    revealed = (1.1 * before.sum - after.sum) / 0.1
    assert abs(revealed - sum(VALUES)) > 0.01 * before.sum_noise_std


@pytest.mark.parametrize("change", faults.CHANGES)
def test_a_snapshot_of_another_version_is_refused(change):
    secret = Secret.generate()
    stream = LEARNS.open(secret=secret)
    stream.update_many(VALUES)
    blob = stream.snapshot()
    with faults.another_version(change) as read_again:
        other = read_again(LEARNS)
        with pytest.raises(StateError, match=r"mechanism|version"):
            other.resume(blob, secret=secret)


@pytest.mark.parametrize("change", faults.CHANGES)
def test_a_state_of_another_version_is_refused(desk, change):
    (desk / "plan.json").write_text(LEARNS.to_json())
    desk.csv("in.csv", VALUES[:100])
    command = ("in.csv", "--state", "live", "--plan", "plan.json")
    assert desk.run(*command, plan=()).code == 0
    desk.append("in.csv", VALUES[100:200])
    with faults.another_version(change):
        assert desk.run(*command, plan=()).code == 4
    assert desk.count() == 51


def test_a_newer_judgement_asks_for_the_older_rillet(desk, monkeypatch):
    """It said to go on with the plan in the folder, which is the one that was given."""
    (desk / "plan.json").write_text(LEARNS.to_json())
    desk.csv("in.csv", VALUES[:100])
    command = ("in.csv", "--state", "live", "--plan", "plan.json")
    assert desk.run(*command, plan=()).code == 0
    monkeypatch.setattr(TailHistogram, "version", TailHistogram.version + 1)
    said = desk.run(*command, plan=())
    assert said.code == 4
    assert "another version of its mechanism: threshold.version" in said.said
    assert "go on with the version of rillet that began it" in said.said


def test_a_kept_secret_does_not_serve_another_version(desk):
    (desk / "plan.json").write_text(DECLARED.to_json())
    desk.csv("in.csv", VALUES)
    command = ("in.csv", "--plan", "plan.json", "--secret", desk.secret(), "--out")
    assert desk.run(*command, "before.jsonl", plan=()).code == 0
    with faults.another_version("noise"):
        code = desk.run(*command, "after.jsonl", plan=()).code
    last = ((), len(VALUES))
    revealed = 0.0
    if code == 0:
        revealed = (1.1 * desk.sums("before.jsonl")[last] - desk.sums("after.jsonl")[last]) / 0.1
    assert code == 4 or abs(revealed - sum(VALUES)) > 10.0


def test_no_observation_pays_for_two_versions():
    """Resumed under dearer looks, an epoch that has begun would be charged too much."""
    secret = Secret.generate()
    with faults.another_version("cost of looks") as read_again:
        cheap = read_again(LEARNS)
        stream = cheap.open(secret=secret)
        stream.update_many(VALUES[:60])  # an epoch has begun, on more steps than the newer code's
        blob = stream.snapshot()
    with pytest.raises(StateError):
        LEARNS.resume(blob, secret=secret).update_many(VALUES[60:])
