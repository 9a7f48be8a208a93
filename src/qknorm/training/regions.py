"""The model compiled piece by piece: layers are alike, so one compilation serves all of a kind.

Compiling the whole model as one takes longer, and gains only that the last addition of a layer is fused with
the first norm of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch._dynamo
from torch import nn

from qknorm.model import Transformer

OPTIONS: dict[str, Any] = {"assert_indirect_indexing": False}
"""Ids are checked where they are made."""
RECOMPILED = 256
"""How often one function may be compiled anew in a process: for every model, size of buffers and kind."""


class Regions:
    """Compiled layers of a model, which take the place of the plain ones inside ``in_place``."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        config: Any = torch._dynamo.config
        config.recompile_limit = max(config.recompile_limit, RECOMPILED)
        config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, 4 * RECOMPILED)
        self._pieces: dict[str, Any] = {}
        for name in ("encoder", "decoder"):
            self._pieces[name] = nn.ModuleList(compiled(layer) for layer in getattr(model, name))
        for name in ("encoder_norm", "decoder_norm"):
            if not isinstance(getattr(model, name), nn.Identity):
                self._pieces[name] = compiled(getattr(model, name))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model with its compiled pieces, inside the block; its weights are the same tensors."""
        model: Any = self.model
        plain = {name: getattr(model, name) for name in self._pieces}
        try:
            for name, piece in self._pieces.items():
                setattr(model, name, piece)
            yield
        finally:
            for name, piece in plain.items():
                setattr(model, name, piece)


def compiled(piece: Callable[..., Any]) -> Any:
    return torch.compile(piece, fullgraph=True, dynamic=False, options=OPTIONS)
