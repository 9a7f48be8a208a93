"""Recipes on disk: read, overridden, checked, and written back."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from qknorm.config import yaml_text
from qknorm.config.catalogue import sections, settings, unknown
from qknorm.config.complaints import sentences
from qknorm.config.settings import Recipe
from qknorm.errors import UserError


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe; `overrides` are of the form training.seed=3.

    Paths in the file are relative to the file's folder, paths in overrides to the current one.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"There is no recipe {path}; check the name and the folder.") from None
    except OSError as error:
        raise UserError(f"The recipe {path} cannot be read: {error.strerror}.") from None
    written = yaml_text.read(content, lambda line: f"{path} line {line}" if line else str(path))
    origins = {key: f"{path} line {line}" for key, line in written.lines.items()} | {"": str(path)}
    data = written.values.get("data")
    if isinstance(data, dict):
        for key, value in data.items():
            if isinstance(value, str) and _is_path(f"data.{key}"):
                data[key] = os.path.join(path.parent, os.path.expanduser(value))
    return _build(written.values, overrides, origins)


def make_recipe(values: Mapping[str, Any], overrides: Sequence[str] = ()) -> Recipe:
    """A recipe from settings by section, as a preset gives them; a mistake in them is a UserError."""
    plain: dict[str, Any] = json.loads(json.dumps(values, default=_plain))
    return _build(plain, overrides, {})


def dump_recipe(recipe: Recipe) -> str:
    """The recipe with every setting written out; it loads back equal."""
    return yaml_text.write(recipe.model_dump(mode="json"))


def _build(values: dict[str, Any], overrides: Sequence[str], origins: dict[str, str]) -> Recipe:
    # A section with nothing in it (all its lines are comments) is a section of defaults.
    values = {key: {} if value is None and key in sections() else value for key, value in values.items()}
    for override in overrides:
        _override(values, override, origins)
    try:
        # JSON, because there strict means what a recipe means: "3" is not 3, but a string can be a path.
        return Recipe.model_validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        raise UserError(sentences(error, origins)) from None


def _override(values: dict[str, Any], override: str, origins: dict[str, str]) -> None:
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals:
        raise UserError(f"--set {override} has no value; write it as --set training.seed=3.")
    where = f"--set {key}"
    if key not in settings():
        if key in sections():
            raise UserError(f"{where}: {key} is a section; name a setting in it, such as {_first_in(key)}.")
        raise UserError(f"{where}: {unknown(key)}.")
    section, _, name = key.rpartition(".")
    inner = values.setdefault(section, {}) if section else values
    if isinstance(inner, dict):
        inner[name] = yaml_text.read_value(text, key, lambda _: where)
        origins[key] = where


def _is_path(key: str) -> bool:
    return key in settings() and settings()[key].is_path


def _first_in(section: str) -> str:
    return next(key for key in settings() if key.startswith(f"{section}."))


def _plain(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{value!r} is not a setting's value")
