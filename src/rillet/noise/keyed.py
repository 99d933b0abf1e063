"""Keyed, exact, integer-valued noise: the only module that draws randomness for a release.

A draw is ``round(Z)`` for a continuous law ``Z`` (Laplace, Gaussian, or any law given by its
quantile function).  Each draw is a function of a secret and a public address, read from an
AES-256 counter-mode keystream, so that any index, any block and any order give the same integers,
a replay gives the same noise, and resuming needs no generator state.

**Privacy.** Because the data are integers, ``k + round(Z) = round(k + Z)``: rounding is
post-processing and the integer mechanism inherits the guarantee of the continuous law with no
loss.  The inverse-CDF draw is exact: a float result is accepted only when every value that the
still unknown bits of the uniform could give rounds to the same integer (docs/proofs/noise.md);
otherwise the same uniform is extended with more bits and decided in multiple precision.  The
claim is computational: it assumes that AES-256 in counter mode and HKDF-SHA256 are secure.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final, TypeAlias

import mpmath
import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from numpy.typing import NDArray

from rillet.errors import ParameterError, StateError
from rillet.noise.laws import GAUSSIAN, LAPLACE, LAWS, FloatArray, Law
from rillet.noise.rounding import round_words, scaled_quantile, uniform_of, with_sign

__all__ = [
    "CHUNK",
    "GAUSSIAN",
    "LAPLACE",
    "LARGEST_SCALE",
    "LAWS",
    "FloatArray",
    "IntArray",
    "KeyPart",
    "Keystream",
    "LatticeNoise",
    "Law",
    "Secret",
    "continuous_draw",
    "decide",
    "random_name",
    "uniform_below",
]

IntArray: TypeAlias = NDArray[np.int64]
KeyPart: TypeAlias = str | int | bytes

#: Largest noise scale, in lattice units, for which the float path is proved (docs/proofs/noise.md).
LARGEST_SCALE: Final = 2.0**38
#: Uniforms below this many units of 2^-63 are always decided in multiple precision.
SMALLEST_FAST_UNIFORM: Final = 2**20
#: Uniforms from here on, all but a millionth, share one bound that is tried first.
_SMALLEST_COMMON_UNIFORM: Final = np.uint64(2**43)
#: Draws are made in blocks of this many: the working arrays then stay in the second-level cache.
CHUNK: Final = 2**14
#: Room for extra words in the refinement keystream: index · 2^20 + word number.
_REFINE_SHIFT: Final = 20


# --- Secrets -------------------------------------------------------------------------------------


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
        return salt + nonce + AESGCM(key).encrypt(nonce, plaintext, associated)

    def open_sealed(self, sealed: bytes, *, associated: bytes) -> bytes:
        """Undo :meth:`seal`; raises ``InvalidTag`` when the bytes or the secret do not match."""
        salt, nonce, ciphertext = sealed[:16], sealed[16:28], sealed[28:]
        key = HKDF(hashes.SHA256(), 32, salt, _encode(("rillet/1", "seal"))).derive(self._material)
        return AESGCM(key).decrypt(nonce, ciphertext, associated)


def random_name(size: int) -> str:
    """``size`` fresh bytes in hexadecimal, to tell things apart; no noise is made of them."""
    return secrets.token_hex(size)


# --- Keystream -----------------------------------------------------------------------------------


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


# --- Draws ---------------------------------------------------------------------------------------


def _check_scale(scale: object) -> float:
    number = isinstance(scale, (int, float, np.integer, np.floating))
    if not number or isinstance(scale, bool) or not 0.0 < scale <= LARGEST_SCALE:  # type: ignore[operator]
        raise ParameterError(
            "scale",
            "a noise scale between 0 and 2^38 lattice units",
            scale,
            hint="use a coarser grid, a shorter stream or a larger epsilon",
        )
    return float(scale)  # type: ignore[arg-type]


def decide(law: Law, scale: float, known: int, more: Iterator[int]) -> int:
    """Round ``scale·|Z|`` exactly for the uniform that starts with the 63 bits ``known``.

    ``more`` yields further 64-bit words of the same uniform.  At each precision the quantile is
    taken at both ends of the interval that the known bits leave; when both round to the same
    integer, so does everything between, because the quantile is monotone.
    """
    bits = 63
    for word in more:
        known = known << 64 | word
        bits += 64
        if known == 0:
            continue  # the interval still reaches 0, where the quantile is infinite
        with mpmath.workprec(bits + 128):
            unit = mpmath.ldexp(mpmath.mpf(1), -bits)
            nearest = law.quantile((known + 1) * unit) * scale
            farthest = law.quantile(known * unit) * scale
            margin = (farthest + scale + 1) * mpmath.ldexp(mpmath.mpf(1), -bits - 64)
            half = mpmath.mpf(1) / 2
            lowest = int(mpmath.floor(nearest - margin + half))
            highest = int(mpmath.floor(farthest + margin + half))
        if max(lowest, 0) == highest:
            return highest
    raise AssertionError("unreachable: the keystream does not end")


@dataclass(frozen=True)
class LatticeNoise:
    """Independent integer draws ``round(scale · Z)``, addressed by index.

    **Privacy.** Draws at different indices, or from different purposes or secrets, are
    independent (computationally); the same address always gives the same integer.

    Parameters
    ----------
    law
        The continuous law of scale 1.
    scale
        Scale in lattice units, at most 2^38.
    secret
        Where the keystream comes from.
    purpose
        Public name of what the noise is for.
    slack
        Factor on the error bound that decides when to refine; at least 1, and every value gives
        the same integers (tests use it).

    Examples
    --------
    >>> noise = LatticeNoise(LAPLACE, 100.0, Secret.for_tests(1), ("example",))
    >>> (noise.draw(5, 3) == noise.draw(0, 8)[5:]).all()
    np.True_
    """

    law: Law
    scale: float
    secret: Secret = field(repr=False)
    purpose: tuple[KeyPart, ...]
    slack: float = 1.0
    _words: Keystream = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", _check_scale(self.scale))
        if not 1.0 <= self.slack < float("inf"):  # less would lose exactness
            raise ParameterError("slack", "a finite factor of at least 1", self.slack)
        object.__setattr__(self, "_words", self.secret.keystream("noise", *self.purpose))

    @property
    def variance(self) -> float:
        """Variance of one draw, in lattice units squared."""
        return self.law.variance(self.scale)

    def draw(self, start: int, count: int) -> IntArray:
        """Draws ``start`` to ``start + count - 1``."""
        start = int(start)  # the arithmetic of addresses below must not wrap round at 64 bits
        drawn = np.empty(count, np.int64)
        for offset in range(0, count, CHUNK):
            block = drawn[offset : offset + CHUNK]
            words = self._words.words(start + offset, len(block))
            for place in self._round_words(words, block):
                index = start + offset + int(place)
                word = int(words[place])
                magnitude = decide(self.law, self.scale, word >> 1, self._extra_words(index))
                block[place] = -magnitude if word & 1 else magnitude
        return drawn

    def _round_words(self, words: NDArray[np.uint64], out: IntArray) -> NDArray[np.intp]:
        """Fill ``out`` where floats decide; return the places that must be refined.

        Bit 0 of a word is the sign; the other 63 bits are the leading bits of the uniform.
        """
        if not np.isfinite(self.law.log_slope):
            return np.arange(len(words))
        # Most draws are certain by a bound that holds for all common words; the others are made
        # again, and the bound of their own word decides: infinite or NaN, where u is 0.
        with np.errstate(divide="ignore", invalid="ignore"):
            common, smallest = self._common_limit, _SMALLEST_COMMON_UNIFORM
            places = round_words(words, self.law, self.scale, common, smallest, out)
            if not len(places):
                return places
            left = words[places]
            magnitude = scaled_quantile(left, self.law, self.scale)
            certain = self._certain(left >> np.uint64(1), magnitude)
        out[places[certain]] = with_sign(np.rint(magnitude), left)[certain]
        return places[~certain]

    def _certain(self, leading: NDArray[np.uint64], magnitude: FloatArray) -> NDArray[np.bool_]:
        """Whether every value that a draw can still take rounds to the same integer."""
        law, scale, slack = self.law, self.scale, self.slack
        # How far the unknown bits can move the result: 2·log_slope·scale/j, j = uniform·2^63.
        reach = np.divide(slack * scale * law.log_slope * 2.0**-62, uniform_of(leading))
        reach += magnitude * (slack * (2 * law.float_error + 2.0**-51))
        reach += np.abs(magnitude - np.rint(magnitude))
        certain: NDArray[np.bool_] = reach < self._limit
        certain &= leading >= np.uint64(SMALLEST_FAST_UNIFORM)
        return certain

    @cached_property
    def _limit(self) -> float:
        return 0.5 - self.slack * self.scale * (self.law.log_slope * 2.0**-51)

    @property
    def _common_limit(self) -> float:
        """A gap below this is below ``_limit`` with the reach of any common word added, twice."""
        return self._limit - 2 * _common_reach(self.law, self.scale, self.slack) - 2.0**-50

    @cached_property
    def _more(self) -> Keystream:
        """Further words, for the few draws that need them."""
        return self.secret.keystream("refine", *self.purpose)

    def _extra_words(self, index: int) -> Iterator[int]:
        first = index << _REFINE_SHIFT
        for number in range(1 << _REFINE_SHIFT):
            yield int(self._more.words(first + number, 1)[0])


@lru_cache(maxsize=64)
def _common_reach(law: Law, scale: float, slack: float) -> float:
    """How far the unknown bits of any common word can move a draw."""
    rarest = float(_SMALLEST_COMMON_UNIFORM) * 2.0**-63
    reach = slack * scale * law.log_slope * 2.0**-62 / rarest
    largest = scale * float(law.float_quantile(np.array([rarest]))[0])
    return reach + largest * (slack * (2 * law.float_error + 2.0**-51))


def continuous_draw(
    law: Law, secret: Secret, purpose: tuple[KeyPart, ...], index: int = 0, bits: int = 256
) -> mpmath.mpf:
    """One draw of ``Z`` in multiple precision, for scales that depend on data.

    **Privacy.** The result has more digits than may be published: whoever uses it must land on a
    public grid (see :mod:`rillet.threshold`), where the truncation of the uniform to ``bits`` bits
    changes the outcome with probability below ``2^(60 − bits)``.
    """
    word = secret.keystream("continuous", bits, *purpose).integer(index, bits)
    with mpmath.workprec(bits + 64):
        magnitude = law.quantile((2 * (word >> 1) + 1) * mpmath.ldexp(mpmath.mpf(1), -bits))
        return -magnitude if word & 1 else magnitude


def uniform_below(
    total: int, secret: Secret, purpose: tuple[KeyPart, ...], index: int = 0, bits: int = 512
) -> int:
    """A uniform integer from 0 to ``total − 1``, exactly, for totals that depend on data.

    **Privacy.** ``⌊U·total⌋`` for a uniform ``U`` whose bits are read until they decide, so nothing
    is truncated.  The first ``bits`` decide but for a chance of ``total·2^-bits``, whatever the
    total: neither time nor the number of words read tells anything about it.
    """
    if total < 1 or bits < 64 or bits % 64:
        raise ParameterError("total, bits", "at least 1, and a multiple of 64", (total, bits))
    words, first = secret.keystream("uniform", *purpose), index << _REFINE_SHIFT
    count = bits // 64
    known = int.from_bytes(words.words(first, count).astype(">u8").tobytes(), "big")
    for number in range(count, 1 << _REFINE_SHIFT):
        lowest = known * total >> 64 * number
        if lowest == (known + 1) * total - 1 >> 64 * number:  # all that U can still be
            return lowest
        known = known << 64 | int(words.words(first + number, 1)[0])
    raise AssertionError("unreachable: the keystream does not end")
