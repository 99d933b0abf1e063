"""Where an MQTT broker is, and how to be let in.

**Privacy.** Touches no data. Passwords come from files and appear in no message or ``repr``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rillet.errors import InputError, ParameterError
from rillet.extras import import_extra

__all__ = ["PATIENCE", "Broker", "host_and_port", "paho", "password_of", "reason_of"]

#: Seconds to wait for the broker's answer to a request.
PATIENCE = 5.0


def paho() -> Any:
    """Return paho's client module, or raise `MissingExtra`."""
    return import_extra(
        "paho.mqtt.client", package="paho-mqtt", extra="mqtt", purpose="to read from MQTT"
    )


@dataclass(frozen=True)
class Broker:
    """Where a broker is and how to be let in; ``repr`` shows the former only."""

    host: str
    port: int
    username: str | None = None
    password: str | None = None
    tls: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def __repr__(self) -> str:
        return f"Broker({self.address!r})"

    @property
    def address(self) -> str:
        """Host and port in one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def client(self, client_id: str, protocol: str, *, persistent: bool) -> Any:
        """Return a paho client that is not connected and logs nothing.

        Raises
        ------
        InputError
            If the certificates cannot be read.
        """
        mqtt = paho()
        options: dict[str, Any] = (
            {"protocol": mqtt.MQTTv5}
            if protocol == "5"
            else {"protocol": mqtt.MQTTv311, "clean_session": not persistent}
        )
        client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2,
            client_id=client_id,
            manual_ack=True,
            reconnect_on_failure=False,
            **options,
        )
        client.connect_timeout = PATIENCE
        if self.username is not None:
            client.username_pw_set(self.username, self.password)
        if self.tls:
            try:
                client.tls_set(self.ca_file, self.cert_file, self.key_file)
            except (OSError, ValueError) as error:
                raise InputError(
                    f"{self.address}: expected certificates that can be read (ca_file, cert_file, "
                    f"key_file), found: {reason_of(error)}"
                ) from None
        return client


def reason_of(error: Exception) -> str:
    """Say in a few words what went wrong."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def host_and_port(address: object, port: int) -> tuple[str, int]:
    """Take an address apart; ``port`` is for one that names none.

    Examples
    --------
    >>> host_and_port("broker.example:8883", 1883), host_and_port("[::1]", 1883)
    (('broker.example', 8883), ('::1', 1883))
    """
    expected = 'an address such as "localhost:1883"'
    if not isinstance(address, str):
        raise ParameterError("address", expected, address)
    host, colon, text = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, text = address, str(port)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ParameterError("address", 'an address such as "[::1]:1883"', address)
    if not host or not text.isdecimal() or not 0 < int(text) < 1 << 16:
        raise ParameterError("address", expected, address)
    return host, int(text)


def password_of(path: str | os.PathLike[str] | None) -> str | None:
    """Return the first line of a file.

    Raises
    ------
    InputError
        If it cannot be read.
    """
    if path is None:
        return None
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no text in UTF-8"
        raise InputError(
            f"{os.fspath(path)}: expected a readable password_file, found: {reason}"
        ) from None
    return text.split("\n", 1)[0].rstrip("\r")
