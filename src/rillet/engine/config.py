"""What a job is to do, from a TOML file or from the options of the command line.

**Privacy.** Public parameters only; passwords stay in the files that are named here.
"""

from __future__ import annotations

import dataclasses
import threading
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rillet.errors import InputError, ParameterError
from rillet.plan import Plan
from rillet.release import Key
from rillet.source import DeclaredKeys, Source, open_source
from rillet.statistic import STATISTICS

#: Names of each table; what a source or a sink knows besides is checked where it is opened.
_TABLES: Final[dict[str, tuple[str, ...]]] = {
    "keys": ("columns", "values", "file", "shared_threshold"),
    "state": ("folder", "key_file"),
    "log": ("format", "level"),
    "metrics": ("address",),
}
_PATHS: Final = ("path", "password_file", "ca_file", "cert_file", "key_file")
#: What must be text, and what true or false, wherever it is given.
_TEXTS: Final = {
    "plan": ("file",),
    "keys": ("file",),
    "state": ("folder", "key_file"),
    "metrics": ("address",),
}
_SWITCHES: Final = {"keys": ("shared_threshold",)}
_LOG_FORMATS: Final = ("text", "json")
_LOG_LEVELS: Final = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class Config:
    """A job, checked: plan, source, state, sinks, logs and metrics."""

    plan: Plan
    source: Mapping[str, Any]
    key_columns: tuple[str, ...] = ()
    sinks: tuple[Mapping[str, Any], ...] = ()
    state: Path | None = None
    key_file: Path | None = None
    log_format: str = "text"
    log_level: str = "info"
    metrics: str | None = None
    #: Folder that the paths in it are relative to.
    folder: Path = field(default_factory=Path)

    def open_source(self, stop: threading.Event | None = None) -> Source:
        """Return the source, which opens nothing yet; raises `ParameterError` if it is wrong."""
        keys = DeclaredKeys(self.plan.keys, self.key_columns) if self.plan.keys else None
        return open_source(self.source, keys=keys, stop=stop)

    @property
    def run(self) -> str:
        """Part of what noise is keyed by, so that one secret serves several inputs."""
        return self.open_source().identity


