"""The whole model: its size, its switches, cached = uncached, packed = padded, and its initial values."""

import copy
import itertools
import pickle

import pytest
import torch
from torch import nn

from qknorm.ids import BOS, EOS, PAD, UNK
from qknorm.model import ModelSettings, Transformer
from qknorm.nn import (
    FixNormEmbedding,
    MultiheadAttention,
    Packing,
    ScaleNorm,
    TiedEmbedding,
    attention_modules,
    initial_scale,
    observe,
)
from support.compare import error

V = 40
SMALL = dict(d_model=32, d_ff=48, heads=4, encoder_layers=2, decoder_layers=2)
STILL = dict(dropout=0.0, attention_dropout=0.0, ff_dropout=0.0, word_dropout=0.0)


def model(target_subwords=None, **options):
    torch.manual_seed(0)
    return Transformer(V, ModelSettings(**(SMALL | STILL | options)), target_subwords)


def batch():
    """Three pairs of different lengths, padded; and those lengths."""
    rng = torch.Generator().manual_seed(5)
    source, target = torch.randint(4, V, (3, 7), generator=rng), torch.randint(4, V, (3, 6), generator=rng)
    source_lengths, target_lengths = [7, 4, 1], [6, 2, 5]
    target[:, 0] = BOS
    for x, lengths in ((source, source_lengths), (target, target_lengths)):
        for row, n in zip(x, lengths, strict=True):
            row[n:] = PAD
    return source, target, source_lengths, target_lengths


SWITCHES = {
    "paper": {},
    "baseline": dict(norm="scale", qk_norm=None),
    "post": dict(norm_position="post"),
    "post without fixnorm": dict(norm_position="post", fix_norm=False),
    "rms": dict(norm="rms", qk_norm="rms"),
    "no norm": dict(norm="none"),
    "without g": dict(qk_scale_init=1.0, qk_scale_learnable=False),
    "v": dict(v_norm=True),
    "per head": dict(qk_scale_per="head", length=72),
    "across heads": dict(qk_norm="rms_across_heads"),
    "one language": dict(languages=0, positions="sine"),
    "rotary": dict(rotary=True),
    "rotary baseline": dict(rotary=True, norm="scale", qk_norm=None),
}


def test_the_base_model_has_the_papers_size():
    with torch.device("meta"):
        base = Transformer(8360)
    count = sum(p.numel() for p in base.parameters())
    attention, ff, norm = 4 * (512 * 512 + 512) + 1, 2 * 512 * 2048 + 2048 + 512, 2 * 512
    layers = 6 * (attention + ff + 2 * norm) + 6 * (2 * attention + ff + 3 * norm)
    assert count == layers + 2 * norm + 2 * 512 + 8360 * 513
    assert count == pytest.approx(48.4e6, rel=1e-3)
    assert base.settings == ModelSettings()


def test_the_galician_model_has_the_papers_size():
    """Table 1: 31,051,880 parameters with 4+4 layers and 4 heads."""
    with torch.device("meta"):
        small = Transformer(3150, ModelSettings(encoder_layers=4, decoder_layers=4, heads=4))
    assert sum(p.numel() for p in small.parameters()) == pytest.approx(31.05e6, rel=1e-3)


@pytest.mark.parametrize("switches", SWITCHES)
def test_packed_is_padded_outputs_and_gradients(switches):
    made = model(**SWITCHES[switches])
    source, target, source_lengths, target_lengths = batch()
    padded = made(source, target)
    keep = target != PAD
    direction = torch.randn(int(keep.sum()), V)
    padded_grads = torch.autograd.grad((padded[keep] * direction).sum(), list(made.parameters()))

    def flat(x, room):
        return torch.cat([x[x != PAD], torch.full((room,), PAD)])

    packed = made(
        flat(source, 3),
        flat(target, 2),
        Packing.of(source_lengths, places=4),
        Packing.of(target_lengths, places=4),
    )
    assert packed.shape == (sum(target_lengths) + 2, V) and packed.isfinite().all()
    packed_grads = torch.autograd.grad((packed[:-2] * direction).sum(), list(made.parameters()))
    assert error(packed[:-2], padded[keep]) < 1e-5
    for a, b in zip(packed_grads, padded_grads, strict=True):
        assert error(a, b) < 2e-5


