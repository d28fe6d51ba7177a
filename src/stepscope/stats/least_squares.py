"""Ordinary least squares through the origin, for a few unknowns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.stats.intervals import t_quantile

_SINGULAR = 1e-10  # the least pivot, with columns scaled to length 1


@dataclass(frozen=True)
class Fit:
    """Coefficients and their standard errors."""

    coefficients: tuple[float, ...]
    standard_errors: tuple[float, ...]
    degrees: int

    def margin(self, place: int, confidence: float = 0.95) -> float:
        """Return half the width of a coefficient's interval."""
        return self.standard_errors[place] * t_quantile(self.degrees, confidence)


def least_squares(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> Fit | None:
    """Fit `targets` by the columns of `rows`; None if the columns are collinear."""
    unknowns = len(rows[0]) if rows else 0
    degrees = len(rows) - unknowns
    lengths = [sum(row[k] ** 2 for row in rows) ** 0.5 for k in range(unknowns)]
    if degrees < 1 or not unknowns or not all(lengths):
        return None
    scaled = [[value / length for value, length in zip(row, lengths, strict=True)] for row in rows]
    products = [
        [sum(row[i] * row[j] for row in scaled) for j in range(unknowns)] for i in range(unknowns)
    ]
    inverse = _inverted(products)
    if inverse is None:
        return None
    right = [
        sum(row[k] * y for row, y in zip(scaled, targets, strict=True)) for k in range(unknowns)
    ]
    solution = [sum(a * b for a, b in zip(line, right, strict=True)) for line in inverse]
    residual = sum(
        (y - sum(a * b for a, b in zip(row, solution, strict=True))) ** 2
        for row, y in zip(scaled, targets, strict=True)
    )
    variance = residual / degrees
    return Fit(
        tuple(value / length for value, length in zip(solution, lengths, strict=True)),
        tuple(max(0.0, inverse[k][k] * variance) ** 0.5 / lengths[k] for k in range(unknowns)),
        degrees,
    )


def _inverted(matrix: list[list[float]]) -> list[list[float]] | None:
    """Return the inverse by Gauss-Jordan elimination with partial pivoting."""
    size = len(matrix)
    work = [[*row, *(float(i == j) for j in range(size))] for i, row in enumerate(matrix)]
    for column in range(size):
        best = max(range(column, size), key=lambda row: abs(work[row][column]))
        if abs(work[best][column]) < _SINGULAR:
            return None
        work[column], work[best] = work[best], work[column]
        pivot = work[column][column]
        work[column] = [value / pivot for value in work[column]]
        for row in range(size):
            if row != column:
                factor = work[row][column]
                work[row] = [a - factor * b for a, b in zip(work[row], work[column], strict=True)]
    return [row[size:] for row in work]
