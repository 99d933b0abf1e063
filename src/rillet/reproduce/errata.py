"""Where the paper is wrong or unclear: what it would cost, in numbers computed here.

Each function is one point of ``docs/errata.md`` and returns its numbers and the lines that print
them; :func:`errata` is all of them.

**Privacy.** Public numbers and public data only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import numpy as np

from rillet.paper.bounds import (
    alpha_first_block,
    alpha_outlier_worst_case,
    underestimate_probability,
)
from rillet.paper.lag import criterion_quantile, criterion_sensitivity
from rillet.plan import Plan
from rillet.reproduce.context import Context, StandIn
from rillet.reproduce.errors import estimated_outlier_error
from rillet.reproduce.mechanisms import facts, paper_plan, strategy_plan
from rillet.reproduce.paper_values import (
    BETA,
    DELTA,
    EPSILON,
    HEADLINE_LAG,
    LARGEST_QUANTILE,
    TABLE_1,
    TABLE_2,
    row_of,
)
from rillet.reproduce.result import Result, Table, plain, ratio
from rillet.reproduce.simulator import Paths, clipping, simulate
from rillet.reproduce.tables import optimum
from rillet.strategy import BinaryTree
from rillet.threshold import SmoothQuantile
from rillet.threshold.calibration import calibrate, exact_delta, published_constants
from rillet.threshold.smooth_sensitivity import quantile_rank

__all__ = ["ERRATA", "Erratum", "errata"]


@dataclass(frozen=True)
class Erratum:
    """One point: where, what it costs in a few words, and its numbers."""

    name: str
    where: str
    lines: tuple[str, ...]
    numbers: dict[str, Any]

    def __str__(self) -> str:
        return "\n".join(self.lines)


def levels() -> Erratum:
    """The tree has one level more than log2 n: what is really spent when ε = 1 is promised."""
    numbers, lines = {}, []
    for n in (8, 2**20, 150_000, 25_000_000):
        real = int(BinaryTree().sensitivity(n, 1))
        spent = real / math.log2(n)
        numbers[str(n)] = {"log2": math.log2(n), "levels": real, "epsilon_spent": spent}
        lines.append(
            f"n = {n:>10,}: log2 n = {math.log2(n):.3f}, an observation lies in {real} nodes, "
            f"epsilon really spent: {spent:.3f}"
        )
    return Erratum("levels", "section II-D, Mechanism 1, equation 3", tuple(lines), numbers)


def _typical_threshold(stream: StandIn) -> tuple[float, float]:
    """τ at the median of its noise by the paper's constants, and r·τ."""
    layout = paper_plan(stream, "paper").layout
    threshold = layout.threshold
    assert isinstance(threshold, SmoothQuantile)
    before = threshold.prepare(
        stream.values[: layout.lag], layout.bounds, layout.threshold_budget, DELTA
    )
    constants = before.constants
    scale = constants.noise_per_sensitivity * before.exact_sensitivity
    learned = before.exact_quantile + scale * constants.offset
    return learned, learned * threshold.multiplier


def first_block(context: Context | None = None) -> Erratum:
    """The sum of the first m is not clipped in Mechanism 1: its sensitivity is B."""
    stream = (context or Context()).baskets
    row = row_of(stream.table, HEADLINE_LAG)
    _, clipped = _typical_threshold(stream)
    second = EPSILON * (1 - row.threshold_share)
    spent = EPSILON * row.threshold_share + second * stream.upper / clipped
    lines = (
        (
            f"baskets: threshold {clipped:.0f}, bound {stream.upper:.0f}, "
            f"epsilon_2 = {second:.2f} as noise for the threshold"
        ),
        (
            f"an unclipped observation may cost {second * stream.upper / clipped:.2f} instead of "
            f"{second:.2f}, with the threshold {spent:.2f} instead of {EPSILON:g}"
        ),
    )
    numbers = {"threshold": clipped, "epsilon_spent": spent}
    return Erratum("first block", "Mechanism 1, step 2", lines, numbers)


