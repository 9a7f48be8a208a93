"""What is to be done for an experiment: nothing, a copy, or a training that is begun or gone on with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qknorm.config import Recipe
from qknorm.paper.experiments import PAIRS
from qknorm.paper.plan import Experiment, TextFiles, experiment_hash, find_text
from qknorm.paper.records import find_record, find_twin
from qknorm.run import Run

RECORDED = "recorded"
FINISHED = "finished"
UNFINISHED = "to go on with"
NEW = "to train"
NO_TEXT = "no text"
TRAINING = "training"
FAILED = "failed"


@dataclass
class Task:
    """An experiment, the folder its run is in, and how far it has come."""

    experiment: Experiment
    recipe: Recipe
    hash: str
    run: Run
    state: str
    corpus: TextFiles | None = None
    why: str = ""

    @property
    def name(self) -> str:
        return self.experiment.name

    @property
    def waiting(self) -> bool:
        return self.state in (NEW, UNFINISHED)


def make_task(experiment: Experiment, data: Path, runs: Path, results: Path, weights: bool) -> Task:
    """Find out what is there of an experiment; with ``weights`` a record alone does not do."""
    recipe = experiment.recipe(data)
    corpus = find_text(recipe)
    record = find_record(results, experiment)
    stale = None if record is None else record.mismatch(recipe, corpus)
    if record is None or stale:
        twin = find_twin(results, experiment, recipe, corpus)
        record, stale = (record, stale) if twin is None else (twin, None)
    recorded = record is not None and stale is None
    if corpus is None:
        task = Task(experiment, recipe, "", Run(runs / experiment.name), RECORDED)
        if weights or not recorded:
            name = PAIRS[experiment.pair].corpus
            task.state, task.why = NO_TEXT, f"qknorm data get {name} --to {data / name}"
        return task
    key = experiment_hash(recipe, corpus)
    run = find_run(runs, experiment, key)
    finished = run.exists and run.scores() is not None and run.best_file.is_file()
    if recorded and (finished or not weights):
        state = RECORDED
    elif finished:
        state = FINISHED
    else:
        state = UNFINISHED if run.exists else NEW
    why = f"what is kept of it does not count: {stale}" if stale else ""
    return Task(experiment, recipe, key, run, state, corpus, why)


def find_run(runs: Path, experiment: Experiment, key: str) -> Run:
    """The run folder of a hash: any that has it in its name, or else one called after the experiment."""
    short = key[:12]
    found = sorted(runs.glob(f"*-{short}")) if runs.is_dir() else []
    return Run(found[0] if found else runs / f"{experiment.name}-{short}")
