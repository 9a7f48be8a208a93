"""Get a named corpus: downloaded or from files already there, checked, and laid out as plain text."""

import gzip
import tarfile
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from qknorm.data import hashes, ted
from qknorm.data.corpus import SPLITS, Corpus, split_paths
from qknorm.data.download import DownloadError, Progress, download
from qknorm.data.registry import NamedCorpus, find_corpus, list_corpora
from qknorm.data.text import replacing, sha256_file
from qknorm.errors import UserError

__all__ = ["NamedCorpus", "get_corpus", "list_corpora"]

_DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError)

Files = dict[str, tuple[BinaryIO, BinaryIO]]


def get_corpus(
    name: str,
    to: Path,
    from_dir: Path | None = None,
    *,
    base_url: str | None = None,
    progress: Progress | None = None,
    pause: float = 1.0,
) -> Corpus:
    """Lay a named corpus out in `to` as `train`, `dev` and `test`, a plain UTF-8 file for each language.

    Downloads into `to/download`, from `base_url` if another place than the usual one is to be asked, or takes
    the files from `from_dir`: from it, or from its subfolder of the corpus's name. What is laid out already
    and still has the hashes recorded in `to/SHA256SUMS` is not fetched again. `pause` is the first wait, in
    seconds, before a broken download goes on.
    """
    named = find_corpus(name)
    if from_dir is not None:
        return _take(named, Path(from_dir), to)
    ready = [path for pair in split_paths(to, named.source, named.target).values() for path in pair]
    if all(path.is_file() and path.name in hashes.recorded(to) for path in ready):
        _refuse_altered(ready)
        counts = {split: _lines(to / f"{split}.{named.source}") for split in SPLITS}
        return _corpus(named, to, counts, f"Already in {to}, with the hashes recorded there.")
    return _fetch(named, to, base_url or named.url, progress, pause)


def expected_names(named: NamedCorpus) -> str:
    """Which files `--from` looks for, in words."""
    texts = ", ".join(
        path.name for pair in split_paths(Path(), named.source, named.target).values() for path in pair
    )
    if named.stems is None:
        others = f"{ted.ARCHIVE}, or {', '.join(ted.TABLES)}"
    else:
        others = ", ".join(remote.removesuffix(".gz") for remote in named.remote_names)
    return f"{texts}, or {others} (each plain or .gz), in DIR or DIR/{named.name}"


def _fetch(named: NamedCorpus, to: Path, base: str, progress: Progress | None, pause: float) -> Corpus:
    """Download what is missing, then lay it out."""
    folder = to / "download"
    paths = [folder / remote for remote in named.remote_names]
    here = [path for path in paths if path.is_file()]
    if here:
        _refuse_altered(here)
    for path in paths:
        if path not in here:
            url = base.rstrip("/") + "/" + path.name
            try:
                download(url, path, progress, pause=pause)
            except DownloadError as error:
                raise UserError(
                    f"{url} could not be fetched: {error}. Where the files are already on this machine, "
                    f"--from DIR uses them; it looks for {expected_names(named)}."
                ) from None
        if path not in here or path.name not in hashes.recorded(folder):
            hashes.record([path])
    if named.stems is None:
        return _lay_out_talks(named, to, paths, folder, own=True)
    counts = _lay_out_texts(named, to, _by_split(paths), own=True)
    return _corpus(named, to, counts, f"Downloaded from {base}.")


def _take(named: NamedCorpus, from_dir: Path, to: Path) -> Corpus:
    """Lay out files that are already on this machine; they are never changed."""
    places = [folder for folder in (from_dir / named.name, from_dir) if folder.is_dir()]
    for folder in places:
        found = _find_texts(named, folder)
        if None not in found:
            paths = [path for path in found if path is not None]
            note = f"Taken from {folder}; {_check_edition(named, paths)}."
            counts = _lay_out_texts(named, to, _by_split(paths), own=False)
            return _corpus(named, to, counts, note)
        tables = ted.find_tables(folder) if named.stems is None else None
        if tables is not None:
            return _lay_out_talks(named, to, tables, folder, own=False)
    raise UserError(f"{from_dir} does not hold {named.name}; --from DIR looks for {expected_names(named)}.")


def _find_texts(named: NamedCorpus, folder: Path) -> list[Path | None]:
    """The six text files of a folder, by our names or by the original ones."""
    found: list[Path | None] = []
    for split in SPLITS:
        stems = [split] if named.stems is None else [split, named.stems[split]]
        for code in (named.source, named.target):
            names = [f"{stem}.{code}{suffix}" for stem in stems for suffix in ("", ".gz")]
            found.append(next((folder / name for name in names if (folder / name).is_file()), None))
    return found


