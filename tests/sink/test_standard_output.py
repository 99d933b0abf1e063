"""Releases of a durable run on standard output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rillet.errors import OutputError
from rillet.sink import make_sink
from rillet.sink.spelling import spell
from sink.tables import table


def test_lines_go_out_in_order_and_again_if_delivered_again(capsys):
    sink = make_sink({"kind": "stdout"}).open()
    sink.deliver(table())
    sink.deliver(table(first=71))
    sink.deliver(table(first=71))
    sink.close()
    assert sink.position() is None
    again = b"".join(spell(table(first=71))).decode()
    assert capsys.readouterr().out == b"".join(spell(table())).decode() + again + again


def test_it_has_no_position():
    with pytest.raises(OutputError, match="standard output: expected no position"):
        make_sink({"kind": "stdout"}).open({"offset": 3})


PROGRAM = """
import os, sys
from rillet.errors import OutputError
from rillet.sink import make_sink
from sink.tables import table
sink = make_sink({"kind": "stdout"}).open()
try:
    while True:
        sink.deliver(table())
except OutputError as error:
    sys.stderr.write(str(error))
    sys.stderr.flush()
    os._exit(error.exit_code)
"""


def test_a_reader_that_goes_away():
    tests = str(Path(__file__).parents[1])
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path])},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b'{"key":["north"],"t":51,')
        process.stdout.close()
        assert b"standard output: expected a writable file, found: Broken pipe" in (
            process.stderr.read()
        )
    assert process.returncode == 5
