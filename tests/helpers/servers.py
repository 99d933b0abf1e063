"""The real servers that some tests talk to: mosquitto and PostgreSQL, from Debian's packages.

Each runs on loopback on a free port, keeps its data in a folder of its own, and is stopped by its
process id. A machine without them skips, which ``RILLET_STRICT=1`` turns into a failure.

The fixtures are session-scoped: one server for each process of the test run. A folder of tests
that uses them imports them into its ``conftest.py``; each file that does would start its own.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Broker", "Database", "broker", "database", "free_port", "mosquitto", "postgres"]

HOST = "127.0.0.1"
#: Seconds to wait for a server to start or to stop, on a busy machine.
_PATIENCE = 60.0
_ACCOUNT = "postgres"


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def _wait(
    what: str, ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path
) -> None:
    end = time.monotonic() + _PATIENCE
    while not ready():
        if process.poll() is not None:
            raise RuntimeError(f"{what} ended with {process.returncode}:\n{log.read_text()}")
        if time.monotonic() > end:
            raise RuntimeError(f"{what} did not start in {_PATIENCE} s:\n{log.read_text()}")
        time.sleep(0.02)


def _stop(process: subprocess.Popen[bytes] | None, how: signal.Signals) -> None:
    if process is None or process.poll() is not None:
        return
    process.send_signal(how)
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_PATIENCE)


def _program(name: str, *, folders: Sequence[str], package: str) -> str:
    path = os.pathsep.join([*folders, os.environ.get("PATH", "")])
    found = shutil.which(name, path=path)
    if found is None:
        pytest.skip(f"{name} is not installed; type: apt-get install {package}")
    return found


# --- mosquitto ---------------------------------------------------------------------------------


@dataclass
class Broker:
    """A mosquitto of our own: ``host``, ``port``, and what a test may do to it."""

    folder: Path
    port: int
    program: str
    config_lines: Sequence[str] = ()
    save_always: bool = False
    host: str = HOST
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def log(self) -> Path:
        """What the broker wrote."""
        return self.folder / "mosquitto.log"

    def start(self) -> None:
        """Start it on its port, with what it had kept."""
        lines = [
            f"listener {self.port} {self.host}",
            "allow_anonymous true",
            # As root it would change to an account that cannot write to the folder.
            *(["user root"] if os.geteuid() == 0 else []),
            "persistence true",
            f"persistence_location {self.folder}/",
            *(["autosave_on_changes true", "autosave_interval 1"] if self.save_always else []),
            "max_queued_messages 0",
            "set_tcp_nodelay true",
            *self.config_lines,
        ]
        config = self.folder / "mosquitto.conf"
        config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [self.program, "-c", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        _wait("mosquitto", self._answers, self.process, self.log)

    def stop(self) -> None:
        """Ask it to stop; it saves its sessions and messages."""
        _stop(self.process, signal.SIGTERM)

    def kill(self) -> None:
        """Kill it at once (SIGKILL)."""
        _stop(self.process, signal.SIGKILL)

    def restart(self) -> None:
        """Stop it and start it again on the same port."""
        self.stop()
        self.start()

    def has_saved(self, payload: bytes) -> bool:
        """Whether a message with this payload would survive a kill."""
        kept = self.folder / "mosquitto.db"
        return kept.exists() and payload in kept.read_bytes()

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), 1.0):
            return True
        return False


@contextlib.contextmanager
def mosquitto(
    folder: Path, *, config_lines: Sequence[str] = (), save_always: bool = False
) -> Iterator[Broker]:
    """A running mosquitto with its data in ``folder``.

    Parameters
    ----------
    folder : path
        Made if it does not exist; what it kept there before is there again.
    config_lines : sequence of str
        Further lines of its configuration.
    save_always : bool
        Save soon after each change, which is slow: once :meth:`Broker.has_saved` its payload, a
        message survives ``kill``. (mosquitto acknowledges before it saves.) Otherwise it saves
        when it is stopped.
    """
    program = _program("mosquitto", folders=["/usr/sbin", "/usr/local/sbin"], package="mosquitto")
    folder.mkdir(parents=True, exist_ok=True)
    server = Broker(folder, free_port(), program, tuple(config_lines), save_always)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One mosquitto for the session; tests keep apart by their topics and client names."""
    with mosquitto(tmp_path_factory.mktemp("mosquitto")) as server:
        yield server


