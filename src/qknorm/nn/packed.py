"""Attention over many sentences in one flat buffer, no padding between them.

Axes: R rows of the query buffer, Rk of the key buffer, H heads, D width of one head, N sentences,
L the longest sentence. Rows past the last sentence are unused room: in attention they take no part,
give zeros and have zero gradients, whatever stands in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from qknorm.nn.functional import attention

FLASH_DTYPES = (torch.float16, torch.bfloat16)


class Packing(NamedTuple):
    """Where the sentences lie in a flat buffer: sentence i has rows cu_seqlens[i] … cu_seqlens[i+1] − 1.

    Empty sentences are allowed, so a fixed number of places can be kept for a varying number of
    sentences. ``max_length`` bounds the longest sentence; it may be larger.
    """

    cu_seqlens: Tensor  # (N + 1,) int32, first 0
    max_length: int

    @classmethod
    def of(
        cls,
        lengths: Sequence[int] | Tensor,
        places: int | None = None,
        max_length: int | None = None,
        device: torch.device | str | None = None,
    ) -> Packing:
        """From sentence lengths; ``places`` keeps room for more sentences than there are."""
        lengths = torch.as_tensor(lengths, dtype=torch.int32)
        if lengths.dim() != 1 or lengths.numel() == 0 or bool((lengths < 0).any()):
            raise ValueError("lengths must be a non-empty list of sentence lengths, none negative")
        longest = int(lengths.max())
        if max_length is not None and max_length < longest:
            raise ValueError(f"max_length is {max_length}, but the longest sentence has {longest} tokens")
        places = lengths.numel() if places is None else places
        if places < lengths.numel():
            raise ValueError(f"places is {places}, but there are {lengths.numel()} sentences")
        ends = lengths.cumsum(0, dtype=torch.int32)
        cu_seqlens = torch.zeros(places + 1, dtype=torch.int32)
        cu_seqlens[1 : lengths.numel() + 1] = ends
        cu_seqlens[lengths.numel() + 1 :] = ends[-1]
        return cls(cu_seqlens.to(device), max(longest, 1) if max_length is None else max_length)

    @property
    def sentences(self) -> int:
        return self.cu_seqlens.size(0) - 1

    def used(self, rows: int) -> Tensor:
        """(rows,) True where a row belongs to a sentence."""
        return torch.arange(rows, device=self.cu_seqlens.device) < self.cu_seqlens[-1]

    def place(self, rows: int) -> tuple[Tensor, Tensor]:
        """Which sentence each row belongs to, and its position there; both (rows,), 0 in unused room."""
        row = torch.arange(rows, device=self.cu_seqlens.device)
        # Sentences that end at or before the row. (PyTorch 2.11 compiles searchsorted wrongly on a GPU.)
        sentence = (row[:, None] >= self.cu_seqlens[1:]).sum(-1)
        used = row < self.cu_seqlens[-1]
        sentence = torch.where(used, sentence, 0)
        position = torch.where(used, row - self.cu_seqlens[sentence], 0)
        return sentence, position

    def grid(self, rows: int) -> tuple[Tensor, Tensor]:
        """(N, L) row of each sentence's each position, and whether there is one."""
        starts, ends = self.cu_seqlens[:-1, None], self.cu_seqlens[1:, None]
        row = starts + torch.arange(self.max_length, device=starts.device)
        return row.clamp(max=max(rows - 1, 0)), row < ends


def unpack(x: Tensor, packing: Packing) -> Tensor:
    """(R, …) flat rows to (N, L, …) padded with zeros."""
    row, there = packing.grid(x.size(0))
    return torch.where(there.view(*there.shape, *[1] * (x.dim() - 1)), x[row], 0.0)


def pack(x: Tensor, packing: Packing, rows: int) -> Tensor:
    """(N, L, …) padded to (rows, …) flat, zeros in unused room; the inverse of ``unpack``."""
    used = packing.used(rows).view(-1, *[1] * (x.dim() - 2))
    return torch.where(used, x[packing.place(rows)], 0.0)


