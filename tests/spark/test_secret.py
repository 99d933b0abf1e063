"""On a cluster, too, the secret and the data are nowhere in the clear but in their own files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.spark.driven import finished
from tests.spark.test_release import FIXED, World, by_count

import rillet
from helpers.spark import ON_CLUSTER, Cluster, events_in, files_with, records, saved, spellings

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore"),
]


def world_of(folder: Path) -> tuple[World, list[bytes], list[bytes]]:
    """With a secret of its own; how that is spelt, and how some of its values are."""
    world, _ = by_count(folder, 20, 4, **FIXED)
    own = rillet.Secret.generate()
    world.secret = saved(folder, own, "own")
    assert files_with(folder, spellings(own)) == [world.secret]  # it would be found
    values = pq.read_table(next(world.frames.folder.glob("*.parquet")))["kwh"].to_numpy()
    return world, spellings(own), [np.float64(value).tobytes() for value in values[1:9]]


def test_logs_and_pages_of_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    world, secret, values = world_of(tmp_path / "world")
    (tmp_path / "events").mkdir()
    settings = {**ON_CLUSTER, **events_in(tmp_path / "events"), "spark.ui.enabled": "true"}
    settings["spark.ui.port"] = "0"
    finished(
        world,
        master=cluster.master,
        settings=settings,
        log="DEBUG",
        pages=tmp_path / "pages",
    )
    assert len(records(world.out)) == 20 * 12
    identity = (world.checkpoint / "metadata").read_text()[7:43].encode()
    own = world.folder / "log"
    assert identity in own.read_bytes() and len(list((tmp_path / "pages").iterdir())) > 8
    for folder in (tmp_path / "events", tmp_path / "pages", world.checkpoint):
        assert files_with(folder, [identity])
    found = files_with(tmp_path, secret) + files_with(cluster.folder, secret)
    assert found == [world.secret]
    for folder in (cluster.folder, tmp_path / "events", tmp_path / "pages", world.checkpoint):
        assert not files_with(folder, values)
