"""What sinks that write a file share: how it is made, and how it is checked before it exists."""

from __future__ import annotations

import fcntl
import grp
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from rillet.errors import OutputError, ParameterError
from rillet.sink.base import Position, Sink, SinkOptions, Text, lost, position_number

__all__ = ["FileOptions", "FileSink", "Readers", "failed", "lock_file", "open_file", "sync_folder"]

#: Public, so all may read it whom the umask and the folder let; only the owner may write it.
_MODE = 0o644


class Readers(NamedTuple):
    """Who may read what a run writes: ``"owner"``, ``"everyone"`` or the name of a group.

    Nobody else can, whatever the umask; only the owner can write.
    """

    mode: int
    group: int | None = None

    @classmethod
    def named(cls, name: str) -> Readers:
        """The readers of this name.

        Raises
        ------
        ParameterError
            If there is no such group, or files cannot be given to it.
        """
        if name in ("owner", "everyone"):
            return cls(0o600 if name == "owner" else 0o644)
        try:
            group = grp.getgrnam(name).gr_gid
        except KeyError:
            expected = "owner, everyone, or the name of a group"
            raise ParameterError("readers", expected, name) from None
        if os.geteuid() != 0 and group not in (os.getegid(), *os.getgroups()):
            raise ParameterError(
                "readers",
                "a group that this account belongs to",
                name,
                "an administrator can add it: usermod --append --groups GROUP ACCOUNT",
            )
        return cls(0o640, group)

    def give(self, target: int | Path, *, folder: int = 0) -> None:
        """Let them, and nobody else, read an open file, a path or a folder.

        Of a folder ``folder`` says what they may do: 5 to list what is in it, 1 to pass only.
        """
        mode = self.mode
        if folder:
            group, others = (folder if mode & bit else 0 for bit in (stat.S_IRGRP, stat.S_IROTH))
            mode = stat.S_IRWXU | group << 3 | others
        found = os.stat(target)  # noqa: PTH116 - or a descriptor
        if self.group is not None and found.st_gid != self.group:
            os.chown(target, -1, self.group)
        if stat.S_IMODE(found.st_mode) != mode:
            os.chmod(target, mode)  # noqa: PTH101


class FileOptions(SinkOptions, frozen=True):
    """What every sink that writes files has.

    Parameters
    ----------
    path : str
        The file, or the folder.
    readers : str, optional
        Who may read it, besides its owner: ``"owner"`` (nobody), ``"everyone"`` or the name of a
        group. By default those whom the umask lets.
    """

    path: Text
    readers: Text | None = None


class FileSink(Sink):
    """A sink that writes the file ``options.path``.

    A file that does not exist is made with mode 0644, less what the umask takes away: readable,
    as releases are public, and writable by its owner alone; or for the ``readers`` that are named,
    as :class:`Readers`. A symbolic link to a file is refused, since in a folder that others can
    write to it may point anywhere.
    """

    #: What a position counts, by its key.
    counts: ClassVar[tuple[str, str]]

    def __init__(self, options: Any, *, key_columns: Sequence[str] = ()) -> None:
        super().__init__(options, key_columns=key_columns)
        self.name = options.path
        self.path = Path(options.path)
        self.readers = None if options.readers is None else Readers.named(options.readers)

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


def open_file(path: str, flags: int, readers: Readers | None = None) -> int:
    """Open or make a file for a sink, never through a symbolic link.

    A link to something that is no file, as ``/dev/stdout``, cannot lead astray and is followed.
    """
    # For readers that are named it is closed to all until it is theirs.
    mode = _MODE if readers is None else 0o600
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    except OSError:
        if not Path(path).is_symlink():
            raise
    else:
        if readers is not None and stat.S_ISREG(os.fstat(descriptor).st_mode):
            try:
                readers.give(descriptor)
            except OSError:
                os.close(descriptor)
                raise
        return descriptor
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
