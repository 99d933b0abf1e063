"""One Spark for the tests of a process, the streams that they read, and what they wrote."""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rillet import Secret
from rillet.release import FIELDS, NUMBERS, Releases

__all__ = ["Frames", "records", "saved", "sorted_records", "spark"]

#: On loopback, without a page, with as few partitions as there are cores.
QUIET = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    # A test is over before it would pay to compile it well.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    # On a busy machine a worker may need long to start.
    "spark.python.authenticate.socketTimeout": "120s",
}
#: So often a query is started whose first worker is too slow.
_ATTEMPTS = 10


def session(master: str, **settings: str) -> Any:
    """A session of Spark."""
    from pyspark.sql import SparkSession

    from rillet.spark import SETTINGS

    os.environ["PYSPARK_PYTHON"] = _python()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder: Any = SparkSession.builder
    for name, value in {**QUIET, **SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    made = builder.master(master).appName("rillet tests").getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    return made


def _python() -> str:
    """A Python for workers that takes PySpark from where it is installed.

    Spark has them take it from an archive first, which is compiled anew at each start: a second of
    a core, where ten are all that a worker has until it must answer.
    """
    path = Path(tempfile.mkdtemp(prefix="rillet-spark-")) / "python"
    own = shlex.quote(os.environ.get("PYTHONPATH", ""))
    path.write_text(f'#!/bin/sh\nPYTHONPATH={own} exec {shlex.quote(sys.executable)} "$@"\n')
    path.chmod(0o755)
    atexit.register(shutil.rmtree, path.parent, ignore_errors=True)
    return str(path)


def need_java() -> None:
    """Skip without Java."""
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java 17: no java on the PATH")


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The session that all tests of a process share."""
    need_java()
    made = session("local[2]")
    yield made
    made.stop()


class Frames:
    """A folder of Parquet files, each of which is a batch of a stream."""

    def __init__(self, folder: Path, schema: str) -> None:
        self.folder, self._schema, self._files = folder, schema, 0
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, **columns: Any) -> None:
        """One more batch."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._files += 1
        path = self.folder / f"{self._files:04d}.parquet"
        pq.write_table(pa.table(columns), path)
        os.utime(path, (1_700_000_000 + self._files, 1_700_000_000 + self._files))

    def stream(self, spark: Any) -> Any:
        """A file in each batch."""
        reader = spark.readStream.schema(self._schema).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.folder))


def run(releases: Any, write: Any, checkpoint: Path) -> None:
    """Run a query over all that is there.

    On a busy machine a worker may take longer to start than the ten seconds that Spark waits, which
    no setting changes: then the query is started again, as its operator would.
    """
    from pyspark.errors import StreamingQueryException

    writer = releases.writeStream.foreachBatch(write).trigger(availableNow=True)
    for attempt in range(_ATTEMPTS):
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if "failed to connect back" in str(error) and attempt < _ATTEMPTS - 1:
                continue
            raise
        return


def records(folder: Path) -> Any:
    """What a sink for Parquet wrote, sorted, without the time of release."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = sorted(folder.glob("batch=*/*.parquet"))
    return sorted_records(
        pa.concat_tables([pq.read_table(file, partitioning=None) for file in files])
    )


def sorted_records(found: Any) -> Any:
    """Releases or a table of records, as rows that can be compared bit for bit."""
    import pyarrow as pa

    table = found.to_arrow() if isinstance(found, Releases) else found
    key = table.column_names.index("key")
    table = table.set_column(key, "key", table["key"].cast(pa.string()))
    table = table.select([field.name for field in FIELDS if field.name != "at"])
    table = table.sort_by([("key", "ascending"), ("t", "ascending"), ("name", "ascending")])
    numbers = {
        name: np.nan_to_num(table[name].to_numpy(), nan=-1e300).view(np.int64).tolist()
        for name in NUMBERS
    }
    rest = [name for name in table.column_names if name not in NUMBERS]
    return {**{name: table[name].to_pylist() for name in rest}, **numbers}


def saved(folder: Path, secret: Secret, name: str = "secret") -> Path:
    """The secret in a file."""
    secret.save(folder / name)
    return folder / name


def joined(parts: Sequence[Releases]) -> Releases:
    """All releases of several calls."""
    return Releases.join([part for part in parts if len(part)])
