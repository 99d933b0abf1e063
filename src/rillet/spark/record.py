"""The record as columns of Spark: what differs between rows, and what all rows of a plan share.

A data frame of releases has the fields that differ.  The others (a declared range, the law of the
noise, numbers that the statistic has not, or has under another name as well) stand once in the
schema, as metadata of the column ``value``: Spark keeps them with the data frame, and writes them
into Parquet files and table formats.

**Privacy.** Post-processing: takes public records, knows nothing else.
"""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from rillet.errors import ParameterError
from rillet.layout import Layout
from rillet.release import FIELDS, NUMBERS, Field
from rillet.statistic import Range

_TYPES: Final = {
    "key": "STRING",
    "integer": "BIGINT",
    "time": "TIMESTAMP",
    "number": "DOUBLE",
    "text": "STRING",
    "texts": "ARRAY<STRING>",
}
#: The whole record, as columns of Spark.
RECORD: Final = ", ".join(f"{field.name} {_TYPES[field.kind]}" for field in FIELDS)
#: Under this name the metadata has the fields that no column has: their ``same`` value in all rows,
#: or the column of which they are ``synonyms``.
METADATA: Final = "rillet"
#: What tells one record from another is always a column.
EVENT: Final = ("key", "t", "name")


def fixed(layout: Layout) -> dict[str, Any]:
    """The fields that all records of a plan have in common; None for numbers that none has."""
    names = layout.statistic.names
    clipping, unknown = layout.declared_range, float("nan")
    same: dict[str, Any] = {**dict.fromkeys(NUMBERS), **layout.common}
    for name, number in layout.of_clipping(clipping or Range(0.0, 1.0), unknown).items():
        if clipping is None:
            del same[name]
        else:
            same[name] = None if np.isnan(number) else number
    for name in layout.numbers:
        same.pop(name, None)
    return same if len(names) > 1 else {**same, "name": names[0]}


def sent(layout: Layout) -> list[Field]:
    """The fields that workers send."""
    known = fixed(layout) | layout.synonyms
    return [field for field in FIELDS if field.name not in known]


def sent_columns(layout: Layout) -> str:
    """The same as columns of Spark; times in microseconds."""
    types = {**_TYPES, "time": "BIGINT"}
    return ", ".join(f"{field.name} {types[field.kind]}" for field in sent(layout))


def records(released: DataFrame, layout: Layout) -> DataFrame:
    """Records of what workers sent, without what the schema says."""
    same, columns = fixed(layout), []
    own = {name: value for name, value in same.items() if name not in EVENT}
    known = json.dumps({"same": own, "synonyms": layout.synonyms})
    for field in FIELDS:
        if field.name in own or field.name in layout.synonyms:
            continue
        column = F.col(field.name) if field.name not in same else F.lit(same[field.name])
        if field.kind == "time":
            column = F.timestamp_micros(column)
        metadata = {METADATA: known} if field.name == "value" else {}
        columns.append(_typed(field, column).alias(field.name, metadata=metadata))
    return released.select(*columns)


def whole_records(releases: DataFrame) -> DataFrame:
    """Releases with all fields of the record, as everywhere else in rillet.

    :func:`rillet.spark.release` leaves out what is the same in all rows of a plan, and what another
    column has.  It is in the schema, from which this takes it: of a stream, of a batch, or of what
    Spark reads from the files that it wrote.

    Examples
    --------
    ``whole_records(spark.read.parquet("releases"))``

    Raises
    ------
    ParameterError
        If the schema does not say what is missing: the column ``value`` is not that of releases.
    """
    names = releases.columns
    if set(names).issuperset(field.name for field in FIELDS):
        return releases
    metadata = releases.schema["value"].metadata if "value" in names else {}
    if METADATA not in metadata:
        raise ParameterError(
            "releases", "a data frame of rillet.spark.release, with its column value", names
        )
    known = json.loads(metadata[METADATA])
    same, synonyms = known["same"], known["synonyms"]
    columns = []
    for field in FIELDS:
        if field.name in names or field.name in synonyms:
            column = F.col(synonyms.get(field.name, field.name))
        else:
            column = F.lit(same[field.name])
        columns.append(_typed(field, column).alias(field.name, metadata={}))
    return releases.select(*columns)


def _typed(field: Field, column: Column) -> Column:
    return column.cast(_TYPES[field.kind])
