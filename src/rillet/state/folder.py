"""The folder of a durable run: the state, its key, the plan, and a mark of who ran here last.

``state.db`` (private, sealed), ``key`` (mode 0600, unless it is kept elsewhere), ``plan.json``,
``opening`` (the mark), ``lock`` (held by whoever has the state open) and ``releases.db`` (public,
written by a sink).

**Privacy.** Touches raw data, sealed: what is copied stays sealed, what is opened is sealed again
at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, Final

from rillet.amendments import Amendment, chained
from rillet.errors import OutputError, StateError
from rillet.fleet import Fleet
from rillet.gather.gate import Gate
from rillet.layout import Layout, differences
from rillet.levels import Tree
from rillet.noise import Secret, random_name
from rillet.release import Key
from rillet.state.keyfile import load_key, make_key, next_key, take_over
from rillet.state.store import (
    APPLICATION,
    APPLICATION_OFFSET,
    Opened,
    SqliteStore,
    check_header,
    log,
    make_private,
)
from rillet.state.uses import Guard
from rillet.times import now

#: Fits no state: written before a backup takes the place of the state that ran here.
_RESTORED: Final = "restored 1 -\n"
#: Parts of a mechanism that follow from others, which a user has typed.
_DERIVED: Final = frozenset(
    {"threshold_budget", "first_look", "warm_up", "main", "segments", "repeats", "ratchet_every"}
)


def open_folder(
    folder: Path,
    layout: Layout,
    tree: Tree,
    plan_json: str,
    stream_secret: Callable[[Secret, Key], Secret],
    new_gate: Callable[[Secret], Gate | None],
    *,
    secret: Secret | None = None,
    key_file: Path | None = None,
    run: str | None = None,
    source: str | None = None,
    restored: bool = False,
    only_look: bool = False,
    guard: Guard | None = None,
    amendments: Sequence[Amendment] = (),
) -> SqliteStore:
    """Open the state in a folder, or begin one.

    Parameters
    ----------
    folder
        Made if it does not exist; then the streams begin, otherwise they go on.
    layout, tree, plan_json, stream_secret, new_gate
        Of the plan; a folder belongs to one.
    secret
        Master secret of the noise, for the beginning only; a fresh one by default.  It is not
        kept: whoever keeps it can undo all noise.
    key_file
        The key that the state is sealed under; ``folder/key`` by default, made if absent.
    run
        Part of what the noise is keyed by; None: as it was begun.
    source
        Name of the input, no part of the noise: a state goes on with the one it was begun with.
        None: not compared.
    restored
        Go on although the folder was copied or restored; see the operations page.
    only_look
        To check a state: this start is not counted, and nothing may be committed.
    guard
        Of ``secret``: refuses one that was used for anything else, and remembers this state.
    amendments
        Of the plan: the state must have the same.
    """
    path, key_path = folder / "state.db", key_file or folder / "key"
    keys = tree.keys_at_first
    if not only_look:
        _make_folder(folder)
    lock = _lock(folder)  # Before looking whether there is a state: two must not begin it.
    try:
        if path.exists() or only_look:
            store, _ = open_store(path, key_path, layout)
        else:
            _refuse_lost(folder)
            if amendments:
                raise StateError(f"{folder}: expected the state that was amended, found none")
            key = load_key(key_path) if key_path.exists() else make_key(key_path)
            facts = {
                # A beginning that was cut short after its secret was claimed is the same one.
                "identity": _unfinished(folder) or random_name(16),
                "mechanism": json.dumps(layout.mechanism),
                "run": run or "",
                "source": source or "",
                "keys": _digest_of_keys(tree),
            }
            _replace(folder / "plan.json", plan_json + "\n")
            _mark(folder, facts["identity"], Opened())
            if guard is not None:
                guard.own(facts["identity"])
            master = Secret.generate() if secret is None else secret
            store = SqliteStore.create(
                path,
                key,
                layout,
                facts=facts,
                secrets=(stream_secret(master, own) for own in keys),
                shared=stream_secret(master, ()) if layout.shared is not None else None,
                gate=new_gate(master),
                opened=Opened(),
                fleet=Fleet.begin(layout, tree, stream_secret(master, ()))
                if layout.fleet
                else None,
            )
    except BaseException:
        lock.close()
        raise
    store.lock = lock
    try:
        _check_facts(folder, store.facts, layout, tree, run=run, source=source)
        _check_amendments(folder, store, amendments)
        _check_mark(folder, store, restored=restored)
        if layout.fleet:
            store.load_fleet(tree)
        elif layout.crowd:
            store.load_crowd(tree.keys)
    except BaseException:
        store.close()
        raise
    if not only_look:
        store.before_first_commit = lambda: _count_opening(folder, store)
        if restored:
            _count_opening(folder, store)
            store.before_first_commit = None
    return store


def amend_folder(
    open_it: Callable[[], SqliteStore],
    folder: Path,
    amended: Callable[[int], tuple[Layout, Tree, Sequence[Amendment], str]],
) -> None:
    """Change a state that is not running.

    ``open_it`` opens it as it is; ``amended`` says what it becomes: after so many ticks, with the
    new amendment as the last, and the plan's JSON.  The plan is written last: one that was cut
    short is completed when the state is opened.
    """
    store = open_it()
    with contextlib.closing(store):
        layout, tree, amendments, plan_json = amended(store.progress.ticks)
        *_, change = amendments
        assert store.before_first_commit is not None
        store.before_first_commit()
        name = chained(amendments)
        record = {"amendment": change.table(), "chain": name, "made_at": now()}
        secrets = (
            Secret.generate().derive("stream", layout.digest, "", *key) for key in change.add
        )
        store.amend(record, name, layout, tree, secrets)
        _replace(folder / "plan.json", plan_json + "\n")


def _check_amendments(folder: Path, store: SqliteStore, amendments: Sequence[Amendment]) -> None:
    """Refuse a plan that was not amended as the state was; complete one that was cut short."""
    kept = [record["amendment"] for record in store.amendments()]
    given = json.loads(json.dumps([each.table() for each in amendments]))
    if kept == given:
        return
    path = folder / "plan.json"
    with contextlib.suppress(OSError, ValueError, TypeError):
        table = json.loads(path.read_text(encoding="utf-8"))
        if table.get("amendments", []) == kept[: len(kept) - 1]:
            _replace(path, json.dumps({**table, "amendments": kept}, indent=2) + "\n")
    said = "; then ".join(str(Amendment(**each)) for each in kept) or "none"
    raise StateError(
        f"{folder}: this state has other amendments than the plan: {said}; go on with the plan in "
        f"{path}"
    )


def check_beginning(folder: Path, key_file: Path | None, guard: Guard | None = None) -> None:
    """Whether a state could be begun here, with the secret that is guarded; makes nothing."""
    _refuse_lost(folder)
    if guard is not None:
        guard.check_unused(_unfinished(folder))
    if key_file is not None and key_file.exists():
        load_key(key_file)
    for target in (folder, folder if key_file is None else key_file.parent):
        there = next(one for one in (target, *target.absolute().parents) if one.exists())
        if not there.is_dir() or not os.access(there, os.W_OK):
            raise OutputError(f"{target}: expected a folder to write to, found none at {there}")


def open_store(
    path: Path, key_path: Path, layout: Layout | None = None
) -> tuple[SqliteStore, Secret]:
    """Open a state with its key, or with the next one if a change of keys was cut short."""
    key = load_key(key_path)
    following = next_key(key_path)
    if not following.exists():
        return SqliteStore.open(path, key, layout), key
    try:
        store = SqliteStore.open(path, key, layout)
    except StateError:
        key = load_key(following)
        store = SqliteStore.open(path, key, layout)
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
    with _lock(folder):
        store, _ = open_store(folder / "state.db", key_path)
        with contextlib.closing(store):
            store.rotate_key(make_key(next_key(key_path)))
            take_over(key_path)


def new_key(path: Path) -> None:
    """Make a key for a state that is to be begun; never over another one."""
    if path.exists():
        raise StateError(f"{path}: expected no file, found one; a key is never overwritten")
    make_key(path)


def back_up(folder: Path, to: Path, key_path: Path | None = None) -> None:
    """Copy a state that is not running, and its plan; not its key, which belongs elsewhere."""
    with _lock(folder):
        store, _ = open_store(folder / "state.db", key_path or folder / "key")
        with contextlib.closing(store):
            try:
                _make_folder(to)
                if any(to.iterdir()):
                    raise OutputError(f"{to}: expected an empty folder, found something in it")
                store.copy_to(to / "state.db")
                for name in ("plan.json", "opening"):
                    shutil.copyfile(folder / name, to / name)
            except (OSError, sqlite3.Error) as error:
                reason = getattr(error, "strerror", None) or "it cannot be written"
                raise OutputError(
                    f"{to}: expected a folder for the backup, found: {reason}"
                ) from None


def restore(backup: Path, folder: Path) -> None:
    """Put a backup in the place of a state that is not running.

    A crash at any instant leaves the old state, or the restored one, or a folder that is refused
    until this is done again.  Neither runs on unasked: the mark fits none of them.
    """
    check_header(backup / "state.db", backup=True)
    _make_folder(folder)
    path, new = folder / "state.db", folder / "state.db.restored"
    with _lock(folder):
        make_private(new)
        try:
            shutil.copyfile(backup / "state.db", new)
            with new.open("r+b") as stream:
                stream.seek(APPLICATION_OFFSET)
                stream.write(APPLICATION.to_bytes(4, "big"))
                stream.flush()
                os.fsync(stream.fileno())
            _replace(folder / "plan.json", (backup / "plan.json").read_text(encoding="utf-8"))
            _replace(folder / "opening", _RESTORED)
            # The write-ahead log of the old state would be applied to the restored one.
            for suffix in ("-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            new.replace(path)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "a damaged backup"
            raise OutputError(f"{folder}: expected to restore {backup}, found: {reason}") from None


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: expected to make it, found: {error.strerror}") from None


def _lock(folder: Path) -> IO[bytes]:
    """Hold a folder until the file is closed; no other process can meanwhile."""
    path = folder / "lock"
    try:
        lock = os.fdopen(
            os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "r+b"
        )
    except FileNotFoundError:
        raise StateError(f"{folder}: expected the folder of a state, found none") from None
    except OSError as error:
        raise OutputError(f"{path}: expected to write it, found: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise StateError(
            f"{folder}: another process has this state open; a state is run by one process only"
        ) from None
    return lock


def _typed(mechanism: dict[str, Any]) -> dict[str, Any]:
    """What a user gave of a mechanism, without what follows from it and from rillet's version."""
    return {
        name: {part: value for part, value in given.items() if part != "version"}
        if isinstance(given, dict)
        else given
        for name, given in mechanism.items()
        if name not in _DERIVED
    }


