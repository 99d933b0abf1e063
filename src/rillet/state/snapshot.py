"""Snapshots: a stream's whole state as bytes, sealed under its secret.

Layout: ``rillet-state`` and a version, the public header as JSON (plan digest, key, ratchet epoch),
then the state, encrypted and authenticated (AES-256-GCM) together with the header.

**Privacy.** The sealed part holds unreleased data.  Whoever has the snapshot and the secret has
the data of open nodes and, while learning, the observations themselves.
"""

from __future__ import annotations

import json
from typing import Any, Final

from cryptography.exceptions import InvalidTag

from rillet.errors import StateError
from rillet.layout import Layout
from rillet.noise import Secret
from rillet.release import Key
from rillet.state.encoding import VERSION, decode_state, decode_version_1, encode_state
from rillet.step import StreamState

MAGIC: Final = b"rillet-state"


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
    return public + state.secret.seal(encode_state(state), associated=public)


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
    last = 1 if layout.main is None else layout.ratchet_steps(layout.main.leaves)
    if header["epoch"] > last:  # ratcheting that far could take for ever
        raise StateError(
            f"snapshot: it names ratchet step {header['epoch']}, but a stream of this plan ends "
            f"with step {last}: the header is damaged"
        )
    own = own.ratchet(header["epoch"] - own.epoch)
    try:
        content = own.open_sealed(sealed, associated=public)
    except (InvalidTag, ValueError):
        raise StateError(
            "snapshot: it does not open with this secret: wrong secret, or damaged bytes"
        ) from None
    return key, (decode_version_1 if blob[len(MAGIC)] == 1 else decode_state)(content, own)


def _split(blob: bytes) -> tuple[bytes, dict[str, Any], bytes]:
    start = len(MAGIC) + 5
    if len(blob) < start or not blob.startswith(MAGIC):
        raise StateError("snapshot: these bytes are not a rillet snapshot")
    if not 1 <= blob[len(MAGIC)] <= VERSION:
        raise StateError(
            f"snapshot: version {blob[len(MAGIC)]} is not known to this release of rillet, "
            f"which reads versions 1 to {VERSION}; install the release that wrote it, or a newer"
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
