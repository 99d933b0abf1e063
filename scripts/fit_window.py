"""Fit the buffered linear Toeplitz strategies that rillet ships for windows.

    python scripts/fit_window.py

adds to ``src/rillet/strategy/toeplitz/window_rates.txt`` what it lacks, as ``fit_blt.py`` does.

The encoder is ``c(z)·p(z^w)`` with a BLT ``c`` (see ``fit_blt.py``) and the comb
``p(x) = 1 − x/2 − x²/8``, the first terms of ``(1 − x)^(1/2)``.  What is made least is the variance
of the sum of the last ``w`` leaves at unit sensitivity, on a stream without an end:
the squared norm of the encoder's coefficients times that of ``(1 − z^w)/((1 − z)·c(z)·p(z^w))``.
The least possible is the square of ``(1/2π)∫|sin(wt/2)/sin(t/2)| dt``.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy.integrate import quad
from scipy.optimize import minimize

from fit_blt import _log1p, parameters_of, rates, render, residues

SHIPPED = Path(__file__).parents[1] / "src/rillet/strategy/toeplitz/window_rates.txt"
LONGEST = 16
#: Numbers of buffers, and from what window on each gains something.
SHORTEST = {2: 1, 3: 4, 4: 7, 5: 10, 6: 12}
#: Rates stay below 1, where a buffer would be none.
LARGEST_RATE = 0.99
#: Terms of (1 − x)/p(x) that are summed up: they fall by 1.46 each.
TERMS = 100
HEADER = (
    "# Rates of the buffered Toeplitz strategies for windows, made by scripts/fit_window.py.",
    "# Each line: log2 of the window, number of buffers, then φ_1, ψ_1, φ_2, ψ_2, … increasing.",
)


def optimum(w):
    """The least standard deviation of a window at unit sensitivity: the norm of its square root."""
    if w > 64:
        return 4 / np.pi**2 * np.log(w) + 0.98943  # to 10^-5
    ends = 2 * np.pi * np.arange(w + 1) / w
    arches = [
        quad(lambda t: abs(np.sin(w * t / 2) / np.sin(t / 2)), *between)[0]
        for between in pairwise(ends)
    ]
    return sum(arches) / (2 * np.pi)


def comb_series():
    """Coefficients of ``(1 − x)/p(x)``."""
    series = np.zeros(TERMS)
    for n in range(TERMS):
        series[n] = (n == 0) - (n == 1)
        series[n] += series[n - 1] / 2 if n >= 1 else 0
        series[n] += series[n - 2] / 8 if n >= 2 else 0
    return series


def log_variance(parameters, w, series):
    """Logarithm of the variance of a window at unit sensitivity."""
    ordered = rates(parameters)
    phi, psi = ordered[0::2], ordered[1::2]
    omega = residues(phi, psi, phi)
    decay = phi[:, None] + phi - phi[:, None] * phi
    paired = omega / (1 - phi) + omega * np.sum(omega[:, None] / decay, axis=0)
    left = np.exp(w * _log1p(-phi))
    lag_0 = 1 + omega @ (1 / decay) @ omega
    encoder = (81 * lag_0 - 56 * (paired @ left) - 16 * (paired @ left**2)) / 64
    weight = np.append(residues(psi, phi, psi) / -psi, np.prod(phi) / np.prod(psi))
    poles = np.append(psi, 0.0)
    left = np.exp(w * _log1p(-poles))
    decay = poles[:, None] + poles - poles[:, None] * poles
    one = decay == 0
    inside = np.where(one, w, (1 - left[:, None] * left) / np.where(one, 1, decay))
    decoder, at = 0, np.zeros(len(weight), weight.dtype)
    for term in series:
        at = left * at + term
        decoder += (weight * at) @ inside @ (weight * at)
    return np.log(encoder * decoder)


def with_gradient(parameters, w, series):
    """Value and gradient by complex steps, exact to rounding."""
    gradient = np.empty(len(parameters))
    value = 0.0
    for i in range(len(parameters)):
        moved = parameters.astype(complex)
        moved[i] += 1e-40j
        result = log_variance(moved, w, series)
        gradient[i] = result.imag / 1e-40
        value = result.real
    return value, gradient


def starts(d, w, previous, shorter):
    """Where to begin."""
    yield parameters_of(np.geomspace(0.3 / w, 0.75, 2 * d))
    yield parameters_of(np.geomspace(min(0.5, 2.0 / w), 0.8, 2 * d))
    if shorter is not None:
        yield parameters_of(shorter * np.geomspace(0.5, 1, len(shorter)))
    if previous is not None:
        at = np.linspace(0, 1, 2 * d), np.linspace(0, 1, 2 * d - 2)
        yield parameters_of(np.exp(np.interp(*at, np.log(previous))))


def main():
    """Fit what is missing."""
    table = {}
    if SHIPPED.exists():
        rows = [line.split() for line in SHIPPED.read_text().splitlines() if line[0] != "#"]
        table = {(int(n), int(d)): np.array(rates, float) for n, d, *rates in rows}
    series = comb_series()
    for d, shortest in SHORTEST.items():
        for log_window in range(shortest, LONGEST + 1):
            key, w = (log_window, d), 2**log_window
            if key in table:
                continue
            neighbours = table.get((log_window, d - 1)), table.get((log_window - 1, d))
            found = [
                minimize(
                    with_gradient,
                    start,
                    args=(w, series),
                    jac=True,
                    method="BFGS",
                    options={"maxiter": 2000, "gtol": 1e-9},
                )
                for start in starts(d, w, *neighbours)
            ]
            best = min(found, key=lambda each: each.fun)
            table[key] = np.minimum(rates(best.x), LARGEST_RATE)
            above = np.exp(best.fun / 2) / optimum(w) - 1
            sys.stderr.write(f"2^{log_window} d={d} std {100 * above:.3f} % above the best\n")
            SHIPPED.write_text(render(table, HEADER))


if __name__ == "__main__":
    main()
