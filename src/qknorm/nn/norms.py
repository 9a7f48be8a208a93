"""Normalisation layers: those of the Transformer's sublayers, and those of queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qknorm.nn.functional import ZERO_NORM, l2_normalize

NORMS = ("layer", "scale", "rms", "none")
QK_NORMS = ("l2", "rms", "layer", "rms_across_heads")


class L2Norm(nn.Module):
    """x / ‖x‖ along the last axis; no weights."""

    def __init__(self, eps: float = ZERO_NORM) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        return l2_normalize(x, scale, self.eps)

    def extra_repr(self) -> str:
        return f"eps={self.eps}"


class ScaleNorm(nn.Module):
    """g · x / ‖x‖ with one learned g, starting at √dim (Nguyen & Salazar 2019)."""

    def __init__(
        self,
        dim: int,
        scale_init: float | None = None,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.eps = eps
        start = dim**0.5 if scale_init is None else scale_init
        self.scale = nn.Parameter(torch.full((1,), start, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return l2_normalize(x, self.scale, self.eps)

    def extra_repr(self) -> str:
        return f"{self.dim}, eps={self.eps}"


def make_norm(
    kind: str,
    dim: int,
    eps: float | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """The norm of a sublayer: ``"layer"``, ``"scale"``, ``"rms"`` or ``"none"``."""
    if kind == "layer":
        return nn.LayerNorm(dim, eps=1e-5 if eps is None else eps, device=device, dtype=dtype)
    if kind == "scale":
        return ScaleNorm(dim, eps=1e-5 if eps is None else eps, device=device, dtype=dtype)
    if kind == "rms":
        return nn.RMSNorm(dim, eps=1e-6 if eps is None else eps, device=device, dtype=dtype)
    if kind == "none":
        return nn.Identity()
    raise ValueError(f"norm must be one of {_listed(NORMS)}, not {kind!r}")


def make_qk_norm(
    kind: str,
    head_dim: int,
    num_heads: int,
    eps: float | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """The norm of queries or keys.

    ``"l2"`` (the paper), ``"rms"`` (Qwen3, Gemma 3) and ``"layer"`` (ViT-22B) work on one head at a
    time, their weights shared by all heads; ``"rms_across_heads"`` (OLMo 2) on all heads jointly.
    """
    if kind == "l2":
        return L2Norm(ZERO_NORM if eps is None else eps)
    if kind in ("rms", "layer"):
        return make_norm(kind, head_dim, eps, device, dtype)
    if kind == "rms_across_heads":
        return make_norm("rms", head_dim * num_heads, eps, device, dtype)
    raise ValueError(f"qk_norm must be None or one of {_listed(QK_NORMS)}, not {kind!r}")


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(repr(name) for name in names)
