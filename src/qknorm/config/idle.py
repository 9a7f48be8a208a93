"""Settings that were changed but do nothing, because another one leaves them without effect."""

from __future__ import annotations

from typing import Any

from qknorm.config.catalogue import settings
from qknorm.config.settings import Recipe

_DECIDED_BY: dict[str, tuple[str, tuple[Any, ...]]] = {
    **{f"subwords.dropout_{name}": ("subwords.dropout", (0.0,)) for name in ("on", "from", "passes")},
    "training.concatenate_passes": ("training.concatenate", (0.0,)),
    "training.backward_passes": ("training.backward", (0.0,)),
    "training.momentum": ("training.optimizer", ("adam", "adamw", "ademamix")),
    "training.slow_weight": ("training.optimizer", ("adam", "adamw", "muon")),
    "training.slow_beta": ("training.optimizer", ("adam", "adamw", "muon")),
    "training.hold_steps": ("training.schedule", ("plateau", "inverse_sqrt")),
    "training.decay": ("training.schedule", ("inverse_sqrt", "cosine", "linear")),
    "training.patience": ("training.schedule", ("inverse_sqrt", "cosine", "linear")),
    "training.min_learning_rate": ("training.schedule", ("inverse_sqrt", "cosine", "linear")),
    "training.ema_decay": ("training.average", ("none", "last")),
    "training.average_last": ("training.average", ("none", "ema")),
}
"""By each of them the setting that decides, and its values that do."""


def idle_settings(recipe: Recipe) -> list[str]:
    """A sentence for each setting that is not as it is by default and has no effect."""
    said = []
    for key, (by, values) in _DECIDED_BY.items():
        given, decides = _value(recipe, key), _value(recipe, by)
        if decides in values and given != settings()[key].default:
            said.append(f"{key}={given} has no effect, since {by} is {_plain(decides)}.")
    return said


def _value(recipe: Recipe, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(recipe, section), name)


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
