"""Median and 0.9-quantile of public data: live with rillet, beside OpenDP's batch quantile.

Both keep ε = 1 for the value of any one observation; rillet also releases at every thousandth
observation before the last, which is compared.  ``make quantiles`` prints the table.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np
import opendp.prelude as dp

from rillet import Plan, Quantile, datasets

LEVELS = (0.5, 0.9)
#: Public bound and length, as in the other comparisons.
DATA: dict[str, tuple[Callable[[], np.ndarray], float, int]] = {
    "baskets": (datasets.baskets, 3000.0, 150_000),
    "flights": (datasets.flights, 1440.0, 327_000),
}
CANDIDATES = 4096


def live(values: np.ndarray, upper: float, delta: float) -> np.ndarray:
    """The last of many releases."""
    plan = Plan(
        epsilon=1.0,
        delta=delta,
        upper=upper,
        length=len(values),
        every=1000,
        missing="none",
        statistic=Quantile(*LEVELS),
    )
    last = plan.open().update_many(values)[-1]
    return np.array([last[name].value for name in plan.statistic.names])


def batch(values: np.ndarray, upper: float) -> np.ndarray:
    """One release of all values: ε/2 for each quantile, candidates evenly over the bounds."""
    domain = dp.vector_domain(dp.atom_domain(T=float, nan=False), size=len(values))
    candidates = np.linspace(0.0, upper, CANDIDATES).tolist()
    found = []
    for level in LEVELS:
        make = dp.binary_search_chain(
            lambda scale, level=level: dp.m.make_private_quantile(
                domain,
                dp.symmetric_distance(),
                dp.max_divergence(),
                candidates=candidates,
                alpha=level,
                scale=scale,
            ),
            d_in=2,  # one value replaced
            d_out=1.0 / len(LEVELS),
            T=float,
        )
        found.append(make(values.tolist()))
    return np.array(found)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    dp.enable_features("contrib")
    print("| data | quantile | truth | rillet, δ = 2^-20 | rillet, δ = 0 | OpenDP, δ = 0 |")
    print("|---|---|---|---|---|---|")
    for name, (load, upper, length) in DATA.items():
        values = load()[:length]
        truth = np.quantile(values, LEVELS, method="inverted_cdf")
        runs_of: list[Callable[[], np.ndarray]] = [
            partial(live, values, upper, 2.0**-20),
            partial(live, values, upper, 0.0),
            partial(batch, values, upper),
        ]
        errors = [np.array([run() for _ in range(runs)]) / truth - 1 for run in runs_of]
        for index, level in enumerate(LEVELS):
            cells = [
                f"{100 * np.sqrt(np.mean(each[:, index] ** 2)):.2f} % "
                f"(at most {100 * np.abs(each[:, index]).max():.2f} %)"
                for each in errors
            ]
            print(f"| {name} | {level:g} | {truth[index]:.4g} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
