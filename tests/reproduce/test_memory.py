"""Windows, half-lives and households on the baskets: measured noise beside the theory's."""

from __future__ import annotations

import pytest

from rillet.reproduce.context import Context
from rillet.reproduce.memory import memory, people


@pytest.mark.long
def test_the_noise_of_windows_and_half_lives_is_the_theorys_for_ever():
    """Within 5 % of v/μ, at week 4 and at week 50."""
    numbers = memory(Context()).numbers
    print(numbers)  # noqa: T201
    for found in numbers.values():
        assert abs(found["count"] / found["theory"] - 1) < 0.05
        assert abs(found["mean"] / found["stated"] - 1) < 0.05
        # A learned range adds what clipping is estimated wrongly by.
        assert found["learned"] < 1.5 * found["learned_stated"]
    for label in ("window of 7 days", "half-life of 1 day"):
        early, late = (numbers[f"{label}, week {week}"] for week in (4, 50))
        assert abs(early["count"] / late["count"] - 1) < 0.06


@pytest.mark.long
def test_the_noise_of_households_is_what_is_stated():
    """Within 5 % where there are enough runs, and a fraction of group privacy's."""
    numbers = people(Context()).numbers
    print(numbers)  # noqa: T201
    for label, found in numbers.items():
        assert abs(found["count"] / found["count_stated"] - 1) < 0.1
        assert abs(found["sum"] / found["sum_stated"] - 1) < 0.1
        assert found["over_group_privacy"] < 0.8, label
    weekly = numbers["50, 7d apart, window 7d"]
    # 27.7 for 153 of group privacy: what spacing gains for a window of a week.
    assert abs(weekly["over_group_privacy"] - 27.7 / 153) < 0.01
