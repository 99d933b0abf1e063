"""The parameters that PAK recommend (section VI), where a plan leaves them open.

**Privacy.** Public numbers only.
"""

from __future__ import annotations

from typing import Final

from rillet.errors import ParameterError
from rillet.paper.lag import suggest_lag
from rillet.privacy import Guarantee
from rillet.threshold import SmoothQuantile, Threshold

__all__ = ["RECOMMENDED", "THRESHOLD_SHARE", "recommended_lag"]

#: ε₁ between 0.8 and 0.9 of ε, p at most 0.005, r between 1 and 2, λ close to 1; the tables give
#: β_lt about 0.2 of β = 0.02.
THRESHOLD_SHARE: Final = 0.85
RECOMMENDED: Final[dict[str, float]] = {
    "quantile": 0.005,
    "rank_factor": 0.85,
    "multiplier": 1.5,
    "beta_lt": 0.004,
}


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
