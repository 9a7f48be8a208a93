"""A model in another precision that follows the weights of the one it was made from."""

from __future__ import annotations

import copy
from weakref import WeakKeyDictionary

import torch

from qknorm.model import Transformer

_TWINS: WeakKeyDictionary[Transformer, dict[torch.dtype, Transformer]] = WeakKeyDictionary()


def twin(model: Transformer, dtype: torch.dtype) -> Transformer:
    """The model with its present weights in ``dtype``: itself, or a copy that is kept and written in place.

    What was captured over the copy holds as long as the model lives and stays on its device.
    """
    if model.embedding.weight.dtype == dtype:
        return model
    known = _TWINS.setdefault(model, {})
    if dtype not in known or not _alike(known[dtype], model):
        known[dtype] = copy.deepcopy(model).to(dtype)
    with torch.no_grad():
        for mine, theirs in zip(_tensors(known[dtype]), _tensors(model), strict=True):
            mine.copy_(theirs)
    return known[dtype]


def _tensors(model: Transformer) -> list[torch.Tensor]:
    return list(model.state_dict().values())  # without the table of positions, which grows as needed


def _alike(a: Transformer, b: Transformer) -> bool:
    return [(x.shape, x.device) for x in _tensors(a)] == [(x.shape, x.device) for x in _tensors(b)]
