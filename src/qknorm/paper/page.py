"""The page of a target, made from its JSON and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qknorm.markdown import bullets, table
from qknorm.paper.experiments import PAIRS
from qknorm.scoring.render import LABELS

KIND_TITLES = {
    "paper": "The paper's settings",
    "fast": "The fast recipe",
    "annotated": "The recipe of recipes/annotated",
}
CHOSEN = "Nothing is chosen on test text: the weights tested are those of the epoch with the best dev BLEU."


def render_page(summary: dict[str, Any]) -> str:
    """The page as Markdown."""
    parts = [f"# {summary['title']}", " ".join([*summary["about"], CHOSEN])]
    if "image" in summary:
        parts += _figure(summary)
    for group in summary["groups"]:
        parts.append(f"## {group_title(group)}")
        parts += _group(summary, group)
    parts.append(f"Made by `qknorm reproduce {summary['target']}` from `{summary['target']}.json`.")
    return "\n\n".join(parts) + "\n"


def group_title(group: dict[str, Any]) -> str:
    """The recipes of a group, and the user's own settings."""
    title = KIND_TITLES[group["recipe"]]
    return f"{title}, with {', '.join(group['overrides'])}" if group["overrides"] else title


def _group(summary: dict[str, Any], group: dict[str, Any]) -> list[str]:
    rows = group["rows"]
    done = [row for row in rows if row["status"] == "done"]
    parts = []
    if done:
        parts.append(facts_table(rows) if rows[0]["paper_facts"] else result_table(summary, rows))
        parts.append(_reading(summary, done))
        parts += [f"{PAIRS[row['pair']].arrow}, {row['label']}: {row['note']}" for row in done if row["note"]]
        parts += verdict(group)
        parts.append(_behind(done))
    parts += not_run(rows)
    if done:
        parts.append(f"Together {cost(done)}.")
    return parts


