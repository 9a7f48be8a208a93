"""A run that is served: its name, its translator, and what may be told of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from qknorm.run import Run
from qknorm.scoring.metrics import MAIN
from qknorm.serving.schema import Model
from qknorm.translation.translator import Translator


@dataclass(frozen=True)
class Served:
    """One model, by the name that requests call it by."""

    translator: Translator
    about: Model

    @property
    def name(self) -> str:
        return self.about.name

    def length(self, line: str) -> int:
        """The subwords of a line; 0 of a blank one."""
        return len(self.translator.subwords.encode([line], "source")[0]) if line.strip() else 0


def load_served(paths: Sequence[str | Path], device: torch.device | str | None = None) -> list[Served]:
    """The runs in these folders; each is named after its folder, with a number where that name is taken."""
    served: list[Served] = []
    for path in paths:
        name = _free_name(Path(path).resolve().name or "run", {each.name for each in served})
        served.append(_load(name, path, device))
    return served


def _load(name: str, path: str | Path, device: torch.device | str | None) -> Served:
    run = Run.open(path)
    recipe = run.recipe()
    translator = Translator.load(path, device)
    about = Model(
        name=name,
        source=recipe.data.source,
        target=recipe.data.target,
        text=recipe.subwords.kind,
        encoder_layers=recipe.model.encoder_layers,
        decoder_layers=recipe.model.decoder_layers,
        heads=recipe.model.heads,
        width=recipe.model.d_model,
        qk_norm=recipe.model.qk_norm,
        parameters=sum(each.numel() for model in translator.models for each in model.parameters()),
        beam=recipe.decoding.beam,
        dev_bleu=_dev_bleu(run),
    )
    return Served(translator, about)


def _dev_bleu(run: Run) -> float | None:
    """Of all models together where they have been scored; of the first if it translates alone."""
    scores, recipe = run.scores(), run.recipe()
    if recipe.training.members > 1 and scores is not None:
        return float(scores["dev"][MAIN[recipe.subwords.kind]])
    if len(run.trained_members()) > 1:  # not scored together yet
        return None
    bleu = [row["dev_bleu"] for row in run.history() if row["best"]]
    return bleu[-1] if bleu else None


def _free_name(name: str, taken: set[str]) -> str:
    number = 2
    free = name
    while free in taken:
        free = f"{name}-{number}"
        number += 1
    return free
