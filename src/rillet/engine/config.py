"""What a job is to do: one schema for TOML files, for tables in Python and for the command line.

**Privacy.** Public parameters only; passwords stay in the files that are named here.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from rillet.errors import InputError, ParameterError, StateError
from rillet.levels import Level, declared_levels
from rillet.options import convert, within
from rillet.plan import Plan
from rillet.release import Key
from rillet.state.folder import what_to_amend

LogFormat: TypeAlias = Literal["text", "json"]
#: Where a durable run keeps its releases: ``releases.db``, or a folder of Parquet files.
PublicFormat: TypeAlias = Literal["sqlite", "parquet"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
_KeyPart: TypeAlias = str | int


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class _Keys(_Table, frozen=True):
    columns: tuple[str, ...] = ()
    values: list[_KeyPart | list[_KeyPart]] | None = None
    file: str | None = None
    shared_threshold: bool = False


class _State(_Table, frozen=True):
    folder: str
    key_file: str | None = None
    releases: PublicFormat = "sqlite"
    readers: str = "owner"


class _Log(_Table, frozen=True):
    format: LogFormat = "text"
    level: LogLevel | None = None


class _Metrics(_Table, frozen=True):
    address: str


class _Tables(_Table, frozen=True):
    """The tables; those of a plan, a source or a sink are checked by the kind that they name.

    ``spark`` is for :mod:`rillet.spark.job` alone.
    """

    plan: Any
    source: dict[str, Any]
    keys: _Keys | None = None
    sink: list[dict[str, Any]] = []
    state: _State | None = None
    log: _Log = _Log()
    metrics: _Metrics | None = None
    spark: dict[str, Any] = {}


@dataclass(frozen=True)
class Config:
    """A job, checked: plan, source, state, sinks, logs and metrics.

    ``source`` and ``sinks`` are tables of options, with paths as seen from here.
    """

    plan: Plan
    source: Mapping[str, Any]
    key_columns: tuple[str, ...] = ()
    sinks: tuple[Mapping[str, Any], ...] = ()
    state: Path | None = None
    key_file: Path | None = None
    releases: PublicFormat = "sqlite"
    #: Who may read what is public in the state's folder: the owner, everyone, or a group.
    readers: str = "owner"
    log_format: LogFormat = "text"
    #: None: info in a durable run, warning otherwise.
    log_level: LogLevel | None = None
    metrics: tuple[str, int] | None = None
    spark: Mapping[str, Any] = field(default_factory=dict)
    #: Folder that the paths in it are relative to.
    folder: Path = field(default_factory=Path)


def load_config(
    config: str | os.PathLike[str] | Mapping[str, Any] | Config,
    changes: Mapping[str, Mapping[str, Any]] | None = None,
) -> Config:
    """Read a TOML file, or a mapping with the same tables, in which the plan may be an object.

    ``changes`` has options that come before those of its tables.

    Raises
    ------
    InputError
        If a file cannot be read.
    ParameterError
        If something in it is wrong; the message says where.

    Examples
    --------
    >>> plan = {"epsilon": 1.0, "upper": 50.0, "length": 8760}
    >>> load_config({"plan": plan, "source": {"path": "readings.csv"}}).plan.guarantee.epsilon
    1.0
    """
    if isinstance(config, Config):
        return config
    folder = Path()
    if not isinstance(config, Mapping):
        path = Path(config)
        folder = path.parent
        try:
            with path.open("rb") as stream:
                config = tomllib.load(stream)
        except OSError as error:
            raise InputError(f"{path}: expected a readable file, found: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ParameterError("config", f"TOML in {path}", f"something else ({error})") from None
    tables = dict(config)
    for name, change in (changes or {}).items():
        if change and isinstance(before := tables.get(name, {}), Mapping):
            tables[name] = {**before, **change}
    for name in ("plan", "source"):
        if name not in tables:
            raise ParameterError("config", f"a table [{name}]", sorted(tables))
    return _checked(convert(tables, _Tables), folder)


def _checked(tables: _Tables, folder: Path) -> Config:
    keys, state = tables.keys or _Keys(), tables.state
    if tables.keys is not None and (keys.values is None) == (keys.file is None):
        found = "both" if keys.values is not None else "neither"
        raise ParameterError("keys", "values, or a file with one key per line", found)
    options = _plan_options(tables.plan, folder)
    declared: dict[str, Any] = {"shared_threshold": True} if keys.shared_threshold else {}
    if keys.file is not None:
        declared |= keys_and_levels(folder / keys.file, len(keys.columns), _levels(options))
    elif keys.values:
        declared["keys"] = [tuple(key) if isinstance(key, list) else (key,) for key in keys.values]
    return Config(
        plan=_plan(options, declared, None if state is None else folder / state.folder),
        source=_with_paths(tables.source, folder),
        key_columns=keys.columns,
        sinks=tuple(_with_paths(sink, folder) for sink in tables.sink),
        state=None if state is None else folder / state.folder,
        key_file=None if state is None or state.key_file is None else folder / state.key_file,
        releases="sqlite" if state is None else state.releases,
        readers="owner" if state is None else state.readers,
        log_format=tables.log.format,
        log_level=tables.log.level,
        metrics=None if tables.metrics is None else _address(tables.metrics.address),
        spark=tables.spark,
        folder=folder,
    )


def keys_and_levels(path: Path, parts: int, levels: tuple[Level, ...]) -> dict[str, Any]:
    """Declared keys from a file, one per line; before its parts a line may name its totals.

    Those are named for each level below that of all keys, from the largest down.
    """
    above = max(0, len(levels) - 1) if all(level.of is None for level in levels) else 0
    lines = read_keys(path, parts, parts + above)
    if not above or not lines or len(lines[0]) == parts:
        return {"keys": lines}
    keys, named = [line[above:] for line in lines], [levels[0]]
    for number, level in enumerate(levels[1:], 1):
        of: dict[Key, list[Key]] = {}
        for line, key in zip(lines, keys, strict=True):
            of.setdefault(line[:number], []).append(key)
        named.append(dataclasses.replace(level, of=tuple(of.items())))  # type: ignore[arg-type]
    return {"keys": keys, "levels": named}


def read_keys(path: Path, parts: int, with_totals: int = 0) -> tuple[Key, ...]:
    """Declared keys from a file: one key per line, its parts separated by commas.

    With its totals a line has ``with_totals`` parts; either all lines have them, or none.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise InputError(f"{path}: expected one key per line, found: {reason}") from None
    lines = list(filter(None, map(str.strip, text.splitlines())))
    if parts == 1 and "," not in text:  # usual, and quick for a million
        return tuple(zip(lines, strict=True))
    keys = tuple(tuple(cell.strip() for cell in line.split(",")) for line in lines)
    wanted = with_totals if keys and len(keys[0]) == with_totals else parts
    for key in keys:
        if len(key) != wanted:
            raise InputError(
                f"{path}: expected {wanted} parts separated by commas on every line, one for each "
                f"key column, found {','.join(key)!r}"
            )
    return keys


