"""Named corpora: fetched from a loopback server or taken from a folder, checked, laid out plain."""

import dataclasses
import gzip
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from qknorm.data import corpora, hashes, registry, ted
from qknorm.data.corpora import get_corpus, list_corpora
from qknorm.data.corpus import Corpus
from qknorm.data.text import sha256_file
from qknorm.errors import UserError
from support.loopback import Loopback, serving

MULTI30K = {"train": 29_000, "val": 1_014, "test_2016_flickr": 1_000}
IWSLT = {"train": 133_317, "tst2012": 1_553, "tst2013": 1_268}


def text(name: str, lines: int) -> bytes:
    return b"".join(b"%s %d\n" % (name.encode(), number) for number in range(lines))


@pytest.fixture
def server() -> Iterator[Loopback]:
    with serving() as running:
        yield running


@pytest.fixture
def multi30k(server: Loopback) -> Loopback:
    for stem, lines in MULTI30K.items():
        for code in ("de", "en"):
            server.files[f"{stem}.{code}.gz"] = gzip.compress(text(f"{stem} {code}", lines), 1, mtime=0)
    return server


def get(name: str, to: Path, server: Loopback) -> Corpus:
    return get_corpus(name, to, base_url=server.url, pause=0)


def table(*rows: str) -> bytes:
    return "".join("\t".join(row.split("|")) + "\n" for row in rows).encode()


TALKS = {
    "all_talks_train.tsv": table(
        "talk_name|en|gl|pt-br",
        'one|" A quoted start|" Un comezo|x',
        "one|no Galician|__NULL__|y",
        "one|__NULL__|sen inglés|y",
        "one|partly __NULL__ here|algo|y",
        "one|something|en parte __NULL__|y",
        "one|line\u2028separator|liña\u2028separadora|__NULL__",
        "one|too few columns|poucas",
        'two|half " quote|media " comiña|z',
    ),
    "all_talks_dev.tsv": table("talk_name|en|gl|pt-br", "one|dev|desenvolvemento|w").replace(b"\n", b"\r\n"),
    "all_talks_test.tsv": table("talk_name|gl|pt-br|en", "one|proba|p|test"),
}
GALICIAN = {
    "train.gl": '" Un comezo\nliña\u2028separadora\nmedia " comiña\n',
    "train.en": '" A quoted start\nline\u2028separator\nhalf " quote\n',
    "dev.gl": "desenvolvemento\n",
    "dev.en": "dev\n",
    "test.gl": "proba\n",
    "test.en": "test\n",
}


