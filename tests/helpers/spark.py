"""One Spark for the tests of a process, the streams that they read, and what they wrote.

Also a standalone cluster on loopback, whose parts are stopped by their process ids.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from helpers.servers import free_port
from rillet import Plan, Secret
from rillet.release import FIELDS, NUMBERS, Releases

__all__ = ["Cluster", "Frames", "cluster", "records", "saved", "sorted_records", "spark"]

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
    # What the state keeps, in a form that tests can look into.
    "spark.sql.streaming.stateStore.compression.codec": "zstd",
    # On a busy machine a worker may need long to start.
    "spark.python.authenticate.socketTimeout": "120s",
}
#: So often a query is started whose first worker is too slow.
_ATTEMPTS = 10


def session(master: str, **settings: str) -> Any:
    """A session of Spark."""
    from pyspark.sql import SparkSession

    from rillet.spark import SETTINGS

    os.environ["PYSPARK_PYTHON"] = worker_python()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder: Any = SparkSession.builder
    for name, value in {**QUIET, **SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    made = builder.master(master).appName("rillet tests").getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    return made


def events_in(folder: Path) -> dict[str, str]:
    """Settings that have all that the user interface knows written to a folder."""
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": folder.as_uri(),
    }


def worker_python() -> str:
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
    with tempfile.TemporaryDirectory(prefix="rillet-spark-events-") as folder:
        made = session("local[2]", **events_in(Path(folder)))
        yield made
        made.stop()


class Frames:
    """A folder of Parquet files, each of which is a batch of a stream."""

    def __init__(self, folder: Path, schema: str) -> None:
        self.folder, self._schema, self._files = folder, schema, 0
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, **columns: Any) -> None:
        """One more batch."""
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


def records(folder: Path) -> pa.Table:
    """What a sink for Parquet wrote, as :func:`sorted_records`."""
    files = sorted(folder.glob("batch=*/*.parquet"))
    return sorted_records(
        pa.concat_tables([_whole(pq.read_table(file, partitioning=None)) for file in files])
    )


def _whole(table: pa.Table) -> pa.Table:
    """With the fields that the schema of a file has: read without Spark."""
    fields = json.loads(table.schema.metadata[b"org.apache.spark.sql.parquet.row.metadata"])
    (value,) = (field for field in fields["fields"] if field["name"] == "value")
    known = json.loads(value["metadata"].get("rillet", '{"same": {}, "synonyms": {}}'))
    for name, other in known["synonyms"].items():
        table = table.append_column(name, table[other])
    for name, same in known["same"].items():
        kind = pa.list_(pa.string()) if isinstance(same, list) else None
        if name in NUMBERS:
            kind = pa.float64()
        table = table.append_column(name, pa.array([same] * len(table), kind))
    return table


def sorted_records(found: Releases | pa.Table) -> pa.Table:
    """Records without the time of release, sorted, with numbers as their bits."""
    table = found.to_arrow() if isinstance(found, Releases) else found
    columns = {}
    for field in FIELDS:
        if field.name not in table.column_names:
            continue
        column = table[field.name]
        if field.name in NUMBERS:
            bits = np.where(column.is_null(), np.nan, column.to_numpy()).view(np.int64)
            columns[field.name] = pa.array(bits)
        elif field.kind == "texts":
            columns[field.name] = column.cast(pa.list_(pa.string()))
        elif field.kind != "time":
            columns[field.name] = column.cast(pa.int64() if field.kind == "integer" else "string")
    order = [(name, "ascending") for name in ("key", "t", "name") if name in columns]
    return pa.table(columns).sort_by(order).combine_chunks()


def last_t(folder: Path) -> int:
    """How far a folder is."""
    return int(pc.max(records(folder)["t"]).as_py())


def saved(folder: Path, secret: Secret, name: str = "secret") -> Path:
    """The secret in a file."""
    secret.save(folder / name)
    return folder / name


def planned(folder: Path, plan: Plan) -> str:
    """The plan in a file, as workers find it."""
    path = folder / f"plan {plan.layout.digest.hex()} {len(plan.keys)}"
    path.write_text(plan.to_json(), encoding="utf-8")
    return str(path)


def joined(parts: Sequence[Releases]) -> Releases:
    """All releases of several calls."""
    return Releases.join([part for part in parts if len(part)])


# --- a standalone cluster ------------------------------------------------------------------------

#: Seconds until a part of a cluster has started, or a query has ended, on a busy machine.
PATIENCE = 240.0
#: Two tasks at a time, one on each worker.
ON_CLUSTER = {"spark.executor.memory": "900m", "spark.executor.cores": "1"}


def end(process: subprocess.Popen[bytes]) -> None:
    """As kill -9, with all processes of its group."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(PATIENCE)


class Cluster:
    """A master, and workers of one core each, each in a process group of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.workers, self._started = folder, [], 0
        port = free_port()
        self.master = f"spark://127.0.0.1:{port}"
        self._master = self._java("master", "master.Master", "--port", str(port))
        try:
            self._wait("master", self._master, "I have been elected leader")
            self.add_worker()
            self.add_worker()
        except BaseException:
            self.stop()
            raise

    def _java(self, name: str, what: str, *arguments: str) -> subprocess.Popen[bytes]:
        import pyspark

        home = Path(pyspark.__file__).parent
        (self.folder / name).mkdir(parents=True)
        with (self.folder / name / "log").open("ab") as log:
            return subprocess.Popen(
                [
                    *(home / "bin" / "spark-class", f"org.apache.spark.deploy.{what}"),
                    *("--host", "127.0.0.1", "--webui-port", "0", *arguments),
                ],
                env={
                    **os.environ,
                    "SPARK_HOME": str(home),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_DAEMON_MEMORY": "256m",
                },
                cwd=self.folder / name,
                start_new_session=True,
                stdout=log,
                stderr=log,
            )

    def _wait(self, name: str, process: subprocess.Popen[bytes], words: str) -> None:
        log, until = self.folder / name / "log", time.monotonic() + PATIENCE
        while words not in log.read_text(errors="replace"):
            assert process.poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.1)

    def add_worker(self) -> None:
        """One more."""
        self._started += 1
        name = f"worker{self._started}"
        folder = str(self.folder / name)
        size = ("--cores", "1", "--memory", "1g", "--work-dir", folder)
        process = self._java(name, "worker.Worker", *size, self.master)
        self.workers.append(process)
        self._wait(name, process, "Successfully registered with master")

    def kill_worker(self) -> None:
        """The oldest one, with what it runs."""
        end(self.workers.pop(0))

    def stop(self) -> None:
        """All of it."""
        for process in (*self.workers, self._master):
            end(process)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster that all tests of a process share."""
    need_java()
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield made
    finally:
        made.stop()


# --- what must be nowhere ------------------------------------------------------------------------


def files_with(folder: Path, words: Sequence[bytes]) -> list[Path]:
    """Files in a folder that have one of these words in them, also where they are compressed."""
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        contents = [path.read_bytes()]
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as packed:
                contents += [packed.read(name) for name in packed.namelist()]
        with contextlib.suppress(OSError):
            contents.append(pa.input_stream(str(path), compression="zstd").read())
        if any(word in content for word in words for content in contents):
            found.append(path)
    return found


def spellings(secret: Secret) -> list[bytes]:
    """A secret, however it might be written down."""
    own = secret._material
    return [own, own.hex().encode(), own.hex().upper().encode(), base64.b64encode(own)[:-1]]
