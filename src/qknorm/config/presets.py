"""Settings for a corpus of a given size, and why."""

from __future__ import annotations

from typing import Any, NamedTuple

from qknorm.errors import UserError

GALICIAN_FROM = 7_000
"""Pairs from which the paper's model for Galician, with its 10,017 pairs, is taken."""
MIDDLE_FROM = 20_000
"""Pairs from which a model between the paper's small and base ones is taken."""
BASE_FROM = 50_000
"""Pairs from which the paper's base model is taken; the least it had it learn from is 61 k."""
CHARACTERS_A_PLACE = 3.0
"""Characters of a text's longer side to each place in its batches, with 3,000 BPE operations: 2.99 in
ted-gl-en, 3.09 in the first 10,000 pairs of Multi30k's German and English."""
MOST_PASSES = 80
"""Passes over the text that a small model makes at most: of 1,000 pairs dev BLEU was best after 60."""


class Small(NamedTuple):
    """What a small model, for two cores, has for text of so many pairs and more."""

    pairs: int
    operations: int
    dropout: float
    ff_dropout: float
    common: int
    """Words that stand so often are cut anew in every pass."""


SMALL = (
    Small(MIDDLE_FROM, 4000, 0.15, 0.1, 50),
    Small(GALICIAN_FROM, 3000, 0.2, 0.1, 50),
    Small(2_000, 2000, 0.3, 0.3, 20),
    Small(0, 1000, 0.3, 0.3, 20),
)


class Preset(NamedTuple):
    """Settings by section, for `make_recipe`, and a sentence for each choice."""

    settings: dict[str, dict[str, Any]]
    reasons: list[str]


def preset(pairs: int, characters: int, gpu: bool = False) -> Preset:
    """Settings for a training text of so many sentence pairs, and characters of its longer side.

    Without a GPU little text gets a model that two cores train in about an hour.
    """
    if pairs < 1:
        raise UserError(f"There are {pairs} pairs to learn from; at least one is needed.")
    characters = max(1, characters)  # blank lines alone are refused later, with their numbers
    chosen = _by_size(pairs, characters) if gpu or pairs >= BASE_FROM else _small(pairs, characters)
    if pairs < BASE_FROM:
        chosen.settings["model"]["rotary"] = True
        chosen.reasons.append(
            "Heads of self-attention are turned by positions (rotary), beyond the paper: with 4,000, 10,017 "
            "and 29,000 pairs that was worth 2 dev BLEU and more (results/rotary.md)."
        )
    if pairs < (MIDDLE_FROM if gpu else BASE_FROM):
        chosen.settings["model"]["attention_dropout"] = 0.1
        chosen.reasons.append(
            "Of attention's weights 0.1 are dropped, not as many as of all else: on 10,017 pairs another "
            "1.2 BLEU (results/rotary.md)."
        )
    if pairs >= BASE_FROM and not gpu:
        chosen.reasons.append(
            "Without a GPU two cores learn 339 subwords a second with this model (results/cpu.md), so it "
            "takes days; a GPU takes minutes."
        )
    if gpu:
        chosen.settings["training"]["batching"] = "mixed"
        chosen.reasons.append(
            "Batches are of sentences of all lengths, drawn anew in every pass: a GPU pads nothing, and on "
            "29,000 pairs dev BLEU was ahead at every update (results/speedrun.md)."
        )
    chosen.settings["decoding"] = {"length_penalty_from_dev": True}
    chosen.reasons.append(
        "Once training is over, dev decides how much longer translations are favoured: models of little text "
        "say too little otherwise (results/length-penalty.md)."
    )
    return chosen