def load_config(path: str) -> Config:
    """Read a TOML file.

    Raises
    ------
    InputError
        If it cannot be read.
    ParameterError
        If something in it is wrong; the message says where.
    """
    file = Path(path)
    try:
        with file.open("rb") as stream:
            tables = tomllib.load(stream)
    except OSError as error:
        raise InputError(f"{path}: expected a readable file, found: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ParameterError("config", f"TOML in {path}", f"something else ({error})") from None
    known = ("plan", "source", "sink", *_TABLES)
    _only("config", tables, known)
    for name in ("plan", "source"):
        if name not in tables:
            raise ParameterError("config", f"a table [{name}]", sorted(tables))
    for name in known:
        _check_kind(name, tables.get(name, [] if name == "sink" else {}))
    folder = file.parent
    for name, names in _TABLES.items():
        _only(name, tables.get(name, {}), names)
    _check_types(tables)
    keys, state, logs = (tables.get(name, {}) for name in ("keys", "state", "log"))
    plan = _plan(tables["plan"], keys, folder)
    _one_of("log.format", logs.get("format", "text"), _LOG_FORMATS)
    _one_of("log.level", logs.get("level", "info"), _LOG_LEVELS)
    if "key_file" in state and "folder" not in state:
        raise ParameterError("state.folder", "a folder, since key_file is given", None)
    config = Config(
        plan=plan,
        source=_with_paths(tables["source"], folder),
        key_columns=tuple(keys.get("columns", ())),
        sinks=tuple(_with_paths(sink, folder) for sink in tables.get("sink", [])),
        state=folder / state["folder"] if "folder" in state else None,
        key_file=folder / state["key_file"] if "key_file" in state else None,
        log_format=logs.get("format", "text"),
        log_level=logs.get("level", "info"),
        metrics=tables.get("metrics", {}).get("address"),
        folder=folder,
    )
    open_source(config.source)  # opens nothing; its options are checked
    return config


def with_keys(plan: Plan, keys: tuple[Key, ...], *, shared: bool = False) -> Plan:
    """The same parameters for each of many keys."""
    # A refreshed threshold cannot be shared; what was chosen for one stream is chosen again.
    if shared and plan.refresh is not None:
        raise ParameterError(
            "keys.shared_threshold", "a plan with refresh = none", f"refresh = {plan.refresh}"
        )
    return dataclasses.replace(plan, keys=keys, shared_threshold=shared)


def read_keys(path: Path, parts: int) -> tuple[Key, ...]:
    """Declared keys, one to a line, their parts between commas."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise InputError(f"{path}: expected keys, one to a line, found: {reason}") from None
    keys = tuple(tuple(cell.strip() for cell in line.split(",")) for line in lines if line.strip())
    for key in keys:
        if len(key) != parts:
            raise InputError(
                f"{path}: expected {parts} parts between commas on every line, as there are key "
                f"columns, found {','.join(key)!r}"
            )
    return keys


def _plan(table: Mapping[str, Any], keys: Mapping[str, Any], folder: Path) -> Plan:
    declared, shared = _declared(keys, folder), bool(keys.get("shared_threshold", False))
    if "file" in table:
        _only("plan", table, ("file",))
        try:
            text = (folder / table["file"]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{folder / table['file']}: cannot read the plan: {error}") from None
        plan = Plan.from_json(text)
        return with_keys(plan, declared, shared=shared) if declared else plan
    given = {name: _number(value) for name, value in table.items() if name != "mechanism"}
    given.setdefault("length", None)
    if "statistic" in given:
        _one_of("plan.statistic", given["statistic"], tuple(STATISTICS))
        given["statistic"] = STATISTICS[given["statistic"]]()
    if given.get("refresh") == "none":
        given["refresh"] = None
    mechanism = table.get("mechanism", "auto")
    _one_of("plan.mechanism", mechanism, ("auto", "paper", "baseline"))
    try:
        if mechanism == "auto":
            return Plan(**given, keys=declared, shared_threshold=shared)
        make = Plan.paper if mechanism == "paper" else Plan.baseline
        plan = make(**given)
    except TypeError as error:
        raise ParameterError("plan", "the names of a plan", str(error)) from None
    return with_keys(plan, declared, shared=shared) if declared else plan


def _declared(keys: Mapping[str, Any], folder: Path) -> tuple[Key, ...]:
    columns = keys.get("columns", [])
    if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
        raise ParameterError("keys.columns", "a list of names", columns)
    if "values" in keys and "file" in keys:
        raise ParameterError("keys", "values or a file", "both")
    if "file" in keys:
        return read_keys(folder / keys["file"], len(columns))
    values = keys.get("values", [])
    if not isinstance(values, list):
        raise ParameterError("keys.values", "a list of keys", values)
    if keys and not values:
        raise ParameterError("keys", "values, or a file with keys, one to a line", sorted(keys))
    return tuple(tuple(key) if isinstance(key, list) else (key,) for key in values)


def _with_paths(table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Paths as seen from the folder of the configuration."""

    def seen(name: str, value: Any) -> Any:
        is_path = name in _PATHS and isinstance(value, str) and value != "-"
        return str(folder / value) if is_path else value

    return {name: seen(name, value) for name, value in table.items()}


def _number(value: Any) -> Any:
    """``"2^-20"`` is welcome where TOML has no such number."""
    if isinstance(value, str) and value.startswith("2^"):
        try:
            return 2.0 ** int(value[2:])
        except (ValueError, OverflowError):
            return value
    return None if value == "none" else value


def _check_kind(name: str, table: object) -> None:
    wanted: type = list if name == "sink" else dict
    tables = [table] if name != "sink" else table
    if not isinstance(table, wanted) or not all(isinstance(part, dict) for part in tables):  # type: ignore[attr-defined]
        heading = "[[sink]]" if name == "sink" else f"[{name}]"
        raise ParameterError(name, f"a table {heading}", table)


def _check_types(tables: Mapping[str, Any]) -> None:
    for wanted, kind, word in ((_TEXTS, str, "text"), (_SWITCHES, bool, "true or false")):
        for table, names in wanted.items():
            for name in names:
                value = tables.get(table, {}).get(name)
                if value is not None and not isinstance(value, kind):
                    raise ParameterError(f"{table}.{name}", word, value)


def _only(name: str, table: Mapping[str, Any], names: tuple[str, ...]) -> None:
    if unknown := sorted(set(table) - set(names)):
        raise ParameterError(name, f"only the names {', '.join(names)}", ", ".join(unknown))


def _one_of(name: str, value: object, words: tuple[str, ...]) -> None:
    if value not in words:
        raise ParameterError(name, f"one of {', '.join(words)}", value)
