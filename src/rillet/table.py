"""Releases of many streams, in the order in which they are published.

**Privacy.** Everything here is post-processing of noisy values: it may be shown to anybody.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from rillet.errors import ParameterError, StateError
from rillet.release import FloatArray, Key, Release, ReleaseColumns, Releases

__all__ = ["ReleaseTable"]

IntArray = NDArray[np.int64]

_MAGIC = b"rilletRT"
_VERSION = 1
#: After the magic: version, length of the header.
_START = struct.Struct("<II")
_CHECK = struct.Struct("<I")

_FLOATS = ("sum", "unit_std", "threshold", "clip_lower", "clipped_share")
_COLUMNS = ("key_of", "t", *_FLOATS)


@dataclass(frozen=True, eq=False)
class ReleaseTable(ReleaseColumns):
    """Many releases of many keys as flat arrays; iterates as :class:`rillet.Release`.

    **Privacy.** Post-processing.

    Attributes
    ----------
    keys : tuple of keys
        The distinct keys.
    key_of : integer array
        For each release the place of its key in ``keys``.
    t, sum, unit_std, threshold, clip_lower, clipped_share : array
        As in :class:`rillet.Releases`, from which the derived columns (``mean``, ``value``,
        ``noise_std``, …) come as well.
    statistic, noise_law, post_processing
        The same for all releases.
    """

    keys: tuple[Key, ...]
    key_of: IntArray
    t: IntArray
    sum: FloatArray
    unit_std: FloatArray
    threshold: FloatArray
    clip_lower: FloatArray
    clipped_share: FloatArray
    statistic: str
    noise_law: str
    post_processing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        lengths = {name: len(getattr(self, name)) for name in _COLUMNS}
        if len(set(lengths.values())) > 1:
            raise ParameterError("columns", "arrays of one length", lengths)

    def __repr__(self) -> str:
        return (
            f"ReleaseTable({len(self):,} releases of the {self.statistic}, {len(self.keys):,} keys)"
        )

    def _keys(self) -> Iterable[Key]:
        return map(self.keys.__getitem__, self.key_of.tolist())

    @overload
    def __getitem__(self, place: int) -> Release: ...
    @overload
    def __getitem__(self, place: slice) -> ReleaseTable: ...
    def __getitem__(self, place: int | slice) -> Release | ReleaseTable:
        """One release, or some of them."""
        columns: dict[str, Any] = {name: getattr(self, name)[place] for name in _COLUMNS}
        if isinstance(place, slice):
            return ReleaseTable(self.keys, **columns, **self.common)
        key = self.keys[columns.pop("key_of")]
        return Release(key, **{name: cell.item() for name, cell in columns.items()}, **self.common)

    @staticmethod
    def of(releases: Releases) -> ReleaseTable:
        """The releases of one stream as a table."""
        columns: dict[str, Any] = {name: getattr(releases, name) for name in _COLUMNS[1:]}
        key_of = np.zeros(len(releases), np.int64)
        return ReleaseTable((releases.key,), key_of, **columns, **releases.common)

    @staticmethod
    def merge(parts: list[Releases], arrivals: list[IntArray]) -> ReleaseTable:
        """Put the releases of several streams in the order of the observations they came from.

        Parameters
        ----------
        parts : list of Releases
            One or more of each stream, all of one plan.
        arrivals : list of integer arrays
            For each release of each part a number that grows with the order of publication, as
            the place in the input of the observation that completed it. Equal numbers keep the
            order of the parts and the order inside a part. Where every number belongs to one part
            only, the result does not depend on how the input was cut into blocks.

        Returns
        -------
        ReleaseTable
            Its keys in the order in which they first appear.
        """
        lengths = [len(part) for part in parts]
        if not parts or lengths != [len(part) for part in arrivals]:
            raise ParameterError(
                "arrivals", "one array for each part, of its length, and a part", len(arrivals)
            )
        order = np.argsort(np.concatenate(arrivals), kind="stable")
        places: dict[Key, int] = {}
        part_keys = np.array([places.setdefault(part.key, len(places)) for part in parts])
        keys, key_of = _renumbered(tuple(places), np.repeat(part_keys, lengths)[order])
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts])[order]
            for name in _COLUMNS[1:]
        }
        return ReleaseTable(keys, key_of, **columns, **_one_plan(parts))

    @staticmethod
    def join(tables: list[ReleaseTable]) -> ReleaseTable:
        """Tables of one plan that follow each other."""
        if not tables:
            raise ParameterError("tables", "at least one", tables)
        places: dict[Key, int] = {}
        key_of = np.concatenate(
            [
                np.array([places.setdefault(key, len(places)) for key in table.keys], np.int64)[
                    table.key_of
                ]
                for table in tables
            ]
        )
        keys, key_of = _renumbered(tuple(places), key_of)
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(table, name) for table in tables])
            for name in _COLUMNS[1:]
        }
        return ReleaseTable(keys, key_of, **columns, **_one_plan(tables))

    def compact(self) -> ReleaseTable:
        """The same releases, knowing their own keys only; a slice knows those of the whole."""
        keys, key_of = _renumbered(self.keys, self.key_of)
        return self if len(keys) == len(self.keys) else replace(self, keys=keys, key_of=key_of)

    def by_key(self, column: NDArray[Any]) -> NDArray[Any] | None:
        """The value that ``column`` has for each key, or None if it changes within one."""
        values = np.zeros(len(self.keys), column.dtype)
        values[self.key_of] = column
        bits = f"u{column.dtype.itemsize}"  # by their bits: unknown equals unknown
        constant = np.array_equal(
            values[self.key_of].view(bits), np.ascontiguousarray(column).view(bits)
        )
        return values if constant else None

    def to_bytes(self) -> bytes:
        """Everything, compactly: equal tables give equal bytes, whatever other keys they know.

        The layout: ``rilletRT``, version and length of the header as unsigned 32-bit numbers, the
        header in JSON, the arrays that it lists, the CRC-32 of all before it; all little-endian.
        A column that never changes within a key is stored once for each key.
        """
        keys, key_of = _renumbered(self.keys, self.key_of)
        columns_of: dict[str, Any] = {
            name: np.ascontiguousarray(getattr(self, name)) for name in _COLUMNS[1:]
        }
        own = ReleaseTable(keys, key_of, **columns_of, **self.common)
        columns: list[tuple[str, str, str]] = []
        arrays: list[bytes] = []
        for name in _COLUMNS:
            column = getattr(own, name)
            if column.dtype.kind == "f":
                column, kind = column.astype("<f8", copy=False), "<f8"
            else:
                kind = np.min_scalar_type(int(column.max(initial=0))).newbyteorder("<").str
            short = own.by_key(column) if name in _FLOATS else None
            columns.append((name, kind, "row" if short is None else "key"))
            arrays.append((column if short is None else short).astype(kind).tobytes())
        header = json.dumps(
            {
                "rows": len(own),
                "keys": keys,
                **self.common,
                "columns": columns,
            },
            separators=(",", ":"),
        ).encode("ascii")
        content = b"".join([_MAGIC, _START.pack(_VERSION, len(header)), header, *arrays])
        return content + _CHECK.pack(zlib.crc32(content))

    @staticmethod
    def from_bytes(content: bytes) -> ReleaseTable:
        """What :meth:`to_bytes` wrote, exactly.

        Raises
        ------
        StateError
            If the bytes are damaged, or of a version that this one does not know.
        """
        start = len(_MAGIC) + _START.size
        if content[: len(_MAGIC)] != _MAGIC or len(content) < start + _CHECK.size:
            raise StateError(
                "table of releases: expected bytes that begin with rilletRT, found others; "
                "restore them from a backup"
            )
        version, size = _START.unpack_from(content, len(_MAGIC))
        if version != _VERSION:
            raise StateError(
                f"table of releases: expected version {_VERSION}, found {version}; "
                "read it with the version of rillet that wrote it, or with a later one"
            )
        end = len(content) - _CHECK.size
        if zlib.crc32(memoryview(content)[:end]) != _CHECK.unpack_from(content, end)[0]:
            raise StateError(
                "table of releases: expected what was written, found other bytes (its check sum "
                "differs); restore it from a backup"
            )
        header = json.loads(content[start : start + size])
        keys = tuple(map(tuple, header["keys"]))
        rows, offset = header["rows"], start + size
        arrays: dict[str, NDArray[Any]] = {}
        for name, kind, by in header["columns"]:
            count = rows if by == "row" else len(keys)
            found = np.frombuffer(content, kind, count, offset)
            offset += found.nbytes
            found = found.astype(np.float64 if name in _FLOATS else np.int64)
            arrays[name] = found if by == "row" else found[arrays["key_of"]]
        return ReleaseTable(
            keys=keys,
            **arrays,
            statistic=header["statistic"],
            noise_law=header["noise_law"],
            post_processing=tuple(header["post_processing"]),
        )


def _renumbered(keys: tuple[Key, ...], key_of: IntArray) -> tuple[tuple[Key, ...], IntArray]:
    """The keys that appear, in the order in which they do."""
    unseen = len(key_of)
    first = np.full(len(keys), unseen)
    first[key_of[::-1]] = np.arange(unseen)[::-1]  # the last assignment is the first appearance
    order = np.argsort(first, kind="stable")[: int(np.count_nonzero(first < unseen))]
    new = np.empty(len(keys), np.int64)
    new[order] = np.arange(len(order))
    return tuple(keys[place] for place in order.tolist()), new[key_of]


def _one_plan(parts: Sequence[ReleaseColumns]) -> dict[str, Any]:
    common = parts[0].common
    for part in parts:
        if part.common != common:
            raise ParameterError("parts", f"releases of one plan, {common}", part.common)
    return common
