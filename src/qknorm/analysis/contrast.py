"""Whether the heads of two models are of different sorts: their distributions compared, measure by measure.

What is compared are the heads of two trained models, each head one value. Under the null hypothesis they are
exchangeable: which model a head belongs to has no bearing on its value. A small p-value says that these two
models differ more than a random division of their heads would; heads of one model were trained together and
are not independent draws, so it says nothing of other models trained in the same two ways (that needs several
seeds of each).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qknorm.analysis.study import HeadStudy
from qknorm.analysis.weights import Kind

SHUFFLES = 10_000


@dataclass(frozen=True)
class Contrast:
    """One measure of the heads of one kind, in two models."""

    kind: Kind
    measure: str
    first: float
    """Mean over the first model's heads."""
    second: float
    larger: float
    """Chance that a head of the first has the larger value, ties counted half (Mann–Whitney's U / nm)."""
    p_value: float
    """Two-sided permutation test of the difference of means."""
    p_holm: float
    """The same after Holm's correction for all that was compared."""


def contrast(first: HeadStudy, second: HeadStudy, shuffles: int = SHUFFLES, seed: int = 1) -> list[Contrast]:
    """Every measure of every kind that both studies have."""
    found = []
    for kind in first.kinds:
        ours, theirs = first.kinds[kind].figures(), second.kinds[kind].figures()
        for name in [name for name in ours if name in theirs]:
            a, b = ours[name].ravel(), theirs[name].ravel()
            if (a == a[0]).all() and (b == a[0]).all():
                continue  # the decoder cannot look at the next position, whoever trained it
            p = permutation_p(a, b, shuffles, seed)
            found.append((kind, name, float(a.mean()), float(b.mean()), share_larger(a, b), p))
    corrected = holm([row[-1] for row in found])
    return [Contrast(*row, p) for row, p in zip(found, corrected, strict=True)]


def permutation_p(
    a: NDArray[np.float64], b: NDArray[np.float64], shuffles: int = SHUFFLES, seed: int = 1
) -> float:
    """Two-sided p-value of the difference of means: how often random divisions differ at least as much.

    The division that was observed counts as one of them, so that no p-value is 0.
    """
    together = np.concatenate([a, b])
    observed = abs(a.mean() - b.mean())
    rng = np.random.default_rng(seed)
    orders = rng.permuted(np.tile(together, (shuffles, 1)), axis=1)
    differences = np.abs(orders[:, : len(a)].mean(axis=1) - orders[:, len(a) :].mean(axis=1))
    as_large = differences >= observed - 1e-12 * max(1.0, float(np.abs(together).max()))
    return float((as_large.sum() + 1) / (shuffles + 1))


def share_larger(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """P(a > b) + P(a = b) / 2 over all pairs."""
    return float(((a[:, None] > b).mean() + (a[:, None] >= b).mean()) / 2)


def holm(p_values: list[float]) -> list[float]:
    """Holm's step-down correction: the chance of any false alarm stays below what is asked of each."""
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected
