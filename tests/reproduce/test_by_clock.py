"""Baskets by the clock beside baskets by count: hiding the counts costs nothing at the end."""

from __future__ import annotations

import numpy as np
import pytest

from rillet import Plan, Secret, datasets

RUNS = 200
PROMISE = {"epsilon": 1.0, "delta": 2.0**-20, "upper": 3000.0}


@pytest.mark.long
def test_the_last_mean_of_the_baskets_is_no_worse_by_the_clock():
    values, times = datasets.baskets_with_time()
    by_count = Plan(**PROMISE, length=len(values))
    by_clock = Plan(
        **PROMISE, every="1h", start="2017-01-01T00:00", zone="America/New_York", length="366d"
    )
    assert by_clock.last_t == 8784
    truth, errors = float(values.mean()), {"count": [], "clock": []}
    for run in range(RUNS):
        secret = Secret.for_tests(run)
        errors["count"].append(by_count.open(secret=secret).update_many(values)[-1].value - truth)
        stream = by_clock.open(secret=secret)
        stream.update_many(values, at=times)
        errors["clock"].append(stream.advance(until="2018-01-02T00:00")[-1].value - truth)
    size = {name: np.abs(found) for name, found in errors.items()}
    print({name: float(found.mean()) for name, found in size.items()})  # noqa: T201
    spread = np.hypot(*(found.std() / np.sqrt(RUNS) for found in size.values()))
    # Smaller by far more than chance explains.
    assert size["clock"].mean() + 2 * spread < size["count"].mean()
