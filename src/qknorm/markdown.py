"""Pieces of Markdown pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """A table; every row has as many cells as its head."""
    lines = [_row(head), "|" + "---|" * len(head), *map(_row, body)]
    return "\n".join(lines)


def bullets(lines: Iterable[str]) -> str:
    """A list."""
    return "\n".join(f"- {line}" for line in lines)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
