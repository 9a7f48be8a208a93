"""Packed rows from words: the plain functions against the model's, the kernels against the plain ones.

Kernels run on a CUDA device, or in Triton's interpreter with TRITON_INTERPRET=1.
"""

import pytest
import torch

from qknorm.ids import PAD, UNK
from qknorm.model import ModelSettings, Transformer, fused
from qknorm.nn import FixNormEmbedding, Packing, TiedEmbedding, find_spans
from qknorm.nn.packed_embedding import Wording, plain_embed_rows, plain_output_rows
from qknorm.nn.spans import plain_bounds
from support.triton import DEVICE, INTERPRETED, anywhere

LENGTHS, ROWS, VOCABULARY = [5, 1, 0, 9, 16], 37, 23


def some_words(width, device="cpu", rows=ROWS, lengths=LENGTHS, causal=False):
    """Arguments of ``embed_rows`` but its seeds: padding after the sentences, a word of length 0."""
    torch.manual_seed(0)
    packing = Packing.of(lengths, places=len(lengths) + 3, device=device)
    ids = torch.randint(4, VOCABULARY, (rows,), dtype=torch.int32)
    ids[sum(lengths) :] = PAD
    weight = torch.randn(VOCABULARY, width)
    weight[ids[0]] = 0.0
    positions, language = torch.randn(max(lengths) + 4, width), torch.randn(width)
    weight, positions, language = (x.to(device) for x in (weight, positions, language))
    spans = find_spans(packing, rows, is_causal=causal)
    return ids.to(device), spans, weight.requires_grad_(), positions, language.requires_grad_()


@pytest.mark.parametrize("fix_norm", [False, True])
@pytest.mark.parametrize("languages", [0, 2])
def test_plain_rows_are_what_the_model_embeds(fix_norm, languages):
    torch.manual_seed(0)
    settings = {"d_model": 16, "d_ff": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "length": 9}
    model = Transformer(VOCABULARY, ModelSettings(**settings, fix_norm=fix_norm, languages=languages)).eval()
    packing = Packing.of(LENGTHS, places=8)
    ids = torch.randint(4, VOCABULARY, (sum(LENGTHS) + 4,))
    for causal in (False, True):
        spans = find_spans(packing, len(ids), is_causal=causal)
        found = fused.embed(model, ids, packing, 1, spans)
        torch.testing.assert_close(found, model.embed(ids, packing, 1))


@pytest.mark.parametrize("kind", [TiedEmbedding, FixNormEmbedding])
def test_plain_output_rows_are_those_of_the_table(kind):
    embedding, ids = kind(VOCABULARY, 8), torch.tensor([3, 17, 0])
    weight = embedding.weight
    assert torch.equal(plain_output_rows(weight, ids, kind.unit, torch.float32), embedding.table()[ids])
    assert torch.equal(plain_output_rows(weight, None, kind.unit, torch.float16), embedding.table().half())


def test_words_become_unknown_at_their_rate_and_padding_stays():
    rows, weight = 20_000, torch.arange(4.0)[:, None].expand(4, 2).contiguous()
    ids = torch.full((rows,), 3)
    ids[:100] = PAD
    spans, positions = find_spans(Packing.of([rows]), rows), torch.zeros(rows, 2)
    wording = Wording(False, 1.0, 0.1, 0.0, PAD, UNK)
    a, b = (
        plain_embed_rows(ids, spans, weight, positions, None, torch.tensor(seeds), wording)[:, 0]
        for seeds in ([1, 9], [2, 9])
    )
    for found in (a, b):
        assert (found[:100] == PAD).all() and set(found[100:].tolist()) == {UNK, 3}
        assert (found[100:] == UNK).double().mean().item() == pytest.approx(0.1, abs=0.01)
    assert not torch.equal(a, b)


