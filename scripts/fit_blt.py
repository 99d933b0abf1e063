"""Fit the buffered linear Toeplitz strategies that rillet ships.

    python scripts/fit_blt.py

adds to ``src/rillet/strategy/toeplitz/rates.txt`` what it lacks, and says on standard error how
close each fit comes to the square root; all of them take some minutes.  Lines that are there stay
as they are: rates key the noise, and another machine would find other last digits.

A strategy with ``d`` buffers is the rational function ``c(z) = Π (1 − λ_i z)/(1 − θ_i z)``.  It is
written as decay rates ``φ_i = 1 − θ_i`` of the encoder and ``ψ_i = 1 − λ_i`` of the decoder, with
``0 < φ_1 < ψ_1 < φ_2 < ψ_2 < … < 1``: this order is equivalent to positive coefficients, and
differences of rates near 0 lose no digits.  What is made least is the largest variance of a prefix
sum at unit sensitivity, ``Σ_{j<n} c_j² · Σ_{j<n} g_j²`` with ``g = 1/((1 − z)·c)``
(Dvijotham, McMahan, Pillutla, Steinke, Thakurta 2024), both sums in closed form.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

SHIPPED = Path(__file__).parents[1] / "src/rillet/strategy/toeplitz/rates.txt"
LOG_LENGTHS = range(8, 41)
BUFFERS = range(2, 9)
#: Up to 2^30 leaves six buffers are within 1.5 % of the square root, as eight are up to 2^40.
ENOUGH = (30, 6)
HEADER = (
    "# Rates of the buffered Toeplitz strategies, made by scripts/fit_blt.py.  Each line: log2",
    "# of the length, number of buffers, then φ_1, ψ_1, φ_2, ψ_2, … in increasing order.",
)
DIGITS = 8  # significant digits to ship: the optimum is flat


def rates(parameters):
    """Increasing rates in (0, 1): φ_1, ψ_1, φ_2, … from logits of their ratios to the next one."""
    ratios = 1 / (1 + np.exp(-parameters))
    return np.cumprod(ratios[::-1])[::-1]


def parameters_of(ordered):
    """Undo :func:`rates`."""
    ratios = ordered / np.append(ordered[1:], 1.0)
    return np.log(ratios / (1 - ratios))


def geometric_sums(rates, count):
    """``Σ_{j<count} ((1 − a)(1 − b))^j`` for all pairs of rates, without cancellation."""
    decay = rates[:, None] + rates - rates[:, None] * rates
    logs = _log1p(-rates)
    both_one = decay == 0  # the pole at 1 with itself
    sums = -_expm1(count * (logs[:, None] + logs)) / np.where(both_one, 1, decay)
    return np.where(both_one, count, sums)


def _log1p(x):
    # To first order in the imaginary part, which is all that a complex step needs.
    return np.log1p(x.real) + 1j * x.imag / (1 + x.real) if np.iscomplexobj(x) else np.log1p(x)


def _expm1(x):
    if not np.iscomplexobj(x):
        return np.expm1(x)
    return np.expm1(x.real) + 1j * x.imag * np.exp(x.real)


def residues(at, zeros, poles):
    """``Π_j (zeros_j − at_i) / Π_{j≠i} (poles_j − at_i)`` for each ``i`` (``at`` are the poles)."""
    top = np.prod(zeros[None, :] - at[:, None], axis=1)
    apart = poles[None, :] - at[:, None]
    np.fill_diagonal(apart, 1)
    return top / np.prod(apart, axis=1)


def log_variance(parameters, n):
    """Logarithm of the largest variance at unit sensitivity."""
    ordered = rates(parameters)
    phi, psi = ordered[0::2], ordered[1::2]
    omega = residues(phi, psi, phi)
    encoder = 1 + omega @ geometric_sums(phi, n - 1) @ omega
    weight = residues(psi, phi, psi) / -psi
    weight = np.append(weight, np.prod(phi) / np.prod(psi))  # the pole at 1 of 1/(1 − z)
    decoder = weight @ geometric_sums(np.append(psi, 0.0), n) @ weight
    return np.log(encoder * decoder)


def with_gradient(parameters, n):
    """Value and gradient by complex steps, exact to rounding."""
    step = 1e-40
    gradient = np.empty(len(parameters))
    value = 0.0
    for i in range(len(parameters)):
        moved = parameters.astype(complex)
        moved[i] += 1j * step
        result = log_variance(moved, n)
        gradient[i] = result.imag / step
        value = result.real
    return value, gradient


def square_root(n):
    """Σ f_k² for k < n, ``f`` the coefficients of (1 − z)^(−1/2): what the square root reaches."""
    k = np.arange(1, n, dtype=np.float64)
    return 1 + float(np.sum(np.exp(2 * np.cumsum(np.log1p(-1 / (2 * k))))))


def starts(d, n, previous, shorter):
    """Where to begin: rates evenly spaced in the logarithm, and what fitted a neighbour."""
    yield parameters_of(np.geomspace(0.3 / n, 0.75, 2 * d))
    yield parameters_of(np.geomspace(1.5 / n, 0.8, 2 * d))
    if shorter is not None:  # the same number of buffers, half the length
        yield parameters_of(shorter * np.geomspace(0.5, 1, len(shorter)))
    if previous is not None:  # one buffer fewer, same length
        at = np.linspace(0, 1, 2 * d), np.linspace(0, 1, 2 * d - 2)
        yield parameters_of(np.exp(np.interp(*at, np.log(previous))))


def fit(d, n, previous, shorter):
    """The best rates found."""
    best = None
    for start in starts(d, n, previous, shorter):
        found = minimize(
            with_gradient,
            start,
            args=(n,),
            jac=True,
            method="BFGS",
            options={"maxiter": 2000, "gtol": 1e-9},
        )
        if best is None or found.fun < best.fun:
            best = found
    return rates(best.x), best.fun


def main():
    """Fit what is missing."""
    rows = [line.split() for line in SHIPPED.read_text().splitlines() if line[0] != "#"]
    table = {(int(n), int(d)): np.array(rates, float) for n, d, *rates in rows}
    for d in BUFFERS:
        for log_length in LOG_LENGTHS:
            key, n = (log_length, d), 2**log_length
            if key in table or (log_length <= ENOUGH[0] and d > ENOUGH[1]):
                continue
            neighbours = table.get((log_length, d - 1)), table.get((log_length - 1, d))
            table[key], value = fit(d, n, *neighbours)
            yard = square_root(n) if log_length <= 25 else np.log(n) / np.pi + 1.0663
            sys.stderr.write(
                f"2^{log_length} d={d} variance {np.exp(value):.4f} "
                f"std/square root {np.exp(value / 2) / yard:.6f}\n"
            )
            SHIPPED.write_text(render(table))


def render(table, header=HEADER):
    """The table that rillet ships."""
    lines = [
        " ".join([*map(str, key), *(f"{rate:.{DIGITS - 1}e}" for rate in table[key])])
        for key in sorted(table)
    ]
    return "\n".join([*header, *lines, ""])


if __name__ == "__main__":
    main()
