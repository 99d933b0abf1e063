"""Snapshots: a stream's whole state as bytes, sealed under its secret.

Layout: ``rillet-state`` and a version, the public header as JSON (plan digest, key, ratchet epoch),
then the state, encrypted and authenticated (AES-256-GCM) together with the header.

**Privacy.** The sealed part holds unreleased data.  Whoever has the snapshot and the secret has
the data of open nodes and, while learning, the observations themselves.
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from typing import Any, Final

import numpy as np
from cryptography.exceptions import InvalidTag
from numpy.typing import NDArray

from rillet.errors import StateError
from rillet.layout import Layout
from rillet.noise import Secret
from rillet.release import Key, Release, Releases
from rillet.step import Segment, StreamState, epoch_after
from rillet.threshold import Look, Range

MAGIC: Final = b"rillet-state"
VERSION: Final = 1


def seal_state(layout: Layout, key: Key, state: StreamState) -> bytes:
    """Serialise and seal."""
    header = json.dumps(
        {
            "plan": layout.digest.hex(),
            "key": list(key),
            "epoch": state.secret.epoch,
            "scope": state.secret.scope.hex(),
        }
    ).encode()
    public = MAGIC + bytes([VERSION]) + len(header).to_bytes(4, "big") + header
    return public + state.secret.seal(_to_json(state).encode(), associated=public)


def open_state(
    layout: Layout, blob: bytes, secret: Secret, stream_secret_of: Any
) -> tuple[Key, StreamState]:
    """Check that the snapshot belongs to this plan and secret, and read it.

    ``secret`` is the master secret or the stream's own, of the snapshot's epoch or an earlier one;
    ``stream_secret_of(key)`` derives the stream's from the master.
    """
    public, header, sealed = _split(blob)
    if header["plan"] != layout.digest.hex():
        raise StateError(
            "snapshot: it was made under another plan; resume it with the plan it was opened with"
        )
    key: Key = tuple(header["key"])
    own = secret if secret.scope.hex() == header["scope"] else stream_secret_of(key)
    if own.scope.hex() != header["scope"]:
        raise StateError("snapshot: this secret belongs to another stream or another run")
    if own.epoch > header["epoch"]:
        raise StateError(
            "snapshot: this secret has moved on since the snapshot was made and cannot open it; "
            "use the secret that was saved with it"
        )
    last = 1 if layout.main is None else epoch_after(layout.main.leaves)
    if header["epoch"] > last:  # ratcheting that far could take for ever
        raise StateError(
            f"snapshot: it names ratchet step {header['epoch']}, but a stream of this plan ends "
            f"with step {last}: the header is damaged"
        )
    own = own.ratchet(header["epoch"] - own.epoch)
    try:
        text = own.open_sealed(sealed, associated=public)
    except (InvalidTag, ValueError):
        raise StateError(
            "snapshot: it does not open with this secret: wrong secret, or damaged bytes"
        ) from None
    return key, _from_json(text.decode(), own)


def _split(blob: bytes) -> tuple[bytes, dict[str, Any], bytes]:
    start = len(MAGIC) + 5
    if len(blob) < start or not blob.startswith(MAGIC):
        raise StateError("snapshot: these bytes are not a rillet snapshot")
    if blob[len(MAGIC)] != VERSION:
        raise StateError(
            f"snapshot: version {blob[len(MAGIC)]} is not known to this release of rillet, "
            f"which reads version {VERSION}; install the release that wrote it, or a newer one"
        )
    end = start + int.from_bytes(blob[len(MAGIC) + 1 : start], "big")
    try:
        header = json.loads(blob[start:end])
    except (ValueError, RecursionError):
        header = None
    if not _is_header(header):
        raise StateError("snapshot: the header is damaged")
    return blob[:end], header, blob[end:]


def _is_header(header: object) -> bool:
    """Whether it has the four names, each of the type that :func:`seal_state` writes."""
    if not isinstance(header, dict) or set(header) != {"plan", "key", "epoch", "scope"}:
        return False
    texts = (header["plan"], header["scope"])
    key, epoch = header["key"], header["epoch"]
    return (
        all(isinstance(text, str) for text in texts)
        and isinstance(key, list)
        and all(type(part) in (str, int) for part in key)
        and type(epoch) is int
        and epoch >= 0
    )


# --- The sealed part: JSON, arrays as base64 of little-endian bytes ----------------------------


def _array(values: NDArray[Any]) -> list[Any]:
    kind = values.dtype.newbyteorder("<")
    content = base64.b64encode(values.astype(kind).tobytes()).decode()
    return [kind.str, list(values.shape), content]


def _read_array(fields: list[Any]) -> NDArray[Any]:
    kind, shape, content = np.dtype(fields[0]), fields[1], fields[2]
    values = np.frombuffer(base64.b64decode(content), kind).astype(kind.newbyteorder("="))
    return values.reshape(shape)


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


_BACKFILL_ARRAYS = ("t", "sum", "unit_std", "threshold", "clip_lower", "clipped_share")


def _to_json(state: StreamState) -> str:
    backfill = state.backfill
    return json.dumps(
        {
            "t": state.t,
            "raw_buffer": _array(np.concatenate([*state.raw_buffer, np.empty(0)])),
            "segment": None if state.segment is None else asdict(state.segment),
            # As wide as any other: the length of a snapshot is public.
            "exact_partial": _array(np.array([state.exact_partial])),
            "exact_tally": None if state.exact_tally is None else _array(state.exact_tally),
            "looks": [
                [_array(look.noisy), look.observations, look.scale, look.law]
                for look in state.looks
            ],
            "ranges": [[kept.lower, kept.upper] for kept in state.ranges],
            "centre": state.centre,
            "weights": list(state.weights),
            "encoder": [_array(part) for part in state.encoder],
            "decoder": [_array(part) for part in state.decoder],
            "process": [_array(part) for part in state.process],
            "latest": _release(state.latest),
            "backfill": None
            if backfill is None
            else {
                "first": _release(backfill[0]),
                "arrays": [_array(getattr(backfill, name)) for name in _BACKFILL_ARRAYS],
            },
        }
    )


def _read_backfill(fields: dict[str, Any] | None) -> Releases | None:
    if fields is None:
        return None
    first = _read_release(fields["first"])
    assert first is not None
    arrays = dict(zip(_BACKFILL_ARRAYS, map(_read_array, fields["arrays"]), strict=True))
    unit_std = arrays.pop("unit_std")
    return Releases(
        key=first.key,
        unit_std_or_later=unit_std,
        statistic=first.statistic,
        noise_law=first.noise_law,
        post_processing=first.post_processing,
        **arrays,
    )


def _read_segment(fields: dict[str, Any] | None) -> Segment | None:
    return None if fields is None else Segment(**{**fields, "range": Range(**fields["range"])})


def _from_json(text: str, secret: Secret) -> StreamState:
    fields = json.loads(text)
    raw_buffer = _read_array(fields["raw_buffer"])
    return StreamState(
        t=fields["t"],
        secret=secret,
        raw_buffer=(raw_buffer,) if len(raw_buffer) else (),
        segment=_read_segment(fields["segment"]),
        exact_partial=int(_read_array(fields["exact_partial"])[0]),
        exact_tally=None if fields["exact_tally"] is None else _read_array(fields["exact_tally"]),
        looks=tuple(Look(_read_array(noisy), *more) for noisy, *more in fields["looks"]),
        ranges=tuple(Range(*kept) for kept in fields["ranges"]),
        centre=fields["centre"],
        weights=tuple(fields["weights"]),
        encoder=tuple(_read_array(part) for part in fields["encoder"]),
        decoder=tuple(_read_array(part) for part in fields["decoder"]),
        process=tuple(_read_array(part) for part in fields["process"]),
        latest=_read_release(fields["latest"]),
        backfill=_read_backfill(fields["backfill"]),
    )
