"""Live statistics of private real-valued streams, with differential privacy."""

from rillet.errors import (
    BudgetExceeded,
    InputError,
    LedgerClosed,
    MissingExtra,
    NotReady,
    OutputError,
    ParameterError,
    RilletError,
    StateError,
    StreamEnded,
)
from rillet.noise import Secret
from rillet.plan import Plan
from rillet.privacy import Guarantee, Ledger
from rillet.release import Release, Releases
from rillet.statistic import Mean, Sum
from rillet.strategy import (
    BinaryTree,
    BufferedToeplitz,
    HonakerTree,
    Independent,
    SignedDigitTree,
    SquareRootToeplitz,
)
from rillet.stream import Stream
from rillet.threshold import ExponentialQuantile, FixedThreshold, SmoothQuantile, TailHistogram

__version__ = "0.1.0"

__all__ = [
    "BinaryTree",
    "BudgetExceeded",
    "BufferedToeplitz",
    "ExponentialQuantile",
    "FixedThreshold",
    "Guarantee",
    "HonakerTree",
    "Independent",
    "InputError",
    "Ledger",
    "LedgerClosed",
    "Mean",
    "MissingExtra",
    "NotReady",
    "OutputError",
    "ParameterError",
    "Plan",
    "Release",
    "Releases",
    "RilletError",
    "Secret",
    "SignedDigitTree",
    "SmoothQuantile",
    "SquareRootToeplitz",
    "StateError",
    "Stream",
    "StreamEnded",
    "Sum",
    "TailHistogram",
    "__version__",
]
