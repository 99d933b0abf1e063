"""Opening a state, and closing it: twice is as good as once, and nothing goes on afterwards."""

from __future__ import annotations

import numpy as np
import pytest

from rillet import Plan, StateError
from rillet.state import store

PLAN = Plan.baseline(epsilon=1.0, upper=10.0, length=100)


def test_closing_twice_is_harmless(tmp_path):
    with PLAN.open_folder(tmp_path / "state") as streams:
        streams.update_many([1.0, 2.0])
        streams.close()
    streams.close()
    with PLAN.open_folder(tmp_path / "state") as again:
        assert again.t() == 2


def test_a_closed_state_absorbs_nothing_and_says_why(tmp_path):
    with PLAN.open_folder(tmp_path / "state") as streams:
        streams.update_many([1.0, 2.0])
    with pytest.raises(StateError, match="was closed; open it again"):
        streams.update_many([3.0])
    with PLAN.open_folder(tmp_path / "state") as again:
        assert again.t() == 2


def test_a_long_learning_buffer_is_read_with_one_query(tmp_path, monkeypatch):
    plan = Plan(epsilon=1.0, delta=1e-6, upper=10.0, length=10_000, lag=1000)
    with plan.open_folder(tmp_path / "state") as streams:
        for value in range(30):
            streams.update_many([float(value)])
    asked = []
    connect = store._connect

    def listening(*words):
        connection = connect(*words)
        connection.set_trace_callback(asked.append)
        return connection

    monkeypatch.setattr(store, "_connect", listening)
    with plan.open_folder(tmp_path / "state") as streams:
        asked.clear()
        raw_parts = streams.store.read(streams.layout, 0).state.raw_buffer
    assert np.concatenate(raw_parts).tolist() == list(range(30))
    assert sum("FROM learning" in query for query in asked) == 1
