"""First-order recurrences in floats, and the rate at which a half-life forgets.

**Privacy.** Public numbers, and post-processing.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import numpy as np

from rillet.noise import FloatArray
from rillet.precision import precision

#: Longest half-life, in leaves: the rate still has 23 significant bits.
LONGEST_HALF_LIFE: Final = 2.0**30


@lru_cache(maxsize=64)
def forgetting_rate(half_life: float) -> int:
    """``1 − θ`` in units of 2^-53, ``θ = 2^(−1/half_life)``: θ is then a float, exactly."""
    with precision(200) as mp:
        return int(mp.nint(mp.ldexp(-mp.expm1(-mp.ln2 / mp.mpf(half_life)), 53)))


def discount_of(half_life: float) -> float:
    """``θ``."""
    return float(2**53 - forgetting_rate(half_life)) * 2.0**-53


def filtered(
    weight: float, pole: float, values: FloatArray, carried: float
) -> tuple[FloatArray, float]:
    """``y_t = weight·x_t + carried``, ``carried ← pole·y_t``: each operation rounded by itself."""
    if not _rounds_each_operation():
        return _filtered_slowly(weight, pole, values, carried)
    from scipy.signal import lfilter  # More than half of rillet's start, and only needed here.

    out, last = lfilter([weight], [1.0, -pole], values, zi=[carried])
    return out, float(last[0])


def _filtered_slowly(
    weight: float, pole: float, values: FloatArray, carried: float
) -> tuple[FloatArray, float]:
    out = np.empty_like(values)
    for t, value in enumerate(values.tolist()):
        out[t] = result = weight * value + carried
        carried = pole * result
    return out, carried


@lru_cache(maxsize=1)
def _rounds_each_operation() -> bool:
    """Whether SciPy's filter was built without fused operations, which would round differently.

    Blocks must give what single steps give; on a machine where they would not, the loop is used.
    """
    values = np.sqrt(np.arange(2.0, 66.0))
    weight, pole = math.sqrt(0.2), math.sqrt(0.999)
    from scipy.signal import lfilter

    out, _ = lfilter([weight], [1.0, -pole], values, zi=[0.0])
    return bool(np.array_equal(out, _filtered_slowly(weight, pole, values, 0.0)[0]))
