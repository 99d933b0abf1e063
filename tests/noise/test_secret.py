"""Secrets: fresh, masked, on disk for their owner only, and one way."""

import base64
import copy
import gc
import os
import pickle
import stat
import traceback

import numpy as np
import pytest
from cryptography.exceptions import InvalidTag
from hypothesis import given
from hypothesis import strategies as st

import rillet.noise.secret as secret_module
from rillet.errors import ParameterError, StateError
from rillet.noise import LAPLACE, Keystream, LatticeNoise, Secret, continuous_draw


def material(secret: Secret) -> bytes:
    return secret._material


def forms(raw: bytes) -> list[bytes]:
    """How key material could show: raw, reversed, in hexadecimal and in base64."""
    encoded = [raw, raw[::-1], raw.hex().encode(), raw.hex().upper().encode()]
    encoded += [base64.b64encode(raw).rstrip(b"="), base64.urlsafe_b64encode(raw).rstrip(b"=")]
    return [*encoded, repr(raw).encode()]


def reachable(root: object) -> list[object]:
    """Everything that can be reached from an object by following references, but not modules."""
    seen: dict[int, object] = {}
    waiting = [root]
    while waiting:
        thing = waiting.pop()
        if id(thing) not in seen and not isinstance(thing, type(os)):
            seen[id(thing)] = thing
            if not isinstance(thing, type):  # a class leads to the whole program
                waiting += gc.get_referents(thing)
    return list(seen.values())


# --- One way -------------------------------------------------------------------------------------


def test_a_ratchet_changes_every_draw():
    before = Secret.for_tests(1).derive("stream")
    after = before.ratchet()
    assert after.epoch == before.epoch + 1
    assert after != before
    noise = [LatticeNoise(LAPLACE, 1e6, s, ("main",)).draw(0, 2000) for s in (before, after)]
    assert np.mean(noise[0] == noise[1]) < 0.01
    words = [set(s.keystream("x").words(0, 2000).tolist()) for s in (before, after)]
    assert not words[0] & words[1]


def test_the_old_material_cannot_be_reached_from_the_new_secret():
    before = Secret.for_tests(2).derive("stream")
    old = material(before)
    after = before.ratchet(3)
    found = [part for part in reachable(after) if isinstance(part, (bytes, bytearray, str, int))]
    assert any(part == material(after) for part in found)  # the search does find keys
    shown = [str(part).encode() if isinstance(part, (str, int)) else bytes(part) for part in found]
    assert not any(form in part for form in forms(old) for part in shown)
    # Nor does an object that is drawn from keep it, once it is made anew.
    noise = LatticeNoise(LAPLACE, 1.0, after, ("main",))
    noise.draw(0, 100)
    held = [bytes(p) for p in reachable(noise) if isinstance(p, (bytes, bytearray))]
    assert any(part == material(after) for part in held)
    assert not any(form in part for form in forms(old) for part in held)


def test_the_old_material_is_freed_with_its_last_secret():
    """No cache, no registry: what holds the old key is the old object alone."""
    before = Secret(os.urandom(32))
    after = before.ratchet()
    old = material(before)
    holders = [h for h in gc.get_referrers(before) if isinstance(h, (Secret, dict, list, tuple))]
    assert not any(h for h in holders if h is not globals() and not _is_frame_like(h))
    del before
    gc.collect()
    # By type, not isinstance: among all objects are weak references to some that are gone.
    holding = [s for s in gc.get_objects() if type(s) is Secret and material(s) == old]
    assert not holding
    assert material(after) != old


def _is_frame_like(holder: object) -> bool:
    return isinstance(holder, dict) and "holders" in holder


def test_ratchet_steps_compose_and_never_go_back():
    secret = Secret.for_tests(3)
    assert secret.ratchet(5) == secret.ratchet().ratchet(4)
    assert secret.ratchet(0) == secret
    with pytest.raises(ParameterError, match="steps"):
        secret.ratchet(-1)
    seen = [material(secret.ratchet(n)) for n in range(50)]
    assert len(set(seen)) == 50


def test_the_derivation_is_keyed_and_separates_its_uses():
    """derive, ratchet and keystreams are different functions of the material."""
    secret = Secret.for_tests(4)
    keys = [
        material(secret.ratchet()),
        material(secret.derive()),
        material(secret.derive(0)),
        material(secret.derive("0")),
        material(secret.derive(b"0")),
        material(secret.derive("ratchet", 0)),
        material(secret.derive("a", "bc")),
        material(secret.derive("ab", "c")),
        secret.keystream(0)._key,
        secret.keystream("ratchet", 0)._key,
        material(secret),
    ]
    assert len(set(keys)) == len(keys)
    assert secret.derive("north") == secret.derive("north")
    assert secret.derive("north") != Secret.for_tests(5).derive("north")


