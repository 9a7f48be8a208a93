"""Word embeddings tied to the output projection, plain or of unit length.

Axes: V subwords, E model width.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qknorm.nn.functional import l2_normalize


class TiedEmbedding(nn.Module):
    """One table for input and output: ``forward`` gives √E · w, ``project`` gives logits h wᵀ + bias."""

    unit = False
    """Whether rows have unit length at every use."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if num_embeddings < 1 or embedding_dim < 1:
            raise ValueError(
                f"num_embeddings and embedding_dim must be positive, not {num_embeddings} and {embedding_dim}"
            )
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.input_scale = math.sqrt(embedding_dim)
        self.weight = nn.Parameter(torch.empty(num_embeddings, embedding_dim, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(num_embeddings, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal, standard deviation E^-½."""
        nn.init.normal_(self.weight, std=self.embedding_dim**-0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight) * self.input_scale  # (…, E)

    def table(self) -> Tensor:
        """The (V, E) rows the output projection uses; pass it to ``project`` to use it many times."""
        return self.weight

    def project(self, h: Tensor, table: Tensor | None = None) -> Tensor:
        """(…, E) to (…, V) logits."""
        table = self.table() if table is None else table
        bias = None if self.bias is None else self.bias.to(h.dtype)
        return F.linear(h, table.to(h.dtype), bias)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, bias={self.bias is not None}"


class FixNormEmbedding(TiedEmbedding):
    """A tied embedding whose rows have unit length at every use (Nguyen & Chiang 2018)."""

    unit = True

    def reset_parameters(self) -> None:
        """Uniform in ±0.01, as the authors draw it; only the directions matter."""
        nn.init.uniform_(self.weight, -0.01, 0.01)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, ids: Tensor) -> Tensor:
        return l2_normalize(F.embedding(ids, self.weight), self.input_scale)  # (…, E)

    def table(self) -> Tensor:
        return l2_normalize(self.weight)
