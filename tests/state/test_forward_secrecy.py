"""With the final folder, its key and all releases, no closed node's noise can be recomputed.

A thief takes the whole folder: database, log, key. Everything that was ever sealed into it is
recorded, and so is every secret that ever drew noise; then all bytes of all files are searched.

What the folder must not have is a *key* to noise that has been used, or that noise itself. What it
has to have, because later nodes need it, are the exact sums of open nodes; from these, and from
releases, a thief computes by subtraction the noise of the few nodes that make up the present one:

* **Binary tree.** At leaf t the encoder holds, for each level, the exact sum since the last
  multiple of 2^level. With the releases that gives the exact prefix sums at the multiples of powers
  of two before t, at most one for each binary one of t: the noise of the nodes in the sum at t, and
  of no other node.
* **Signed-digit tree.** Released is the exact prefix sum S(t) plus a noise process W(t) made of
  shared ingredients. The encoder holds S(t), so the thief has W(t) = release − S(t). Stored with it
  are the values of W up to the next ratchet step and the ingredients that W needs after it. These
  fix, besides the future, W at earlier leaves s only where W(s) follows linearly from what is kept,
  and there S(s) is exact for the thief: ``test_what_a_thief_learns_of_the_signed_digit_tree``
  computes which leaves these are. They are at most one for each level, all of them among the leaves
  s = k^i·m_i(t) from which t counts, i.e. the counterparts of the tree's nodes.
* **Toeplitz strategies.** The encoder holds as many exact linear combinations of the observations
  as it has buffers.

Single observations before the last of these instants stay as protected as they were.
"""

from __future__ import annotations

import base64
import contextlib
import re
import shutil
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rillet.state.store
from helpers.streams import DELTA, SECRET, baseline, paper, small_chunks
from rillet import BinaryTree, BufferedToeplitz, Plan, Secret
from rillet.layout import MANY_KEYS
from rillet.noise import LatticeNoise
from rillet.state.binding import name_of
from rillet.state.encoding import decode_state
from rillet.state.keyfile import load_key
from rillet.state.store import _HEAD, _IN_TREE, _LENGTH
from rillet.strategy.signed_digit import SignedDigitNoise, SignedDigitTree
from rillet.threshold import TailHistogram

KEYS = tuple((f"meter {number}",) for number in range(40))

HOURLY = {
    "epsilon": 1.0,
    "upper": 100.0,
    "every": "1h",
    "start": "2026-01-01T00:00Z",
    "length": "40h",
    "keys": KEYS,
}
PLANS = {
    "tree": lambda: baseline(300),
    "tree, every 7": lambda: baseline(900, every=7),
    "paper": lambda: paper(300, 60),
    "paper, backfilled": lambda: paper(300, 60, every=5, backfill=True),
    "signed digits, refreshed": lambda: Plan(epsilon=1.0, upper=100.0, length=300, lag=40),
    "toeplitz": lambda: Plan(
        epsilon=1.0,
        delta=DELTA,
        upper=100.0,
        length=300,
        lag=40,
        strategy=BufferedToeplitz(),
    ),
    "keys": lambda: Plan(epsilon=1.0, upper=100.0, length=60, lag=5, keys=KEYS),
    "keys, shared": lambda: Plan(
        epsilon=1.0, upper=100.0, length=60, lag=200, keys=KEYS, shared_threshold=True
    ),
    "crowd": lambda: Plan(
        epsilon=1.0,
        upper=100.0,
        length=60,
        lag=0,
        strategy=BinaryTree(),
        keys=[f"meter {number}" for number in range(MANY_KEYS)],
    ),
    "fleet": lambda: Plan(**HOURLY, lag=0, strategy=BinaryTree()),
    "fleet, shared": lambda: Plan(**HOURLY, lag=3, delta=DELTA, shared_threshold=True),
}


