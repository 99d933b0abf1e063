"""Streams whose state is on disk: killed at any instant, they go on as if nothing had happened.

A folder holds ``state.db`` (private, sealed), ``key`` (its key, mode 0600, unless it is kept
elsewhere), ``plan.json`` and ``releases.db`` (public).  A block of observations is absorbed in one
transaction: source position, states and releases-to-be-delivered move together.  Delivery comes
after, and again after a crash; sinks take a release twice without harm.

**Privacy.** All noise is a function of secret, key and node, so a block that is absorbed again
after a crash gives the very same releases.  The same noise on *other* data would reveal the
difference: the state keeps a keyed digest of the last block, and refuses a different one.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from rillet.errors import OutputError, StateError
from rillet.keyed import KeyedState, Pool, rows_of_keys
from rillet.layout import Layout
from rillet.noise import FloatArray, IntArray, Secret, random_name
from rillet.plan import Plan
from rillet.release import Key
from rillet.source import Block, Position
from rillet.state.keyfile import load_key, make_key
from rillet.state.store import Change, Kept, Store
from rillet.state.upkeep import open_store
from rillet.step import StreamState, without_key
from rillet.table import ReleaseTable
from rillet.threshold import Range

#: Named points between reading and delivering, for those who follow a run closely (level DEBUG).
log = logging.getLogger("rillet.durable")

#: States of so many keys are kept in memory; the others are read when they are needed.
CACHED_STATES: Final = 16_384
#: Stands for the pool of a shared threshold where learning buffers are numbered.
_POOL: Final = -1


@dataclass(frozen=True)
class Absorbed:
    """The last block that was absorbed: from where to where, its rows, a keyed digest of it."""

    start: Position | None
    end: Position
    rows: int
    digest: str

    def to_json(self) -> list[Any]:
        """For the sealed progress."""
        return [self.start, self.end, self.rows, self.digest]


class DurableStreams:
    """The streams of a plan, kept in a folder.

    **Privacy.** :meth:`absorb` touches raw data; whatever it returns, raises or logs is public.

    Parameters
    ----------
    folder
        Made if it does not exist; then the streams begin, otherwise they go on.
    plan
        The plan; a folder belongs to one.
    secret
        Master secret of the noise, for the beginning only; a fresh one by default.  It is not
        kept: whoever keeps it can undo all noise.
    key_file
        The key that the state is sealed under; ``folder/key`` by default, made if absent.
    run
        Part of what the noise is keyed by, as in :meth:`rillet.Plan.open`; None: as it was begun.
    restored
        Go on although the folder was copied or restored; see the operations page.
    only_look
        To check a state: this opening is not counted, and nothing may be absorbed.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        plan: Plan,
        *,
        secret: Secret | None = None,
        key_file: str | os.PathLike[str] | None = None,
        run: str | None = None,
        restored: bool = False,
        only_look: bool = False,
    ) -> None:
        self.folder = Path(folder)
        self.plan = plan
        self.keys: tuple[Key, ...] = plan.keys or ((),)
        path = self.folder / "state.db"
        begun = path.exists()
        key_path = Path(key_file) if key_file else self.folder / "key"
        if begun:
            self._store, _ = open_store(path, key_path)
        else:
            _refuse_lost(self.folder)
            key = load_key(key_path) if key_path.exists() else make_key(key_path)
            self._store = self._create(path, key, secret, run or "")
        try:
            self._read(run)
            self._check_mark(restored, only_look)
        except BaseException:
            self._store.close()
            raise

    def _create(self, path: Path, key: Secret, secret: Secret | None, run: str) -> Store:
        plan, master = self.plan, Secret.generate() if secret is None else secret
        places = (plan.stream_secret(master, key, run) for key in self.keys)
        progress: dict[str, Any] = {
            "batch": 0,
            "observations": 0,
            "source": None,
            "range": None,
            "opening": [0, "-"],
            # Not derived from the key of the state, which may change.
            "digest": random_name(32),
        }
        if plan.shared_threshold:
            progress["pool"] = plan.stream_secret(master, (), run).to_bytes().decode("ascii")
        _replace(self.folder / "plan.json", plan.to_json() + "\n")
        facts = {
            "identity": random_name(16),
            "plan": plan.digest.hex(),
            "run": run,
            "keys": str(len(self.keys)),
        }
        self._mark(facts["identity"], *progress["opening"])
        return Store.create(path, key, facts=facts, secrets=places, progress=progress)

    def _read(self, run: str | None) -> None:
        facts, progress = self._store.facts, self._store.read_progress()
        if facts["plan"] != self.plan.digest.hex() or run not in (None, facts["run"]):
            raise StateError(
                f"{self.folder}: expected the plan and the input that this state was begun with, "
                "found others; go on with those, or begin in another folder"
            )
        self._progress = progress
        self._digest_key = bytes.fromhex(progress["digest"])
        self._batch: int = progress["batch"]
        self.observations: int = progress["observations"]
        self.absorbed = Absorbed(*progress["source"]) if progress["source"] else None
        layout, pool = self.plan.layout, None
        if progress["range"] is not None:
            layout = layout.with_range(Range(*progress["range"]))
        elif "pool" in progress:
            pool = self._read_pool(Secret.from_bytes(progress["pool"].encode("ascii")))
        self._keyed = KeyedState(layout, pool)
        self._states = _States(self._store)

    def _read_pool(self, secret: Secret) -> Pool:
        parts = [np.frombuffer(raw) for raw in self._store.read_learning(_POOL)]
        key_of = tuple(part[: len(part) // 2].view(np.int64) for part in parts)
        return Pool(secret, key_of, tuple(part[len(part) // 2 :] for part in parts))

    def _check_mark(self, restored: bool, only_look: bool) -> None:
        """Compare with who ran here last: a copy is behind in one of the two."""
        number, opening = self._progress["opening"]
        mine = (self._store.facts["identity"], number, opening)
        # A crash while an opening is counted leaves the mark as it was before.
        before = tuple(self._progress.get("before", mine))
        self._counted = False
        if restored:
            if not only_look:
                self._count_opening()
        elif _read_mark(self.folder / "opening") not in (mine, before):
            raise StateError(
                f"{self.folder}: this state is not the one that ran here last; it was copied or "
                "restored from a backup, and the last one may have published more. If the source "
                "gives the same observations again, go on with --restored: the same values are "
                "published again, and a different one is refused. If it does not, begin anew"
            )

    def _count_opening(self) -> None:
        """Count this opening, in the state and beside the releases.

        Not before the first block: whoever is refused until then leaves everything as it was.
        """
        number, identity = self._progress["opening"][0] + 1, self._store.facts["identity"]
        progress = dict(self._progress)
        progress["opening"] = [number, random_name(8)]
        progress["before"] = list(_read_mark(self.folder / "opening"))
        self._store.commit(Change(progress), self._batch)
        self._progress = progress
        log.debug("counted")
        self._mark(identity, *progress["opening"])
        self._counted = True

    def _mark(self, identity: str, number: int, opening: str) -> None:
        _replace(self.folder / "opening", f"{identity} {number} {opening}\n")

    # --- absorbing -------------------------------------------------------------------------------

    def absorb(self, block: Block) -> tuple[int, ReleaseTable] | None:
        """Absorb a block of the source, durably; return what it releases, and its number.

        A block with a position must be the next one.  Nothing is absorbed twice: a block that was
        absorbed already gives None.

        **Privacy.** Touches raw data.  Refuses by comparing digests of whole blocks.

        Raises
        ------
        StateError
            If the block is not the next one, or is another than the one absorbed at its place.
        """
        raw_values, key_of = block.raw_values, block.key_of
        if key_of is None:
            key_of = np.zeros(len(raw_values), np.int64)
        digest = self.digest(block)
        if block.position is not None and self._absorbed_already(block, digest):
            return None
        log.debug("read")
        sequences: dict[int, int] = {}
        if block.sequence is not None:
            new, sequences = self._unseen(key_of, block.sequence)
            raw_values, key_of = raw_values[new], key_of[new]
        keyed, states, table = self._keyed.absorb(self.keys, self._states.of, key_of, raw_values)
        log.debug("absorbed")
        if not self._counted:
            self._count_opening()
        change = self._change(keyed, states, sequences)
        source = None
        if block.position is not None:
            source = Absorbed(block.start, block.position, len(block), digest)
        batch = self._batch + (table is not None)
        change.progress.update(
            batch=batch,
            observations=self.observations + self._keyed.growth(keyed, self._states.of, states),
            source=source.to_json() if source else None,
        )
        if table is not None:
            change.outbox = table.to_bytes()
        self._store.commit(change, batch)
        log.debug("committed")
        # From here on nothing can fail: memory follows the disk.
        self._keyed, self._batch, self._progress = keyed, batch, change.progress
        self._states.put(change.streams)
        self.observations, self.absorbed = change.progress["observations"], source
        return None if table is None else (batch, table)

    def digest(self, block: Block) -> str:
        """Keyed digest of a block and its place.  **Privacy.** Touches raw data; kept sealed."""
        digest = hashlib.blake2b(key=self._digest_key, digest_size=16)
        digest.update(json.dumps([block.start, block.position], sort_keys=True).encode())
        for raw_part in (block.raw_values, block.key_of, block.sequence):
            if raw_part is not None:
                digest.update(np.ascontiguousarray(raw_part).data)
        return digest.hexdigest()

    def check_absorbed(self, raw_blocks: Iterable[Block]) -> None:
        """Compare the last absorbed block with what the source has at its place now.

        ``raw_blocks`` has ``absorbed.rows`` rows from ``absorbed.start`` on.

        **Privacy.** Touches raw data; decides by a digest of a whole block.
        """
        last = self.absorbed
        if last is None:
            return
        found = list(raw_blocks)
        if not found or not hmac.compare_digest(self.digest(_joined(found)), last.digest):
            raise _other_input(self.folder)

    def _absorbed_already(self, block: Block, digest: str) -> bool:
        last = self.absorbed
        if last is None or block.start == last.end:
            return False
        if (block.start, block.position) == (last.start, last.end):
            if hmac.compare_digest(digest, last.digest):
                return True
            raise _other_input(self.folder)
        raise StateError(
            f"{self.folder}: expected the source to go on behind the last block absorbed, found "
            "another place; give the same source again, from where it stopped"
        )

    def _unseen(self, key_of: IntArray, sequence: IntArray) -> tuple[IntArray, dict[int, int]]:
        """Rows that were not absorbed before, and the last number of each key after them."""
        keep = key_of >= 0
        last: dict[int, int] = {}
        layout = self._keyed.layout
        for place, rows in rows_of_keys(np.where(keep, key_of, np.iinfo(np.int64).max)):
            if place >= len(self.keys):
                break
            numbers = sequence[rows]
            highest = np.maximum.accumulate(
                np.concatenate([[self._states.kept(layout, place).sequence], numbers])
            )
            keep[rows] = (numbers < 0) | (numbers > highest[:-1])
            last[place] = int(highest[-1])
        return np.flatnonzero(keep), last

    def _change(
        self, keyed: KeyedState, states: dict[int, StreamState], sequences: dict[int, int]
    ) -> Change:
        change = Change(dict(self._progress))
        pool = keyed.pool
        if pool is not None:
            assert self._keyed.pool is not None
            for part in range(len(self._keyed.pool.raw_values), len(pool.raw_values)):
                both = (pool.key_of[part].view(np.float64), pool.raw_values[part])
                change.learning[_POOL, part] = np.concatenate(both).tobytes()
        elif self._keyed.pool is not None:
            change.learned.append(_POOL)
            change.progress.pop("pool")
            bounds = keyed.layout.bounds
            change.progress["range"] = [bounds.lower, bounds.upper]
        for place in sequences.keys() - states.keys():  # all seen before, or in the pool
            kept = self._states.kept(keyed.layout, place)
            change.streams[place] = replace(kept, sequence=sequences[place])
        for place, state in states.items():
            before = self._states.kept(keyed.layout, place)
            parts = len(state.raw_buffer)
            for part in range(before.parts, parts):
                change.learning[place, part] = state.raw_buffer[part].tobytes()
            if before.parts and not parts:
                change.learned.append(place)
            sequence = sequences.get(place, before.sequence)
            change.streams[place] = Kept(without_key(keyed.layout, state), sequence, parts)
        return change

    # --- delivering ------------------------------------------------------------------------------

    def places(self) -> dict[str, dict[str, int] | None]:
        """Where each sink stood when it last acknowledged."""
        return {name: place for name, (_, place) in self._store.sinks().items()}

    def undelivered(self) -> list[tuple[int, ReleaseTable]]:
        """Batches of releases that were committed and not acknowledged, from before."""
        acknowledged = max((batch for batch, _ in self._store.sinks().values()), default=0)
        waiting = list(self._store.outbox(acknowledged))
        if [batch for batch, _ in waiting] != list(range(acknowledged + 1, self._batch + 1)):
            raise StateError(
                f"{self.folder}: expected every batch of releases that was not delivered, found "
                "some of them; the state is damaged. Restore state and key from the same backup"
            )
        return [(batch, ReleaseTable.from_bytes(content)) for batch, content in waiting]

    def acknowledge(self, batch: int, places: Mapping[str, dict[str, int] | None]) -> None:
        """Note that these sinks, which are all there are, have everything up to ``batch``."""
        self._store.acknowledge(batch, places)

    def check(self) -> None:
        """Read everything; raises :class:`rillet.StateError` if anything is damaged."""
        for place in range(len(self.keys)):
            self._store.read_stream(self._keyed.layout, place)

    def t(self, key: Key = ()) -> int:
        """Observations of a key that its stream has absorbed."""
        return self._states.of(self._keyed.layout, self.keys.index(key)).t

    def close(self) -> None:
        """Close the store; everything is on disk already."""
        self._store.close()

    def __enter__(self) -> DurableStreams:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<DurableStreams in {self.folder}: {len(self.keys):,} keys, {self.plan.guarantee}>"


class _States:
    """States of all keys: some in memory, the others on disk."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cached: OrderedDict[int, Kept] = OrderedDict()
        #: Read for the block under way, however many they are: none is read twice.  What has not
        #: begun depends on the layout, which may change.
        self._working: dict[int, tuple[Layout, Kept]] = {}

    def kept(self, layout: Layout, place: int) -> Kept:
        """One key's stream."""
        found = self._cached.get(place)
        if found is not None:
            return found
        under, kept = self._working.get(place, (None, None))
        if kept is None or (under is not layout and not kept.begun):
            kept = self._store.read_stream(layout, place)
            self._working[place] = layout, kept
        return kept

    def of(self, layout: Layout, place: int) -> StreamState:
        """One key's state."""
        return self.kept(layout, place).state

    def put(self, changed: Mapping[int, Kept]) -> None:
        """Take over what has been committed; the block is done."""
        self._working.clear()
        for place, kept in changed.items():
            if kept.begun:
                self._cached[place] = kept
                self._cached.move_to_end(place)
        while len(self._cached) > CACHED_STATES:
            self._cached.popitem(last=False)


def _joined(blocks: list[Block]) -> Block:
    def join(name: str) -> Any:
        parts = [getattr(block, name) for block in blocks]
        return None if parts[0] is None else np.concatenate(parts)

    raw_values: FloatArray = join("raw_values")
    return replace(
        blocks[-1],
        raw_values=raw_values,
        start=blocks[0].start,
        key_of=join("key_of"),
        sequence=join("sequence"),
    )


def _other_input(folder: Path) -> StateError:
    # Without the number of the row: it would tell how many rows had undeclared keys.
    return StateError(
        f"{folder}: the input is not what was absorbed from this place before; the same noise on "
        "other data would reveal the difference. Give the same source again, or begin in another "
        "folder"
    )


def _read_mark(path: Path) -> tuple[str, int, str]:
    """Who opened the state last; what cannot be read is nobody's."""
    try:
        identity, number, opening = path.read_text(encoding="ascii").split()
        return identity, int(number), opening
    except (OSError, ValueError):
        return "", 0, ""


def _refuse_lost(folder: Path) -> None:
    """Do not begin where a state ran before: other noise on the same data spends twice."""
    if _read_mark(folder / "opening")[1]:
        raise StateError(
            f"{folder / 'state.db'}: expected the state that ran here, found none. Restore it from "
            "a backup, or begin in another folder, with observations that it had not absorbed"
        )


def _replace(path: Path, text: str) -> None:
    """Write a file so that a crash leaves the old one or the new one."""
    new = path.with_name(path.name + ".new")
    try:
        with new.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(path)
    except OSError as error:
        raise OutputError(f"{path}: expected a writable file, found: {error.strerror}") from None
