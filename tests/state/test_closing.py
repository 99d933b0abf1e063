"""A state that is closed: twice is as good as once, and nothing goes on afterwards."""

from __future__ import annotations

import pytest

from rillet import Plan, StateError

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
