"""Secrets, their one-way ratchet, and the keystreams that they open.

A draw is a function of a secret and a public address, read from an AES-256 counter-mode keystream,
so that any index, any block and any order give the same words, a replay gives the same noise, and
resuming needs no generator state.

**Privacy.** The claim is computational: AES-256 in counter mode and HKDF-SHA256 are taken to be
secure.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TypeAlias

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from numpy.typing import NDArray

from rillet.errors import ParameterError, StateError

KeyPart: TypeAlias = str | int | bytes


def _encode(parts: tuple[KeyPart, ...]) -> bytes:
    """Injective encoding of a tuple: type tag, length, content (never joined strings)."""
    encoded = bytearray()
    for part in parts:
        if isinstance(part, bytes):
            tag, content = b"b", part
        elif isinstance(part, str):
            # surrogatepass: a name that came from the file system must not fail here
            tag, content = b"s", part.encode("utf-8", "surrogatepass")
        elif isinstance(part, int) and not isinstance(part, bool):  # type: ignore[redundant-expr]
            tag, content = b"i", str(part).encode("ascii")
        else:
            raise ParameterError(
                "key", "a tuple of strings, integers or bytes", type(part).__name__
            )
        encoded += tag + len(content).to_bytes(8, "big") + content
    return bytes(encoded)


def access_token() -> str:
    """Draw a token for somebody who asks over a network: 256 bits as text."""
    return secrets.token_urlsafe(32)


class Secret:
    """Key material for noise: 256 bits, a scope, and the number of ratchet steps taken.

    A *master* secret belongs to the user.  Deriving it for a stream gives a *stream* secret, which
    ratchets one way (HKDF-SHA256) at public times; from a later secret no earlier one can be
    computed, so noise drawn before the last step cannot be recomputed once the old secret is gone.

    **Privacy.** Whoever holds a secret and the releases can remove the noise drawn from it.  The
    material never appears in ``repr``.

    Examples
    --------
    >>> Secret.generate()
    Secret(<hidden>, epoch=0)
    """

    __slots__ = ("_material", "epoch", "for_tests_only", "scope")

    _material: bytes
    epoch: int
    scope: bytes
    for_tests_only: bool

    def __init__(
        self, material: bytes, *, epoch: int = 0, scope: bytes = b"", for_tests_only: bool = False
    ) -> None:
        if len(material) != 32:
            raise ParameterError("secret", "32 bytes of key material", f"{len(material)} bytes")
        object.__setattr__(self, "_material", bytes(material))
        object.__setattr__(self, "epoch", epoch)
        object.__setattr__(self, "scope", scope)
        object.__setattr__(self, "for_tests_only", for_tests_only)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Secret cannot be changed; ratchet() and derive() return new ones")

    def __repr__(self) -> str:
        warning = ", FOR TESTS ONLY" if self.for_tests_only else ""
        return f"Secret(<hidden>, epoch={self.epoch}{warning})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        same = secrets.compare_digest(self._material, other._material)
        return same and self.epoch == other.epoch and self.scope == other.scope

    def __hash__(self) -> int:
        return hash((self.epoch, self.scope))

    def __reduce__(self) -> str:
        raise TypeError("a Secret is not pickled; use Secret.save(path)")

    @classmethod
    def generate(cls) -> Secret:
        """Draw a fresh master secret from the operating system."""
        return cls(secrets.token_bytes(32))

    @classmethod
    def for_tests(cls, number: int) -> Secret:
        """Give a fixed, publicly known secret: for tests and simulations, never for a release."""
        material = HKDFExpand(hashes.SHA256(), 32, _encode(("rillet for tests", number)))
        return cls(material.derive(b"\0" * 32), for_tests_only=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Secret:
        """Read a secret that :meth:`save` wrote."""
        try:
            secret = cls._parse(Path(path).read_bytes())
        except OSError as error:
            raise StateError(f"secret: cannot read {path}: {error.strerror}") from None
        if secret is None:
            # Raised here, without cause or context: theirs could quote the file, which is a key.
            raise StateError(
                f"secret: {path} is not a rillet secret file; name the file that Secret.save wrote"
            )
        return secret

    @classmethod
    def _parse(cls, content: bytes) -> Secret | None:
        try:
            version, epoch, scope, use, material = content.decode("ascii").split()
            if version != "rillet-secret-1" or use not in ("for-tests", "for-release"):
                return None
            return cls(
                bytes.fromhex(material),
                epoch=int(epoch),
                scope=bytes.fromhex(scope.removeprefix("scope=")),
                for_tests_only=use == "for-tests",
            )
        except ValueError:  # which a ParameterError is, too
            return None

    @classmethod
    def from_bytes(cls, content: bytes) -> Secret:
        """Read what :meth:`to_bytes` gave."""
        secret = cls._parse(content)
        if secret is None:
            raise StateError("secret: expected the bytes of a rillet secret, found others")
        return secret

    def to_bytes(self) -> bytes:
        """The secret itself.  **Privacy.** Seal it before it is kept anywhere."""
        use = "for-tests" if self.for_tests_only else "for-release"
        return (
            f"rillet-secret-1 {self.epoch} scope={self.scope.hex()} {use} {self._material.hex()}\n"
        ).encode("ascii")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the secret to a new file that only its owner can read (mode 0600)."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise StateError(
                f"secret: {path} exists; a key file is never overwritten, choose another name"
            ) from None
        except OSError as error:
            raise StateError(f"secret: cannot write {path}: {error.strerror}") from None
        with os.fdopen(descriptor, "wb") as file:
            file.write(self.to_bytes())
            file.flush()
            os.fsync(file.fileno())

    def _expand(self, label: str, *parts: KeyPart) -> bytes:
        info = _encode(("rillet/1", label, *parts))
        return HKDFExpand(hashes.SHA256(), 32, info).derive(self._material)

    def derive(self, *context: KeyPart) -> Secret:
        """Derive the secret of one stream (or of one part of it) from its public name."""
        scope = hashes.Hash(hashes.SHA256())
        scope.update(_encode((self.scope, *context)))
        return Secret(
            self._expand("derive", *context),
            scope=scope.finalize()[:16],
            for_tests_only=self.for_tests_only,
        )

    def ratchet(self, steps: int = 1) -> Secret:
        """Go forward one way: the result does not allow this secret to be computed."""
        if steps < 0:
            raise ParameterError("steps", "a number of steps forward", steps)
        secret = self
        for _ in range(steps):
            secret = Secret(
                secret._expand("ratchet", secret.epoch),
                epoch=secret.epoch + 1,
                scope=secret.scope,
                for_tests_only=secret.for_tests_only,
            )
        return secret

    def keystream(self, *purpose: KeyPart) -> Keystream:
        """Open the keystream of one purpose; different purposes are independent."""
        return Keystream(self._expand("keystream", *purpose))

    def seal(self, plaintext: bytes, *, associated: bytes) -> bytes:
        """Encrypt and authenticate (AES-256-GCM) under a key derived from this secret."""
        nonce = secrets.token_bytes(12)
        # A fresh salt gives each message a key of its own, so nonces cannot collide.
        salt = secrets.token_bytes(16)
        key = HKDF(hashes.SHA256(), 32, salt, _encode(("rillet/1", "seal"))).derive(self._material)
        return b"".join((salt, nonce, AESGCM(key).encrypt(nonce, plaintext, associated)))

    def open_sealed(self, sealed: bytes, *, associated: bytes) -> bytes:
        """Undo :meth:`seal`; raises ``InvalidTag`` when the bytes or the secret do not match."""
        salt, nonce, ciphertext = sealed[:16], sealed[16:28], sealed[28:]
        key = HKDF(hashes.SHA256(), 32, salt, _encode(("rillet/1", "seal"))).derive(self._material)
        return AESGCM(key).decrypt(nonce, ciphertext, associated)


def random_name(size: int) -> str:
    """``size`` fresh bytes in hexadecimal, to tell things apart; no noise is made of them."""
    return secrets.token_hex(size)


class Keystream:
    """Random access to 64-bit pseudorandom words: word ``i`` is a function of the key and ``i``."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        self._key = key

    def __repr__(self) -> str:
        return "Keystream(<hidden>)"

    def __reduce__(self) -> str:
        raise TypeError("a Keystream is not pickled: it holds a key")

    def words(self, start: int, count: int) -> NDArray[np.uint64]:
        """Words ``start`` to ``start + count - 1``."""
        skipped = start & 1  # a 16-byte AES block holds two words
        counter = (start >> 1).to_bytes(16, "big")
        zeros = bytes(8 * (count + skipped))
        encryptor = Cipher(algorithms.AES256(self._key), modes.CTR(counter)).encryptor()
        return np.frombuffer(encryptor.update(zeros), dtype="<u8")[skipped:]

    def integer(self, index: int, bits: int) -> int:
        """A uniform integer of ``bits`` bits (a multiple of 64) at the address ``index``.

        Addresses of different ``bits`` overlap: one keystream serves one size.
        """
        count, left_over = divmod(bits, 64)
        if left_over or count < 1:
            raise ParameterError("bits", "a positive multiple of 64", bits)
        return int.from_bytes(self.words(index * count, count).astype(">u8").tobytes(), "big")
