"""Pictures of attention: a grid of heat maps, layers down and heads across, one block a kind.

All sizes are in inches.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from qknorm.analysis.direction import mostly_right_to_left
from qknorm.analysis.fonts import families
from qknorm.analysis.maps import AttentionMap
from qknorm.analysis.weights import Kind
from qknorm.data.text import replacing

TITLES: dict[Kind, tuple[str, str]] = {
    "encoder": ("Encoder", "each row, of the source, looks at the source"),
    "decoder": ("Decoder", "each row, being predicted, looks at what is there before it"),
    "cross": ("Cross", "each row, being predicted, looks at the source"),
}
INK = "#1a1a1a"
FAINT = "#6b6b6b"
EDGE = "#9a9a9a"
COLOURS = LinearSegmentedColormap.from_list(
    "attention", ["#ffffff", "#d3e3f3", "#8fbbdc", "#3f82bd", "#174a86", "#07204a"]
)
NARROWEST = 4.1
"""The titles have room in this."""
WIDEST = 36.0
"""A grid gets smaller cells rather than grow beyond this."""
CELL = (0.045, 0.10, 0.30)
"""Smallest cell; that of a large grid; that of a single map."""
DRAWN = str.maketrans({"▁": "_", "$": r"\$"})
READABLE = 0.078
"""Where cells are lower than this, only every second, third, … token is written beside them."""
GAP = 0.09
TITLE = 0.36
PIXELS = 6000
"""A PNG is at most about this wide or high."""


@dataclass(frozen=True)
class Grid:
    """One kind's maps, and which of its layers and heads are drawn, from 0."""

    seen: AttentionMap
    layers: Sequence[int]
    heads: Sequence[int]
    title: tuple[str, str] | None = None
    """What stands above it, and in smaller print after that; None for what its kind says."""

    @property
    def panels(self) -> list[list[tuple[int, int]]]:
        """Rows of (layer, head). Heads of a single layer are wrapped into a rectangle."""
        if len(self.layers) > 1:
            return [[(layer, head) for head in self.heads] for layer in self.layers]
        width = len(self.heads) if len(self.heads) <= 4 else math.ceil(math.sqrt(len(self.heads)))
        pairs = [(self.layers[0], head) for head in self.heads]
        return [pairs[start : start + width] for start in range(0, len(pairs), width)]


def draw(grids: Sequence[Grid], cell: float | None = None) -> Figure:
    """All grids in one figure, one below the other, with one scale of colours.

    ``cell`` is the side of a cell where it matters how large the figure is; by default as large as is good.
    """
    texts = [token for grid in grids for token in (*grid.seen.rows, *grid.seen.columns)]
    with matplotlib.rc_context({"font.family": families(texts)[0]}):
        return _draw(grids, _cell(grids) if cell is None else cell)


def save(figure: Figure, path: Path) -> None:
    """Write a picture in the format of its name: png, svg or pdf."""
    longest = max(figure.get_size_inches())
    truetype = matplotlib.rc_context({"pdf.fonttype": 42})  # publishers refuse Type 3
    with truetype, warnings.catch_warnings(), replacing(path) as file:
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(file, format=path.suffix[1:].lower(), dpi=min(200.0, PIXELS / longest))


def _draw(grids: Sequence[Grid], cell: float) -> Figure:
    size = min(9.0, max(cell, READABLE) * 72 * 0.82)  # of tokens, in points
    blocks = [_Block(grid, cell, size) for grid in grids]
    width = max(block.width for block in blocks) + 0.2
    height = sum(block.height for block in blocks) + 0.45
    figure = Figure(figsize=(max(width, NARROWEST), height))
    top = height
    for block in blocks:
        block.draw(figure, top)
        top -= block.height
    _scale(figure, blocks[0].left)
    return figure


def _cell(grids: Sequence[Grid]) -> float:
    """How large a cell may be: as on paper where there are few, smaller for grids."""
    most = max(len(row) for grid in grids for row in grid.panels)
    columns = max(len(grid.seen.columns) for grid in grids)
    smallest, usual, largest = CELL
    alone = most == 1 and all(len(grid.panels) == 1 for grid in grids)
    wanted = largest if alone else max(usual, min(0.2, 12 / (most * columns)))
    return max(smallest, min(wanted, WIDEST / (most * columns)))


