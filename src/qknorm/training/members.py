"""A whole training: the model of a run, or several one after another, and what they say of dev and test."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qknorm.config import Recipe
from qknorm.model import Transformer
from qknorm.progress import Progress
from qknorm.run import Run
from qknorm.training.finish import finish
from qknorm.training.opening import open_member, open_run
from qknorm.training.preparation import Prepared
from qknorm.training.saver import Saver
from qknorm.training.state import State
from qknorm.training.trainer import Trainer
from qknorm.training.warming import warm_up
from qknorm.workers import Workers


@dataclass(frozen=True)
class Trained:
    """How a training ended."""

    run: Run
    state: State
    """Of the model that was trained last."""
    interrupted: bool
    scores: dict[str, Any] | None
    asked_to_stop: bool = False
    """Whether the user wanted it to stop, be it when training was over anyway."""


def train(
    recipe: Recipe,
    run: str | Path,
    *,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
    cache: Path | None = None,
    workers: Workers | None = None,
    begun: float | None = None,
) -> Trained:
    """Train by a recipe into a run folder; called again on the same folder, go on where it stands.

    Ctrl-C (or SIGTERM) saves and returns with ``interrupted=True``. Under torchrun all processes call this
    and train together; ``workers`` are those started already, with their devices. The time that the history
    tells counts from ``begun`` (by ``time.monotonic()``), or else from this call.
    """
    begun = time.monotonic() if begun is None else begun
    if workers is None:
        with Workers.start(device) as started:
            return train(recipe, run, progress=progress, cache=cache, workers=started, begun=begun)
    progress = Progress(quiet=not workers.first) if progress is None else progress
    folder = Run(run)
    warm_up(workers.device)
    with workers.first_alone():
        prepared = open_run(recipe, folder, progress, cache, workers)
    savers: list[Saver] = []
    try:
        return _train_all(folder, prepared, workers, progress, begun, savers)
    finally:
        for saver in savers:
            saver.wait()


def _train_all(
    folder: Run, prepared: Prepared, workers: Workers, progress: Progress, begun: float, savers: list[Saver]
) -> Trained:
    """Train what is left of each model, then score; ``savers`` gets those that may still be at work."""
    workers.forget_stop()
    count = prepared.recipe.training.members
    for number in range(1, count + 1):
        with workers.first_alone():
            member, own = open_member(folder, number, prepared, workers, progress)
        if count > 1:
            progress.note(f"Model {number} of {count}, seed {own.recipe.training.seed}: {member.path}")
        starts = begun if number == 1 else time.monotonic()
        trainer = Trainer(member, own, workers, progress, starts, folder)
        savers.append(trainer.saver)
        finished = trainer.run()
        begun -= starts - trainer.begun  # what earlier starts have spent on it
        if number < count and finished:
            workers.total()  # requests to stop travel along
            if workers.stopping:
                progress.note(f"Stopped before model {number + 1}; go on with: {trainer.command()}")
                finished = False
        if not finished:
            return Trained(folder, trainer.state, True, None, asked_to_stop=True)
        if number < count:
            savers.pop().wait()
            del trainer
            release()

    def best_models() -> list[Transformer]:
        *others, last = folder.members()
        last.load_weights(trainer.model, "best")  # what a GPU has captured of its search holds
        return [*(other.model("best", workers.device) for other in others), trainer.model]

    scores = finish(folder, prepared, best_models, progress, workers, begun)
    return Trained(folder, trainer.state, False, scores, workers.stop_asked)


def release() -> None:
    """Give back what a training held, and compiled code that the next one would only be compared with."""
    if torch.cuda.is_available():
        gc.collect()
        torch.compiler.reset()
        torch.cuda.empty_cache()
