"""Options that several commands share."""

from __future__ import annotations

import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from qknorm.errors import UserError


class Kind(StrEnum):
    """What a text is: tokenised words, or as people write it."""

    words = "words"
    raw = "raw"


class Precision(StrEnum):
    """What a model computes in."""

    float32 = "float32"
    bfloat16 = "bfloat16"


class AttentionKind(StrEnum):
    """Whose attention, and to what: see ``qknorm.analysis.weights.Kind``."""

    encoder = "encoder"
    decoder = "decoder"
    cross = "cross"


class Corpus(StrEnum):
    """Text that a run knows beside what it was trained on."""

    dev = "dev"
    test = "test"


RecipeFile = Annotated[
    Path | None,
    typer.Argument(metavar="RECIPE.yaml", help="Every setting of a run; see recipes/.", show_default=False),
]
RunFolder = Annotated[
    Path | None,
    typer.Option(
        "--run",
        "--run-folder",  # torchrun takes --run, wherever it stands, for its own --run-path
        metavar="DIR",
        help="Run folder to make or go on with; runs/NAME if not given. Under torchrun: --run-folder.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a setting, such as training.seed=3; may be repeated."
    ),
]
Source = Annotated[
    Path | None, typer.Option("--source", metavar="FILE", help="Training text to translate from.")
]
Target = Annotated[Path | None, typer.Option("--target", metavar="FILE", help="Its translation.")]
DevSource = Annotated[
    Path | None,
    typer.Option("--dev-source", metavar="FILE", help="Dev text; split off the training text if not given."),
]
DevTarget = Annotated[Path | None, typer.Option("--dev-target", metavar="FILE", help="Its translation.")]
TestSource = Annotated[
    Path | None, typer.Option("--test-source", metavar="FILE", help="Text to translate and score at the end.")
]
TestTarget = Annotated[Path | None, typer.Option("--test-target", metavar="FILE", help="Its translation.")]
SubwordKind = Annotated[
    Kind | None,
    typer.Option(
        "--subwords", help="Without a recipe: words if the text is tokenised, raw (the default) if it is not."
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="DEVICE", help="cpu, cuda or cuda:N; the GPU where there is one if not given."
    ),
]
Against = Annotated[
    Path | None, typer.Option("--against", metavar="RUN", help="Another run to compare it with.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Raw = Annotated[
    bool, typer.Option("--raw/--words", help="Whether the text is ordinary text, or tokenised words.")
]


def check_device(name: str | None) -> str | None:
    """The device's name as it was given; a UserError where this machine has no such one."""
    if name is None:
        return None
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise UserError(f'"{name}" is not a device; choose cpu, cuda or cuda:N.')
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"This machine has {torch.cuda.device_count()} CUDA devices, so no {name}; try cpu.")
    return name


def say_first_of(run: Path, what: str) -> None:
    """Tell of a run with several models that something is of the first alone; the others have folders too."""
    from qknorm.run import Run

    members = Run.open(run).members()
    if len(members) > 1:
        typer.echo(f"{what} of the first of {len(members)} models; the next is {members[1].path}", err=True)


def default_device() -> str:
    """The GPU where there is one."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def check_file(path: Path) -> None:
    """A UserError where no file of this name can be written: said before the work, not after it."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a file to write.")
    if not path.parent.is_dir():
        raise UserError(f"There is no folder {path.parent} to write {path.name} in; make it first.")
    _check_writable(path.parent, path)


def check_folder(path: Path) -> None:
    """A UserError where no folder of this name can be made or written in: said before the work."""
    there = next(each for each in (path, *path.parents) if each.exists())
    if not there.is_dir():
        raise UserError(f"{there} is a file, so {path} cannot be a folder; choose another name.")
    _check_writable(there, path)


def _check_writable(folder: Path, path: Path) -> None:
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; choose another place.") from error
