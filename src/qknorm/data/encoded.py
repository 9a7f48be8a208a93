"""Encoded corpora: memory-mapped, and cached under a hash of the files, the subwords and the settings."""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from io import BufferedWriter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qknorm.data import text
from qknorm.data.encoder import Encoder
from qknorm.data.pretokens import split_words
from qknorm.data.sentences import SIDES, EncodedPairs, Sentences, Side
from qknorm.data.subwords import Subwords
from qknorm.errors import UserError
from qknorm.ids import UNK

_FORMAT = 2
_CHUNK = 2_000  # pairs encoded at a time
_SETTLED_NS = 2 * 10**9  # a file changed this recently might change again within one tick of its clock
_ABANDONED_S = 24 * 3600


@dataclass(frozen=True)
class CorpusFacts:
    """What was counted while a corpus was encoded (the paper's Table 1)."""

    examples: int
    blank: int
    """Pairs left out because a side is blank."""
    source_words: int
    """Words between white space."""
    target_words: int
    source_subwords: int
    target_subwords: int
    source_unknown: int
    target_unknown: int
    source_sha256: str
    target_sha256: str


@dataclass(frozen=True)
class EncodedCorpus(EncodedPairs):
    """The pairs of two text files as ids on disk."""

    facts: CorpusFacts

    @classmethod
    def open(
        cls,
        source: str | Path,
        target: str | Path,
        subwords: Subwords,
        cache: str | Path,
        keep_blank: bool = False,
    ) -> "EncodedCorpus":
        """Map what an earlier call left in the cache folder, or encode the files there first.

        Pairs with a blank side are left out (train) or kept (dev and test, where line n must stay line n).
        The cache may be shared: writers take turns by renaming whole folders, and a killed one leaves
        nothing that is read.
        """
        cache = Path(cache)
        cache.mkdir(parents=True, exist_ok=True)
        hashes = {"source": _stamped_sha256(source, cache), "target": _stamped_sha256(target, cache)}
        settings = {"format": _FORMAT, "subwords": subwords.fingerprint, "keep_blank": keep_blank, **hashes}
        key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:32]
        folder = cache / key
        if (found := _read(folder)) is not None:
            return found
        _remove_abandoned(cache)
        with _temporary_folder(cache, key) as temporary:
            before = _identity(source), _identity(target)
            _write(temporary, source, target, subwords, keep_blank, hashes)
            if before != (_identity(source), _identity(target)):
                raise UserError(f"{source} or {target} changed while it was being read; start again.")
            _publish(temporary, folder)
        found = _read(folder)
        if found is None:
            raise UserError(f"The encoded corpus {folder} cannot be read back; check the disk it is on.")
        return found


def _write(
    folder: Path, source: str | Path, target: str | Path, subwords: Subwords, keep_blank: bool, hashes: Any
) -> None:
    """Encode the files chunk by chunk into a folder."""
    words = dict.fromkeys(SIDES, 0)
    unknown = dict.fromkeys(SIDES, 0)
    encoders = {side: Encoder(subwords, side) for side in SIDES}
    last = 0
    with contextlib.ExitStack() as stack:
        ids = {
            side: stack.enter_context(_GrowingArray(folder / f"{side}.ids.npy", subwords.dtype))
            for side in SIDES
        }
        offsets = {
            side: stack.enter_context(_GrowingArray(folder / f"{side}.offsets.npy", np.dtype(np.int64)))
            for side in SIDES
        }
        for side in SIDES:
            offsets[side].append(np.zeros(1, np.int64))
        pairs = text.pairs(source, target, keep_blank=True)
        while chunk := list(islice(pairs, _CHUNK)):
            last = chunk[-1][0]
            if not keep_blank:
                chunk = [pair for pair in chunk if pair[1].strip() and pair[2].strip()]
            _, *columns = zip(*chunk, strict=True) if chunk else ((), (), ())
            for side, lines in zip(SIDES, columns, strict=True):
                encoded, pretokens = encoders[side].encode(lines)
                spaced = subwords.kind == "words"  # then the pre-tokens are the words between white space
                words[side] += pretokens if spaced else sum(len(split_words(line)) for line in lines)
                unknown[side] += int(np.count_nonzero(encoded.ids == UNK))
                offsets[side].append(encoded.offsets[1:] + ids[side].size)
                ids[side].append(encoded.ids)
        examples = offsets["source"].size - 1
        facts = CorpusFacts(
            examples=examples,
            blank=last - examples,
            source_words=words["source"],
            target_words=words["target"],
            source_subwords=ids["source"].size,
            target_subwords=ids["target"].size,
            source_unknown=unknown["source"],
            target_unknown=unknown["target"],
            source_sha256=hashes["source"],
            target_sha256=hashes["target"],
        )
    if not examples:
        raise UserError(f"{source} and {target} have no pair with text on both sides.")
    about = {"facts": asdict(facts), "crc32": _checksums(folder, facts)}
    text.write_atomic(folder / "facts.json", json.dumps(about, indent=1) + "\n")


