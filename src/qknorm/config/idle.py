"""Settings that were changed but do nothing, because another one leaves them without effect."""

from __future__ import annotations

from typing import Any

from qknorm.config.catalogue import settings
from qknorm.config.changes import values_of
from qknorm.config.settings import Recipe

_DECIDED_BY: dict[str, tuple[str, tuple[Any, ...]]] = {
    **{f"subwords.dropout_{name}": ("subwords.dropout", (0.0,)) for name in ("on", "from", "passes")},
    "training.concatenate_passes": ("training.concatenate", (0.0,)),
    "training.backward_passes": ("training.backward", (0.0,)),
    "training.momentum": ("training.optimizer", ("adam", "adamw", "ademamix")),
    "training.slow_weight": ("training.optimizer", ("adam", "adamw", "muon")),
    "training.slow_beta": ("training.optimizer", ("adam", "adamw", "muon")),
    "training.hold_steps": ("training.schedule", ("plateau", "inverse_sqrt")),
    "training.final_rate": ("training.schedule", ("plateau", "inverse_sqrt")),
    "training.decay": ("training.schedule", ("inverse_sqrt", "cosine", "linear")),
    "training.patience": ("training.schedule", ("inverse_sqrt", "cosine", "linear")),
    "training.min_learning_rate": ("training.schedule", ("inverse_sqrt", "cosine", "linear")),
    "training.ema_decay": ("training.average", ("none", "last")),
    "training.average_last": ("training.average", ("none", "ema")),
}
"""By each of them the setting that decides, and its values that do."""


def idle_settings(recipe: Recipe) -> list[str]:
    """A sentence for each setting that is not as it is by default and has no effect."""
    found = values_of(recipe)
    return [
        f"{key}={found[key]} has no effect, since {by} is {found[by]}."
        for key, (by, values) in _DECIDED_BY.items()
        if found[by] in values and found[key] != settings()[key].default
    ]