def _check_facts(
    folder: Path,
    facts: dict[str, str],
    layout: Layout,
    tree: Tree,
    **given: str | None,
) -> None:
    """Refuse another plan, another version of a mechanism, or another input: say what differs."""
    keys = tree.keys_at_first
    was, now = json.loads(facts["mechanism"]), json.loads(json.dumps(layout.mechanism))
    instead = f"go on with the plan in {folder / 'plan.json'}, or begin in another folder"
    kept = _keys_of_plan(folder)
    epsilons = was.get("epsilon", 0.0), now["epsilon"]
    _, amend = what_to_amend(folder, (epsilons[0], kept or keys), (epsilons[1], keys))
    amend = f"; to change that in this state, type: {amend}" if amend else ""
    if was != now:
        typed = differences(_typed(was), _typed(now))
        what = f"another plan: {typed}"
        if not typed:
            what = f"another version of its mechanism: {differences(was, now)}"
            instead = "go on with the version of rillet that began it, or begin in another folder"
        amend = amend if epsilons[0] != epsilons[1] else ""
        raise StateError(f"{folder}: this state belongs to {what}; {instead}{amend}")
    if facts["keys"] != _digest_of_keys(tree):
        found = "not those declared now" if kept is None else _other_keys(kept, keys)
        raise StateError(f"{folder}: this state belongs to other keys: {found}; {instead}{amend}")
    for name, now in given.items():
        if now not in (None, facts[name]):
            raise StateError(
                f"{folder}: this state belongs to another input: {name} was {facts[name]!r}, is "
                f"{now!r}; go on with that one, or begin in another folder"
            )