def multiplier(context: Context | None = None) -> Erratum:
    """R in the clipping and in the noise: Mechanism 1 has none, section V-B has one."""
    stream = (context or Context()).trips
    row = row_of(stream.table, HEADLINE_LAG)
    learned, clipped = _typical_threshold(stream)
    both = Paths.constant([learned, clipped], [stream.length])
    below, within = -clipping(both, stream.values, both.ends)[:, 0]
    estimate = estimated_outlier_error(stream, paper_plan(stream, "paper"))
    lines = (
        (
            f"trips, r = {row.multiplier}: clipped at r*tau, noise for tau: epsilon really spent "
            f"{EPSILON * row.multiplier:.2f}"
        ),
        (
            f"clipped at tau = {learned:.0f}, the sum loses {below:,.0f}; the bound, which has r, "
            f"allows {estimate:,.0f}"
        ),
        f"clipped at r*tau = {clipped:.0f}, it loses {within:,.0f}",
    )
    numbers = {
        "epsilon_spent": EPSILON * row.multiplier,
        "lost_at_threshold": below,
        "lost_at_multiple": within,
        "allowed": estimate,
    }
    return Erratum("multiplier", "Mechanism 1 against section V-B", lines, numbers)


def gaussian() -> Erratum:
    """The Gaussian constants of smooth sensitivity are not (ε, δ)-private: exact δ."""
    numbers, lines = {}, []
    for epsilon in (0.5, 1.0, 2.0):
        a, b = published_constants("paper", "gaussian", epsilon, DELTA)
        shift = exact_delta("gaussian", a, 0.0, epsilon) / DELTA
        both = exact_delta("gaussian", a, b, epsilon) / DELTA
        numbers[f"{epsilon:g}"] = {"equal_scales": shift, "scales_apart": both}
        lines.append(
            f"epsilon_1 = {epsilon:g}: exact delta over the promised 2^-20: {shift:.1f} with equal "
            f"scales, {both:.0f} with scales 1 and e^b"
        )
    for kind in ("textbook", "paper"):
        a, b = published_constants(kind, "laplace", 1.0, DELTA)
        safe = exact_delta("laplace", a, b, 1.0) / DELTA
        numbers[f"laplace_{kind}"] = {"scales_apart": safe}
        lines.append(f"for comparison, Laplace noise, {kind} constants, epsilon_1 = 1: {safe:.4f}")
    return Erratum("Gaussian constants", "section IV-C, Warm", tuple(lines), numbers)


def mixed() -> Erratum:
    """Section VI takes the Gaussian a with Laplace noise: safe, and how wasteful."""
    numbers, lines = {}, []
    for kind, name in (
        ("paper-mixed", "mixed, as in section VI"),
        ("paper", "the paper's own for Laplace noise"),
        ("exact", "exact"),
    ):
        cost = calibrate(kind, "laplace", 0.8, DELTA, 0.006).cost  # type: ignore[arg-type]
        lag = criterion_sensitivity(1.0, DELTA, calibration=kind)  # type: ignore[arg-type]
        numbers[kind] = {"noise": cost, "lag": lag}
        lines.append(
            f"{name}: noise {cost:.1f} per spacing of the data, second criterion asks for m = "
            f"{lag:,}"
        )
    return Erratum("mixed constants", "section VI-B, second criterion", tuple(lines), numbers)


def criterion_1() -> Erratum:
    """The first criterion at the paper's own values is met long before 20,000."""
    numbers, lines = {}, []
    for factor in (0.5, 0.8):
        lag = criterion_quantile(LARGEST_QUANTILE, BETA, factor)
        numbers[f"{factor:g}"] = lag
        lines.append(f"lambda = {factor:g}: g(lambda, 0.005, m) < 0.02 for every m >= {lag:,}")
    return Erratum("criterion 1", "section VI-B, first criterion", tuple(lines), numbers)


def density() -> Erratum:
    """D is a density; smooth sensitivity is k/d and not d·k."""
    lag, upper = 80_000, 3000.0
    a, b = published_constants("paper-mixed", "laplace", EPSILON, DELTA)
    d = -lag * LARGEST_QUANTILE * math.log(LARGEST_QUANTILE) / upper
    printed, meant = d / (math.e * b), 1 / (d * math.e * b)
    asked = criterion_sensitivity(EPSILON, DELTA)
    lines = (
        f"m = {lag:,}, B = {upper:.0f} dollars: d = {d:.3f} observations per dollar",
        f"printed: SS < d/(e*b) = {printed:.1f}, in observations per dollar, growing with m",
        (
            f"meant: SS < 1/(d*e*b) = {meant:.1f} dollars, falling with m; "
            f"this one leads to the final formula, m >= {asked:,}"
        ),
    )
    numbers = {"printed": printed, "meant": meant, "lag": asked, "a": a}
    return Erratum("d in criterion 2", "section VI-B, equations 18 and 19", lines, numbers)


