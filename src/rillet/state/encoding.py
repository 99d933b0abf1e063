"""A stream's state as bytes: a header in JSON, then the arrays, little-endian.

**Privacy.** The bytes hold unreleased data and must be sealed before they are kept.  Their length
depends on public numbers only: what is private has the same width whatever its value.
"""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rillet.noise import Secret
from rillet.release import FIELDS, NUMBERS, Release, Releases, Rows
from rillet.statistic import Margin, Range, Units
from rillet.step import Ahead, Anchor, States, StreamState
from rillet.threshold import Look

#: Raised with every change of what :func:`encode_state` writes.
VERSION: Final = 4


class _Arrays:
    """Arrays gathered behind the header, each named there by its type and shape."""

    def __init__(self) -> None:
        self.content: list[bytes] = []

    def __call__(self, values: NDArray[Any] | bytes) -> list[Any]:
        if isinstance(values, bytes):
            values = np.frombuffer(values, np.uint8)
        kind = values.dtype.newbyteorder("<")
        self.content.append(values.astype(kind, copy=False).tobytes())
        return [kind.str, *values.shape]

    def nested(self, states: States) -> list[list[Any]]:
        return [[self(part) for part in state] for state in states]


def encode_state(state: StreamState) -> bytes:
    """Everything but the secret."""
    array = _Arrays()
    backfill, ahead, latest = state.backfill, state.ahead, state.latest
    fields = {
        "t": state.t,
        "raw_buffer": [array(raw_part) for raw_part in state.raw_buffer],
        "anchor": None if state.anchor is None else _of_anchor(state.anchor),
        # As wide as any other: the length of the bytes is public.
        "exact_partial": array(np.array(state.exact_partial)),
        "exact_counts": None if state.exact_counts is None else array(state.exact_counts),
        "looks": [
            [look.observations, array(look.noisy), look.scale, look.law, look.centre, look.point]
            for look in state.looks
        ],
        "ranges": [[kept.lower, kept.upper] for kept in state.ranges],
        "worth": state.worth,
        "warm_up_units": state.warm_up_units,
        "cut": state.cut,
        "complete": state.complete,
        "before": None if state.before is None else array(state.before),
        "floor": None if state.floor is None else array(state.floor),
        "raw_held": None if state.raw_held is None else [array(part) for part in state.raw_held],
        "encoders": array.nested(state.encoders),
        "decoders": array.nested(state.decoders),
        "processes": array.nested(state.processes),
        "ahead": None
        if ahead is None
        else [
            ahead.first_leaf,
            [array(nodes) for nodes in ahead.nodes],
            [[t, array(draws)] for t, draws in ahead.looks.items()],
        ],
        "latest": None if latest is None else _of_latest(latest, array),
        "backfill": None if backfill is None else array(backfill.to_bytes()),
    }
    header = json.dumps(fields, separators=(",", ":")).encode()
    return b"".join((len(header).to_bytes(4, "big"), header, *array.content))


def decode_state(content: bytes, secret: Secret) -> StreamState:
    """Read what :func:`encode_state` wrote."""
    offset = 4 + int.from_bytes(content[:4], "big")
    fields = json.loads(content[4:offset])

    def read(described: list[Any]) -> NDArray[Any]:
        # The header is read in the order in which it was written, and so are the arrays.
        nonlocal offset
        kind, shape = np.dtype(described[0]), described[1:]
        count = int(np.prod(shape, dtype=np.int64))
        values = np.frombuffer(content, kind, count, offset)
        offset += values.nbytes
        return values.astype(kind.newbyteorder("="), copy=False).reshape(shape)

    def nested(described: list[list[Any]]) -> States:
        return tuple(tuple(map(read, state)) for state in described)

    def ahead(described: list[Any]) -> Ahead:
        first_leaf, nodes, looks = described
        return Ahead(first_leaf, tuple(map(read, nodes)), {t: read(draws) for t, draws in looks})

    def latest(
        key: list[Any],
        t: int,
        at: int,
        names: list[str],
        described: list[Any],
        common: dict[str, Any],
    ) -> Release:
        numbers = read(described)
        common["post_processing"] = tuple(common["post_processing"])

        def rows() -> Rows:
            return [
                {"name": name, **dict(zip(NUMBERS, row, strict=True)), **common}
                for name, row in zip(names, numbers.tolist(), strict=True)
            ]

        return Release(tuple(key), t, at, (rows,))

    # Keyword arguments are evaluated in order.
    return StreamState(
        t=fields["t"],
        secret=secret,
        raw_buffer=tuple(map(read, fields["raw_buffer"])),
        anchor=None if fields["anchor"] is None else _anchor(fields["anchor"]),
        exact_partial=tuple(read(fields["exact_partial"]).tolist()),
        exact_counts=None if fields["exact_counts"] is None else read(fields["exact_counts"]),
        looks=tuple(
            Look(observations, read(noisy), *more) for observations, noisy, *more in fields["looks"]
        ),
        ranges=tuple(Range(*kept) for kept in fields["ranges"]),
        worth=tuple((leaf, _units(units)) for leaf, units in fields["worth"]),
        warm_up_units=_units(fields["warm_up_units"]),
        cut=tuple(fields["cut"]),
        complete=fields["complete"],
        before=None if fields["before"] is None else read(fields["before"]),
        floor=None if fields["floor"] is None else read(fields["floor"]),
        raw_held=None
        if fields["raw_held"] is None
        else (read(fields["raw_held"][0]), read(fields["raw_held"][1])),
        encoders=nested(fields["encoders"]),
        decoders=nested(fields["decoders"]),
        processes=nested(fields["processes"]),
        ahead=None if fields["ahead"] is None else ahead(fields["ahead"]),
        latest=None if fields["latest"] is None else latest(*fields["latest"]),
        backfill=None
        if fields["backfill"] is None
        else Releases.from_bytes(read(fields["backfill"]).tobytes()),
    )


def _units(listed: list[list[float]]) -> Units:
    return tuple(map(tuple, listed))


def _of_anchor(anchor: Anchor) -> dict[str, Any]:
    return {**vars(anchor), "range": [anchor.range.lower, anchor.range.upper]}


def _anchor(fields: dict[str, Any]) -> Anchor:
    fields["range"] = Range(*fields["range"])
    fields["sums"], fields["prefixes"] = tuple(fields["sums"]), tuple(fields["prefixes"])
    fields["margins"] = tuple((after, Margin(*margin)) for after, margin in fields["margins"])
    return Anchor(**fields)


def _of_latest(latest: Release, array: _Arrays) -> list[Any]:
    rows = latest.rows
    names, first = [row["name"] for row in rows], rows[0]
    numbers = array(np.array([[row[number] for number in NUMBERS] for row in rows]))
    common = {field.name: first[field.name] for field in FIELDS if field.common}
    return [latest.key, latest.t, latest.at_microseconds, names, numbers, common]
