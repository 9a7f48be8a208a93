"""What requests and answers are made of; the OpenAPI pages are written from this."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class TranslateRequest(BaseModel):
    """Sentences to translate, and how."""

    model_config = ConfigDict(strict=True, extra="forbid")

    text: Annotated[str | list[str], Field(description="A sentence, or a list of sentences.")]
    model: Annotated[
        str | None, Field(description="A name from /models; the first of them where it is not given.")
    ] = None
    beam: Annotated[
        int | None, Field(ge=1, description="Hypotheses kept at every step; the run's own if not given.")
    ] = None
    nbest: Annotated[
        int, Field(ge=1, description="Translations to return of each sentence; at most beam.")
    ] = 1
    attention: Annotated[
        bool, Field(description="Whether to tell where each word of a translation looks in its source.")
    ] = False


class Attention(BaseModel):
    """Cross-attention between words; each side ends with the end of the sentence, `</s>`."""

    source: Annotated[list[str], Field(description="The S words of the source.")]
    target: Annotated[list[str], Field(description="The T words of the translation.")]
    weights: Annotated[
        list[list[list[list[float]]]],
        Field(
            description="[layer][head][target word][source word]: the weights on a word's subwords summed, "
            "those of its own subwords averaged; each row sums to 1, but for rounding."
        ),
    ]


class Candidate(BaseModel):
    """One translation of a sentence."""

    text: Annotated[str, Field(description="The translation.")]
    score: Annotated[
        float, Field(description="Log-probability over the length factor, which translations are ranked by.")
    ]
    log_prob: Annotated[float, Field(description="Natural logarithm of its probability.")]
    attention: Annotated[
        Attention | None, Field(description="Where its words look; null unless asked for, or if left out.")
    ] = None


class Sentence(BaseModel):
    """What was found for one sentence."""

    text: Annotated[str, Field(description="The best translation; empty for a blank sentence.")]
    translations: Annotated[
        list[Candidate], Field(description="The n best, best first; none of a blank sentence.")
    ]
    note: Annotated[str | None, Field(description="What was left out, and why.")] = None


class Translated(BaseModel):
    """The answer to a request: one entry a sentence, in its order."""

    model: Annotated[str, Field(description="The name of the run that translated.")]
    sentences: Annotated[list[Sentence], Field(description="What was found for each sentence.")]


class Model(BaseModel):
    """A run that is served."""

    name: Annotated[str, Field(description="What requests call it by: the name of its folder.")]
    source: Annotated[str | None, Field(description="Code of the language it translates from, if known.")]
    target: Annotated[str | None, Field(description="Code of the language it translates into, if known.")]
    text: Annotated[
        Literal["words", "raw"], Field(description="`raw`: ordinary text; `words`: text already tokenised.")
    ]
    encoder_layers: Annotated[int, Field(description="Layers that read the source.")]
    decoder_layers: Annotated[int, Field(description="Layers that write the translation.")]
    heads: Annotated[int, Field(description="Attention heads of a layer.")]
    width: Annotated[int, Field(description="Size of the vector of a subword.")]
    qk_norm: Annotated[str | None, Field(description="Norm of queries and keys; null for none.")]
    parameters: Annotated[int, Field(description="Learned numbers, of all models that translate together.")]
    beam: Annotated[int, Field(description="The beam it searches with unless asked otherwise.")]
    dev_bleu: Annotated[float | None, Field(description="BLEU on dev in training; null if unknown.")]


class Models(BaseModel):
    """The runs, and what one request may ask of them."""

    models: Annotated[list[Model], Field(description="The runs, in the order they were named.")]
    limits: Annotated[
        dict[str, int], Field(description="The most sentences, characters, subwords, beam of a request.")
    ]


class Health(BaseModel):
    """That the server answers, and how busy it is."""

    status: Annotated[Literal["ok"], Field(description="Always this.")]
    version: Annotated[str, Field(description="The version of qknorm.")]
    queued: Annotated[int, Field(description="Sentences waiting.")]


class Problem(BaseModel):
    """Why a request was not answered."""

    error: Annotated[str, Field(description="A sentence.")]
