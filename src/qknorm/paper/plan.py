"""From a row of a table to the recipe that is trained for it, and what tells one experiment from another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from qknorm.config import Recipe, changed_settings, load_recipe, recipe_hash, settings
from qknorm.data.text import sha256_file, sha256_text
from qknorm.errors import UserError
from qknorm.paper.experiments import PAIRS, TARGETS, Row, System, Target

KINDS = ("paper", "fast")
"""Recipes to choose from: the paper's settings, or those that train in minutes."""
_TWIN = ("model.norm=scale", "model.qk_norm=null")
"""What makes the baseline of a fast recipe."""
_ALONE = "training.members=1"
"""Rows are of one model each, as in the paper, also where a recipe has several translate together."""
_DECIDED = {
    "data.": "--data",
    "training.seed": "--seeds",
    "training.members": "the paper, whose rows are of one model each,",
    "name": "the row",
}
_ALL_BUT = ("beyond",)


def recipes_folder() -> Path:
    """Where the recipes are: inside the installed package, or beside the source in a checkout."""
    package = Path(__file__).parent.parent
    for folder in (package / "recipes", package.parent.parent / "recipes"):
        if (folder / "paper" / "en-vi.yaml").is_file():
            return folder
    raise UserError(f"The recipes that come with qknorm are not in {package}; install it again.")


@dataclass(frozen=True)
class Experiment:
    """One training: a system on a pair, by the recipes of a kind, with a seed and the user's own settings."""

    pair: str
    system: System
    kind: str
    seed: int
    overrides: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What its run and its results are called; the user's settings tell it from the plain one."""
        own = hashlib.sha256("\n".join(self.overrides).encode()).hexdigest()[:6] if self.overrides else ""
        parts = (self.pair, self.system.name, self.kind, f"seed{self.seed}", own)
        return "-".join(part for part in parts if part)

    def recipe(self, data: Path) -> Recipe:
        """All its settings, with the text in ``data``; what a row is about wins over the user's settings."""
        return _resolved(self, data.absolute())

    @property
    def borrows(self) -> bool:
        """Whether the pair has no fast recipe of its own and takes that of en-vi, on its own text."""
        return self.kind == "fast" and not _fast_file(self.pair).is_file()


def experiment(row: Row, kind: str, seed: int, overrides: tuple[str, ...] = ()) -> Experiment:
    """A row's training with one seed."""
    return Experiment(row.pair, row.system, row.system.family or kind, seed, overrides)


def differences(recorded: Recipe, wanted: Recipe) -> list[str]:
    """Settings in which a recorded run is another experiment than the wanted one."""
    free = {"name", *(key for key, setting in settings().items() if setting.is_path)}
    if wanted.model.length is None:
        free.add("model.length")  # the text decides it
    return [change.key for change in changed_settings(recorded, wanted) if change.key not in free]


@dataclass(frozen=True)
class TextFiles:
    """The files of an experiment, by split and side as a manifest names them: train.source and so on."""

    paths: tuple[tuple[str, Path], ...]

    @cached_property
    def files(self) -> dict[str, str]:
        """The SHA-256 of every file, as a manifest has them."""
        return {name: sha256_file(path) for name, path in self.paths}

    @cached_property
    def text(self) -> dict[str, str]:
        """The SHA-256 of what every file says: the same for text that is packed and text that is not."""
        return {name: sha256_text(path) for name, path in self.paths}


def find_text(recipe: Recipe) -> TextFiles | None:
    """The text of a recipe; None where some of it is missing."""
    try:
        splits = recipe.data.paths()._asdict()
    except UserError:
        return None
    sides = ("source", "target")
    named = [(split, zip(sides, files, strict=True)) for split, files in splits.items() if files is not None]
    return TextFiles(tuple((f"{split}.{side}", path) for split, files in named for side, path in files))


def experiment_hash(recipe: Recipe, corpus: TextFiles) -> str:
    """One hash of all that decides the result: every setting (the seed is one) and the text, but no path."""
    words = json.dumps([recipe_hash(recipe), corpus.files], sort_keys=True)
    return hashlib.sha256(words.encode()).hexdigest()


def choose_targets(name: str, pairs: Sequence[str]) -> list[Target]:
    """The named target, or all of the paper; those without a row of the wanted pairs are left out."""
    if name != "all" and name not in TARGETS:
        raise UserError(f'"{name}" is not a target; choose one of {", ".join(TARGETS)}, or all.')
    for pair in pairs:
        if pair not in PAIRS:
            raise UserError(f'"{pair}" is not a pair of the paper; choose from {", ".join(PAIRS)}.')
    named = [TARGETS[name]] if name != "all" else [t for n, t in TARGETS.items() if n not in _ALL_BUT]
    chosen = [target for target in named if wanted_rows(target, pairs)]
    if not chosen:
        have = ", ".join(dict.fromkeys(row.pair for row in named[0].rows))
        raise UserError(f"{name} has no row of {', '.join(pairs)}; its pairs are {have}.")
    return chosen


def wanted_rows(target: Target, pairs: Sequence[str], systems: Sequence[str] = ()) -> list[Row]:
    """Rows of the wanted pairs and systems; without any named, all rows."""
    return [
        row
        for row in target.rows
        if (not pairs or row.pair in pairs) and (not systems or row.system.name in systems)
    ]


def check_systems(systems: Sequence[str], targets: Sequence[Target], pairs: Sequence[str]) -> None:
    """Refuse systems that no row wanted is of."""
    have = list(dict.fromkeys(row.system.name for target in targets for row in wanted_rows(target, pairs)))
    for system in systems:
        if system not in have:
            raise UserError(f'"{system}" is not a system of these rows; choose from {", ".join(have)}.')


def check_overrides(overrides: Sequence[str]) -> tuple[str, ...]:
    """The user's settings; those that options of their own decide are refused."""
    for override in overrides:
        key = override.partition("=")[0].strip()
        for prefix, option in _DECIDED.items():
            if key.startswith(prefix):
                raise UserError(f"--set {key} is decided by {option} here; leave it out.")
    return tuple(overrides)


@cache
def _resolved(asked: Experiment, data: Path) -> Recipe:
    file, twin = _recipe_file(asked)
    overrides = [_ALONE, *asked.overrides, *twin, *asked.system.changes, f"training.seed={asked.seed}"]
    recipe = load_recipe(file, overrides)
    own = load_recipe(recipes_folder() / "paper" / f"{asked.pair}.yaml") if asked.borrows else recipe
    text = own.data.model_copy(update={"folder": data / PAIRS[asked.pair].corpus})
    return recipe.model_copy(update={"name": asked.name, "data": text})


def _fast_file(pair: str) -> Path:
    return recipes_folder() / "fast" / f"{pair}.yaml"


def _recipe_file(asked: Experiment) -> tuple[Path, tuple[str, ...]]:
    """The file a system's settings begin with, and what makes it the baseline if the file is not."""
    if asked.kind == "fast":
        file = _fast_file("en-vi" if asked.borrows else asked.pair)
        return file, _TWIN if asked.system.base == "baseline" else ()
    twin = "-baseline" if asked.system.base == "baseline" else ""
    return recipes_folder() / asked.kind / f"{asked.pair}{twin}.yaml", ()