def first_term(context: Context | None = None) -> Erratum:
    """The bound has no term for the noise of the first block, so ε₂ is driven to nothing."""
    context = context or Context()
    stream = context.baskets
    numbers: dict[str, Any] = {}
    lines = []
    for variant, name in (("paper-mixed", "as printed"), ("paper-mixed, corrected", "with it")):
        found = optimum(context, stream, HEADLINE_LAG, variant)
        share = found.parameters.threshold_share
        layout = Plan.paper(**facts(stream), lag=HEADLINE_LAG, threshold_share=share).layout
        warm_up, last = math.sqrt(layout.warm_up_unit_variance), layout.unit_std_at(stream.length)
        omitted = alpha_first_block(found.threshold_max, EPSILON * (1 - share), 0.04 * BETA)
        numbers[variant] = {
            "threshold_share": share,
            "warm_up_noise": warm_up,
            "last_noise": last,
            "omitted_over_bound": omitted / found.bound.total,
        }
        lines.append(
            f"optimum {name}: epsilon_1/epsilon = {share:.2f}; noise of the first block "
            f"{warm_up:.1f}, of the last sum {last:.1f} times the range"
        )
        if variant == "paper-mixed":
            lines.append(
                f"the omitted term, at a failure probability of 0.04*beta, is "
                f"{omitted / found.bound.total:.2f} of the printed bound"
            )
    return Erratum("first-block term", "equations 14 and 16", tuple(lines), numbers)


def backfill() -> Erratum:
    """The first m through the tree, with ε₁ where ε₂ is left."""
    share = row_of(TABLE_2, HEADLINE_LAG).threshold_share
    spent = 2 * share * EPSILON
    lines = (
        (
            f"epsilon_1 = {share:g} for the threshold and once more for the tree: {spent:.2f} "
            f"instead of {EPSILON:g}"
        ),
    )
    return Erratum("backfill", "section III, Privacy", lines, {"epsilon_spent": spent})


def proposition_1() -> Erratum:
    """The proof writes ln(pr) for r·ln p; equality holds, and nothing needs proof."""
    p, r = LARGEST_QUANTILE, row_of(TABLE_1, HEADLINE_LAG).multiplier
    wrong, right = -math.log(p * r), -r * math.log(p)
    lines = (
        (
            f"p = {p:g}, r = {r:g}: gamma * r * x_p = {right:.3f} = gamma * x_(p^r), "
            f"where the proof has -ln(pr) = {wrong:.3f}"
        ),
    )
    return Erratum("Proposition 1", "section II-C", lines, {"printed": wrong, "right": right})


def quantile(context: Context | None = None) -> Erratum:
    """The empirical quantile with a strict inequality: one rank off, and sometimes none."""
    few, tail = [1.0, 2.0, 3.0, 3.0], 0.25
    strict = [x for x in few if sum(y < x for y in few) >= (1 - tail) * len(few)]
    ours = sorted(few)[quantile_rank(len(few), Fraction(repr(tail))) - 1]
    stream = (context or Context()).baskets
    row = row_of(stream.table, HEADLINE_LAG)
    ordered = np.sort(stream.values[:HEADLINE_LAG])
    q = Fraction(repr(row.rank_factor)) * Fraction(repr(row.quantile))
    rank = quantile_rank(ordered.size, q)
    below = np.searchsorted(ordered, ordered, "left")
    qualifying = ordered[below >= (1 - float(q)) * ordered.size]
    lines = (
        f"values {few}, p = {tail}: by the definition {strict or 'none'}, by ours {ours:g}",
        (
            f"baskets, m = 50,000, lambda*p = {float(q):g}: by the definition "
            f"{qualifying[0]:.2f}, by ours {ordered[rank - 1]:.2f} dollars"
        ),
    )
    numbers = {"definition": float(qualifying[0]), "ours": float(ordered[rank - 1])}
    return Erratum("empirical quantile", "section IV", lines, numbers)


def two_sides() -> Erratum:
    """The tree's bound has ln(1/β) where its source has ln(2/β)."""
    factor = math.sqrt(math.log(2 / BETA) / math.log(1 / BETA))
    lines = (f"beta = {BETA:g}: sqrt(ln(2/beta)/ln(1/beta)) = {factor:.3f}",)
    return Erratum("two sides", "equation 3", lines, {"factor": factor})


def rows() -> Erratum:
    """Rows of the tables that do not meet their own constraint g ≤ β_qt."""
    numbers, lines = {}, []
    for table, number in ((TABLE_1, "I"), (TABLE_2, "II")):
        for row in table:
            if row.threshold_share == 0:
                continue
            g = underestimate_probability(row.rank_factor, row.quantile, row.lag) / BETA
            numbers[f"{number} {row.lag}"] = {"g_over_beta": g, "printed": row.beta_qt}
            if g > row.beta_qt:
                lines.append(
                    f"Table {number}, m = {row.lag:,}: g is {g:.3f} of beta, the row allows "
                    f"{row.beta_qt:.2f}"
                )
    return Erratum("rows of the tables", "Tables I and II", tuple(lines), numbers)