PARTS = st.one_of(st.text(max_size=3), st.integers(-99, 99), st.binary(max_size=3))


@given(st.lists(PARTS, max_size=4), st.lists(PARTS, max_size=4))
def test_different_names_never_encode_alike(one, other):
    same = [(type(part), part) for part in one] == [(type(part), part) for part in other]
    assert (secret_module._encode(tuple(one)) == secret_module._encode(tuple(other))) == same


@pytest.mark.parametrize("part", [1.5, None, True, ("a",), np.int64(3), ["a"]])
def test_other_things_are_no_names(part):
    with pytest.raises(ParameterError, match="key"):
        Secret.for_tests(1).derive(part)


def test_a_name_from_the_file_system_is_a_name():
    assert Secret.for_tests(1).derive("\udcff") != Secret.for_tests(1).derive("\udcfe")


# --- Fresh ---------------------------------------------------------------------------------------


def test_generated_secrets_differ_and_are_for_release():
    made = [Secret.generate() for _ in range(100)]
    assert len({material(s) for s in made}) == 100
    assert not any(s.for_tests_only for s in made)


def test_secrets_for_tests_say_so_whatever_becomes_of_them(tmp_path):
    secret = Secret.for_tests(7)
    assert secret == Secret.for_tests(7)
    assert secret != Secret.for_tests(8)
    for descendant in (secret, secret.derive("x"), secret.ratchet(), secret.derive("x").ratchet(2)):
        assert descendant.for_tests_only
        assert "FOR TESTS ONLY" in repr(descendant)
        descendant.save(tmp_path / "secret")
        assert Secret.load(tmp_path / "secret").for_tests_only
        (tmp_path / "secret").unlink()


# --- Shown, copied, stored -----------------------------------------------------------------------


def test_no_text_form_shows_the_material():
    secret = Secret.generate().derive("stream").ratchet()
    noise = LatticeNoise(LAPLACE, 1.0, secret, ("x",))
    keystream = secret.keystream("x")
    for thing in (secret, noise, keystream):
        shown = f"{thing!r} {thing!s} {[thing]}".encode()
        for raw in (material(secret), keystream._key, noise._words._key, noise._more._key):
            assert not any(form in shown for form in forms(raw))
    assert repr(secret) == "Secret(<hidden>, epoch=1)"


