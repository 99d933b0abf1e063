"""``rillet`` and ``python -c`` at a prompt, without a second of imports for each command.

Programs of these names hand their arguments, folder, environment and standard streams to a server,
which has imported rillet and done nothing; that forks, and the fork runs the command.  That the
installed program works too is a test of its own (tests/test_packaging.py).
"""

from __future__ import annotations

import atexit
import importlib
import marshal
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from functools import cache
from pathlib import Path

__all__ = ["prompt_folder"]

_PRELOADED = (
    *("scipy.optimize", "scipy.signal", "scipy.stats", "rillet.cli.run", "rillet.cli.plan"),
    *("rillet.engine", "rillet.state.folder", "rillet.sink.sqlite", "rillet.sink.json_lines"),
    *("rillet.source.file", "rillet.plan.calibrate"),
)
#: Isolated and without site, Python starts in a few milliseconds.
_CLIENT = """#!{python} -IS
import marshal, os, signal, socket, sys
if {name!r} == "python" and sys.argv[1:2] != ["-c"]:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
if os.getcwd() in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    # Packages of the page's own: what was imported before does not know them.
    words = ["-m", "rillet"] if {name!r} == "rillet" else []
    os.execv({python!r}, [{python!r}, *words, *sys.argv[1:]])
line = socket.socket(socket.AF_UNIX)
line.connect({address!r})
words = marshal.dumps((os.getcwd(), {name!r}, sys.argv[1:], dict(os.environ)))
socket.send_fds(line, [len(words).to_bytes(4, "big")], [0, 1, 2])
line.sendall(words)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: line.send(bytes([number])))
sys.exit((line.recv(1) or b"\\x01")[0])
"""


@cache
def prompt_folder() -> Path:
    """A folder for ``PATH`` with both programs; they work as long as this process lives."""
    folder = tempfile.TemporaryDirectory(prefix="rillet-prompt-")
    address = f"{folder.name}/line"
    for name in ("rillet", "python"):
        program = Path(folder.name) / name
        text = _CLIENT.format(python=sys.executable, name=name, address=address)
        program.write_text(text, encoding="utf-8")
        program.chmod(0o755)
    server = subprocess.Popen(
        [sys.executable, "-m", "helpers.prompt", address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "LC_ALL": "C.UTF-8"},
        start_new_session=True,
    )
    assert server.stdin is not None and server.stdout is not None

    def end() -> None:
        os.killpg(server.pid, signal.SIGKILL)  # with whatever a command has left behind
        server.wait(10)
        server.stdin.close()
        server.stdout.close()
        folder.cleanup()

    atexit.register(end)
    assert server.stdout.readline() == b"ready\n"
    return Path(folder.name)


def _serve(address: str) -> None:
    """Until standard input is closed."""
    for name in _PRELOADED:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        os.write(1, b"ready\n")
        while listener in select.select([listener, 0], [], [])[0]:
            line, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _run(line)
            line.close()


def _run(line: socket.socket) -> None:
    """Run a command in this process, which ends with it."""
    code = 1
    try:
        size, streams, _, _ = socket.recv_fds(line, 4, 3)
        words = b""
        while len(words) < int.from_bytes(size, "big"):
            words += line.recv(1 << 16)
        folder, name, arguments, environment = marshal.loads(words)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        # Those of the server were made for other files.
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, "w" if number else "r", 1 if number == 2 else -1, closefd=False)
            for number in range(3)
        )
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        threading.Thread(target=_hear, args=(line,), daemon=True).start()
        try:
            code = _rillet(arguments) if name == "rillet" else _python(arguments)
        except SystemExit as left:  # a command line that cannot be parsed
            code = left.code if isinstance(left.code, int) else int(bool(left.code))
        sys.stdout.flush()
        sys.stderr.flush()
        atexit._run_exitfuncs()
    except BaseException:  # noqa: BLE001 - as Python itself would
        traceback.print_exc()
    finally:
        line.sendall(bytes([code]))
        os._exit(code)


def _hear(line: socket.socket) -> None:
    """Take the signals that the program gets; end as it does when it is killed."""
    while number := line.recv(1):
        os.kill(os.getpid(), number[0])
    os.kill(os.getpid(), signal.SIGKILL)


def _rillet(arguments: list[str]) -> int:
    from rillet.cli import main

    sys.argv = ["rillet", *arguments]
    return main(arguments)


def _python(arguments: list[str]) -> int:
    _, code, *rest = arguments
    sys.argv = ["-c", *rest]
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    return 0


if __name__ == "__main__":
    _serve(sys.argv[1])
