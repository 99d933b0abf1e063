"""A kept secret is used for one input only.

Noise is a function of the secret, the plan and the run.  The same noise on the same data gives the
same releases again and costs nothing; on other data the difference of two releases would be bare.
So a file beside the secret remembers, for each run, a keyed digest of what was read.

**Privacy.** Touches raw data: it digests the bytes of the input file under a key derived from the
secret, so that the digest says nothing to anybody who has not the secret too.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rillet.errors import InputError, OutputError, ParameterError, StateError

if TYPE_CHECKING:
    from rillet.noise import Secret

__all__ = ["claim", "open_secret"]

_CHUNK = 1 << 20


@dataclass(frozen=True)
class _Use:
    plan: str
    run: str
    size: int | None
    digest: str


def open_secret(path: str | None) -> Secret:
    """The secret in a file, which is made if it does not exist; without a path a fresh one."""
    from rillet.noise import Secret

    if path is None:
        return Secret.generate()
    if not Path(path).exists():
        secret = Secret.generate()
        secret.save(path)
        return secret
    secret = Secret.load(path)
    if secret.for_tests_only:
        raise ParameterError(
            "secret",
            "a secret for releases",
            "one that Secret.for_tests made, which everybody knows",
            hint="name a new file, and it will be made",
        )
    return secret


def claim(secret_path: str, secret: Secret, plan_digest: bytes, run: str, source: str) -> None:
    """Refuse a secret that was used with this plan and run on other input; else remember this use.

    **Privacy.** Touches raw data (see the module); decides by whether the input is that of a
    former run, which is not a matter of any one observation, and says no more.

    A file that has grown since is the same input: its first rows get the same releases again.
    Standard input cannot be read twice, so a secret serves it once.

    Raises
    ------
    StateError
        If the secret was used for other input.
    """
    record = Path(f"{secret_path}.uses")
    key = secret.keystream("input digest", plan_digest, run).integer(0, 256).to_bytes(32, "big")
    plan = plan_digest.hex()
    former = [use for use in _uses(record) if (use.plan, use.run) == (plan, run)]
    # Each use was compared with the one before it, so the last stands for all.
    for use in former[-1:]:
        if use.size is None or not hmac.compare_digest(_digest(source, use.size, key), use.digest):
            found = "standard input" if use.size is None else "a file with other content"
            raise StateError(
                f"secret: {secret_path} was used with this plan before, for {found}; the same "
                "noise on other data would reveal the difference. Name a new file as the secret"
            )
    size = None if source == "-" else _size(source)
    digest = "" if size is None else _digest(source, size, key)
    line = json.dumps(asdict(_Use(plan, run, size, digest))) + "\n"
    try:
        with record.open("a", encoding="ascii") as stream:
            stream.write(line)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise OutputError(f"{record}: expected a writable file, found: {error.strerror}") from error


def _uses(record: Path) -> list[_Use]:
    try:
        lines = record.read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError):
        lines = ["unreadable"]
    try:
        return [_Use(**json.loads(line)) for line in lines]
    except (ValueError, TypeError):
        raise StateError(
            f"secret: {record} is damaged, so it is not known what this secret was used for; "
            "name a new file as the secret"
        ) from None


def _size(source: str) -> int:
    try:
        return Path(source).stat().st_size
    except OSError as error:
        raise InputError(f"{source}: expected a readable file, found: {error.strerror}") from None


def _digest(source: str, size: int, key: bytes) -> str:
    """Keyed digest of the first ``size`` bytes; of fewer, if the file has become shorter."""
    if source == "-":
        return ""
    digest = hmac.new(key, digestmod=hashlib.sha256)
    try:
        with Path(source).open("rb") as stream:
            while size and (raw_chunk := stream.read(min(size, _CHUNK))):
                digest.update(raw_chunk)
                size -= len(raw_chunk)
    except OSError as error:
        raise InputError(f"{source}: expected a readable file, found: {error.strerror}") from None
    return digest.hexdigest()
