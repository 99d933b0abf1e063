"""Looking after a state that is not running: a new key, a backup.

**Privacy.** Touches raw data, sealed: what is copied stays sealed, what is opened is sealed again
at once.
"""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

from rillet.errors import OutputError, StateError
from rillet.noise import Secret
from rillet.state.keyfile import load_key, make_key, next_key, take_over
from rillet.state.store import Store


def open_store(path: Path, key_path: Path) -> tuple[Store, Secret]:
    """Open a state with its key, or with the next one if a change of keys was cut short."""
    key = load_key(key_path)
    following = next_key(key_path)
    if not following.exists():
        return Store.open(path, key), key
    try:
        store = Store.open(path, key)
    except StateError:
        key = load_key(following)
        store = Store.open(path, key)
        take_over(key_path)  # The state was sealed under it already.
    else:
        following.unlink()  # It was not, and nothing is.
    return store, key


def rotate_key(folder: Path, key_path: Path | None = None) -> None:
    """Seal a state under a new key, and destroy the old one.

    Copies of the state that were made before, and remains of it on the disk, open with the old key
    only.
    """
    key_path = key_path or folder / "key"
    store, _ = open_store(folder / "state.db", key_path)
    try:
        store.rotate_key(make_key(next_key(key_path)))
        take_over(key_path)
    finally:
        store.close()


def back_up(folder: Path, to: Path, key_path: Path | None = None) -> None:
    """Copy a state that is not running, and its plan; not its key, which belongs elsewhere."""
    store, _ = open_store(folder / "state.db", key_path or folder / "key")
    try:
        to.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(to.iterdir()):
            raise OutputError(f"{to}: expected an empty folder, found something in it")
        store.copy_to(to / "state.db")
        for name in ("plan.json", "opening"):
            shutil.copyfile(folder / name, to / name)
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or "it cannot be written"
        raise OutputError(f"{to}: expected a folder for the backup, found: {reason}") from None
    finally:
        store.close()