def _check_edition(named: NamedCorpus, paths: list[Path]) -> str:
    """Compare with the known gzip'd edition: wholly it, or wholly another, but not a mixture."""
    changed = hashes.altered(paths)
    known = [path for path in paths if path.name in named.gz_hashes]
    strange = [path for path in known if sha256_file(path) != named.gz_hashes[path.name]]
    if not changed and len(known) == len(paths) and not strange:
        return "every file has its known hash"
    if strange and len(strange) < len(known):
        changed = strange
    if changed:
        files = ", ".join(str(path) for path in changed)
        raise UserError(f"The hash of {files} is not the recorded one: damaged or altered; get a fresh copy.")
    return "an edition whose hashes are not known here"


def _lay_out_texts(
    named: NamedCorpus, to: Path, sources: dict[str, tuple[Path, Path]], own: bool
) -> dict[str, int]:
    """Copy six text files out plain; with a wrong number of lines in any, none is put in place."""

    def fill(files: Files) -> dict[str, int]:
        wrong: list[Path] = []
        complaints: list[str] = []
        counts: dict[str, int] = {}
        for split in SPLITS:
            lines = [_copy(path, file, own) for path, file in zip(sources[split], files[split], strict=True)]
            allowed = named.counts.get(split)
            for path, count in zip(sources[split], lines, strict=True):
                if allowed is not None and count not in allowed:
                    due = f"{named.name} has " + " or ".join(f"{number:,}" for number in allowed)
                elif count != lines[0] or not count:
                    due = f"the other side has {lines[0]:,}" if count != lines[0] else "some are needed"
                else:
                    continue
                wrong.append(path)
                complaints.append(f"{path} has {count:,} lines where {due}")
            counts[split] = lines[0]
        if wrong:
            raise UserError(". ".join(complaints) + "." + (_aside(wrong) if own else ""))
        return counts

    return _write(named, to, fill)


def _lay_out_talks(named: NamedCorpus, to: Path, tables: list[Path], folder: Path, own: bool) -> Corpus:
    """Unpack one pair of languages from the TED tables."""
    misshapen = 0

    def fill(files: Files) -> dict[str, int]:
        nonlocal misshapen
        try:
            counts, misshapen = ted.unpack(tables, named.source, named.target, files)
        except _DAMAGE as error:
            raise UserError(f"{tables[0]} is damaged: {error}." + (_aside(tables) if own else "")) from None
        if not all(counts.values()):
            raise UserError(f"The TED tables in {folder} hold no pairs of {named.source} and {named.target}.")
        return counts

    counts = _write(named, to, fill)
    notes = [f"Unpacked from the TED tables in {folder}."]
    if misshapen:
        notes.append(f"{misshapen:,} rows without the header's number of columns were dropped.")
    for split, allowed in named.counts.items():
        if counts[split] not in allowed:
            notes.append(f"{split} has {counts[split]:,} pairs; the paper's has {allowed[0]:,}.")
    return _corpus(named, to, counts, " ".join(notes))


def _write(named: NamedCorpus, to: Path, fill: Callable[[Files], dict[str, int]]) -> dict[str, int]:
    """Let `fill` write the six files; they appear in `to` together, with their hashes, or not at all."""
    paths = split_paths(to, named.source, named.target)
    to.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        files = {
            split: (stack.enter_context(replacing(first)), stack.enter_context(replacing(second)))
            for split, (first, second) in paths.items()
        }
        counts = fill(files)
    hashes.record([path for pair in paths.values() for path in pair])
    return counts


def _copy(path: Path, file: BinaryIO, own: bool) -> int:
    """Copy a file out plain and count its lines, a last one without its line feed included."""
    count = 0
    last = b"\n"
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as source:
            while chunk := source.read(1 << 20):
                file.write(chunk)
                count += chunk.count(b"\n")
                last = chunk[-1:]
    except _DAMAGE as error:
        raise UserError(f"{path} is damaged: {error}." + (_aside([path]) if own else "")) from None
    return count if last == b"\n" else count + 1


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def _by_split(paths: list[Path]) -> dict[str, tuple[Path, Path]]:
    return {split: (paths[2 * i], paths[2 * i + 1]) for i, split in enumerate(SPLITS)}


def _refuse_altered(paths: list[Path]) -> None:
    """Stop at files of ours that have changed since their hashes were recorded."""
    changed = hashes.altered(paths)
    if changed:
        files = ", ".join(str(path) for path in changed)
        raise UserError(f"{files} changed since the hash in {hashes.SUMS} was recorded." + _aside(changed))


def _aside(paths: list[Path]) -> str:
    """Set files aside as `.bad`, and the sentence that says so."""
    kept = ", ".join(str(path) for path in hashes.set_aside(paths))
    return f" Kept as {kept}; run the same command again for a fresh copy."


def _corpus(named: NamedCorpus, to: Path, counts: dict[str, int], note: str) -> Corpus:
    paths = split_paths(to, named.source, named.target)
    to.mkdir(parents=True, exist_ok=True)
    caveat = named.caveats.get(hashes.recorded(to)[paths["train"][0].name])
    notes = [note, f"{named.about}.", *([caveat] if caveat else [])]
    return Corpus(named.name, named.source, named.target, paths, counts, named.state, " ".join(notes))