@pytest.mark.parametrize("switches", SWITCHES)
def test_step_by_step_is_all_at_once(switches):
    made = model(**SWITCHES[switches]).eval()
    source, target, _, _ = batch()
    whole = made(source, target)
    state = made.start(source)
    for t in range(target.size(1)):
        logits, weights = made.step(target[:, t : t + 1], state)
        assert weights == [] and error(logits[:, 0], whole[:, t]) < 2e-5
    assert state.length == target.size(1)


def test_hypotheses_side_by_side_reorder_and_leave():
    """K hypotheses of a sentence share its memory; reorder moves them, keep drops finished sentences."""
    made = model().eval()
    source, _, _, _ = batch()
    rng = torch.Generator().manual_seed(9)
    beams = torch.randint(4, V, (3, 2, 4), generator=rng)  # (B, K, T)
    state = made.start(source)
    made.step(beams[:, :, 0], state)
    made.step(beams[:, :, 1], state)
    state.reorder(torch.tensor([1, 0, 2, 2, 5, 4]))  # swap, copy the first, swap
    told = torch.stack([beams[0, [1, 0]], beams[1, [0, 0]], beams[2, [1, 0]]])
    told[:, :, 2:] = beams[:, :, 2:]
    made.step(told[:, :, 2], state)
    state.keep(torch.tensor([0, 2]))
    logits, weights = made.step(told[[0, 2], :, 3], state, need_weights=True)
    expected = made(source[[0, 0, 2, 2]], told[[0, 2]].flatten(0, 1))[:, 3]
    assert error(logits.flatten(0, 1), expected) < 2e-5
    assert len(weights) == 2 and weights[0].shape == (2, 4, 2, 7)
    assert error(weights[1].sum(-1), torch.ones(2, 4, 2)) < 1e-6
    assert (weights[0][1, ..., 1:] == 0).all(), "the third source has one subword, the rest is padding"


def test_padding_changes_nothing():
    made = model().eval()
    source, target, _, _ = batch()
    alone = made(source[1:2, :4], target[1:2, :2])
    assert error(made(source, target)[1:2, :2], alone) < 1e-5


def test_the_future_is_hidden():
    made = model().eval()
    source, target, _, _ = batch()
    before = made(source, target)
    target[:, 3:] = UNK
    assert error(made(source, target)[:, :3], before[:, :3]) == 0


def test_only_target_subwords_are_predicted():
    allowed = torch.ones(V, dtype=torch.bool)
    allowed[10:20] = False
    made = model(allowed).eval()
    source, target, _, _ = batch()
    free = model().eval()(source, target)
    logits = made(source, target)
    assert (logits[..., 10:20] == -1e9).all() and torch.equal(logits[..., :10], free[..., :10])
    state = made.start(source)
    assert (made.step(target[:, :1], state)[0][..., 10:20] == -1e9).all()
    half = made.half()(source, target)
    assert half.dtype == torch.float16 and half.isfinite().all() and (half[..., 10:20] < -6e4).all()
    assert "target_subwords" in made.state_dict()


def test_word_dropout_replaces_by_unk_while_training():
    made = model(word_dropout=0.5)
    seen = []
    made.embedding.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    source, target, _, _ = batch()
    source = source.repeat(40, 1)
    made(source, target.repeat(40, 1))
    changed = seen[0] != source
    assert (seen[0][changed] == UNK).all() and not changed[source == PAD].any()
    share = changed.sum() / (source != PAD).sum()
    assert share.item() == pytest.approx(0.5, abs=0.06)
    assert (seen[1] != target.repeat(40, 1)).any()
    made.eval()(source, target.repeat(40, 1))
    assert torch.equal(seen[2], source)


