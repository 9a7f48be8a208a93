"""The text a model is looked at with: dev or test of its run, or two files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qknorm.data import lines, pairs
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
    source, target = _there(run.checked_text(split), run, split)
    return Text(split, list(lines(source)), list(lines(target)))


def split_files(run: Run, split: str) -> tuple[Path, Path]:
    """Where train, dev or test of a run lies."""
    return _there(run.text_files(split), run, split)


def _there(files: tuple[Path, Path] | None, run: Run, split: str) -> tuple[Path, Path]:
    if files is None:
        raise UserError(f"{run.path} has no {split} text: its recipe names none.")
    return files


def file_text(source: Path, target: Path) -> Text:
    """Two files, line n of one the translation of line n of the other."""
    found = [(ours, theirs) for _, ours, theirs in pairs(source, target, keep_blank=True)]
    return Text(f"{source.name}, {target.name}", [s for s, _ in found], [t for _, t in found])
