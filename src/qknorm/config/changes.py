"""What differs between two recipes, and whether a run can go on with it."""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

from qknorm.config.catalogue import settings
from qknorm.config.settings import Recipe

_FREE = {
    "name",
    "data.test_source",
    "data.test_target",
    "training.members",
    "training.max_epochs",
    "training.max_steps",
    "training.decay",
    "training.patience",
    "training.min_learning_rate",
    "training.precision",
    "training.stop_after",
    "training.validate_bleu",
    "training.max_bad_steps",
    "decoding.beam",
    "decoding.length_penalty",
    "decoding.length_penalty_from_dev",
    "decoding.max_extra",
    "decoding.batch_tokens",
}
"""What a run is tested on, how many models it has, when they end and how they are validated; every other
setting made their weights."""


class Change(NamedTuple):
    """A setting that differs; `breaking` if a run begun with the old value cannot go on with the new one."""

    key: str
    old: Any
    new: Any
    breaking: bool


def changed_settings(old: Recipe, new: Recipe) -> list[Change]:
    """The settings that differ, in the order of declaration."""
    before, after = values_of(old), values_of(new)
    return [
        Change(key, before[key], after[key], key not in _FREE)
        for key in settings()
        if before[key] != after[key]
    ]


def recipe_hash(recipe: Recipe) -> str:
    """SHA-256 of all settings but the name and the paths: the same experiment wherever its files lie."""
    values = {
        key: value
        for key, value in values_of(recipe).items()
        if key != "name" and not settings()[key].is_path
    }
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def values_of(recipe: Recipe) -> dict[str, Any]:
    """Every setting's value by its dotted key."""
    values = recipe.model_dump(mode="json")
    flat: dict[str, Any] = {}
    for key in settings():
        section, _, name = key.rpartition(".")
        flat[key] = values[section][name] if section else values[name]
    return flat
