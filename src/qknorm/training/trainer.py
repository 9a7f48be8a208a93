"""The training loop: epochs of updates, validation, checkpoints; interrupted anywhere, it goes on exactly."""

from __future__ import annotations

import platform
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from qknorm import __version__
from qknorm.config import Recipe, changed_settings, recipe_hash
from qknorm.data import Batch, Batches, BpeDropout
from qknorm.data.corpus import write_lines
from qknorm.errors import UserError
from qknorm.nn import observe
from qknorm.progress import Progress
from qknorm.run import MODEL, Run, build_model
from qknorm.tensors import load_tensors, save_tensors
from qknorm.training.averaging import Averaging
from qknorm.training.captured import CapturedStep
from qknorm.training.finish import finish
from qknorm.training.inputs import Room
from qknorm.training.journal import Journal
from qknorm.training.passes import Ahead, Passes
from qknorm.training.preparation import Prepared, cache_folder, prepare, references
from qknorm.training.schedule import decays, peak_rate, rate_at
from qknorm.training.state import State, Totals
from qknorm.training.step import Outcome, Step
from qknorm.training.validation import Validation, validate

SAVE_SECONDS = 600.0
"""A checkpoint is written at the end of every epoch, and in a longer one this often."""
RECORDED = ("torch", "numpy", "tokenizers", "safetensors", "sacrebleu", "nltk", "pydantic", "Babel")


@dataclass(frozen=True)
class Trained:
    """How a training ended."""

    run: Run
    state: State
    interrupted: bool
    scores: dict[str, Any] | None


def train(
    recipe: Recipe,
    run: str | Path,
    *,
    device: torch.device | str | None = None,
    progress: Progress | None = None,
    cache: Path | None = None,
) -> Trained:
    """Train by a recipe into a run folder; called again on the same folder, go on where it stands.

    Ctrl-C (or SIGTERM) saves and returns with ``interrupted=True``.
    """
    progress = Progress() if progress is None else progress
    folder = Run(run)
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    old = folder.recipe() if folder.exists else None
    if old is not None:
        recipe = _settled(folder, old, recipe, progress)
    subwords = None if old is None else folder.subwords()
    prepared = prepare(recipe, folder.path / "data", progress, subwords, cache)
    if old is None:
        folder.create(prepared.recipe, prepared.subwords, _about(prepared, device))
    else:
        _check_text(folder, prepared.hashes())
        if (old, folder.manifest()["corpus"]) != (prepared.recipe, prepared.hashes()):
            folder.replace_recipe(prepared.recipe, prepared.hashes())
    return Trainer(folder, prepared, device, progress).run()


