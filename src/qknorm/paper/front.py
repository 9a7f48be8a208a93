"""``results/README.md``: the one page to read, made from the JSON of every target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qknorm.markdown import bullets, table
from qknorm.paper.experiments import PAIRS, TARGETS
from qknorm.paper.page import CHOSEN, cost, diffuse, group_title, number, p_values, verdict
from qknorm.paper.summary import read_summary

HEAD = """\
# Results

*Query-Key Normalization for Transformers* (Henry et al. 2020), the paper's figures beside ours. Each line is
trained by `qknorm reproduce`; behind each figure are its recipe, history and translations in `runs/`, from
which `qknorm score` and `qknorm compare` give it again. p is of a paired bootstrap against the table's
reference row, one for each seed. """


def render_front(results: Path) -> str:
    """The page, from what lies in a folder of results."""
    found = [read_summary(results / f"{name}.json") for name in TARGETS]
    summaries = [summary for summary in found if summary is not None]
    parts = [HEAD + CHOSEN, _cost(summaries)]
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
    """Which rows were not run, in a sentence."""
    missing = [row for row in group["rows"] if row["status"] != "done"]
    if not missing:
        return f"All {len(group['rows'])} rows were run."
    if len(missing) == len(group["rows"]):
        return f"None of the {len(missing)} rows has been run yet; {summary['target']}.md says how."
    named = "; ".join(f"{PAIRS[row['pair']].arrow}, {row['label']} ({row['status']})" for row in missing)
    return f"Not done: {named}."


def _others(results: Path) -> list[str]:
    """Links to the pages that other measurements have left in the folder."""
    own = {"README.md", *(f"{name}.md" for name in TARGETS)}
    lines = []
    for page in sorted(results.glob("*.md")):
        if page.name not in own:
            title = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()
            lines.append(f"[{title}]({page.name})")
    return ["## Other measurements", bullets(lines)] if lines else []