@pytest.mark.parametrize(
    "copier", [pickle.dumps, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deep"]
)
def test_secrets_are_not_copied_by_accident(copier):
    secret = Secret.generate()
    things = [secret, secret.keystream("x")]
    if copier is not copy.copy:  # which would only make another reference to the same secret
        things.append(LatticeNoise(LAPLACE, 1.0, secret, ("x",)))
    for thing in things:
        with pytest.raises(TypeError, match="not pickled"):
            copier(thing)


def test_a_secret_cannot_be_changed():
    secret = Secret.generate()
    with pytest.raises(AttributeError, match="cannot be changed"):
        secret.epoch = 5
    with pytest.raises(AttributeError):
        secret._material = b"\0" * 32
    with pytest.raises(ParameterError, match="32 bytes"):
        Secret(b"short")


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_saved_secret_is_its_owners_alone_and_comes_back(tmp_path, mask):
    secret = Secret.generate().derive("stream").ratchet(2)
    path = tmp_path / "key.secret"
    before = os.umask(mask)
    try:
        secret.save(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = Secret.load(path)
    assert again == secret
    assert (again.epoch, again.scope, again.for_tests_only) == (2, secret.scope, False)
    assert again.keystream("x").words(0, 4).tolist() == secret.keystream("x").words(0, 4).tolist()


def test_a_saved_secret_holds_nothing_of_the_past(tmp_path):
    past = Secret.generate().derive("stream")
    path = tmp_path / "key.secret"
    past.ratchet().save(path)
    content = path.read_bytes()
    assert material(past.ratchet()).hex().encode() in content
    assert not any(form in content for form in forms(material(past)))
    assert not any(form in content for form in forms(past.keystream("noise", "x")._key))


def test_a_key_file_is_never_overwritten(tmp_path):
    path = tmp_path / "key.secret"
    Secret.for_tests(1).save(path)
    content = path.read_bytes()
    with pytest.raises(StateError, match="never overwritten"):
        Secret.generate().save(path)
    assert path.read_bytes() == content
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateError):
        Secret.generate().save(link)
    assert not (tmp_path / "elsewhere").exists()


def damaged(line: str) -> list[str]:
    version, epoch, scope, use, key = line.split()
    return [
        "",
        "\n",
        line.replace(version, "rillet-secret-9"),
        line.replace(key, key[:-2]),
        line.replace(key, key + "00"),
        line.replace(key, "zz" + key[2:]),
        f"{version} {key} {scope} {use} {epoch}",
        f"{version} {epoch} {key} {use}",
        line.replace(use, "for-everything"),
        line + line,
        line.replace(scope, "scope=xyz"),
        key,
    ]


def test_a_damaged_key_file_is_refused_without_quoting_it(tmp_path):
    path = tmp_path / "key.secret"
    secret = Secret.generate()
    secret.save(path)
    line = path.read_text()
    raw = material(secret)
    for text in (*damaged(line), line + "é"):
        path.write_text(text)
        with pytest.raises(StateError, match="not a rillet secret file") as raised:
            Secret.load(path)
        error = raised.value
        assert error.__cause__ is None
        assert error.__context__ is None
        shown = "".join(traceback.format_exception(error)).encode()
        assert not any(form[:24] in shown for form in forms(raw))
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if frame.f_code.co_filename == secret_module.__file__:
                values = repr(list(frame.f_locals.values())).encode()
                assert not any(form[:24] in values for form in forms(raw))


def test_a_missing_key_file_is_named(tmp_path):
    with pytest.raises(StateError, match="nowhere"):
        Secret.load(tmp_path / "nowhere")
    with pytest.raises(StateError, match="cannot write"):
        Secret.generate().save(tmp_path / "no folder" / "key")


# --- Sealing -------------------------------------------------------------------------------------


def test_sealed_bytes_open_with_the_same_secret_and_label_only():
    secret = Secret.generate()
    sealed = secret.seal(b"state", associated=b"plan 1")
    assert secret.open_sealed(sealed, associated=b"plan 1") == b"state"
    assert secret.seal(b"state", associated=b"plan 1") != sealed
    assert b"state" not in sealed
    for other, label in ((secret.ratchet(), b"plan 1"), (secret, b"plan 2")):
        with pytest.raises(InvalidTag):
            other.open_sealed(sealed, associated=label)
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(InvalidTag):
            secret.open_sealed(bytes(changed), associated=b"plan 1")


# --- Keystreams ----------------------------------------------------------------------------------


def test_keystreams_are_read_anywhere():
    keystream = Secret.for_tests(1).keystream("x")
    whole = keystream.words(0, 100)
    for start in range(40):
        assert keystream.words(start, 17).tolist() == whole[start : start + 17].tolist()
    assert keystream.words(7, 0).size == 0


def test_integers_of_a_keystream_do_not_overlap():
    keystream = Secret.for_tests(1).keystream("x")
    words = keystream.words(0, 8).tolist()
    assert keystream.integer(1, 128) == words[2] << 64 | words[3]
    assert [keystream.integer(i, 64) for i in range(8)] == words
    for bits in (0, 63, 100, -64):
        with pytest.raises(ParameterError, match="bits"):
            keystream.integer(0, bits)


def test_continuous_draws_follow_address_and_size():
    secret = Secret.for_tests(1)
    draws = {
        str(continuous_draw(LAPLACE, secret, purpose, index, bits))
        for purpose in (("a",), ("b",))
        for index in (0, 1)
        for bits in (256, 320)
    }
    assert len(draws) == 8
    assert continuous_draw(LAPLACE, secret, ("a",)) == continuous_draw(LAPLACE, secret, ("a",))


def test_a_keystream_is_the_standard_cipher():
    """AES-256 in counter mode, NIST SP 800-38A, F.5.5: counter block and key of the example."""
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    counter = int("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff", 16)
    found = Keystream(key).words(2 * counter, 2).tobytes()
    assert found.hex() == "0bdf7df1591716335e9a8b15c860c502"


def test_words_are_those_of_this_version():
    """Noise must not change without a new version of what draws it."""
    secret = Secret.for_tests(1)
    assert secret.keystream("noise", "pinned", 7).words(0, 3).tolist() == [
        0xAF5558A215C1CD4C, 0x52A596EC43CA50F0, 0x1332EB7DF61A2653,
    ]  # fmt: skip
    assert secret.ratchet().keystream("noise").words(5, 2).tolist() == [
        0x4463C1FC88311623, 0xC02AFA6A29C1E1B5,
    ]  # fmt: skip
