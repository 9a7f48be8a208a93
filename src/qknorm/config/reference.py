"""The page of all settings, `recipes/reference.yaml`, made from their declarations."""

from __future__ import annotations

import textwrap

from qknorm.config import yaml_text
from qknorm.config.catalogue import Setting, sections, settings

_HEAD = """\
# Every setting, with what it means and its default. A recipe holds those it wants otherwise.
# Made by `python -m qknorm.config > recipes/reference.yaml`: change the declarations, not this file.

"""


def reference() -> str:
    """A recipe of all defaults, each setting with its description."""
    parts = [_HEAD]
    current = ""
    for key, setting in settings().items():
        section = key.rpartition(".")[0]
        if section != current:
            parts.append(f"\n{_comment(sections()[section], '')}{section}:\n")
            current = section
        parts.append(_entry(setting, "  " if section else ""))
    return "".join(parts)


def _entry(setting: Setting, indent: str) -> str:
    about = setting.about
    if setting.choices:
        choices = [*setting.choices, *(["null"] if setting.optional else [])]
        about += f" One of: {', '.join(choices)}."
    line = yaml_text.write({setting.key.rpartition(".")[2]: setting.default})
    return f"{_comment(about, indent)}{indent}{line}"


def _comment(text: str, indent: str) -> str:
    lines = textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False)
    return "".join(f"{indent}# {line}\n" for line in lines)
