"""What sinks that write a file share: how it is made, and how it is checked before it exists."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from rillet.errors import OutputError
from rillet.sink.base import Position, Sink, lost, position_number

__all__ = ["FileSink", "failed", "lock_file", "open_file", "sync_folder"]

#: Public, so all may read it whom the umask and the folder let; only the owner may write it.
_MODE = 0o644


class FileSink(Sink):
    """A sink that writes the file ``options.path``.

    A file that does not exist is made with mode 0644, less what the umask takes away: readable,
    as releases are public, and writable by its owner alone. A symbolic link to a file is refused,
    since in a folder that others can write to it may point anywhere.
    """

    #: What a position counts, by its key.
    counts: ClassVar[tuple[str, str]]

    def __init__(self, options: Any, *, key_columns: Sequence[str] = ()) -> None:
        super().__init__(options, key_columns=key_columns)
        self.name = options.path
        self.path = Path(options.path)

    def identity(self, folder: Path | None = None) -> str:
        """Kind and path, as seen from this folder if the file is there."""
        if folder is None or not self.path.is_relative_to(folder):
            return super().identity()
        return f"{self.options.__struct_config__.tag}:{self.path.relative_to(folder)}"

    def check(self, position: Position | None = None) -> None:
        """As `Sink.check`: a file that does not exist needs a folder where it can be made."""
        if self.path.is_symlink() or self.path.is_dir() or _size(self.path):
            super().check(position)
            return
        key, unit = self.counts
        if expected := position_number(position, self.name, key):
            raise lost(self.name, f"{expected:,} {unit}", "none")
        folder = self.path.parent
        if not folder.is_dir():
            raise OutputError(
                f"{self.name}: expected a folder to write to, found no {folder}; make it"
            )
        target = self.path if self.path.exists() else folder
        if not os.access(target, os.W_OK):
            raise OutputError(
                f"{self.name}: expected permission to write to {target}, found none; change its "
                "mode or owner, or name another file"
            )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def open_file(path: str, flags: int) -> int:
    """Open or make a file for a sink, never through a symbolic link.

    A link to something that is no file, as ``/dev/stdout``, cannot lead astray and is followed.
    """
    try:
        return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)
    except OSError:
        if not Path(path).is_symlink():
            raise
    if Path(path).exists() and not Path(path).is_file():
        descriptor = os.open(path, flags & ~os.O_CREAT | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    raise OutputError(
        f"{path}: expected a file, found a symbolic link; name the file that it points to"
    )


def lock_file(descriptor: int, name: str) -> None:
    """Let nobody else write a file, or a folder, until it is closed."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OutputError(
            f"{name}: expected to be the only one who writes, found another process that does; "
            "stop it, or name another"
        ) from None


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk: that of a new file must survive too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def failed(name: str, error: OSError, what: str = "file") -> OutputError:
    """The error of a sink whose file gave this one."""
    reason = error.strerror or type(error).__name__
    return OutputError(f"{name}: expected a writable {what}, found: {reason}")
