"""A small model trained for a moment, for tests that need a model with something to say."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from qknorm.ids import BOS, EOS, PAD
from qknorm.model import ModelSettings, Transformer

VOCAB_SIZE = 16


def sentences(count: int, seed: int, longest: int = 7) -> list[list[int]]:
    """Random sentences of 1 to ``longest`` ordinary subwords."""
    rng = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=rng).tolist()
    return [torch.randint(EOS + 1, VOCAB_SIZE, (n,), generator=rng).tolist() for n in lengths]


def trained_reverser(steps: int = 300, seed: int = 0) -> Transformer:
    """A model that has half learned to say sentences backwards: sure of some, unsure of others."""
    torch.manual_seed(seed)
    settings = ModelSettings(
        d_model=32, d_ff=64, heads=2, encoder_layers=1, decoder_layers=2, word_dropout=0.0, dropout=0.0
    )
    model = Transformer(VOCAB_SIZE, settings).train()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(steps):
        batch = sentences(48, seed=step)
        source = _padded([[*s, EOS] for s in batch])
        target = _padded([[BOS, *reversed(s), EOS] for s in batch])
        logits = model(source, target[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def _padded(rows: list[list[int]]) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
