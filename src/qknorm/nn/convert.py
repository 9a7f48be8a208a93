"""Query-key normalisation for models that exist already, and for other libraries' layouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import nn

from qknorm.nn.attention import MultiheadAttention
from qknorm.nn.norms import make_qk_norm

_KEPT = (
    "in_proj_weight",
    "q_proj_weight",
    "k_proj_weight",
    "v_proj_weight",
    "in_proj_bias",
    "bias_k",
    "bias_v",
)


def convert(
    module: nn.Module,
    qk_norm: str | None = "l2",
    *,
    length: float | None = None,
    qk_scale_init: float | None = None,
    qk_scale_per: str = "layer",
    qk_scale_learnable: bool | None = None,
    v_norm: bool = False,
    log: Callable[[str], None] | None = print,
) -> nn.Module:
    """Replace every ``torch.nn.MultiheadAttention`` in a model by one with normalised queries and keys.

    The weights stay the same parameter objects (so an optimiser that has them still does, but has yet to
    be told of the new ``qk_scale``), as do device, dtype, training mode and ``requires_grad``. The model
    is changed in place and returned; only where it is itself an attention module is a new one returned.
    ``log`` is handed one line that says what was replaced and what was left alone; None keeps quiet.

    Inference fast paths of ``torch.nn.TransformerEncoder`` and its layers are switched off, because they
    compute attention without asking the attention module.
    """
    settings = {
        "qk_norm": qk_norm,
        "length": length,
        "qk_scale_init": qk_scale_init,
        "qk_scale_per": qk_scale_per,
        "qk_scale_learnable": qk_scale_learnable,
        "v_norm": v_norm,
    }
    replaced: dict[nn.Module, nn.Module] = {}
    names, left = [], []
    for name, child in list(module.named_modules(remove_duplicate=False)):
        if isinstance(child, nn.TransformerEncoder):
            child.enable_nested_tensor = child.use_nested_tensor = False
        if type(child) is not nn.MultiheadAttention:
            if isinstance(child, nn.MultiheadAttention):
                left.append(f"{name or 'the module itself'} ({type(child).__name__})")
            continue
        if child not in replaced:
            replaced[child] = _like(child, settings)
        names.append(name)
        if not name:
            module = replaced[child]
        else:
            parent, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(parent), attribute, replaced[child])
    if log is not None:
        log(_said(qk_norm, names, left))
    return module


def _like(old: nn.MultiheadAttention, settings: Mapping[str, object]) -> MultiheadAttention:
    weight = old.out_proj.weight
    new = MultiheadAttention(
        old.embed_dim,
        old.num_heads,
        dropout=old.dropout,
        bias=old.in_proj_bias is not None,
        add_bias_kv=old.bias_k is not None,
        add_zero_attn=old.add_zero_attn,
        kdim=old.kdim,
        vdim=old.vdim,
        batch_first=old.batch_first,
        device="meta",
        dtype=weight.dtype,
        **settings,  # type: ignore[arg-type]
    )
    for name in _KEPT:
        setattr(new, name, getattr(old, name))
    new.out_proj.weight, new.out_proj.bias = weight, old.out_proj.bias
    for own in (new.q_norm, new.k_norm):
        if own is not None:
            own.to_empty(device=weight.device)
            if isinstance(own, nn.LayerNorm | nn.RMSNorm):
                own.reset_parameters()
    if new.qk_scale is not None:
        g = torch.full_like(new.qk_scale, new._qk_scale_start, device=weight.device)
        new.qk_scale = nn.Parameter(g) if isinstance(new.qk_scale, nn.Parameter) else g
    return new.train(old.training)


def _said(qk_norm: str | None, names: list[str], left: list[str]) -> str:
    if not names:
        line = "qknorm.convert: no torch.nn.MultiheadAttention found, nothing replaced"
    else:
        listed = ", ".join(name or "the module itself" for name in names)
        line = f"qknorm.convert: {len(names)} attention module(s) now have qk_norm={qk_norm!r}: {listed}"
    return line + (f"; left alone, subclasses: {', '.join(left)}" if left else "")


def attention_modules(module: nn.Module) -> dict[str, MultiheadAttention]:
    """Every qknorm attention module in a model, by its name."""
    return {name: m for name, m in module.named_modules() if isinstance(m, MultiheadAttention)}


def to_rms(module: nn.Module, eps: float = 1e-12) -> nn.Module:
    """Rewrite l2-normalised attention as RMS q/k norm, the layout of Qwen3- or diffusers-style models.

    With RMS(x) = √D · x/‖x‖, g · q̂·k̂ = (g/√D · RMS(q)) · RMS(k) / √D: the same function, with g folded
    into ``q_norm.weight``, all-ones ``k_norm.weight`` and the usual 1/√D. In place; returns the module.
    One g per head cannot be written with weights shared by all heads and is refused.

    Args:
        eps: RMSNorm's; the paper's form has none, so the default is too small to matter.
    """
    found = attention_modules(module)
    for name, attention in found.items():
        if attention.qk_norm == "l2" and attention.qk_scale_per == "head":
            raise ValueError(
                f"{name or 'the module'} has one qk_scale per head; RMS norm weights are shared by all "
                "heads, so it cannot be rewritten as 'rms'"
            )
    if not any(attention.qk_norm == "l2" for attention in found.values()):
        raise ValueError("to_rms found no qknorm attention with qk_norm='l2' in the module")
    for attention in found.values():
        if attention.qk_norm == "l2":
            _fold(attention, eps)
    return module


@torch.no_grad()
def _fold(attention: MultiheadAttention, eps: float) -> None:
    g = attention.qk_scale
    assert g is not None
    D, learnable = attention.head_dim, g.requires_grad
    norms = [make_qk_norm("rms", D, attention.num_heads, eps, g.device, g.dtype) for _ in "qk"]
    attention.q_norm, attention.k_norm = norms
    attention.q_norm.weight.fill_(g.item() / math.sqrt(D))  # type: ignore[operator]
    for norm in norms:
        norm.requires_grad_(learnable)
    attention.qk_norm = "rms"
    attention._qk_scale_start = 1.0 / math.sqrt(D)
    del attention.qk_scale
    attention.register_buffer("qk_scale", torch.full_like(g, attention._qk_scale_start))


def from_x_transformers(attention: nn.Module, batch_first: bool = True) -> MultiheadAttention:
    """An ``x_transformers`` ``Attention`` with ``attn_qk_norm`` as ours: same weights, same function.

    Its scale is fixed (10 unless set), so ``qk_scale`` comes as a fixed buffer. Refused with a sentence:
    what our module has no counterpart of (grouped key heads, ``attn_qk_norm_dim_scale``, gates, …).
    """
    found = dict(attention.named_parameters())
    needed = {f"to_{name}.weight" for name in ("q", "k", "v", "out")}
    if not getattr(attention, "qk_norm", False):
        raise ValueError("from_x_transformers needs an Attention made with qk_norm=True (attn_qk_norm=True)")
    if missing := sorted(needed - set(found)):
        raise ValueError(f"from_x_transformers: the module has no {', '.join(missing)}")
    if surplus := sorted(set(found) - needed):
        raise ValueError(f"from_x_transformers: no counterpart here for {', '.join(surplus)}")
    groups = getattr(attention, "qk_norm_groups", 1)
    if groups != 1:
        raise ValueError(f"from_x_transformers: no counterpart here for qk_norm_groups={groups}")
    w_q, w_k, w_v, w_out = (found[f"to_{name}.weight"] for name in ("q", "k", "v", "out"))
    E, heads = w_q.size(1), int(attention.heads)  # type: ignore[arg-type]
    if not (w_q.size(0) == w_k.size(0) == w_v.size(0) == w_out.size(0) == w_out.size(1) == E):
        raise ValueError(
            f"from_x_transformers needs heads × dim_head = dim and as many key heads as query heads; "
            f"to_q is {tuple(w_q.shape)}, to_k {tuple(w_k.shape)}, to_out {tuple(w_out.shape)}"
        )
    new = MultiheadAttention(
        E,
        heads,
        dropout=_dropout_of(attention),
        bias=False,
        batch_first=batch_first,
        kdim=w_k.size(1),
        vdim=w_v.size(1),
        device=w_q.device,
        dtype=w_q.dtype,
        qk_norm="l2",
        qk_scale_init=float(attention.qk_norm_scale),  # type: ignore[arg-type]
        qk_scale_learnable=False,
    )
    with torch.no_grad():
        if new.in_proj_weight is not None:
            new.in_proj_weight.copy_(torch.cat([w_q, w_k, w_v]))
        for to, source in ((new.q_proj_weight, w_q), (new.k_proj_weight, w_k), (new.v_proj_weight, w_v)):
            if to is not None:
                to.copy_(source)
        new.out_proj.weight.copy_(w_out)
    return new.train(attention.training)


def _dropout_of(attention: nn.Module) -> float:
    return float(getattr(getattr(attention, "attend", None), "dropout", 0.0))
