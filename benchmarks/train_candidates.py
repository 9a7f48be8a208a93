"""The models that ``train_cpu.py`` measures, each as a function that takes one batch and updates the weights.

All have the same size, tied embeddings, dropout 0.3 wherever the library has dropout (word embeddings,
attention weights, feed-forward, sublayers), label smoothing 0.1, fused Adam, and clip the gradient at 1.0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qknorm.config import TrainingSettings
from qknorm.data.batches import Batch
from qknorm.ids import BOS, EOS, PAD, UNK
from qknorm.model import ModelSettings, Transformer
from qknorm.training.averaging import Averaging
from qknorm.training.step import Step

DROPOUT, SMOOTHING, CLIP, RATE, LONGEST = 0.3, 0.1, 1.0, 1e-4, 1024


class Size(NamedTuple):
    """How large a model is."""

    layers: int
    width: int
    inner: int
    heads: int


SIZES = {"small": Size(3, 256, 1024, 4), "base": Size(6, 512, 2048, 8)}
Update = Callable[[Batch], float]
"""Learns from a batch and returns the loss per target subword."""


def ours(size: Size, vocabulary: int, qk_norm: Any = "l2") -> Update:
    """This package's step, with the paper's model; word dropout, which no peer has, is off."""
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
    training = TrainingSettings(clip=CLIP, label_smoothing=SMOOTHING, precision="float32")
    model = Transformer(vocabulary, settings)
    step = Step(model, training, torch.device("cpu"), Averaging(training, model))

    def update(batch: Batch) -> float:
        step.update([batch], RATE, 1)
        return step.outcomes()[0].loss / batch.target_tokens

    return update


def ours_plain(size: Size, vocabulary: int) -> Update:
    return ours(size, vocabulary, qk_norm=None)


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
        causal = torch.ones(target.size(1), target.size(1), dtype=torch.bool).triu(1)
        h = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return F.linear(h, self.embedding.weight, self.bias)


def torch_transformer(size: Size, vocabulary: int) -> Update:
    return update_of(TorchTransformer(size, vocabulary), cross_entropy)


def marian(size: Size, vocabulary: int) -> Update:
    """Hugging Face's MarianMT, PostNorm as Marian is."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=vocabulary,
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

    return update_of(MarianMTModel(config), loss)


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


def x_transformers(size: Size, vocabulary: int) -> Update:
    return update_of(XTransformers(size, vocabulary), cross_entropy)


def joeynmt(size: Size, vocabulary: int) -> Update:
    """JoeyNMT's Transformer and its own loss, which also counts right predictions."""
    from joeynmt.model import build_model
    from joeynmt.vocabulary import Vocabulary

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

    return update_of(model, loss)


Loss = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]


def smoothed(logits: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy(
        logits.flatten(0, 1), wanted.flatten(), ignore_index=PAD, label_smoothing=SMOOTHING
    )


def cross_entropy(model: nn.Module, source: Tensor, given: Tensor, wanted: Tensor) -> Tensor:
    return smoothed(model(source, given), wanted)


def update_of(model: nn.Module, loss_of: Loss) -> Update:
    """The plain training step around a peer's model."""
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)

    def update(batch: Batch) -> float:
        source, given, wanted = map(torch.from_numpy, (batch.source, batch.target_in, batch.target_out))
        loss = loss_of(model, source, given, wanted)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return update


class Candidate(NamedTuple):
    """What is measured, and the distribution it needs beside this package."""

    prepare: Callable[[Size, int], Update]
    needs: str | None


CANDIDATES = {
    "qknorm": Candidate(ours, None),
    "qknorm, qk_norm=None": Candidate(ours_plain, None),
    "torch.nn.Transformer": Candidate(torch_transformer, None),
    "HF MarianMT": Candidate(marian, "transformers"),
    "x-transformers": Candidate(x_transformers, "x-transformers"),
    "JoeyNMT": Candidate(joeynmt, "joeynmt"),
}
