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
    """Sentences of what holds and what does not, and how many of all pairwise orderings do."""
    holds: list[str] = []
    fails: list[str] = []
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
                sentence = _sentence(pair, upper, lower, spread.get(pair))
                (holds if agrees else fails).append(sentence)
        if target.against is not None and len(own) > 2:
            _note_extremes(own, pair, holds, fails)
    return {"holds": holds, "fails": fails, "orderings": total, "orderings_right": right}


def _known(row: dict[str, Any]) -> bool:
    return row["status"] == "done" and row["ours"] is not None and row["paper"] is not None


def _sentence(pair: str, upper: dict[str, Any], lower: dict[str, Any], sd: float | None) -> str:
    """The paper's order of two rows, with both differences."""
    here = upper["ours"] - lower["ours"]
    words = (
        f"{PAIRS[pair].arrow}: {upper['label']} above {lower['label']} "
        f"(paper {upper['paper'] - lower['paper']:+.2f}, here {here:+.2f}"
    )
    if sd is None:
        return words + "; noise between seeds not known)"
    error = sd * math.sqrt(1 / len(upper["seeds"]) + 1 / len(lower["seeds"]))
    return words + ("; inside the noise between seeds)" if abs(here) < 2 * error else ")")


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