@dataclass
class Watched:
    """All that was sealed and not released, and every secret that drew noise."""

    sealed: list[bytes] = field(default_factory=list)
    plain: list[bytes] = field(default_factory=list)
    drew: dict[bytes, Secret] = field(default_factory=dict)
    #: By scope of the secret and purpose: what was drawn at each index.
    drawn: dict[tuple[Any, ...], dict[int, int]] = field(default_factory=dict)


@contextlib.contextmanager
def watched():
    seen = Watched()
    seal, keystream, draw = Secret.seal, Secret.keystream, LatticeNoise.draw

    def seal_and_note(self, plaintext, *, associated):
        sealed = seal(self, plaintext, associated=associated)
        if not associated.startswith(b"outbox"):  # released
            seen.sealed.append(sealed)
        seen.plain.append(plaintext)
        return sealed

    def draw_and_note(self, start, count):
        seen.drew[self.secret._material] = self.secret
        values = draw(self, start, count)
        place = seen.drawn.setdefault((self.secret.scope, *self.purpose), {})
        place.update(enumerate(values.tolist(), start))
        return values

    def open_and_note(self, *purpose):
        if purpose[0] in ("continuous", "uniform", "noise"):
            seen.drew[self._material] = self
        return keystream(self, *purpose)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Secret, "seal", seal_and_note)
        patch.setattr(Secret, "keystream", open_and_note)
        patch.setattr(LatticeNoise, "draw", draw_and_note)
        yield seen


def blocks_of(
    plan: Plan, count: int, sizes: tuple[int, ...] = (37, 11, 64, 5)
) -> list[tuple[Any, Any]]:
    """Observations of all keys, in blocks of uneven sizes."""
    random = np.random.default_rng(8)
    values = random.exponential(8.0, count)
    key_of = random.integers(-1, len(plan.keys), count) if plan.keys else np.zeros(count, int)
    blocks, start = [], 0
    while start < count:
        end = min(count, start + sizes[len(blocks) % len(sizes)])
        blocks.append((values[start:end], key_of[start:end]))
        start = end
    return blocks


def run(folder: Path, plan: Plan, count: int, watch: Watched, *, killed: bool) -> None:
    """Absorb and deliver; stop, or be killed and be opened once more."""
    streams = plan.open_folder(folder, secret=SECRET)
    blocks = blocks_of(plan, count)
    for number, block in enumerate(blocks):
        if plan.clock is None:
            releases = streams.absorb(*block)
        else:
            releases = streams.absorb_ticks(*block, np.full(len(block[0]), number + 1), number)
        if len(releases):
            batch = streams._store.progress.batch
            streams._store.acknowledge(batch, {"sink": {"rows": batch}})
        if number == len(blocks) // 2:  # stopped and started
            streams.close()
            streams = plan.open_folder(folder)
    if not killed:
        streams.close()
        return
    dead = folder.with_name("killed")
    shutil.copytree(folder, dead)  # what a process leaves that is killed now
    streams.close()
    log = (dead / "state.db-wal").read_bytes()
    assert any(mark(sealed) in log for sealed in watch.sealed)
    shutil.rmtree(folder)
    shutil.copytree(dead, folder)
    shutil.rmtree(dead)
    plan.open_folder(folder).close()


def mark(sealed: bytes) -> bytes:
    """Bytes that tell a sealed content from all others, behind the zeros that it begins with."""
    return sealed[_IN_TREE + 60 :][:16]


def all_bytes(folder: Path) -> bytes:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {"state.db", "key", "plan.json", "opening"} <= {path.name for path in files}
    return b"\n".join(path.read_bytes() for path in files)


def in_tree(size: int, page: int) -> int:
    """Bytes of a row that SQLite keeps in a page of rows (file format, section 1.6)."""
    most, least = page - 35, (page - 12) * 32 // 255 - 23
    if size <= most:
        return size
    local = least + (size - least) % (page - 4)
    return local if local <= most else least


