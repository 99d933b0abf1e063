"""Killed while it reads a file, a run publishes what an uninterrupted one does, byte for byte."""

from __future__ import annotations

import time

import pytest

from engine.jobs import CLOCK_PLANS, HOURS, PLANS, FileJob, Input, Uninterrupted, crash_file_runs
from helpers.crash import POINTS, Report, kills_at_points, random_kills
from rillet.noise import Secret

SHORT = {"rows": 4_000, "at_random": 10, "at_each_point": 2, "together": 20}
LONG = {"rows": 20_000, "at_random": 200, "at_each_point": 5, "together": 25}
#: By the clock, where blocks come in the order of time.
CLOCK = {"rows": 3_000, "at_random": 6, "at_each_point": 1, "together": 20}


class Runs:
    """Runs over one file, with one secret; plans take turns."""

    def __init__(self, folder, rows, *, forked, plans=tuple(PLANS)):
        self.folder, self.plans, self.forked = folder, plans, forked
        hours = HOURS if plans == tuple(CLOCK_PLANS) else 0
        self.given = Input.make(folder / "meters.csv", rows, seed=rows, hours=hours)
        self.secret = folder / "secret"
        Secret.generate().save(self.secret)
        self.expected = {
            plan: Uninterrupted.of(self.job(f"uninterrupted-{plan}", plan)) for plan in plans
        }

    def job(self, name, plan, **options):
        return FileJob(
            self.folder / name, plan, self.given, self.secret, forked=self.forked, **options
        )

    def make(self, kind):
        def make(number):
            plan = self.plans[number % len(self.plans)]
            return self.job(f"{kind}-{number}", plan), self.expected[plan]

        return make


def crash(folder, *, rows, at_random, at_each_point, together, forked, plans=tuple(PLANS)):
    begun = time.monotonic()
    runs = Runs(folder, rows, forked=forked, plans=plans)
    report = Report("a file", POINTS)
    count = crash_file_runs(
        runs.make("point"),
        kills_at_points(POINTS, at_each_point, "file points"),
        report,
        together=together,
    )
    count += crash_file_runs(
        runs.make("random"),
        random_kills(at_random, "file instants", together=together),
        report,
        together=together,
    )
    seconds = time.monotonic() - begun
    report.notes.append(f"{count} runs of {rows:,} rows, {seconds:.0f} s")
    return report


def test_killed_anywhere_it_publishes_the_same_bytes(tmp_path):
    report = crash(tmp_path, **SHORT, forked=True)
    report.publish("crash-file-short")
    report.check(at_each_point=SHORT["at_each_point"], at_random=SHORT["at_random"])


@pytest.mark.long
def test_killed_two_hundred_times_it_publishes_the_same_bytes(tmp_path):
    report = crash(tmp_path, **LONG, forked=False)
    report.publish("crash-file")
    report.check(at_each_point=LONG["at_each_point"], at_random=LONG["at_random"])


def test_killed_anywhere_by_the_clock_it_publishes_the_same_bytes(tmp_path):
    report = crash(tmp_path, **CLOCK, forked=True, plans=tuple(CLOCK_PLANS))
    report.publish("crash-clock-file-short")
    report.check(at_each_point=CLOCK["at_each_point"], at_random=CLOCK["at_random"])


@pytest.mark.long
def test_killed_two_hundred_times_by_the_clock_it_publishes_the_same_bytes(tmp_path):
    report = crash(tmp_path, **LONG, forked=False, plans=tuple(CLOCK_PLANS))
    report.publish("crash-clock-file")
    report.check(at_each_point=LONG["at_each_point"], at_random=LONG["at_random"])
