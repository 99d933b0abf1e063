"""Killed while it reads from a broker, a run counts every message once and publishes the same."""

from __future__ import annotations

import time
from collections import deque

import pytest

from engine.jobs import BROKER_METERS, PLANS, BrokerJob, Publisher, killed
from helpers.crash import BROKER_POINTS, Report, kills_at_points, random_kills
from rillet.noise import Secret

pytest.importorskip("paho.mqtt")

SHORT = {"at_random": 10, "at_each_point": 2, "together": 42, "rate": 500}
LONG = {"at_random": 200, "at_each_point": 5, "together": 32, "rate": 500}
#: Seconds that starting takes, forked and not, and over which the kills of one run are spread.
STARTING = {True: 0.3, False: 1.5}
WHOLE = 8.0
#: How many messages are published while a process lives: enough to come to any point.
AT_ONCE = 1_500
#: Of the kills in a run, the part that comes while messages are being published.
PUBLISHING = 0.8


class Pair:
    """Two runs with one secret and the same messages, one to be killed and one not."""

    def __init__(self, folder, plan, address, topic, *, forked):
        secret = Secret.generate()
        place = (address, topic)
        self.every = 5 if plan == "paper" else 1
        self.job = BrokerJob(folder / "killed", plan, place, f"{topic}-killed", forked=forked)
        # Cut into other blocks, which must not matter.
        self.other = BrokerJob(
            folder / "not", plan, place, f"{topic}-not", forked=forked, block_rows=3_000
        )
        for job in (self.job, self.other):
            job.begin(secret)

    def check(self, counts):
        """Let both come to the end of the messages, and compare, key by key."""
        self.job.finish(counts)
        self.other.finish(counts)
        lines = self.job.lines_of_keys()
        assert set(lines) == set(BROKER_METERS)
        assert lines == self.other.lines_of_keys()
        assert self.job.rows() == self.other.rows()
        self.job.check_times()
        for key, found in lines.items():
            assert len(found) > counts[key] // self.every - 60


def crash(folder, broker, *, at_random, at_each_point, together, rate, forked):
    begun = time.monotonic()
    report = Report("a broker", BROKER_POINTS)
    kills = kills_at_points(BROKER_POINTS, at_each_point, "broker points")
    kills += random_kills(at_random, "broker instants", together=together)
    left, runs, messages, meanwhile, plans = deque(kills), 0, 0, 0, list(PLANS)
    address = f"{broker.host}:{broker.port}"
    while left:
        topic = f"{folder.name}-{runs}"
        pair = Pair(folder / topic, plans[runs % 2], address, topic, forked=forked)
        runs += 1
        with Publisher(address, topic, rate=rate, seed=runs) as publisher:
            kills = [left.popleft() for _ in range(min(together, len(left)))]
            counts = None
            for number, kill in enumerate(kills):
                if number >= PUBLISHING * len(kills) and counts is None and kill.point is None:
                    counts = publisher.stop(multiple=pair.every)
                publisher.allow(AT_ONCE)
                leg = pair.job.leg(kill)
                assert killed(leg, kill, starting=STARTING[forked], whole=WHOLE), leg.tail()
                meanwhile += publisher.is_publishing
                report.add(kill, leg.point())
            pair.check(counts or publisher.stop(multiple=pair.every))
            messages += sum(publisher.counts.values())
    seconds = time.monotonic() - begun
    report.notes += [
        f"{meanwhile} of the kills while messages were being published",
        f"{runs} runs, {messages:,} messages of declared keys, {seconds:.0f} s",
    ]
    assert meanwhile > len(report.hits) // 2
    return report


def test_killed_anywhere_it_counts_every_message_once(tmp_path, broker):
    report = crash(tmp_path, broker, **SHORT, forked=True)
    report.publish("crash-broker-short")
    report.check(at_each_point=SHORT["at_each_point"], at_random=SHORT["at_random"])


@pytest.mark.long
def test_killed_two_hundred_times_it_counts_every_message_once(tmp_path, broker):
    report = crash(tmp_path, broker, **LONG, forked=False)
    report.publish("crash-broker")
    report.check(at_each_point=LONG["at_each_point"], at_random=LONG["at_random"])