def _read(folder: Path) -> EncodedCorpus | None:
    """The corpus in a folder, or None where there is none or a file of it is missing, cut short or altered.

    Every byte is read for the checksums: a second or so a gigabyte, far less than encoding it.
    """
    try:
        about = json.loads((folder / "facts.json").read_bytes())
        facts = CorpusFacts(**about["facts"])
        if about["crc32"] != _checksums(folder, facts):
            return None
        sizes = {"source": facts.source_subwords, "target": facts.target_subwords}
        source, target = (_read_side(folder, side, facts.examples, sizes[side]) for side in SIDES)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return EncodedCorpus(source, target, facts)


def _read_side(folder: Path, side: Side, examples: int, subwords: int) -> Sentences:
    offsets = _map(folder / f"{side}.offsets.npy")
    ids = _map(folder / f"{side}.ids.npy")
    if len(offsets) != examples + 1 or len(ids) != subwords or int(offsets[-1]) != subwords:
        raise ValueError(f"{folder} does not hold what its facts say")
    return Sentences(ids, offsets)


def _checksums(folder: Path, facts: CorpusFacts) -> dict[str, int]:
    """The CRC-32 of the facts and of every array's file."""
    found = {"facts": zlib.crc32(json.dumps(asdict(facts)).encode())}
    for name in (f"{side}.{part}.npy" for side in SIDES for part in ("ids", "offsets")):
        found[name] = 0
        with open(folder / name, "rb") as file:
            while piece := file.read(1 << 20):
                found[name] = zlib.crc32(piece, found[name])
    return found


def _map(path: Path) -> NDArray[Any]:
    array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return np.asarray(array)  # a plain view: slices of np.memmap cost ten times as much


def _publish(temporary: Path, folder: Path) -> None:
    """Give a finished folder its name. Where another writer was first and its folder is whole, keep that."""
    while True:
        try:
            os.rename(temporary, folder)
        except OSError:
            if _read(folder) is not None:
                return
            if not folder.exists():
                raise
            _discard(folder)
        else:
            text.sync_folder(folder.parent)
            return


@contextlib.contextmanager
def _temporary_folder(cache: Path, key: str) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir=cache, prefix=f".{key}.", suffix=".tmp"))
    folder.chmod(cache.stat().st_mode & 0o777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _discard(folder: Path) -> None:
    """Take a damaged folder away in one step, so that nobody sees half of it."""
    grave = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".damaged.", suffix=".tmp"))
    with contextlib.suppress(FileNotFoundError):
        os.rename(folder, grave / "folder")
    shutil.rmtree(grave, ignore_errors=True)


def _remove_abandoned(cache: Path) -> None:
    """Folders of writers killed long ago."""
    for folder in cache.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            if folder.is_dir() and time.time() - folder.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(folder, ignore_errors=True)


def _identity(path: str | Path) -> list[int]:
    """What changes whenever a file does: the kernel sets the change time, no program can."""
    try:
        stat = os.stat(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev]


def _stamped_sha256(path: str | Path, cache: Path) -> str:
    """A file's SHA-256, from the stamp of an earlier reading if the file has not been touched since."""
    name = hashlib.sha256(os.path.abspath(path).encode(errors="surrogateescape")).hexdigest()[:32]
    stamp = cache / f"{name}.stamp.json"
    identity = _identity(path)
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        known = json.loads(stamp.read_bytes())
        if known["identity"] == identity:
            return str(known["sha256"])
    now = time.time_ns()
    digest = text.sha256_file(path)
    settled = now - max(identity[1], identity[2]) > _SETTLED_NS
    if settled and identity == _identity(path):
        text.write_atomic(stamp, json.dumps({"identity": identity, "sha256": digest}) + "\n")
    return digest


class _GrowingArray:
    """A one-dimensional `.npy` file written piece by piece; its header is set right at the end."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self.size = 0
        self._path = path
        self._dtype = dtype
        self._file: BufferedWriter

    def __enter__(self) -> "_GrowingArray":
        self._file = open(self._path, "wb")
        self._write_header()
        self._start = self._file.tell()
        return self

    def append(self, values: NDArray[Any]) -> None:
        self._file.write(values.astype(self._dtype, copy=False).tobytes())
        self.size += len(values)

    def __exit__(self, *_: object) -> None:
        with self._file:
            self._file.seek(0)
            self._write_header()
            if self._file.tell() != self._start:
                raise RuntimeError("the header of a .npy file changed its size")
            self._file.flush()
            os.fsync(self._file.fileno())

    def _write_header(self) -> None:
        """numpy leaves room in the header for the length to grow."""
        fields = {"descr": self._dtype.str, "fortran_order": False, "shape": (self.size,)}
        np.lib.format.write_array_header_1_0(self._file, fields)
