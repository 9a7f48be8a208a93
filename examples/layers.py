"""What query-key normalisation does, in seconds on any machine: `python examples/layers.py`."""

from __future__ import annotations

import torch
from torch import nn

from qknorm.nn import convert, initial_scale, observe


def softmax_sees_differences() -> None:
    print("Softmax sees only differences, so large dot products silence everything but the largest:")
    for logits in ([760.0, 752.0, 750.0], [12.0, 4.0, 2.0]):
        weights = ", ".join(f"{w:.5f}" for w in torch.tensor(logits).softmax(0).tolist())
        print(f"  softmax({logits}) = [{weights}]")


def watched(name: str, model: nn.Module, tokens: torch.Tensor) -> None:
    with torch.no_grad(), observe(model) as seen:
        model.eval()(tokens)
    print(f"\n{name}:\n{seen}")


def main() -> None:
    softmax_sees_differences()
    length = 40
    print(f"\ng starts at log2(L² - L): for sentences of {length} subwords, {initial_scale(length):.2f}")

    tokens = torch.randn(16, length, 128, generator=torch.Generator().manual_seed(0)) * 6

    def encoder() -> nn.Module:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(128, 8, 256, dropout=0.0, batch_first=True, norm_first=True)
        stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        with torch.no_grad():  # weights as large as long training can make them
            for each in stack.layers:
                each.self_attn.in_proj_weight.mul_(4)
        return stack

    watched("Scaled dot product attention", convert(encoder(), qk_norm=None, log=None), tokens)
    watched("The same weights, queries and keys normalised", convert(encoder(), length=length), tokens)
    print("\nThe logits stay inside ±g, and fewer rows give all their weight to one key.")


if __name__ == "__main__":
    main()
