"""The models that ``train_cpu.py`` and ``train_gpu.py`` measure, each as a learner that takes batches.

All have the same size, tied embeddings, dropout 0.3 wherever the library has dropout (word embeddings,
attention weights, feed-forward, sublayers), label smoothing 0.1, fused Adam, and clip the gradient at 1.0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from qknorm.config import TrainingSettings
from qknorm.data.batches import Batch, Batches, MixedBatches
from qknorm.ids import BOS, EOS, PAD, UNK
from qknorm.model import ModelSettings, Transformer
from qknorm.training.averaging import Averaging
from qknorm.training.captured import CapturedStep
from qknorm.training.inputs import Room
from qknorm.training.step import Step

DROPOUT, SMOOTHING, CLIP, RATE, LONGEST = 0.3, 0.1, 1.0, 1e-4, 1024


class Size(NamedTuple):
    """How large a model is."""

    layers: int
    width: int
    inner: int
    heads: int


SIZES = {"small": Size(3, 256, 1024, 4), "base": Size(6, 512, 2048, 8)}


class Setting(NamedTuple):
    """What a candidate is built for."""

    size: Size
    vocabulary: int
    device: torch.device = torch.device("cpu")
    bfloat16: bool = False
    """Whether products are computed in bfloat16 (autocast); weights are float32 all the same."""


class Learner(Protocol):
    """A model in training. ``update`` may return before the update is done."""

    def update(self, batch: Batch) -> None: ...

    def loss(self) -> float:
        """The loss per target subword of the last update, which it waits for."""


class Ours:
    """This package's step around its model."""

    def __init__(self, step: Step) -> None:
        self.step = step

    def update(self, batch: Batch) -> None:
        self.step.update([batch], RATE, 1)

    def loss(self) -> float:
        last = self.step.outcomes(wait=True)[-1]
        return last.loss / last.tokens


def ours(setting: Setting, qk_norm: Any = "l2") -> Learner:
    """The plain step, with the paper's model."""
    return Ours(Step(*parts_of(setting, qk_norm)))


def ours_plain(setting: Setting) -> Learner:
    return ours(setting, qk_norm=None)


def captured(setting: Setting, batches: Batches, qk_norm: Any = "l2") -> Learner:
    """The step of a GPU, ready for any of these batches; elsewhere neither compiled nor captured."""
    room = Room.of(batches.corpus, batches.budget, mixed=isinstance(batches, MixedBatches))
    step = CapturedStep(
        *parts_of(setting, qk_norm),
        workers=None,
        room=room,
        say=print,
        compiles=setting.device.type == "cuda",
    )
    step.prepare(batches.largest())
    return Ours(step)


def parts_of(setting: Setting, qk_norm: Any) -> tuple[Transformer, TrainingSettings, torch.device, Averaging]:
    """What a step of ours is made of; word dropout, which no peer has, is off."""
    size = setting.size
    settings = ModelSettings(
        d_model=size.width,
        d_ff=size.inner,
        heads=size.heads,
        encoder_layers=size.layers,
        decoder_layers=size.layers,
        qk_norm=qk_norm,
        length=72 if qk_norm else None,
        word_dropout=0.0,
    )
    training = TrainingSettings(
        clip=CLIP, label_smoothing=SMOOTHING, precision="bfloat16" if setting.bfloat16 else "float32"
    )
    model = Transformer(setting.vocabulary, settings).to(setting.device)
    return model, training, setting.device, Averaging(training, model)


