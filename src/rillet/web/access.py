"""Who may ask, how often and how much: tokens, limits, headers.

**Privacy.** Tokens are compared by their hashes, in constant time; nothing that a client sent is
repeated in an answer or a log.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import os
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from rillet.errors import InputError, MissingExtra, OutputError, ParameterError

try:
    from starlette.responses import JSONResponse
except ImportError:
    raise MissingExtra("starlette and uvicorn", "web", "to serve by HTTP") from None

__all__ = ["Guard", "Role", "Tokens", "problem"]

Role: TypeAlias = Literal["read", "write"]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

ROLES: Final[tuple[Role, ...]] = ("read", "write")

#: Nothing from elsewhere, no inline script or style, no frame around it.
_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
#: Clients whose pace is remembered at a time.
_MOST_CLIENTS: Final = 10_000


class Tokens:
    """Hashes of the tokens that may read or write; without any of a role, everybody may.

    A token has 256 random bits, so that a plain hash of it cannot be undone by trying.

    Examples
    --------
    >>> tokens = Tokens({"read": {Tokens.hashed("a long random text")}})
    >>> tokens.allow("Bearer a long random text", "read"), tokens.allow("Bearer no", "read")
    (True, False)
    >>> tokens.allow(None, "write")
    True
    """

    def __init__(self, hashes: Mapping[Role, set[str]] | None = None) -> None:
        self._hashes = {role: frozenset((hashes or {}).get(role, ())) for role in ROLES}

    def __repr__(self) -> str:
        return f"Tokens({', '.join(f'{len(self._hashes[role])} to {role}' for role in ROLES)})"

    @staticmethod
    def hashed(token: str) -> str:
        """The hash that is kept in place of a token."""
        return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokens:
        """Read the file that :meth:`add` writes: a role and a hash to a line."""
        hashes: dict[Role, set[str]] = {role: set() for role in ROLES}
        try:
            for line in Path(path).read_text(encoding="ascii").splitlines():
                role, hashed = line.split()
                if role not in hashes or len(hashed) != 64:
                    raise ValueError
                hashes[role].add(hashed)
        except OSError as error:
            raise InputError(
                f"{path}: expected a file of tokens, found: {error.strerror}"
            ) from None
        except ValueError:
            raise InputError(
                f"{path}: expected a role (read or write) and a hash on each line, found something "
                "else; make tokens with `rillet serve --new-token`"
            ) from None
        return cls(hashes)

    @classmethod
    def add(cls, path: str | os.PathLike[str], role: Role, token: str) -> None:
        """Add a token's hash to a file, made for its owner alone if it does not exist."""
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            with os.fdopen(os.open(path, flags, 0o600), "a", encoding="ascii") as stream:
                stream.write(f"{role} {cls.hashed(token)}\n")
        except OSError as error:
            raise OutputError(
                f"{path}: expected a writable file, found: {error.strerror}"
            ) from None

    def needs(self, role: Role) -> bool:
        """Whether a token is needed for this."""
        return bool(self._hashes[role])

    def allow(self, authorization: str | None, role: Role) -> bool:
        """Whether a header ``Bearer …`` may do this; takes as long whatever it has."""
        if not self._hashes[role]:
            return True
        kind, _, token = (authorization or "").partition(" ")
        found = self.hashed(token.strip())
        matches = [hmac.compare_digest(found, known) for known in self._hashes[role]]
        return any(matches) and kind.lower() == "bearer"


class Guard:
    """An ASGI layer around an app: names of this host, pace, sizes, tokens, security headers.

    Parameters
    ----------
    app : ASGI app
        What is guarded.
    role_of : callable
        What a method and a path need: a role, or None where everybody may.
    tokens : Tokens
        Who has which role.
    rate : float
        Requests a second that one client may send, ten seconds' worth at once; 0: no limit.
    most_bytes : int
        The largest body.
    hosts : tuple of str
        Names of this server besides ``localhost`` and addresses: a page of another site that
        lets its own name point here is refused.
    """

    def __init__(
        self,
        app: App,
        *,
        role_of: Callable[[str, str], Role | None],
        tokens: Tokens,
        rate: float = 50.0,
        most_bytes: int = 2**16,
        hosts: tuple[str, ...] = (),
    ) -> None:
        if rate < 0:
            raise ParameterError("rate", "a number of at least 0", rate)
        self._app, self._role_of, self._tokens = app, role_of, tokens
        self._rate, self._most_bytes, self._hosts = rate, most_bytes, hosts
        self._pace: dict[str, tuple[float, float]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def guarded_send(message: MutableMapping[str, Any]) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                present = {name for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *(
                        (name.encode(), value.encode())
                        for name, value in _HEADERS.items()
                        if name.encode() not in present
                    ),
                ]
            await send(message)

        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            if b"expect" not in headers:  # else nothing is sent before we ask for it
                await _drain(receive)
            await refusal(scope, receive, guarded_send)
            return
        taken = 0

        async def counted_receive() -> MutableMapping[str, Any]:
            nonlocal taken
            message = await receive()
            if message["type"] == "http.request":
                taken += len(message.get("body", b""))
                if taken > self._most_bytes:
                    raise _TooLarge
            return message

        try:
            await self._app(scope, counted_receive, guarded_send)
        except _TooLarge:
            if not begun:
                await _drain(receive)
                await self._too_large()(scope, receive, guarded_send)

    def _refusal(self, scope: Scope, headers: Mapping[bytes, str]) -> JSONResponse | None:
        if not self._is_own_name(headers.get(b"host", "")):
            return problem(421, "expected a name of this server in the header Host, found another")
        client = (scope.get("client") or ("", 0))[0]
        if self._rate and not self._in_pace(client):
            return problem(
                429, f"expected at most {self._rate:g} requests a second", {"retry-after": "1"}
            )
        length = headers.get(b"content-length", "0")
        if not length.isdecimal() or int(length) > self._most_bytes:
            return self._too_large()
        role = self._role_of(scope["method"], scope["path"])
        if role is not None and not self._tokens.allow(headers.get(b"authorization"), role):
            return problem(
                401,
                f"expected a token that may {role}, found none or another",
                {"www-authenticate": "Bearer"},
            )
        return None

    def _too_large(self) -> JSONResponse:
        return problem(413, f"expected at most {self._most_bytes:,} bytes", {"connection": "close"})

    def _is_own_name(self, host: str) -> bool:
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        name = name.strip("[]").lower()
        if name == "localhost" or name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _in_pace(self, client: str) -> bool:
        """A bucket of ten seconds' worth of requests, filled at the rate."""
        now = time.monotonic()
        left, then = self._pace.get(client, (10 * self._rate, now))
        left = min(10 * self._rate, left + (now - then) * self._rate)
        if len(self._pace) > _MOST_CLIENTS:
            self._pace.clear()
        self._pace[client] = (max(left - 1, 0.0), now)
        return left >= 1


#: Bytes of a refused body that are read, and for how many seconds at most.
_DRAINED, _DRAIN_SECONDS = 2**20, 1.0


async def _drain(receive: Receive) -> None:
    """Read what is still being sent, so that its sender can read the answer.

    A connection that is closed before all of it was read is reset, and the answer with it.
    """
    left = _DRAINED
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if not message.get("more_body", False):
                    return


class _TooLarge(Exception):
    pass


def problem(status: int, text: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The answer to what is wrong: JSON with one sentence, which repeats nothing that was sent."""
    return JSONResponse({"error": text}, status, headers)
