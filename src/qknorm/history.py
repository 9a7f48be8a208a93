"""``history.jsonl`` read back: a JSON object an epoch, or a sentence that says which line is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qknorm.errors import UserError

WHOLE, NUMBER, MAYBE, FLAG = "a whole number", "a number", "a number or null", "true or false"
TYPES: dict[str, tuple[type, ...]] = {
    WHOLE: (int,),
    NUMBER: (int, float),
    MAYBE: (int, float, type(None)),
    FLAG: (bool,),
}
FIELDS = {
    "epoch": WHOLE,
    "step": WHOLE,
    "learning_rate": NUMBER,
    "train_loss": NUMBER,
    "train_perplexity": NUMBER,
    "dev_perplexity": NUMBER,
    "dev_bleu": MAYBE,
    "best": FLAG,
    "gradient_norm": NUMBER,
    "skipped": WHOLE,
    "g_min": MAYBE,
    "g_max": MAYBE,
    "max_logit": NUMBER,
    "tokens_per_second": NUMBER,
    "ms_per_step": NUMBER,
    "waiting_share": NUMBER,
    "seconds": NUMBER,
    "elapsed": NUMBER,
}
"""What the row of an epoch says."""
LATER = {"max_logit"}
"""What the first runs did not write yet."""


def read_history(file: Path) -> list[dict[str, Any]]:
    """The rows of a history; none where there is no file yet.

    A last line that was cut short is left out. Training writes the line of an epoch before its checkpoint,
    so a run that ended there runs the epoch again.
    """
    if not file.exists():
        return []
    rows = []
    *ended, last = file.read_bytes().split(b"\n")
    for number, line in enumerate([*ended, last], 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError):
            if number > len(ended) and line.startswith(b"{"):
                break
            raise _damaged(file, number, "is not JSON") from None
        if fault := _fault(row):
            raise _damaged(file, number, fault)
        rows.append(row)
    return rows


def _fault(row: Any) -> str | None:
    """What is wrong with a row, if anything is."""
    if not isinstance(row, dict):
        return "is not a JSON object"
    for name, kind in FIELDS.items():
        if name not in row and name not in LATER:
            return f"has no {name}"
        if name in row and type(row[name]) not in TYPES[kind]:
            return f"has {json.dumps(row[name])[:40]} for {name}, which must be {kind}"
    return None


def _damaged(file: Path, number: int, fault: str) -> UserError:
    return UserError(
        f"{file}, line {number}, {fault}; restore the file from a copy, or delete that line: its epoch is "
        "then missing from the history, and weights and scores stay as they are."
    )
