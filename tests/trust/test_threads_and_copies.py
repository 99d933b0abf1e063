"""A stream is one stream, whoever holds it (FINDINGS A5)."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
from collections import Counter

import pytest

from rillet import FixedThreshold, Plan, RilletError, Secret

KEYS = (("a",), ("b",))
PLAN = Plan.baseline(epsilon=1.0, upper=100.0, length=200_000)
KEYED = Plan(epsilon=1.0, upper=100.0, length=200_000, lag=0, threshold=FixedThreshold(), keys=KEYS)


@pytest.fixture
def impatient():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(work, threads=2):
    """Run in several threads at once; errors that rillet raises on purpose are welcome."""
    start, failed = threading.Barrier(threads), []

    def run():
        start.wait()
        try:
            work()
        except RilletError:
            pass
        except BaseException as error:  # noqa: BLE001 - shown in the test's own thread
            failed.append(error)

    workers = [threading.Thread(target=run) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failed


def test_no_time_is_released_twice_by_two_threads(impatient):
    stream, seen = PLAN.open(), []

    def work():
        for _ in range(100):
            seen.extend(stream.update_many([1.0] * 200).t.tolist())

    together(work)
    times = Counter(seen)
    assert max(times.values()) == 1
    assert stream.t == len(times)


def test_no_time_is_released_twice_by_two_threads_one_at_a_time(impatient):
    stream, seen = PLAN.open(), []

    def work():
        for _ in range(20_000):
            seen.append(stream.update(1.0).t)  # noqa: PERF401 - one at a time

    together(work)
    assert max(Counter(seen).values()) == 1


def test_no_time_of_a_key_is_released_twice_by_two_threads(impatient):
    streams, seen = KEYED.open_many(), []

    def work():
        for _ in range(100):
            seen.extend(streams.update_many([1.0] * 200, key=[("a",)] * 200).t.tolist())

    together(work)
    assert max(Counter(seen).values()) == 1


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(
    "make", [PLAN.open, KEYED.open_many], ids=["one stream", "streams of many keys"]
)
def test_a_stream_is_not_copied(make, begun):
    stream = make()
    if begun and hasattr(stream, "keys"):
        stream.update(1.0, key="a")
    elif begun:
        stream.update(1.0)
    with pytest.raises(TypeError, match="cop"):
        copy.copy(stream)


@pytest.mark.parametrize("how", [copy.deepcopy, pickle.dumps])
def test_a_stream_is_neither_deep_copied_nor_pickled(how):
    """Holds today, because a secret is not pickled."""
    stream = PLAN.open()
    stream.update(1.0)
    with pytest.raises(TypeError):
        how(stream)


def test_the_precision_of_mpmath_is_left_alone():
    """Another thread that computes meanwhile would do so with our digits, and set them back."""
    mpmath = pytest.importorskip("mpmath")
    plan = Plan.paper(epsilon=1.0, delta=2.0**-20, upper=100.0, length=2_000, lag=500)
    stream = plan.open(secret=Secret.for_tests(5))
    seen = set()
    sys.setprofile(lambda *_: seen.add(mpmath.mp.prec))
    try:
        stream.update_many([3.0] * 600)
    finally:
        sys.setprofile(None)
    assert seen == {53}


@pytest.mark.parametrize("secret", [None, Secret.generate()], ids=["fresh", "given"])
def test_no_time_is_released_twice_through_two_views_of_a_key(secret):
    """Single updates wait in a view before they reach the store."""
    streams = KEYED.open_many(secret=secret)
    first, second = streams.stream("a"), streams.stream("a")
    seen = [first.update(1.0).t, second.update(50.0).t, streams.update(3.0, key="a").t]
    seen += [first.update(4.0).t, *streams.update_many([5.0, 6.0], key="a").t, second.update(7.0).t]
    assert seen == [1, 2, 3, 4, 5, 6, 7]
    assert streams.t("a") == streams.observations == streams.latest("a").t == 7