class _Block:
    """Where the panels of one grid go."""

    def __init__(self, grid: Grid, cell: float, size: float) -> None:
        self.grid, self.cell, self.size = grid, cell, size
        self.panels = grid.panels
        T, S = len(grid.seen.rows), len(grid.seen.columns)
        self.panel = max(S * cell, 0.5), max(T * cell, 0.4)
        beside = _longest(grid.seen.rows, size)
        self.left = 0.15 + beside + (0.3 if len(grid.layers) > 1 else 0.1)
        self.below = _longest(grid.seen.columns, size) + 0.12
        self.head = 0.2
        rows = len(self.panels)
        self.between = self.head if len(grid.layers) == 1 else GAP
        self.width = self.left + len(self.panels[0]) * (self.panel[0] + GAP)
        self.height = TITLE + self.head + rows * self.panel[1] + (rows - 1) * self.between + self.below + 0.1

    def draw(self, figure: Figure, top: float) -> None:
        """Draw it with its upper edge at this height of the figure."""
        width, height = figure.get_size_inches()
        seen, (w, h) = self.grid.seen, self.panel
        name, meaning = self.grid.title or TITLES[seen.kind]
        left, line = 0.12 / width, (top - 0.24) / height
        family = matplotlib.rcParams["font.family"][:1]  # not every other one has a bold face
        figure.text(left, line, name, size=9, weight="bold", color=INK, family=family)
        figure.text(left + 0.75 / width, line, meaning, size=7, color=FAINT)
        several = len(self.grid.layers) > 1
        for row, panels in enumerate(self.panels):
            bottom = top - TITLE - self.head - (row + 1) * h - row * self.between
            for column, (layer, head) in enumerate(panels):
                left = self.left + column * (w + GAP)
                axes = figure.add_axes((left / width, bottom / height, w / width, h / height))
                last = row == len(self.panels) - 1 or column >= len(self.panels[row + 1])
                self._panel(axes, seen.weights[layer, head], column == 0, last)
                if row == 0 or not several:
                    name = f"head {head + 1}" if several else f"layer {layer + 1}, head {head + 1}"
                    axes.set_title(name, size=7, color=FAINT, pad=3)
            if several:
                middle = (bottom + h / 2) / height
                label = f"layer {panels[0][0] + 1}"
                figure.text(0.08 / width, middle, label, rotation=90, va="center", size=7, color=FAINT)

    def _panel(self, axes: Any, weights: NDArray[np.float32], named: bool, bottom: bool) -> None:
        """One head's (T, S) weights."""
        seen = self.grid.seen
        T, S = weights.shape
        axes.imshow(weights, cmap=COLOURS, norm=_norm(), aspect="auto", interpolation="nearest")
        if mostly_right_to_left(seen.columns):
            axes.invert_xaxis()
        for side in axes.spines.values():
            side.set(linewidth=0.4, color=EDGE)
        every = max(1, math.ceil(READABLE / self.cell))
        axes.set_xticks(range(0, S, every) if bottom else [])
        axes.set_yticks(range(0, T, every) if named else [])
        if bottom:
            axes.set_xticklabels([_shown(t) for t in seen.columns[::every]], rotation=90, size=self.size)
        if named:
            axes.set_yticklabels([_shown(t) for t in seen.rows[::every]], size=self.size)
        axes.tick_params(length=0, pad=2, colors=INK)


def _norm() -> PowerNorm:
    """Square-root colours: what is spread over many tokens can still be seen."""
    return PowerNorm(0.5, vmin=0.0, vmax=1.0)


def _scale(figure: Figure, left: float) -> None:
    """The scale of colours, at the foot of the figure."""
    width, height = figure.get_size_inches()
    axes = figure.add_axes((left / width, 0.28 / height, min(1.8, width - left - 0.3) / width, 0.07 / height))
    shown = matplotlib.cm.ScalarMappable(norm=_norm(), cmap=COLOURS)
    bar = figure.colorbar(shown, cax=axes, orientation="horizontal", ticks=[0, 0.1, 0.25, 0.5, 1])
    bar.ax.set_xticklabels(["0", "0.1", "0.25", "0.5", "1"], size=6.5)
    bar.ax.tick_params(length=2, pad=1.5, colors=FAINT)
    bar.outline.set(linewidth=0.4, edgecolor=EDGE)
    bar.ax.text(1.04, 0.5, "weight", transform=axes.transAxes, size=6.5, va="center", color=FAINT)


def _longest(tokens: Sequence[str], size: float) -> float:
    """The width of the widest token."""
    figure = Figure()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        boxes = [figure.text(0, 0, _shown(token), size=size).get_window_extent() for token in tokens]
    return float(max(box.width for box in boxes)) / float(figure.dpi)


def _shown(token: str) -> str:
    """A token as a label: a lighter mark for its space, nothing taken for mathematics, a long one cut."""
    cut = token if len(token) <= 24 else token[:23] + "…"
    return "".join(c if c.isprintable() or c in "\u200c\u200d" else "·" for c in cut).translate(DRAWN)
