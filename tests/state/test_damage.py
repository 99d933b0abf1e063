"""A state that is damaged, foreign, or on a bad disk: a clear error, no release, nothing changed.

Every case starts from a copy of one durable run that stopped half-way, and ends with the real
command: it either refuses, or publishes exactly what the undamaged run would have.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import sqlite3
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from rillet import Plan, Secret
from rillet.engine.job import Job
from rillet.errors import OutputError
from rillet.sink.json_lines import JsonLinesSink
from rillet.state import folder
from rillet.state.store import APPLICATION, VERSION
from state.runs import KEYS, Run, prepared, rows_of

ROWS = rows_of(200)
HALF = 112


@pytest.fixture(scope="module")
def half_way(tmp_path_factory):
    """A run that stopped cleanly half-way; its input has grown since."""
    run = prepared(tmp_path_factory.mktemp("half") / "run")
    run.give(ROWS[:HALF])
    ended = run.go()
    assert ended.code == 0, ended.said
    run.give(ROWS)
    return run


@pytest.fixture(scope="module")
def waiting(half_way, tmp_path_factory):
    """The same, with releases in the outbox that no sink would take."""
    run = half_way.copy(tmp_path_factory.mktemp("waiting") / "run")

    def refuse(self, table):
        raise OutputError("this sink is out of order")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JsonLinesSink, "deliver", refuse)
        assert run.go().code == 5
    with contextlib.closing(sqlite3.connect(run.database)) as connection:
        assert connection.execute("SELECT count(*) FROM outbox").fetchone()[0] >= 2
    return run


@pytest.fixture(scope="module")
def expected(half_way, tmp_path_factory):
    """What is published when nothing happens."""
    run = half_way.copy(tmp_path_factory.mktemp("undisturbed") / "run")
    ended = run.go()
    assert ended.code == 0, ended.said
    published = run.published()
    assert published[0].count(b"\n") == len(published[1]) > 100
    return published


@pytest.fixture
def run(half_way, tmp_path):
    return half_way.copy(tmp_path / "run")


def refused(run: Run, *words: str, code: int = 4, more: tuple[str, ...] = ()) -> str:
    """The command refuses in one line that has these words, and leaves all files as they are."""
    files = run.files()
    ended = run.go(*more)
    assert ended.code == code, ended.said
    last = ended.said.splitlines()[-1]
    assert last.startswith("rillet: ")
    for word in words:
        assert word in last, last
    assert "Traceback" not in ended.said
    assert "unforeseen" not in ended.said
    assert "delivering" not in ended.said
    assert run.files() == files
    return last


# --- Damaged bytes -------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.0004, 0.002, 0.1, 0.3, 0.5, 0.8, 0.9])
def test_truncated_state_is_refused(run, share):
    content = run.database.read_bytes()
    run.database.write_bytes(content[: int(len(content) * share)])
    refused(run, "state.db", "damaged", "Restore state and key from the same backup")


def test_truncated_within_its_last_page(half_way, expected, tmp_path):
    """Where that page is not in use, only zeros are gone."""
    content = half_way.database.read_bytes()
    for lost in (1, 100, 2000, 4095):
        run = half_way.copy(tmp_path / str(lost))
        run.database.write_bytes(content[:-lost])
        if content[-lost:].strip(b"\0"):
            refused(run, "state.db")
        else:
            assert run.go().code == 0
            assert run.published() == expected


def test_truncated_by_whole_pages(run):
    content = run.database.read_bytes()
    for pages in range(1, len(content) // 4096):
        run.database.write_bytes(content[: 4096 * pages])
        refused(run, "state.db", "damaged")


def flipped(original: Run, folder, positions, expected) -> Counter[str]:
    """Flip one bit at each position; count how the runs end."""
    counts: Counter[str] = Counter()
    content = original.database.read_bytes()
    random = np.random.default_rng(5)
    for position in positions:
        run = original.copy(folder / "flipped")
        damaged = bytearray(content)
        damaged[position] ^= 1 << int(random.integers(8))
        run.database.write_bytes(damaged)
        files, published = run.files(), run.published()
        ended = run.go()
        where = f"byte {position}: {ended.said}"
        if ended.code == 0:
            assert run.published() == expected, where
            counts["harmless"] += 1
        else:
            assert ended.code == 4, where
            assert "Traceback" not in ended.said, where
            assert run.published() == published, where
            assert run.files() == files, where
            counts["refused"] += 1
        shutil.rmtree(run.folder)
    return counts


def test_flipped_bits_are_noticed_or_harmless(half_way, expected, tmp_path):
    content = np.frombuffer(half_way.database.read_bytes(), np.uint8)
    used = np.flatnonzero(content)
    random = np.random.default_rng(3)
    counts = flipped(half_way, tmp_path, random.choice(used, 90, replace=False), expected)
    # What SQLite does not use any more (delivered releases), and numbers that it does not need.
    assert counts["refused"] >= 65, counts


def test_flipped_bits_of_the_header_are_noticed_or_harmless(half_way, expected, tmp_path):
    flipped(half_way, tmp_path, range(0, 100, 3), expected)


def test_flipped_bits_with_releases_waiting(waiting, expected, tmp_path):
    """The outbox, and what sinks have acknowledged: a release must not be lost, nor come twice."""
    with contextlib.closing(sqlite3.connect(waiting.database)) as connection:
        roots = dict(connection.execute("SELECT name, rootpage FROM sqlite_schema"))
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    content = np.frombuffer(waiting.database.read_bytes(), np.uint8)
    for table in ("sinks", "outbox", "facts"):
        start = size * (roots[table] - 1)
        used = start + np.flatnonzero(content[start : start + size])
        positions = np.random.default_rng(4).choice(used, 25, replace=False)
        counts = flipped(waiting, tmp_path, positions, expected)
        assert counts["refused"] >= 15, (table, counts)


def test_damage_to_one_key_stops_before_anything_of_its_block(run):
    """States are opened when they are needed; what was damaged releases nothing."""
    with contextlib.closing(sqlite3.connect(run.database)) as connection:
        (sealed,) = connection.execute("SELECT sealed FROM streams WHERE key_index = 1").fetchone()
        damaged = bytes([sealed[0] ^ 1]) + sealed[1:]
        with connection:
            connection.execute("UPDATE streams SET sealed = ? WHERE key_index = 1", (damaged,))
    refused(run, "damaged")


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM progress",
        "DELETE FROM sinks",
        "DELETE FROM streams WHERE key_index = 1",
        "DELETE FROM facts WHERE name = 'identity'",
        "DELETE FROM facts WHERE name = 'mechanism'",
        "DROP TABLE learning",
        "UPDATE progress SET sealed = 7",
        "UPDATE progress SET sealed = 'text'",
        "UPDATE streams SET sealed = x'00'",
        # The contents of two rows changed places: each opens at its own place only.
        "UPDATE streams SET sealed = (SELECT s.sealed FROM streams AS s WHERE s.key_index = 0)",
        "UPDATE progress SET sealed = (SELECT sealed FROM sinks)",
    ],
)
def test_rows_that_are_missing_or_moved_are_refused(run, statement):
    with contextlib.closing(sqlite3.connect(run.database)) as connection, connection:
        connection.execute(statement)
    refused(run, "state.db")


@pytest.mark.parametrize("which", ["min(batch)", "max(batch)"])
@pytest.mark.parametrize("what", ["DELETE FROM outbox", "UPDATE outbox SET batch = 0"])
def test_releases_that_are_missing_from_the_outbox_are_noticed(waiting, tmp_path, what, which):
    """They would never be delivered, and nobody would know."""
    run = waiting.copy(tmp_path / "run")
    with contextlib.closing(sqlite3.connect(run.database)) as connection, connection:
        connection.execute(f"{what} WHERE batch = (SELECT {which} FROM outbox)")
    refused(run, "put back, taken away or added")


# --- The log of a killed process -----------------------------------------------------------------


@pytest.fixture(scope="module")
def killed(half_way, tmp_path_factory):
    """What lies on the disk of a process that is killed when it has done its work."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    run = half_way.copy(tmp_path_factory.mktemp("to be killed") / "run")
    work = Job.run

    def run_and_copy(self, blocks):
        work(self, blocks)
        run.copy(folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Job, "run", run_and_copy)
        assert run.go().code == 0
    assert (folder / "live" / "state.db-wal").stat().st_size > 50_000
    return Run(folder)


