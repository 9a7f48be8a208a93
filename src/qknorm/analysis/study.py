"""What every head of a model does over a corpus.

Axes: L layers, H heads of a layer, N = L · H heads of a kind.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qknorm.analysis.agreement import classical_map, divergence_sums
from qknorm.analysis.importance import head_importance, loss_per_subword
from qknorm.analysis.measures import MEASURES, Sight, measure_sums
from qknorm.analysis.text import Text
from qknorm.analysis.weights import KINDS, Kind, batch_weights, modules
from qknorm.data import Subwords
from qknorm.ids import BOS, EOS, PAD
from qknorm.model import Transformer
from qknorm.nn import attention_modules
from qknorm.progress import Progress
from qknorm.translation.batches import pad, pairs_by_length
from qknorm.translation.ensemble import Ensemble
from qknorm.translation.logits import largest_logits

Array = NDArray[np.float64]


@dataclass(frozen=True)
class KindStudy:
    """The heads of one kind of attention."""

    measures: dict[str, Array]
    """(L, H) by measure, means over rows; see ``MEASURES``."""
    even: dict[str, float]
    """The same of a head that looks everywhere it may, evenly."""
    rows: int
    """Rows counted, of each head."""
    distances: Array
    """(N, N) Jensen–Shannon distances: the square root of the mean divergence over rows, 0 to 1."""
    g: list[list[float] | None]
    """Of each layer's module: one value or one a head; None where nothing is normalised."""
    max_logit: list[float]
    """Of each layer's module: the largest |logit|."""
    importance: Array | None
    """(L, H) how much the loss rises without each head; None where it was not asked for."""

    @property
    def places(self) -> Array:
        """(N, 2) the heads on a map: near each other where they attend alike."""
        return classical_map(self.distances)

    @property
    def apart(self) -> Array:
        """(L, H) mean distance of each head from the others of its kind."""
        means: Array = self.distances.sum(axis=1) / max(len(self.distances) - 1, 1)
        return means.reshape(self.measures["entropy"].shape)

    def figures(self) -> dict[str, Array]:
        """(L, H) by name: all that is one number a head."""
        asked = {} if self.importance is None else {"importance": self.importance}
        return {**self.measures, "apart": self.apart, **asked}


FIGURES = {
    **MEASURES,
    "apart": "mean Jensen–Shannon distance from the other heads of its kind, 0 (alike) to 1",
    "importance": "how much the loss (nats a target subword) rises without this head",
}
"""What each number of a head says."""


@dataclass(frozen=True)
class HeadStudy:
    """What every head of a run does over a text."""

    run: str
    text: str
    sentences: int
    loss: float
    """Mean negative log-probability of a target subword."""
    kinds: dict[Kind, KindStudy]

    def to_json(self) -> dict[str, Any]:
        """Everything, in JSON's types."""
        return {
            "run": self.run,
            "text": self.text,
            "sentences": self.sentences,
            "loss": self.loss,
            "kinds": {
                kind: {
                    "rows": each.rows,
                    "heads": {name: values.tolist() for name, values in each.figures().items()},
                    "even": each.even,
                    "distances": each.distances.tolist(),
                    "places": each.places.tolist(),
                    "g": each.g,
                    "max_logit": each.max_logit,
                }
                for kind, each in self.kinds.items()
            },
        }


def study_heads(
    model: Transformer,
    subwords: Subwords,
    text: Text,
    run: str,
    *,
    importance: bool = True,
    batch_tokens: int = 4096,
    progress: Progress | None = None,
) -> HeadStudy:
    """Measure every head of a model on a text, on the device the model is on.

    Args:
        model: in evaluation mode.
        subwords: its subwords.
        text: pairs with words on both sides.
        run: the model's name.
        importance: whether to mask one head at a time; it takes as many passes as there are heads.
        batch_tokens: bound on memory: sentences × longest (source + target) of a batch.
        progress: told how far it is.
    """
    progress = Progress(quiet=True) if progress is None else progress
    sources, targets = subwords.encode(text.sources, "source"), subwords.encode(text.targets, "target")
    sums = _sums(model, subwords, sources, targets, batch_tokens, progress)
    logits = largest_logits(model, sources, targets, batch_tokens=batch_tokens)
    rises: dict[Kind, Array] = {}
    if importance:
        count = sum(module.num_heads for module in attention_modules(model).values())
        with progress.bar("masking heads", count) as bar:
            loss, rises = head_importance(model, sources, targets, bar.to)
    else:
        loss = loss_per_subword(model, sources, targets)
    names = {module: name for name, module in attention_modules(model).items()}
    kinds = {}
    for kind, layers in modules(model).items():
        rows = max(float(sums.rows[kind]), 1.0)
        means, even = sums.measures[kind].cpu().numpy() / rows, sums.even[kind].cpu().numpy() / rows
        kinds[kind] = KindStudy(
            measures=dict(zip(MEASURES, means, strict=True)),
            even=dict(zip(MEASURES, even.ravel().tolist(), strict=True)),
            rows=int(sums.rows[kind]),
            distances=np.sqrt(sums.divergences[kind].cpu().numpy() / rows),
            g=[None if m.qk_scale is None else m.qk_scale.detach().float().tolist() for m in layers],
            max_logit=[logits[names[m]] for m in layers],
            importance=rises.get(kind),
        )
    return HeadStudy(run, text.name, len(text), loss, kinds)


class _Sums:
    """What is added up over batches, on the model's device."""

    def __init__(self) -> None:
        self.measures: dict[Kind, Tensor] = {}  # (M, L, H)
        self.even: dict[Kind, Tensor] = {}  # (M, 1, 1)
        self.divergences: dict[Kind, Tensor] = {}  # (N, N)
        self.rows: dict[Kind, Tensor] = {}

    def add(self, kind: Kind, weights: Tensor, sight: Sight) -> None:
        new = {
            "measures": measure_sums(weights, sight),
            "even": measure_sums(sight.even(), sight),
            "divergences": divergence_sums(weights.flatten(1, 2), sight.choice),
            "rows": sight.rows,
        }
        for name, value in new.items():
            kept = getattr(self, name)
            kept[kind] = value if kind not in kept else kept[kind] + value


def _sums(
    model: Transformer,
    subwords: Subwords,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    batch_tokens: int,
    progress: Progress,
) -> _Sums:
    ensemble = Ensemble(model)
    marks = punctuation(subwords).to(ensemble.device)
    lengths = [(len(s) + 1, len(t) + 1) for s, t in zip(sources, targets, strict=True)]
    sums, done = _Sums(), 0
    with ensemble.evaluating(), progress.bar("watching heads", len(sources)) as bar:
        for batch in pairs_by_length(lengths, batch_tokens):
            source = pad([[*sources[i], EOS] for i in batch], ensemble.device)
            target = pad([[BOS, *targets[i]] for i in batch], ensemble.device)
            weights = batch_weights(model, source, target)
            for kind in KINDS:
                looking = source if kind == "encoder" else target
                seen = target if kind == "decoder" else source
                end = seen == (BOS if kind == "decoder" else EOS)
                sight = Sight.of(looking != PAD, seen != PAD, end, marks[seen], causal=kind == "decoder")
                sums.add(kind, weights[kind], sight)
            done += len(batch)
            bar.to(done)
    return sums


def punctuation(subwords: Subwords) -> Tensor:
    """(V,) True for subwords that are nothing but punctuation."""
    pieces = subwords.decode([[i] for i in range(subwords.size)])
    bare = [piece.strip() for piece in pieces]
    return torch.tensor(
        [bool(text) and all(unicodedata.category(c)[0] == "P" for c in text) for text in bare]
    )
