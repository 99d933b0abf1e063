"""SIGTERM finishes what is under way; a state is run by one process at a time."""

from __future__ import annotations

import time

import pytest

from engine.jobs import BrokerJob, FileJob, Input, Publisher, Uninterrupted
from helpers.crash import Kill
from rillet.noise import Secret

#: The exit code of whoever finds a state that cannot be used.
REFUSED = 4


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Make a job over one file with one secret, to be stopped or not."""
    folder = tmp_path_factory.mktemp("stopped")
    given = Input.make(folder / "meters.csv", 4_000, seed=4)
    Secret.generate().save(folder / "secret")

    def make(name, **options):
        return FileJob(folder / name, "default", given, folder / "secret", forked=True, **options)

    return make


@pytest.fixture(scope="module")
def expected(runs):
    return Uninterrupted.of(runs("uninterrupted"))


def test_stopped_it_has_delivered_and_goes_on_with_the_same_bytes(runs, expected):
    job = runs("stopped")
    early = 0
    for share in (0.1, 0.3, 0.2):
        with job.leg() as leg:
            assert leg.wait_until_opened(), leg.tail()
            time.sleep(share * expected.whole)
            assert leg.terminate() == 0, leg.tail()
        messages = [record["message"] for record in leg.records()]
        early += any(str(message).startswith("SIGTERM") for message in messages)
        # All that was committed with releases was delivered, and acknowledged.
        assert messages.count("delivering") == messages.count("delivered")
        with job.open(only_look=True) as streams:
            assert streams.store.undelivered() == []
        assert f"{sum(job.absorbed().values()):,} observations" in messages[-1]
        expected.check_so_far(job)
    assert early
    with job.leg() as leg:
        assert leg.end() == 0, leg.tail()
    expected.check(job)


def test_a_second_process_is_refused_while_the_first_runs(runs, expected):
    job = runs("followed", follow=True)
    with job.leg() as first:
        assert first.wait_until_opened(), first.tail()
        for _ in range(2):
            with job.leg() as second:
                assert second.end() == REFUSED, second.tail()
            assert "another process has this state open" in second.tail()
        assert first.process.poll() is None
        while job.text() != expected.text:
            assert first.process.poll() is None, first.tail()
            time.sleep(0.02)
        assert first.terminate() == 0, first.tail()
    expected.check(job)


def test_after_a_kill_the_state_is_free_at_once(runs):
    job = runs("freed")
    with job.leg(Kill("committing", 5)) as leg:
        assert leg.end() == -9, leg.tail()
    with job.leg() as leg:
        assert leg.wait_until_opened(), leg.tail()
        assert leg.terminate() == 0, leg.tail()


def test_stopped_while_it_reads_from_a_broker_it_loses_nothing(tmp_path, broker):
    pytest.importorskip("paho.mqtt")
    address = f"{broker.host}:{broker.port}"
    job = BrokerJob(tmp_path / "job", "default", (address, "stopped"), "stopped", forked=True)
    job.begin(Secret.generate())
    with Publisher(address, "stopped", rate=500, seed=1) as publisher:
        publisher.allow(10_000)
        for _ in range(3):
            with job.leg() as leg:
                assert leg.wait_until_opened(), leg.tail()
                time.sleep(0.4)
                assert leg.terminate() == 0, leg.tail()
        job.finish(publisher.stop())
    job.lines_of_keys()
