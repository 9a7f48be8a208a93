"""The training loop: epochs of updates, validation, checkpoints; interrupted anywhere, it goes on exactly."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from qknorm.config import idle_settings, recipe_hash
from qknorm.data import Batch, Batches, BpeDropout
from qknorm.data.corpus import write_lines
from qknorm.errors import LostWorkerError, UserError
from qknorm.nn import observe
from qknorm.progress import Progress
from qknorm.run import MODEL, Run, build_model
from qknorm.tensors import load_tensors
from qknorm.training.averaging import Averaging
from qknorm.training.inputs import Room
from qknorm.training.journal import Journal
from qknorm.training.passes import Ahead, Passes, Update
from qknorm.training.preparation import Prepared, cache_folder, references
from qknorm.training.saver import Saver
from qknorm.training.schedule import decays, peak_rate, rate_at
from qknorm.training.state import State, Totals
from qknorm.training.step import Outcome, Step
from qknorm.training.stopping import stoppable
from qknorm.training.validation import Validation, validate
from qknorm.workers import Workers

SAVE_SECONDS = 600.0
"""A checkpoint is written at the end of every epoch, and in a longer one this often."""


class Trainer:
    """One training. Each of several processes has one, and all are alike but for their batches of an update.

    Process 0 alone writes to the run folder. ``whole`` is the run of all models that translate together, if
    this is one of several.
    """

    def __init__(
        self,
        folder: Run,
        prepared: Prepared,
        workers: Workers,
        progress: Progress,
        begun: float | None = None,
        whole: Run | None = None,
    ) -> None:
        self.begun = time.monotonic() if begun is None else begun
        """When training began, had all of it been in one go."""
        self.whole = folder if whole is None else whole
        self.folder, self.prepared, self.workers, self.progress = folder, prepared, workers, progress
        self.device = device = workers.device
        self.recipe = prepared.recipe
        self.settings = self.recipe.training
        torch.manual_seed(self.settings.seed)
        self.model = build_model(self.recipe, prepared.subwords).to(device)
        workers.take_from_first(self.model.parameters())
        self.averaging = Averaging(self.settings, self.model)
        self.state = State()
        self.journal = Journal(folder)
        self.peak = peak_rate(self.settings, self.recipe.model.d_model)
        self.dev_references = references(prepared, "dev")
        dropout = None
        cut = self.recipe.subwords
        if cut.dropped_sides:
            train, seed = prepared.files["train"], self.settings.seed
            dropout = BpeDropout(
                *train, prepared.subwords, cut.dropout, seed, cut.dropped_sides, cut.dropout_from
            )
        self.passes = Passes(prepared.encoded["train"], dropout, self.settings, workers, cut.dropout_passes)
        if not len(self.batches):
            raise UserError(
                f"No sentence fits training.batch_tokens={self.settings.batch_tokens}; set it higher."
            )
        self.step = self._make_step()
        self.saver = Saver(in_background=self.device.type == "cuda")
        self._latest: Batch | None = None
        self._whole: State | None = None
        """While an update is under way, where training stood before it."""

    def run(self) -> bool:
        """Train to the end, or until asked to stop; whether the end was reached.

        The latest checkpoint may still be under way then: see ``saver``.
        """
        if self.folder.last_file.exists():
            self._restore()
        self._check_alike()
        self.workers.advice = f"Go on from the last checkpoint with: {self.command()}"
        if self.workers.first:
            self.journal.rewind(self.state.epoch)
        self.state.finished = self._reason_to_end()
        if self.state.finished is None:
            if self.workers.first:
                self.whole.forget_scores()
            self._say_start()
            self._try_largest()
            with stoppable(self.workers, self.progress), self._update_stream():
                self._epochs()
        if self.state.finished is None:
            return False
        self.saver.wait(self.folder.best_file)
        return True

    def _epochs(self) -> None:
        """Epoch after epoch to the end, or until asked to stop.

        When another process is lost in the middle of an update, what was whole before it is saved.
        """
        try:
            while self.state.finished is None and not self.workers.stopping:
                self._epoch()
            if self.state.finished is None:
                self._stop()
        except LostWorkerError as lost:
            if self._whole is None or not self.workers.first:
                raise
            self.progress.note("Another process is gone; saving")
            self.state = self._whole
            self._save()
            self.saver.wait()
            saved = f"Everything up to update {self.state.step} is saved; go on with: {self.command()}"
            raise LostWorkerError(self.workers.loss(saved)) from lost

    def _stop(self) -> None:
        self._whole = None
        self._save()
        self.saver.wait()
        self.progress.note(
            f"Stopped at update {self.state.step}, in epoch {self.state.epoch}; all is saved. "
            f"Go on with: {self.command()}"
        )
        self.workers.wait()  # were another to end first, torchrun would end the one that saves

    def command(self) -> str:
        """What goes on with this run."""
        folder = shlex.quote(str(self.whole.path))
        if self.workers.size == 1:
            return f"qknorm train --run {folder}"
        return f"{self.workers.launcher} -m qknorm train --run-folder {folder}"

    def _epoch(self) -> None:
        """From where the epoch stands to its end, its validation and its checkpoint."""
        state, total = self.state, self.epoch_batches
        saved = time.monotonic()
        with self.progress.bar(f"epoch {state.epoch}", total, state.batches) as bar:
            for batches in self._updates():
                self._update(batches)
                done = state.totals
                bar.to(state.batches, f"loss {done.loss / max(done.tokens, 1):.3f}")
                if self.workers.stopping:
                    return
                if time.monotonic() - saved > SAVE_SECONDS:
                    self._save()
                    saved = time.monotonic()
        self._settle()
        self._whole = None
        self.averaging.after_epoch()
        with self.averaging.swapped_in():
            found = self._validate()
            better = self._judge(found)
            if better:
                self._save_best(found)
        self._end_epoch(found, better)

    def _updates(self) -> Iterator[list[Batch]]:
        """This process's batches of each update that is left of this epoch."""
        state = self.state
        while state.batches < self.epoch_batches and not self._spent():
            self._whole = replace(state, totals=replace(state.totals))
            begun, busy = time.perf_counter(), self.step.busy()
            update = next(self._stream)
            waited = time.perf_counter() - begun
            state.pass_number, state.position = update.pass_number, update.position
            state.batches += update.taken
            state.totals.seconds += waited
            if not (busy and self.step.busy()):
                state.totals.waiting += waited
            yield update.batches

    @property
    def batches(self) -> Batches:
        """Those of the pass under way."""
        return self.passes.batches(self.state.pass_number)

    @contextmanager
    def _update_stream(self) -> Iterator[None]:
        """``_stream``: updates from where the state is, made ahead where the device works by itself."""
        state = self.state
        self._stream: Iterator[Update] = self.passes.updates(state.pass_number, state.position, state.batches)
        if self.device.type == "cpu":
            yield
            return
        with Ahead(self._stream) as self._stream:
            yield

    def _make_step(self) -> Step:
        arguments = (self.model, self.settings, self.device, self.averaging, self.workers)
        source_subwords = torch.from_numpy(self.prepared.subwords.source_mask)
        if self.device.type != "cuda":
            return Step(*arguments, source_subwords)
        from qknorm.training.captured import CapturedStep  # slow: see warm_up

        mixed = self.settings.batching == "mixed"
        text, budget = self.prepared.encoded["train"], self.settings.batch_tokens
        room = Room.of(text, budget, mixed, self.settings.passes)
        return CapturedStep(
            *arguments,
            room,
            self.progress.warn,
            cache=cache_folder() / "compiled",
            source_subwords=source_subwords,
        )

    def _update(self, batches: list[Batch]) -> None:
        begun = time.perf_counter()
        self.state.step += 1
        self._latest = batches[0] if batches else self._latest
        self._draw_apart()
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
                raise UserError(
                    self._diagnosis(outcome)
                    if self.workers.first
                    else f"Training stopped at update {outcome.step}; process 0 says why."
                )

    def _draw_apart(self) -> None:
        """Give this process random numbers of its own, from the seed and the update: a resume draws the same.

        One process alone goes on with the numbers it has; their state is in the checkpoint.
        """
        if self.workers.size > 1:
            drawn = np.random.SeedSequence([self.settings.seed, self.state.step, self.workers.rank])
            torch.manual_seed(int(drawn.generate_state(1, np.uint64)[0] >> np.uint64(1)))

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
        return validate(
            self.model, self.prepared, "dev", self.dev_references, self.progress, self.workers, with_bleu
        )

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
        state.elapsed = time.monotonic() - self.begun
        row = self.journal.row(state, self.rate(max(state.step, 1)), found, better, self.model)
        warm = state.step >= settings.warmup_steps
        if settings.schedule == "plateau" and warm and decays(state.bleus, settings.patience):
            state.factor *= settings.decay
        state.epoch, state.batches, state.totals = state.epoch + 1, 0, Totals()
        state.finished = self._reason_to_end()
        caution = self.journal.caution(row)
        if self.workers.first:
            self.journal.add(row)
        self._save()
        left = self.journal.left(self.settings.max_steps) if state.finished is None else None
        self.progress.note(Journal.line(row, left))
        if caution is not None:
            self.progress.warn(caution)
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
        if not self.workers.first:
            return
        self.state.elapsed = time.monotonic() - self.begun
        tensors = {f"{MODEL}{name}": t for name, t in self.model.state_dict().items()}
        tensors |= self.step.tensors() | self.averaging.tensors()
        tensors["random.cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state(self.device)
        self.folder.path.mkdir(parents=True, exist_ok=True)
        self.saver.save(self.folder.last_file, tensors, {"state": self.state.to_json()})

    def _save_best(self, found: Validation) -> None:
        """Write the weights that were just validated (averaged ones, where averaging is on)."""
        if not self.workers.first:
            return
        tensors = {f"{MODEL}{name}": t for name, t in self.model.state_dict().items()}
        if found.hypotheses is not None:
            write_lines(self.folder.hypotheses_file("dev"), found.hypotheses)
        about = {"epoch": self.state.epoch, "step": self.state.step, "dev_bleu": found.bleu}
        self.saver.save(self.folder.best_file, tensors, about | {"dev_perplexity": found.perplexity})

    def _restore(self) -> None:
        tensors, about = load_tensors(self.folder.last_file)
        self.state = State.from_json(about["state"])
        self.begun -= self.state.elapsed
        weights = {n.removeprefix(MODEL): t for n, t in tensors.items() if n.startswith(MODEL)}
        self.model.load_state_dict(weights)
        self.step.restore(tensors)
        self.averaging.restore(tensors)
        torch.set_rng_state(tensors["random.cpu"])
        if self.device.type == "cuda" and "random.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random.cuda"], self.device)
        self.progress.note(f"Going on from update {self.state.step}, epoch {self.state.epoch}")

    def _check_alike(self) -> None:
        """All processes must have read the same files and the same checkpoint."""
        own = [recipe_hash(self.recipe), self.prepared.hashes(), self.state.step]
        for rank, other in enumerate(self.workers.gather(own)):
            if other != own:
                raise UserError(
                    f"Processes {rank} and {self.workers.rank} see different text, settings or checkpoints; "
                    f"{self.folder.path} and the text must be on a disk that all machines share."
                )

    def _say_start(self) -> None:
        full, size = self.batches.fullness(), sum(p.numel() for p in self.model.parameters())
        processes = "" if self.workers.size == 1 else f"{self.workers.size} × "
        self.progress.note(
            f"{size:,} parameters on {processes}{self.device.type}{', bfloat16' if self.step.half else ''}; "
            f"{len(self.batches)} batches a pass, {full.budget:.1%} full; "
            f"an epoch is {self.epoch_batches} batches"
        )
        for idle in idle_settings(self.recipe):
            self.progress.warn(idle)
        if self.settings.batching == "mixed" and self.device.type != "cuda":
            self.progress.warn(
                "training.batching=mixed is for GPUs: here sentences of all lengths are padded to one."
            )
        if self.batches.dropped:
            self.progress.warn(
                f"{self.batches.dropped} training sentences are longer than training.batch_tokens="
                f"{self.settings.batch_tokens} and are left out."
            )

    def _try_largest(self) -> None:
        failure: Exception | None = None
        try:
            self.step.prepare(self.batches.largest())
        except (torch.OutOfMemoryError, MemoryError) as error:
            failure = error
        if self.workers.total(failure is not None)[0]:
            raise UserError(
                "The largest batch does not fit into memory; set training.batch_tokens lower (it is "
                f"{self.settings.batch_tokens}) and training.accumulate higher by the same factor."
            ) from failure

    def _diagnosis(self, outcome: Outcome) -> str:
        assert self._latest is not None
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
