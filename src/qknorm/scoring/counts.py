"""What metrics count in the sentences of a text, summed: figures are made of these sums alone.

Many sentences are shared out over processes. Counts are whole numbers, so their sums do not depend on how.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from qknorm.scoring.metrics import Kind, measures

SHARE = 100
"""Sentences that a process more is worth starting for: TER takes longer over them than it takes to start."""
MOST_PROCESSES = 32

Sums = dict[str, list[float]]
"""Of each measure, by its name in ``Scores.figures``."""


class Texts(NamedTuple):
    """Translations by several systems of the same sentences, and what to count in them."""

    systems: Sequence[Sequence[str]]
    references: Sequence[str]
    kind: Kind
    ter: bool


def count(texts: Texts) -> list[Sums]:
    """The sums for each system."""
    processes = min(_cores(), MOST_PROCESSES, len(texts.references) // SHARE)
    if processes < 2 or not texts.ter:  # all but TER are quick
        return count_here(texts)
    with ThreadPoolExecutor(processes) as waiting:
        return _added(list(waiting.map(_count_elsewhere, _shares(texts, processes))))


def count_here(texts: Texts) -> list[Sums]:
    """The sums for each system, by this process."""
    found: list[Sums] = [{} for _ in texts.systems]
    for name, metric, prepare in measures(texts.kind, texts.ter, texts.references):
        for sums, hypotheses in zip(found, texts.systems, strict=True):
            counted = metric._extract_corpus_statistics([prepare(line) for line in hypotheses], None)
            sums[name] = [sum(column) for column in zip(*counted, strict=True)]
    return found


def _count_elsewhere(texts: Texts) -> list[Sums]:
    """``count_here`` by a new process; should that one fail, for want of memory say, by this one after all.

    The process is neither forked from this one, which may hold a GPU, nor does it run the user's script.
    """
    asked = [sys.executable, "-m", "qknorm.scoring.share"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            asked,
            input=json.dumps(texts).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C is for this process, which then waits a second
            check=True,
        )
        found: list[Sums] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return count_here(texts)
    return found


def _shares(texts: Texts, number: int) -> list[Texts]:
    """The sentences dealt out by length, for TER's time grows steeply with it."""
    references = texts.references
    order = sorted(range(len(references)), key=lambda i: len(references[i]), reverse=True)
    return [
        texts._replace(
            systems=[[system[i] for i in order[first::number]] for system in texts.systems],
            references=[references[i] for i in order[first::number]],
        )
        for first in range(number)
    ]


def _added(shares: list[list[Sums]]) -> list[Sums]:
    return [
        {
            name: [sum(column) for column in zip(*(sums[name] for sums in each), strict=True)]
            for name in each[0]
        }
        for each in zip(*shares, strict=True)
    ]


def _cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
