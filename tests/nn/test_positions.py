"""Sinusoids and rotations by position: their formulas, how they grow, and attention that turns its heads."""

import copy
import functools
import math
import pickle

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch._subclasses.fake_tensor import FakeTensorMode

from qknorm.nn import (
    CrossCache,
    MultiheadAttention,
    Packing,
    RotaryPositions,
    SelfCache,
    SinusoidalPositions,
    convert,
    find_spans,
)
from qknorm.nn.positions import turn
from qknorm.nn.spans import places
from support.compare import error
from support.numpy_attention import angles
from support.numpy_attention import turn as numpy_turn

E, H, B, T, S = 16, 4, 3, 9, 6
D = E // H
NORMS = [None, "l2", "rms_across_heads"]


def made(norm="l2", **options):
    torch.manual_seed(0)
    return MultiheadAttention(E, H, batch_first=True, qk_norm=norm, rotary=RotaryPositions(D), **options)


@pytest.mark.parametrize("odd", ["cosine", "sine"])
def test_positions_are_the_formula(odd):
    table = SinusoidalPositions(8, odd=odd)(50)
    for p in (0, 1, 17, 49):
        for i in range(0, 8, 2):
            angle = p / 10000 ** (i / 8)
            other = math.cos(angle) if odd == "cosine" else math.sin(angle)
            assert table[p, i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[p, i + 1].item() == pytest.approx(other, abs=1e-6)


@pytest.mark.parametrize("base", [10000.0, 500.0])
def test_turning_is_the_formula(base):
    x = torch.randn(2, 700, H, 8)
    turned = turn(x, RotaryPositions(8, base)(700).unsqueeze(-2))
    expected = numpy_turn(x.double().numpy(), angles(700, 8, base)[:, None])
    assert error(turned, expected) < 1e-6
    assert error(turned.norm(dim=-1), x.norm(dim=-1)) < 1e-6


def test_logits_know_how_far_apart_but_not_where():
    rotary, (q, k) = RotaryPositions(8), torch.randn(2, 8, dtype=torch.float64)
    logits = turn(q, rotary(40)) @ turn(k, rotary(40)).T  # (query's position, key's position)
    for distance in (-7, 0, 1, 20):
        along = logits.diagonal(distance)
        assert error(along, along[:1].expand_as(along)) < 1e-6
    assert logits[0].std() > 0.01


@pytest.mark.parametrize("cls", [SinusoidalPositions, RotaryPositions])
def test_positions_grow_on_demand_and_stay_out_of_the_state_dict(cls):
    positions = cls(8, room=4)
    assert positions.state_dict() == {}
    longer = positions(1000)
    assert longer.shape == (1000, 8)
    assert torch.equal(longer, cls(8, room=1000)(1000))
    assert torch.equal(positions(3, offset=600), longer[600:603])
    assert torch.equal(positions.at(torch.tensor([2, 1500]), 1501)[0], longer[2])
    assert positions.table.size(0) >= 1501


def test_sinusoids_take_the_models_dtype_and_angles_do_not():
    """At bfloat16's precision, position 300 could not be told from 301."""
    sinusoids = SinusoidalPositions(8, room=4).to(torch.bfloat16)
    assert sinusoids(100).dtype == torch.bfloat16
    attention = made().to(torch.bfloat16)
    assert attention.rotary(5).dtype == attention.rotary(900).dtype == torch.float32
    assert torch.equal(attention.rotary(900), RotaryPositions(D)(900))
    assert attention.double().rotary(900).dtype == torch.float32


def test_places_of_packed_rows():
    packing = Packing.of([3, 0, 1, 4])
    for causal in (False, True):
        assert places(find_spans(packing, 10, is_causal=causal)).tolist() == [0, 1, 2, 0, 0, 1, 2, 3, 0, 0]


@pytest.mark.parametrize("need_weights", [True, False])
def test_what_is_further_along_is_attended_to_alike(need_weights):
    """The same words a thousand positions later: the same output, up to float32's angles."""
    attention, x = made().eval(), torch.randn(B, T, E)
    here = attention(x, x, x, need_weights=need_weights)[0]
    there = attention(x, x, x, need_weights=need_weights, turns=attention.rotary(T, 1000))[0]
    shuffled = attention(x, x, x, need_weights=need_weights, turns=attention.rotary(T)[torch.randperm(T)])[0]
    assert error(there, here) < 1e-5 and error(shuffled, here) > 1e-3
    rows = attention.rotary(T).expand(B, T, D).clone()
    rows[1] = attention.rotary(T, 50)  # each sentence's own
    assert error(attention(x, x, x, need_weights=need_weights, turns=rows)[0], here) < 1e-5


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("chunks", [(1,) * T, (4, 5), (T,)])
def test_step_by_step_is_all_at_once(norm, chunks):
    attention, x = made(norm).eval(), torch.randn(B, T, E)
    whole = attention(x, x, x, is_causal=True)[0]
    for given in (False, True):
        cache, parts = SelfCache(room=2), []
        for c in x.split(chunks, 1):
            turns = attention.rotary(c.size(1), cache.length) if given else None
            parts.append(attention(c, c, c, is_causal=True, cache=cache, turns=turns)[0])
        assert error(torch.cat(parts, 1), whole) < 2e-6


def test_more_new_keys_than_queries():
    attention, x = made().eval(), torch.randn(B, T, E)
    whole = attention(x, x, x)[0]
    cache = SelfCache()
    attention(x[:, :2], x[:, :4], cache=cache)
    last = attention(x[:, -1:], x[:, 4:], cache=cache, turns=attention.rotary(1, T - 1))[0]
    assert error(last, whole[:, -1:]) < 2e-6


@pytest.mark.parametrize("norm", NORMS)
def test_a_filled_cross_cache_is_told_where_its_queries_stand(norm):
    attention, x, memory = made(norm).eval(), torch.randn(B, T, E), torch.randn(B, S, E)
    whole = attention(x, memory, memory)[0]
    cache = CrossCache()
    for t in range(T):
        now, turns = x[:, t : t + 1], attention.rotary(1, t)
        out = attention(now, None if cache.filled else memory, cache=cache, turns=turns)[0]
        assert error(out, whole[:, t : t + 1]) < 2e-6
    with pytest.raises(ValueError, match="this needs turns"):
        attention(x[:, :1], cache=cache)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
@pytest.mark.parametrize("given", [False, True])
def test_packed_is_padded(norm, kind, given):
    attention, lengths, memory_lengths = made(norm), [3, 1, 5], [2, 6, 1]
    x, memory = torch.randn(11, E, requires_grad=True), torch.randn(10, E, requires_grad=True)
    packing, key_packing = Packing.of(lengths), Packing.of(memory_lengths)
    turns = attention.rotary.at(packing.place(11)[1], 5) if given else None
    if kind == "cross":
        arguments = dict(query=x, key=memory, packing=packing, key_packing=key_packing)
    else:
        arguments = dict(query=x, packing=packing, is_causal=kind == "causal")
    out = attention(**arguments, need_weights=False, turns=turns)[0][:9]
    parts = []
    for sentence, source in zip(x[:9].split(lengths), memory[:9].split(memory_lengths), strict=True):
        key = source if kind == "cross" else sentence
        parts.append(attention(sentence, key, need_weights=False, is_causal=kind == "causal")[0])
    twin = torch.cat(parts)
    assert error(out, twin) < 2e-6
    inputs = [x, *attention.parameters()]
    grads, expected = (torch.autograd.grad(y.square().sum(), inputs) for y in (out, twin))
    for a, b in zip(grads, expected, strict=True):
        assert error(a, b) < 1e-5


def test_whose_positions_other_keys_have_must_be_said():
    """What checkpointing and ``vmap`` hand over is equal to the query, and another tensor."""
    attention, x = made().eval(), torch.randn(B, T, E)
    turns = attention.rotary(T)[torch.randperm(T)]
    whole = attention(x, x, x, turns=turns)[0]
    with pytest.raises(ValueError, match="say with key_turns where its positions are"):
        attention(x, x.clone(), turns=turns)
    for other in (x, x.clone()):
        assert torch.equal(attention(x, other, turns=turns, key_turns=turns)[0], whole)
        cached = attention(x, other, turns=turns, cache=SelfCache())[0]
        assert error(cached, whole) < 1e-6, "a SelfCache says that they are the queries' own"
    key_turns = attention.rotary(T, 3)
    assert error(attention(x, x, turns=turns, key_turns=key_turns)[0], whole) > 1e-3
    memory = torch.randn(B, S, E)
    shifted = attention(x, memory, turns=attention.rotary(T, 50), key_turns=attention.rotary(S, 50))[0]
    assert error(shifted, attention(x, memory)[0]) < 1e-5
    rows = attention.rotary(1, 7).expand(B, 1, D)  # one position for all queries of a sentence
    assert error(attention(x, turns=rows)[0], attention(x, turns=attention.rotary(1, 9))[0]) < 1e-5


def test_whose_positions_other_packed_keys_have():
    attention, x = made(), torch.randn(T, E)
    packing = Packing.of([4, 5])
    turns = attention.rotary(T)[torch.randperm(T)]
    packed = dict(packing=packing, need_weights=False, turns=turns)
    whole = attention(x, **packed)[0]
    for other in (x, x.clone()):
        assert error(attention(x, other, **packed)[0], whole) < 1e-6
        assert error(attention(x, other, key_turns=turns, **packed)[0], whole) < 1e-6
        assert error(attention(x, other, key_turns=attention.rotary(T, 3), **packed)[0], whole) > 1e-3


def test_observers_see_what_is_attended_with():
    attention, x, packing = made().eval(), torch.randn(B, T, E), Packing.of([T] * B)
    weights = attention(x, average_attn_weights=False)[1]
    shown = []
    attention._observer = shown.append
    attention(x)
    attention(x.flatten(0, 1), packing=packing, need_weights=False)
    packed_q, packed_k = (each.view(B, T, H, D).transpose(1, 2) for each in shown[1][:2])
    for q, k in (shown[0][:2], (packed_q, packed_k)):
        assert error((q @ k.mT).softmax(-1), weights) < 1e-6


def test_computed_twice_gradients_are_the_same():
    attention, gradients = made(), []
    x, turns = torch.randn(B, T, E, requires_grad=True), attention.rotary(T)[torch.randperm(T)]
    call = functools.partial(attention, need_weights=False, turns=turns, key_turns=turns)
    again = functools.partial(torch.utils.checkpoint.checkpoint, call, use_reentrant=True)
    for way in (call, again):
        way(x, x, x)[0].square().sum().backward()
        gradients.append(x.grad)
        x.grad = None
    assert error(*gradients) < 1e-5


@pytest.mark.parametrize("cls", [SinusoidalPositions, RotaryPositions])
class TestTheTable:
    def test_is_no_buffer(self, cls):
        """DistributedDataParallel sends buffers around, and one that has grown fits no other."""
        assert not list(cls(8).buffers())

    def test_grown_in_inference_it_serves_training(self, cls):
        positions, x = cls(8, room=4), torch.randn(9, 8, requires_grad=True)
        with torch.inference_mode():
            positions(9)
        (positions(9) * x).sum().backward()
        assert torch.equal(x.grad, cls(8)(9))

    def test_is_there_after_a_start_without_values(self, cls):
        positions = cls(8, device="meta")
        assert torch.equal(positions.to_empty(device="cpu")(20), cls(8)(20))

    def test_begins_on_the_default_device(self, cls):
        with torch.device("meta"):
            assert cls(8).table.is_meta

    def test_goes_where_it_is_asked_for(self, cls):
        positions = cls(8, device="meta")
        assert torch.equal(positions(20, 0, torch.device("cpu")), cls(8)(20))
        assert torch.equal(cls(8, device="meta").at(torch.tensor([3, 1]), 4), cls(8)(4)[[3, 1]])

    def test_grown_inside_a_transform_it_can_be_copied(self, cls):
        positions = cls(8, room=4)
        torch.func.grad(lambda x: (positions(20) * x).sum())(torch.randn(20, 8))
        assert torch.equal(copy.deepcopy(positions)(20), cls(8)(20))
        assert torch.equal(pickle.loads(pickle.dumps(positions))(20), cls(8)(20))

    def test_tensors_without_values_leave_it_alone(self, cls):
        positions = cls(8, room=4)
        table = positions.table
        with FakeTensorMode(allow_non_fake_inputs=True):
            assert positions(20).shape == (20, 8)
        assert positions.table is table and torch.equal(positions(20), cls(8)(20))

    def test_compiled_code_leaves_it_alone(self, cls):
        positions = cls(8)
        table = positions.table
        compiled = torch.compile(positions, backend="eager")
        assert torch.equal(compiled(700), cls(8)(700)) and positions.table is table


def test_modules_may_share_one():
    rotary = RotaryPositions(D)
    model = torch.nn.ModuleList(MultiheadAttention(E, H, rotary=rotary) for _ in range(2))
    assert model[0].rotary is model[1].rotary
    assert not [name for name in model.state_dict() if "rotary" in name]
    model[0].load_state_dict(MultiheadAttention(E, H).state_dict())  # weights know nothing of it


def test_converted_modules_keep_their_own_positions():
    layer = convert(torch.nn.TransformerEncoderLayer(E, H, 32, batch_first=True), log=None)
    assert layer.self_attn.rotary is None


def test_repr_says_what_turns():
    assert "(rotary): RotaryPositions(4, base=10000)" in repr(made())
    assert repr(SinusoidalPositions(8)) == "SinusoidalPositions(8, odd='cosine')"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SinusoidalPositions(7), "embedding_dim must be even, not 7"),
        (lambda: SinusoidalPositions(8, odd="tan"), "odd must be 'cosine' or 'sine', not 'tan'"),
        (lambda: RotaryPositions(7), "head_dim must be even and at least 2, not 7"),
        (lambda: RotaryPositions(8, base=1.0), "base must be a finite number above 1, not 1.0"),
        (
            lambda: MultiheadAttention(E, H, rotary=RotaryPositions(8)),
            "heads of width 8, but those here are 4",
        ),
        (lambda: MultiheadAttention(E, H, rotary=True), "rotary must be RotaryPositions or None, not True"),
        (lambda: made(add_zero_attn=True), "rotary does not go with add_bias_kv or add_zero_attn"),
        (lambda: MultiheadAttention(E, H)(np.e, turns=torch.zeros(1, D)), "rotary is None"),
        (lambda: MultiheadAttention(E, H)(np.e, key_turns=torch.zeros(1, D)), "rotary is None"),
        (lambda: MultiheadAttention(E, H).step(np.e, None, torch.zeros(1, D)), "rotary is None"),
        (
            lambda: made()(torch.zeros(T, E), packing=Packing(torch.tensor([0, T]), 2), need_weights=False),
            "packing.max_length is 2, but a sentence has 9 rows",
        ),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("shape", [(T, D + 1), (T + 1, D), (D,), (B + 1, T, D)])
def test_turns_of_a_wrong_shape_are_named(shape):
    x = torch.randn(B, T, E)
    with pytest.raises(ValueError, match=r"turns must be rows of rotary for the 9 queries, .* not \("):
        made()(x, turns=torch.ones(shape))
    with pytest.raises(ValueError, match="key_turns must be rows of rotary for the 9 keys"):
        made()(x, key_turns=torch.ones(shape))
    packed = torch.randn(T, E)
    with pytest.raises(ValueError, match="turns must be rows of rotary for the 9 queries"):
        made()(packed, packing=Packing.of([T]), need_weights=False, turns=torch.ones(shape))