def _keys_of_plan(folder: Path) -> tuple[Key, ...] | None:
    """The keys in the plan beside a state, if they can be read."""
    try:
        table = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        return tuple(tuple(key) for key in table.get("keys", ()))
    except (OSError, ValueError, AttributeError, TypeError):
        return None


def what_to_amend(
    folder: Path,
    was: tuple[float, tuple[Key, ...]],
    now: tuple[float, tuple[Key, ...]],
) -> tuple[str, str]:
    """What differs in ε and keys, and the command that changes it; empty if nothing does."""
    options, said = "", []
    names = [{",".join(map(str, key)) for key in keys} for _, keys in (was, now)]
    for what, option, some in (
        ("new keys", "--add", names[1] - names[0]),
        ("keys that are missing", "--retire", names[0] - names[1]),
    ):
        if some:
            said.append(f"{what}: {', '.join(sorted(some)[:3])}" + ", …" * (len(some) > 3))
            options += "".join(f" {option} {shlex.quote(key)}" for key in sorted(some)[:3])
            options += " …" * (len(some) > 3)
    if was[0] != now[0]:
        said.append(f"epsilon was {was[0]:g}, is {now[0]:g}")
        options += f" --epsilon {now[0]:g}"
    return "; ".join(said), f"rillet amend {folder}{options}" if said else ""


