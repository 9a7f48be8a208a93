"""What is read, and what is refused with a sentence."""

import gzip

import pytest

from qknorm.errors import UserError
from qknorm.scoring import bleu, compare, score
from qknorm.scoring.lines import read_lines


@pytest.fixture
def write(tmp_path):
    def to_file(name: str, data: bytes) -> str:
        path = tmp_path / name
        path.write_bytes(data)
        return str(path)

    return to_file


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"a b\nc\n", ["a b", "c"]),
        (b"a b\nc", ["a b", "c"]),
        (b"a\n\n\n", ["a", "", ""]),
        (b"a\r\nb\r\n", ["a", "b"]),
        ("a\u2028b\x85c\x0cd\re\n".encode(), ["a\u2028b\x85c\x0cd\re"]),
        (b"\xef\xbb\xbfa\n", ["a"]),
        (b"\n", [""]),
    ],
)
def test_only_newlines_separate_lines(write, data, lines):
    assert read_lines(write("plain", data), "hypotheses").sentences == lines
    assert read_lines(write("packed", gzip.compress(data)), "hypotheses").sentences == lines


def test_paths_and_lists_score_alike(write, tmp_path):
    hypotheses, references = ["a b c d e", "f\u2028g"], ["a b c d x", "f g"]
    write("hyp", "\n".join(hypotheses).encode())
    write("ref", "\n".join(references).encode())
    from_files = score(tmp_path / "hyp", str(tmp_path / "ref"))
    assert from_files == score(hypotheses, references)
    assert from_files.sentences == 2


def test_different_numbers_of_lines_name_both(write):
    hypotheses, references = write("hyp.txt", b"a\nb\nc\n"), write("ref.txt", b"a\n")
    with pytest.raises(UserError, match=r"^There are 3 lines in .*hyp\.txt but 1 in .*ref\.txt;"):
        score(hypotheses, references)
    with pytest.raises(UserError, match=r"^There is 1 line in the hypotheses but 2 in the references;"):
        bleu(["a"], ["a", "b"])
    with pytest.raises(
        UserError, match=r"^There is 1 line in the baseline's output but 2 in the references;"
    ):
        compare(["a"], ["a", "b"], ["a", "b"])
    with pytest.raises(
        UserError, match=r"^There are 3 lines in the system's output but 2 in the references;"
    ):
        compare(["a", "b"], ["a", "b", "c"], ["a", "b"])


def test_empty_inputs_are_refused(write):
    full, empty = write("full", b"a\n"), write("empty", b"")
    with pytest.raises(UserError, match=r"^There are no lines in .*empty;"):
        score(full, empty)
    with pytest.raises(UserError, match=r"^There are no lines in .*empty;"):
        score(empty, full)
    with pytest.raises(UserError, match=r"^There are no lines in the hypotheses;"):
        bleu([], ["a"])
    with pytest.raises(UserError, match=r"^Every line of the references is blank;"):
        score(["a", "b"], ["", " \t"])


def test_invalid_utf8_is_found_by_file_line_and_byte(write):
    bad, good = write("bad.txt", b"fine\nna\xefve\n"), write("good.txt", b"fine\nnaive\n")
    with pytest.raises(UserError, match=r"bad\.txt, line 2: byte 3 \(0xef\) is not UTF-8"):
        score(bad, good)


def test_missing_unreadable_and_damaged_files(write, tmp_path):
    good = write("good.txt", b"fine\n")
    with pytest.raises(UserError, match=r"nowhere: there is no such file"):
        score(tmp_path / "nowhere", good)
    with pytest.raises(UserError, match="cannot be read"):
        score(tmp_path, good)
    whole = gzip.compress(b"a few words to pack\n" * 50)
    for damaged in (whole[:-9], whole[:15] + b"\xff\xff\xff" + whole[18:]):
        with pytest.raises(UserError, match=r"damaged\.gz: the gzip file is damaged"):
            score(write("damaged.gz", damaged), good)
