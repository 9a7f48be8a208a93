"""The length penalty that suits a trained model, by the BLEU of its translations of dev."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from qknorm.model import Transformer
from qknorm.progress import Progress
from qknorm.scoring import bleu
from qknorm.training.preparation import Prepared, references
from qknorm.training.validation import translations
from qknorm.workers import Workers

LADDER = (0.0, 0.3, 0.6, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0)
"""Length penalties to try: from the one that is set up as long as BLEU rises, or else down."""


def climb(start: float, height: Callable[[float], float]) -> float:
    """Where the height is greatest, going from the start rung by rung, up or else down, until it falls."""
    best, highest = start, height(start)
    for rungs in ([x for x in LADDER if x > start], [x for x in reversed(LADDER) if x < start]):
        for rung in rungs:
            found = height(rung)
            if found <= highest:
                break
            best, highest = rung, found
        if best != start:
            break
    return best


def with_length_penalty(
    models: Sequence[Transformer], prepared: Prepared, progress: Progress, workers: Workers
) -> tuple[Prepared, list[str]]:
    """The same with the length penalty that gives the best dev BLEU, and the translations of dev with it."""
    wanted, said = references(prepared, "dev"), dict[float, list[str]]()

    def height(penalty: float) -> float:
        said[penalty] = translations(models, _set(prepared, penalty), "dev", progress, workers)
        found = bleu(said[penalty], wanted, prepared.subwords.kind)
        progress.note(f"Length penalty {penalty:g}: dev BLEU {found:.2f}")
        return found

    best = climb(prepared.recipe.decoding.length_penalty, height)
    progress.note(f"Length penalty {best:g} is kept")
    return _set(prepared, best), said[best]


def _set(prepared: Prepared, penalty: float) -> Prepared:
    decoding = prepared.recipe.decoding.model_copy(update={"length_penalty": penalty})
    recipe = prepared.recipe.model_copy(update={"decoding": decoding})
    return dataclasses.replace(prepared, recipe=recipe)
