"""What pydantic found wrong, in sentences for the user."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from qknorm.config.catalogue import Setting, sections, settings, unknown

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "path_type": "a path",
}
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def sentences(error: ValidationError, origins: Mapping[str, str]) -> str:
    """One sentence a fault, a line each, in the order of `origins`, which says where each key was written."""
    faults = [_explained(dict(fault)) for fault in error.errors(include_url=False)]
    order = {key: place for place, key in enumerate(origins)}
    faults.sort(key=lambda fault: order.get(fault[0], len(order)))
    return "\n".join(f"{_origin(key, origins)}{text}." for key, text in faults)


def _explained(fault: dict[str, Any]) -> tuple[str, str]:
    """The key to blame, and what is wrong with it."""
    key = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "value_error":
        # A rule across settings begins with the name of the one to blame.
        text = f"{key}.{fault['ctx']['error']}".removeprefix(".")
        return text.split()[0], text
    if fault["type"] in _UNKNOWN:
        return key, unknown(key)
    if not key:
        return key, f"the recipe cannot be read: {fault['msg']}"
    given = json.dumps(fault["input"], ensure_ascii=False)
    if key in sections():
        return key, f"{key} must be a section with settings of its own, not {given}"
    return key, f"{key} must be {_wanted(fault, settings()[key])}, not {given}"


def _origin(key: str, origins: Mapping[str, str]) -> str:
    """Where a key was written, or its section, or else the file."""
    for place in (key, key.partition(".")[0], ""):
        if place in origins:
            return f"{origins[place]}: "
    return ""


def _wanted(fault: dict[str, Any], setting: Setting) -> str:
    """What a setting may be."""
    kind: str = fault["type"]
    if kind == "literal_error":
        wanted = "one of " + ", ".join(setting.choices)
    elif kind == "string_pattern_mismatch":
        wanted = "a name without slashes"
    elif kind in _KINDS:
        wanted = _KINDS[kind]
    else:
        bound, limit = next(iter(fault["ctx"].items()))
        wanted = f"{_BOUNDS[bound]} {limit:g}"
    return f"{wanted} or null" if setting.optional else wanted
