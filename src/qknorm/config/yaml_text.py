"""YAML as recipes use it: sections of single values, each with the line it stands on.

Plain values mean what YAML 1.2 says: 1e-4 is a number, and `no` is Norwegian, not false.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml

from qknorm.errors import UserError

_TAG = "tag:yaml.org,2002:"
_PLAIN = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?",
        list("-+.0123456789"),
    ),
)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """YAML takes some characters for line breaks that we do not; quoted, they are escaped."""
    style = '"' if any(character in text for character in "\x85\u2028\u2029") else None
    return dumper.represent_scalar(_TAG + "str", text, style=style)


_Dumper.add_representer(str, _text)
for _class in (_Loader, _Dumper):
    for _name, _pattern, _first in _PLAIN:
        _class.add_implicit_resolver(_TAG + _name, re.compile(rf"^(?:{_pattern})$"), _first)


@dataclass(frozen=True)
class Written:
    """A recipe as written: its settings by section, and the line of every key (dotted)."""

    values: dict[str, Any]
    lines: dict[str, int]


Place = Callable[[int | None], str]
"""What to call a line in an error; without a number, the whole text."""


def read(content: bytes, place: Place) -> Written:
    """Read a recipe's text."""
    root = _compose(content, place)
    lines: dict[str, int] = {}
    if root is None or _is_empty(root):
        return Written({}, lines)
    if not isinstance(root, yaml.MappingNode):
        raise UserError(f"{place(None)} is not a recipe: it must be made of lines such as `name: run`.")
    values: dict[str, Any] = {}
    for key, node in _entries(root, "", place, lines):
        if isinstance(node, yaml.MappingNode):
            values[key] = {
                inner: _scalar(value, f"{key}.{inner}", place)
                for inner, value in _entries(node, f"{key}.", place, lines)
            }
        else:
            values[key] = _scalar(node, key, place)
    return Written(values, lines)


def read_value(text: str, key: str, place: Place) -> Any:
    """A single value, as it would be written after its key."""
    node = _compose(text.encode(), place)
    return None if node is None else _scalar(node, key, place)


def write(values: dict[str, Any]) -> str:
    """YAML that reads back as `values`."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1 << 20)


def _compose(content: bytes, place: Place) -> yaml.Node | None:
    try:
        node: yaml.Node | None = yaml.compose(content, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = place(mark.line + 1 if mark else None)
        raise UserError(f"{where} is not YAML: {error.problem or error.context}.") from None
    except yaml.YAMLError as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{place(None)} is not plain text in UTF-8: {reason}.") from None
    except RecursionError:
        raise UserError(f"{place(None)} is not a recipe: lists or sections are nested too deeply.") from None
    return node


def _entries(
    mapping: yaml.MappingNode, prefix: str, place: Place, lines: dict[str, int]
) -> list[tuple[str, yaml.Node]]:
    """Keys and values of one level; a key that is not text or comes twice is an error."""
    found: list[tuple[str, yaml.Node]] = []
    for key, value in mapping.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise UserError(f"{place(line)}: a key must be a name, not a list or a section.")
        name = f"{prefix}{key.value}"
        if name in lines:
            raise UserError(
                f"{place(line)}: {name} is there already, on line {lines[name]}; keep one of the two."
            )
        lines[name] = line
        found.append((key.value, value))
    return found


def _scalar(node: yaml.Node, key: str, place: Place) -> Any:
    where = place(node.start_mark.line + 1)
    if not isinstance(node, yaml.ScalarNode):
        kind = "a list" if isinstance(node, yaml.SequenceNode) else "a section"
        raise UserError(f"{where}: {key} must not be {kind}.")
    text: str = node.value
    try:
        match node.tag.removeprefix(_TAG):
            case "str":
                return text
            case "null":
                return None
            case "bool":
                return {"true": True, "false": False}[text.lower()]
            case "int":
                return int(text)
            case "float":
                return float(text)
    except (ValueError, KeyError):
        pass
    raise UserError(f"{where}: the value of {key} cannot be read; write it without the tag {node.tag}.")


def _is_empty(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == f"{_TAG}null"
