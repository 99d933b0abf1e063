"""Snapshots: what they open with, what they refuse, and what they do not show."""

from __future__ import annotations

import json
import struct
from dataclasses import replace

import hypothesis.strategies as some
import numpy as np
import pytest
from hypothesis import example, given, settings

from helpers.streams import SECRET, awkward_values, baseline, paper, small_chunks, state_text
from rillet import ParameterError, Plan, Secret, StateError, Stream
from rillet.noise import LatticeNoise, ReadAhead
from rillet.state.encoding import encode_state
from rillet.state.snapshot import MAGIC, VERSION, seal_state

PLAN = paper(3000, 500, every=7, backfill=True)


def running(plan: Plan = PLAN, t: int = 1234, **names: object) -> Stream:
    stream = plan.open(secret=SECRET, **{"key": ("north", 12), **names})
    stream.update_many(awkward_values(t, 1))
    return stream


def parts_of(blob: bytes) -> tuple[bytes, dict, bytes]:
    start = len(MAGIC) + 5
    end = start + int.from_bytes(blob[start - 4 : start], "big")
    return blob[:start], json.loads(blob[start:end]), blob[end:]


def with_header(blob: bytes, header: object) -> bytes:
    _, _, sealed = parts_of(blob)
    text = json.dumps(header).encode()
    return MAGIC + bytes([VERSION]) + len(text).to_bytes(4, "big") + text + sealed


# --- It continues ------------------------------------------------------------------------------


@pytest.mark.parametrize("t", [0, 1, 499, 500, 501, 1234, 3000])
def test_resumes_at_any_time(t):
    stream = running(t=t)
    again = PLAN.resume(stream.snapshot(), secret=SECRET)
    assert state_text(again) == state_text(stream)
    assert (again.t, again.key) == (t, ("north", 12))
    if t >= 500:
        assert again.latest() == stream.latest()
        assert list(again.backfill) == list(stream.backfill)
    rest = awkward_values(3000 - t, 2)
    assert list(again.update_many(rest)) == list(stream.update_many(rest))


def test_plan_from_json_resumes_too():
    stream = running()
    again = Plan.from_json(PLAN.to_json()).resume(stream.snapshot(), secret=SECRET)
    assert state_text(again) == state_text(stream)


def test_stream_scoped_secret_resumes_and_opens_nothing_else():
    stream = running()
    own, blob = stream.secret, stream.snapshot()
    assert state_text(PLAN.resume(blob, secret=own)) == state_text(stream)
    with pytest.raises(StateError, match="belongs to one stream"):
        PLAN.open(secret=own)
    with pytest.raises(StateError):
        PLAN.resume(running(key=("south", 12)).snapshot(), secret=own)


def test_saved_secret_resumes(tmp_path):
    stream = running()
    stream.secret.save(tmp_path / "secret")
    again = PLAN.resume(stream.snapshot(), secret=Secret.load(tmp_path / "secret"))
    assert state_text(again) == state_text(stream)


def test_two_snapshots_of_one_state_differ_but_open_alike():
    """Each is sealed under a fresh salt: equal bytes would show that nothing has happened."""
    stream = running()
    one, other = stream.snapshot(), stream.snapshot()
    assert one != other
    assert state_text(PLAN.resume(one, secret=SECRET)) == state_text(
        PLAN.resume(other, secret=SECRET)
    )


# --- It refuses --------------------------------------------------------------------------------


def test_changing_any_byte_is_noticed():
    """With the secret from the start, and with the stream's own, which needs no key to be found."""
    stream = running(t=600)
    blob = stream.snapshot()
    for secret in (SECRET, stream.secret):
        for place in range(len(blob)):
            for change in (0x01, 0x20, 0x80):
                broken = bytearray(blob)
                broken[place] ^= change
                with pytest.raises(StateError, match=r"^(snapshot|secret): "):
                    PLAN.resume(bytes(broken), secret=secret)


