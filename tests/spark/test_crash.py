"""Killed at any instant, a query goes on: each (key, t) once, with the value that it had."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.spark.driven import batches, finished, killed, start, wait, wait_for
from tests.spark.test_release import FIXED, WORLDS, by_count

from helpers.spark import ON_CLUSTER, Cluster, end, need_java, records

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.mark.parametrize("name", WORLDS)
def test_a_driver_that_is_killed_goes_on(name: str, tmp_path: Path) -> None:
    need_java()
    world, expected = WORLDS[name](tmp_path)
    killed(world, "during", 0, 0.2)
    killed(world, "behind", 0)
    assert batches(world) == (1, 0)  # it was written, and Spark does not know
    killed(world, "during", 1, 0.2, master="local[2]")
    killed(world, "behind", 1, master="local[2]")
    assert batches(world) == (2, 1)
    killed(world, "before", 2)
    finished(world, master="local[2]")
    assert records(world.out) == expected


# --- two workers on loopback ---------------------------------------------------------------------


@pytest.mark.parametrize("name", WORLDS)
def test_workers_that_are_killed_do_no_harm(name: str, cluster: Cluster, tmp_path: Path) -> None:
    world, expected = WORLDS[name](tmp_path)
    stops = ("during", 0, 0.5), ("behind", 1, 0.0), ("before", 2, 0.0), ("during", 2, 1.0)
    process = start(world, *stops, tells=True, master=cluster.master, settings=ON_CLUSTER)
    try:
        for stop in stops:
            mark = wait_for(world, process, stop)
            cluster.kill_worker()
            cluster.add_worker()
            mark.unlink()
        wait(world, process)
    finally:
        end(process)
    assert records(world.out) == expected


def test_a_worker_and_the_driver_that_are_killed_together(cluster: Cluster, tmp_path: Path) -> None:
    world, expected = by_count(tmp_path, 300, 6, **FIXED)
    on_cluster = {"master": cluster.master, "settings": ON_CLUSTER}
    stop = ("behind", 1, 0.0)
    process = start(world, stop, tells=True, **on_cluster)
    try:
        wait_for(world, process, stop)
        cluster.kill_worker()
    finally:
        end(process)
    assert batches(world) == (2, 1)
    cluster.add_worker()
    finished(world, **on_cluster)
    assert records(world.out) == expected
