"""Snapshots: a stream's whole state as bytes, sealed under its secret.

Layout: ``rillet-state`` and a version, the public header as JSON (mechanism, key, ratchet step),
then the state, encrypted and authenticated (AES-256-GCM) together with the header.

**Privacy.** The sealed part holds unreleased data.  Whoever has the snapshot and the secret has
the data of open nodes and, while learning, the observations themselves.
"""

from __future__ import annotations

import json
from typing import Any, Final

from cryptography.exceptions import InvalidTag

from rillet.errors import StateError
from rillet.layout import Layout, differences
from rillet.noise import Secret
from rillet.release import Key
from rillet.state.encoding import VERSION, decode_state, encode_state
from rillet.step import StreamState

MAGIC: Final = b"rillet-state"


def seal_state(layout: Layout, key: Key, state: StreamState, guarded: bytes = b"") -> bytes:
    """Serialise and seal; ``guarded`` is what :class:`rillet.state.uses.Guard` needs to go on."""
    header = json.dumps(
        {
            "mechanism": layout.mechanism,
            "key": list(key),
            "epoch": state.secret.epoch,
            "scope": state.secret.scope.hex(),
        }
    ).encode()
    public = MAGIC + bytes([VERSION]) + len(header).to_bytes(4, "big") + header
    content = bytes([len(guarded)]) + guarded + encode_state(state)
    return public + state.secret.seal(content, associated=public)


def open_state(
    layout: Layout, blob: bytes, secret: Secret, stream_secret_of: Any
) -> tuple[Key, StreamState, bytes]:
    """Check that the snapshot belongs to this plan and secret, and read it.

    ``secret`` is the master secret or the stream's own, of the snapshot's ratchet step or an
    earlier one; ``stream_secret_of(key)`` derives the stream's from the master.
    """
    public, header, sealed = _split(blob)
    if header["mechanism"] != json.loads(json.dumps(layout.mechanism)):
        raise StateError(
            "snapshot: it was made under another plan, or under another version of its mechanism: "
            f"{differences(header['mechanism'], layout.mechanism)}; resume it with the plan and "
            "the release of rillet that it was made with"
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
    start = 1 + content[0]
    return key, decode_state(content[start:], own), content[1:start]


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
    if not isinstance(header, dict) or set(header) != {"mechanism", "key", "epoch", "scope"}:
        return False
    texts = (header["scope"],)
    key, epoch = header["key"], header["epoch"]
    return (
        all(isinstance(text, str) for text in texts)
        and isinstance(header["mechanism"], dict)
        and isinstance(key, list)
        and all(type(part) in (str, int) for part in key)
        and type(epoch) is int
        and epoch >= 0
    )
