"""Pictures of a study of heads, one run or two side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from qknorm.analysis.heatmaps import EDGE, FAINT, INK
from qknorm.analysis.study import HeadStudy, KindStudy
from qknorm.analysis.weights import KINDS, Kind

RUNS = ("#2166ac", "#d6604d")
"""The colour of the first run, and of the second."""
NEAREST = 6.0
"""Points that a name keeps from other names and dots."""
SIDES = np.array([(9, 5), (-9, 5), (9, -5), (-9, -5), (0, 8), (0, -8), (11, 0), (-11, 0)])
"""Where the name of a dot may stand, in points from it; the first is the best."""
LEGEND_WIDTH = 100
"""Letters of both runs' names that a line above the measures has room for."""
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": EDGE,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "legend.frameon": False,
}


def measures_figure(studies: Sequence[HeadStudy]) -> Figure:
    """Every measure of every head by layer, a dot a head; the dashed line looks everywhere evenly."""
    names = list(studies[0].kinds["encoder"].figures())
    with matplotlib.rc_context(STYLE):
        height = 1.35 * len(names) + 0.9
        figure = Figure(figsize=(8.2, height))
        figure.subplots_adjust(
            0.09,
            0.5 / height,
            0.99,
            1 - (0.55 if _is_short(studies) else 0.7) / height,
            wspace=0.06,
            hspace=0.22,
        )
        grid = figure.subplots(len(names), len(KINDS), squeeze=False, sharex="col", sharey="row")
        for row, name in enumerate(names):
            for column, kind in enumerate(KINDS):
                axes = grid[row, column]
                for place, study in enumerate(studies):
                    _dots(axes, study.kinds[kind].figures()[name], place, len(studies))
                deepest = max(len(study.kinds[kind].g) for study in studies)
                axes.set_xticks(range(1, deepest + 1))
                axes.set_xlim(0.5, deepest + 0.5)
                even = studies[0].kinds[kind].even.get(name)
                if even is not None:
                    axes.axhline(even, color=FAINT, linewidth=0.8, linestyle="--")
                if row == 0:
                    axes.set_title(kind, size=9)
                if row == len(names) - 1:
                    axes.set_xlabel("layer")
                if column == 0:
                    axes.set_ylabel(name, size=9)
        if len(studies) > 1:
            figure.legend(*_legend(studies), loc="upper center", ncols=2 if _is_short(studies) else 1)
        return figure