@pytest.mark.parametrize("kind", ["dropout", "attention_dropout", "ff_dropout"])
def test_each_dropout_acts_in_training_only(kind):
    made = model(**{kind: 0.5})
    source, target, _, _ = batch()
    assert error(made(source, target), made(source, target)) > 1e-3
    made.eval()
    assert error(made(source, target), made(source, target)) == 0
    assert error(made(source, target), model().eval()(source, target)) == 0


def test_initial_values_are_the_authors():
    torch.manual_seed(0)
    made = Transformer(
        500, ModelSettings(d_model=128, d_ff=256, encoder_layers=1, decoder_layers=1, length=72)
    )
    layer = made.decoder[0]
    for attention in (layer.self_attn, layer.cross_attn, made.encoder[0].self_attn):
        for weight in (attention.in_proj_weight, attention.out_proj.weight):
            assert weight.std().item() == pytest.approx((2 / (5 * 128)) ** 0.5, rel=0.03)
        assert (attention.in_proj_bias == 0).all() and (attention.out_proj.bias == 0).all()
        assert attention.qk_scale.item() == pytest.approx(initial_scale(72))
    for linear in (layer.ff.inner, layer.ff.outer):
        assert linear.weight.std().item() == pytest.approx((2 / (128 + 256)) ** 0.5, rel=0.03)
        assert (linear.bias == 0).all()
    assert made.embedding.weight.abs().max() <= 0.01
    assert made.languages.weight.std().item() == pytest.approx(128**-0.5, rel=0.2)


def test_the_switches_reach_the_modules():
    assert isinstance(model().embedding, FixNormEmbedding)
    plain = model(fix_norm=False, norm="scale", qk_norm=None, norm_position="post", languages=0)
    assert type(plain.embedding) is TiedEmbedding and plain.languages is None
    assert isinstance(plain.encoder_norm, nn.Identity), "PostNorm has no final norm"
    assert isinstance(model(norm="scale").decoder_norm, ScaleNorm)
    assert isinstance(plain.encoder[0].ff_sublayer.norm, ScaleNorm)
    kinds = {m.qk_norm for m in attention_modules(plain).values()}
    assert kinds == {None} and len(attention_modules(plain)) == 6
    assert all(isinstance(m, MultiheadAttention) for m in attention_modules(model()).values())
    fixed = model(**SWITCHES["without g"])
    assert not any("qk_scale" in name for name, _ in fixed.named_parameters())


@pytest.mark.parametrize("switches", list(SWITCHES)[1:])
def test_every_switch_changes_the_function(switches):
    source, target, _, _ = batch()
    # v_norm and the norms need activations away from unit length to show
    made, other = model(), model(**SWITCHES[switches])
    assert error(made.eval()(source, target), other.eval()(source, target)) > 1e-4


def test_a_changed_scale_changes_the_output_and_gets_a_gradient_everywhere():
    made = model()
    source, target, _, _ = batch()
    before = made(source, target)
    before.logsumexp(-1).sum().backward()
    for name, attention in attention_modules(made).items():
        assert attention.qk_scale.grad.abs().item() > 0, name
        with torch.no_grad():
            attention.qk_scale.mul_(4)
            assert error(made(source, target), before) > 1e-6, name
            attention.qk_scale.div_(4)


def test_a_language_a_sentence():
    made = model(languages=3).eval()
    source, target, _, _ = batch()
    mixed = made(
        source, target, source_language=torch.tensor([0, 2, 0]), target_language=torch.tensor([1, 1, 2])
    )
    one = made(source, target, source_language=2)
    assert error(mixed[1], one[1]) < 1e-6
    assert error(mixed[0], made(source, target)[0]) < 1e-6 < error(mixed[2], one[2])