def dev_size(pairs: int) -> int:
    """Pairs to split off as dev text: a twentieth, at least 100 but no more than a quarter, at most 1,000."""
    if pairs < 4:
        raise UserError(f"{pairs} pairs are too few to split a dev text off; at least 4 are needed.")
    return min(1000, max(pairs // 20, min(100, pairs // 4)))


def _by_size(pairs: int, characters: int) -> Preset:
    """For a GPU, or whoever has the time."""
    if GALICIAN_FROM <= pairs < MIDDLE_FROM:
        return _galician(pairs, characters)
    make = _tiny if pairs < GALICIAN_FROM else _middle if pairs < BASE_FROM else _base
    chosen = make(pairs)
    epoch = _epoch_batches(pairs)
    chosen.settings["training"]["epoch_batches"] = epoch
    chosen.reasons.append(
        f"The model is validated every {epoch:,} batches: the paper's epochs have about one batch "
        "to 90 pairs, within 100 and 2,000."
    )
    return chosen


def _small(pairs: int, characters: int) -> Preset:
    """For two cores and about an hour."""
    size = next(size for size in SMALL if pairs >= size.pairs)
    batch = 1024
    a_pass = characters / (batch * CHARACTERS_A_PLACE)
    updates = max(500, min(8000, round(MOST_PASSES * a_pass / 100) * 100))
    passes = updates / a_pass
    noisy = max(1, round(0.8 * passes))
    epoch = round(updates / 8)
    return Preset(
        {
            "subwords": {
                "operations": size.operations,
                "dropout": 0.1,
                "dropout_on": "source",
                "dropout_from": size.common,
                "dropout_passes": noisy,
            },
            "model": {
                **_shape(layers=3, heads=4, dropout=size.dropout),
                "d_model": 256,
                "d_ff": 1024,
                "ff_dropout": size.ff_dropout,
            },
            "training": {
                "batch_tokens": batch,
                "epoch_batches": epoch,
                "max_steps": updates,
                "beta2": 0.98,
                "learning_rate": 1.5e-3,
                "schedule": "linear",
                "warmup_steps": round(updates / 10),
                "average": "ema",
                "ema_decay": round(1 - 16 / updates, 4),
            },
        },
        [
            f"Without a GPU {pairs:,} pairs are learned by a small model, which two cores train in an "
            f"hour or so at most: 3+3 layers, width 256, 4 heads, dropout {size.dropout} (results/cpu.md). "
            "On a GPU other settings are chosen.",
            f"{size.operations:,} BPE operations; subwords seen only a few times are not learnt, and fewer "
            "merges were worth several BLEU on small data (Sennrich and Zhang 2019).",
            f"{updates:,} updates of {batch:,} subwords, about {passes:,.0f} passes over the text: the rate "
            "rises to 1.5e-3 in the first tenth and falls to zero, and a running mean of weights is kept.",
            f"Common words of the source side are cut anew in every one of the first {noisy:,} passes "
            "(BPE-dropout).",
            f"The model is validated every {epoch:,} batches, eight times in all.",
        ],
    )


def _tiny(pairs: int) -> Preset:
    least = pairs < 2_000
    layers, operations, batch = (3, 1000, 1024) if least else (4, 2000, 2048)
    return Preset(
        {
            "subwords": {"operations": operations},
            "model": {
                **_shape(layers=layers, heads=4, dropout=0.4),
                "d_model": 256,
                "d_ff": 1024,
            },
            "training": {
                "batch_tokens": batch,
                "max_epochs": 1000,
                "warmup_steps": 2000,
                "learning_rate": 5e-4,
                "min_learning_rate": 5e-5,
            },
        },
        [
            f"{pairs:,} pairs are less than any corpus of the paper, so the model is smaller than its "
            f"smallest: {layers}+{layers} layers, width 256, 4 heads. Shallow, narrow Transformers do best "
            "on so little (van Biljon et al. 2020, Araabi and Monz 2020).",
            f"{operations:,} BPE operations, not 8,000: subwords seen only a few times are not learnt, and "
            "fewer merges were worth several BLEU on small data (Sennrich and Zhang 2019).",
            "Dropout 0.4, as the paper's for its smallest corpus: strong dropout helps most where data are "
            "few (Sennrich and Zhang 2019).",
            f"Batches of {batch:,} subwords: smaller ones give more updates a pass, which helped on small "
            "data (Sennrich and Zhang 2019).",
            "The rate rises over 2,000 updates, not 8,000, to 5e-4, about the paper's 4.94e-4: 8,000 would "
            "be most of so short a run.",
        ],
    )


def _galician(pairs: int, characters: int) -> Preset:
    batch = 4096
    updates = round(1.2 * pairs / 100) * 100
    passes = updates * batch * CHARACTERS_A_PLACE / characters
    noisy, both_ways = (max(1, round(share * passes)) for share in (0.8, 0.3))
    epoch = max(100, round(updates / 12 / 100) * 100)
    return Preset(
        {
            "subwords": {
                "operations": 3000,
                "dropout": 0.1,
                "dropout_on": "source",
                "dropout_from": 50,
                "dropout_passes": noisy,
            },
            "model": _shape(layers=4, heads=4, dropout=0.4),
            "training": {
                "batch_tokens": batch,
                "concatenate": 0.66,
                "concatenate_passes": noisy,
                "backward": 0.5,
                "backward_passes": both_ways,
                "epoch_batches": epoch,
                "max_steps": updates,
                "beta2": 0.98,
                "learning_rate": 1e-3,
                "schedule": "linear",
                "warmup_steps": round(updates / 6),
                "average": "ema",
            },
        },
        [
            f"{pairs:,} pairs are about as many as the paper's Galician-English corpus, so its "
            "model is taken: 4+4 layers, width 512, 4 heads, dropout 0.4, 3,000 BPE operations.",
            f"{updates:,} updates, about {passes:,.0f} passes over the text: the rate rises to 1e-3 in the "
            "first sixth and falls to zero, and a running mean of the weights is kept, as in "
            "recipes/fast/gl-en.yaml.",
            "Common words of the source side are cut anew in every pass (BPE-dropout) and two sentences in "
            f"three stand behind one another in the first {noisy:,} passes; half of the sentences are "
            f"learned the other way round in the first {both_ways:,}. On 10,017 pairs of Galician and "
            "English the three together gave 2.5 dev BLEU (results/speedrun.md).",
            f"The model is validated every {epoch:,} batches, about twelve times in all.",
        ],
    )


def _middle(pairs: int) -> Preset:
    return Preset(
        {
            "subwords": {"operations": 8000},
            "model": _shape(layers=5, heads=8, dropout=0.35),
            "training": {"max_epochs": 400, "min_learning_rate": 2e-5},
        },
        [
            f"{pairs:,} pairs lie between the paper's Galician corpus (10 k; 4+4 layers, dropout 0.4) and "
            "its Slovak one (61 k; 6+6 layers, dropout 0.3), so the settings do too: 5+5 layers, "
            "dropout 0.35, 8 heads, 8,000 BPE operations.",
            "The run ends when the learning rate falls under 2e-5 or after 400 epochs.",
        ],
    )


def _base(pairs: int) -> Preset:
    return Preset(
        {
            "subwords": {"operations": 8000},
            "model": _shape(layers=6, heads=8, dropout=0.3),
            "training": {"max_epochs": 200, "min_learning_rate": 1e-5},
        },
        [
            f"{pairs:,} pairs are enough for the paper's base model, which it trained on 61 k to 214 k: "
            "6+6 layers, width 512, 8 heads, dropout 0.3, 8,000 BPE operations.",
            "The run ends when the learning rate falls under 1e-5 or after 200 epochs, as there.",
        ],
    )


def _shape(layers: int, heads: int, dropout: float) -> dict[str, Any]:
    """The paper's width, with depth, heads and every dropout but that of words as given."""
    return {
        "d_model": 512,
        "d_ff": 2048,
        "heads": heads,
        "encoder_layers": layers,
        "decoder_layers": layers,
        "dropout": dropout,
        "attention_dropout": dropout,
        "ff_dropout": dropout,
    }


def _epoch_batches(pairs: int) -> int:
    """The paper's epochs, by rule: 100 batches for 10,017 pairs, 1,500 for 133,166, 2,000 for 214 k."""
    return min(2000, max(100, round(pairs / 90 / 100) * 100))