def test_log_of_a_killed_process_is_taken_up(killed, expected, tmp_path):
    run = killed.copy(tmp_path / "run")
    assert run.go().code == 0
    assert run.published() == expected


def test_torn_log_goes_back_to_a_commit_and_on_from_there(killed, expected, tmp_path):
    """Cut the write-ahead log anywhere: SQLite takes what is whole, and the rest is done again.

    The sinks are ahead of such a state. Before the first commit of the last opening is whole, the
    state is that of the opening before: it is noticed, and goes on when it is told to.
    """
    size = (killed.live / "state.db-wal").stat().st_size
    frame = 4096 + 24
    lengths = [0, 31, 32, 33, *np.linspace(32, size, 9).astype(int).tolist(), size - 1]
    lengths += [32 + frame * count + at for count in (1, 5, 9) for at in (0, 12, 24, 4000)]
    ways: Counter[str] = Counter()
    lengths = sorted(set(lengths))
    for length in lengths:
        run = killed.copy(tmp_path / f"cut at {length}")
        os.truncate(run.live / "state.db-wal", length)
        ended = run.go()
        if ended.code == 4:
            assert "copied or restored" in ended.said, ended.said
            ways["behind"] += 1
            ended = run.go("--restored")
        assert ended.code == 0, f"cut at {length}: {ended.said}"
        assert run.published() == expected, f"cut at {length}"
        ways["went on"] += 1
    assert ways["went on"] == len(lengths)
    assert 0 < ways["behind"] < len(lengths) / 2


