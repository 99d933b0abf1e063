"""Folders of any file system that Spark knows, through the driver."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from rillet.errors import OutputError, ParameterError


class Folder:
    """One folder, which need not exist; names are those of what is in it."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = getattr(spark, "_jvm", None)
        if jvm is None:
            raise ParameterError("spark", "a session with a driver of its own", "Spark Connect")
        java: Any = spark._jsc
        self._path, self._root = jvm.org.apache.hadoop.fs.Path, path
        self._system = self._path(path).getFileSystem(java.hadoopConfiguration())
        self._content = jvm.org.apache.commons.io.IOUtils.toByteArray

    def names(self) -> list[str]:
        """What is in it, in order."""
        root = self._path(self._root)
        if not self._system.exists(root):
            return []
        return sorted(found.getPath().getName() for found in self._system.listStatus(root))

    def read(self, name: str) -> str | None:
        """The text of a file, None if there is none."""
        path = self._path(self._root, name)
        if not self._system.exists(path):
            return None
        stream = self._system.open(path)
        try:
            return bytes(self._content(stream)).decode("utf-8", "replace")
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """A new file, whole or not at all."""
        unfinished = f".{name}.new"
        stream = self._system.create(self._path(self._root, unfinished), True)
        stream.write(bytearray(text.encode()))
        stream.close()
        self.rename(unfinished, name)

    def rename(self, name: str, to: str) -> None:
        """Under a name that was free."""
        if not self._system.rename(self._path(self._root, name), self._path(self._root, to)):
            raise OutputError(
                f"{self._root}: expected to rename {name} to {to}, found that it cannot be; see "
                "whether another query writes there"
            )

    def delete(self, name: str) -> None:
        """A file, or a folder with all that is in it."""
        self._system.delete(self._path(self._root, name), True)
