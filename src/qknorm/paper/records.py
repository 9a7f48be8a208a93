"""What ``results/runs/NAME`` keeps of a finished run: all that a figure is recomputed from, no weights.

recipe.yaml        every setting, resolved; the text relative to the project, data/CORPUS
manifest.json      versions, corpus hashes, machine, facts of the text
history.jsonl      one line an epoch
hypotheses/        translations of dev and test, and their scores
record.json        which row of the paper this is, its hash, that of the text, and what it took
failed.json        why training failed when it was last tried; what was kept before stays beside it

The manifest has checksums of all but record.json and failed.json. A record that its row no longer asks for
is told on the page; once the row has been trained anew, it goes to ``results/superseded``.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from qknorm.config import Recipe
from qknorm.config.yaml_text import write as yaml_dump
from qknorm.data import write_atomic
from qknorm.data.registry import find_corpus
from qknorm.data.text import sha256_file
from qknorm.errors import UserError
from qknorm.paper.experiments import PAIRS
from qknorm.paper.plan import Experiment, TextFiles, differences
from qknorm.run import Run, count_parameters, signed

RUNS = "runs"
SUPERSEDED = "superseded"
ASKED = "asked.yaml"
"""In a run folder: the recipe of a training that was one of several at a time."""


@dataclass(frozen=True)
class Record:
    """A finished run as it is kept."""

    folder: Path

    @cached_property
    def about(self) -> dict[str, Any]:
        return _read_json(self.folder / "record.json")

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return Run(self.folder).manifest()

    @cached_property
    def scores(self) -> dict[str, Any]:
        return _read_json(Run(self.folder).scores_file)

    @cached_property
    def recipe(self) -> Recipe:
        return Run(self.folder).recipe()

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def seed(self) -> int:
        return int(self.about["seed"])

    @property
    def minutes(self) -> float:
        return float(self.about["seconds"]) / 60

    def hypotheses(self, split: str = "test") -> Path:
        return Run(self.folder).hypotheses_file(split)

    def fingerprint(self) -> str:
        """Tells one translation of test from another."""
        return sha256_file(self.hypotheses())[:16]

    def figure(self, name: str) -> float | None:
        """A score by split and metric, such as test.bleu_tokenized; None where the run has none."""
        split, _, metric = name.partition(".")
        value = self.scores.get(split, {}).get(metric)
        return None if value is None else float(value)

    def signature(self, name: str) -> str | None:
        """The sacrebleu signature of a score."""
        split, _, metric = name.partition(".")
        found = self.scores.get(split, {}).get("signatures", {}).get(metric)
        return None if found is None else str(found)

    def caveat(self) -> str | None:
        """What is to be said wherever a score of this text is shown."""
        named = find_corpus(PAIRS[self.about["pair"]].corpus)
        trained_on = self.manifest["corpus"]["train.source"]
        packed = named.gz_hashes.get(f"train.{named.source}.gz")
        if not named.caveats or trained_on not in (packed, *named.caveats):
            return None
        return next(iter(named.caveats.values()))

    def check(self) -> None:
        """See that every file is there, and as it was kept."""
        for name, kept in self.manifest["files"].items():
            file = self.folder / name
            if not file.is_file() or sha256_file(file) != kept:
                raise UserError(
                    f"{file} is missing or is not what was kept; restore it from a copy, or remove "
                    f"{self.folder} to have the row trained again."
                )

    def mismatch(self, wanted: Recipe, corpus: TextFiles | None) -> str | None:
        """Why this run is not the one that is wanted; None if it is, as far as the text at hand can tell."""
        if other := differences(self.recipe, wanted):
            return f"it was trained with another {', '.join(other)}"
        if corpus is None or corpus.files == self.manifest["corpus"] or corpus.text == self.about.get("text"):
            return None
        return "it was trained or tested on other text"


def find_record(results: Path, experiment: Experiment) -> Record | None:
    """What is kept of an experiment, if it is."""
    folder = results / RUNS / experiment.name
    return Record(folder) if (folder / "record.json").is_file() else None


def find_twin(
    results: Path, experiment: Experiment, recipe: Recipe, corpus: TextFiles | None
) -> Record | None:
    """The same training, kept under the name of another row."""
    group = (experiment.pair, experiment.kind, list(experiment.overrides))
    for record in all_records(results):
        told = tuple(record.about[key] for key in ("pair", "recipe", "overrides"))
        if told == group and record.name != experiment.name and record.mismatch(recipe, corpus) is None:
            return record
    return None


def all_failures(results: Path) -> list[dict[str, Any]]:
    """Experiments that failed when they were last tried, each with its ``why``."""
    return [_read_json(file) for file in sorted((results / RUNS).glob("*/failed.json"))]


def all_records(results: Path) -> list[Record]:
    """Everything that is kept, by name."""
    files = sorted((results / RUNS).glob("*/record.json"))
    return [_opened(file.parent, file.stat().st_mtime_ns) for file in files]


@cache
def _opened(folder: Path, written: int) -> Record:
    """A record, read once for as long as it stays the one written then."""
    return Record(folder)


def set_aside(results: Path, experiment: Experiment, experiment_hash: str) -> Path | None:
    """Move what is kept of the row as it was before to ``superseded``; where it is now, if there was any."""
    before = find_record(results, experiment)
    if before is None or before.about["experiment"] == experiment_hash:
        return None
    to = results / SUPERSEDED / f"{before.name}-{before.about['experiment'][:12]}"
    shutil.rmtree(to, ignore_errors=True)
    to.parent.mkdir(exist_ok=True)
    return before.folder.rename(to)


def keep(results: Path, experiment: Experiment, run: Run, experiment_hash: str, corpus: TextFiles) -> Record:
    """Copy what is kept of a finished run; ``record.json`` comes last and makes it a record."""
    history = run.history()
    if not history:
        raise UserError(
            f"{run.history_file} is missing or empty; restore it from a copy, or remove {run.path} and "
            "train anew."
        )
    folder = results / RUNS / experiment.name
    recipe, manifest = run.recipe(), run.manifest()
    copy_run(run, folder, recipe.model_copy(update={"name": experiment.name}), PAIRS[experiment.pair].corpus)
    about = _identity(experiment) | {
        "experiment": experiment_hash,
        "text": corpus.text,
        "kind": recipe.subwords.kind,
        "parameters": count_parameters(recipe, run.subwords()),
        "best_epoch": next((row["epoch"] for row in reversed(history) if row["best"]), None),
        "updates": history[-1]["step"],
        "seconds": history[-1]["elapsed"],
        "device": manifest["machine"]["device"],
        "side_by_side": (run.path / ASKED).is_file(),
    }
    write_atomic(folder / "record.json", json.dumps(about, indent=2) + "\n")
    return Record(folder)


def copy_run(run: Run, folder: Path, recipe: Recipe, corpus: str) -> None:
    """What of a run is kept, in place of a folder: all but its weights.

    The recipe has its text in data/CORPUS of the project, seen from a folder three deep in there.
    """
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "hypotheses").mkdir(parents=True)
    values = recipe.model_dump(mode="json")
    values["data"]["folder"] = f"../../../data/{corpus}"
    write_atomic(folder / "recipe.yaml", yaml_dump(values))
    histories = [member.history_file for member in run.members()]
    translated = run.hypotheses_file("dev"), run.hypotheses_file("test"), run.scores_file
    for file in (*histories, run.decoding_file, *translated):
        if file.is_file():
            (folder / file.relative_to(run.path)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / file.relative_to(run.path))
    files = {
        file.relative_to(folder).as_posix(): sha256_file(file)
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
    manifest = json.dumps(signed({**run.manifest(), "files": files}), indent=2)
    write_atomic(folder / "manifest.json", manifest + "\n")


def keep_failure(results: Path, experiment: Experiment, run: Run, why: str) -> None:
    """Note that training failed, and why, in words without a path of this machine."""
    folder = results / RUNS / experiment.name
    folder.mkdir(parents=True, exist_ok=True)
    told = _identity(experiment) | {"why": why.replace(str(run.path), run.path.name)}
    write_atomic(folder / "failed.json", json.dumps(told, indent=2) + "\n")


def forget_failure(results: Path, experiment: Experiment) -> None:
    """What is kept is all that is asked for, so that a later training that failed no longer matters."""
    (results / RUNS / experiment.name / "failed.json").unlink(missing_ok=True)


def _identity(experiment: Experiment) -> dict[str, Any]:
    return {
        "pair": experiment.pair,
        "system": experiment.system.name,
        "recipe": experiment.kind,
        "seed": experiment.seed,
        "changes": list(experiment.system.changes),
        "overrides": list(experiment.overrides),
    }


def _read_json(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{file} is damaged or missing; restore it, or remove its folder.") from error
    if not isinstance(values, dict):
        raise UserError(f"{file} is damaged; restore it, or remove its folder.")
    return values