def test_flipped_bits_of_the_log_end_it_there(killed, expected, tmp_path):
    """Each frame has a check sum: from a damaged one on, the log counts as not written."""
    log = (killed.live / "state.db-wal").read_bytes()
    for position in np.random.default_rng(1).integers(len(log), size=12).tolist():
        run = killed.copy(tmp_path / f"flipped at {position}")
        damaged = bytearray(log)
        damaged[position] ^= 4
        (run.live / "state.db-wal").write_bytes(damaged)
        ended = run.go("--restored")
        assert ended.code == 0, ended.said
        assert run.published() == expected, f"flipped at {position}"


def test_a_real_kill_and_a_torn_log(run, expected):
    """The same with a process that is really killed, in the middle of the next transaction."""
    process = run.spawn(
        code="import logging, os, signal, time\n"
        "seen = []\n"
        "class Kill(logging.Handler):\n"
        "    def emit(self, record):\n"
        "        seen.append(record.getMessage())\n"
        "        if seen.count('committing') == 4:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "logging.getLogger('rillet').addHandler(Kill())\n"
    )
    process.communicate(timeout=60)
    assert process.returncode == -9
    log = run.live / "state.db-wal"
    assert log.stat().st_size > 4096
    with log.open("ab") as stream:
        stream.write(os.urandom(5000))
    assert run.go().code == 0
    assert run.published() == expected


# --- Another key, plan, input, version, file -----------------------------------------------------


def test_wrong_key_is_refused(run):
    key = run.live / "key"
    key.unlink()
    Secret.generate().derive("state at rest").save(key)
    refused(run, "does not open with this key")


def test_missing_key_is_refused_and_none_is_made(run):
    (run.live / "key").unlink()
    refused(run, "key", "expected the key that the state is sealed under")
    assert not (run.live / "key").exists()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o610])
def test_key_that_others_can_read_is_refused(run, mode):
    (run.live / "key").chmod(mode)
    refused(run, f"found mode {mode:o}", "chmod 600")


@pytest.mark.parametrize("content", [b"", b"\0" * 134, b"rillet-secret-1 0 scope= for-release 00"])
def test_damaged_key_is_refused(run, content):
    (run.live / "key").write_bytes(content)
    said = refused(run, "key")
    assert "for-release" not in said


def test_secret_of_a_run_is_no_key(run):
    (run.live / "key").unlink()
    Secret.generate().save(run.live / "key")
    refused(run, "the key of a state", code=2)


def test_other_plan_is_refused(run):
    for changed in ({"epsilon": 1.5}, {"length": 130}, {"every": 2}):
        fields = {"epsilon": 20.0, "upper": 100.0, "length": 120, "lag": 12, "keys": KEYS}
        (run.folder / "plan.json").write_text(Plan(**{**fields, **changed}).to_json())
        refused(run, "belongs to another plan")


def test_other_name_of_the_input_is_refused(run):
    config = run.folder / "run.toml"
    shutil.copy(run.folder / "in.csv", run.folder / "other.csv")
    config.write_text(config.read_text().replace("in.csv", "other.csv"))
    refused(run, "belongs to another input")