def contents(folder: Path) -> dict[tuple[Any, ...], tuple[bytes, bytes]]:
    """Everything that the key opens: sealed and plain, by its address."""
    key = load_key(folder / "key")
    found = {}
    with contextlib.closing(sqlite3.connect(folder / "state.db")) as connection:
        (identity,) = connection.execute(
            "SELECT value FROM facts WHERE name = 'identity'"
        ).fetchone()
        (page,) = connection.execute("PRAGMA page_size").fetchone()
        for table, kind, address in (
            ("progress", "progress", "only,"),
            ("streams", "stream", "key_index,"),
            ("learning", "learning", "key_index, part,"),
            ("outbox", "outbox", "batch,"),
            ("sinks", "sinks", "only,"),
            ("common", "common", "part,"),
            ("pages", "page", "number,"),
            ("changes", "change", "page, number,"),
        ):
            for *numbers, sealed in connection.execute(f"SELECT {address} sealed FROM {table}"):
                associated = name_of((kind, *numbers)) + b" of " + identity.encode()
                padded = key.open_sealed(sealed, associated=associated)
                # Zeros are all that a page of rows has of it, whatever the header of its row.
                for size in range(len(sealed), len(sealed) + 40):
                    assert in_tree(size, page) == _IN_TREE
                assert not any(padded[:_IN_TREE])
                (length,) = _LENGTH.unpack_from(padded, _IN_TREE)
                found[kind, *numbers] = sealed, padded[_IN_TREE + _LENGTH.size :][:length]
    return found


def forms(material: bytes) -> list[bytes]:
    """Raw, hex, and base64 at each of three places in a longer text."""
    shapes = [material, material.hex().encode(), material.hex().upper().encode()]
    for shift in range(3):
        text = base64.b64encode(bytes(shift) + material)
        shapes.append(text[4 if shift else 0 : -4])
    return shapes


def stored_secrets(plain: bytes) -> list[Secret]:
    texts = re.findall(rb"rillet-secret-1 \d+ scope=[0-9a-f]* for-\w+ [0-9a-f]{64}", plain)
    return [Secret.from_bytes(text + b"\n") for text in texts]


def leads_to(secret: Secret, drew: dict[bytes, Secret]) -> bool:
    """Whether noise was drawn from it, or from one of those that follow it."""
    for _ in range(40):
        if secret._material in drew:
            return True
        secret = secret.ratchet()
    return False


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("name", PLANS)
def test_nothing_in_the_folder_opens_what_is_closed(tmp_path, name, killed):
    with small_chunks(ratchet=16):
        plan = PLANS[name]()
        count = 250 if not plan.keys else 900
        with watched() as seen:
            run(tmp_path / "live", plan, count, seen, killed=killed)
        everything, live = all_bytes(tmp_path / "live"), contents(tmp_path / "live")
    # (a) What was superseded is nowhere, what is in force is there: the search finds what is.
    in_force = {mark(sealed) for sealed, _ in live.values()}
    assert len(seen.sealed) > len(in_force) + 10
    assert len(in_force) >= 3
    for sealed in seen.sealed:
        assert (mark(sealed) in everything) == (mark(sealed) in in_force)
        if mark(sealed) not in in_force:
            middle = len(sealed) // 2
            assert sealed[-16:] not in everything
            assert sealed[middle : middle + 16] not in everything
    # (b) No secret that drew noise, nor the master secret, in any form; nor one that leads there.
    assert len(seen.drew) >= 3
    plain = b"\n".join(content for _, content in live.values())
    superseded = b"\n".join(seen.plain)
    kept = stored_secrets(plain)
    assert len(kept) >= (1 if plan.layout.fleet else len(plan.keys or [()]))
    assert {secret._material for secret in kept}.isdisjoint(seen.drew)
    used = [*seen.drew, SECRET._material]
    for material in used:
        for form in forms(material):
            assert form not in plain
            assert form not in everything
    assert kept[-1]._material.hex().encode() in plain
    # The states before did hold the keys from which later noise was drawn: it could have failed.
    assert any(leads_to(secret, seen.drew) for secret in stored_secrets(superseded))
    assert not any(leads_to(secret, seen.drew) for secret in kept)


