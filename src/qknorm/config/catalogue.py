"""The list of all settings, read off their declarations."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cache
from typing import Any

from qknorm.config.settings import Recipe


@dataclass(frozen=True)
class Setting:
    """One setting as declared; `key` is dotted, such as training.seed."""

    key: str
    about: str
    default: Any
    choices: tuple[str, ...]
    optional: bool
    is_path: bool


@cache
def settings() -> dict[str, Setting]:
    """Every setting by its key, in the order of declaration."""
    found: dict[str, Setting] = {}
    schema = Recipe.model_json_schema()
    for name, declared in schema["properties"].items():
        if "$ref" not in declared:
            found[name] = _setting(name, declared)
            continue
        for inner, inner_declared in _section(schema, declared)["properties"].items():
            found[f"{name}.{inner}"] = _setting(f"{name}.{inner}", inner_declared)
    return found


@cache
def sections() -> dict[str, str]:
    """Every section and what it is about."""
    schema = Recipe.model_json_schema()
    return {
        name: _joined(_section(schema, declared)["description"])
        for name, declared in schema["properties"].items()
        if "$ref" in declared
    }


def keys_of(section: str) -> list[str]:
    """The bare keys of a section; of the section "" those at the top, sections included."""
    if not section:
        return [*(key for key in settings() if "." not in key), *sections()]
    return [key.partition(".")[2] for key in settings() if key.startswith(f"{section}.")]


def unknown(key: str) -> str:
    """The sentence, without its full stop, that says a dotted key is not a setting and names the nearest."""
    section, _, name = key.rpartition(".")
    elsewhere = [known for known in [*settings(), *sections()] if known.rpartition(".")[2] == name]
    if section and section not in sections():
        top, _, rest = key.partition(".")
        near = difflib.get_close_matches(top, sections(), 1, 0.6)
        guess = f"{near[0]}.{rest}" if near else ""
        elsewhere = [guess] if guess in settings() else elsewhere
    if elsewhere:
        return f"{key} is not a setting; the nearest is {elsewhere[0]}"
    prefix = f"{section}." if section in sections() else ""
    names = keys_of(section if section in sections() else "")
    near = difflib.get_close_matches(name, names, 1, 0.6)
    if near:
        return f"{key} is not a setting; the nearest is {prefix}{near[0]}"
    near = difflib.get_close_matches(key, settings(), 1, 0.6)
    if near:
        return f"{key} is not a setting; the nearest is {near[0]}"
    where = f"in {section} there are" if prefix else "there are"
    return f"{key} is not a setting; {where} {', '.join(names)}"


def _section(schema: dict[str, Any], declared: dict[str, Any]) -> dict[str, Any]:
    """A section's declaration, which a JSON schema keeps aside."""
    section: dict[str, Any] = schema["$defs"][declared["$ref"].rpartition("/")[2]]
    return section


def _setting(key: str, declared: dict[str, Any]) -> Setting:
    shapes: list[dict[str, Any]] = declared.get("anyOf", [declared])
    return Setting(
        key=key,
        about=_joined(declared["description"]),
        default=declared["default"],
        choices=tuple(choice for shape in shapes for choice in shape.get("enum", ())),
        optional=any(shape.get("type") == "null" for shape in shapes),
        is_path=any(shape.get("format") == "path" for shape in shapes),
    )


def _joined(text: str) -> str:
    return " ".join(text.replace("``", "`").split())
