"""The run folder: all that passes between training and everything after it.

recipe.yaml        every setting, resolved
subwords.json      the vocabulary and merges
manifest.json      versions, corpus hashes, seed, machine, and checksums of the two files above
history.jsonl      one line an epoch
last.safetensors   weights, optimiser, random state: where training goes on
best.safetensors   the weights with the best dev BLEU
decoding.json      the length penalty that dev has chosen, where it does
hypotheses/        translations of dev and test, and their scores
tensorboard/       the history for TensorBoard
members/           run folders 2, 3 … of further models, where several translate together
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import torch

from qknorm.config import DecodingSettings, Recipe, dump_recipe, load_recipe
from qknorm.data import Subwords, write_atomic
from qknorm.data.text import sha256_file
from qknorm.errors import UserError
from qknorm.history import read_history
from qknorm.model import Transformer
from qknorm.tensors import load_tensors, read_about

MODEL = "model."
MEMBERS = "members"


class Run:
    """One run folder, opened; files are checked when they are first read."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.recipe_file = self.path / "recipe.yaml"
        self.subwords_file = self.path / "subwords.json"
        self.manifest_file = self.path / "manifest.json"
        self.history_file = self.path / "history.jsonl"
        self.last_file = self.path / "last.safetensors"
        self.best_file = self.path / "best.safetensors"
        self.decoding_file = self.path / "decoding.json"
        self.scores_file = self.path / "hypotheses" / "scores.json"
        self.tensorboard = self.path / "tensorboard"

    def hypotheses_file(self, split: str) -> Path:
        """The best weights' translation of dev or test."""
        return self.path / "hypotheses" / f"{split}.txt"

    def member(self, number: int) -> Run:
        """The run of one of the models that translate together; the first is this one."""
        return self if number == 1 else Run(self.path / MEMBERS / str(number))

    def members(self) -> list[Run]:
        """The runs of all models that translate together, trained so far or not."""
        return [self.member(number) for number in range(1, self.recipe().training.members + 1)]

    def trained_members(self) -> list[Run]:
        """Those that take part: the first, and of the others those whose training is over."""
        first, *others = self.members()
        return [first, *(other for other in others if other.is_trained())]

    def missing_members(self) -> str | None:
        """A sentence where fewer models translate than there are to be."""
        members, trained = len(self.members()), len(self.trained_members())
        if trained == members:
            return None
        return f"{self.path} is to have {members} models; the {trained} trained so far translate."

    def is_trained(self) -> bool:
        """Whether there are weights, and training does not go on."""
        if not self.best_file.exists():
            return False
        return not self.last_file.exists() or bool(read_about(self.last_file)["state"]["finished"])

    def whole(self) -> Run | None:
        """The run that this one is a model of, if it is one of several."""
        above = self.path.parent if len(self.path.parts) > 2 else self.path.absolute().parent
        whole = Run(above.parent)
        return whole if above.name == MEMBERS and whole.exists else None

    @property
    def exists(self) -> bool:
        return self.manifest_file.exists()

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """An existing run folder; a UserError where there is none."""
        run = cls(path)
        if not run.exists:
            raise UserError(
                f"{run.path} is not a run folder (it has no manifest.json); make one with `qknorm train`."
            )
        return run

    def create(self, recipe: Recipe, subwords: Subwords, about: dict[str, Any]) -> None:
        """Write recipe, subwords and, last of all, the manifest that makes this a run folder."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomic(self.recipe_file, dump_recipe(recipe))
        subwords.save(self.subwords_file)
        files = {file.name: sha256_file(file) for file in (self.recipe_file, self.subwords_file)}
        write_atomic(self.manifest_file, json.dumps(signed({**about, "files": files}), indent=2) + "\n")

    def replace_recipe(self, recipe: Recipe, corpus: dict[str, str]) -> None:
        """Settings or the test set changed at a resume: write them, and their checksums into the manifest.

        Stopped in between, the manifest knows both recipes: either is as it was written.
        """
        manifest, text = self.manifest(), dump_recipe(recipe)
        manifest["files"][self.recipe_file.name] = hashlib.sha256(text.encode()).hexdigest()
        manifest["corpus"] = corpus
        before = {**manifest, "replaced": sha256_file(self.recipe_file)}
        write_atomic(self.manifest_file, json.dumps(signed(before), indent=2) + "\n")
        write_atomic(self.recipe_file, text)
        manifest.pop("replaced", None)
        write_atomic(self.manifest_file, json.dumps(signed(manifest), indent=2) + "\n")

    def note_seconds(self, seconds: float) -> None:
        """Write into the manifest how long it took from the start of the command to the scores."""
        manifest = signed({**self.manifest(), "seconds": round(seconds, 2)})
        write_atomic(self.manifest_file, json.dumps(manifest, indent=2) + "\n")

    def forget_scores(self) -> None:
        """Remove the scores, the translation of test, and what dev has chosen: all will be made anew."""
        self.scores_file.unlink(missing_ok=True)
        self.decoding_file.unlink(missing_ok=True)
        self.hypotheses_file("test").unlink(missing_ok=True)

    def manifest(self) -> dict[str, Any]:
        """The manifest, without its own checksum."""
        try:
            manifest = json.loads(self.manifest_file.read_bytes())
            signature = manifest.pop("sha256")
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise UserError(
                f"{self.manifest_file} is damaged or cut short; restore it from a copy."
            ) from error
        if signature != signed(manifest)["sha256"]:
            raise UserError(f"{self.manifest_file} was altered since it was written; restore it from a copy.")
        return dict(manifest)

    def recipe(self) -> Recipe:
        self._check(self.recipe_file)
        return load_recipe(self.recipe_file)

    def decoding(self) -> DecodingSettings:
        """How translations are searched for: as the recipe says, with what dev has chosen."""
        decoding = self.recipe().decoding
        if not decoding.length_penalty_from_dev or not self.decoding_file.exists():
            return decoding
        found = _read_json(self.decoding_file)
        penalty = found.get("length_penalty")
        if not isinstance(penalty, int | float) or not 0 <= penalty < math.inf:
            raise UserError(f"{self.decoding_file} is damaged (no length_penalty); restore it from a copy.")
        return decoding.model_copy(update={"length_penalty": float(penalty)})

    def keep_length_penalty(self, penalty: float) -> None:
        """Write down what dev has chosen."""
        write_atomic(self.decoding_file, json.dumps({"length_penalty": penalty}) + "\n")

    def subwords(self) -> Subwords:
        self._check(self.subwords_file)
        return Subwords.load(self.subwords_file)

    def text_files(self, split: str) -> tuple[Path, Path] | None:
        """Where train, dev or test lies: in the run folder if dev was split off, else as the recipe says."""
        whole = self.whole()
        for folder in (self.path, *(() if whole is None else (whole.path,))):
            own = folder / "data" / f"{split}.source", folder / "data" / f"{split}.target"
            if all(file.exists() for file in own):
                return own
        found: tuple[Path, Path] | None = getattr(self.recipe().data.paths(), split)
        return found

    def checked_text(self, split: str) -> tuple[Path, Path] | None:
        """The same; a UserError where it is no longer the text that the run was trained with."""
        files = self.text_files(split)
        known = self.manifest().get("corpus", {})
        for side, file in zip(("source", "target"), files or (), strict=False):
            if known.get(f"{split}.{side}") != sha256_file(file):
                raise UserError(
                    f"{file} is not the {split} text that {self.path} was trained with; "
                    "restore it from a copy."
                )
        return files

    def model(self, which: str = "best", device: torch.device | str = "cpu") -> Transformer:
        """The trained model, ``"best"`` or ``"last"``, in evaluation mode."""
        model = build_model(self.recipe(), self.subwords())
        self.load_weights(model, which)
        return model.to(device).eval()

    def models(self, which: str = "best", device: torch.device | str = "cpu") -> list[Transformer]:
        """The models that translate together, those of them that are trained so far."""
        return [each.model(which, device) for each in self.trained_members()]

    def weights_file(self, which: str = "best") -> Path:
        """Where the weights are kept that are called ``"best"`` or ``"last"``."""
        return {"best": self.best_file, "last": self.last_file}[which]

    def load_weights(self, model: Transformer, which: str = "best") -> None:
        """Copy the weights of the trained model, ``"best"`` or ``"last"``, into one of the same recipe."""
        file = self.weights_file(which)
        if not file.exists():
            raise UserError(
                f"{file} does not exist yet; training has not got so far. Go on with `qknorm train`."
            )
        tensors, _ = load_tensors(file)
        weights = {name.removeprefix(MODEL): t for name, t in tensors.items() if name.startswith(MODEL)}
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            raise UserError(f"{file} does not fit {self.recipe_file}: {error}") from error

    def history(self) -> list[dict[str, Any]]:
        """One row an epoch; a UserError where a line is damaged."""
        return read_history(self.history_file)

    def write_history(self, rows: list[dict[str, Any]]) -> None:
        write_atomic(self.history_file, "".join(json.dumps(row) + "\n" for row in rows))

    def scores(self) -> dict[str, Any] | None:
        """Scores of dev and test once training has finished."""
        return _read_json(self.scores_file) if self.scores_file.exists() else None

    def _check(self, file: Path) -> None:
        manifest = self.manifest()
        recorded = [manifest["files"].get(file.name)]
        if file == self.recipe_file and "replaced" in manifest:
            recorded.append(manifest["replaced"])
        if not file.exists():
            raise UserError(f"{file} is missing; restore it from a copy.")
        if sha256_file(file) not in recorded:
            raise UserError(
                f"{file} was altered since it was written; restore it from a copy "
                "(to change settings of a run, use `qknorm train --set key=value`)."
            )


def build_model(recipe: Recipe, subwords: Subwords) -> Transformer:
    """The model of a recipe for a vocabulary, with fresh weights."""
    return Transformer(subwords.size, recipe.model, torch.from_numpy(subwords.target_mask))


def count_parameters(recipe: Recipe, subwords: Subwords) -> int:
    """How many weights the model of a recipe has; none is made for it."""
    with torch.device("meta"):
        model = build_model(recipe, subwords)
    return sum(weight.numel() for weight in model.parameters())


def _read_json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except ValueError as error:
        raise UserError(
            f"{file} is damaged or cut short; restore it from a copy, or remove it and go on with "
            "`qknorm train`."
        ) from error
    if not isinstance(found, dict):
        raise UserError(f"{file} is damaged; restore it from a copy.")
    return found


def signed(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest with a checksum of itself."""
    words = json.dumps(manifest, sort_keys=True)
    return {**manifest, "sha256": hashlib.sha256(words.encode()).hexdigest()}
