"""The parameters that PAK recommend (section VI), where a plan leaves them open.

**Privacy.** Public numbers only.
"""

from __future__ import annotations

from typing import Final, Literal, cast

from rillet.errors import ParameterError
from rillet.paper.lag import suggest_lag
from rillet.privacy import Guarantee
from rillet.threshold import SmoothQuantile, Threshold
from rillet.threshold.calibration import Kind
from rillet.threshold.calibration import Law as LawName

__all__ = ["THRESHOLD_SHARE", "recommended_lag", "recommended_threshold"]

#: ε₁ between 0.8 and 0.9 of ε, p at most 0.005, r between 1 and 2, λ close to 1.
THRESHOLD_SHARE: Final = 0.85
_QUANTILE: Final = 0.005
_RANK_FACTOR: Final = 0.85
_MULTIPLIER: Final = 1.5
#: The tables give β_lt about 0.2 of β = 0.02.
_BETA_LT: Final = 0.004
_CALIBRATIONS: Final = ("exact", "textbook", "paper", "paper-mixed")

Given = float | Literal["auto"]


def recommended_threshold(
    *,
    quantile: Given,
    rank_factor: Given,
    multiplier: Given,
    beta_lt: Given,
    calibration: str,
    law: str,
) -> SmoothQuantile:
    """The paper's threshold, with its recommended values where ``"auto"`` is given."""
    if calibration != "auto" and calibration not in _CALIBRATIONS:
        raise ParameterError("calibration", f"one of {_CALIBRATIONS}", calibration)
    return SmoothQuantile(
        quantile=_QUANTILE if quantile == "auto" else quantile,
        rank_factor=_RANK_FACTOR if rank_factor == "auto" else rank_factor,
        multiplier=_MULTIPLIER if multiplier == "auto" else multiplier,
        beta_lt=_BETA_LT if beta_lt == "auto" else beta_lt,
        calibration=cast(Kind, "exact" if calibration == "auto" else calibration),
        law=cast(LawName, law),
    )


def recommended_lag(threshold: Threshold, guarantee: Guarantee, share: float) -> int:
    """The larger of the paper's two lag criteria, for this threshold's own constants."""
    if not isinstance(threshold, SmoothQuantile):
        raise ParameterError("lag", "a whole number for this kind of threshold", "auto")
    return suggest_lag(
        guarantee.epsilon * share,
        guarantee.delta,
        quantile=threshold.quantile,
        rank_factor=threshold.rank_factor,
        calibration=threshold.calibration,
        law=threshold.law,
    )
