"""A study of heads as tables: on the terminal, and as a folder with a page, its figures and all numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from qknorm.analysis.contrast import SHUFFLES, Contrast
from qknorm.analysis.heatmaps import save
from qknorm.analysis.study import FIGURES, HeadStudy
from qknorm.analysis.study_figures import importance_figure, map_figure, measures_figure
from qknorm.data import write_atomic
from qknorm.markdown import bullets, table

Rows = list[list[str]]
FORMS = {"entropy": ".3f", "distance": ".2f", "apart": ".3f", "importance": "+.4f"}
"""How a figure is written; the others are shares, in per cent."""


def tables(studies: Sequence[HeadStudy], compared: Sequence[Contrast]) -> Iterator[str]:
    """What is printed: of one run every head and module, of two their distributions and modules."""
    if len(studies) == 1:
        yield _table("Heads", *head_rows(studies[0]))
    else:
        title = f"Heads of {studies[0].run} and {studies[1].run}: means, and whether the two differ"
        yield _table(title, *contrast_rows(studies, compared))
    for study in studies:
        title = "Modules" if len(studies) == 1 else f"Modules of {study.run}"
        yield _table(title, *module_rows(study))


def write_folder(folder: Path, studies: Sequence[HeadStudy], compared: Sequence[Contrast]) -> None:
    """heads.json, heads.md and its figures."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = {"measures.png": measures_figure, "map.png": map_figure}
    if _with_importance(studies):
        figures["importance.png"] = importance_figure
    for name, draw in figures.items():
        save(draw(studies), folder / name)
    about = {"runs": [study.to_json() for study in studies], "compared": [vars(each) for each in compared]}
    write_atomic(folder / "heads.json", json.dumps(about, indent=1, ensure_ascii=False) + "\n")
    write_atomic(folder / "heads.md", page(studies, compared))


def page(studies: Sequence[HeadStudy], compared: Sequence[Contrast]) -> str:
    """The study in Markdown."""
    about = [
        f"{study.run}: {study.sentences:,} sentence {'pair' if study.sentences == 1 else 'pairs'} of "
        f"{study.text}, loss {study.loss:.4f} nats a target subword."
        for study in studies
    ]
    parts = ["# What the heads do", *about]
    if len(studies) == 2:
        parts += [
            "## The two runs compared",
            table(*contrast_rows(studies, compared)),
            f"p is of a two-sided permutation test of the means ({SHUFFLES:,} shuffles), Holm's after "
            f"correction for all {len(compared)} comparisons; “first larger” is the chance that a head of "
            "the first run has the larger value (Mann–Whitney's U / nm). Heads are taken as exchangeable. "
            "Those of one model are not independent draws, so this compares these two models, not the two "
            "ways of training.",
        ]
    parts += [
        "## What each head does",
        "![every measure of every head, by layer](measures.png)",
        "A dot is a head, a line the mean of a layer; dashed is a head that looks everywhere evenly.",
        "## Which heads attend alike",
        "![a map of the heads](map.png)",
        "Heads near each other attend alike: classical scaling of Jensen–Shannon distances; colours are "
        "layers. Where there is room, heads have their names: layer.head.",
    ]
    if _with_importance(studies):
        parts += ["## Which heads are needed", "![the rise of the loss without each head](importance.png)"]
        parts += ["How much the loss on this text rises when one head's output is set to zero."]
    for study in studies:
        parts += [f"## Modules of {study.run}", table(*module_rows(study))]
        parts += [f"## Heads of {study.run}", table(*head_rows(study))]
    parts += ["## What the columns say", bullets(f"{name}: {says}" for name, says in FIGURES.items())]
    return "\n\n".join(parts) + "\n"


def head_rows(study: HeadStudy) -> tuple[list[str], Rows]:
    """Column names, and a row for every head; the row "even" is a head that looks everywhere evenly."""
    names = list(study.kinds["encoder"].figures())
    rows = []
    for kind, each in study.kinds.items():
        figures = each.figures()
        L, H = figures["entropy"].shape
        for layer in range(L):
            for head in range(H):
                values = [_form(name, figures[name][layer, head]) for name in names]
                rows.append([kind, str(layer + 1), str(head + 1), *values])
        even = [_form(name, each.even[name]) if name in each.even else "" for name in names]
        rows.append([kind, "", "even", *even])
    return ["kind", "layer", "head", *names], rows


def module_rows(study: HeadStudy) -> tuple[list[str], Rows]:
    """Column names, and a row for every attention module."""
    rows = []
    for kind, each in study.kinds.items():
        for layer, (g, largest) in enumerate(zip(each.g, each.max_logit, strict=True)):
            shown = "–" if g is None else f"{g[0]:.3f}" if len(g) == 1 else f"{min(g):.3f}…{max(g):.3f}"
            rows.append([kind, str(layer + 1), shown, f"{largest:.2f}"])
    return ["kind", "layer", "g", "largest |logit|"], rows


def contrast_rows(studies: Sequence[HeadStudy], compared: Sequence[Contrast]) -> tuple[list[str], Rows]:
    """Column names, and a row for every measure of every kind."""
    rows = [
        [
            each.kind,
            each.measure,
            _form(each.measure, each.first),
            _form(each.measure, each.second),
            f"{each.larger:.2f}",
            f"{each.p_value:.4f}",
            f"{each.p_holm:.4f}",
        ]
        for each in compared
    ]
    return ["kind", "measure", studies[0].run, studies[1].run, "first larger", "p", "p, Holm"], rows


def _with_importance(studies: Sequence[HeadStudy]) -> bool:
    return all(each.importance is not None for study in studies for each in study.kinds.values())


def _form(name: str, value: float) -> str:
    return format(value, FORMS.get(name, ".1%"))


def _table(title: str, columns: list[str], rows: Rows) -> str:
    """Columns side by side, words to the left and numbers to the right."""
    shown = [columns, *rows]
    widths = [max(len(row[place]) for row in shown) for place in range(len(columns))]
    left = [column in ("kind", "measure") for column in columns]
    lines = [
        "  ".join(
            cell.ljust(width) if words else cell.rjust(width)
            for cell, width, words in zip(row, widths, left, strict=True)
        ).rstrip()
        for row in shown
    ]
    return "\n".join([title, "", *lines, ""])