class TorchTransformer(nn.Module):
    """``torch.nn.Transformer`` (PreNorm) with sinusoid positions and one table for input and output."""

    positions: Tensor

    def __init__(self, size: Size, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, size.width)
        nn.init.normal_(self.embedding.weight, std=size.width**-0.5)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.scale = math.sqrt(size.width)
        self.dropout = nn.Dropout(DROPOUT)
        angle = torch.arange(LONGEST)[:, None] / 10000 ** (torch.arange(0, size.width, 2) / size.width)
        self.register_buffer("positions", torch.stack([angle.sin(), angle.cos()], -1).flatten(1))
        self.transformer = nn.Transformer(
            size.width,
            size.heads,
            size.layers,
            size.layers,
            size.inner,
            DROPOUT,
            batch_first=True,
            norm_first=True,
        )

    def embed(self, ids: Tensor) -> Tensor:
        x: Tensor = self.dropout(self.embedding(ids) * self.scale + self.positions[: ids.size(1)])
        return x

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        padding = source == PAD
        T = target.size(1)
        causal = torch.ones(T, T, dtype=torch.bool, device=target.device).triu(1)
        h = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return F.linear(h, self.embedding.weight, self.bias)


def torch_transformer(setting: Setting) -> Learner:
    return Peer(TorchTransformer(setting.size, setting.vocabulary), cross_entropy, setting)


def marian(setting: Setting) -> Learner:
    """Hugging Face's MarianMT, PostNorm as Marian is."""
    from transformers import MarianConfig, MarianMTModel

    size = setting.size
    config = MarianConfig(
        vocab_size=setting.vocabulary,
        max_position_embeddings=LONGEST,
        d_model=size.width,
        encoder_layers=size.layers,
        decoder_layers=size.layers,
        encoder_attention_heads=size.heads,
        decoder_attention_heads=size.heads,
        encoder_ffn_dim=size.inner,
        decoder_ffn_dim=size.inner,
        dropout=DROPOUT,
        attention_dropout=DROPOUT,
        activation_dropout=DROPOUT,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
    )

    def loss(model: nn.Module, source: Tensor, given: Tensor, wanted: Tensor) -> Tensor:
        out = model(input_ids=source, attention_mask=source != PAD, decoder_input_ids=given, use_cache=False)
        return smoothed(out.logits, wanted)

    return Peer(MarianMTModel(config), loss, setting)


class XTransformers(nn.Module):
    """x-transformers' encoder and decoder with its l2 query-key norm (fixed scale 10)."""

    def __init__(self, size: Size, vocabulary: int) -> None:
        from x_transformers import Decoder, Encoder, TransformerWrapper

        super().__init__()
        layers = {
            "dim": size.width,
            "depth": size.layers,
            "heads": size.heads,
            "attn_dim_head": size.width // size.heads,
            "attn_qk_norm": True,
            "attn_dropout": DROPOUT,
            "attn_sublayer_dropout": DROPOUT,
            "ff_mult": size.inner / size.width,
            "ff_dropout": DROPOUT,
            "ff_sublayer_dropout": DROPOUT,
            "ff_custom_activation": nn.ReLU(),
        }
        outside = {
            "num_tokens": vocabulary,
            "max_seq_len": LONGEST,
            "emb_dropout": DROPOUT,
            "use_abs_pos_emb": False,
            "scaled_sinu_pos_emb": True,
        }
        self.encoder = TransformerWrapper(**outside, return_only_embed=True, attn_layers=Encoder(**layers))
        self.decoder = TransformerWrapper(
            **outside, tie_embedding=True, attn_layers=Decoder(cross_attend=True, **layers)
        )
        self.decoder.token_emb = self.encoder.token_emb

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        real = source != PAD
        memory = self.encoder(source, mask=real, return_embeddings=True)
        logits: Tensor = self.decoder(target, context=memory, context_mask=real)
        return logits


def x_transformers(setting: Setting) -> Learner:
    return Peer(XTransformers(setting.size, setting.vocabulary), cross_entropy, setting)