def _other_keys(before: tuple[Key, ...], keys: tuple[Key, ...]) -> str:
    """What was declared and is not, and the other way round, in words; public."""
    was, found = set(before), []
    for what, some in (("new", set(keys) - was), ("missing", was - set(keys))):
        if some:
            names = sorted(" ".join(map(str, key)) for key in some)
            more = f" and {len(names) - 3:,} more" * (len(names) > 3)
            found.append(f"{what}: {', '.join(names[:3])}{more}")
    differ = "; ".join(found) or "in another order, or in other groups"
    return f"it has {len(was):,}, {len(keys):,} are declared now ({differ})"


def _digest_of_keys(tree: Tree) -> str:
    """Of the keys, and of their groups, with which the state began."""
    keys = tree.keys_at_first
    known: list[object] = [keys]
    if len(tree.groups) > 1:
        known.append(tree.group_of[: len(keys)].tolist())
    return f"{len(keys)} {hashlib.sha256(json.dumps(known).encode()).hexdigest()[:32]}"


# --- who ran here last -----------------------------------------------------------------------


def _check_mark(folder: Path, store: SqliteStore, *, restored: bool) -> None:
    """Compare with who ran here last: a copy is behind in one of the two."""
    opened, identity = store.opened, store.facts["identity"]
    mine = (identity, opened.number, opened.name)
    # A crash while a start is counted leaves the mark as it was before.
    if not restored and _read_mark(folder) not in (mine, opened.before):
        raise StateError(
            f"{folder}: this state is not the one that ran here last; it was copied or "
            "restored from a backup, and the last one may have published more. If the source "
            "gives the same observations again, go on with --restored: the same values are "
            "published again, and a different one is refused. If it does not, begin anew"
        )


def _count_opening(folder: Path, store: SqliteStore) -> None:
    """Count this start, in the state and beside the releases.

    Not before the first block: whoever is refused until then leaves everything as it was.
    """
    opened = Opened(store.opened.number + 1, random_name(8), _read_mark(folder))
    store.note_opening(opened)
    log.debug("counted")
    _mark(folder, store.facts["identity"], opened)


def _mark(folder: Path, identity: str, opened: Opened) -> None:
    _replace(folder / "opening", f"{identity} {opened.number} {opened.name}\n")


def _read_mark(folder: Path) -> tuple[str, int, str]:
    """Who opened the state last; unreadable, so no owner."""
    try:
        identity, number, opening = (folder / "opening").read_text(encoding="ascii").split()
        return identity, int(number), opening
    except (OSError, ValueError):
        return "", 0, ""


def _unfinished(folder: Path) -> str:
    """Identity of a state that was about to be made here; empty if there is none."""
    identity, number, _ = _read_mark(folder)
    return identity if not number and re.fullmatch("[0-9a-f]{32}", identity) else ""


def _refuse_lost(folder: Path) -> None:
    """Do not begin where a state ran before: other noise on the same data spends twice."""
    if _read_mark(folder)[1]:
        raise StateError(
            f"{folder / 'state.db'}: expected the state that ran here, found none. Restore it from "
            "a backup, or begin in another folder, with observations that it had not absorbed"
        )


def _replace(path: Path, text: str) -> None:
    """Write a file so that a crash leaves the old one or the new one."""
    new = path.with_name(path.name + ".new")
    try:
        new.unlink(missing_ok=True)  # and never through a link that somebody planted
        with open(new, "x", encoding="utf-8", opener=_readable) as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(path)
    except OSError as error:
        raise OutputError(f"{path}: expected a writable file, found: {error.strerror}") from None


def _readable(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