def test_input_that_changed_where_it_was_absorbed_is_refused(run):
    last_block = range(HALF - 16, HALF)
    for row in (last_block[0], last_block[7], last_block[-1]):
        changed = list(ROWS)
        key, value = changed[row].split(",")
        changed[row] = f"{key},{float(value) + 1e-6:.6f}"
        run.give(changed)
        refused(run, "is not what was absorbed")
        # Another key is another input too, as is a row more or less.
        changed[row] = f"{'a' if key != 'a' else 'b'},{value}"
        run.give(changed)
        refused(run, "is not what was absorbed")
        run.give([*ROWS[:row], *ROWS[row + 1 :]])
        refused(run, "is not what was absorbed")
    run.give(ROWS[: HALF - 1])
    refused(run, "is not what was absorbed")


def test_changed_input_is_still_refused_after_runs_that_found_nothing_new(run):
    run.give(ROWS[:HALF])
    for _ in range(2):
        assert run.go().code == 0
    changed = list(ROWS)
    changed[HALF - 1] = "a,1"
    run.give(changed)
    refused(run, "is not what was absorbed")


def test_refusal_of_other_input_says_nothing_of_undeclared_rows(run):
    """The number of a row would, beside the number of observations, which is public."""
    changed = list(ROWS)
    changed[HALF - 1] = "a,1"
    run.give(changed)
    said = refused(run, "is not what was absorbed")
    assert not any(letter.isdigit() for letter in said)


def test_input_that_has_grown_goes_on(run, expected):
    for end in (HALF + 1, HALF + 40, len(ROWS)):
        run.give(ROWS[:end])
        assert run.go().code == 0
    # Cut into other blocks, releases come in the same order.
    assert run.published() == expected


def test_state_from_the_future_is_refused(run):
    with contextlib.closing(sqlite3.connect(run.database)) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    refused(run, f"expected version {VERSION}, found {VERSION + 1}")


def test_database_of_somebody_else_is_refused_and_not_touched(run):
    with contextlib.closing(sqlite3.connect(run.database)) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION + 1}")
    refused(run, "expected a state of rillet, found another file")
    # Not even its journal mode is changed.
    run.database.unlink()
    with contextlib.closing(sqlite3.connect(run.database)) as connection, connection:
        connection.execute("CREATE TABLE theirs (name)")
    refused(run, "expected a state of rillet, found another file")


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0", b"k,x\na,1\n" * 999, bytes(8192)])
def test_what_is_no_database_is_refused(run, content):
    run.database.write_bytes(content)
    refused(run, "expected a state of rillet, found another file")


def test_state_that_is_gone_is_not_begun_again(run):
    """Other noise on the same observations would spend the promise twice."""
    run.database.unlink()
    refused(run, "expected the state that ran here, found none")
    assert not run.database.exists()


def test_state_that_somebody_else_has_open_is_refused(run):
    plan = Plan.from_json((run.folder / "plan.json").read_text())
    with plan.open_folder(run.live):
        refused(run, "another process has this state open")
    assert run.go().code == 0


# --- Copies --------------------------------------------------------------------------------------


def test_older_copy_is_noticed(run, expected, tmp_path):
    older = run.copy(tmp_path / "older")
    run.give(ROWS[: HALF + 30])
    assert run.go().code == 0
    shutil.copy(older.database, run.database)
    run.give(ROWS)
    refused(run, "copied or restored", "--restored")
    assert run.go("--restored").code == 0
    assert run.published() == expected


def test_copy_without_its_mark_is_noticed(run):
    (run.live / "opening").unlink()
    refused(run, "copied or restored")
    (run.live / "opening").write_text("nonsense")
    refused(run, "copied or restored")


def test_both_copies_of_a_state_cannot_go_on_beside_each_other(run, tmp_path):
    other = run.database.read_bytes()
    run.give(ROWS[: HALF + 30])
    assert run.go().code == 0
    first = run.database.read_bytes()
    run.database.write_bytes(other)
    assert run.go("--restored").code == 0
    run.database.write_bytes(first)
    refused(run, "copied or restored")


def test_mark_that_cannot_be_written_again_and_again_does_not_lock_out(run, expected):
    """A crash between counting an opening and noting it, several times over."""

    def fail(*_):
        raise OutputError("the disk is full")

    for _ in range(3):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(folder, "_mark", fail)
            assert run.go().code == 5
    assert run.go().code == 0
    assert run.published() == expected


