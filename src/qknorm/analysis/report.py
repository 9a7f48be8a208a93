"""The report of a run, or of two side by side: one page that opens from disk without a network."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qknorm import __version__
from qknorm.analysis.direction import mostly_right_to_left
from qknorm.analysis.maps import AttentionMap, SentenceAttention, pair_attention
from qknorm.analysis.text import Text, run_names, split_files, split_text
from qknorm.analysis.weights import KINDS, modules
from qknorm.analysis.words import by_frequency, by_length, count_words, marked
from qknorm.data import Subwords, lines, write_atomic
from qknorm.errors import UserError
from qknorm.model import Transformer
from qknorm.nn import attention_modules
from qknorm.progress import Progress
from qknorm.run import Run
from qknorm.scoring import Comparison, compare, intervals, score
from qknorm.scoring.metrics import sentence_bleu
from qknorm.scoring.render import LABELS
from qknorm.translation.logits import largest_logits

LONGEST = 40
"""Heat maps are of sentences of at most this many subwords on either side, where there are such."""
SAMPLE = 200
"""Sentences over which the largest logits are taken."""
HISTORY = (
    "epoch", "step", "best", "train_loss", "dev_perplexity", "dev_bleu", "learning_rate", "tokens_per_second",
    "max_logit", "g_min", "g_max",
)  # fmt: skip
"""What is shown of each epoch."""


@dataclass(frozen=True)
class Side:
    """One run of the report, with all that is read of it."""

    name: str
    run: Run
    subwords: Subwords
    model: Transformer
    hypotheses: list[str]
    history: list[dict[str, Any]]


def write_report(
    path: Path,
    runs: Sequence[Run],
    split: str | None = None,
    maps: int = 6,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> None:
    """Write the page of one run, or of a run and the one it is held against.

    Args:
        path: the page.
        runs: the run, and the other one, if any.
        split: dev or test; test where the runs have one.
        maps: how many sentences have heat maps.
        device: where the models run.
        progress: told how far it is.
    """
    progress = Progress(quiet=True) if progress is None else progress
    split = split or ("test" if all(run.hypotheses_file("test").exists() for run in runs) else "dev")
    _check_comparable(runs, split)
    text = split_text(runs[0], split)
    sides = [_side(*each, text, device) for each in zip(runs, run_names(runs), strict=True)]
    write_atomic(path, render(gather(sides, text, maps, progress)))


def render(data: dict[str, Any]) -> str:
    """The page that shows these data. Nothing in them can end the script they stand in."""
    folder = files("qknorm.analysis") / "pages"
    words = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        words = words.replace(character, f"\\u{ord(character):04x}")
    page = (folder / "report.html").read_text(encoding="utf-8")
    for mark, content in (
        ("/*style*/", (folder / "report.css").read_text(encoding="utf-8")),
        ("/*script*/", (folder / "report.js").read_text(encoding="utf-8")),
        ("/*data*/", words),
    ):
        before, _, after = page.partition(mark)
        page = before + content + after
    return page


def gather(sides: Sequence[Side], text: Text, maps: int, progress: Progress) -> dict[str, Any]:
    """Everything the page shows, in JSON's types."""
    kind = sides[0].subwords.kind
    progress.note("Scoring")
    comparison = None
    if len(sides) == 2:
        comparison = compare(sides[1].hypotheses, sides[0].hypotheses, text.targets, kind)
    sentences = _sentences(sides, text)
    progress.note("Counting the training text")
    _, train = split_files(sides[0].run, "train")
    training = count_words(lines(train), kind)
    progress.note("Watching the heads")
    return {
        "version": __version__,
        "split": text.name,
        "sentences": sentences,
        "runs": [_about(side, text) for side in sides],
        "scores": _scores(sides, text, comparison),
        "frequency": [
            [asdict(b) for b in by_frequency(side.hypotheses, text.targets, kind, training)] for side in sides
        ],
        "length": [[asdict(b) for b in by_length(side.hypotheses, text.targets, kind)] for side in sides],
        "maps": _maps(sides, text, sentences, maps),
    }


def _side(run: Run, name: str, text: Text, device: torch.device | str) -> Side:
    file = run.hypotheses_file(text.name)
    if not file.exists():
        raise UserError(f"{file} does not exist yet; finish training with `qknorm train --run {run.path}`.")
    hypotheses = list(lines(file))
    if len(hypotheses) != len(text):
        raise UserError(
            f"{file} has {len(hypotheses):,} lines and {text.name} has {len(text):,}; restore it from a copy."
        )
    return Side(name, run, run.subwords(), run.model("best", device), hypotheses, run.history())


def _check_comparable(runs: Sequence[Run], split: str) -> None:
    if len(runs) < 2:
        return
    first, second = runs
    corpora = [run.manifest().get("corpus", {}) for run in runs]
    texts = [[corpus.get(f"{split}.{side}") for side in ("source", "target")] for corpus in corpora]
    if texts[0] != texts[1]:
        raise UserError(
            f"{first.path} and {second.path} have different {split} text, so their translations cannot be "
            "held against each other; train them with the same."
        )
    if first.recipe().subwords.kind != second.recipe().subwords.kind:
        raise UserError(
            f"One of {first.path} and {second.path} was trained on tokenised text, the other on raw text; "
            "their scores do not compare."
        )


