"""More pairs from the same text: what trained models say joins what they were trained on.

Data diversification (Nguyen, Joty, Wu & Aw 2020) lets models translate their own training text, forwards and
backwards; back-translation (Sennrich, Haddow & Birch 2016) lets one translate text that has no other side.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import BinaryIO, Literal

import torch

from qknorm.config import SplitPaths
from qknorm.data import Side, lines, pairs, write_atomic
from qknorm.data.corpus import SPLITS, Corpus, split_paths, write_lines
from qknorm.data.hashes import record
from qknorm.data.text import count_lines, replacing, sha256_file, sha256_text
from qknorm.errors import UserError
from qknorm.progress import Progress
from qknorm.run import Run
from qknorm.translation import translator
from qknorm.translation.translator import Translator, chunks
from qknorm.workers import Workers

PARTS = "parts"
"""The folder of single models' translations, inside that of the corpus."""
ABOUT = "augmented.json"


@dataclass(frozen=True)
class Part:
    """What came of one text that one run translated."""

    run: str
    reads: Side
    """The side of the corpus that the text is of; the translations are of the other one."""
    text: str
    lines: int
    kept: int
    blank: int
    """Lines that are blank or were translated by nothing."""
    copies: int
    """Pairs that were there already."""


@dataclass(frozen=True)
class Job:
    """A text, of which side it is, the run that translates it, and where the translations go."""

    run: Run
    reads: Side
    text: Path
    lines: int
    file: Path

    @property
    def name(self) -> str:
        return self.run.path.resolve().name


@dataclass(frozen=True)
class Search:
    """How translations are searched for; what is None is as each run's recipe has it."""

    beam: int | None = None
    precision: Literal["float32", "bfloat16"] = "float32"


