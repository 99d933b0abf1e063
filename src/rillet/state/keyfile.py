"""The key that a state is sealed under: a file of its own, which its owner alone can read.

A new key is written beside the old one before the state is sealed under it, and takes its place
afterwards: at any instant one of the two opens the state.
"""

from __future__ import annotations

import os
from pathlib import Path

from rillet.errors import OutputError, ParameterError, StateError
from rillet.noise import Secret


def make_key(path: Path) -> Secret:
    """A new key in a new file, mode 0600."""
    new = path.with_name(path.name + ".new")
    key = Secret.generate().derive("state at rest")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new.unlink(missing_ok=True)
        key.save(new)
        new.rename(path)  # A crash, or a full disk, leaves no half of a key.
    except OSError as error:
        raise OutputError(f"{path}: expected to write it, found: {error.strerror}") from None
    return key


def load_key(path: Path) -> Secret:
    """Read a key; refuse a file that others can read."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise StateError(
            f"{path}: expected the key that the state is sealed under, found: {error.strerror}; "
            "name it, or restore state and key from the same backup"
        ) from None
    if mode & 0o077:
        raise StateError(
            f"{path}: expected a file that its owner alone can read, found mode {mode & 0o777:o}; "
            f"type: chmod 600 {path}"
        )
    key = Secret.load(path)
    if not key.scope:
        raise ParameterError("key_file", "the key of a state", "the secret of a run's noise")
    return key


def next_key(path: Path) -> Path:
    """Where the new key is, while keys are being changed."""
    return path.with_name(path.name + ".next")


def take_over(path: Path) -> None:
    """Put the new key in the old one's place; the old one is gone."""
    try:
        next_key(path).replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise OutputError(f"{path}: expected to write it, found: {error.strerror}") from None