# --- PostgreSQL --------------------------------------------------------------------------------


@dataclass
class Database:
    """A PostgreSQL of our own; whoever connects needs the password."""

    folder: Path
    port: int
    programs: Path
    user: str = "rillet"
    password: str = "drawer-with-a-key"
    host: str = HOST
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def dsn(self, database: str = "postgres", *, password: bool = True) -> str:
        """How to connect."""
        words = f"host={self.host} port={self.port} user={self.user} dbname={database}"
        return f"{words} password={self.password}" if password else words

    @property
    def log(self) -> Path:
        """What the server wrote."""
        return self.folder / "postgres.log"

    @property
    def data(self) -> Path:
        """The cluster."""
        return self.folder / "data"

    def initialise(self) -> None:
        """Make the cluster."""
        secret = self.folder / "password"
        secret.write_text(self.password + "\n", encoding="utf-8")
        with self.log.open("ab") as log:
            done = subprocess.run(
                [
                    self.programs / "initdb",
                    f"--pgdata={self.data}",
                    f"--username={self.user}",
                    f"--pwfile={secret}",
                    "--auth=scram-sha-256",
                    "--encoding=UTF8",
                    "--locale=C",
                    "--no-sync",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                timeout=_PATIENCE,
                check=False,
                **_as_account(),
            )
        if done.returncode:
            raise RuntimeError(f"initdb ended with {done.returncode}:\n{self.log.read_text()}")

    def start(self) -> None:
        """Start it on its port."""
        settings = {
            "listen_addresses": self.host,
            "port": self.port,
            "unix_socket_directories": "",
            "max_connections": 40,
            "shared_buffers": "16MB",
            "fsync": "off",  # a crash of the machine is not what is tested
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [self.programs / "postgres", "-D", self.data, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                **_as_account(),
            )
        _wait("postgres", self._answers, self.process, self.log)

    def stop(self) -> None:
        """Stop it, ending every connection."""
        _stop(self.process, signal.SIGINT)

    def restart(self) -> None:
        """Stop it and start it again on the same port."""
        self.stop()
        self.start()

    def _answers(self) -> bool:
        done = subprocess.run(
            [self.programs / "pg_isready", "-q", "-h", self.host, "-p", str(self.port)],
            stdin=subprocess.DEVNULL,
            timeout=_PATIENCE,
            check=False,
        )
        return done.returncode == 0


def _as_account() -> dict[str, Any]:
    """PostgreSQL refuses to run as root: use the account that came with its package."""
    if os.geteuid() != 0:
        return {}
    entry = pwd.getpwnam(_ACCOUNT)
    environment = {**os.environ, "HOME": "/nonexistent"}
    return {
        "user": entry.pw_uid,
        "group": entry.pw_gid,
        "extra_groups": [],
        "env": environment,
    }


def _postgres_programs() -> Path:
    versions = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if not versions:
        program = _program("initdb", folders=[], package="postgresql")
        versions = [Path(program).parent]
    if os.geteuid() == 0:
        try:
            pwd.getpwnam(_ACCOUNT)
        except KeyError:
            pytest.skip(f"PostgreSQL does not run as root, and there is no account {_ACCOUNT}")
    return max(versions, key=lambda path: (len(path.parent.name), path.parent.name))


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[Database]:
    """A running PostgreSQL with its cluster in ``folder``, which its account must be able to enter.

    The folders of pytest's ``tmp_path`` are closed to other accounts: take one made by
    ``tempfile.mkdtemp`` instead, as the fixture does.
    """
    programs = _postgres_programs()
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        os.chown(folder, pwd.getpwnam(_ACCOUNT).pw_uid, -1)
    server = Database(folder, free_port(), programs)
    try:
        server.initialise()
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def database() -> Iterator[Database]:
    """One PostgreSQL for the session; tests keep apart by the names of their tables."""
    _postgres_programs()  # skips before anything is made
    with (
        tempfile.TemporaryDirectory(prefix="rillet-postgres-") as name,
        postgres(Path(name)) as server,
    ):
        yield server
