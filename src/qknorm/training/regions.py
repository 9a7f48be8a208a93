"""The model compiled piece by piece: layers are alike, so one compilation serves all of a kind.

Compiling the whole model as one takes longer, and gains only that the last addition of a layer is fused with
the first norm of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from qknorm.model import Transformer


class Regions:
    """Compiled pieces of a model, which take the place of the plain ones inside ``in_place``."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self._embed = compiled(model.embed)
        self._spans = compiled(model.spans)
        self._layers = {
            name: nn.ModuleList(compiled(layer) for layer in getattr(model, name))
            for name in ("encoder", "decoder")
        }

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model with its compiled pieces, inside the block; its weights are the same tensors."""
        model: Any = self.model
        plain = {name: getattr(model, name) for name in self._layers}
        try:
            for name, layers in self._layers.items():
                setattr(model, name, layers)
            model.embed, model.spans = self._embed, self._spans
            yield
        finally:
            for name, layers in plain.items():
                setattr(model, name, layers)
            del model.embed, model.spans


def compiled(piece: Callable[..., Any]) -> Any:
    return torch.compile(piece, fullgraph=True, dynamic=False)
