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
    near = _nearest(key)
    if near:
        return f"{key} is not a setting; the nearest is {near}"
    section = key.rpartition(".")[0]
    if section in sections():
        return f"{key} is not a setting; in {section} there are {', '.join(keys_of(section))}"
    return f"{key} is not a setting; there are {', '.join(keys_of(''))}"


def _nearest(key: str) -> str | None:
    """The key of the same name in another section, else one spelt alike in its own, else anywhere."""
    section, _, name = key.rpartition(".")
    known = [*settings(), *sections()]
    same_name = [other for other in known if other.rpartition(".")[2] == name]
    if same_name:
        return difflib.get_close_matches(key, same_name, 1, 0.0)[0]
    own = [other for other in known if other.rpartition(".")[0] == section]
    for candidates in (own, known):
        by_name = {other.rpartition(".")[2]: other for other in candidates}
        near = difflib.get_close_matches(name, by_name, 1, 0.6)
        if near:
            return by_name[near[0]]
    return None


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
