"""The data part of training: check the files, split off a dev set, learn subwords, encode everything."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from qknorm.config import Recipe, dev_size
from qknorm.data import CorpusReport, EncodedCorpus, Subwords, check_corpus, lines, pairs
from qknorm.data.corpus import write_lines
from qknorm.data.text import sha256_file
from qknorm.errors import UserError
from qknorm.nn import initial_scale
from qknorm.progress import Progress


class Pair(NamedTuple):
    source: Path
    target: Path


@dataclass(frozen=True)
class Prepared:
    """Everything training needs of the data."""

    recipe: Recipe
    """The recipe with what the data decided filled in (``model.length``)."""
    report: CorpusReport
    subwords: Subwords
    files: dict[str, Pair]
    encoded: dict[str, EncodedCorpus]

    def facts(self) -> dict[str, object]:
        """What the paper's Table 1 says of a corpus, and a little more."""
        train = self.encoded["train"].facts
        subwords = train.source_subwords + train.target_subwords
        length = self.recipe.model.length
        return {
            "examples": train.examples,
            "tokens": train.source_words + train.target_words,
            "subword_tokens": subwords,
            "vocabulary": self.subwords.size,
            "source_subwords": int(self.subwords.source_mask.sum()),
            "target_subwords": int(self.subwords.target_mask.sum()),
            "L": length,
            "g0": None if length is None else initial_scale(length),
            "unk_rate": (train.source_unknown + train.target_unknown) / max(subwords, 1),
            **{
                f"{name}_pairs": self.encoded[name].facts.examples
                for name in ("dev", "test")
                if name in self.encoded
            },
        }

    def hashes(self) -> dict[str, str]:
        """The sha256 of every file, by split and side."""
        found = {}
        for name, corpus in self.encoded.items():
            found[f"{name}.source"] = corpus.facts.source_sha256
            found[f"{name}.target"] = corpus.facts.target_sha256
        return found


def cache_folder() -> Path:
    """Where encoded corpora are kept between runs: ``QKNORM_CACHE``, or qknorm in the user's cache."""
    if named := os.environ.get("QKNORM_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qknorm"


def prepare(
    recipe: Recipe,
    split_folder: Path,
    progress: Progress,
    subwords: Subwords | None = None,
    cache: Path | None = None,
    split: bool = True,
) -> Prepared:
    """Check, split, learn and encode; ``subwords`` of an existing run are used as they are.

    Args:
        split_folder: where train and dev are written when dev is split off train.
        cache: where encoded corpora and learned subwords are kept; ``cache_folder()`` by default.
        split: whether to split dev off; False takes what another process has split off as it lies.
    """
    cache = cache_folder() if cache is None else cache
    given = recipe.data.paths()
    files = {"train": Pair(*given.train)}
    for name, found in (("dev", given.dev), ("test", given.test)):
        if found is not None:
            files[name] = Pair(*found)
    progress.note("Reading and checking the files")
    report = check_corpus(files["train"], files.get("dev"), files.get("test"))
    report.raise_if_broken()
    for warning in report.warnings:
        progress.warn(warning)
    if "dev" not in files:
        count = recipe.data.dev_size or dev_size(report.counts["train"].usable)
        if split:
            _split_off_dev(files["train"], split_folder, count, recipe.training.seed, progress)
        files |= _split_files(split_folder)
    if subwords is None:
        subwords = _subwords(recipe, files["train"], cache, progress)
    encoded = {}
    for name, (source, target) in files.items():
        progress.note(f"Encoding {name}")
        encoded[name] = EncodedCorpus.open(
            source, target, subwords, cache / "encoded", keep_blank=name != "train"
        )
    return Prepared(_with_length(recipe, encoded["train"]), report, subwords, files, encoded)


def references(prepared: Prepared, split: str) -> list[str]:
    """The target lines of dev or test."""
    return list(lines(prepared.files[split].target))


def _with_length(recipe: Recipe, train: EncodedCorpus) -> Recipe:
    """L from the training sentences, where the recipe leaves it to them."""
    model = recipe.model
    if model.length is not None or model.qk_norm is None or model.qk_scale_init is not None:
        return recipe
    length = max(2.0, train.length_percentile(model.length_percentile))
    return recipe.model_copy(update={"model": replace(model, length=length)})


def _split_files(folder: Path) -> dict[str, Pair]:
    return {name: Pair(folder / f"{name}.source", folder / f"{name}.target") for name in ("train", "dev")}


def _split_off_dev(train: Pair, folder: Path, count: int, seed: int, progress: Progress) -> None:
    """Write ``count`` pairs of train as dev and the others, less any copies of those, as train."""
    usable = [(source, target) for _, source, target in pairs(*train)]
    if count >= len(usable):
        raise UserError(
            f"{train.source} has {len(usable)} usable pairs, too few to split {count} off as a dev set; "
            "name dev files with --dev-source and --dev-target, or set data.dev_size lower."
        )
    chosen = set(np.random.default_rng([seed, 97]).permutation(len(usable))[:count].tolist())
    dev = [usable[i] for i in sorted(chosen)]
    held = {source for source, _ in dev}
    rest = [pair for i, pair in enumerate(usable) if i not in chosen and pair[0] not in held]
    made = _split_files(folder)
    for name, content in (("train", rest), ("dev", dev)):
        for side, path in enumerate(made[name]):
            write_lines(path, (pair[side] for pair in content))
    progress.note(
        f"No dev set given: {count} pairs of train are set aside (in {folder}), {len(rest)} left to train on"
    )


def _subwords(recipe: Recipe, train: Pair, cache: Path, progress: Progress) -> Subwords:
    """Learn subwords, or take those learned before from the same files with the same settings."""
    settings = recipe.subwords
    options = {
        "kind": settings.kind,
        "operations": settings.operations,
        "sample_power": settings.sample_power,
        "seed": recipe.training.seed,
        "for_dropout": settings.dropped_sides,
    }
    known = json.dumps([options, sha256_file(train.source), sha256_file(train.target)], sort_keys=True)
    file = cache / "subwords" / f"{hashlib.sha256(known.encode()).hexdigest()[:32]}.json"
    if file.exists():
        try:
            return Subwords.load(file)
        except UserError as error:
            progress.warn(f"{error} Learning the subwords again.")
    progress.note(f"Learning subwords ({settings.operations} operations, {settings.kind} text)")
    learned = Subwords.learn(*train, **options)  # type: ignore[arg-type]
    file.parent.mkdir(parents=True, exist_ok=True)
    learned.save(file)
    return learned