def map_figure(studies: Sequence[HeadStudy]) -> Figure:
    """The heads of each kind on a map, near each other where they attend alike; colours are layers."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.6 * len(KINDS), 3.35 * len(studies)), layout="constrained")
        rows = _rows(figure, studies)
        for study, (part, grid) in zip(studies, rows, strict=True):
            for kind, axes in grid.items():
                each = study.kinds[kind]
                L, H = each.measures["entropy"].shape
                colours = ListedColormap(matplotlib.colormaps["viridis"](np.linspace(0, 0.88, L)))
                shown = axes.scatter(
                    *each.places.T, c=np.repeat(np.arange(L), H), cmap=colours, s=26, zorder=2
                )
                shown.set_clim(-0.5, L - 0.5)
                middle, half = _square(each.places)
                axes.set(xlim=middle[0] + half, ylim=middle[1] + half, aspect="equal")
                axes.grid(color="#e6e6e6", linewidth=0.6)
            bar = part.colorbar(shown, ax=list(grid.values()), shrink=0.7, ticks=range(L))
            bar.set_ticklabels([str(layer + 1) for layer in range(L)])
            bar.ax.tick_params(length=0)
            bar.set_label("layer")
            bar.outline.set_visible(False)
        figure.draw_without_rendering()  # from here on it is known where everything is
        for study, (_, grid) in zip(studies, rows, strict=True):
            for kind, axes in grid.items():
                _name_heads(axes, study.kinds[kind])
        return figure


def _square(places: Any) -> tuple[Any, Any]:
    """The middle of a square with room for all (N, 2) places and their names, and its edges from there."""
    low, high = places.min(axis=0), places.max(axis=0)
    return (low + high) / 2, np.array([-0.6, 0.6]) * (float((high - low).max()) or 1.0)


def _name_heads(axes: Any, heads: KindStudy) -> None:
    """Write layer.head beside each dot, where other dots and names are farthest, if they are far enough."""
    H = heads.measures["entropy"].shape[1]
    points = axes.transData.transform(heads.places) * 72 / axes.figure.dpi  # (N, 2)
    taken = list(points)
    for place, point in enumerate(points):
        others = np.array([each for i, each in enumerate(taken) if i != place] or [point - 99])
        away = [np.linalg.norm((others - point - side) / (1.6, 1), axis=1).min() for side in SIDES]
        if max(away) < NEAREST:
            continue
        side = SIDES[int(np.argmax(np.minimum(away, 9.0)))]  # the first that is far enough
        taken.append(point + side)
        name = f"{place // H + 1}.{place % H + 1}"
        middle = dict(ha="center", va="center", size=6, textcoords="offset points")
        axes.annotate(name, heads.places[place], side, **middle)


def importance_figure(studies: Sequence[HeadStudy]) -> Figure:
    """How much the loss rises without each head, in thousandths."""
    rises = [{kind: 1000 * each.figures()["importance"] for kind, each in s.kinds.items()} for s in studies]
    largest = max(float(np.abs(values).max()) for each in rises for values in each.values())
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.7 * len(KINDS), 2.9 * len(studies)), layout="constrained")
        for rise, (part, grid) in zip(rises, _rows(figure, studies), strict=True):
            for kind, axes in grid.items():
                values = rise[kind]
                L, H = values.shape
                shown = axes.imshow(values, cmap="RdBu_r", vmin=-largest, vmax=largest, aspect="auto")
                axes.set_xticks(range(H), [str(i + 1) for i in range(H)])
                axes.set_yticks(
                    range(L), [f"layer {i + 1}" for i in range(L)] if kind == KINDS[0] else [""] * L
                )
                axes.tick_params(length=0)
                axes.set_xlabel("head")
                if H <= 8:
                    for layer, head in np.ndindex(L, H):
                        strong = abs(values[layer, head]) > largest * 0.6
                        text = f"{values[layer, head]:+.1f}".replace("-", "−")
                        text = "0.0" if text[1:] == "0.0" else text
                        middle = dict(ha="center", va="center", size=6.5, color="white" if strong else INK)
                        axes.text(head, layer, text, **middle)
            bar = part.colorbar(shown, ax=list(grid.values()), shrink=0.7)
            bar.set_label("rise of the loss,\nthousandths of a nat a subword")
            bar.outline.set_visible(False)
        return figure


def _rows(figure: Figure, studies: Sequence[HeadStudy]) -> list[tuple[Any, dict[Kind, Any]]]:
    """A part of the figure for each run, under its name if there are two, and its axes by kind."""
    rows = []
    for study, part in zip(studies, figure.subfigures(len(studies), 1, squeeze=False)[:, 0], strict=True):
        if len(studies) > 1:
            part.suptitle(study.run, size=9, weight="bold")
        grid = dict(zip(KINDS, part.subplots(1, len(KINDS)), strict=True))
        for kind, axes in grid.items():
            axes.set_title(kind, size=9)
        rows.append((part, grid))
    return rows


def _is_short(studies: Sequence[HeadStudy]) -> bool:
    """Whether the names of the runs have room side by side."""
    return sum(len(study.run) for study in studies) <= LEGEND_WIDTH


def _dots(axes: Any, values: Any, place: int, runs: int) -> None:
    L, H = values.shape
    shift = 0.0 if runs == 1 else (place - 0.5) * 0.34
    spread = np.linspace(-0.1, 0.1, H) if H > 1 else np.zeros(1)
    x = np.arange(1, L + 1)[:, None] + shift + spread
    axes.scatter(x.ravel(), values.ravel(), s=9, color=RUNS[place], alpha=0.75, linewidths=0)
    axes.plot(np.arange(1, L + 1) + shift, values.mean(axis=1), color=RUNS[place], linewidth=0.9, alpha=0.8)


def _legend(studies: Sequence[HeadStudy]) -> tuple[list[Any], list[str]]:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour, marker="o", markersize=4, linewidth=1)
        for colour, _ in zip(RUNS, studies, strict=False)
    ]
    return handles, [study.run for study in studies]
