"""Tables I and II: optimised parameters and improvement factors for every lag of the paper.

**Privacy.** The parameters are optimised on public data, as the paper does on its own: not a
private procedure (PAK, section VI-B).
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from rillet.paper.bounds import ErrorShares, underestimate_probability
from rillet.paper.optimise import (
    LocalParameters,
    Prediction,
    Setting,
    optimise,
    predict,
    public_tail,
)
from rillet.reproduce.context import Context, StandIn
from rillet.reproduce.paper_values import BETA, DELTA, EPSILON, LARGEST_QUANTILE, PaperRow
from rillet.reproduce.result import Result, Table, plain

__all__ = ["VARIANTS", "improvement_factor", "optimum", "setting_for", "table1", "table2"]

#: Name, what it is, and what it changes in the setting.
VARIANTS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "paper-mixed": (
        "the paper's bound and its mixed constants",
        {"calibration": "paper-mixed", "form": "paper"},
    ),
    "paper-mixed, corrected": (
        "the corrected bound, mixed constants",
        {"calibration": "paper-mixed", "form": "corrected"},
    ),
    "exact": (
        "the corrected bound, exact constants",
        {"calibration": "exact", "form": "corrected"},
    ),
}


def setting_for(stream: StandIn, lag: int, variant: str, epsilon: float = EPSILON) -> Setting:
    """The setting of section VI-A for one lag."""
    return Setting(
        epsilon=epsilon,
        delta=DELTA,
        upper=stream.upper,
        length=stream.length,
        lag=lag,
        beta=BETA,
        largest_quantile=LARGEST_QUANTILE,
        **VARIANTS[variant][1],
    )


def optimum(
    context: Context, stream: StandIn, lag: int, variant: str, epsilon: float = EPSILON
) -> Prediction:
    """The optimised parameters for one lag and ε, worked out once."""

    def make() -> Prediction:
        setting = setting_for(stream, lag, variant, epsilon)
        return optimise(setting, public_sample=stream.values[:lag])

    found: Prediction = context.once(f"optimum {stream.name} {lag} {variant} {epsilon!r}", make)
    return found


def improvement_factor(found: Prediction) -> float:
    """The improvement factor; 1 where the mechanism falls back to plain BT (PAK, section VI-A)."""
    return max(1.0, found.improvement_factor) if found.gain else 1.0


def at_printed_parameters(stream: StandIn, row: PaperRow) -> tuple[Prediction, float] | None:
    """The paper's bound at the parameters of one of its rows, and g over β there.

    Where g exceeds the row's own β_qt, the bound is given the larger of the two.
    """
    if row.threshold_share == 0:
        return None
    setting = setting_for(stream, row.lag, "paper-mixed")
    g = underestimate_probability(row.rank_factor, row.quantile, row.lag)
    shares = ErrorShares(
        quantile=max(g, row.beta_qt * BETA),
        low=row.beta_lt * BETA,
        high=row.beta_rt * BETA,
        noise=row.beta_lap * BETA,
        outlier=row.beta_out * BETA,
    )
    parameters = LocalParameters(
        row.quantile, row.rank_factor, row.multiplier, row.threshold_share, shares
    )
    tail = public_tail(setting, public_sample=stream.values[: row.lag])
    return predict(setting, parameters, tail), g / BETA


def _numbers(found: Prediction) -> dict[str, Any]:
    parameters, shares = found.parameters, found.parameters.shares
    return {
        "improvement_factor": improvement_factor(found),
        "gain": found.gain,
        "parameters": {
            "multiplier": parameters.multiplier,
            "rank_factor": parameters.rank_factor,
            "quantile": parameters.quantile,
            "threshold_share": parameters.threshold_share,
            "beta_shares": {
                name: value / BETA for name, value in dataclasses.asdict(shares).items()
            },
        },
    }


def _row(
    lag: str, factor: float, numbers: dict[str, Any] | PaperRow, first: bool
) -> tuple[str, ...]:
    """One line of a table, from the paper or from us."""
    if isinstance(numbers, PaperRow):
        row = numbers
        values = (row.multiplier, row.rank_factor, row.quantile, row.threshold_share)
        betas = (row.beta_qt, row.beta_lt, row.beta_lap, row.beta_out, row.beta_rt)
        rest: tuple[str, ...] = ("–",) if first else ()
    else:
        chosen = numbers["parameters"]
        if not numbers["gain"]:
            return (lag, "1", *("–",) * (9 + first))
        names = ("multiplier", "rank_factor", "quantile", "threshold_share")
        values = tuple(chosen[name] for name in names)
        shares = chosen["beta_shares"]
        betas = tuple(shares[name] for name in ("quantile", "low", "noise", "outlier", "high"))
        rest = (f"{shares['first']:.2f}",) if first else ()
    r, factor_of_rank, p, share = values
    return (
        lag,
        f"{factor:.2f}",
        f"{r:.2f}",
        f"{factor_of_rank:.2f}",
        f"{p:.4f}",
        f"{share:.2f}",
        *(f"{beta:.2f}" for beta in betas),
        *rest,
    )


_HEAD = ("m", "IF", "r", "λ", "p", "ε₁/ε", "β_qt/β", "β_lt/β", "β_Lap/β", "β_out/β", "β_rt/β")


def _table(context: Context, stream: StandIn, name: str, number: str) -> Result:
    lags: dict[str, Any] = {}
    for row in stream.table:
        context.tell(f"{stream.name}, m = {row.lag:,}")
        entry: dict[str, Any] = {"paper": row.improvement_factor}
        for variant in VARIANTS:
            entry[variant] = _numbers(optimum(context, stream, row.lag, variant))
        printed = at_printed_parameters(stream, row)
        if printed is not None:
            entry["at_printed_parameters"] = printed[0].improvement_factor
            entry["g_over_beta_at_printed_parameters"] = printed[1]
        lags[str(row.lag)] = entry
    tables = [
        _side_by_side(stream, lags),
        Table(
            f"Table {number} as printed",
            _HEAD,
            tuple(_row(f"{row.lag:,}", row.improvement_factor, row, False) for row in stream.table),
        ),
    ]
    for variant, (meaning, changes) in VARIANTS.items():
        first = changes["form"] == "corrected"
        rows = tuple(
            _row(f"{int(lag):,}", entry[variant]["improvement_factor"], entry[variant], first)
            for lag, entry in lags.items()
        )
        head = (*_HEAD, "β_first/β") if first else _HEAD
        tables.append(Table(f"On {stream.name}: {meaning} ({variant})", head, rows))
    return Result(
        name=name,
        title=f"Table {number}: optimised parameters, {stream.name}",
        paper=_paper_words(stream),
        ours=_our_words(lags),
        difference=_difference(stream),
        numbers=plain({"lags": lags, "jump": _jump(lags)}),
        tables=tables,
    )


def _side_by_side(stream: StandIn, lags: dict[str, Any]) -> Table:
    rows = tuple(
        (
            f"{int(lag):,}",
            f"{entry['paper']:.2f}",
            f"{entry['at_printed_parameters']:.2f}" if "at_printed_parameters" in entry else "–",
            *(f"{entry[variant]['improvement_factor']:.2f}" for variant in VARIANTS),
        )
        for lag, entry in lags.items()
    )
    head = ("m", "paper", "at its parameters", *VARIANTS)
    return Table(f"Improvement factors side by side, {stream.name}", head, rows)


def _jump(lags: dict[str, Any]) -> dict[str, float]:
    """IF at 50,000 over IF at 40,000, beside what the next step brings."""
    factor = {lag: entry["paper-mixed"]["improvement_factor"] for lag, entry in lags.items()}
    return {
        "from_40000_to_50000": factor["50000"] / factor["40000"],
        "from_50000_to_60000": factor["60000"] / factor["50000"],
    }


def _paper_words(stream: StandIn) -> str:
    factors = ", ".join(f"{row.improvement_factor:g} at {row.lag:,}" for row in stream.table)
    return (
        f"n = {stream.length:,}, B = {stream.upper:,.0f}, ε = 1, δ = 2⁻²⁰, β = 0.02. Improvement "
        f"factors: {factors}. At m = 40,000 there is no gain, and the mechanism runs plain BT."
    )


def _our_words(lags: dict[str, Any]) -> str:
    parts = []
    for variant, (meaning, _) in VARIANTS.items():
        factors = [f"{entry[variant]['improvement_factor']:.2f}" for entry in lags.values()]
        parts.append(f"{meaning[0].upper()}{meaning[1:]}: {', '.join(factors)}.")
    jump = _jump(lags)
    parts.append(
        f"Under mixed constants the factor grows {jump['from_40000_to_50000']:.2f} times from "
        f"m = 40,000 to 50,000, and {jump['from_50000_to_60000']:.2f} times to 60,000: the jump "
        "of the paper."
    )
    return "\n\n".join(parts)


def _difference(stream: StandIn) -> str:
    words = (
        "The jump is where the upper end of the stream stops counting: smooth sensitivity contains "
        "B·e⁻ᵇᵏ with k = λpm, the number of observations above the quantile, and this term "
        "rules until m is large enough. Mixed constants (the Gaussian a, with Laplace noise) put "
        "the jump some ten thousand observations later than exact ones.\n\n"
        "The paper's bound charges nothing for the noise of the first block, so that the optimum "
        "gives all of ε to the threshold (0.98, where the search ends), while the paper prints "
        "0.79 to 0.9. With the first block charged the optimum keeps some ε for it, and the "
        "factors come near the printed ones. At m = 40,000 an optimiser that starts where r·τ is "
        "clipped at B finds no slope and stays at IF = 1; this one does not.\n\n"
        "At the printed parameters the bound gives less on the stand-in than on the paper's data, "
        "for which they were made."
    )
    if stream.name == "trips":
        words += (
            "\n\nThe printed row m = 50,000 is not feasible by its own constraint: at λ = 0.85 the "
            "probability g is 0.38 of β, and the row allows it 0.09."
        )
    return words


def table1(context: Context) -> Result:
    """Table I: train trips."""
    return _table(context, context.trips, "table1", "I")


def table2(context: Context) -> Result:
    """Table II: supermarket."""
    return _table(context, context.baskets, "table2", "II")
