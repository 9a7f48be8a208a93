"""The corpora that have names: where each lives, and what is known of it."""

import re
from dataclasses import dataclass, field
from typing import Literal

from qknorm.data.corpus import SPLITS
from qknorm.data.ted import ARCHIVE
from qknorm.errors import UserError


@dataclass(frozen=True)
class NamedCorpus:
    """What is known of a corpus before it is there.

    `stems` are the splits' names at the address, `counts` the numbers of pairs a split may have, `gz_hashes`
    those of a known gzip'd edition, and `caveats` what to say of a training file with a certain hash.
    """

    name: str
    source: str
    target: str
    state: Literal["words", "raw"]
    about: str
    url: str
    stems: dict[str, str] | None
    suffix: str = ""
    counts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    gz_hashes: dict[str, str] = field(default_factory=dict)
    caveats: dict[str, str] = field(default_factory=dict)

    @property
    def remote_names(self) -> list[str]:
        """The files to fetch: six of text, or the one archive of all TED languages."""
        if self.stems is None:
            return [ARCHIVE]
        return [
            f"{self.stems[split]}.{code}{self.suffix}"
            for split in SPLITS
            for code in (self.source, self.target)
        ]


_TED_URL = "http://phontron.com/data/"
_TED_TERMS = "text of TED, CC BY-NC-ND"

_IWSLT = NamedCorpus(
    name="iwslt15-en-vi",
    source="en",
    target="vi",
    state="words",
    about=f"IWSLT'15 English–Vietnamese, the paper's; dev is tst2012, test is tst2013; {_TED_TERMS}",
    url="https://nlp.stanford.edu/projects/nmt/data/iwslt15.en-vi/",
    stems={"train": "train", "dev": "tst2012", "test": "tst2013"},
    # 151 of the original training pairs have an empty side; some editions leave them out.
    counts={"train": (133_317, 133_166), "dev": (1_553,), "test": (1_268,)},
    gz_hashes={
        "dev.en.gz": "84368bf21d5837050fb82f70e4f742ca813cb0b169d9af6515f8ff7e5a0edd73",
        "dev.vi.gz": "482e54ffc4a68a5664798dce35adbc86ad2dd4ded212b6f851362a4162eb5ab3",
        "test.en.gz": "987211663bf6ff16baa36c726bb3ecfaed19cff13244f4a4c12b508e3ea1f460",
        "test.vi.gz": "7a98ff567746d3504a3d12735096ed64e2e9b7af67f42b5fe78e9b02b1cd4523",
        "train.en.gz": "6f901239df1192e41dbaabe448f1346f9eb01b01e227557ebc18f1859fd0530b",
        "train.vi.gz": "46ee1379ebcb2927246458d323e59317063da2516c935f2a3e73a149b1932c47",
    },
)

_MULTI30K = NamedCorpus(
    name="multi30k-de-en",
    source="de",
    target="en",
    state="raw",
    about="Multi30k task 1 German–English, image captions; test is test_2016_flickr",
    url="https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/",
    stems={"train": "train", "dev": "val", "test": "test_2016_flickr"},
    suffix=".gz",
    counts={"train": (29_000,), "dev": (1_014,), "test": (1_000,)},
    gz_hashes={
        "dev.de.gz": "c7c5fd8dde71846406de776f1c342f0c1e95e1c375e3bea7d52a77faec72e965",
        "dev.en.gz": "0a9a01b4fd231cafeebea18983300016112dc919d3b26c5c74f6d6f388936aeb",
        "test.de.gz": "d9747e9ef1c1bf36bf4a0e43c0d0fba58cc55d6b2b8e388cc863cba02b043fea",
        "test.en.gz": "4f32cb8118b90cd5189d141e34791f70c245315e17065ecf9b2af6ab57e747cf",
        "train.de.gz": "d71259ddb13479e1c9cac315c123493b7e97d2c996465b76d885a80a9e8daccd",
        "train.en.gz": "e1d89f49b9f003db6bb35c24382eb56531fec4e3840cb704cf36f0c0e192b62d",
    },
)

_GALICIAN_COUNTS: dict[str, tuple[int, ...]] = {"train": (10_017,), "dev": (682,), "test": (1_007,)}
_GALICIAN_HASHES = {
    "dev.en.gz": "5c989ae54a13d4f8e56a7e643b007b8ad8760262c39c74d630eb2c6d94530d86",
    "dev.gl.gz": "348b81f2c269b5510a626a8ba63f745aa561a7e103ddce5ed4e223fb470a6d98",
    "test.en.gz": "d4db9818f9f596bec50e686ff8e3d724fbe4794d00173018e027ba02851aa7f3",
    "test.gl.gz": "3e43f548775254cf2a16bce608b874f75e67e26b20c1b448511c8166a8079faa",
    "train.en.gz": "3b4a785c8a5a617ce3a9ef2b83ac7e36a07043fd5f515271ec0f5533852cd672",
    "train.gl.gz": "3a7189ec57674ada462cdc558d8351563ee0c7090abe2a28bd9a504ec0336afb",
}
# The training file's Galician side as plain text, in the edition whose rows a filter chose.
_GALICIAN_FILTERED = "431d830386f396635f8e1b406c5ead1aa59358ea17b8882e2ddca52806058f7d"
_GALICIAN_CAVEAT = (
    "The rows of this edition were chosen by a filter and are not the official split's, though as many: "
    "scores on it are not comparable with published ones."
)

_TED_NAME = re.compile(r"ted-([a-z]{2,3}(?:-[a-z]{2})?)-en")
_PAPER_TED = ("ar", "gl", "he", "sk")


def _ted(code: str) -> NamedCorpus:
    """The TED pair of a language with English."""
    galician = code == "gl"
    return NamedCorpus(
        name=f"ted-{code}-en",
        source=code,
        target="en",
        state="words",
        about=f"TED Talks {code}–en, tokenised; {_TED_TERMS}",
        url=_TED_URL,
        stems=None,
        counts=_GALICIAN_COUNTS if galician else {},
        gz_hashes=_GALICIAN_HASHES if galician else {},
        caveats={_GALICIAN_FILTERED: _GALICIAN_CAVEAT} if galician else {},
    )


def list_corpora() -> list[NamedCorpus]:
    """The named corpora; of TED's some sixty languages those of the paper, the others go by `ted-xx-en`."""
    return [_IWSLT, *(_ted(code) for code in _PAPER_TED), _MULTI30K]


def find_corpus(name: str) -> NamedCorpus:
    """What is known of a named corpus."""
    for corpus in list_corpora():
        if corpus.name == name:
            return corpus
    ted = _TED_NAME.fullmatch(name)
    if ted is None or ted[1] == "en":
        known = ", ".join(corpus.name for corpus in list_corpora())
        raise UserError(
            f'There is no corpus named "{name}"; there are {known}, and ted-xx-en for any language xx of TED.'
        )
    return _ted(ted[1])
