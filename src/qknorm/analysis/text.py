"""The text a model is looked at with: dev or test of its run, or two files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qknorm.data import lines, pairs
from qknorm.data.text import sha256_file
from qknorm.errors import UserError
from qknorm.run import Run


@dataclass(frozen=True)
class Text:
    """Sentences and their translations, line by line."""

    name: str
    sources: list[str]
    targets: list[str]

    def __len__(self) -> int:
        return len(self.sources)

    def without_blanks(self, most: int | None = None) -> Text:
        """The pairs with words on both sides; the first ``most`` of them."""
        both = zip(self.sources, self.targets, strict=True)
        kept = [pair for pair in both if pair[0].strip() and pair[1].strip()][:most]
        if not kept:
            raise UserError(f"{self.name} has no pair with words on both sides.")
        return Text(self.name, [source for source, _ in kept], [target for _, target in kept])


def run_names(runs: Sequence[Run]) -> list[str]:
    """What to call runs: their folders' names, or their whole paths where two have the same name."""
    names = [run.path.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.path) for run in runs]


def split_text(run: Run, split: str) -> Text:
    """Dev or test of a run, as it was when the run was trained."""
    source, target = split_files(run, split)
    known = run.manifest().get("corpus", {})
    for side, file in (("source", source), ("target", target)):
        if known.get(f"{split}.{side}") != sha256_file(file):
            raise UserError(
                f"{file} is not the {split} text that {run.path} was trained with; restore it from a copy."
            )
    return Text(split, list(lines(source)), list(lines(target)))


def split_files(run: Run, split: str) -> tuple[Path, Path]:
    """Where train, dev or test of a run lies: in its folder if dev was split off, else as its recipe says."""
    own = run.path / "data" / f"{split}.source", run.path / "data" / f"{split}.target"
    if all(file.exists() for file in own):
        return own
    found = getattr(run.recipe().data.paths(), split)
    if found is None:
        raise UserError(f"{run.path} has no {split} text: its recipe names none.")
    source, target = found
    return source, target


def file_text(source: Path, target: Path) -> Text:
    """Two files, line n of one the translation of line n of the other."""
    found = [(ours, theirs) for _, ours, theirs in pairs(source, target, keep_blank=True)]
    return Text(f"{source.name}, {target.name}", [s for s, _ in found], [t for _, t in found])