def joeynmt(setting: Setting) -> Learner:
    """JoeyNMT's Transformer and its own loss, which also counts right predictions."""
    from joeynmt.model import build_model
    from joeynmt.vocabulary import Vocabulary

    size, vocabulary = setting.size, setting.vocabulary
    marks = SimpleNamespace(
        pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>", sep_token=None, lang_tags=[]
    )
    marks.unk_id, marks.pad_id, marks.bos_id, marks.eos_id = range(4)  # its order: unk before pad
    words = Vocabulary([f"w{i}" for i in range(4, vocabulary)], marks)
    stack = {
        "type": "transformer",
        "num_layers": size.layers,
        "num_heads": size.heads,
        "hidden_size": size.width,
        "ff_size": size.inner,
        "dropout": DROPOUT,
        "layer_norm": "pre",
        "embeddings": {"embedding_dim": size.width, "scale": True, "dropout": DROPOUT},
    }
    config = {"encoder": stack, "decoder": stack, "tied_embeddings": True, "tied_softmax": True}
    model = build_model(config, words, words)
    model.loss_function = ("crossentropy", SMOOTHING)
    swapped = torch.arange(vocabulary)
    swapped[PAD], swapped[UNK] = marks.pad_id, marks.unk_id
    swapped = swapped.to(setting.device)

    def loss(model: nn.Module, source: Tensor, given: Tensor, wanted: Tensor) -> Tensor:
        source, given, wanted = swapped[source], swapped[given], swapped[wanted]
        mask = (source != marks.pad_id).unsqueeze(1)
        total: Tensor = model(
            return_type="loss",
            src=source,
            src_mask=mask,
            src_length=mask.sum(-1).squeeze(1),
            trg_input=given,
            trg=wanted,
            trg_mask=(wanted != marks.pad_id).unsqueeze(1),
        )[0]
        return total.div((wanted != marks.pad_id).sum())

    return Peer(model, loss, setting)


Loss = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]


def smoothed(logits: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy(
        logits.flatten(0, 1), wanted.flatten(), ignore_index=PAD, label_smoothing=SMOOTHING
    )


def cross_entropy(model: nn.Module, source: Tensor, given: Tensor, wanted: Tensor) -> Tensor:
    return smoothed(model(source, given), wanted)


class Peer:
    """The plain training step around another's model; on a GPU nothing in it waits for the device."""

    def __init__(self, model: nn.Module, loss_of: Loss, setting: Setting) -> None:
        self.model = model.to(setting.device).train()
        self.loss_of = loss_of
        self.device = setting.device
        self.bfloat16 = setting.bfloat16
        self.optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)
        self._loss = torch.zeros(())

    def update(self, batch: Batch) -> None:
        source, given, wanted = map(self.sent, (batch.source, batch.target_in, batch.target_out))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
            loss = self.loss_of(self.model, source, given, wanted)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._loss = loss.detach()

    def loss(self) -> float:
        return self._loss.item()

    def sent(self, ids: NDArray[np.int64]) -> Tensor:
        here = torch.from_numpy(ids)
        return here.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else here


class Candidate(NamedTuple):
    """What is measured, and the distribution it needs beside this package."""

    prepare: Callable[[Setting], Learner]
    needs: str | None


CANDIDATES = {
    "qknorm": Candidate(ours, None),
    "qknorm, qk_norm=None": Candidate(ours_plain, None),
    "torch.nn.Transformer": Candidate(torch_transformer, None),
    "HF MarianMT": Candidate(marian, "transformers"),
    "x-transformers": Candidate(x_transformers, "x-transformers"),
    "JoeyNMT": Candidate(joeynmt, "joeynmt"),
}


def installed(names: Iterable[str]) -> list[str]:
    """Those of these candidates that can run here; the others are named."""
    found = []
    for name in names:
        needs = CANDIDATES[name].needs if name in CANDIDATES else None
        try:
            if needs is not None:
                print(f"{needs} {version(needs)}", end="; ")
            found.append(name)
        except PackageNotFoundError:
            print(f"\n{name}: left out, {needs} is not installed (benchmarks/requirements.txt)")
    return found