def packed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    packing: Packing,
    key_packing: Packing | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    scale: float = 1.0,
) -> Tensor:
    """softmax(scale · q kᵀ) v inside each sentence; q (R, H, D), k and v (Rk, H, D), result (R, H, D).

    ``key_packing`` says where the keys' sentences lie (cross-attention); without it they lie where the
    queries' do. On a GPU this is PyTorch's variable-length kernel (flash attention in half precision, the
    memory-efficient one in float32), elsewhere, and for compiled float32, a padded reference.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 3:
            raise ValueError(f"packed {name} must be (rows, heads, width), not {tuple(x.shape)}")
    keys = packing if key_packing is None else key_packing
    check_packed(q, k, v, packing, keys, is_causal)
    # The GPU kernels leave unused room unwritten, forward and backward; torch.where (unlike a product
    # with 0) keeps whatever stands there out of values and gradients alike.
    used_q = packing.used(q.size(0))[:, None, None]
    used_k = used_q if keys is packing else keys.used(k.size(0))[:, None, None]
    q, k, v = torch.where(used_q, q, 0.0), torch.where(used_k, k, 0.0), torch.where(used_k, v, 0.0)
    kernel = _padded_reference
    if q.is_cuda and q.dtype in FLASH_DTYPES and q.size(-1) % 8 == 0 and q.size(-1) <= 256:
        kernel = _flash
    elif q.is_cuda and not torch.compiler.is_compiling():  # PyTorch 2.11 cannot compile this one's backward
        kernel = _memory_efficient
    out = kernel(q, k, v, packing, keys, is_causal, dropout_p, scale)
    return torch.where(used_q, out, 0.0)


def _padded_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: Packing,
    keys: Packing,
    is_causal: bool,
    dropout_p: float,
    scale: float,
) -> Tensor:
    there = keys.grid(k.size(0))[1][:, None, None, :]  # (N, 1, 1, Lk)
    padded_q = unpack(q, queries).transpose(1, 2)  # (N, H, L, D)
    padded_k, padded_v = unpack(k, keys).transpose(1, 2), unpack(v, keys).transpose(1, 2)
    out = attention(padded_q, padded_k, padded_v, there, is_causal, dropout_p, scale=scale)
    return pack(out.transpose(1, 2), queries, q.size(0))


def _flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: Packing,
    keys: Packing,
    is_causal: bool,
    dropout_p: float,
    scale: float,
) -> Tensor:
    out: Tensor = torch.ops.aten._flash_attention_forward(
        q,
        k,
        v,
        queries.cu_seqlens,
        keys.cu_seqlens,
        queries.max_length,
        keys.max_length,
        dropout_p,
        is_causal,
        False,
        scale=scale,
    )[0]
    return out


def _memory_efficient(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: Packing,
    keys: Packing,
    is_causal: bool,
    dropout_p: float,
    scale: float,
) -> Tensor:
    if keys is not queries:  # its backward leaves the gradients of queries without a key unwritten
        q = torch.where(_has_keys(queries, keys, q.size(0))[:, None, None], q, 0.0)
    out: Tensor = torch.ops.aten._efficient_attention_forward(
        q[None],
        k[None],
        v[None],
        None,
        queries.cu_seqlens,
        keys.cu_seqlens,
        min(queries.max_length, q.size(0)),  # this kernel refuses more than there are rows
        min(keys.max_length, k.size(0)),
        dropout_p,
        1 if is_causal else 0,  # 1: causal from the top left
        True,
        scale=scale,
    )[0]
    return out[0]


def _has_keys(queries: Packing, keys: Packing, rows: int) -> Tensor:
    """(rows,) True where a row belongs to a sentence that has keys."""
    return queries.used(rows) & (keys.cu_seqlens.diff() > 0)[queries.place(rows)[0]]


def check_packed(q: Tensor, k: Tensor, v: Tensor, queries: Packing, keys: Packing, is_causal: bool) -> None:
    """Rows and packings that go together; q, k and v may be one tensor."""
    if k.size(0) != v.size(0):
        raise ValueError(f"packed k and v must have one number of rows, not {k.size(0)} and {v.size(0)}")
    if queries.sentences != keys.sentences:
        raise ValueError(
            f"packing has places for {queries.sentences} sentences, key_packing for {keys.sentences}; "
            "they must agree"
        )
    if is_causal and keys is not queries:
        raise ValueError("is_causal needs queries and keys of the same sentences: leave key_packing out")
    if queries is keys and q.size(0) != k.size(0):
        raise ValueError(
            f"packed q has {q.size(0)} rows and k {k.size(0)}: say where k's lie with key_packing"
        )
    if not torch.compiler.is_compiling() and not q.is_cuda:
        _check_fits("packing", queries, q.size(0))
        if keys is not queries:
            _check_fits("key_packing", keys, k.size(0))


def _check_fits(name: str, packing: Packing, rows: int) -> None:
    """On the CPU, where looking is free: no sentence longer than max_length or past the buffer's end."""
    longest = int(packing.cu_seqlens.diff().max())
    if longest > packing.max_length:
        raise ValueError(f"{name}.max_length is {packing.max_length}, but a sentence has {longest} rows")
    if int(packing.cu_seqlens[-1]) > rows:
        raise ValueError(f"{name} ends at row {int(packing.cu_seqlens[-1])}, but the buffer has {rows} rows")
