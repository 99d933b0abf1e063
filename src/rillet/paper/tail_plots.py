"""Pictures of the light-tail diagnostics, as PNG files.

**Privacy.** They show raw data: NOT private, like everything in `rillet.paper.tails`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rillet.errors import OutputError
from rillet.extras import import_extra
from rillet.paper.tails import Diagnosis, TailCheck

__all__ = ["draw"]

# Drawing every step of a survival function of millions of values would take minutes and show
# no more than this many do.
_POINTS = 2000
_FOOT = "NOT PRIVATE: drawn from raw values"


def draw(diagnosis: Diagnosis, values: NDArray[np.float64], folder: Path) -> list[Path]:
    """Write the pictures and return where they are.

    **Privacy.** Touches raw data; the pictures are NOT private.

    Parameters
    ----------
    diagnosis : Diagnosis
        What to draw.
    values : numpy.ndarray
        The data it was made from.
    folder : pathlib.Path
        Made if it does not exist.

    Raises
    ------
    MissingExtra
        Without matplotlib.
    OutputError
        If the folder cannot be written.
    """
    figure = import_extra(
        "matplotlib.figure", package="matplotlib", extra="plot", purpose="to draw"
    )
    pictures = {
        "survival.png": _survival(figure, diagnosis, values),
        "quantiles.png": _quantiles(figure, diagnosis),
    }
    if diagnosis.by_hour:
        pictures["hours.png"] = _groups(figure, diagnosis.by_hour, "hour")
    if diagnosis.by_weekday:
        pictures["weekdays.png"] = _groups(figure, diagnosis.by_weekday, "weekday")
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, picture in pictures.items():
            picture.supxlabel(_FOOT, x=0.99, ha="right", fontsize=7, color="0.4")
            picture.savefig(folder / name, dpi=120)
            written.append(folder / name)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise OutputError(f"{folder}: expected a folder to write to, found: {reason}") from error
    return written


def _canvas(figure: Any) -> tuple[Any, Any]:
    picture = figure.Figure(figsize=(7.0, 4.5), layout="constrained")
    return picture, picture.subplots()


def _survival(figure: Any, diagnosis: Diagnosis, values: NDArray[np.float64]) -> Any:
    """PAK, figure "train-sub-exp": the data against the exponential law with the same x_p."""
    picture, axes = _canvas(figure)
    ordered = np.sort(values[np.isfinite(values)])
    count = ordered.size
    # Evenly spaced in the logarithm of the tail, so that its end is drawn value by value.
    ranks = np.unique(np.rint(np.geomspace(1, max(count, 1), _POINTS)).astype(int))
    axes.semilogy(ordered[count - ranks], ranks / count, label="data", drawstyle="steps-post")
    check = diagnosis.check
    distance = check.value - diagnosis.lower
    if np.isfinite(distance) and distance > 0:
        reach = np.linspace(0, max(float(ordered[-1]) - diagnosis.lower, distance), 200)
        line = check.quantile ** (reach / distance)
        axes.semilogy(reach + diagnosis.lower, line, "--", label="exponential with the same x_p")
        axes.axvline(check.value, color="0.6", linewidth=0.8)
    axes.set_ylim(0.5 / max(count, 1), 1.5)
    axes.set_xlabel("x")
    axes.set_ylabel("share of values above x")
    axes.set_title(f"Tail beyond x_p, p = {check.quantile:g}: {check.verdict}")
    axes.legend()
    return picture


def _quantiles(figure: Any, diagnosis: Diagnosis) -> Any:
    """PAK, figure "quants": r·x̂_p over x̂_{p^r}; a light tail stays at or above 1."""
    picture, axes = _canvas(figure)
    for curve in diagnosis.curves:
        if curve.tail:
            ratio = np.array(curve.predicted) / np.maximum(np.array(curve.observed), 1e-300)
            axes.semilogx(curve.tail, ratio, label=f"p = {curve.quantile:g}")
    axes.axhline(1.0, color="0.6", linewidth=0.8)
    axes.invert_xaxis()
    axes.set_xlabel("p^r")
    axes.set_ylabel("predicted r·x_p over observed quantile")
    axes.set_title("How the light-tail rule extrapolates")
    axes.legend(fontsize=8)
    return picture


def _groups(figure: Any, groups: Mapping[str, TailCheck], name: str) -> Any:
    """x̂_p by group; groups with a heavier tail stand out."""
    picture, axes = _canvas(figure)
    positions = np.arange(len(groups))
    colours = {"heavier": "tab:red", "too few": "0.8"}
    shades = [colours.get(check.verdict, "tab:blue") for check in groups.values()]
    axes.bar(positions, [check.value for check in groups.values()], color=shades)
    axes.set_xticks(positions, list(groups), rotation=60, ha="right", fontsize=8)
    axes.set_ylabel("x_p")
    axes.set_title(f"Quantile by {name} (red: heavier than exponential, grey: too few values)")
    return picture