def _plan_options(table: Any, folder: Path) -> Plan | dict[str, Any]:
    """A plan, or the options of one."""
    if isinstance(table, Plan):
        return table
    options: dict[str, Any] = convert(table, dict[str, Any], "plan")
    if "file" not in options:
        return options
    if len(options) > 1:
        raise ParameterError("plan", "nothing beside file, which has it all", sorted(options))
    path = folder / convert(options["file"], str, "plan.file")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise InputError(f"{path}: expected a plan, found: {reason}") from None
    return Plan.from_json(text)


def _levels(options: Plan | dict[str, Any]) -> tuple[Level, ...]:
    if isinstance(options, Plan):
        return options.levels
    with within("plan"):
        return declared_levels(options.get("levels"))


def _plan(options: Plan | dict[str, Any], declared: dict[str, Any], state: Path | None) -> Plan:
    """The plan of a run; that of a state that was amended, if this is it as it is now."""
    kept = _amended(state)
    if isinstance(options, Plan):
        if "keys" not in declared:
            return options

        def made(**more: Any) -> Plan:
            return dataclasses.replace(options, **{"shared_threshold": False, **declared, **more})

    else:
        if "keys" in options:
            raise ParameterError("plan.keys", "a table [keys] in its place", options["keys"])

        def made(**more: Any) -> Plan:
            with within("plan"):
                return Plan.from_table({**options, "keys": (), **declared, **more})

    plan = made()
    if kept is None or state is None:
        return plan
    said, command = what_to_amend(
        state, (kept.guarantee_now.epsilon, kept.keys_now), (plan.epsilon, plan.keys)
    )
    if said:
        raise StateError(
            f"{state}: expected the plan of this state as it was amended, found another: {said}; "
            f"go on with that one, or type: {command}"
        )
    # Whatever else is another option is refused when the state is opened.
    began = made(epsilon=kept.epsilon, keys=kept.keys)
    return dataclasses.replace(began, amendments=kept.amendments)


def _amended(state: Path | None) -> Plan | None:
    """The plan of a state that was amended."""
    path = None if state is None else state / "plan.json"
    # A plan of a million keys takes a second to read: most were never amended.
    if path is None or not path.exists() or b'"amendments"' not in path.read_bytes():
        return None
    return Plan.kept_in(path.parent)


def _with_paths(table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Options named ``path`` or ``…_file`` are paths as seen from the configuration's folder."""

    def seen(name: str, value: Any) -> Any:
        is_path = (name == "path" or name.endswith("_file")) and isinstance(value, str)
        is_path = is_path and value not in ("", "-") and "://" not in value
        return str(folder / value) if is_path else value

    return {name: seen(name, value) for name, value in table.items()}


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ParameterError("metrics.address", "HOST:PORT, as 127.0.0.1:9464", text)
    return host.strip("[]"), int(port)
