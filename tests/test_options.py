"""Options against a schema: errors name what the user typed and quote no text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from msgspec import Meta, Struct

from rillet.errors import ParameterError
from rillet.options import convert


class File(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="file"
):
    path: str
    format: Literal["auto", "csv"] = "auto"
    block_rows: Annotated[int, Meta(ge=1)] | None = None
    patience: Annotated[float, Meta(gt=0)] = 1.0
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.path == "-":
            raise ParameterError("path", "a file", self.path, "give one")


class Broker(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="mqtt"
):
    address: str


class Whole(Struct, frozen=True, forbid_unknown_fields=True):
    source: File | Broker
    many: tuple[Broker, ...] = ()
    numbers: dict[str, int] = {}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "source.path: expected an option that has no default, found none"),
        ({"path": 1}, "source.path: expected text, found 1"),
        ({"path": ["secret"]}, "source.path: expected text, found a list"),
        ({"path": "p", "block_rows": 0}, "source.block_rows: expected an integer >= 1, found 0"),
        (
            {"path": "p", "block_rows": "secret"},
            "source.block_rows: expected an integer or none, found text",
        ),
        (
            {"path": "p", "block_rows": True},
            "source.block_rows: expected an integer or none, found True",
        ),
        (
            {"path": "p", "patience": float("nan")},
            "source.patience: expected a number > 0.0, found nan",
        ),
        (
            {"path": "p", "format": "cvs"},
            "source.format: expected one of auto, csv, found 'cvs'",
        ),
        ({"path": "p", "columns": ["a", 2]}, "source.columns[1]: expected text, found 2"),
        (
            {"path": "p", "colums": []},
            (
                "source.colums: expected one of the options path, format, block_rows, patience, "
                "columns, found another name; did you mean columns?"
            ),
        ),
        ({"path": "-"}, "source.path: expected a file, found '-'; give one"),
        ("secret", "source: expected a table of options, found text"),
        ({1: 2}, "source: expected text, found a table of options"),
        ({"kind": "mqtt", "path": "p"}, "source.kind: expected one of file, found 'mqtt'"),
    ],
)
def test_wrong_options(table: Any, message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        convert(table, File, "source")
    assert str(caught.value) == message
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"source": {"kind": "kafka"}},
            "source.kind: expected one of file, mqtt, found 'kafka'",
        ),
        ({"source": {}}, "source.kind: expected an option that has no default, found none"),
        (
            {"source": {"kind": "mqtt", "adress": "x"}},
            (
                "source.adress: expected one of the options address, found another name; "
                "did you mean address?"
            ),
        ),
        (
            {"source": {"kind": "mqtt", "address": "x"}, "many": [{"kind": "mqtt", "address": 1}]},
            "many[0].address: expected text, found 1",
        ),
        (
            {"source": {"kind": "mqtt", "address": "x"}, "numbers": {"a": "secret"}},
            "numbers[...]: expected an integer, found something else",
        ),
        (
            {"source": {"kind": "file", "path": "-"}},
            "source.path: expected a file, found '-'; give one",
        ),
    ],
)
def test_wrong_nested_options(table: Any, message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        convert(table, Whole)
    assert str(caught.value) == message


def test_python_values_are_taken_as_what_they_stand_for(tmp_path: Path) -> None:
    found = convert(
        {"path": tmp_path, "block_rows": np.int64(4), "patience": 3, "columns": ("a",)}, File
    )
    assert found == File(path=str(tmp_path), block_rows=4, patience=3.0, columns=("a",))
    assert convert({"source": found}, Whole).source is found