def archive(tables: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in {"README": b"hello", **tables}.items():
            member = tarfile.TarInfo(f"ted/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def assert_galician(folder: Path) -> None:
    assert {name: (folder / name).read_bytes().decode() for name in GALICIAN} == GALICIAN


class TestDownload:
    def test_gzipped_files_are_laid_out_plain(self, multi30k: Loopback, tmp_path: Path) -> None:
        corpus = get("multi30k-de-en", tmp_path, multi30k)
        assert corpus.counts == {"train": 29_000, "dev": 1_014, "test": 1_000}
        assert corpus.state == "raw"
        assert corpus.paths["dev"] == (tmp_path / "dev.de", tmp_path / "dev.en")
        assert corpus.paths["dev"][0].read_bytes() == text("val de", 1_014)
        assert corpus.paths["test"][1].read_bytes() == text("test_2016_flickr en", 1_000)
        assert sorted(hashes.recorded(tmp_path)) == [
            f"{split}.{code}" for split in ("dev", "test", "train") for code in ("de", "en")
        ]

    def test_plain_files_are_laid_out_under_our_names(self, server: Loopback, tmp_path: Path) -> None:
        for stem, lines in IWSLT.items():
            for code in ("en", "vi"):
                server.files[f"{stem}.{code}"] = text(f"{stem} {code}", lines)
        corpus = get("iwslt15-en-vi", tmp_path, server)
        assert (corpus.source, corpus.target, corpus.state) == ("en", "vi", "words")
        assert corpus.counts == {"train": 133_317, "dev": 1_553, "test": 1_268}
        assert (tmp_path / "test.vi").read_bytes() == text("tst2013 vi", 1_268)

    def test_what_is_there_is_not_fetched_again(self, multi30k: Loopback, tmp_path: Path) -> None:
        first = get("multi30k-de-en", tmp_path, multi30k)
        multi30k.requests.clear()
        again = get("multi30k-de-en", tmp_path, multi30k)
        assert multi30k.requests == []
        assert (again.paths, again.counts) == (first.paths, first.counts)

    def test_only_missing_files_are_fetched(self, multi30k: Loopback, tmp_path: Path) -> None:
        held_back = multi30k.files.pop("test_2016_flickr.en.gz")
        with pytest.raises(UserError, match="404"):
            get("multi30k-de-en", tmp_path, multi30k)
        multi30k.files["test_2016_flickr.en.gz"] = held_back
        multi30k.requests.clear()
        get("multi30k-de-en", tmp_path, multi30k)
        assert [name for name, _ in multi30k.requests] == ["test_2016_flickr.en.gz"]

    def test_what_cannot_be_fetched_is_said_with_the_way_out(self, server: Loopback, tmp_path: Path) -> None:
        with pytest.raises(UserError) as error:
            get("iwslt15-en-vi", tmp_path, server)
        message = str(error.value)
        assert f"{server.url}train.en could not be fetched: the server answers 404" in message
        assert "--from DIR" in message
        for name in ("train.en", "dev.vi", "tst2012.vi", "DIR/iwslt15-en-vi"):
            assert name in message
        assert not (tmp_path / "train.en").exists()

    def test_a_wrong_number_of_lines_is_set_aside(self, multi30k: Loopback, tmp_path: Path) -> None:
        right = multi30k.files["val.en.gz"]
        multi30k.files["val.en.gz"] = gzip.compress(text("val en", 1_013))
        bad = tmp_path / "download" / "val.en.gz.bad"
        with pytest.raises(UserError) as error:
            get("multi30k-de-en", tmp_path, multi30k)
        assert "has 1,013 lines where multi30k-de-en has 1,014" in str(error.value)
        assert str(bad) in str(error.value)
        assert bad.exists()
        assert "val.en.gz" not in hashes.recorded(tmp_path / "download")
        assert [path.name for path in tmp_path.iterdir()] == ["download"]
        multi30k.files["val.en.gz"] = right
        assert get("multi30k-de-en", tmp_path, multi30k).counts["dev"] == 1_014

    def test_a_damaged_file_is_set_aside(self, multi30k: Loopback, tmp_path: Path) -> None:
        multi30k.files["val.de.gz"] = multi30k.files["val.de.gz"][:-20]
        with pytest.raises(UserError, match=r"val\.de\.gz is damaged: .*val\.de\.gz\.bad"):
            get("multi30k-de-en", tmp_path, multi30k)
        multi30k.files["val.en.gz"] = b"<html>not what was asked for</html>"
        (tmp_path / "download" / "val.en.gz").unlink()
        (tmp_path / "download" / "SHA256SUMS").unlink()
        with pytest.raises(UserError, match="is damaged"):
            get("multi30k-de-en", tmp_path, multi30k)

    @pytest.mark.parametrize("where", ["dev.de", "download/val.de.gz"])
    def test_a_file_altered_later_is_refused(self, multi30k: Loopback, tmp_path: Path, where: str) -> None:
        get("multi30k-de-en", tmp_path, multi30k)
        if where.startswith("download"):
            (tmp_path / "train.en").unlink()
        with (tmp_path / where).open("ab") as file:
            file.write(b"x")
        with pytest.raises(UserError, match=r"changed since the hash in SHA256SUMS was recorded"):
            get("multi30k-de-en", tmp_path, multi30k)
        assert (tmp_path / f"{where}.bad").exists()
        assert get("multi30k-de-en", tmp_path, multi30k).counts["dev"] == 1_014


class TestTalks:
    def test_one_pair_is_unpacked_from_the_archive(self, server: Loopback, tmp_path: Path) -> None:
        server.files["ted_talks.tar.gz"] = archive(TALKS)
        corpus = get("ted-gl-en", tmp_path, server)
        assert_galician(tmp_path)
        assert corpus.counts == {"train": 3, "dev": 1, "test": 1}
        assert corpus.state == "words"
        assert "1 rows without the header's number of columns" in corpus.note
        assert "train has 3 pairs; the paper's has 10,017" in corpus.note

    def test_other_languages_by_their_code(self, server: Loopback, tmp_path: Path) -> None:
        server.files["ted_talks.tar.gz"] = archive(TALKS)
        get("ted-pt-br-en", tmp_path, server)
        assert (tmp_path / "train.pt-br").read_bytes() == b"x\ny\ny\nz\n"

    def test_a_language_without_a_column_is_named(self, server: Loopback, tmp_path: Path) -> None:
        server.files["ted_talks.tar.gz"] = archive(TALKS)
        with pytest.raises(UserError, match=r'no column for the language "sk"; it has en gl pt-br'):
            get("ted-sk-en", tmp_path, server)
        assert (tmp_path / "download" / "ted_talks.tar.gz").exists()

    @pytest.mark.parametrize("fault", ["cut", "foreign", "lacking"])
    def test_a_bad_archive_is_set_aside(self, server: Loopback, tmp_path: Path, fault: str) -> None:
        lacking = {name: content for name, content in TALKS.items() if "dev" not in name}
        noise = {**TALKS, "all_talks_dev.tsv": TALKS["all_talks_dev.tsv"] + os.urandom(60_000)}
        server.files["ted_talks.tar.gz"] = {
            "cut": archive(noise)[:-30_000],
            "foreign": b"<html></html>" * 100,
            "lacking": archive(lacking),
        }[fault]
        with pytest.raises(UserError, match=r"is damaged.*ted_talks\.tar\.gz\.bad"):
            get("ted-gl-en", tmp_path, server)
        assert not (tmp_path / "train.gl").exists()
        server.files["ted_talks.tar.gz"] = archive(TALKS)
        get("ted-gl-en", tmp_path, server)
        assert_galician(tmp_path)

    @pytest.mark.parametrize("form", ["archive", "tables", "zipped"])
    def test_from_a_folder(self, tmp_path: Path, form: str) -> None:
        folder = tmp_path / "here"
        folder.mkdir()
        if form == "archive":
            (folder / "ted_talks.tar.gz").write_bytes(archive(TALKS))
        for name, content in TALKS.items():
            if form == "tables":
                (folder / name).write_bytes(content)
            if form == "zipped":
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        get_corpus("ted-gl-en", tmp_path / "to", folder)
        assert_galician(tmp_path / "to")

    def test_rows_are_cut_at_tabs_and_line_feeds_only(self) -> None:
        rows = [b"talk\ten\tsk\n", b'a\t"x\t\x0by\r\n', b"a\t\t\n"]
        assert list(ted.pairs(rows, "sk", "en", "t")) == [(b"\x0by", b'"x'), (b"", b"")]


class TestFromFolder:
    @staticmethod
    def fill(folder: Path, original_names: bool, zipped: bool) -> None:
        folder.mkdir(parents=True)
        ours = {"train": "train", "val": "dev", "test_2016_flickr": "test"}
        for stem, lines in MULTI30K.items():
            for code in ("de", "en"):
                content = text(f"{stem} {code}", lines)
                name = f"{stem if original_names else ours[stem]}.{code}"
                path = folder / (name + ".gz" if zipped else name)
                path.write_bytes(gzip.compress(content, 1) if zipped else content)

    @pytest.mark.parametrize("zipped", [False, True])
    @pytest.mark.parametrize("original_names", [False, True])
    @pytest.mark.parametrize("subfolder", [False, True])
    def test_every_layout(self, tmp_path: Path, zipped: bool, original_names: bool, subfolder: bool) -> None:
        here = tmp_path / "here"
        self.fill(here / "multi30k-de-en" if subfolder else here, original_names, zipped)
        corpus = get_corpus("multi30k-de-en", tmp_path / "to", here)
        assert corpus.counts == {"train": 29_000, "dev": 1_014, "test": 1_000}
        assert (tmp_path / "to" / "dev.en").read_bytes() == text("val en", 1_014)
        assert "not known here" in corpus.note

    def test_the_folder_itself_may_be_the_goal(self, tmp_path: Path) -> None:
        self.fill(tmp_path / "here", original_names=False, zipped=True)
        get_corpus("multi30k-de-en", tmp_path / "here", tmp_path / "here")
        assert (tmp_path / "here" / "dev.en").read_bytes() == text("val en", 1_014)

    def test_missing_files_are_said(self, tmp_path: Path) -> None:
        self.fill(tmp_path / "here", original_names=False, zipped=True)
        (tmp_path / "here" / "dev.en.gz").unlink()
        with pytest.raises(UserError, match=r"does not hold multi30k-de-en.*dev\.en.*val\.en"):
            get_corpus("multi30k-de-en", tmp_path / "to", tmp_path / "here")

    def test_wrong_counts_leave_everything_as_it_was(self, tmp_path: Path) -> None:
        self.fill(tmp_path / "here", original_names=False, zipped=False)
        (tmp_path / "here" / "train.en").write_bytes(text("x", 28_999))
        before = sorted(path.name for path in (tmp_path / "here").iterdir())
        with pytest.raises(UserError, match=r"train\.en has 28,999 lines where multi30k-de-en has 29,000"):
            get_corpus("multi30k-de-en", tmp_path / "to", tmp_path / "here")
        assert sorted(path.name for path in (tmp_path / "here").iterdir()) == before
        assert list((tmp_path / "to").iterdir()) == []

    def test_sides_of_different_length_are_refused(self, tmp_path: Path) -> None:
        for name, content in GALICIAN.items():
            (tmp_path / name.replace(".gl", ".sk")).write_bytes(content.encode())
        (tmp_path / "train.en").write_bytes(b"one\n")
        with pytest.raises(UserError, match=r"train\.en has 1 lines where the other side has 3"):
            get_corpus("ted-sk-en", tmp_path / "to", tmp_path)

    def test_editions_of_different_length_are_not_mixed(self, tmp_path: Path) -> None:
        for stem, lines in IWSLT.items():
            for code in ("en", "vi"):
                (tmp_path / f"{stem}.{code}").write_bytes(text(stem, lines))
        (tmp_path / "train.vi").write_bytes(text("x", 133_166))
        with pytest.raises(UserError, match=r"train\.vi has 133,166 lines where the other side has 133,317"):
            get_corpus("iwslt15-en-vi", tmp_path / "to", tmp_path)

    def test_a_last_line_without_its_line_feed_counts(self, tmp_path: Path) -> None:
        self.fill(tmp_path / "here", original_names=False, zipped=False)
        (tmp_path / "here" / "train.en").write_bytes(text("x", 29_000)[:-1])
        assert get_corpus("multi30k-de-en", tmp_path / "to", tmp_path / "here").counts["train"] == 29_000

    def test_a_folder_s_own_hashes_are_heeded(self, tmp_path: Path) -> None:
        self.fill(tmp_path / "here", original_names=False, zipped=False)
        first = get_corpus("multi30k-de-en", tmp_path / "to", tmp_path / "here")
        first.paths["dev"][0].write_bytes(text("altered", 1_014))
        with pytest.raises(UserError, match=r"The hash of .*dev\.de is not the recorded one"):
            get_corpus("multi30k-de-en", tmp_path / "more", tmp_path / "to")
        assert not list(tmp_path.glob("to/*.bad"))

    def test_the_known_edition_is_recognised_and_a_mixture_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here = tmp_path / "here"
        self.fill(here, original_names=False, zipped=True)
        known = {path.name: sha256_file(path) for path in here.iterdir()}
        entry = dataclasses.replace(registry.find_corpus("multi30k-de-en"), gz_hashes=known)
        monkeypatch.setattr(corpora, "find_corpus", lambda _: entry)
        assert "every file has its known hash" in get_corpus("multi30k-de-en", tmp_path / "to", here).note
        (here / "dev.en.gz").write_bytes(gzip.compress(text("other", 1_014)))
        with pytest.raises(UserError, match=r"The hash of .*here/dev\.en\.gz is not the recorded one"):
            get_corpus("multi30k-de-en", tmp_path / "to", here)

    def test_the_caveat_stays_with_the_text(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        here = tmp_path / "here"
        here.mkdir()
        for name, content in GALICIAN.items():
            (here / name).write_bytes(content.encode())
        counts: dict[str, tuple[int, ...]] = {"train": (3,), "dev": (1,), "test": (1,)}
        caveats = {sha256_file(here / "train.gl"): "Not comparable."}
        entry = dataclasses.replace(registry.find_corpus("ted-gl-en"), counts=counts, caveats=caveats)
        monkeypatch.setattr(corpora, "find_corpus", lambda _: entry)
        assert "Not comparable." in get_corpus("ted-gl-en", tmp_path / "to", here).note
        assert "Not comparable." in get_corpus("ted-gl-en", tmp_path / "to").note
        (here / "train.gl").write_bytes(b"a\nb\nc\n")
        assert "Not comparable." not in get_corpus("ted-gl-en", tmp_path / "to", here).note


def test_the_list_names_each_corpus_once() -> None:
    names = [corpus.name for corpus in list_corpora()]
    assert {"iwslt15-en-vi", "multi30k-de-en", "ted-gl-en", "ted-sk-en", "ted-ar-en", "ted-he-en"} <= set(
        names
    )
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["wmt14-en-de", "ted-en-en", "ted-../x-en", "ted--en", ""])
def test_unknown_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there are iwslt15-en-vi, .*ted-xx-en"):
        get_corpus(name, tmp_path)


@pytest.mark.data
@pytest.mark.parametrize("name", ["iwslt15-en-vi", "ted-gl-en", "multi30k-de-en"])
def test_real_folders(name: str, tmp_path: Path) -> None:
    if "QKNORM_DATA" not in os.environ:
        pytest.skip("QKNORM_DATA names no folder of corpora")
    corpus = get_corpus(name, tmp_path, Path(os.environ["QKNORM_DATA"]))
    assert "every file has its known hash" in corpus.note
    assert ("not comparable with published ones" in corpus.note) == (name == "ted-gl-en")
    assert corpus.counts["train"] in registry.find_corpus(name).counts["train"]
