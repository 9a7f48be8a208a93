"""The paper's way from tokenised words back to text: NLTK's Treebank detokeniser, nothing more."""

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nltk.tokenize.treebank import TreebankWordDetokenizer


def detokenize(line: str) -> str:
    """Join the whitespace-split words of `line`; escapes such as `&apos;` stay as they are."""
    return str(_detokenizer().detokenize(line.split()))


@cache
def _detokenizer() -> "TreebankWordDetokenizer":
    """Imported at first use: NLTK takes half a second, and most commands never detokenise."""
    from nltk.tokenize.treebank import TreebankWordDetokenizer

    return TreebankWordDetokenizer()
