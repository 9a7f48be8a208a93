"""Query-key normalised attention written down once more, in NumPy and float64, with its gradients.

The tests hold the package against this; it shares no code with it. Axes as in ``qknorm.nn.attention``.
"""

from __future__ import annotations

import numpy as np


def norm(kind, x, weight=None, bias=None, eps=0.0):
    """(normalised, what the gradient needs) along the last axis."""
    D = x.shape[-1]
    if kind is None:
        return x, None
    if kind == "l2":
        r = np.sqrt((x * x).sum(-1, keepdims=True))
        y = x / r
        return y, (kind, y, r, None)
    if kind == "rms":
        r = np.sqrt((x * x).mean(-1, keepdims=True) + eps)
        y = x / r
        return y * weight, (kind, y, r, weight)
    assert kind == "layer"
    centred = x - x.mean(-1, keepdims=True)
    r = np.sqrt((centred * centred).sum(-1, keepdims=True) / D + eps)
    y = centred / r
    return y * weight + bias, (kind, y, r, weight)


def norm_backward(dy, kept):
    if kept is None:
        return dy
    kind, y, r, weight = kept
    D = y.shape[-1]
    if kind == "l2":
        return (dy - y * (dy * y).sum(-1, keepdims=True)) / r
    dy = dy * weight
    if kind == "layer":
        dy = dy - dy.mean(-1, keepdims=True)
    return (dy - y * (dy * y).sum(-1, keepdims=True) / D) / r


def softmax(x):
    shifted = np.exp(x - np.where(np.isfinite(m := x.max(-1, keepdims=True)), m, 0.0))
    total = shifted.sum(-1, keepdims=True)
    return np.where(total > 0, shifted / np.where(total > 0, total, 1.0), 0.0)


def angles(length, width, base=10000.0):
    """(length, width / 2) by which the pairs of a head turn at each position."""
    return np.arange(length)[:, None] * base ** (-np.arange(0, width, 2) / width)


def turn(x, angle):
    """Halves of the last axis as real and imaginary parts of complex numbers, turned."""
    if angle is None:
        return x
    a, b = np.split(x, 2, axis=-1)
    turned = (a + 1j * b) * np.exp(1j * angle)
    return np.concatenate([turned.real, turned.imag], axis=-1)


def core(q, k, v, g, bias=None, q_norm=(None,), k_norm=(None,), turns=(None, None)):
    """softmax(g q̂ k̂ᵀ + bias) v for (B, H, T, D) arrays; ``bias`` is additive, −inf where not to look.

    Returns the output, the weights, and a function from the output's gradient to those of q, k, v, g.
    ``g`` is a number or an array that broadcasts over (B, H, T, S). ``turns``: the ``angles`` of queries
    and of keys.
    """
    qn, q_kept = norm(q_norm[0], q, *q_norm[1:])
    kn, k_kept = norm(k_norm[0], k, *k_norm[1:])
    qn, kn = turn(qn, turns[0]), turn(kn, turns[1])
    back = [None if angle is None else -angle for angle in turns]
    cosine = qn @ np.swapaxes(kn, -1, -2)
    logits = g * cosine
    weights = softmax(logits if bias is None else logits + bias)
    out = weights @ v

    def backward(dout):
        dv = np.swapaxes(weights, -1, -2) @ dout
        dw = dout @ np.swapaxes(v, -1, -2)
        dlogits = weights * (dw - (dw * weights).sum(-1, keepdims=True))
        dg = dlogits * cosine
        dcosine = g * dlogits
        dq = norm_backward(turn(dcosine @ kn, back[0]), q_kept)
        dk = norm_backward(turn(np.swapaxes(dcosine, -1, -2) @ qn, back[1]), k_kept)
        return dq, dk, dv, dg

    return out, weights, backward


def split(x, heads):
    B, T, E = x.shape
    return x.reshape(B, T, heads, E // heads).transpose(0, 2, 1, 3)


def join(x):
    B, H, T, D = x.shape
    return x.transpose(0, 2, 1, 3).reshape(B, T, H * D)


def multihead(inputs, weights, heads, kind, g, bias=None, rotary=False):
    """A whole attention module, its gradients included.

    ``inputs``: query, key, value (B, ·, ·). ``weights``: name → array as in the module's state dict, with
    q_proj_weight, k_proj_weight, v_proj_weight always apart. ``rotary``: heads are turned, from position 0.
    """
    across = kind == "rms_across_heads"
    b = weights.get("in_proj_bias")
    E = weights["out_proj.weight"].shape[0]
    b = np.zeros(3 * E) if b is None else b
    projected = []
    for i, (name, x) in enumerate(zip("qkv", inputs, strict=True)):
        projected.append(x @ weights[f"{name}_proj_weight"].T + b[i * E : (i + 1) * E])
    q, k, v = projected
    eps = {"rms": 1e-6, "rms_across_heads": 1e-6, "layer": 1e-5}.get(kind, 0.0)

    def settings(name):
        w, b_ = weights.get(f"{name}_norm.weight"), weights.get(f"{name}_norm.bias")
        return {"l2": ("l2",), None: (None,)}.get(kind) or (kind.split("_")[0], w, b_, eps)

    q_kept = k_kept = None
    inner = (settings("q"), settings("k"))
    if across:
        (q, q_kept), (k, k_kept) = norm(*_at(settings("q"), q)), norm(*_at(settings("k"), k))
        inner = ((None,), (None,))
    turns = [angles(x.shape[1], E // heads) if rotary else None for x in (q, k)]
    out, attn, core_back = core(split(q, heads), split(k, heads), split(v, heads), g, bias, *inner, turns)
    joined = join(out)
    w_out, b_out = weights["out_proj.weight"], weights.get("out_proj.bias")
    result = joined @ w_out.T + (0.0 if b_out is None else b_out)

    def backward(dresult):
        dq, dk, dv, dg = core_back(split(dresult @ w_out, heads))
        dq, dk, dv = join(dq), join(dk), join(dv)
        if across:
            dq, dk = norm_backward(dq, q_kept), norm_backward(dk, k_kept)
        grads = {"qk_scale": dg}
        for name, x, dx in zip("qkv", inputs, (dq, dk, dv), strict=True):
            grads[name] = dx @ weights[f"{name}_proj_weight"]
            grads[f"{name}_proj_weight"] = np.einsum("btf,bte->fe", dx, x)
        grads["in_proj_bias"] = np.concatenate([d.sum((0, 1)) for d in (dq, dk, dv)])
        grads["out_proj.weight"] = np.einsum("btf,bte->fe", dresult, joined)
        grads["out_proj.bias"] = dresult.sum((0, 1))
        return grads

    return result, attn, backward


def _at(settings, x):
    return settings[0], x, *settings[1:]
