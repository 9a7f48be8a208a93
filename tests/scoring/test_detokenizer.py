"""NLTK's detokeniser on whitespace-split words, without any of NLTK's data."""

import os
import subprocess
import sys

import pytest

from qknorm.scoring import detokenize


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("hello , i ca n't feel my feet !", "hello, i can't feel my feet!"),
        ("( see  above ) .", "(see above)."),
        ("I don &apos;t know", "I don &apos;t know"),
        ("", ""),
        ("  \t ", ""),
        ("một hai\u2028ba .", "một hai ba."),
    ],
)
def test_words_are_joined(words, text):
    assert detokenize(words) == text


def test_no_nltk_data_is_needed(tmp_path):
    environment = {**os.environ, "NLTK_DATA": str(tmp_path), "HOME": str(tmp_path)}
    code = "from qknorm.scoring import detokenize; print(detokenize('a , b'))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("a, b\n", "")
    assert not any(tmp_path.iterdir())
