"""Run the code blocks of a Markdown page.

Blocks of one page run in the order in which they stand, in one empty folder:

- ``python`` blocks share a namespace, like a session at the prompt;
- in ``console`` blocks a line that begins with "$ " is a command (with "> " it goes on), and what
  stands under it, if anything, is what it must print, "..." standing for anything;
- a ``bash`` block is a script that must succeed.

``<!-- not run: reason -->`` in the line above a block leaves it out. Other languages are for show
only, and only those listed here: a block cannot escape by calling itself "sh".
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from helpers.prompt import prompt_folder

RUN = frozenset({"python", "console", "bash"})
SHOWN = frozenset({"json", "text", "toml"})

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<language>[^\s`]*)")
_NOT_RUN = re.compile(r"^\s*<!-- not run: (?P<reason>.*\S) -->\s*$")
_SECONDS = 300


@dataclass(frozen=True)
class Block:
    """One fenced block: where its first line of code stands, and why it is not run, if so."""

    page: Path
    line: int
    language: str
    code: str
    not_run: str | None

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Every fenced block of a page; ``ValueError`` for a fence that is never closed."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found = []
    place = 0
    while place < len(lines):
        opening = _FENCE.match(lines[place])
        if opening is None:
            place += 1
            continue
        closing = re.compile(rf"^ *{re.escape(opening['fence'])}[`~]* *$")
        body = place + 1
        end = next((i for i in range(body, len(lines)) if closing.match(lines[i])), None)
        if end is None:
            raise ValueError(f"{page.name}:{place + 1}: this block is never closed")
        reason = _NOT_RUN.match(lines[place - 1]) if place else None
        found.append(
            Block(
                page=page,
                line=body + 1,
                language=opening["language"],
                code=textwrap.dedent("\n".join(lines[body:end]) + "\n"),
                not_run=None if reason is None else reason["reason"],
            )
        )
        place = end + 1
    return found


class Page:
    """A page that is being worked through, in a folder of its own.

    ``servers`` has what is put in place of the names of servers in the page.
    """

    def __init__(self, folder: Path, servers: Mapping[str, str] | None = None) -> None:
        self.folder, self.servers = folder, servers or {}
        self.namespace: dict[str, object] = {"__name__": "__main__"}

    def run(self, block: Block) -> None:
        """Run one block; an exception or an ``AssertionError`` names page and line."""
        for name, server in self.servers.items():
            block = replace(block, code=block.code.replace(name, server))
        {"python": self._python, "console": self._console, "bash": self._bash}[block.language](
            block
        )

    def _python(self, block: Block) -> None:
        # Empty lines in front make a traceback point at the line in the page.
        code = compile("\n" * (block.line - 1) + block.code, str(block.page), "exec")
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, self.namespace)
        self.printed = printed.getvalue()

    def compare(self, block: Block) -> None:
        """A block of text that stands behind one of Python says what that prints, if it does."""
        assert not self.printed or matches(block.code, self.printed), (
            f"{block}: Python printed\n{self.printed}\nwhere the page says\n{block.code}"
        )

    def _bash(self, block: Block) -> None:
        done = self._shell(block.code)
        assert done.returncode == 0, f"{block} ended with {done.returncode}:\n{done.stdout}"

    def _console(self, block: Block) -> None:
        for command, expected in commands(block):
            done = self._shell(command)
            assert done.returncode == 0, (
                f"{block}: {command}\nended with {done.returncode} and printed\n{done.stdout}"
            )
            assert not expected or matches(expected, done.stdout), (
                f"{block}: {command}\nprinted\n{done.stdout}\nwhere the page says\n{expected}"
            )

    def _shell(self, script: str) -> subprocess.CompletedProcess[str]:
        places = (prompt_folder(), Path(sys.executable).parent, os.environ.get("PATH", ""))
        environment = {
            **os.environ,
            "PATH": os.pathsep.join(map(str, places)),
            "HOME": str(self.folder),
            "COLUMNS": "100",
            "NO_COLOR": "1",
            "LC_ALL": "C.UTF-8",
        }
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS,
            check=False,
        )


def commands(block: Block) -> list[tuple[str, str]]:
    """The commands of a console block, each with what the page says it prints."""
    found: list[tuple[list[str], list[str]]] = []
    for line in block.code.splitlines():
        if line.startswith("$ "):
            found.append(([line[2:]], []))
        elif not found:
            raise ValueError(f"{block}: a console block begins with a command, '$ …'")
        elif line.startswith("> ") and not found[-1][1]:
            found[-1][0].append(line[2:])
        else:
            found[-1][1].append(line)
    return [("\n".join(command), "\n".join(output).strip()) for command, output in found]


def matches(expected: str, printed: str) -> bool:
    """Whether a program printed what the page says, up to white space and "..."."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(f"{expected}\n", f"{printed.strip()}\n", flags)
