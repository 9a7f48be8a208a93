"""Opening a run folder for training: a new one, or one that goes on with what it was begun with."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import time
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from qknorm import __version__
from qknorm.config import DataSettings, Recipe, changed_settings, recipe_hash
from qknorm.errors import UserError
from qknorm.progress import Progress
from qknorm.run import Run
from qknorm.training.preparation import Prepared, prepare
from qknorm.workers import Workers

RECORDED = ("torch", "numpy", "tokenizers", "safetensors", "sacrebleu", "nltk", "pydantic", "Babel")


def open_run(
    recipe: Recipe, folder: Run, progress: Progress, cache: Path | None, workers: Workers
) -> Prepared:
    """Prepare the data and make the run folder, or see that an existing one can go on with them."""
    old = _begun_with(folder, workers)
    if old is not None:
        recipe = _settled(folder, old, recipe, progress)
    check_size(recipe, workers)
    subwords = None if old is None else folder.subwords()
    prepared = prepare(recipe, folder.path / "data", progress, subwords, cache, split=workers.first)
    _write_down(folder, old, prepared, workers)
    return prepared


def _translates_otherwise(old: Recipe, new: Recipe) -> bool:
    """Whether dev and test are to be translated anew: by more models or fewer, or by another search."""
    before, now = (
        (recipe.training.members, recipe.decoding.model_dump(exclude={"batch_tokens"}))
        for recipe in (old, new)
    )
    return before != now


def open_member(
    whole: Run, number: int, prepared: Prepared, workers: Workers, progress: Progress
) -> tuple[Run, Prepared]:
    """The run folder of one of the models of a run that translate together, and what it is trained with."""
    if number == 1:
        return whole, prepared
    folder, recipe = whole.member(number), _member_recipe(whole, number, prepared)
    old = _begun_with(folder, workers)
    if old is not None:
        recipe = _settled(folder, old, recipe, Progress(quiet=True))  # said of the whole run already
    own = replace(prepared, recipe=recipe)
    _write_down(folder, old, own, workers)
    return folder, own


def _member_recipe(whole: Run, number: int, prepared: Prepared) -> Recipe:
    """The recipe of a model on its own: the seed is another, and dev text that was split off is named."""
    recipe = prepared.recipe
    files: dict[str, Path] = {}
    if (whole.path / "data") in (path.parent for path in prepared.files["train"]):
        for split, pair in prepared.files.items():
            files |= {f"{split}_{side}": path for side, path in pair._asdict().items()}
    data = recipe.data.model_dump() | ({"corpus": None, "folder": None} if files else {}) | files
    seed = recipe.training.seed + number - 1
    return recipe.model_copy(
        update={
            "name": f"{recipe.name}-{number}",
            "data": DataSettings(**data),
            "training": recipe.training.model_copy(update={"seed": seed, "members": 1}),
        }
    )


def _begun_with(folder: Run, workers: Workers) -> Recipe | None:
    """The recipe of a run folder that is there, or soon will be, process 0 making it."""
    if folder.exists:
        return folder.recipe()
    if not workers.first:
        raise UserError(
            f"Process {workers.rank} does not see {folder.path}, which process 0 has opened; it must be on a "
            "disk that all machines share."
        )
    return None


def _write_down(folder: Run, old: Recipe | None, prepared: Prepared, workers: Workers) -> None:
    """Make the run folder, or let an existing one have the recipe and the text as they are now."""
    if old is None:
        folder.create(prepared.recipe, prepared.subwords, _about(prepared, workers))
        return
    _check_text(folder, prepared.hashes())
    if workers.first and _translates_otherwise(old, prepared.recipe):
        folder.forget_scores()  # before the recipe says why, for after a stop in between nobody would know
        folder.hypotheses_file("dev").unlink(missing_ok=True)
    if workers.first and (old, folder.manifest()["corpus"]) != (prepared.recipe, prepared.hashes()):
        folder.replace_recipe(prepared.recipe, prepared.hashes())


def _settled(folder: Run, old: Recipe, recipe: Recipe, progress: Progress) -> Recipe:
    """The recipe to resume with: changes that are allowed are listed, others refused."""
    if recipe.model.length is None and old.model.length is not None:
        recipe = recipe.model_copy(update={"model": replace(recipe.model, length=old.model.length)})
    changes = changed_settings(old, recipe)
    # Files may have moved: whether their text is the same is asked once they have been read.
    if breaking := [c for c in changes if c.breaking and not c.key.startswith("data.")]:
        listed = "\n".join(f"  {c.key}: {c.old} → {c.new}" for c in breaking)
        raise UserError(
            f"{folder.path} was begun with other settings, which cannot change on the way:\n{listed}\n"
            "Give the old values, or train into another folder with --run."
        )
    for change in changes:
        progress.note(f"changed: {change.key}: {change.old} → {change.new}")
    return recipe


def check_size(recipe: Recipe, workers: Workers) -> None:
    """The batches of an update are shared out, so there must be one for each process."""
    accumulate = recipe.training.accumulate
    if accumulate < workers.size:
        raise UserError(
            f"{workers.size} processes would share out the batches of each update, which are "
            f"training.accumulate={accumulate}; begin a run with --set training.accumulate={workers.size} "
            f"(a batch for each, and updates that much larger), or start {accumulate} at most."
        )


def _check_text(folder: Run, hashes: dict[str, str]) -> None:
    """Train and dev must be what the run was begun with; of another test set, scores are made anew."""
    begun = folder.manifest()["corpus"]
    changed = sorted(k for k in begun.keys() | hashes.keys() if begun.get(k) != hashes.get(k))
    if other := [key for key in changed if not key.startswith("test.")]:
        raise UserError(
            f"The text of {', '.join(other)} is not what {folder.path} was trained on; "
            "put the files back, or train into another folder with --run."
        )
    if changed:
        folder.forget_scores()


def _about(prepared: Prepared, workers: Workers) -> dict[str, Any]:
    """What the manifest says besides checksums."""
    device = workers.device
    versions = {"qknorm": __version__, "python": platform.python_version()}
    for name in RECORDED:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "format": 1,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": versions,
        "commit": _commit(),
        "code_sha256": code_hash(),
        "recipe_sha256": recipe_hash(prepared.recipe),
        "seed": prepared.recipe.training.seed,
        "corpus": prepared.hashes(),
        "facts": prepared.facts(),
        "machine": {
            "system": platform.platform(),
            "processor": platform.machine(),
            "threads": torch.get_num_threads(),
            "processes": workers.size,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        },
    }


def code_hash(folder: Path = Path(__file__).parent.parent) -> str:
    """SHA-256 of the package's Python files, names and all: what ran, whatever a checkout calls itself."""
    found = hashlib.sha256()
    for file in sorted(folder.rglob("*.py"), key=lambda file: file.relative_to(folder).as_posix()):
        text = file.read_bytes()
        found.update(f"{file.relative_to(folder).as_posix()} {len(text)}\n".encode() + text)
    return found.hexdigest()


def _commit() -> str | None:
    """The commit of a source checkout, "-dirty" if changed since; None for an installed package."""
    asked = ["git", "-C", str(Path(__file__).parent), "describe"]
    asked += ["--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
