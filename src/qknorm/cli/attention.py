"""``qknorm attention``: heat maps of a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qknorm.cli import options
from qknorm.errors import UserError

if TYPE_CHECKING:
    from qknorm.analysis import SentenceAttention
    from qknorm.analysis.weights import Kind

FORMATS = (".png", ".svg", ".pdf", ".json")
Numbers = list[int] | None


def attention(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of a trained model.")],
    sentence: Annotated[
        str,
        typer.Argument(metavar="SENTENCE", help="A sentence to translate; after -- if it begins with -."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Ends in .png, .svg, .pdf or .json.")],
    target: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Its translation; the model's own if not given.")
    ] = None,
    kind: Annotated[
        list[options.AttentionKind] | None, typer.Option(help="Only this kind of attention; may be repeated.")
    ] = None,
    layer: Annotated[
        Numbers, typer.Option(min=1, help="Only this layer, from 1; may be repeated.", metavar="N")
    ] = None,
    head: Annotated[
        Numbers, typer.Option(min=1, help="Only this head, from 1; may be repeated.", metavar="N")
    ] = None,
    words: Annotated[bool, typer.Option("--words", help="Join subwords to words.")] = False,
    device: options.Device = None,
) -> None:
    """Draw what every layer and head attends to in a sentence and its translation, tokens on both axes.

    Rows look, columns are looked at, and every row sums to 1. In the decoder's own attention and in its
    attention to the source (cross) a row is the token being predicted. With --words the weights on the
    subwords of a word are summed, and those of its own subwords averaged. Sentences in scripts written from
    right to left run from right to left.

    \b
      qknorm attention runs/gl-en "unha frase" --out maps.png
      qknorm attention runs/gl-en "unha frase" --kind cross --layer 6 --words --out cross.pdf
      qknorm attention runs/gl-en "unha frase" --target "a sentence" --out maps.json
    """
    form = out.suffix.lower()
    if form not in FORMATS:
        raise UserError(f"{out} ends in none of {', '.join(FORMATS)}; the name decides what is written.")
    options.check_file(out)
    from qknorm.analysis import KINDS, sentence_attention
    from qknorm.data import write_atomic
    from qknorm.translation.translator import Translator

    options.say_first_of(run, "Maps are")
    translator = Translator.load(run, options.check_device(device), together=False)
    seen = sentence_attention(translator, sentence, target)
    seen = seen.words() if words else seen
    kinds: list[Kind] = list(dict.fromkeys(each.value for each in kind)) if kind else list(KINDS)
    layers = {each: _chosen("layer", layer, seen[each].weights.shape[0], each) for each in kinds}
    heads = {each: _chosen("head", head, seen[each].weights.shape[1], each) for each in kinds}
    if form == ".json":
        write_atomic(out, json.dumps(_json(seen, layers, heads), ensure_ascii=False) + "\n")
    else:
        _draw(seen, layers, heads, out)
    count = sum(len(layers[each]) * len(heads[each]) for each in kinds)
    typer.echo(
        f"{seen.source}  →  {seen.translation}\n{count} {'map' if count == 1 else 'maps'} in {out}", err=True
    )


def _chosen(noun: str, wanted: Numbers, there: int, kind: str) -> list[int]:
    """The numbers asked for, from 0; all where none are."""
    beyond = [number for number in wanted or [] if number > there]
    if beyond:
        raise UserError(f"There is no {noun} {beyond[0]} in {kind} attention; it has 1 to {there}.")
    return sorted({number - 1 for number in wanted}) if wanted else list(range(there))


def _json(
    seen: SentenceAttention, layers: dict[Kind, list[int]], heads: dict[Kind, list[int]]
) -> dict[str, object]:
    """The maps of what was chosen, and which layers and heads these are, from 1."""
    about = seen.to_json(list(layers))
    for kind in layers:
        each = about[kind]
        each["layers"], each["heads"] = [i + 1 for i in layers[kind]], [i + 1 for i in heads[kind]]
        each["weights"] = [[each["weights"][i][j] for j in heads[kind]] for i in layers[kind]]
    return about


def _draw(
    seen: SentenceAttention, layers: dict[Kind, list[int]], heads: dict[Kind, list[int]], out: Path
) -> None:
    from qknorm.analysis import fonts
    from qknorm.analysis.heatmaps import Grid, draw, save
    from qknorm.progress import Progress

    for sentence in fonts.warnings(
        [token for kind in layers for token in seen[kind].rows + seen[kind].columns]
    ):
        Progress().warn(sentence)
    save(draw([Grid(seen[kind], layers[kind], heads[kind]) for kind in layers]), out)
