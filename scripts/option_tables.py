"""Tables of options, made from the classes that check them when the site is built.

A Markdown extension. A line ``<!-- options: module:Class -->`` becomes a table with the name, the
default and the meaning of each field of a dataclass or a msgspec structure; the meaning comes from
the section "Parameters" of its docstring. A field that is not described there stops the build.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import operator
import re
from typing import Any

import msgspec
from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor

MARK = re.compile(r"^<!-- options: (?P<module>[\w.]+):(?P<name>[\w.]+) -->$")


def table(kind: type) -> list[str]:
    """The lines of the table of one class."""
    meanings = _meanings(inspect.getdoc(kind) or "")
    rows = [f"| `{name}` | {default} | {meanings[name]} |" for name, default in _fields(kind)]
    return ["", "| option | default | meaning |", "|---|---|---|", *rows, ""]


def _fields(kind: Any) -> list[tuple[str, str]]:
    """Name and default of each option."""
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else None
    found = []
    for field in fields or msgspec.structs.fields(kind):
        if not getattr(field, "init", True):
            continue
        default = field.default
        if default in (dataclasses.MISSING, msgspec.NODEFAULT):
            make = field.default_factory
            missing = make in (dataclasses.MISSING, msgspec.NODEFAULT)
            found.append((field.name, "required" if missing else _spelled(make())))
        else:
            found.append((field.name, _spelled(default)))
    return found


def _spelled(value: object) -> str:
    """A default as it is written in TOML; an object as it is written in Python."""
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value!r}`"


def _meanings(docstring: str) -> dict[str, str]:
    """What a numpydoc docstring says about each parameter; several may share one entry."""
    section = re.search(
        r"^Parameters\n-+\n((?:(?!\S[^\n]*\n-+\n)[^\n]*\n)*)", f"{docstring}\n", re.MULTILINE
    )
    entries = re.findall(r"^(\S.*)\n((?: +.*\n|\n)*)", section[1] if section else "", re.MULTILINE)
    found: dict[str, str] = {}
    for names, text in entries:
        meaning = re.sub(r":\w+:(`[^`]+`)", r"\1", " ".join(text.split())).replace("``", "`")
        found |= {name.strip(): meaning for name in names.split(" : ")[0].split(",")}
    return found


class _Tables(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        found: list[str] = []
        for line in lines:
            mark = MARK.match(line)
            if mark is None:
                found.append(line)
            else:
                module = importlib.import_module(mark["module"])
                found += table(operator.attrgetter(mark["name"])(module))
        return found


class OptionTables(Extension):
    """Tables of options."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - the name that Markdown calls
        """Register the processor, before HTML comments are taken out."""
        md.preprocessors.register(_Tables(md), "option-tables", 100)


def makeExtension(**options: object) -> OptionTables:  # noqa: N802 - the name that Markdown calls
    """What Markdown calls to load the extension."""
    return OptionTables(**options)
