"""Which recipe a command means: a file, two text files and a preset, or that of an existing run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qknorm.errors import UserError
from qknorm.progress import Progress

if TYPE_CHECKING:
    from qknorm.config import Recipe

RUNS = Path("runs")
"""Where run folders go that are not named."""


def choose_recipe(
    recipe_file: Path | None,
    files: Mapping[str, Path | None],
    kind: str | None,
    run: Path | None,
    overrides: Sequence[str],
    progress: Progress,
    device: str | None = None,
) -> tuple[Recipe, Path]:
    """The recipe and the run folder. ``files`` are those of `data` by setting, ``train_source`` and so on."""
    from qknorm.config import load_recipe
    from qknorm.run import Run

    if run is not None and run.exists() and not run.is_dir():
        raise UserError(f"{run} is a file; --run names a folder.")
    named = {key: path for key, path in files.items() if path is not None}
    if recipe_file is not None:
        if named or kind is not None:
            raise UserError(
                f"{recipe_file} says which files to use and how; name either a recipe or files, "
                "and change single settings of a recipe with --set."
            )
        recipe = load_recipe(recipe_file, overrides)
    elif named:
        return _chosen_for_files(named, kind, run, overrides, progress, device)
    elif run is not None:
        folder = Run.open(run)
        if kind is not None:
            raise UserError(f"{run} has its subwords already; --subwords is for a new run.")
        folder.recipe()  # refuses a file that was altered
        recipe = load_recipe(folder.recipe_file, overrides)
    else:
        raise UserError(
            "Nothing to learn from is named; give a recipe, or --source and --target, or --run DIR "
            "to go on with a run."
        )
    return recipe, _folder(recipe, run)


def _folder(recipe: Recipe, run: Path | None) -> Path:
    return RUNS / recipe.name if run is None else run


def _chosen_for_files(
    files: Mapping[str, Path],
    kind: str | None,
    run: Path | None,
    overrides: Sequence[str],
    progress: Progress,
    device: str | None,
) -> tuple[Recipe, Path]:
    """A recipe chosen by the text and the device, and the run folder; says why.

    What was chosen by the device when the run was begun stays, whatever device it goes on with.
    """
    from qknorm.cli.options import default_device
    from qknorm.config import changed_settings
    from qknorm.run import Run

    gpu = (device or default_device()).startswith("cuda")
    recipe, reasons = recipe_for_files(files, kind, overrides, gpu)
    path = _folder(recipe, run)
    if Run(path).exists:
        begun = Run(path).recipe()
        other, others = recipe_for_files(files, kind, overrides, not gpu)
        if len(changed_settings(begun, other)) < len(changed_settings(begun, recipe)):
            recipe, reasons = other, others
    progress.note("Settings chosen by the size of the training text (change them with --set):")
    for reason in reasons:
        progress.note(f"  - {reason}")
    return recipe, path


def recipe_for_files(
    files: Mapping[str, Path], kind: str | None, overrides: Sequence[str], gpu: bool
) -> tuple[Recipe, list[str]]:
    """A recipe for text files without one, chosen by their size and the device, and the reasons."""
    from qknorm.config import make_recipe, preset
    from qknorm.data.text import count_characters, count_lines

    source, target = files.get("train_source"), files.get("train_target")
    if source is None or target is None:
        missing = "--source" if source is None else "--target"
        raise UserError(
            f"{missing} is missing; --source and --target name the two sides of the training text."
        )
    longer = max(count_characters(source), count_characters(target))
    chosen = preset(count_lines(source), longer, gpu)
    settings = {**chosen.settings, "name": run_name(source, target), "data": dict(files)}
    if kind is not None:
        settings["subwords"] = {**chosen.settings["subwords"], "kind": kind}
    return make_recipe(settings, overrides), chosen.reasons


def run_name(source: Path, target: Path) -> str:
    """What to call a run on two files: "gl-en" for train.gl and train.en, or else the names of both."""
    names = [path.name.removesuffix(".gz") for path in (source, target)]
    endings = [Path(name).suffix.removeprefix(".") for name in names]
    if all(endings) and endings[0] != endings[1]:
        return "-".join(endings)
    return "-".join(Path(name).stem for name in names)
