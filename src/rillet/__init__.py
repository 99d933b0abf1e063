"""Live statistics of private real-valued streams, with differential privacy.

Names are loaded when they are first used, so that `import rillet` and `rillet --help` are quick.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rillet.engine import run
    from rillet.errors import (
        BudgetExceeded,
        InputError,
        MissingExtra,
        NotReady,
        OutputError,
        ParameterError,
        RilletError,
        StateError,
        StreamEnded,
    )
    from rillet.noise import Secret
    from rillet.plan import LearnedRange, Plan, learn_range
    from rillet.privacy import Charges, Guarantee, Person
    from rillet.release import Release, Releases
    from rillet.statistic import Count, Histogram, Mean, Quantile, Share, Sum
    from rillet.strategy import (
        BinaryTree,
        BufferedToeplitz,
        DecayedIndependent,
        DecayedToeplitz,
        HonakerTree,
        Independent,
        RestartedTree,
        SignedDigitTree,
        SquareRootToeplitz,
        WindowToeplitz,
    )
    from rillet.streams import Stream, Streams
    from rillet.threshold import ExponentialQuantile, FixedThreshold, SmoothQuantile, TailHistogram

__version__ = "0.1.0"

__all__ = [
    "BinaryTree",
    "BudgetExceeded",
    "BufferedToeplitz",
    "Charges",
    "Count",
    "DecayedIndependent",
    "DecayedToeplitz",
    "ExponentialQuantile",
    "FixedThreshold",
    "Guarantee",
    "Histogram",
    "HonakerTree",
    "Independent",
    "InputError",
    "LearnedRange",
    "Mean",
    "MissingExtra",
    "NotReady",
    "OutputError",
    "ParameterError",
    "Person",
    "Plan",
    "Quantile",
    "Release",
    "Releases",
    "RestartedTree",
    "RilletError",
    "Secret",
    "Share",
    "SignedDigitTree",
    "SmoothQuantile",
    "SquareRootToeplitz",
    "StateError",
    "Stream",
    "StreamEnded",
    "Streams",
    "Sum",
    "TailHistogram",
    "WindowToeplitz",
    "__version__",
    "learn_range",
    "run",
]

_HOMES = {
    "BinaryTree": "rillet.strategy",
    "BudgetExceeded": "rillet.errors",
    "BufferedToeplitz": "rillet.strategy",
    "Charges": "rillet.privacy",
    "Count": "rillet.statistic",
    "DecayedIndependent": "rillet.strategy",
    "DecayedToeplitz": "rillet.strategy",
    "ExponentialQuantile": "rillet.threshold",
    "FixedThreshold": "rillet.threshold",
    "Guarantee": "rillet.privacy",
    "Histogram": "rillet.statistic",
    "HonakerTree": "rillet.strategy",
    "Independent": "rillet.strategy",
    "InputError": "rillet.errors",
    "LearnedRange": "rillet.plan",
    "Mean": "rillet.statistic",
    "MissingExtra": "rillet.errors",
    "NotReady": "rillet.errors",
    "OutputError": "rillet.errors",
    "ParameterError": "rillet.errors",
    "Person": "rillet.privacy",
    "Plan": "rillet.plan",
    "Quantile": "rillet.statistic",
    "Release": "rillet.release",
    "Releases": "rillet.release",
    "RestartedTree": "rillet.strategy",
    "RilletError": "rillet.errors",
    "Secret": "rillet.noise",
    "Share": "rillet.statistic",
    "SignedDigitTree": "rillet.strategy",
    "SmoothQuantile": "rillet.threshold",
    "SquareRootToeplitz": "rillet.strategy",
    "StateError": "rillet.errors",
    "Stream": "rillet.streams",
    "StreamEnded": "rillet.errors",
    "Streams": "rillet.streams",
    "Sum": "rillet.statistic",
    "TailHistogram": "rillet.threshold",
    "WindowToeplitz": "rillet.strategy",
    "learn_range": "rillet.plan",
    "run": "rillet.engine",
}


def __getattr__(name: str) -> object:
    """Load a public name from its home."""
    if name not in _HOMES:
        raise AttributeError(f"module 'rillet' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