def test_restored_with_other_input_is_refused_by_the_sinks(run, tmp_path):
    """The replay guard's last line: a different value for a (key, t) is not published."""
    older = run.database.read_bytes()
    assert run.go().code == 0
    published = run.published()
    run.database.write_bytes(older)
    changed = list(ROWS)
    changed[HALF + 2] = "a,99"
    run.give(changed)
    ended = run.go("--restored")
    assert ended.code == 5
    assert "a published value is never replaced" in ended.said
    assert run.published() == published


def test_new_key_keeps_the_guard(run, expected):
    """After a change of keys the input is still compared with what was absorbed."""
    with contextlib.chdir(run.folder):
        from rillet.cli import main

        assert main(["state", "live", "--rotate-key"]) == 0
    changed = list(ROWS)
    changed[HALF - 1] = "a,1"
    run.give(changed)
    refused(run, "is not what was absorbed")
    run.give(ROWS)
    ended = run.go()
    assert ended.code == 0, ended.said
    assert run.published() == expected


# --- Sinks that were changed ---------------------------------------------------------------------


def test_edited_file_of_releases_is_refused_by_key_and_t(run, half_way):
    """What is delivered again must be what is there."""
    older = half_way.database.read_bytes()
    assert run.go().code == 0
    lines = run.out.read_bytes().splitlines(keepends=True)
    done = half_way.out.read_bytes().count(b"\n")
    record = json.loads(lines[done + 3])
    lines[done + 3] = lines[done + 3].replace(b'"sum":', b'"sum":1', 1)
    run.out.write_bytes(b"".join(lines))
    run.database.write_bytes(older)
    published = run.out.read_bytes()
    ended = run.go("--restored")
    assert ended.code == 5
    key = json.dumps(record["key"])
    assert f"the release of key {key} at t = {record['t']}" in ended.said
    assert run.out.read_bytes() == published


def test_edited_database_of_releases_is_refused_by_key_and_t(run, half_way):
    older = half_way.database.read_bytes()
    assert run.go().code == 0
    record = json.loads(run.out.read_bytes().splitlines()[-1])
    with (
        contextlib.closing(sqlite3.connect(run.live / "releases.db")) as connection,
        connection,
    ):
        changed = connection.execute(
            "UPDATE release_rows SET n1 = n1 + 1e-9 WHERE t = ? AND series_id = "
            "(SELECT id FROM series WHERE key = ?)",
            (record["t"], record["key"][0]),
        )
        assert changed.rowcount == 1
    run.database.write_bytes(older)
    published = run.published()
    ended = run.go("--restored")
    assert ended.code == 5
    assert f"the release of key {json.dumps(record['key'])} at t = {record['t']}" in ended.said
    # Batches before that one are the same, and were delivered again without harm.
    assert run.published() == published


@pytest.mark.parametrize("length", [0, 1, 100, 5000, -1])
def test_shortened_file_of_releases_is_refused(run, length):
    content = run.out.read_bytes()
    run.out.write_bytes(content[:length])
    refused(run, "out.jsonl", code=5)


@pytest.mark.parametrize("name", ["releases.db", "out.jsonl"])
def test_lost_sink_is_refused(run, name):
    path = run.out if name == "out.jsonl" else run.live / name
    path.unlink()
    files = run.files()
    ended = run.go()
    assert ended.code == 5
    assert name in ended.said
    assert "delivering" not in ended.said
    found = run.files()
    made = str(path.relative_to(run.folder))
    assert {key: value for key, value in found.items() if key != made} == files


@pytest.mark.parametrize("content", [b"nonsense" * 2000, bytes(50_000)])
def test_damaged_database_of_releases_is_refused(run, content):
    (run.live / "releases.db").write_bytes(content)
    refused(run, "releases.db", code=5)


# --- Bad disks -----------------------------------------------------------------------------------


