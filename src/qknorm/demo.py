"""The demo: the paper's model beside its baseline, trained on the built-in phrasebook in minutes."""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from qknorm.config import DataSettings, ModelSettings, Recipe, SubwordSettings, TrainingSettings
from qknorm.data import lines
from qknorm.data.phrasebook import write_phrasebook
from qknorm.progress import Progress
from qknorm.run import Run
from qknorm.scoring import Comparison, compare
from qknorm.training import train

STEPS = 850
"""Updates of each model."""
EPOCHS = 5
"""Validations on the way, so that there is a curve to look at."""
PAIRS = {"train": 10_000, "dev": 200, "test": 500}
SHOWN = 8
"""Sample translations printed."""
PICTURED = "Thursday, July 27, 2006"
"""The phrase of the heat maps: Galician has the day before the month."""


def demo_recipe(folder: Path, name: str, steps: int) -> Recipe:
    """``recipes/demo.yaml`` (or its baseline twin) for a phrasebook in ``folder``."""
    model = ModelSettings(
        d_model=128,
        d_ff=512,
        heads=4,
        encoder_layers=3,
        decoder_layers=3,
        dropout=0.1,
        attention_dropout=0.1,
        ff_dropout=0.1,
        word_dropout=0.0,
    )
    if name == "baseline":
        model = replace(model, norm="scale", qk_norm=None)
    return Recipe(
        name=f"demo-{name}",
        data=DataSettings(source="en", target="gl", folder=folder),
        subwords=SubwordSettings(kind="raw", operations=1200),
        model=model,
        training=TrainingSettings(
            batch_tokens=700,
            epoch_batches=-(-steps // EPOCHS),
            max_steps=steps,
            learning_rate=3e-3,
            schedule="linear",
            warmup_steps=min(100, steps // 4),
            beta2=0.98,
        ),
    )


def run_demo(folder: Path, progress: Progress | None = None, steps: int = STEPS) -> None:
    """Make the phrasebook, train both models, compare them, and show what the paper's says and attends to."""
    progress = Progress() if progress is None else progress
    text = folder / "phrasebook"
    progress.note(
        "Making a small English-Galician corpus from Unicode's CLDR: dates, amounts, lists, measures"
    )
    write_phrasebook("en-gl", text, **PAIRS, seed=1)
    runs = {}
    for name in ("qknorm", "baseline"):
        runs[name] = Run(folder / name)
        kind = "the paper's QKNorm model" if name == "qknorm" else "the scaled dot product baseline"
        progress.note(f"\nTraining {kind}, {steps} updates")
        recipe = demo_recipe(text, name, steps)
        if train(recipe, runs[name].path, progress=progress, cache=folder / "cache").interrupted:
            raise KeyboardInterrupt
    hypotheses = {name: list(lines(run.path / "hypotheses" / "test.txt")) for name, run in runs.items()}
    references, sources = list(lines(text / "test.gl")), list(lines(text / "test.en"))
    result = compare(hypotheses["baseline"], hypotheses["qknorm"], references, "raw")
    print(render(result, hypotheses, sources, references), flush=True)
    progress.note("\nDrawing where each word of one of them looks")
    said = draw_heatmap(runs["qknorm"], folder / "heatmap.png")
    print(next_steps(folder, said))


def draw_heatmap(run: Run, picture: Path) -> str:
    """Draw what each word of a phrase's translation looks at, in every layer and head; the translation."""
    from qknorm.analysis import sentence_attention
    from qknorm.analysis.heatmaps import Grid, draw, save
    from qknorm.translation.translator import Translator

    seen = sentence_attention(Translator.load(run.path), PICTURED).words()
    layers, heads = seen.cross.weights.shape[:2]
    save(draw([Grid(seen.cross, range(layers), range(heads))]), picture)
    return seen.translation


def render(
    result: Comparison,
    hypotheses: dict[str, list[str]],
    sources: list[str],
    references: list[str],
) -> str:
    """Both scores, whether they differ, and sample translations."""
    right = {
        name: sum(h == r for h, r in zip(found, references, strict=True)) / len(references)
        for name, found in hypotheses.items()
    }
    rows = [
        "",
        f"{'':24}BLEU   exactly right, of {len(references)} phrases never seen in training",
        f"{'QKNorm':22}{result.system.main:6.2f}   {right['qknorm']:.1%}",
        f"{'scaled dot product':22}{result.baseline.main:6.2f}   {right['baseline']:.1%}",
        f"difference {result.delta:+.2f} BLEU, 95% interval {result.ci_low:+.2f} to {result.ci_high:+.2f}, "
        f"p = {result.p_value:.3f} (paired bootstrap)",
        "",
        "What the QKNorm model says:",
    ]
    step = max(len(sources) // SHOWN, 1)
    for source, found, wanted in list(zip(sources, hypotheses["qknorm"], references, strict=True))[::step][
        :SHOWN
    ]:
        rows.append(f"  {source}  →  {found}" + ("" if found == wanted else f"   (reference: {wanted})"))
    return "\n".join(rows)


def next_steps(folder: Path, said: str) -> str:
    """The picture and the command that makes it, and commands to go on with."""
    command = "qknorm" if shutil.which("qknorm") else _as_called()
    run, other, picture = (shlex.quote(str(folder / name)) for name in ("qknorm", "baseline", "heatmap.png"))
    rows = [
        "",
        f"Where each word of “{said}” looks, by layer and head: {folder / 'heatmap.png'}",
        "The same picture, of this or any sentence:",
        f'  {command} attention {run} "{PICTURED}" --kind cross --words --out {picture}',
        "Try both models in the browser, side by side, on dates, amounts, lists and measures:",
        f"  {command} serve {run} {other}",
        "With files of your own (one sentence a line, the same lines on both sides):",
        f"  {command} train --source train.gl --target train.en --run runs/mine",
        f"  {command} translate runs/mine new.gl > new.en",
    ]
    return "\n".join(rows)


def _as_called() -> str:
    """How to run the command where it is not on the path: as it was run just now."""
    script = Path(sys.argv[0])
    return str(script) if script.name == "qknorm" else f"{sys.executable} -m qknorm"
