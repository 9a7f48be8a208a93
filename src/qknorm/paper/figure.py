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

from qknorm.data.text import replacing
from qknorm.ids import EOS
from qknorm.model import Transformer
from qknorm.run import Run

SENTENCE = "Ein kleiner Hund läuft mit einem roten Ball im Maul über die grüne Wiese."
"""Made up for the figure; in no corpus."""
SHOWN = 4
"""Heads shown, the first ones of the layer in the middle of the encoder: fixed, not picked."""
END = "⟨end⟩"
WORD = "▁"
"""How subwords of raw text mark the beginning of a word; left out in the figure."""


def encoder_attention(model: Transformer, ids: list[int]) -> Tensor:
    """(L, H, S, S): where each subword of a source looks; ``ids`` without EOS, which is added."""
    found: list[Tensor] = []

    def look(module: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        seen = {**options, "need_weights": True, "average_attn_weights": False}
        found.append(module.forward(*inputs, **seen)[1][0])  # forward: a call would come back here

    device = next(model.parameters()).device
    hooks = [
        layer.self_attn.register_forward_pre_hook(look, with_kwargs=True)  # type: ignore[union-attr]
        for layer in model.encoder
    ]
    try:
        with torch.no_grad():
            model.encode(torch.tensor([[*ids, EOS]], device=device))
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(found).float().cpu()


def draw_heads(runs: Mapping[str, Run], to: Path) -> dict[str, Any]:
    """Draw the same heads of several runs one above the other, as PNG and PDF; returns what is shown."""
    weights: dict[str, Tensor] = {}
    pieces: list[str] = []
    for name, run in runs.items():
        subwords = run.subwords()
        (ids,) = subwords.encode([SENTENCE], "source")
        weights[name] = encoder_attention(run.model(), ids)
        pieces = [*(piece.lstrip(WORD) or piece for piece in subwords.pieces(ids)), END]
    layers, heads = next(iter(weights.values())).shape[:2]
    layer, shown = layers // 2, list(range(min(SHOWN, heads)))
    _draw({name: each[layer, shown] for name, each in weights.items()}, pieces, to)
    return {
        "file": f"{to.name}.png",
        "sentence": SENTENCE,
        "layer": layer + 1,
        "heads": [head + 1 for head in shown],
        "entropy": {
            name: [*_entropy(each[layer, shown]), sum(_entropy(each.flatten(0, 1))) / (layers * heads)]
            for name, each in weights.items()
        },
        "uniform": math.log(len(pieces)),
    }


def _entropy(weights: Tensor) -> list[float]:
    """Mean entropy of the rows of each (S, S) map, in nats."""
    return [float(value) for value in torch.special.entr(weights).sum(-1).mean(-1)]


def _draw(maps: Mapping[str, Tensor], pieces: list[str], to: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows, columns = len(maps), next(iter(maps.values())).size(0)
    size = 1.7
    figure = Figure(figsize=(size * columns + 1.3, size * rows + 0.7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for row, (name, heads) in zip(axes, maps.items(), strict=True):
        for number, (axis, weights) in enumerate(zip(row, heads, strict=True), 1):
            axis.imshow(weights.numpy(), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
            axis.set_xticks(range(len(pieces)), pieces, rotation=90)
            axis.set_yticks(range(len(pieces)), pieces)
            axis.tick_params(length=0, pad=2, labelsize=5)
            for side in axis.spines.values():
                side.set_linewidth(0.4)
            if axis in axes[0]:
                axis.set_title(f"head {number}", fontsize=8)
        row[0].set_ylabel(name, fontsize=9, labelpad=6)
    bar = figure.colorbar(axes[0, 0].images[0], ax=axes, shrink=0.6, pad=0.01, aspect=30)
    bar.set_label("attention weight", fontsize=7)
    bar.ax.tick_params(labelsize=6, width=0.4)
    bar.outline.set_linewidth(0.4)
    for ending, about in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
        with replacing(to.with_name(f"{to.name}.{ending}")) as file:
            figure.savefig(file, format=ending, dpi=300, metadata=about)
