"""What a state remembers of the last block: everything the rows say, nothing of when they came."""

import hashlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from rillet.engine.job import _digest
from rillet.source import Block

STORE = SimpleNamespace(digest=lambda *parts: hashlib.sha256(b"".join(parts)).hexdigest())


def block() -> Block:
    numbers = np.arange(5)
    return Block(
        numbers / 2, {"rows": 5}, None, {"rows": 0}, numbers % 2, numbers, numbers * 7, numbers * 9
    )


@pytest.mark.parametrize("column", ["raw_values", "key_of", "sequence", "at"])
def test_each_column_counts(column):
    changed = getattr(block(), column).copy()
    changed[3] += 1
    assert _digest(STORE, [replace(block(), **{column: changed})]) != _digest(STORE, [block()])


def test_when_rows_arrived_does_not_count():
    for arrived in (None, np.arange(5)):
        again = replace(block(), arrived=arrived)
        assert _digest(STORE, [again]) == _digest(STORE, [block()])
