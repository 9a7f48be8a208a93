"""Figures 1 and 2 in one picture: the same four encoder heads under scaled dot product and under QKNorm.

Axes: L layers of the encoder, H heads, S subwords of the sentence, its EOS included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qknorm.analysis import AttentionMap, pair_attention
from qknorm.analysis.heatmaps import Grid, draw, save
from qknorm.run import Run

SENTENCE = "Ein kleiner Hund läuft mit einem roten Ball im Maul über die grüne Wiese."
"""Made up for the figure; in no corpus."""
SHOWN = 4
"""Heads shown, the first ones of the layer in the middle of the encoder: fixed, not picked."""
CELL = 0.095
"""In inches: four heads of 16 subwords are about as wide as a page of text, and labels can be read there."""


def draw_heads(runs: Mapping[str, Run], to: Path) -> dict[str, Any]:
    """Draw the same heads of several runs one above the other, as PNG and PDF; returns what is shown."""
    maps = {name: encoder_map(run) for name, run in runs.items()}
    layers, heads = next(iter(maps.values())).weights.shape[:2]
    layer, shown = layers // 2, list(range(min(SHOWN, heads)))
    figure = draw([Grid(each, [layer], shown, (name, "")) for name, each in maps.items()], CELL)
    for ending in ("png", "pdf"):
        save(figure, to.with_name(f"{to.name}.{ending}"))
    entropies = {name: _entropy(torch.from_numpy(each.weights)) for name, each in maps.items()}
    return {
        "file": f"{to.name}.png",
        "sentence": SENTENCE,
        "layer": layer + 1,
        "heads": [head + 1 for head in shown],
        "entropy": {
            name: [*each[layer, shown].tolist(), float(each.mean())] for name, each in entropies.items()
        },
        "uniform": math.log(len(next(iter(maps.values())).columns)),
    }


def encoder_map(run: Run) -> AttentionMap:
    """Where each subword of the sentence looks, in every layer and head of a run's encoder.

    Where every subword is a word, labels are the words, without the marks of subwords.
    """
    subwords = run.subwords()
    (ids,) = subwords.encode([SENTENCE], "source")
    (seen,) = pair_attention(run.model(), subwords, [ids], [[]])
    words = seen.encoder.words()
    return words if len(words.columns) == len(seen.encoder.columns) else seen.encoder


def _entropy(weights: Tensor) -> Tensor:
    """(L, H) mean entropy of the rows of each (S, S) map, in nats."""
    means: Tensor = torch.special.entr(weights).sum(-1).mean(-1)
    return means
