"""A model's twin in half precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qknorm.nn import attention_modules
from qknorm.training.halves import HalfTwin
from qknorm.training.inputs import Room
from support.steps import a_model, some_batches


@pytest.mark.parametrize("rotary", [False, True])
def test_a_twin_in_half_precision_follows_and_shares(rotary: bool) -> None:
    model = a_model(rotary=rotary)
    halves = HalfTwin(model)
    assert halves.twin.positions is model.positions and halves.twin.rotary is model.rotary
    assert all(m.rotary in (None, model.rotary) for m in attention_modules(halves.twin).values())
    batches = some_batches()
    room = Room.of(batches.corpus, batches.budget)
    flat = np.empty(room.size, np.int32)
    room.pack(batches.batch(3), flat)
    inputs = room.unpack(torch.from_numpy(flat))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    halves.follow()
    found, gradients = [], []
    for each in (model, halves.twin):
        with torch.autocast("cpu", torch.bfloat16):
            memory, _ = each.encode(inputs.source, inputs.source_packing)
            found.append(
                each.decode(inputs.given, memory, None, inputs.target_packing, inputs.source_packing)
            )
        learned = [p for name, p in each.named_parameters() if name != "embedding.bias"]  # no part in this
        gradients.append(torch.autograd.grad(found[-1].float().square().sum(), learned))
    assert torch.equal(*found)
    assert sum(g.dtype == torch.bfloat16 for g in gradients[1]) == 3 * 4 + 2 * 4  # attention, feed-forward
    for a, b in zip(gradients[0], halves.widened(gradients[1]), strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)