def _about(side: Side, text: Text) -> dict[str, Any]:
    """What there is to say of a run: what it is, its history, its modules."""
    recipe, facts = side.run.recipe(), side.run.manifest().get("facts", {})
    model = recipe.model
    sample = text.without_blanks(SAMPLE)
    encoded = side.subwords.encode(sample.sources, "source"), side.subwords.encode(sample.targets, "target")
    logits = largest_logits(side.model, *encoded)
    names = {module: name for name, module in attention_modules(side.model).items()}
    return {
        "name": side.name,
        "about": [
            f"{recipe.name}: {model.encoder_layers}+{model.decoder_layers} layers, width {model.d_model}, "
            f"{model.heads} heads, norm {model.norm}, qk_norm {model.qk_norm or 'none'}",
            f"{facts.get('examples', 0):,} training pairs, {side.subwords.size:,} subwords, "
            f"{sum(p.numel() for p in side.model.parameters()):,} parameters, seed {recipe.training.seed}",
        ],
        "history": [{key: _finite(row.get(key)) for key in HISTORY} for row in side.history],
        "modules": [
            {
                "kind": kind,
                "layer": layer + 1,
                "g": None if m.qk_scale is None else m.qk_scale.detach().float().tolist(),
                "max_logit": _finite(logits[names[m]]),
            }
            for kind, found in modules(side.model).items()
            for layer, m in enumerate(found)
        ],
    }


def _finite(value: Any) -> Any:
    """None for what JSON has no number for: a run that diverged is shown too."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _scores(sides: Sequence[Side], text: Text, comparison: Comparison | None) -> dict[str, Any]:
    """Every figure with its label; intervals of BLEU and chrF; the difference of two runs and its tests."""
    kind = sides[0].subwords.kind
    found = [score(side.hypotheses, text.targets, kind, ter=False) for side in sides]
    sure = [intervals(side.hypotheses, text.targets, kind) for side in sides]
    rows = [
        {
            "name": LABELS[name][0],
            "meaning": LABELS[name][1],
            "values": [scores[name] for scores in found],
            "intervals": [each.get(name) for each in sure],
            "signature": found[0].signatures[name],
        }
        for name in found[0].figures
    ]
    tests = []
    if comparison is not None:
        for name, difference in (("BLEU", comparison.bleu), ("chrF", comparison.chrf)):
            tests.append({"name": name, **asdict(difference)})
    return {"rows": rows, "tests": tests, "count": len(text)}


def _sentences(sides: Sequence[Side], text: Text) -> list[dict[str, Any]]:
    """Every sentence with its translations, their scores, and which words differ."""
    kind = sides[0].subwords.kind
    metric = sentence_bleu(kind)
    found = []
    for line, (source, reference) in enumerate(zip(text.sources, text.targets, strict=True)):
        said = [side.hypotheses[line] for side in sides]
        others = [said[1], said[0]] if len(said) == 2 else [None]
        found.append(
            {
                "line": line + 1,
                "source": source,
                "reference": marked(reference, kind, reference, said[0] if len(said) == 1 else None),
                "said": [
                    marked(own, kind, reference, other) for own, other in zip(said, others, strict=True)
                ],
                "bleu": [round(float(metric.sentence_score(own, [reference]).score), 2) for own in said],
            }
        )
    return found


def _maps(
    sides: Sequence[Side], text: Text, sentences: Sequence[dict[str, Any]], count: int
) -> list[dict[str, Any]]:
    """The heat maps of a few sentences, from those that gained most (or are best) to the others."""
    chosen = _chosen(sides, text, sentences, count)
    shown: list[dict[str, Any]] = [{"line": i + 1, "runs": []} for i in chosen]
    for side in sides:
        sources = side.subwords.encode([text.sources[i] for i in chosen], "source")
        targets = side.subwords.encode([side.hypotheses[i] for i in chosen], "target")
        for place, seen in enumerate(pair_attention(side.model, side.subwords, sources, targets)):
            shown[place]["runs"].append(_packed(seen))
    return shown


def _chosen(sides: Sequence[Side], text: Text, sentences: Sequence[dict[str, Any]], count: int) -> list[int]:
    """Sentences spread evenly from the largest gain to the largest loss, or from the best to the worst."""

    def merit(i: int) -> float:
        scores = sentences[i]["bleu"]
        return float(scores[0] - scores[1] if len(scores) == 2 else scores[0])

    encode = sides[0].subwords.encode
    sizes = [
        max(len(source), len(target))
        for source, target in zip(encode(text.sources, "source"), encode(text.targets, "target"), strict=True)
    ]
    there = [i for i in range(len(text)) if text.sources[i].strip()]
    short = [i for i in there if sizes[i] <= LONGEST] or sorted(there, key=lambda i: sizes[i])[:count]
    short.sort(key=merit, reverse=True)
    places = np.unique(np.linspace(0, len(short) - 1, min(count, len(short))).round().astype(int))
    return [short[place] for place in places]


def _packed(seen: SentenceAttention) -> dict[str, Any]:
    """The maps of a sentence; weights as the bytes of 255 · √w, which keeps small ones apart."""

    def one(each: AttentionMap) -> dict[str, Any]:
        levels = np.rint(255 * np.sqrt(each.weights.clip(0, 1))).astype(np.uint8)  # (L, H, T, S)
        return {
            "rows": each.rows,
            "columns": each.columns,
            "rtl": mostly_right_to_left(each.columns),
            "shape": list(levels.shape),
            "levels": base64.b64encode(levels.tobytes()).decode("ascii"),
        }

    return {kind: one(seen[kind]) for kind in KINDS}
