"""Streams of many keys on Spark Structured Streaming; needs ``rillet[spark]``, and Java 17.

The keys of a plan are cut into groups, and each group is what Spark keys its state by: one call
advances all of its streams, by the very code that :class:`rillet.Streams` runs.

**Privacy.** Touches raw data.  The promise is the plan's, for each key as on one machine: nothing
here draws noise or decides what is released.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from rillet.errors import MissingExtra

if TYPE_CHECKING:
    from rillet.spark.query import SETTINGS, release, wall_clock
    from rillet.spark.record import whole_records
    from rillet.spark.sinks import to_kafka, to_parquet, to_postgres

__all__ = [
    "SETTINGS",
    "release",
    "to_kafka",
    "to_parquet",
    "to_postgres",
    "wall_clock",
    "whole_records",
]


def __getattr__(name: str) -> object:
    """Load a public name when it is asked for: workers need few of them, and start sooner."""
    if name not in __all__:
        raise AttributeError(f"module 'rillet.spark' has no attribute '{name}'")
    home = "sinks" if name.startswith("to_") else "record" if name == "whole_records" else "query"
    try:
        value = getattr(importlib.import_module(f"rillet.spark.{home}"), name)
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "pyspark", "spark", "to run on Spark") from error
    globals()[name] = value
    return value
