"""Which of the paper's orderings hold here, in plain words, read against the noise between seeds."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from qknorm.paper.experiments import PAIRS, Target


def noise(seeds_of: Mapping[tuple[str, str], Sequence[float]]) -> dict[str, float]:
    """By pair: the standard deviation between seeds, pooled over the systems that have several.

    ``seeds_of`` has the scores of each seed by pair and system.
    """
    squares: dict[str, list[float]] = defaultdict(list)
    degrees: dict[str, int] = defaultdict(int)
    for (pair, _), seeds in seeds_of.items():
        if len(seeds) > 1:
            squares[pair].append(statistics.variance(seeds) * (len(seeds) - 1))
            degrees[pair] += len(seeds) - 1
    return {pair: math.sqrt(sum(squares[pair]) / degrees[pair]) for pair in squares}


def orderings(target: Target, rows: list[dict[str, Any]], spread: dict[str, float]) -> dict[str, Any]:
    """Sentences of what holds, what does not, and what the seeds do not decide; how many orderings hold."""
    holds: list[str] = []
    fails: list[str] = []
    undecided: list[str] = []
    right = total = 0
    for pair in dict.fromkeys(row["pair"] for row in rows):
        own = [row for row in rows if row["pair"] == pair and _known(row)]
        for one, other in combinations(own, 2):
            if one["paper"] == other["paper"]:
                continue
            upper, lower = (one, other) if one["paper"] > other["paper"] else (other, one)
            total += 1
            agrees = upper["ours"] > lower["ours"]
            right += agrees
            if target.against in (upper["system"], lower["system"]):
                inside = _inside_noise(upper, lower, spread.get(pair))
                sentence = _sentence(pair, upper, lower, pair in spread)
                (undecided if inside else holds if agrees else fails).append(sentence)
        if target.against is not None and len(own) > 2:
            _note_extremes(own, pair, holds, fails)
    told = {"holds": holds, "fails": fails, "undecided": undecided}
    return {**told, "orderings": total, "orderings_right": right}


def _known(row: dict[str, Any]) -> bool:
    return row["status"] == "done" and row["ours"] is not None and row["paper"] is not None


def _sentence(pair: str, upper: dict[str, Any], lower: dict[str, Any], noise_known: bool) -> str:
    """The paper's order of two rows, with both differences."""
    here = upper["ours"] - lower["ours"]
    about = "" if noise_known else "; noise between seeds not known"
    return (
        f"{PAIRS[pair].arrow}: {upper['label']} above {lower['label']} "
        f"(paper {upper['paper'] - lower['paper']:+.2f}, here {here:+.2f}{about})"
    )


def _inside_noise(one: dict[str, Any], other: dict[str, Any], sd: float | None) -> bool:
    """Whether two rows differ by less than two standard errors; no where the noise is not known."""
    error = (sd or 0.0) * math.sqrt(1 / len(one["seeds"]) + 1 / len(other["seeds"]))
    return bool(abs(one["ours"] - other["ours"]) < 2 * error)


def _note_extremes(rows: list[dict[str, Any]], pair: str, holds: list[str], fails: list[str]) -> None:
    """Whether the paper's best and worst rows are the best and worst here."""
    for word, pick in (("highest", max), ("lowest", min)):
        theirs = pick(rows, key=lambda row: row["paper"])
        ours = pick(rows, key=lambda row: row["ours"])
        sentence = f"{PAIRS[pair].arrow}: {theirs['label']} is the {word} of the {len(rows)} rows run"
        if theirs is ours:
            holds.append(sentence)
        else:
            fails.append(f"{sentence}; here it is {ours['label']}")
