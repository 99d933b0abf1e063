"""Help for testing private mechanisms: rillet's own, and yours.

``statistics``: exact p-values and a false-alarm budget; ``lattice``: exact probabilities of integer
noise; ``neighbours``: brute force over neighbouring streams; ``…_contract``: what every strategy,
threshold, source and sink must keep, so that your own can be put through it.

**Privacy.** For tests and simulations only; nothing here draws noise for a release.
"""

from rillet.testing.contracts import (
    ContractViolation,
    SinkTarget,
    check_sink,
    check_strategy,
    check_threshold,
)
from rillet.testing.neighbours import Distances, largest_distances
from rillet.testing.source_contract import check_source
from rillet.testing.statistics import (
    SUITE,
    Budget,
    BudgetOverdrawn,
    StatisticalFailure,
    binomial_p_value,
    check,
    clopper_pearson,
    goodness_of_fit,
)

__all__ = [
    "SUITE",
    "Budget",
    "BudgetOverdrawn",
    "ContractViolation",
    "Distances",
    "SinkTarget",
    "StatisticalFailure",
    "binomial_p_value",
    "check",
    "check_sink",
    "check_source",
    "check_strategy",
    "check_threshold",
    "clopper_pearson",
    "goodness_of_fit",
    "largest_distances",
]