def stored_states(folder: Path):
    for (kind, *_), (_, plain) in contents(folder).items():
        if kind == "stream":
            _, size, _ = _HEAD.unpack_from(plain)
            end = _HEAD.size + size
            if end < len(plain):
                yield decode_state(plain[end:], Secret.from_bytes(plain[_HEAD.size : end]))


@pytest.mark.parametrize("name", ["tree", "tree, every 7", "paper", "toeplitz", "keys"])
def test_noise_of_closed_nodes_is_not_among_what_was_drawn_ahead(tmp_path, name):
    with small_chunks(ratchet=16):
        plan = PLANS[name]()
        if name == "keys":
            plan = Plan(
                epsilon=1.0, upper=100.0, length=60, lag=5, keys=KEYS, strategy=BinaryTree()
            )
        with watched() as seen:
            run(tmp_path / "live", plan, 230 if not plan.keys else 900, seen, killed=False)
        found = 0
        for state in stored_states(tmp_path / "live"):
            if state.ahead is None:
                continue
            done = plan.layout.complete_leaves(state.t)
            drawn = seen.drawn[state.secret.scope, "strategy", "main"]
            closed = {value for leaf, value in drawn.items() if leaf <= done}
            ahead = state.ahead.nodes[0].tolist()
            assert state.ahead.first_leaf == done + 1
            assert ahead == [drawn[leaf] for leaf in range(done + 1, done + 1 + len(ahead))]
            assert len(closed) > 3
            assert 0 < len(ahead) <= 16
            assert closed.isdisjoint(ahead)
            found += 1
        assert found >= len(plan.keys or [()]) * 0.9


def test_every_look_of_an_epoch_is_followed_by_others_until_the_last():
    """What is drawn ahead for looks counts on it: no epoch without a look before one that has."""
    for length in (50, 300, 5000, None):
        for every in (1, 7):
            plan = Plan(epsilon=1.0, upper=100.0, length=length, lag=40, every=every)
            assert isinstance(plan.threshold, TailHistogram)
            has = [epoch.look is not None for epoch in plan.layout.segments]
            assert has == sorted(has, reverse=True)


def test_looks_drawn_ahead_are_those_to_come(tmp_path):
    with small_chunks(ratchet=64):
        plan = PLANS["signed digits, refreshed"]()
        ends = [epoch.last for epoch in plan.layout.segments if epoch.look is not None]
        assert len(ends) >= 2
        for count in (45, 100, 150, 200, 299):
            folder = tmp_path / str(count)
            with watched() as seen:
                run(folder, plan, count, seen, killed=False)
            (state,) = stored_states(folder)
            if state.ahead is None:
                continue
            assert all(state.t < t for t in state.ahead.looks)
            kept = {draw for draws in state.ahead.looks.values() for draw in draws.tolist()}
            looked = [
                address
                for address in seen.drawn
                if address[1] == "threshold" or (address[1] == "look" and address[2] <= state.t)
            ]
            assert looked
            for address in looked:
                # Small numbers meet by chance; not all of a look's.
                assert not set(seen.drawn[address].values()) <= kept


@pytest.mark.parametrize(("arity", "leaves", "window"), [(3, 40, 8), (5, 50, 16), (13, 60, 16)])
def test_what_a_thief_learns_of_the_signed_digit_tree(arity, leaves, window):
    """Exact prefix sums at fewer past leaves than there are levels, and nothing else of the past.

    The noise process is linear in its ingredients, so ranks of many independent copies of it say
    exactly which values follow from which.
    """
    k, h = SignedDigitTree(arity=arity).shape(leaves)
    process = SignedDigitNoise(k, h)
    copies = 2 * leaves
    noise = np.random.default_rng(1).normal(size=(copies, h, 2 * leaves))

    @dataclass
    class Given:
        values: Any

        def draw(self, start, count):
            return np.rint(self.values[start : start + count] * 2**30).astype(np.int64)

    def drawn(copy: int, count: int):
        state, w = process.draw(process.start(), lambda level: Given(noise[copy, level]), 1, count)
        return np.concatenate([part.ravel() for part in state]) / 2**30, w / 2**30

    def rank(*columns):
        return np.linalg.matrix_rank(np.hstack(columns), tol=1e-6)

    w = np.array([drawn(copy, leaves)[1] for copy in range(copies)])
    for end in range(window, leaves + window, window):
        last = min(end, leaves)
        kept = np.array([drawn(copy, last)[0] for copy in range(copies)])
        for t in range(max(1, end - window), last):
            # W(t) by subtraction, W up to the ratchet step drawn ahead, and the process's state.
            known = np.hstack([w[:, t - 1 : last], kept])
            learned = [s for s in range(1, t) if rank(known, w[:, s - 1 : s]) == rank(known)]
            points = {
                k**level * whole
                for u in range(t, last + 1)
                for level, whole in enumerate(process._whole(u))
            }
            assert set(learned) <= points
            assert len(learned) < h
            # No other combination of past releases either, such as a single observation.
            past = w[:, :t]
            assert rank(past) + rank(known) - rank(past, known) == len(learned) + 1


# --- The learning buffer -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["paper", "signed digits, refreshed", "keys", "keys, shared"])
def test_learning_buffers_are_gone_after_the_opening(tmp_path, name):
    plan, folder = PLANS[name](), tmp_path / "live"
    count = 120 if not plan.keys else 900
    blocks = blocks_of(plan, count)
    values, key_of = blocks[0]
    learned_from = values[key_of >= 0]
    doubles = [value.tobytes() for value in learned_from]
    with watched() as seen:
        streams = plan.open_folder(folder, secret=SECRET)
        streams.absorb(*blocks[0])
        streams.close()
        everything, live = all_bytes(folder), contents(folder)
        parts = {mark(sealed) for address, (sealed, _) in live.items() if address[0] == "learning"}
        # While it learns they are there, sealed: this is what must go.
        plain = b"".join(content for _, content in live.values())
        assert parts
        assert all(double in plain for double in doubles)
        assert not any(double in everything for double in doubles)
        streams = plan.open_folder(folder)
        for block in blocks[1:]:
            streams.absorb(*block)
        before_the_log_is_cut = {mark(sealed) for sealed in seen.sealed}
        streams.close()
    everything, live = all_bytes(folder), contents(folder)
    assert parts <= before_the_log_is_cut
    assert not any(address[0] == "learning" for address in live)
    plain = b"".join(content for _, content in live.values())
    for part in parts:
        assert part not in everything
    for double in doubles:
        assert double not in plain
        assert double not in everything


def test_learning_buffer_is_appended_never_rewritten(tmp_path):
    """Each observation is sealed once while it waits."""
    plan = paper(3000, 500)
    blocks = blocks_of(plan, 400, sizes=(40,))
    with watched() as seen:
        streams = plan.open_folder(tmp_path / "live", secret=SECRET)
        for block in blocks:
            streams.absorb(*block)
        streams.close()
    for block in blocks:
        wanted = block[0].tobytes()
        assert sum(wanted in plain for plain in seen.plain) == 1


def test_log_is_cut_while_it_runs(tmp_path, monkeypatch):
    """Earlier states do not wait for the end of a process that runs for months."""
    monkeypatch.setattr(rillet.state.store, "_LOG_SECONDS", -1.0)
    plan, folder = PLANS["tree"](), tmp_path / "live"
    with watched() as seen, small_chunks(ratchet=16):
        streams = plan.open_folder(folder, secret=SECRET)
        for block in blocks_of(plan, 150):
            streams.absorb(*block)
            everything = all_bytes(folder)
            assert not (folder / "state.db-wal").stat().st_size
            found = [sealed for sealed in seen.sealed if mark(sealed) in everything]
            # One stream, the progress and the places of sinks.
            assert len(found) == 3
        streams.close()
