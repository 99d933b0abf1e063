"""A stream's state as bytes: a header in JSON, then the arrays, little-endian.

Version 1 had the arrays in the JSON, as base64; it is still read.

**Privacy.** The bytes hold unreleased data and must be sealed before they are kept.  Their length
depends on public numbers only: what is private has the same width whatever its value.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rillet.noise import Secret
from rillet.release import Release, Releases
from rillet.step import Ahead, Segment, StreamState
from rillet.threshold import Look, Range

#: Version of the form that :func:`encode_state` writes.
VERSION: Final = 2

_BACKFILL_ARRAYS = ("t", "sum", "unit_std", "threshold", "clip_lower", "clipped_share")
#: From what stands for an array in the header to the array.
_Read = Callable[[Any], NDArray[Any]]


class _Arrays:
    """Arrays gathered behind the header, each named there by its type and shape."""

    def __init__(self) -> None:
        self.content: list[bytes] = []

    def __call__(self, values: NDArray[Any]) -> list[Any]:
        kind = values.dtype.newbyteorder("<")
        self.content.append(values.astype(kind, copy=False).tobytes())
        return [kind.str, *values.shape]


def encode_state(state: StreamState) -> bytes:
    """Everything but the secret."""
    array = _Arrays()
    backfill, ahead = state.backfill, state.ahead
    fields = {
        "t": state.t,
        "raw_buffer": [array(raw_part) for raw_part in state.raw_buffer],
        "segment": _segment(state.segment),
        # As wide as any other: the length of the bytes is public.
        "exact_partial": array(np.array([state.exact_partial])),
        "exact_tally": None if state.exact_tally is None else array(state.exact_tally),
        "looks": [
            [array(look.noisy), look.observations, look.scale, look.law] for look in state.looks
        ],
        "ranges": [[kept.lower, kept.upper] for kept in state.ranges],
        "centre": state.centre,
        "weights": list(state.weights),
        "encoder": [array(part) for part in state.encoder],
        "decoder": [array(part) for part in state.decoder],
        "process": [array(part) for part in state.process],
        "ahead": None
        if ahead is None
        else [
            ahead.first_leaf,
            array(ahead.nodes),
            [[t, array(draws)] for t, draws in ahead.looks.items()],
        ],
        "latest": _release(state.latest),
        "backfill": None
        if backfill is None
        else {
            "first": _release(backfill[0]),
            "arrays": [array(getattr(backfill, name)) for name in _BACKFILL_ARRAYS],
        },
    }
    header = json.dumps(fields, separators=(",", ":")).encode()
    return b"".join((len(header).to_bytes(4, "big"), header, *array.content))


def decode_state(content: bytes, secret: Secret) -> StreamState:
    """Read what :func:`encode_state` wrote."""
    place = 4 + int.from_bytes(content[:4], "big")
    fields = json.loads(content[4:place])

    def read(described: list[Any]) -> NDArray[Any]:
        # The header is read in the order in which it was written, and so are the arrays.
        nonlocal place
        kind, shape = np.dtype(described[0]), described[1:]
        count = int(np.prod(shape, dtype=np.int64))
        values = np.frombuffer(content, kind, count, place)
        place += values.nbytes
        return values.astype(kind.newbyteorder("="), copy=False).reshape(shape)

    return _state(fields, secret, read)


def decode_version_1(content: bytes, secret: Secret) -> StreamState:
    """Read the former version."""

    def read(described: list[Any]) -> NDArray[Any]:
        kind, shape, text = np.dtype(described[0]), described[1], described[2]
        values = np.frombuffer(base64.b64decode(text), kind).astype(kind.newbyteorder("="))
        return values.reshape(shape)

    fields = json.loads(content)
    whole = fields["raw_buffer"]
    fields["raw_buffer"] = [whole] if whole[1] != [0] else []
    return _state(fields, secret, read)


def _state(fields: dict[str, Any], secret: Secret, read: _Read) -> StreamState:
    ahead = fields.get("ahead")
    return StreamState(
        t=fields["t"],
        secret=secret,
        raw_buffer=tuple(map(read, fields["raw_buffer"])),
        segment=_read_segment(fields["segment"]),
        exact_partial=int(read(fields["exact_partial"])[0]),
        exact_tally=None if fields["exact_tally"] is None else read(fields["exact_tally"]),
        looks=tuple(Look(read(noisy), *more) for noisy, *more in fields["looks"]),
        ranges=tuple(Range(*kept) for kept in fields["ranges"]),
        centre=fields["centre"],
        weights=tuple(fields["weights"]),
        encoder=tuple(map(read, fields["encoder"])),
        decoder=tuple(map(read, fields["decoder"])),
        process=tuple(map(read, fields["process"])),
        ahead=None
        if ahead is None
        else Ahead(ahead[0], read(ahead[1]), {t: read(draws) for t, draws in ahead[2]}),
        latest=_read_release(fields["latest"]),
        backfill=_read_backfill(fields["backfill"], read),
    )


def _release(release: Release | None) -> list[Any] | None:
    return None if release is None else [getattr(release, name) for name in Release.__slots__]


def _read_release(fields: list[Any] | None) -> Release | None:
    if fields is None:
        return None
    named = dict(zip(Release.__slots__, fields, strict=True))
    named["unit_std"] = named.pop("_unit_std")
    named["key"] = tuple(named["key"])
    named["post_processing"] = tuple(named["post_processing"])
    return Release(**named)


def _read_backfill(fields: dict[str, Any] | None, read: _Read) -> Releases | None:
    if fields is None:
        return None
    first = _read_release(fields["first"])
    assert first is not None
    arrays = dict(zip(_BACKFILL_ARRAYS, map(read, fields["arrays"]), strict=True))
    unit_std = arrays.pop("unit_std")
    return Releases(
        key=first.key,
        unit_std_or_later=unit_std,
        statistic=first.statistic,
        noise_law=first.noise_law,
        post_processing=first.post_processing,
        **arrays,
    )


def _segment(segment: Segment | None) -> dict[str, Any] | None:
    return None if segment is None else {**vars(segment), "range": vars(segment.range)}


def _read_segment(fields: dict[str, Any] | None) -> Segment | None:
    return None if fields is None else Segment(**{**fields, "range": Range(**fields["range"])})