def result_table(summary: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """The paper's figure beside ours, the difference, and the test against the reference row.

    Rows of which neither the paper nor we have a figure are left to the list of what was not run.
    """
    against = summary["against"]
    head = ["pair", "row", "paper", "ours", "spread", "ours − paper", "dev", "seeds", "minutes"]
    if against is not None:
        head[-1:] = [f"against {against}", "p", "minutes"]
    body = []
    for row in rows:
        if row["status"] == "not run" and row["paper"] is None:
            continue
        if row["status"] != "done":
            blank = ["–"] * (len(head) - 4)
            body.append([PAIRS[row["pair"]].arrow, row["label"], number(row["paper"]), row["status"], *blank])
            continue
        cells = [
            PAIRS[row["pair"]].arrow + ("†" if row["caveat"] else ""),
            row["label"],
            number(row["paper"]),
            number(row["ours"]),
            number(row["spread"]),
            number(row["difference"], "+.2f"),
            number(_mean(row["dev"])),
            ", ".join(map(str, row["seeds"])),
        ]
        if against is not None:
            cells += [number(row["gain"], "+.2f"), p_values(row)]
        cells.append(f"{sum(row['run_minutes'].values()):.1f}")
        body.append(cells)
    return table(head, body)


def p_values(row: dict[str, Any]) -> str:
    """Of the paired bootstrap, one for each seed."""
    return ", ".join(f"{test['p_value']:.3f}" for test in row["tests"]) or "–"


def facts_table(rows: Sequence[dict[str, Any]]) -> str:
    """Table 1: each fact as the paper has it and as it is here."""
    head = ["pair", "", "examples", "tokens", "parameters", "hours", "dev BLEU", "L", "GPU"]
    body = []
    for row in rows:
        paper = row["paper_facts"]
        body.append([PAIRS[row["pair"]].arrow, "paper", *_fact_cells(paper, row["paper"])])
        if row["status"] == "done":
            mark = "ours†" if row["caveat"] else "ours"
            body.append(["", mark, *_fact_cells(row["facts"], row["ours"])])
        else:
            body.append(["", row["status"], *["–"] * 7])
    return table(head, body)


def _fact_cells(facts: dict[str, Any], dev: float | None) -> list[str]:
    return [
        f"{facts['examples']:,}",
        f"{facts['tokens']:,}",
        f"{facts['parameters']:,}",
        f"{facts['hours']:.3g}",
        number(dev),
        "–" if facts["L"] is None else f"{facts['L']:g}",
        str(facts["gpu"]),
    ]


def verdict(group: dict[str, Any]) -> list[str]:
    """What of the paper holds here and what does not."""
    parts = []
    if group["holds"]:
        parts.append("What holds here:\n\n" + bullets(group["holds"]))
    if group["fails"]:
        parts.append("What does not:\n\n" + bullets(group["fails"]))
    if group["undecided"]:
        parts.append("Inside the noise between seeds, so neither:\n\n" + bullets(group["undecided"]))
    if group["orderings"] > 1:
        parts.append(
            f"Of the {group['orderings']} pairwise orderings of the paper among the rows run, "
            f"{group['orderings_right']} hold."
        )
    parts += [
        f"The standard deviation between seeds on {PAIRS[pair].arrow} is {spread:.2f} BLEU."
        for pair, spread in group["noise"].items()
    ]
    return parts


def not_run(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Runs that failed or are no longer what their row asks for, rows that are yet to be run, and how."""
    lines: list[str] = []
    waiting: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        name = f"{PAIRS[row['pair']].arrow}, {row['label']}"
        lines += [f"{name}, seed {failed['seed']}: failed. {failed['why']}" for failed in row["failures"]]
        lines += [f"{name}: {words}" for words in row["stale"]]
        if row["status"] != "done":
            waiting.setdefault((row["pair"], row["command"]), []).append(row)
    for (pair, command), these in waiting.items():
        named = ", ".join(row["label"] for row in these)
        get = (
            ""
            if these[0]["corpus_here"]
            else f"the corpus is not at hand; get it with `{these[0]['get']}`, then "
        )
        lines.append(f"{PAIRS[pair].arrow}, {named}: {get}`{command}`")
    return ["Not run, and what to do for it:\n\n" + bullets(lines)] if lines else []


def _reading(summary: dict[str, Any], done: Sequence[dict[str, Any]]) -> str:
    """How the columns are to be read."""
    figures = {row["figure"] for row in done}
    named = "; ".join(f"{figure}: {LABELS[figure.partition('.')[2]][1]}" for figure in sorted(figures))
    words = [
        f"Figures: {named}.",
        "Ours is the mean over seeds and spread their standard deviation.",
        "Minutes are from the start of the command to the end of training, test not yet translated; those of "
        "all seeds added up.",
    ]
    if any(row["side_by_side"] for row in done):
        words.append(
            "Some rows were trained several at a time: they shared the device, and their minutes add up to "
            "more than it was held."
        )
    if summary["against"] is not None:
        words.append(
            "p: paired bootstrap for each seed, on tokenised BLEU for tokenised text and SacreBLEU for raw."
        )
    if not summary["comparable"]:
        words.append("The corpus is not the paper's, so no difference from its figures is given.")
    words += [f"† {caveat}" for caveat in dict.fromkeys(row["caveat"] for row in done) if caveat]
    return " ".join(words)


def _behind(done: Sequence[dict[str, Any]]) -> str:
    """Where each figure comes from: runs, hashes, the command, signatures."""
    body = []
    for row in done:
        runs = ", ".join(f"[{name}](runs/{name}/record.json)" for name in row["runs"])
        hashes = ", ".join(f"`{each[:12]}`" for each in row["experiments"])
        body.append([PAIRS[row["pair"]].arrow, row["label"], runs, hashes, f"`{row['command']}`"])
    signed = dict.fromkeys((row["figure"], row["signature"]) for row in done if row["signature"])
    tested = dict.fromkeys(("p", test["signature"]) for row in done for test in row["tests"])
    lines = [f"{figure}: `{signature}`" for figure, signature in (*signed, *tested)]
    return (
        table(["pair", "row", "runs", "experiment", "command"], body) + "\n\nSignatures:\n\n" + bullets(lines)
    )


def _figure(summary: dict[str, Any]) -> list[str]:
    image = summary["image"]
    if image is None:
        return []
    heads = ", ".join(map(str, image["heads"]))
    rows = [[name, *(f"{value:.2f}" for value in values)] for name, values in image["entropy"].items()]
    shown = [f"head {head}" for head in image["heads"]]
    runs = " and ".join(f"[{name}](runs/{name}/record.json)" for name in image["runs"])
    return [
        f"![{summary['title']}]({image['file']})",
        f"Layer {image['layer']} of the encoder, heads {heads}, on “{image['sentence']}” Above, scaled dot "
        f"product; below, QKNorm ({runs}). The layer and the heads were fixed beforehand, not picked by how "
        "they look. Colours follow the square root of the weight, so that what is spread thin can still be "
        "seen.",
        "Mean entropy of a row of weights, in nats (higher is more diffuse; "
        f"evenly spread over this sentence it would be {image['uniform']:.2f}):",
        table(["", *shown, "all heads of the encoder"], rows),
        diffuse(image),
    ]


def diffuse(image: dict[str, Any]) -> str:
    """Whether the model that the paper finds the more diffuse is so here, on the sentence shown."""
    (plain, before), (normalised, after) = ((name, values[-1]) for name, values in image["entropy"].items())
    more = normalised if after > before else plain
    return (
        f"In the paper the heads under {normalised} are the more diffuse ones. Here, over all heads of the "
        f"encoder on this sentence, those under {more} are: mean entropy {after:.2f} under {normalised}, "
        f"{before:.2f} under {plain}."
    )


def cost(rows: Sequence[dict[str, Any]]) -> str:
    """Minutes of training by the device they were spent on; a run of several rows counts once."""
    runs = {name: took for row in rows for name, took in row.get("run_minutes", {}).items()}
    devices = {name: device for row in rows for name, device in row.get("run_devices", {}).items()}
    minutes: dict[str, float] = {}
    for name, took in runs.items():
        minutes[devices[name]] = minutes.get(devices[name], 0.0) + took
    return " and ".join(f"{took:.1f} minutes of {device}" for device, took in minutes.items())


def number(value: float | None, form: str = ".2f") -> str:
    """A figure, or a dash where there is none."""
    return "–" if value is None else format(value, form)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
