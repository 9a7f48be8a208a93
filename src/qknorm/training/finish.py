"""After training: translate test with the best weights, and score dev and test."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from qknorm.data import lines
from qknorm.data.corpus import write_lines
from qknorm.data.text import write_atomic
from qknorm.model import Transformer
from qknorm.progress import Progress
from qknorm.run import Run
from qknorm.scoring import Scores, score
from qknorm.training.length_penalty import with_length_penalty
from qknorm.training.preparation import Prepared, references
from qknorm.training.validation import translations
from qknorm.workers import Workers


def finish(
    folder: Run,
    prepared: Prepared,
    best_models: Callable[[], list[Transformer]],
    progress: Progress,
    workers: Workers,
    begun: float,
) -> dict[str, Any]:
    """Hypotheses and scores of dev and test, written to the run folder; done before, they are read.

    ``best_models`` gives the models with their best weights, where something is to be translated. Where dev
    decides the length penalty, the one found is kept in the folder. Dev is scored while test is translated.
    The manifest keeps the seconds since ``begun``, by ``time.monotonic()``.
    """
    known: dict[str, Any] | None = workers.tell(folder.scores())
    if known is not None:
        return known
    alone = prepared.recipe.training.members == 1
    models: list[Transformer] = []
    under_way: dict[str, Future[Scores]] = {}
    chosen = prepared.recipe.decoding.length_penalty_from_dev
    if chosen:
        models = best_models()
        prepared, hypotheses = with_length_penalty(models, prepared, progress, workers)
        if workers.first:
            folder.keep_length_penalty(prepared.recipe.decoding.length_penalty)
            write_lines(folder.hypotheses_file("dev"), hypotheses)
    with ThreadPoolExecutor(2, "qknorm-score") as scoring:
        for split in ("dev", "test"):
            if split not in prepared.encoded:
                continue
            file, wanted = folder.hypotheses_file(split), references(prepared, split)
            # Dev was translated when the weights of a single model proved the best.
            translated = split == "dev" and (chosen or (alone and workers.tell(file.exists())))
            if not translated:
                models = models or best_models()
                weights = "the best weights" if alone else f"the best weights of {len(models)} models"
                progress.note(f"Translating {split} with {weights}")
                hypotheses = translations(models, prepared, split, progress, workers)
                if workers.first:
                    write_lines(file, hypotheses)
            if workers.first:
                under_way[split] = scoring.submit(score, list(lines(file)), wanted, prepared.subwords.kind)
        if under_way:
            progress.note(f"Scoring {' and '.join(under_way)}")
        results = {split: scored.result() for split, scored in under_way.items()}
    for split, result in results.items():
        progress.note(
            f"{split}: " + ", ".join(f"{name} {value:.2f}" for name, value in result.figures.items())
        )
    scores = {split: result.to_json() for split, result in results.items()}
    if workers.first:
        folder.note_seconds(time.monotonic() - begun)
        write_atomic(folder.scores_file, json.dumps(scores, indent=1) + "\n")
    return dict(workers.tell(scores))
