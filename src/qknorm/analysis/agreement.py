"""How alike heads are: Jensen–Shannon distances between what they attend to, and a map of them.

Axes: N heads, B sentences, T positions that look, S positions looked at.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def divergence_sums(weights: Tensor, choice: Tensor) -> Tensor:
    """(N, N) Jensen–Shannon divergences in bits, summed over the rows of ``choice``.

    JS(p, q) = H((p + q) / 2) − (H(p) + H(q)) / 2: 0 for heads that do the same, 1 for heads that never look
    at the same place.

    Args:
        weights: (B, N, T, S).
        choice: (B, T) True for the rows that count.
    """
    rows = weights.float().transpose(1, 2)[choice].transpose(0, 1).contiguous()  # (N, rows, S)
    own = torch.special.entr(rows).sum(dim=(1, 2), dtype=torch.float64)
    N = rows.size(0)
    found = own.new_zeros(N, N)
    for one in range(N - 1):
        middle = (rows[one] + rows[one + 1 :]) / 2
        mixed = torch.special.entr(middle).sum(dim=(1, 2), dtype=torch.float64)
        found[one, one + 1 :] = mixed - (own[one] + own[one + 1 :]) / 2
    both: Tensor = found + found.T
    return both.clamp(min=0) / math.log(2)


def classical_map(distances: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, 2) places whose distances come near the given ones: classical multidimensional scaling.

    The axes mean nothing; each is turned so that its largest coordinate is positive.
    """
    N = len(distances)
    centre = np.eye(N) - 1 / N
    products = -centre @ (distances**2) @ centre / 2
    values, vectors = np.linalg.eigh(products)  # in rising order
    places = np.zeros((N, 2))
    for axis in range(min(2, N)):
        column = vectors[:, -1 - axis] * math.sqrt(max(values[-1 - axis], 0.0))
        largest = column[np.abs(column).argmax()]
        places[:, axis] = column if largest >= 0 else -column
    return places