def test_header_is_sealed_with_the_rest():
    """Another key, or other spaces, in front of the same sealed bytes."""
    stream = running()
    blob = stream.snapshot()
    _, header, _ = parts_of(blob)
    other = with_header(blob, {**header, "key": ["south", 12]})
    spaced = blob.replace(b'"epoch": 1,', b'"epoch":1 ,')
    assert spaced != blob
    for forged in (other, spaced):
        with pytest.raises(StateError, match="does not open"):
            PLAN.resume(forged, secret=stream.secret)


@settings(max_examples=300)
@given(place=some.integers(0, 5000), byte=some.integers(0, 255), much=some.booleans())
@example(0, 0, True)
def test_any_damage_is_a_state_error(place, byte, much):
    blob = running(t=600).snapshot()
    place %= len(blob)
    broken = blob[:place] + bytes([byte]) * (1 + 20 * much) + blob[place + 1 + 20 * much :]
    if broken != blob:
        with pytest.raises(StateError):
            PLAN.resume(broken, secret=SECRET)
    with pytest.raises(StateError):
        PLAN.resume(blob[:place], secret=SECRET)
    with pytest.raises(StateError):
        PLAN.resume(blob + bytes([byte]), secret=SECRET)


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": 10**15},  # must not be ratcheted to
        {"epoch": -1},
        {"epoch": 1.5},
        {"epoch": True},
        {"epoch": None},
        {"key": None},
        {"key": "north"},
        {"key": [1.5]},
        {"key": [["north"]]},
        {"key": ["north"]},
        {"plan": 7},
        {"scope": 7},
        {"scope": ""},
        {"more": 1},
    ],
    ids=str,
)
def test_forged_headers_are_refused(change):
    blob = running().snapshot()
    _, header, _ = parts_of(blob)
    with pytest.raises(StateError):
        PLAN.resume(with_header(blob, {**header, **change}), secret=SECRET)
    for name in header:
        rest = {key: value for key, value in header.items() if key != name}
        with pytest.raises(StateError):
            PLAN.resume(with_header(blob, rest), secret=SECRET)
    for other in ([], 7, None, "text"):
        with pytest.raises(StateError):
            PLAN.resume(with_header(blob, other), secret=SECRET)


@pytest.mark.parametrize("blob", [b"", b"rillet", b"not a snapshot at all, but long enough", MAGIC])
def test_other_bytes_are_refused(blob):
    with pytest.raises(StateError, match="not a rillet snapshot"):
        PLAN.resume(blob, secret=SECRET)


def test_other_plan_is_refused():
    blob = running().snapshot()
    other = paper(3000, 500, every=7, backfill=True, epsilon=1.0000001)
    with pytest.raises(StateError, match="another plan"):
        other.resume(blob, secret=SECRET)


def test_other_secret_run_or_key_is_refused():
    blob = running().snapshot()
    with pytest.raises(StateError, match="does not open with this secret"):
        PLAN.resume(blob, secret=Secret.for_tests(1))
    with pytest.raises(StateError, match="another stream or another run"):
        PLAN.resume(blob, secret=SECRET, run="b")
    # The same secret derived for another key has another scope.
    with pytest.raises(StateError):
        PLAN.resume(blob, secret=running(key=("south", 12)).secret)


def test_future_version_is_refused_by_name():
    blob = bytearray(running().snapshot())
    blob[len(MAGIC)] = VERSION + 1
    with pytest.raises(StateError, match=rf"version {VERSION + 1} is not known.*{VERSION}"):
        PLAN.resume(bytes(blob), secret=SECRET)


def test_ratcheted_secret_cannot_open_an_older_snapshot():
    with small_chunks(ratchet=16):
        plan = baseline(100)
        stream = plan.open(secret=SECRET)
        stream.update_many(np.ones(15))
        older = stream.snapshot()
        stream.update_many(np.ones(20))
        later = stream.secret
        assert later.epoch > parts_of(older)[1]["epoch"]
        with pytest.raises(StateError, match="moved on since"):
            plan.resume(older, secret=later)
        # Lying about the epoch does not help: the key is another one.
        _, header, _ = parts_of(older)
        forged = with_header(older, {**header, "epoch": later.epoch})
        with pytest.raises(StateError, match="does not open"):
            plan.resume(forged, secret=later)
        # The newer one opens with it, and with the secret from the start.
        for secret in (later, SECRET):
            assert plan.resume(stream.snapshot(), secret=secret).t == 35


def test_nothing_drawn_before_the_last_ratchet_can_be_drawn_again():
    """The live stream holds no key from which an earlier node's noise follows."""
    with small_chunks(ratchet=16):
        plan = baseline(100)
        stream = plan.open(secret=SECRET)
        stream.update_many(np.ones(40))
        own = SECRET.derive("stream", plan.layout.digest, "")
        earlier = [own.ratchet(steps)._material for steps in range(stream.secret.epoch)]
        state = stream._state()
        assert state.levels is not None
        drawn_ahead = state.levels[0](0)
        assert isinstance(drawn_ahead, ReadAhead)
        noise = drawn_ahead._source
        assert isinstance(noise, LatticeNoise)
        assert noise.secret == state.secret
        assert state.secret._material not in earlier
        assert all(noise.secret != own.ratchet(steps) for steps in range(state.secret.epoch))
        sealed = stream.snapshot()
        for material in [*earlier, state.secret._material]:
            assert material not in sealed
            assert material.hex().encode() not in sealed


# --- It shows nothing --------------------------------------------------------------------------


@pytest.mark.parametrize("t", [100, 600])
def test_bytes_contain_no_raw_value(t):
    """Neither while the values wait in the buffer, nor afterwards, as doubles, integers or text."""
    plan = paper(3000, 500, every=1000)
    value = 73.212890625
    stream = plan.open(secret=SECRET)
    stream.update_many(np.full(t, value))
    blob = stream.snapshot()
    state = stream._state()
    (exact,) = state.exact_partial
    assert exact or t == 100
    shapes = [struct.pack("<d", value), struct.pack(">d", value), b"73.21"]
    if exact:
        shapes += [struct.pack("<q", exact), struct.pack(">q", exact), str(exact).encode()]
    # The plain form does hold them: the search would find what is there.
    assert (shapes[3] if exact else shapes[0]) in encode_state(state)
    for shape in shapes:
        assert shape not in blob


def test_header_holds_public_names_only():
    _, header, sealed = parts_of(running().snapshot())
    assert sorted(header) == ["epoch", "key", "mechanism", "scope"]
    assert header["mechanism"] == json.loads(json.dumps(PLAN.layout.mechanism))
    assert header["key"] == ["north", 12]
    assert len(sealed) > 100


def test_length_of_the_bytes_depends_on_public_numbers_only():
    """A size that followed unreleased values would be seen by whoever stores the snapshot."""
    default = Plan(epsilon=1.0, upper=100.0, length=3000, lag=100, every=7)
    cases = (
        (PLAN, 100),
        (PLAN, 600),
        (baseline(3000, every=1000), 1234),
        (default, 60),
        (default, 800),
    )
    for plan, t in cases:
        sizes = set()
        for values in (np.zeros(t), np.full(t, 99.999999), awkward_values(t, 3)):
            stream = plan.open(secret=SECRET)
            stream.update_many(values)
            state = stream._state()
            # Releases are public, and their decimals differ in length.
            hidden = replace(state, latest=None, backfill=None, anchor=None, ranges=(), worth=())
            hidden = replace(hidden, warm_up_units=(), looks=(), cut=(0, 0), complete=True)
            sizes.add(len(seal_state(plan.layout, (), hidden)))
        assert len(sizes) == 1, f"at t = {t}: {sorted(sizes)}"


def test_bad_keys_are_refused_before_anything_is_drawn():
    for key in (["north"], 1.5, None, (1.5,), (None,), (b"x",), (True,)):
        with pytest.raises(ParameterError, match=r"^key: "):
            PLAN.open(secret=SECRET, key=key)