class Trainer:
    """One training in one process."""

    def __init__(self, folder: Run, prepared: Prepared, device: torch.device, progress: Progress) -> None:
        self.folder, self.prepared, self.device, self.progress = folder, prepared, device, progress
        self.recipe = prepared.recipe
        self.settings = self.recipe.training
        torch.manual_seed(self.settings.seed)
        self.model = build_model(self.recipe, prepared.subwords).to(device)
        self.averaging = Averaging(self.settings, self.model)
        self.state = State()
        self.journal = Journal(folder)
        self.peak = peak_rate(self.settings, self.recipe.model.d_model)
        self.dev_references = references(prepared, "dev")
        dropout = None
        if self.recipe.subwords.dropout > 0:
            train = prepared.files["train"]
            dropout = BpeDropout(*train, prepared.subwords, self.recipe.subwords.dropout, self.settings.seed)
        self.passes = Passes(prepared.encoded["train"], dropout, self.settings)
        if not len(self.batches):
            raise UserError(
                f"No sentence fits training.batch_tokens={self.settings.batch_tokens}; set it higher."
            )
        self.step = self._make_step()
        self._stop_asked = False

    def run(self) -> Trained:
        """Train to the end, or until asked to stop."""
        if self.folder.last_file.exists():
            self._restore()
        self.journal.rewind(self.state.epoch)
        self.state.finished = self._reason_to_end()
        if self.state.finished is None:
            self.folder.forget_scores()
            self._say_start()
            self._try_largest()
            with self._stoppable(), self._batch_stream():
                while self.state.finished is None and not self._stop_asked:
                    self._epoch()
        if self.state.finished is None:
            self._save()
            self.progress.note(
                f"Stopped at update {self.state.step}, in epoch {self.state.epoch}; all is saved. "
                f"Go on with: qknorm train --run {self.folder.path}"
            )
            return Trained(self.folder, self.state, True, None)
        scores = finish(self.folder, self.prepared, self.device, self.progress)
        return Trained(self.folder, self.state, False, scores)

    def _epoch(self) -> None:
        """From where the epoch stands to its end, its validation and its checkpoint."""
        state, total = self.state, self.epoch_batches
        saved = time.monotonic()
        with self.progress.bar(f"epoch {state.epoch}", total, state.batches) as bar:
            for batches in self._updates():
                self._update(batches)
                done = state.totals
                bar.to(state.batches, f"loss {done.loss / max(done.tokens, 1):.3f}")
                if self._stop_asked:
                    return
                if time.monotonic() - saved > SAVE_SECONDS:
                    self._save()
                    saved = time.monotonic()
        self._settle()
        self.averaging.after_epoch()
        with self.averaging.swapped_in():
            found = self._validate()
            better = self._judge(found)
            if better:
                self._save_best(found)
        self._end_epoch(found, better)

    def _updates(self) -> Iterator[list[Batch]]:
        """The batches of each update that is left of this epoch."""
        state = self.state
        while state.batches < self.epoch_batches and not self._spent():
            wanted = min(self.settings.accumulate, self.epoch_batches - state.batches)
            begun, busy = time.perf_counter(), self.step.busy()
            batches = [self._next_batch() for _ in range(wanted)]
            waited = time.perf_counter() - begun
            state.totals.seconds += waited
            if not (busy and self.step.busy()):
                state.totals.waiting += waited
            yield batches

    def _next_batch(self) -> Batch:
        state = self.state
        if state.position == len(self.batches):
            state.pass_number, state.position = state.pass_number + 1, 0
        batch = next(self._stream)
        state.position += 1
        state.batches += 1
        return batch

    @property
    def batches(self) -> Batches:
        """Those of the pass under way."""
        return self.passes.batches(self.state.pass_number)

    @contextmanager
    def _batch_stream(self) -> Iterator[None]:
        """``_stream``: the batches from where the state is, made ahead where the device works by itself."""
        self._stream: Iterator[Batch] = self.passes.stream(self.state.pass_number, self.state.position)
        if self.device.type == "cpu":
            yield
            return
        with Ahead(self._stream) as self._stream:
            yield

    def _make_step(self) -> Step:
        arguments = (self.model, self.settings, self.device, self.averaging)
        if self.device.type != "cuda":
            return Step(*arguments)
        return CapturedStep(
            *arguments, Room.of(self.batches), self.progress.warn, cache=cache_folder() / "compiled"
        )

    def _update(self, batches: list[Batch]) -> None:
        begun = time.perf_counter()
        self.state.step += 1
        self._latest = batches[0]
        self.step.update(batches, self.rate(self.state.step), self.state.step)
        self._note(self.step.outcomes())
        self.state.totals.seconds += time.perf_counter() - begun

    def _settle(self) -> None:
        """Wait until every update is done and noted."""
        begun = time.perf_counter()
        self._note(self.step.outcomes(wait=True))
        self.state.totals.seconds += time.perf_counter() - begun

    def _note(self, outcomes: list[Outcome]) -> None:
        state, done = self.state, self.state.totals
        for outcome in outcomes:
            done.updates += 1
            if outcome.finite:
                state.bad_in_a_row = 0
                done.loss += outcome.loss
                done.nll += outcome.nll
                done.gradient_norm += outcome.gradient_norm
                done.tokens += outcome.tokens
                continue
            state.skipped += 1
            state.bad_in_a_row += 1
            if state.bad_in_a_row >= self.settings.max_bad_steps:
                raise UserError(self._diagnosis(outcome))

    def rate(self, step: int) -> float:
        total = self.settings.max_steps or self.settings.max_epochs * self.epoch_updates
        return rate_at(step, self.settings, self.peak, self.state.factor, total)

    @property
    def epoch_batches(self) -> int:
        return self.settings.epoch_batches or len(self.batches)

    @property
    def epoch_updates(self) -> int:
        return -(-self.epoch_batches // self.settings.accumulate)

    def _spent(self) -> bool:
        return self.settings.max_steps is not None and self.state.step >= self.settings.max_steps

    def _validate(self) -> Validation:
        with_bleu = self.settings.validate_bleu
        return validate(self.model, self.prepared, "dev", self.dev_references, self.progress, with_bleu)

    def _judge(self, found: Validation) -> bool:
        """Note how good this epoch is; whether it is the best so far."""
        merit = found.bleu if found.bleu is not None else -found.perplexity
        self.state.bleus.append(merit)
        if self.state.best is not None and merit <= self.state.best:
            return False
        self.state.best, self.state.best_epoch = merit, self.state.epoch
        return True

    def _end_epoch(self, found: Validation, better: bool) -> None:
        """Write the history, decide how to go on, and save."""
        state, settings = self.state, self.settings
        row = self.journal.row(state, self.rate(max(state.step, 1)), found, better, self.model)
        warm = state.step >= settings.warmup_steps
        if settings.schedule == "plateau" and warm and decays(state.bleus, settings.patience):
            state.factor *= settings.decay
        state.epoch, state.batches, state.totals = state.epoch + 1, 0, Totals()
        state.finished = self._reason_to_end()
        self.journal.add(row)
        self._save()
        self.progress.note(Journal.line(row))
        if state.finished is not None:
            self.progress.note(f"Training is over: {state.finished}. Best epoch: {state.best_epoch}.")

    def _reason_to_end(self) -> str | None:
        """Why training is over by the settings as they are now, at the end of an epoch; None if it is not."""
        state, settings = self.state, self.settings
        done = state.epoch - 1
        if state.batches or not done:
            return None
        since = done - (state.best_epoch or 0)
        if self._spent():
            return f"all {settings.max_steps} updates are done"
        if done >= settings.max_epochs:
            return f"all {settings.max_epochs} epochs are done"
        if settings.schedule == "plateau" and self.peak * state.factor < settings.min_learning_rate:
            return f"the learning rate fell below {settings.min_learning_rate:g}"
        if settings.stop_after is not None and since >= settings.stop_after:
            return f"no better epoch in {since}"
        return None

    def _save(self) -> None:
        """Write all that a resume needs, in place of the last checkpoint."""
        self._settle()
        tensors = {f"{MODEL}{name}": t for name, t in self.model.state_dict().items()}
        tensors |= self.step.tensors() | self.averaging.tensors()
        tensors["random.cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state(self.device)
        self.folder.path.mkdir(parents=True, exist_ok=True)
        save_tensors(self.folder.last_file, tensors, {"state": self.state.to_json()})

    def _save_best(self, found: Validation) -> None:
        """Write the weights that were just validated (averaged ones, where averaging is on)."""
        tensors = {f"{MODEL}{name}": t for name, t in self.model.state_dict().items()}
        if found.hypotheses is not None:
            write_lines(self.folder.hypotheses_file("dev"), found.hypotheses)
        about = {"epoch": self.state.epoch, "step": self.state.step, "dev_bleu": found.bleu}
        save_tensors(self.folder.best_file, tensors, about | {"dev_perplexity": found.perplexity})

    def _restore(self) -> None:
        tensors, about = load_tensors(self.folder.last_file)
        self.state = State.from_json(about["state"])
        weights = {n.removeprefix(MODEL): t for n, t in tensors.items() if n.startswith(MODEL)}
        self.model.load_state_dict(weights)
        self.step.restore(tensors)
        self.averaging.restore(tensors)
        torch.set_rng_state(tensors["random.cpu"])
        if self.device.type == "cuda" and "random.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random.cuda"], self.device)
        self.progress.note(f"Going on from update {self.state.step}, epoch {self.state.epoch}")

    def _say_start(self) -> None:
        full, size = self.batches.fullness(), sum(p.numel() for p in self.model.parameters())
        self.progress.note(
            f"{size:,} parameters on {self.device.type}{', bfloat16' if self.step.half else ''}; "
            f"{len(self.batches)} batches a pass, {full.budget:.1%} full; "
            f"an epoch is {self.epoch_batches} batches"
        )
        if self.batches.dropped:
            self.progress.warn(
                f"{self.batches.dropped} training sentences are longer than training.batch_tokens="
                f"{self.settings.batch_tokens} and are left out."
            )

    def _try_largest(self) -> None:
        try:
            self.step.prepare(self.batches.largest())
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise UserError(
                "The largest batch does not fit into memory; set training.batch_tokens lower (it is "
                f"{self.settings.batch_tokens}) and training.accumulate higher by the same factor."
            ) from error

    def _diagnosis(self, outcome: Outcome) -> str:
        with torch.no_grad(), observe(self.model) as seen:
            self.step.loss(self.step.inputs(self._latest))
        name, worst = max(seen.items(), key=lambda item: item[1].max_logit)
        saved = (
            f"The last checkpoint, {self.folder.last_file}, is intact. "
            if self.folder.last_file.exists()
            else ""
        )
        return (
            f"{self.state.bad_in_a_row} updates in a row had a loss or gradient that is not finite; training "
            f"stopped at update {outcome.step}. Learning rate {outcome.rate:.3g}, gradient norm "
            f"{outcome.gradient_norm:.3g}, largest attention logit {worst.max_logit:.3g} (in {name}). {saved}"
            "Try a lower training.learning_rate, more training.warmup_steps, or precision float32."
        )

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM ask to stop after the update under way; a second Ctrl-C stops at once."""

        def ask(number: int, frame: object) -> None:
            if self._stop_asked and number == signal.SIGINT:
                raise KeyboardInterrupt
            self._stop_asked = True
            self.progress.note("Stopping after this update, to save")

        before: dict[int, Any] = {}
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                before[number] = signal.signal(number, ask)
        except ValueError:  # not the main thread: whoever runs us handles signals
            pass
        try:
            yield
        finally:
            for stopped, handler in before.items():
                signal.signal(stopped, handler)


def _settled(folder: Run, old: Recipe, recipe: Recipe, progress: Progress) -> Recipe:
    """The recipe to resume with: changes that are allowed are listed, others refused."""
    if recipe.model.length is None and old.model.length is not None:
        recipe = recipe.model_copy(update={"model": replace(recipe.model, length=old.model.length)})
    changes = changed_settings(old, recipe)
    # Files may have moved: whether their text is the same is asked once they have been read.
    if breaking := [c for c in changes if c.breaking and not c.key.startswith("data.")]:
        listed = "\n".join(f"  {c.key}: {c.old} → {c.new}" for c in breaking)
        raise UserError(
            f"{folder.path} was begun with other settings, which cannot change on the way:\n{listed}\n"
            "Give the old values, or train into another folder with --run."
        )
    for change in changes:
        progress.note(f"changed: {change.key}: {change.old} → {change.new}")
    return recipe


def _check_text(folder: Run, hashes: dict[str, str]) -> None:
    """Train and dev must be what the run was begun with; of another test set, scores are made anew."""
    begun = folder.manifest()["corpus"]
    changed = sorted(k for k in begun.keys() | hashes.keys() if begun.get(k) != hashes.get(k))
    if other := [key for key in changed if not key.startswith("test.")]:
        raise UserError(
            f"The text of {', '.join(other)} is not what {folder.path} was trained on; "
            "put the files back, or train into another folder with --run."
        )
    if changed:
        folder.forget_scores()


def _about(prepared: Prepared, device: torch.device) -> dict[str, Any]:
    """What the manifest says besides checksums."""
    versions = {"qknorm": __version__, "python": platform.python_version()}
    for name in RECORDED:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "format": 1,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": versions,
        "commit": _commit(),
        "recipe_sha256": recipe_hash(prepared.recipe),
        "seed": prepared.recipe.training.seed,
        "corpus": prepared.hashes(),
        "facts": prepared.facts(),
        "machine": {
            "system": platform.platform(),
            "processor": platform.machine(),
            "threads": torch.get_num_threads(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        },
    }


def _commit() -> str | None:
    """The commit of a source checkout this runs from; None for an installed package."""
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
