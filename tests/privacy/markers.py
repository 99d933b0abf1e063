"""Planted values, every form in which one could be written down, and a search for all of them."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import sqlite3
import struct
from dataclasses import dataclass, field
from pathlib import Path

from rillet import Plan
from rillet.gather.grid import Grid

#: Inside the range, at its edge, and far out of it.
VALUES = (1234.5678901234567, 987.6543210987654, -55555.44443333, 8.76543219e14)
#: A key that nobody declared.
NAME = "Zweiundvierzigstrasse-9"
#: So many rows have it.
DROPPED = 37
#: Persons, by text and by a number.
PERSONS = ("Erika-Mustermann-1871", "815049326717")


def _binary(value: float) -> dict[str, bytes]:
    return {
        "double, little-endian": struct.pack("<d", value),
        "double, big-endian": struct.pack(">d", value),
    }


def _text(value: float) -> dict[str, bytes]:
    shapes = {
        "repr": repr(value),
        "%.12g": f"{value:.12g}",
        "%.4f": f"{value:.4f}",
        "exponent": f"{value:.5e}",
        "float.hex": value.hex(),
    }
    return {name: text.encode() for name, text in shapes.items()}


def _encoded(raw: bytes) -> dict[str, bytes]:
    shapes = {"hex": raw.hex().encode(), "HEX": raw.hex().upper().encode()}
    for shift in range(3):
        # The letters that depend on this value alone, wherever it begins in a longer text.
        text = base64.b64encode(bytes(shift) + raw + bytes((-shift - len(raw)) % 3))
        first, last = -(-8 * shift // 6), (8 * (shift + len(raw))) // 6
        shapes[f"base64 at {shift}"] = text[first:last]
    return shapes


def long_forms(value: float, plan: Plan | None = None) -> dict[str, bytes]:
    """Forms that do not turn up by chance among random bytes."""
    forms = {**_binary(value), **_text(value)}
    for name, raw in _binary(value).items():
        forms.update({f"{name}, {how}": shape for how, shape in _encoded(raw).items()})
    if plan is not None:
        unit = _unit(value, plan)
        for order in "<>":
            forms[f"lattice integer, 8 bytes {order}"] = struct.pack(f"{order}q", unit)
            shapes = _encoded(struct.pack(f"{order}q", unit))
            forms.update({f"lattice {order}, {how}": shape for how, shape in shapes.items()})
    return forms


def short_forms(value: float, plan: Plan | None = None) -> dict[str, bytes]:
    """Forms so short that they turn up by chance in random bytes, or among many digits."""
    forms = {
        "%.6g": f"{value:.6g}".encode(),
        "rounded to hundredths": f"{value:.2f}".encode(),
    }
    forms |= {f"float32 {order}": struct.pack(f"{order}f", value) for order in "<>"}
    if plan is None:
        return forms
    unit = _unit(value, plan)
    forms["lattice integer, decimal"] = str(unit).encode()
    for order in "<>":
        forms[f"lattice integer, 4 bytes {order}"] = struct.pack(f"{order}i", unit)
    return forms


def id_forms(person: str) -> dict[str, bytes]:
    """An id, and what everybody can make of it without a key."""
    raw_id = person.encode()
    raw = {"text": raw_id, "UTF-16": person.encode("utf-16-le")}
    if person.isdecimal():
        raw["integer <"] = struct.pack("<q", int(person))
        raw["integer >"] = struct.pack(">q", int(person))
        raw["double"] = struct.pack("<d", float(person))
    for how in ("md5", "sha1", "sha256", "sha512", "blake2b", "blake2s"):
        raw[how] = hashlib.new(how, raw_id).digest()
    for personalised in (b"", b"rillet gate"):
        digest = hashlib.blake2b(raw_id, digest_size=16, person=personalised).digest()
        raw[f"blake2b-128 {personalised!r}"] = digest
    forms = dict(raw)
    for name, content in raw.items():
        forms.update({f"{name}, {how}": shape for how, shape in _encoded(content).items()})
    return forms


def _unit(value: float, plan: Plan) -> int:
    """The lattice integer of a value, on the grid in force."""
    bounds = plan.layout.declared_range
    assert bounds is not None
    grid = Grid(bounds.lower, bounds.upper, plan.layout.segments[0].steps)
    import numpy as np

    return int(grid.quantise(np.array([value]))[0])


@dataclass
class Written:
    """Everything that a process wrote: by name, whatever it is."""

    texts: dict[str, bytes] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    def take_folder(self, folder: Path, *, leave_out: tuple[str, ...]) -> None:
        """All files but the inputs, which others wrote."""
        for path in folder.rglob("*"):
            if path.is_file() and path.name not in leave_out:
                self.files[str(path.relative_to(folder))] = path.read_bytes()
                if path.name == "state.db":
                    self.files["state.db, in the clear"] = without_sealed(path)

    def check(self, plan: Plan, values: tuple[float, ...] = VALUES) -> None:
        """No form of any value anywhere."""
        assert self.texts
        everything = {**self.texts, **self.files}
        inside = [value for value in values if plan.lower < value < plan.upper]
        for value in values:
            on_grid = plan if value in inside else None
            for form, shape in long_forms(value, on_grid).items():
                for name, content in everything.items():
                    assert shape not in content, f"{value} as {form} in {name}"
        quiet = {**self.texts, **{n: c for n, c in self.files.items() if "in the clear" in n}}
        for value in values:
            on_grid = plan if value in inside else None
            for form, shape in short_forms(value, on_grid).items():
                for name, content in quiet.items():
                    assert shape not in content, f"{value} as {form} in {name}"
        for person in PERSONS:
            for form, shape in id_forms(person).items():
                for name, content in everything.items():
                    assert shape not in content, f"{person} as {form} in {name}"
        for name, content in everything.items():
            assert NAME.encode() not in content, name
            assert NAME.encode("utf-16-le") not in content, name


def without_sealed(path: Path) -> bytes:
    """The bytes of a state without what is sealed, which is random."""
    content = path.read_bytes()
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        for table in ("progress", "streams", "learning", "outbox", "sinks", "gate"):
            for (sealed,) in connection.execute(f"SELECT sealed FROM {table}"):
                # It may be spread over several pages.
                for first in range(0, len(sealed), 16):
                    content = content.replace(sealed[first : first + 16], b"")
    return content
