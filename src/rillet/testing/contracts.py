"""What every strategy, threshold and sink must keep, as checks that anybody can run.

>>> from rillet.strategy import BinaryTree
>>> check_strategy(BinaryTree())

A broken promise raises :class:`ContractViolation` and says which.  The checks look at small streams
exhaustively and at a few longer ones; they do not replace a proof, they catch a wrong one.

**Privacy.** For tests only: all data are made here.
"""

from __future__ import annotations

from rillet.testing.sink_contract import SinkTarget, check_sink
from rillet.testing.strategy_contract import check_strategy
from rillet.testing.threshold_contract import check_threshold
from rillet.testing.violation import ContractViolation

__all__ = ["ContractViolation", "SinkTarget", "check_sink", "check_strategy", "check_threshold"]
