"""After training: translate test with the best weights, and score dev and test."""

from __future__ import annotations

import json
from typing import Any

import torch

from qknorm.data import lines
from qknorm.data.corpus import write_lines
from qknorm.data.text import write_atomic
from qknorm.progress import Progress
from qknorm.run import Run
from qknorm.scoring import score
from qknorm.training.preparation import Prepared, references
from qknorm.training.validation import validate
from qknorm.workers import Workers


def finish(
    folder: Run, prepared: Prepared, device: torch.device, progress: Progress, workers: Workers
) -> dict[str, Any]:
    """Hypotheses and scores of dev and test, written to the run folder; done before, they are read."""
    known: dict[str, Any] | None = workers.tell(folder.scores())
    if known is not None:
        return known
    scores: dict[str, Any] = {}
    for split in ("dev", "test"):
        if split not in prepared.encoded:
            continue
        file, wanted = folder.hypotheses_file(split), references(prepared, split)
        translated = split == "dev" and workers.tell(file.exists())  # when these weights proved the best
        if not translated:
            model = folder.model("best", device)
            found = validate(model, prepared, split, wanted, progress, workers)
            assert found.hypotheses is not None
            if workers.first:
                write_lines(file, found.hypotheses)
        if not workers.first:
            continue
        result = score(list(lines(file)), wanted, prepared.subwords.kind)
        scores[split] = result.to_json()
        progress.note(
            f"{split}: " + ", ".join(f"{name} {value:.2f}" for name, value in result.figures.items())
        )
    if workers.first:
        write_atomic(folder.scores_file, json.dumps(scores, indent=1) + "\n")
    return dict(workers.tell(scores))