@contextlib.contextmanager
def mounted(folder, *options: str):
    """A file system in memory at this folder, whose content is moved into it."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root may mount a small file system")
    inside = folder.with_name(folder.name + ".inside")
    shutil.copytree(folder, inside)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", ",".join(["mode=700", *options]), "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"this machine does not let us mount: {made.stderr.decode()}")
    try:
        shutil.copytree(inside, folder, dirs_exist_ok=True)
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder, leave: int):
    """Use up the disk but for so many bytes; returns the file that does."""
    ballast = folder / "ballast"
    room = shutil.disk_usage(folder).free
    with ballast.open("wb") as stream:
        for _ in range(max(0, room - leave) // 4096):
            stream.write(bytes(4096))
    assert shutil.disk_usage(folder).free <= leave + 4096
    return ballast


@pytest.mark.parametrize("leave", [0, 4096, 16_384, 32_768, 65_536, 131_072])
def test_full_disk_of_the_state(run, expected, leave):
    with mounted(run.live, "size=2m"):
        before = run.published()
        ballast = fill(run.live, leave)
        ended = run.go()
        assert ended.code in (0, 5), ended.said
        assert (ended.code == 5) or leave > 65_536
        assert "Traceback" not in ended.said
        assert "unforeseen" not in ended.said
        if ended.code:
            reasons = ("disk is full", "No space left", "disk I/O error")
            assert any(reason in ended.said for reason in reasons), ended.said
            again = run.go()  # and again, without any space
            assert again.code in (0, 5), again.said
        ballast.unlink()
        out, rows = run.published()
        # Whole releases only, the ones that an undisturbed run has.
        assert expected[0].startswith(out)
        assert out.startswith(before[0])
        assert out.endswith(b"\n")
        assert set(rows) <= set(expected[1])
        ended = run.go()
        assert ended.code == 0, ended.said
        assert run.published() == expected


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_commit_that_fails_after_it_returned_releases_nothing(run, expected, number):
    """The next block was being absorbed meanwhile; neither is handed out, and both come again."""
    calls, submit = itertools.count(1), ThreadPoolExecutor.submit

    def failing(connection: sqlite3.Connection) -> None:
        connection.execute("ROLLBACK")
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
        raise error

    def submitted(self, execute, statement):
        assert statement == "COMMIT"
        if next(calls) == number:
            return submit(self, failing, execute.__self__)
        return submit(self, execute, statement)

    before = run.published()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ThreadPoolExecutor, "submit", submitted)
        ended = run.go()
    assert ended.code == 5
    assert "expected to write it, found: ioerr_fsync" in ended.said
    assert next(calls) == number + 1
    out, rows = run.published()
    assert expected[0].startswith(out)
    released = [row for row in ROWS[HALF : HALF + 16 * (number - 1)] if row[0] in "abc"]
    assert len(rows) == len(before[1]) + len(released)  # of the blocks before it alone
    assert len(out.splitlines()) == len(before[0].splitlines()) + len(released)
    assert run.go().code == 0
    assert run.published() == expected


@pytest.mark.parametrize("leave", [0, 500, 2000])
def test_full_disk_of_a_sink(run, expected, leave):
    with mounted(run.folder / "out", "size=256k"):
        before = run.published()
        ballast = fill(run.folder / "out", leave)
        ended = run.go()
        assert ended.code == 5, ended.said
        assert "out.jsonl" in ended.said.splitlines()[-1]
        assert "No space left" in ended.said
        assert "Traceback" not in ended.said
        out, _ = run.published()
        assert out.startswith(before[0])
        assert out.endswith(b"\n")
        assert expected[0].startswith(out)
        ballast.unlink()
        ended = run.go()
        assert ended.code == 0, ended.said
        assert run.published() == expected


@pytest.mark.parametrize("leave", [0, 4096, 8192, 24_576, 49_152])
def test_full_disk_where_a_state_is_to_begin(tmp_path, leave):
    run = prepared(tmp_path / "run")
    run.give(ROWS)
    run.live.mkdir()
    with mounted(run.live, "size=2m"):
        ballast = fill(run.live, leave)
        ended = run.go()
        assert ended.code == 5, ended.said
        assert "unforeseen" not in ended.said
        assert "Traceback" not in ended.said
        assert not run.out.exists() or not run.out.read_bytes()
        ballast.unlink()
        ended = run.go()
        assert ended.code == 0, ended.said
        assert run.published()[0].count(b"\n") > 100


def test_read_only_state_is_refused(run):
    with mounted(run.live, "size=2m"):
        remount = ["mount", "-o", "remount,ro", str(run.live)]
        subprocess.run(remount, check=True)
        said = refused(run, "live", code=5)
        assert "read" in said.lower()
        remount[2] = "remount,rw"
        subprocess.run(remount, check=True)
        assert run.go().code == 0


def test_read_only_folder_of_a_sink_is_refused(run, expected):
    with mounted(run.folder / "out", "size=2m"):
        remount = ["mount", "-o", "remount,ro", str(run.folder / "out")]
        subprocess.run(remount, check=True)
        refused(run, "out.jsonl", "Read-only", code=5)
        remount[2] = "remount,rw"
        subprocess.run(remount, check=True)
        assert run.go().code == 0
        assert run.published() == expected
