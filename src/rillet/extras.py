"""Optional packages: imported or located when they are needed, with an error that says what to do.

**Privacy.** Touches no data.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import Any

from rillet.errors import InputError, MissingExtra

__all__ = ["compiled", "file_of_package", "import_extra"]


def import_extra(module: str, *, package: str, extra: str = "data", purpose: str) -> Any:
    """Import a module of an optional package.

    Parameters
    ----------
    module : str
        What to import, such as ``"pyarrow.parquet"``.
    package : str
        The distribution that has it.
    extra : str
        The extra of rillet that brings the distribution.
    purpose : str
        What it is needed for, as in "to read Parquet".

    Raises
    ------
    MissingExtra
        If the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(package, extra, purpose) from error


def file_of_package(module: str, *parts: str, package: str, extra: str = "data") -> Path:
    """Find a data file inside an installed package without running the package.

    Some data packages import things that they do not declare, so importing them fails although
    their data are there.

    Raises
    ------
    MissingExtra
        If the package is not installed.
    InputError
        If it is installed but has no such file.
    """
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra(package, extra, "for this data set")
    relative = "/".join(parts)
    for folder in spec.submodule_search_locations:
        path = Path(folder).joinpath(*parts)
        if path.is_file():
            return path
    raise InputError(
        f"{package}: expected the file {relative} inside the package, found none; "
        f'install the version that rillet is tested with: pip install "rillet[{extra}]"'
    )


@lru_cache(maxsize=8)
def compiled(module: str) -> Any | None:
    """A module of compiled loops, or ``None`` where the plain form must serve.

    That is where the extra ``fast`` (Numba) is not installed, or where Numba finds no folder to
    keep what it compiles.
    """
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError):
        return None