def augment(
    runs: Sequence[str | Path],
    to: Path,
    *,
    source_text: Sequence[Path] = (),
    target_text: Sequence[Path] = (),
    search: Search | None = None,
    workers: Workers | None = None,
    progress: Progress | None = None,
) -> Corpus | None:
    """Lay out in ``to`` the text a run was trained on together with translations of it.

    Of a run that translates as the first one does, the pairs are (source, its translation); of one that was
    trained the other way round on the same text, (its translation, target). ``source_text`` and
    ``target_text`` are files of one language alone, which those runs translate too. Pairs that are there
    already and empty translations are left out. What was translated before a stop is taken up again. Of
    several ``workers``, only the first gets the corpus.
    """
    search = search or Search()
    workers = workers or Workers(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    progress = progress or Progress()
    opened = [Run.open(path) for path in runs]
    if not opened:
        raise UserError("Name at least one run folder to translate with.")
    given = _text_of(opened[0])
    _refuse_folder(to, opened[0], given)
    jobs = _jobs(opened, given, {"source": source_text, "target": target_text}, to, search)
    for run, run_jobs in groupby(jobs, lambda job: job.run):
        model: Translator | None = None
        for job in run_jobs:
            if not workers.tell(job.file.exists()):
                if model is None and workers.first and (missing := run.missing_members()):
                    progress.note(missing)
                model = model or Translator.load(
                    run.path, workers.device, dtype=getattr(torch, search.precision)
                )
                _translate(model, job, search, workers, progress)
    return _join(opened[0], given, jobs, to) if workers.first else None


def _jobs(
    runs: Sequence[Run], given: SplitPaths, extra: dict[Side, Sequence[Path]], to: Path, search: Search
) -> list[Job]:
    """All there is to translate; whatever is wrong with a run or a text is said before any of it is."""
    reads = [_reads(run, runs[0], given) for run in runs]
    for side, files in extra.items():
        if files and side not in reads:
            raise UserError(_no_run_for(side, files[0], runs[0]))
    texts = {side: (given.train[side == "target"], *extra[side]) for side in reads}
    counts = {text: sum(1 for _ in lines(text)) for each in texts.values() for text in each}
    return [
        Job(run, side, text, counts[text], _part_file(run, text, to, search))
        for run, side in zip(runs, reads, strict=True)
        for text in texts[side]
    ]


def _text_of(run: Run) -> SplitPaths:
    """The text a run was trained on, as it was then: dev text that was split off train stays out of it."""
    train = run.checked_text("train")
    assert train is not None  # it was trained
    return SplitPaths(train, run.checked_text("dev"), run.checked_text("test"))


def _reads(run: Run, first: Run, given: SplitPaths) -> Side:
    """Which side of the first run's text a run translates."""
    ours, theirs = first.manifest()["corpus"], run.manifest()["corpus"]
    sides = [(corpus["train.source"], corpus["train.target"]) for corpus in (ours, theirs)]
    if sides[1] == sides[0]:
        return "source"
    if sides[1] == sides[0][::-1]:
        return "target"
    source, target = given.train
    raise UserError(
        f"{run.path} was not trained on the text of {first.path}, neither that way round nor the other; "
        f"train one with --source {source} --target {target}, or with these two exchanged."
    )


def _no_run_for(side: Side, file: Path, first: Run) -> str:
    way = "the way of" if side == "source" else "the other way round than"
    return f"{file} is text of the {side} language, and no run was named that translates {way} {first.path}."


def _refuse_folder(to: Path, first: Run, given: SplitPaths) -> None:
    """Text that someone else put in the folder is not to be replaced."""
    if any(path.resolve().parent == to.resolve() for path in given.train):
        raise UserError(f"{to} holds the text that is to be translated; name another folder with --to.")
    names = [path for pair in split_paths(to, *_codes(first)).values() for path in pair]
    there = next((path for path in names if path.exists()), None)
    if there is not None and not (to / PARTS).is_dir():
        raise UserError(f"{there} is there already, and not by this command; name another folder with --to.")


def _part_file(run: Run, text: Path, to: Path, search: Search) -> Path:
    """Where the translations of a text by a run go; other weights, text or search go elsewhere."""
    if not run.best_file.exists():
        raise UserError(f"{run.best_file} does not exist yet; train {run.path} first.")
    decoding = run.decoding()
    known = [
        *(sha256_file(member.best_file) for member in run.trained_members()),
        sha256_text(text),
        search.beam or decoding.beam,
        decoding.length_penalty,
        decoding.max_extra,
        search.precision,
    ]
    digest = hashlib.sha256(json.dumps(known).encode()).hexdigest()[:12]
    return to / PARTS / f"{run.path.resolve().name}.{text.name.removesuffix('.gz')}.{digest}"


def _translate(model: Translator, job: Job, search: Search, workers: Workers, progress: Progress) -> None:
    """Write the translations of a text, after those that an earlier call has got to."""
    step = translator.CHUNK * workers.size
    begun = job.file.with_name(f"{job.file.name}.begun")
    if workers.first:
        job.file.parent.mkdir(parents=True, exist_ok=True)
        begun.touch()
    done = int(workers.tell(_whole_steps(begun, step) if workers.first else 0))
    told = progress if workers.first else Progress(quiet=True)
    what = f"{job.name} translates {job.text.name}"
    before = f", {done:,} of them done before" if done else ""
    told.note(f"{what}: {job.lines:,} lines{before}")
    with told.bar(what, job.lines, done) as bar:
        rest = islice(lines(job.text), done, None)
        found = model.stream(
            rest, beam=search.beam, workers=workers, progress=lambda more: bar.to(done + more)
        )
        for translations in chunks((best[0].text if best else "" for best in found), step):
            if workers.first:
                with open(begun, "ab") as to:
                    to.write("".join(f"{line}\n" for line in translations).encode())
    if workers.first:
        os.replace(begun, job.file)


def _whole_steps(begun: Path, step: int) -> int:
    """How many lines of a stopped translation count: whole steps of them; the rest is cut off."""
    count = place = 0
    with open(begun, "r+b") as file:
        while len(whole := list(islice(file, step))) == step and whole[-1].endswith(b"\n"):
            count += step
            place += sum(map(len, whole))
        file.truncate(place)
    return count


def _join(first: Run, given: SplitPaths, jobs: Sequence[Job], to: Path) -> Corpus:
    """The text and the translations as one corpus; its files appear when all are written."""
    names = split_paths(to, *_codes(first))
    counts: dict[str, int] = {}
    for split, files in zip(SPLITS[1:], (given.dev, given.test), strict=True):
        if files is not None:
            for path, copy in zip(files, names[split], strict=True):
                write_lines(copy, lines(path))
            counts[split] = count_lines(names[split][0])
    with replacing(names["train"][0]) as source, replacing(names["train"][1]) as target:
        sink = _Sink(source, target)
        for _, here, there in pairs(*given.train):
            sink.write(here, there)
        real = sink.written
        parts = [sink.add(job) for job in jobs]
    counts["train"] = sink.written
    about = {"real": real, "parts": [asdict(part) for part in parts]}
    write_atomic(to / ABOUT, json.dumps(about, indent=2, ensure_ascii=False) + "\n")
    record([path for split in counts for path in names[split]])
    said = [f"{real:,} pairs as they were."]
    said += [
        f"{part.run}, {part.text}: {part.kept:,} of {part.lines:,} lines"
        + (f", {part.copies:,} there already" if part.copies else "")
        + (f", {part.blank:,} without a translation" if part.blank else "")
        + "."
        for part in parts
    ]
    return _corpus(first, to, given, counts, "\n".join(said))


class _Sink:
    """Two sides of a corpus being written, and which pairs they have."""

    def __init__(self, source: BinaryIO, target: BinaryIO) -> None:
        self.sides = source, target
        self.known: set[bytes] = set()
        self.written = 0

    def write(self, source: str, target: str, twice: bool = True) -> bool:
        """Add a pair, one that is there already only if it may be there ``twice``; whether it was added."""
        key = hashlib.blake2b(f"{source}\n{target}".encode(), digest_size=12).digest()
        if not twice and key in self.known:
            return False
        self.known.add(key)
        for file, line in zip(self.sides, (source, target), strict=True):
            file.write(line.encode() + b"\n")
        self.written += 1
        return True

    def add(self, job: Job) -> Part:
        """Add the pairs of a text and its translation, and count them."""
        kept = blank = 0
        for _, original, translation in pairs(job.text, job.file, keep_blank=True):
            if not original.strip() or not translation.strip():
                blank += 1
                continue
            pair = (original, translation) if job.reads == "source" else (translation, original)
            kept += self.write(*pair, twice=False)
        copies = job.lines - kept - blank
        return Part(job.name, job.reads, job.text.name, job.lines, kept, blank, copies)


def _codes(run: Run) -> tuple[str, str]:
    data = run.recipe().data
    return data.source or "source", data.target or "target"


def _corpus(run: Run, to: Path, given: SplitPaths, counts: dict[str, int], note: str) -> Corpus:
    recipe = run.recipe()
    paths = split_paths(to, *_codes(run))
    there = {split: paths[split] for split, files in zip(SPLITS, given, strict=True) if files is not None}
    return Corpus(recipe.name, *_codes(run), there, counts, recipe.subwords.kind, note)