def test_it_learns():
    """A few steps on one batch: the loss falls, g moves, logits stay inside ±g."""
    made = model()
    source, target, _, _ = batch()
    wanted = torch.cat([target[:, 1:], torch.full((3, 1), EOS)], 1)
    optimiser = torch.optim.Adam(made.parameters(), 3e-3)
    losses = []
    for _ in range(40):
        loss = nn.functional.cross_entropy(
            made(source, target).flatten(0, 1), wanted.flatten(), ignore_index=PAD
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 < 2 < losses[0]
    with observe(made) as seen:
        made(source, target)
    for name, s in seen.items():
        assert s.max_logit <= abs(s.g[0]) * (1 + 1e-5), name
        assert s.g[0] != pytest.approx(initial_scale(64), abs=1e-6), name


def test_copies_compile_and_export():
    made = model(word_dropout=0.1, dropout=0.1, encoder_layers=1, decoder_layers=1).eval()
    source, target, source_lengths, target_lengths = batch()
    expected = made(source, target)
    for twin in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert torch.equal(twin(source, target), expected)
    torch.compiler.reset()
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    assert error(compiled(source, target), expected) < 1e-5
    packings = Packing.of(source_lengths), Packing.of(target_lengths)
    flat = source[source != PAD], target[target != PAD]
    assert error(compiled(*flat, *packings), made(*flat, *packings)) < 1e-5
    program = torch.export.export(made, (source, target))
    assert error(program.module()(source, target), expected) < 1e-5
    state = made.state_dict()
    twin = Transformer(V, made.settings)
    twin.load_state_dict(state)
    assert torch.equal(twin.eval()(source, target), expected)


def test_long_sentences_grow_the_positions():
    made = model().eval()
    source, target = torch.full((1, 700), 5), torch.full((1, 3), 6)
    assert made(source, target).isfinite().all()


@pytest.mark.parametrize("length", [1, 2])
def test_a_single_subword(length):
    made = model().bfloat16()
    out = made(torch.full((2, length), 5), torch.full((2, length), BOS))
    out.float().sum().backward()
    assert out.dtype == torch.bfloat16 and all(p.grad.isfinite().all() for p in made.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(d_model=30), "heads must divide d_model: 30 is not a multiple of 4"),
        (dict(d_model=33, heads=3), "d_model must be even"),
        (dict(heads=0), "heads must be at least 1, not 0"),
        (dict(decoder_layers=0), "decoder_layers must be at least 1"),
        (dict(languages=-1), "languages must be at least 0"),
        (dict(dropout=1.0), "dropout must be at least 0 and below 1"),
        (dict(norm="batch"), "norm must be one of 'layer', 'scale', 'rms', 'none', not 'batch'"),
        (dict(norm_position="mid"), "norm_position must be one of 'pre', 'post'"),
        (dict(qk_norm="l1"), "qk_norm must be one of None, 'l2'"),
        (dict(positions="learned"), "positions must be one of 'cosine', 'sine'"),
        (dict(qk_scale_per="row"), "qk_scale_per must be one of"),
        (dict(length=1), "length must be"),
    ],
)
def test_wrong_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        model(**options)


def test_wrong_inputs_are_named():
    made = model()
    source, target, source_lengths, _ = batch()
    packing = Packing.of(source_lengths)
    with pytest.raises(ValueError, match="both source_packing and target_packing"):
        made(source, target, packing)
    with pytest.raises(ValueError, match="ids must be flat"):
        made(source, target, packing, packing)
    with pytest.raises(ValueError, match=r"ids must be \(sentences, positions\), not \(7,\)"):
        made(source[0], target)
    with pytest.raises(ValueError, match="one entry per subword"):
        model(torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match="more than the 4 special subwords"):
        Transformer(4)


def test_settings_print_and_repr():
    assert "parameters=" in repr(model())
    assert all(
        isinstance(model(norm=n, norm_position=p), Transformer)
        for n, p in itertools.product(["layer", "scale", "rms", "none"], ["pre", "post"])
    )
