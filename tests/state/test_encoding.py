"""State as bytes: it comes back whole, and a state without its key goes on the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from helpers.streams import SECRET, awkward_values, baseline, paper, small_chunks
from rillet import BufferedToeplitz, HonakerTree, Plan, SignedDigitTree
from rillet.noise import LatticeNoise, ReadAhead
from rillet.state.encoding import decode_state, encode_state
from rillet.step import StreamState, start, step, without_key

DELTA = 2.0**-20
PLANS = {
    "tree": baseline(100),
    "tree every 3": baseline(100, every=3),
    "paper": paper(100, 30),
    "paper with backfill": paper(100, 30, backfill=True),
    "toeplitz": Plan.baseline(
        epsilon=1.0, delta=DELTA, upper=100.0, length=100, strategy=BufferedToeplitz()
    ),
    "digits": Plan.baseline(epsilon=1.0, upper=100.0, length=100, strategy=SignedDigitTree()),
    "honaker": Plan.baseline(epsilon=1.0, upper=100.0, length=None, strategy=HonakerTree()),
    "with looks": Plan(epsilon=1.0, delta=DELTA, upper=100.0, length=200, lag=20),
    "with looks, pure": Plan(epsilon=1.0, upper=100.0, length=200, lag=20),
}


def _begin(plan: Plan) -> StreamState:
    return start(plan.layout, SECRET.derive("stream", plan.layout.digest, ""))


@pytest.mark.parametrize("stop", [1, 7])
@pytest.mark.parametrize("name", PLANS)
def test_without_its_key_a_state_goes_on_the_same(name, stop):
    """Stored and read back after every few observations, at every place of a ratchet period."""
    plan = PLANS[name]
    values = awkward_values(min(plan.last_t, 200), 4)
    with small_chunks():
        whole = plan.open(secret=SECRET).update_many(values)
        expected = list(whole)
        state, found = _begin(plan), []
        for first in range(0, len(values), stop):
            kept = without_key(plan.layout, state)
            state = decode_state(encode_state(kept), kept.secret)
            assert encode_state(without_key(plan.layout, state)) == encode_state(kept)
            state, releases = step(plan.layout, (), state, values[first : first + stop], 7)
            found += list(releases)
    assert found == expected


@pytest.mark.parametrize("name", PLANS)
def test_no_key_that_a_closed_node_used_is_left(name, monkeypatch):
    """Every secret that drew noise so far, for a node or a look, is gone from what is kept."""
    plan = PLANS[name]
    values = awkward_values(min(plan.last_t, 200), 4)
    used: set[bytes] = set()
    draw = LatticeNoise.draw

    def note(self: LatticeNoise, first: int, count: int) -> object:
        if count:
            used.add(self.secret._material)
        return draw(self, first, count)

    with small_chunks():
        for t in (plan.layout.lag, 37, 52, 77, len(values)):
            used.clear()
            with monkeypatch.context() as patch:
                patch.setattr(LatticeNoise, "draw", note)
                state, releases = step(plan.layout, (), _begin(plan), values[:t], 7)
                spent = set(used)
            assert spent or not len(releases)
            kept = without_key(plan.layout, state)
            assert kept.secret._material not in spent
            content = encode_state(kept)
            assert not any(material in content for material in spent)
            assert kept.levels is None or kept is state
            if kept.ahead is not None:  # nothing of the past among what is drawn ahead
                done = plan.layout.complete_leaves(t)
                assert kept.ahead.first_leaf == done + 1
                assert all(at > t for at in kept.ahead.looks)


def test_state_with_its_key_would_be_found_out(monkeypatch):
    """The test above can fail: the state as it is in memory holds the key in force."""
    plan = PLANS["tree"]
    with small_chunks():
        state, _ = step(plan.layout, (), _begin(plan), np.ones(37), 7)
        assert state.levels is not None
        drawn_ahead = state.levels[0](0)
        assert isinstance(drawn_ahead, ReadAhead)
        noise = drawn_ahead._source
        assert isinstance(noise, LatticeNoise)
        assert noise.secret == state.secret
        assert without_key(plan.layout, state).secret != state.secret
        assert replace(state, levels=None).secret == state.secret
