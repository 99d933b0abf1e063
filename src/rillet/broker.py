"""Where an MQTT broker is, and how to be let in; for the source and the sink alike.

**Privacy.** Touches no data. Passwords stay in their files until a client is made.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rillet.errors import InputError, OutputError, ParameterError
from rillet.extras import import_extra

__all__ = ["PROTOCOLS", "Broker", "check_protocol", "paho", "reason_of"]

#: The versions of the protocol.
PROTOCOLS = ("3.1.1", "5")

_PORT, _TLS_PORT = 1883, 8883
_ADDRESS = re.compile(r"(?:\[([^\]\s]+)\]|([^:\[\]\s]+))(?::(\d{1,5}))?")

StrPath = str | os.PathLike[str]


def paho() -> Any:
    """Return paho's client module, or raise `MissingExtra`."""
    return import_extra(
        "paho.mqtt.client", package="paho-mqtt", extra="mqtt", purpose="to speak MQTT"
    )


@dataclass(frozen=True)
class Broker:
    """Where a broker is and how to be let in; ``repr`` shows the former only.

    Examples
    --------
    >>> Broker.at("[::1]", InputError), Broker.at("broker.example", OutputError, tls=True)
    (Broker('[::1]:1883'), Broker('broker.example:8883'))
    """

    host: str
    port: int
    #: What to raise if a file cannot be read.
    error: type[InputError | OutputError]
    username: str | None = None
    password_file: str | None = None
    tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    @classmethod
    def at(
        cls,
        address: object,
        error: type[InputError | OutputError],
        *,
        username: str | None = None,
        password_file: StrPath | None = None,
        tls: bool = False,
        ca_file: StrPath | None = None,
        cert_file: StrPath | None = None,
        key_file: StrPath | None = None,
    ) -> Broker:
        """Take an address apart; a file of certificates implies TLS.

        Raises
        ------
        ParameterError
            If the address is invalid, or there is a password without a username.
        """
        password, *files = (
            None if file is None else os.fspath(file)
            for file in (password_file, ca_file, cert_file, key_file)
        )
        tls = tls or any(file is not None for file in files)
        match = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
        port = int(match[3] or (_TLS_PORT if tls else _PORT)) if match else 0
        if match is None or not 0 < port < 1 << 16:
            raise ParameterError(
                "address", 'a host and a port, as "localhost:1883" or "[::1]:1883"', address
            )
        if password is not None and username is None:
            raise ParameterError("username", "a name, since password_file is given", None)
        return cls(match[1] or match[2], port, error, username, password, tls, *files)

    def __repr__(self) -> str:
        return f"Broker({self.address!r})"

    @property
    def address(self) -> str:
        """Host and port in one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def client(self, client_id: str, protocol: str, **options: Any) -> Any:
        """Return a paho client that is not connected and logs nothing.

        Raises
        ------
        InputError or OutputError
            If the password or the certificates cannot be read.
        """
        mqtt = paho()
        client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=mqtt.MQTTv5 if protocol == "5" else mqtt.MQTTv311,
            **options,
        )
        if self.username is not None:
            password = self.password_file and _first_line(self.password_file, self.error)
            client.username_pw_set(self.username, password)
        if self.tls:
            try:
                client.tls_set(self.ca_file, self.cert_file, self.key_file)
            except (OSError, ValueError) as error:
                raise self.error(
                    f"{self.address}: expected certificates that can be read (ca_file, cert_file, "
                    f"key_file), found: {reason_of(error)}"
                ) from None
        return client


def check_protocol(protocol: object) -> str:
    """Return a version of the protocol, or raise `ParameterError`."""
    if protocol not in PROTOCOLS:
        raise ParameterError("protocol", f"one of {', '.join(PROTOCOLS)}", protocol)
    return str(protocol)


def reason_of(error: Exception) -> str:
    """Say in a few words what went wrong."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _first_line(path: str, error: type[InputError | OutputError]) -> str:
    try:
        line = Path(path).read_text(encoding="utf-8").partition("\n")[0]
        found = "" if line else "an empty one"
        if Path(path).stat().st_mode & 0o077:
            found = f"a file that others can read; type: chmod 600 {path}"
    except (OSError, UnicodeError) as reason:
        line, found = "", getattr(reason, "strerror", None) or "no text in UTF-8"
    if found:
        raise error(
            f"password_file: expected a password in the first line of {path}, found: {found}"
        )
    return line
