"""Every setting of a run: typed, documented where it is declared, validated."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from qknorm.config.files import AbsolutePath, Files, SplitPaths, find_splits
from qknorm.model.settings import ModelSettings

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Chance = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]


class Settings(BaseModel):
    """What every section has in common: no unknown keys, no changes after it is made, finite numbers."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        revalidate_instances="always",
        use_attribute_docstrings=True,
    )


class DataSettings(Settings):
    """Which text to learn from: a folder, or files named one by one."""

    source: str | None = None
    """Code of the language to translate from, such as gl."""
    target: str | None = None
    """Code of the language to translate into, such as en."""
    corpus: str | None = None
    """Name of the corpus in the folder: one of `qknorm data list`, or phrasebook:en-gl, the built-in one."""
    folder: AbsolutePath | None = None
    """Folder with train.gl, train.en, dev.gl and so on, plain or .gz. A path is relative to the recipe."""
    train_source: AbsolutePath | None = None
    """Source side of the training text, one sentence a line, plain or gzip'd; instead of a folder."""
    train_target: AbsolutePath | None = None
    """Target side of the training text: line n translates line n of the source side."""
    dev_source: AbsolutePath | None = None
    """Source side of the text that decides when to stop and which weights are best."""
    dev_target: AbsolutePath | None = None
    """Target side of the dev text."""
    test_source: AbsolutePath | None = None
    """Source side of the text that is translated and scored at the end."""
    test_target: AbsolutePath | None = None
    """Target side of the test text."""
    dev_size: Count | None = None
    """Pairs split off the training text where there is no dev text; not set: by the size of the corpus."""

    @model_validator(mode="after")
    def _check(self) -> DataSettings:
        for split in ("train", "dev", "test"):
            source, target = getattr(self, f"{split}_source"), getattr(self, f"{split}_target")
            if (source is None) != (target is None):
                given, other = ("source", "target") if target is None else ("target", "source")
                raise ValueError(f"{split}_{given} needs {split}_{other}: name both sides or neither")
            if source is not None and self.folder is not None:
                raise ValueError(f"{split}_source and folder exclude each other: name files or a folder")
        if self.folder is not None:
            for side in ("source", "target"):
                if getattr(self, side) is None:
                    raise ValueError(f"folder needs {side}, the language code in the names of its files")
            if self.source == self.target:
                raise ValueError(f"target must not be the source language, {self.source!r}, again")
        return self

    def paths(self) -> SplitPaths:
        """The files of each split, all of them there; a UserError says what is missing and how to get it."""
        named: dict[str, Files | None] = {}
        for split in ("train", "dev", "test"):
            source, target = getattr(self, f"{split}_source"), getattr(self, f"{split}_target")
            named[split] = None if source is None else (source, target)
        return find_splits(named, self.folder, self.source, self.target, self.corpus)


