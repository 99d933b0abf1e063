"""The decoder of a BLT strategy: noisy nodes in, noisy prefix sums out.

``1/((1 − z) c(z))`` in partial fractions: a running sum and ``d`` first-order filters.  (The direct
form of the same filter loses all its digits within some 10^7 leaves.)  Rates are multiples of
2^-53, so the poles ``1 − ψ_i`` are floats exactly.

**Privacy.** Post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from rillet.noise import FloatArray, IntArray
from rillet.strategy.base import Decoder, State
from rillet.strategy.toeplitz.blt import Blt
from rillet.strategy.toeplitz.fast import kernels

#: Nodes worked on at once: the working arrays then stay in the second-level cache.
BLOCK: Final = 2**14


@lru_cache(maxsize=32)
def decoder_coefficients(blt: Blt) -> tuple[FloatArray, FloatArray]:
    """Weights ``β_0 … β_d`` and poles ``λ_1 … λ_d``, from multiple precision."""
    weights = np.array([float(value) for value in blt.beta])
    poles = np.array([float(1 - rate) for rate in blt.psi])
    return weights, poles


@dataclass(frozen=True)
class BltDecoder(Decoder):
    """State: the weighted running sum, and for each filter what it carries to the next leaf."""

    blt: Blt

    def start(self) -> State:
        """Everything is 0."""
        return (np.zeros(self.blt.buffers + 1),)

    def decode(self, state: State, first: int, noisy: IntArray) -> tuple[State, FloatArray]:
        """Prefix sums; the same floats for any split into blocks.  **Privacy.** Post-processing."""
        (carried,) = state
        carried = carried.copy()
        weights, poles = decoder_coefficients(self.blt)
        prefix = np.empty(len(noisy))
        fast = kernels(len(noisy))
        if fast is not None:
            fast.decode(weights, poles, carried, noisy, prefix)
            return (carried,), prefix
        for begin in range(0, len(noisy), BLOCK):
            part = noisy[begin : begin + BLOCK].astype(np.float64)
            out = prefix[begin : begin + BLOCK]
            np.multiply(part, weights[0], out=out)
            out[0] += carried[0]
            np.cumsum(out, out=out)
            carried[0] = out[-1]
            for i, pole in enumerate(poles):
                filtered, carried[i + 1] = _filter(weights[i + 1], pole, part, carried[i + 1])
                out += filtered
        return (carried,), prefix


def _filter(
    weight: float, pole: float, values: FloatArray, carried: float
) -> tuple[FloatArray, float]:
    """``y_t = weight·x_t + carried``, ``carried ← pole·y_t``: each operation rounded by itself."""
    if not _rounds_each_operation():
        return _filter_slowly(weight, pole, values, carried)
    from scipy.signal import lfilter  # More than half of rillet's start, and only needed here.

    filtered, last = lfilter([weight], [1.0, -pole], values, zi=[carried])
    return filtered, float(last[0])


def _filter_slowly(
    weight: float, pole: float, values: FloatArray, carried: float
) -> tuple[FloatArray, float]:
    filtered = np.empty_like(values)
    for t, value in enumerate(values.tolist()):
        filtered[t] = result = weight * value + carried
        carried = pole * result
    return filtered, carried


@lru_cache(maxsize=1)
def _rounds_each_operation() -> bool:
    """Whether SciPy's filter was built without fused operations, which would round differently.

    Blocks must give what single steps give; on a machine where they would not, the loop is used.
    """
    values = np.sqrt(np.arange(2.0, 66.0))
    weight, pole = math.sqrt(0.2), math.sqrt(0.999)
    from scipy.signal import lfilter

    filtered, _ = lfilter([weight], [1.0, -pole], values, zi=[0.0])
    return bool(np.array_equal(filtered, _filter_slowly(weight, pole, values, 0.0)[0]))
