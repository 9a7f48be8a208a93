"""How close two results are."""

from __future__ import annotations

import numpy as np
import torch


def error(actual, expected) -> float:
    """Largest difference, relative to the larger of 1 and the expected values' size; NaN never passes."""
    actual, expected = (
        x.detach().double().cpu().numpy() if isinstance(x, torch.Tensor) else np.asarray(x, dtype=np.float64)
        for x in (actual, expected)
    )
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    if not np.isfinite(actual).all():
        return float("inf")
    return float(np.abs(actual - expected).max(initial=0.0) / max(1.0, np.abs(expected).max(initial=0.0)))
