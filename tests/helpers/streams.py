"""Streams for tests: plans of every shape, awkward values, and two ways to look inside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import rillet.layout
import rillet.noise
import rillet.scalar
import rillet.streams
import rillet.threshold.smooth
from helpers.records import unstamped
from rillet import BinaryTree, Independent, Plan, Release, Releases, Secret, SmoothQuantile, Stream
from rillet.noise import LatticeNoise
from rillet.state.encoding import encode_state
from rillet.statistic import Range
from rillet.strategy import STRATEGIES, Strategy
from rillet.strategy.independent import IndependentEncoder
from rillet.strategy.tree import TreeEncoder
from rillet.threshold import Look

DELTA = 2.0**-20
SECRET = Secret.for_tests(2019)


#: Options of strategies that have no default, in leaves.
MADE_WITH: dict[str, dict[str, Any]] = {
    "decayed-independent": {"half_life": 3},
    "decayed-toeplitz": {"half_life": 3},
    "restarted-tree": {"window": 3},
    "window-toeplitz": {"window": 3},
}


def made(name: str, **more: Any) -> Strategy:
    """A strategy by its name."""
    strategy: Strategy = STRATEGIES.get(name, "strategy")(**{**MADE_WITH.get(name, {}), **more})
    return strategy


def looks_back(strategy: Strategy, every: Any) -> dict[str, Any]:
    """What a statistic must look back on for this strategy; ``every`` turns leaves into it."""
    options = {name: getattr(strategy, name, None) for name in ("window", "half_life")}
    return {name: every(leaves) for name, leaves in options.items() if leaves is not None}


def shown(strategy: Strategy) -> float:
    """Part of a charge that can be needed: Honaker's releases do not show all of its tree."""
    return 0.8 if (strategy.name, strategy.law) == ("honaker-tree", "gaussian") else 1.0


def baseline(length: int, **more: Any) -> Plan:
    fields: dict[str, Any] = {"epsilon": 1.0, "upper": 100.0, "length": length, **more}
    return Plan.baseline(**fields)


def paper(length: int, lag: int, **more: Any) -> Plan:
    fields: dict[str, Any] = {
        "epsilon": 1.0,
        "delta": DELTA,
        "upper": 100.0,
        "length": length,
        "lag": lag,
        **more,
    }
    return Plan.paper(**fields)


def awkward_values(count: int, seed: int) -> NDArray[np.float64]:
    """Ordinary values with a few that nobody asked for."""
    random = np.random.default_rng(seed)
    values = random.exponential(8.0, count)
    strange = [np.nan, np.inf, -np.inf, -7.0, 1e300, 5e-324, -0.0, 250.0]
    places = random.random(count) < 0.1
    values[places] = random.choice(strange, int(places.sum()))
    return values


def all_releases(parts: Iterable[Release | Releases | None]) -> list[Release]:
    """One list, whatever mixture of single and many releases came."""
    found: list[Release] = []
    for part in parts:
        if isinstance(part, Releases):
            found += list(part)
        elif part is not None:
            found.append(part)
    return found


def state_text(stream: Stream) -> str:
    """Everything that the stream remembers but when it released, and the epoch of its secret."""
    state = stream._state()
    latest, backfill = state.latest, state.backfill
    if latest is not None:
        state = replace(state, latest=Release(latest.key, latest.t, 0, latest.rows))
    if backfill is not None:
        state = replace(state, backfill=unstamped(backfill))
    # How a learning buffer is cut depends on how values came.
    state = replace(state, raw_buffer=(np.concatenate([np.empty(0), *state.raw_buffer]),))
    return f"{state.secret.epoch} {encode_state(state)!r}"


@contextmanager
def small_chunks(ratchet: int = 16, pending: int = 5, read_ahead: int = 3) -> Iterator[None]:
    """Make the boundaries that a stream must not show so close that a short one crosses many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rillet.layout, "RATCHET_EVERY", ratchet)
        patch.setattr(rillet.layout, "KEYED_RATCHET_EVERY", ratchet)
        patch.setattr(rillet.streams, "_PENDING", pending)
        patch.setattr(rillet.scalar, "READ_AHEAD", read_ahead)
        yield


@dataclass
class Recording:
    """What went through the noise step: node sums before it, and every draw."""

    nodes: dict[str, list[int]] = field(default_factory=dict)
    draws: dict[tuple[Any, ...], list[int]] = field(default_factory=dict)
    scales: dict[tuple[Any, ...], set[float]] = field(default_factory=dict)
    laws: dict[tuple[Any, ...], set[str]] = field(default_factory=dict)
    continuous: list[tuple[Any, ...]] = field(default_factory=list)


@contextmanager
def recorded(threshold: float | None = None) -> Iterator[Recording]:
    """Record the encoders' nodes and all draws; force the learned threshold if one is given."""
    recording = Recording()
    draw, continuous_draw = LatticeNoise.draw, rillet.threshold.smooth.continuous_draw

    def encode_and_note(original: Any, name: str) -> Any:
        def encode(self: Any, state: Any, first: int, exact_leaves: Any) -> Any:
            following, exact_nodes = original(self, state, first, exact_leaves)
            recording.nodes.setdefault(name, []).extend(np.asarray(exact_nodes).tolist())
            return following, exact_nodes

        return encode

    def draw_and_note(self: LatticeNoise, start: int, count: int) -> Any:
        address = (self.secret.epoch, *self.purpose)
        recording.draws.setdefault(address, []).extend(range(start, start + count))
        recording.scales.setdefault(address, set()).add(self.scale)
        recording.laws.setdefault(address, set()).add(self.law.name)
        return draw(self, start, count)

    def note_continuous(law: Any, secret: Any, purpose: Any, *more: Any) -> Any:
        recording.continuous.append((secret.epoch, law.name, *purpose))
        return continuous_draw(law, secret, purpose, *more)

    def forced(self: Any, raw_values: Any, bounds: Range, *more: Any) -> Look:
        assert threshold is not None
        return Look(len(raw_values), point=threshold)

    with pytest.MonkeyPatch.context() as patch:
        for kind, name in ((TreeEncoder, "tree"), (IndependentEncoder, "independent")):
            patch.setattr(kind, "encode", encode_and_note(kind.encode, name))
        patch.setattr(LatticeNoise, "draw", draw_and_note)
        patch.setattr(rillet.threshold.smooth, "continuous_draw", note_continuous)
        if threshold is not None:
            patch.setattr(SmoothQuantile, "measure", forced)
        yield recording


def exact_epsilon(distance: int, scale: float) -> Fraction:
    """What Laplace noise of this scale costs for nodes this far apart, exactly."""
    return Fraction(distance) / Fraction(scale)


__all__ = [
    "DELTA",
    "SECRET",
    "BinaryTree",
    "Independent",
    "Recording",
    "all_releases",
    "awkward_values",
    "baseline",
    "exact_epsilon",
    "paper",
    "recorded",
    "small_chunks",
    "state_text",
]
