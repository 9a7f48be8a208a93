"""Packed layers from kernels are the layers: by the kernels and by their plain counterparts, no dropout."""

import pytest
import torch

from qknorm.model import ModelSettings, Transformer, fused
from qknorm.nn import Packing, find_spans
from support.triton import DEVICE, anywhere

NONE = {"dropout": 0.0, "attention_dropout": 0.0, "ff_dropout": 0.0, "word_dropout": 0.0}
VARIANTS = [
    {},
    {"norm": "scale", "qk_norm": None},
    {"qk_scale_per": "head"},
    {"encoder_layers": 1, "decoder_layers": 3},
    {"norm": "none"},
    {"v_norm": True},
    {"v_norm": True, "qk_norm": None},
    {"norm_position": "post", "fix_norm": False},
    {"norm_position": "post", "norm": "scale", "qk_norm": None},
    {"rotary": True},
    {"rotary": True, "norm": "scale", "qk_norm": None},
]


def check_against_layers(changed, device, kernels=lambda on: None):
    """``kernels`` turns them on and off."""
    torch.manual_seed(0)
    settings = {"d_model": 32, "d_ff": 48, "heads": 4, "encoder_layers": 2, "decoder_layers": 2, "length": 20}
    model = Transformer(40, ModelSettings(**(settings | NONE | changed))).to(device)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, parameter.mean().item(), 0.1)
    source_packing, packing = (Packing.of(n, device=device) for n in ([5, 1, 9], [7, 3, 2]))
    source, target = (torch.randint(4, 40, (n,)).to(device) for n in (15, 12))
    kernels(False)
    memory, _ = model.encode(source, source_packing)
    hidden = model.decode(target, memory, None, packing, source_packing)
    expected = torch.autograd.grad(hidden.square().sum(), list(model.parameters()), allow_unused=True)

    kernels(True)
    x, spans = model.embed(source, source_packing, 0), find_spans(source_packing, 15)
    memory_again = fused.encode(model, x, spans, model.turns(source, source_packing, spans))
    crossing = find_spans(packing, 12, source_packing, 15)
    x, spans = model.embed(target, packing, 1), find_spans(packing, 12, is_causal=True)
    again = fused.decode(model, x, memory_again, spans, crossing, model.turns(target, packing, spans))
    torch.testing.assert_close(memory_again, memory)
    torch.testing.assert_close(again, hidden)
    found = torch.autograd.grad(again.square().sum(), list(model.parameters()), allow_unused=True)
    for (name, _), a, b in zip(model.named_parameters(), found, expected, strict=True):
        assert (a is None) == (b is None), name
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("changed", VARIANTS)
def test_fused_equals_layers(changed):
    check_against_layers(changed, "cpu")


@anywhere
@pytest.mark.parametrize("changed", VARIANTS)
def test_layers_of_kernels_equal_layers(monkeypatch, changed):
    from qknorm.nn import residual, span_attention, turning

    called = set()

    def counted(module, name):
        kernel = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *arguments: (called.add(name), kernel(*arguments))[1])

    counted(residual, "fused_join_norm")
    counted(span_attention, "fused_span_attention")
    counted(turning, "fused_turned")

    def kernels(on):
        for module in (residual, span_attention, turning):
            monkeypatch.setattr(module, "triton_takes", lambda x: on)

    monkeypatch.setattr(Transformer, "fuses", lambda self, x: False)
    check_against_layers(changed, DEVICE, kernels)
    turns = {"fused_turned"} if "rotary" in changed else set()
    assert called == {"fused_join_norm", "fused_span_attention"} | turns


def test_dropout_drops_in_training_only():
    torch.manual_seed(0)
    settings = ModelSettings(d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=1, length=20)
    model = Transformer(40, settings)
    x, spans = torch.randn(8, 16), find_spans(Packing.of([8]), 8)
    assert not torch.equal(fused.encode(model, x, spans), fused.encode(model, x, spans))
    model.eval()
    assert torch.equal(fused.encode(model, x, spans), fused.encode(model, x, spans))