class SubwordSettings(Settings):
    """How text is cut into subwords."""

    kind: Literal["words", "raw"] = "raw"
    """State of the text: words if it is tokenised already, raw if it is as people write it."""
    operations: Natural = 8000
    """BPE merge operations, learned jointly on both languages; fewer for less data."""
    sample_power: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Both languages are weighted by their number of sentences to this power while BPE is learned."""
    dropout: Chance = 0.0
    """BPE-dropout: the chance that a merge is left out, drawn afresh in every pass over the training text."""
    dropout_on: Literal["both", "source", "target"] = "both"
    """Where merges are left out; on the source side alone the model has one way to write each translation."""
    dropout_from: Natural = 0
    """Words that stand on their side of the training text fewer times than this keep all merges."""
    dropout_passes: Count | None = None
    """Passes over the training text with BPE-dropout, the first of all; not set: all of them."""

    @property
    def dropped_sides(self) -> tuple[Literal["source", "target"], ...]:
        """Sides with BPE-dropout."""
        if self.dropout == 0:
            return ()
        return ("source", "target") if self.dropout_on == "both" else (self.dropout_on,)


class TrainingSettings(Settings):
    """How the model learns, and when it stops."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Decides the initial weights, the order of batches and every dropout."""
    members: Count = 1
    """Models that are trained one after another, from seeds seed, seed + 1 and so on, and translate together:
    the mean of their probabilities. Each takes as long as the first, in training and in translating."""
    batch_tokens: Count = 4096
    """Size of a batch: sentences × its longest side, in subwords."""
    batching: Literal["by_length", "mixed"] = "by_length"
    """Sentences of a batch. by_length is the paper's: of like length, the same ones together in every pass.
    mixed: drawn at random anew each pass, for GPUs, where sentences are not padded; batch_tokens then bounds
    the subwords of each side."""
    concatenate: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the training sentences that stand two by two behind each other as one, drawn anew in every
    pass: an augmentation for little text (Nguyen, Murray & Chiang 2021)."""
    concatenate_passes: Count | None = None
    """Passes over the training text with such couples, the first of all; not set: all of them."""
    backward: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the training sentences, drawn anew in every pass, that are learned the other way round, target
    to source: the model then begins with both directions (Ding, Wu & Tao 2021). Without BPE-dropout; needs
    model.languages, which tell the directions apart."""
    backward_passes: Count | None = None
    """Passes over the training text with such sentences, the first of all; not set: all of them."""
    accumulate: Count = 1
    """Batches whose gradients are added up before each update."""
    epoch_batches: Count | None = None
    """Batches between two validations; not set: one pass over the training text."""
    max_epochs: Count = 200
    """The run ends after this many epochs."""
    max_steps: Count | None = None
    """The run ends after this many updates; not set: no limit."""

    optimizer: Literal["adam", "adamw", "muon", "ademamix"] = "adam"
    """Adam; AdamW with its decoupled weight decay; Muon (Jordan et al. 2024), orthogonal steps for the
    matrices of attention and feed-forward, of the size of Adam's, and AdamW for the rest; or AdEMAMix
    (Pagliardini et al. 2024), AdamW that also follows a slow mean of the gradients and needs max_steps."""
    momentum: Chance = 0.95
    """Muon's decay of the mean gradient."""
    slow_weight: NonNegative = 5.0
    """AdEMAMix's weight of the slow mean; it rises from 0 to this over max_steps."""
    slow_beta: Annotated[float, Field(gt=0, lt=1)] = 0.9999
    """AdEMAMix's decay of the slow mean; its half-life rises from beta1's to this one's over max_steps."""
    beta1: Chance = 0.9
    """Adam's decay of the mean gradient."""
    beta2: Chance = 0.999
    """Adam's decay of the mean squared gradient."""
    epsilon: Positive = 1e-8
    """Added to Adam's divisor."""
    weight_decay: NonNegative = 0.0
    """Weight decay; 0 for none."""
    learning_rate: Positive | None = None
    """The highest rate; not set: d_model^-½ · warmup_steps^-½."""
    schedule: Literal["plateau", "inverse_sqrt", "cosine", "linear"] = "plateau"
    """The rate after the warm-up. plateau is the paper's: flat, times `decay` after an epoch whose dev BLEU
    is below the lowest of the `patience` epochs before it, until it is under min_learning_rate. inverse_sqrt
    falls with the root of the step, cosine and linear fall to `final_rate` at the end of the run."""
    warmup_steps: Natural = 8000
    """Updates in which the rate rises from 0 to its highest; 0 for none."""
    hold_steps: Natural = 0
    """Updates after the warm-up at the highest rate, before cosine or linear lets it fall."""
    final_rate: Chance = 0.0
    """What cosine and linear end at, as a share of the highest rate; more than 0 is for an `average`."""
    decay: Annotated[float, Field(gt=0, lt=1)] = 0.8
    """What plateau multiplies the rate by."""
    patience: Count = 3
    """Epochs that plateau looks back on."""
    min_learning_rate: NonNegative = 1e-5
    """plateau ends the run once the rate is below this."""
    clip: NonNegative = 1.0
    """Longest gradient, as the norm over all weights; longer ones are shortened to it. 0 for no limit."""
    label_smoothing: Chance = 0.1
    """Probability spread over all subwords of the target side."""
    r_drop: NonNegative = 0.0
    """α of R-Drop (Wu et al. 2021): each batch goes through the model twice, with different dropout, and the
    two predictions are drawn to each other. Takes twice the time; 0 for one pass; the authors' is 5."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Numbers to compute with; auto is bfloat16 on GPUs that have it, else float32."""

    average: Literal["none", "ema", "last"] = "none"
    """Weights to validate and keep: the latest, their running mean, or the mean of the last few epochs'."""
    ema_decay: Chance = 0.999
    """Share of the old mean that the running mean keeps at each update."""
    average_last: Count = 5
    """Epochs whose weights `last` averages."""
    stop_after: Count | None = None
    """The run ends after this many epochs without a better dev BLEU; not set: it does not."""
    validate_bleu: bool = True
    """Translate the dev text and score it every epoch; false: dev perplexity alone is measured."""
    max_bad_steps: Count = 10
    """Updates in a row skipped for a loss that is not finite before the run stops with a diagnosis."""

    @property
    def passes(self) -> int:
        """How often a batch goes through the model for one update."""
        return 2 if self.r_drop > 0 else 1

    @model_validator(mode="after")
    def _check(self) -> TrainingSettings:
        if self.optimizer == "ademamix" and self.max_steps is None:
            raise ValueError("max_steps must be given where optimizer is ademamix")
        if self.learning_rate is None:
            if self.warmup_steps == 0:
                raise ValueError("learning_rate must be given where warmup_steps is 0")
        elif self.schedule == "plateau" and self.min_learning_rate > self.learning_rate:
            raise ValueError(
                f"min_learning_rate must be at most learning_rate, {self.learning_rate}, "
                f"not {self.min_learning_rate}"
            )
        return self


class DecodingSettings(Settings):
    """How translations are searched for, in validation and in `qknorm translate`."""

    beam: Count = 4
    """Hypotheses of a sentence kept at every step; 1 is greedy search."""
    length_penalty: NonNegative = 0.6
    """α: a hypothesis of n subwords, its EOS counted, scores log p / ((5 + n) / 6)^α."""
    length_penalty_from_dev: bool = False
    """Once training is over, try other length penalties from this one on, and keep the one with the best dev
    BLEU: models of little text tend to say too little."""
    max_extra: Natural = 50
    """A translation has at most this many subwords more than its source, its EOS counted."""
    batch_tokens: Count = 16384
    """Bound on memory: sentences × beam × longest (source + target) of a batch; on a GPU 8 times as much."""


class Recipe(Settings):
    """One experiment, whole; each section says at its class what it is about."""

    name: Annotated[str, Field(pattern=r"^[^/\\\x00]+$")] = "run"
    """What the run is called."""
    data: DataSettings = DataSettings()
    subwords: SubwordSettings = SubwordSettings()
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()
    decoding: DecodingSettings = DecodingSettings()

    @model_validator(mode="after")
    def _check(self) -> Recipe:
        if self.training.backward > 0 and self.model.languages < 2:
            raise ValueError("model.languages must be at least 2 where training.backward is above 0")
        return self
