"""``results/README.md``: the one page to read, made from the JSON of every target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qknorm.markdown import bullets, table
from qknorm.paper.experiments import PAIRS, TARGETS
from qknorm.paper.page import CHOSEN, cost, diffuse, group_title, number, p_values, verdict
from qknorm.paper.summary import read_summary

FEW = 3
"""Rows of a pair that were not run are named if they are no more than this."""

HEAD = """\
# Results

*Query-Key Normalization for Transformers* (Henry et al. 2020), the paper's figures beside ours. Each line is
what `qknorm reproduce` trains; behind each figure are its recipe, history and translations in `runs/`, from
which `qknorm score` and `qknorm compare` give it again. p is of a paired bootstrap against the table's
reference row, one for each seed. """


def render_front(results: Path) -> str:
    """The page, from what lies in a folder of results."""
    found = [read_summary(results / f"{name}.json") for name in TARGETS]
    summaries = [summary for summary in found if summary is not None]
    parts = [HEAD + CHOSEN, _cost(summaries), *_glance(summaries)]
    for summary in summaries:
        parts += _target(summary)
    parts += _others(results)
    return "\n\n".join(parts) + "\n"


def _cost(summaries: list[dict[str, Any]]) -> str:
    groups = [group for summary in summaries for group in summary["groups"]]
    done = [row for group in groups for row in group["rows"] if row["status"] == "done"]
    if not done:
        return "No run has been recorded yet."
    count = len({name for row in done for name in row["runs"]})
    return f"Runs recorded: {count}, which took {cost(done)}."


def _glance(summaries: list[dict[str, Any]]) -> list[str]:
    """One line for each target and recipe of which something was run: how much, what holds, what it took."""
    body = []
    for summary in summaries:
        for group in summary["groups"]:
            done = [row for row in group["rows"] if row["status"] == "done"]
            if not done:
                continue
            title = f"[{summary['title']}]({summary['target']}.md)"
            told = [len(group[which]) for which in ("holds", "fails", "undecided")]
            counts = list(map(str, told)) if any(told) else ["–"] * 3
            rows = f"{len(done)} of {len(group['rows'])}"
            body.append([title, group_title(group), rows, *counts, cost(done)])
    if not body:
        return []
    head = ["", "trained by", "rows run", "holds", "does not", "inside the noise", "took"]
    return [
        "## At a glance",
        "Of what the paper says of the rows of a table that were run: how much holds here, how much does "
        "not, and how much is less than the noise between seeds. Tables share runs, so minutes do not add "
        "up.",
        table(head, body),
    ]


def _target(summary: dict[str, Any]) -> list[str]:
    """A target in short: each row run, what holds, and what was not run."""
    parts = [f"## [{summary['title']}]({summary['target']}.md)", " ".join(summary["about"])]
    if summary.get("image"):
        parts += [f"![{summary['title']}]({summary['image']['file']})", diffuse(summary["image"])]
    for group in summary["groups"]:
        parts.append(f"**{group_title(group)}.** " + _missing(summary, group))
        done = [row for row in group["rows"] if row["status"] == "done"]
        if done:
            parts.append(table(["pair", "row", "paper", "ours", "seeds", "p"], map(_row, done)))
            parts += [f"† {caveat}" for caveat in dict.fromkeys(row["caveat"] for row in done) if caveat]
            parts += verdict(group)
            parts.append(f"It took {cost(done)}.")
    return parts


def _row(row: dict[str, Any]) -> list[str]:
    spread = "" if row["spread"] is None else f" ± {row['spread']:.2f}"
    return [
        PAIRS[row["pair"]].arrow + ("†" if row["caveat"] else ""),
        row["label"],
        number(row["paper"]),
        number(row["ours"]) + spread,
        str(len(row["seeds"])),
        p_values(row),
    ]


def _missing(summary: dict[str, Any], group: dict[str, Any]) -> str:
    """Which rows were not run, in a sentence or two."""
    rows = group["rows"]
    missing = [row for row in rows if row["status"] != "done"]
    if not missing:
        return f"All {len(rows)} rows were run."
    page = f"[{summary['target']}.md]({summary['target']}.md) says how."
    if len(missing) == len(rows):
        return f"None of the {len(missing)} rows has been run yet; {page}"
    pairs = {pair: [row for row in missing if row["pair"] == pair] for pair in PAIRS}
    absent = [pair for pair, own in pairs.items() if own and not any(map(_told, own))]
    named = [
        f"{PAIRS[pair].arrow}, {_labels(own)}" for pair, own in pairs.items() if own and pair not in absent
    ]
    if absent:
        arrows = ", ".join(PAIRS[pair].arrow for pair in absent)
        named.append(f"for want of the corpus, {arrows}")
    return f"{len(rows) - len(missing)} of {len(rows)} rows were run. Not done: {'; '.join(named)}; {page}"


def _told(row: dict[str, Any]) -> bool:
    """Whether there is more to say of a row that was not run than that its corpus is absent."""
    return bool(row["corpus_here"] or row["status"] == "failed")


def _labels(rows: list[dict[str, Any]]) -> str:
    """The rows by name, where they are few; those that failed by name always."""
    failed = [f"{row['label']} (failed)" for row in rows if row["status"] == "failed"]
    others = [row["label"] for row in rows if row["status"] != "failed"]
    if len(others) > FEW:
        others = [f"{len(others)} more" if failed else f"{len(others)} rows"]
    return " and ".join(filter(None, [", ".join(failed), ", ".join(others)]))


def _others(results: Path) -> list[str]:
    """Links to the pages that other measurements have left in the folder."""
    own = {"README.md", *(f"{name}.md" for name in TARGETS)}
    lines = []
    for page in sorted(results.glob("*.md")):
        if page.name not in own:
            title = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()
            lines.append(f"[{title}]({page.name})")
    return ["## Other measurements", bullets(lines)] if lines else []