@anywhere
@pytest.mark.parametrize(("unit", "width"), [(True, 24), (False, 40), (True, 64)])
@pytest.mark.parametrize(("word_dropout", "dropout"), [(0.0, 0.0), (0.4, 0.3), (0.4, 0.0), (0.0, 0.3)])
@pytest.mark.parametrize("given", ["language", "nothing"])
def test_the_kernel_embeds_as_the_plain_function(unit, width, word_dropout, dropout, given):
    from qknorm.nn.embedding_kernels import fused_embed_rows

    ids, spans, weight, positions, language = some_words(width, DEVICE, causal=unit)
    language = language if given == "language" else None
    seeds = torch.tensor([5, 2**31 - 1], device=DEVICE) if given == "language" or dropout else None
    wording = Wording(unit, 3.0, word_dropout, dropout, PAD, UNK)
    plain = plain_embed_rows(ids, spans, weight, positions, language, seeds, wording)
    start, end = spans.key_start, spans.key_end
    x = fused_embed_rows(ids, start, end, weight, positions, language, seeds, *wording)
    torch.testing.assert_close(x, plain, rtol=1e-5, atol=1e-5)
    up = torch.randn_like(plain)
    inputs = [weight] if language is None else [weight, language]
    found, expected = (torch.autograd.grad(out, inputs, up) for out in (x, plain))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert found[0].abs().sum() > 0


@anywhere
@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("some", [False, True])
def test_the_kernel_takes_output_rows_as_the_plain_function(unit, some):
    from qknorm.nn.embedding_kernels import fused_output_rows

    _, _, weight, *_ = some_words(24, DEVICE)
    ids = torch.tensor([3, 17, 0, 9, 22], device=DEVICE) if some else None
    plain = plain_output_rows(weight, ids, unit, torch.float32)
    rows = fused_output_rows(weight, ids, unit, torch.float32)
    torch.testing.assert_close(rows, plain)
    up = torch.randn_like(plain)
    torch.testing.assert_close(
        *(torch.autograd.grad(out, weight, up)[0] for out in (rows, plain)), rtol=1e-4, atol=1e-5
    )
    half = fused_output_rows(weight, ids, unit, torch.float16)
    torch.testing.assert_close(half, plain.half(), rtol=1e-3, atol=1e-3)


@anywhere
@pytest.mark.parametrize("lengths", [LENGTHS, [1] * 300, [70], [0, 0, 3], [0]])
@pytest.mark.parametrize("extra", [0, 40])
def test_the_kernel_finds_sentences_as_the_plain_function(lengths, extra):
    from qknorm.nn.bounds_kernel import fused_bounds

    rows = sum(lengths) + extra
    own = Packing.of(lengths, places=len(lengths) + 2, device=DEVICE)
    other = Packing.of([2 * n + 1 for n in lengths], places=len(lengths) + 2, device=DEVICE)
    for a, b in zip(
        fused_bounds(own.cu_seqlens, other.cu_seqlens, rows), plain_bounds(own, other, rows), strict=True
    ):
        assert a.dtype == torch.int32 and torch.equal(a, b.int())


@pytest.mark.gpu
@pytest.mark.skipif(INTERPRETED or not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_model_on_a_gpu_embeds_by_the_kernel_at_its_real_size():
    torch.manual_seed(0)
    model = Transformer(8400, ModelSettings(length=72, encoder_layers=1, decoder_layers=1)).cuda().eval()
    packing = Packing.of([32] * 120, places=900, device="cuda")
    ids = torch.randint(0, 8400, (4096,), device="cuda", dtype=torch.int32)
    spans = find_spans(packing, 4096)
    learned = (
        [model.embedding.weight, model.languages.weight] if model.languages else [model.embedding.weight]
    )
    found, plain = model.embed(ids, packing, 1, spans), model.embed(ids, packing, 1)
    torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-4)
    up = torch.randn_like(plain)
    for a, b in zip(*(torch.autograd.grad(x, learned, up) for x in (found, plain)), strict=True):
        assert (a - b).norm() < 1e-4 * b.norm()
