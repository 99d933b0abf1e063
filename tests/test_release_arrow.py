"""Releases as an Arrow table: the names and numbers of the record."""

from __future__ import annotations

import pytest

from rillet.release import FIELDS, Releases, key_from_shown, key_shown, key_text
from rillet.testing.sink_contract import STRANGE_KEYS, made_up_releases

pytest.importorskip("pyarrow")


@pytest.mark.parametrize("names", [("mean",), ("mean", "0.5")])
def test_a_row_for_each_record(names: tuple[str, ...]) -> None:
    releases = made_up_releases((("north",), (7,), ("a", 1)), 5, names=names)
    table = releases.to_arrow()
    assert table.column_names == [field.name for field in FIELDS]
    shown = [
        {**row, "key": str(key_shown(release.key)), "at": release.at}
        for release in releases
        for row in release
    ]
    assert str(table["at"].type) == "timestamp[us, tz=UTC]"
    assert table.to_pylist() == shown
    assert table["clipped_share"].null_count == 10 * len(names)


def test_numbers_as_keys_stay_numbers() -> None:
    assert str(made_up_releases(((1,), (2,)), 2).to_arrow()["key"].type) == "int64"


def test_no_rows() -> None:
    none: Releases = made_up_releases()[:0]
    assert none.to_arrow().num_rows == 0
    assert none.to_arrow().schema == made_up_releases().to_arrow().schema


def test_shown_keys_stay_apart_and_come_back() -> None:
    keys = (*STRANGE_KEYS, (17,), ("[",), ("]",), (2**63 - 1,), (2**63,), (-(2**63),), ("a\u00a0",))
    assert len({key_shown(key) for key in keys}) == len(keys)
    for key in keys:
        assert key_from_shown(key_shown(key)) == key
    assert key_shown(("a", 1)) == key_text(("a", 1))