def own_data(context: Context | None = None) -> Erratum:
    """The headline's parameters were optimised on the stream itself; those that use no data."""
    context = context or Context()
    stream = context.baskets
    # Section VI-B: the second criterion's lag, its λ and β; p and r as for the tables.
    lag = criterion_sensitivity(EPSILON, DELTA)
    advice = Plan.paper(
        **facts(stream), lag=lag, calibration="paper", rank_factor=0.5, beta_lt=BETA
    )
    plans = [strategy_plan(stream, BinaryTree()), paper_plan(stream, "paper"), advice]
    found = [
        np.abs(simulate(plan, stream.values, 5000, seed=9 + index).errors)
        for index, plan in enumerate(plans)
    ]
    optimised, advised = ratio(found[0], found[1]), ratio(found[0], found[2])
    lines = (
        (
            f"baskets, BT over the mechanism: {optimised['value']:.1f} with m = 50,000 and the "
            f"parameters of Table II, {advised['value']:.1f} with the m, lambda and beta of "
            "section VI-B, which use no data"
        ),
    )
    return Erratum(
        *("parameters from the data", "sections VI-A and VII", lines),
        {"optimised": optimised, "advised": advised},
    )


def exponent() -> Erratum:
    """The h that is said to minimise the worst-case bound does not: by what factor it is larger."""
    numbers, lines = {}, []
    for name, n, row in (
        ("trips", 25_000_000, row_of(TABLE_1, HEADLINE_LAG)),
        ("baskets", 150_000, row_of(TABLE_2, HEADLINE_LAG)),
    ):
        facts_ = (1.0, row.quantile, n, row.beta_out * BETA)
        printed = alpha_outlier_worst_case(*facts_, form="paper")
        best = alpha_outlier_worst_case(*facts_, form="corrected")
        numbers[name] = {"printed": printed, "best": best}
        lines.append(
            f"{name}, m = 50,000: printed {printed:,.0f} times B - tau, with the best h "
            f"{best:,.0f}: {printed / best:.1f} times too much"
        )
    return Erratum("h in the worst case", "section V-A, before equation 14", tuple(lines), numbers)


def powers() -> Erratum:
    """Smooth sensitivity grows as 1/ε₁, the noise that follows from it as its square."""
    lines = []
    numbers = {}
    for epsilon in (0.25, 0.5, 1.0):
        a, b = published_constants("paper", "laplace", epsilon, DELTA)
        numbers[f"{epsilon:g}"] = {"sensitivity": 1 / (math.e * b), "noise": 1 / (math.e * a * b)}
        lines.append(
            f"epsilon_1 = {epsilon:g}: smooth sensitivity {1 / (math.e * b):,.1f}, noise "
            f"{1 / (math.e * a * b):,.1f} spacings of the data"
        )
    return Erratum(
        "powers of epsilon_1", "section VI-A, influence of epsilon", tuple(lines), numbers
    )


ERRATA: Final[tuple[Callable[..., Erratum], ...]] = (
    *(levels, first_block, multiplier, gaussian, mixed, criterion_1, density),
    *(first_term, backfill, proposition_1, quantile, two_sides, rows, own_data, exponent, powers),
)
_NEED_DATA: Final = (first_block, multiplier, first_term, quantile, own_data)


def errata(context: Context) -> Result:
    """All points, with their numbers (docs/errata.md has the words)."""
    context.tell("what the errata cost")
    found = [one(context) if one in _NEED_DATA else one() for one in ERRATA]
    table = Table(
        "What each point costs",
        ("point", "where", "in numbers"),
        tuple((one.name, one.where, "; ".join(one.lines)) for one in found),
    )
    return Result(
        name="errata",
        title="Errata: where the paper is wrong or unclear",
        paper=(
            "Mechanism 1, its constants, its bound and its criteria as printed in the preliminary "
            "version of the paper."
        ),
        ours=(
            "Five points would break the promise (levels, first block, multiplier, Gaussian "
            "constants, backfill), the others cost accuracy or are slips."
        ),
        difference=(
            "Releases use the corrected form throughout. The printed one is kept where it serves "
            "to reproduce tables, under its own name, and refused for releases."
        ),
        numbers=plain({one.name: one.numbers for one in found}),
        tables=[table],
    )
