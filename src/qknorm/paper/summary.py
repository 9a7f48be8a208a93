"""A table as JSON: the paper's figures beside those of the runs kept, with tests and what they took."""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qknorm.errors import UserError
from qknorm.paper.experiments import PAIRS, TARGETS, Row, System, Target
from qknorm.paper.orderings import noise, orderings
from qknorm.paper.plan import KINDS, Experiment, TextFiles, experiment, find_text
from qknorm.paper.records import Record, all_failures, all_records
from qknorm.scoring import compare

MADE_BY = "qknorm reproduce"
COMPARED = ("delta", "ci_low", "ci_high", "p_value", "p_value_randomization", "signature")


@dataclass(frozen=True)
class Group:
    """Rows are shown by the recipes they were trained with and the user's own settings."""

    kind: str
    overrides: tuple[str, ...] = ()


class Summary:
    """Builds tables from what a folder of results keeps; for tests it needs the text, or earlier tests."""

    def __init__(self, results: Path, data: Path) -> None:
        self.results, self.data = results, data
        self.records = all_records(results)
        for record in self.records:
            record.check()
        self.failures = all_failures(results)
        self._tests: dict[str, dict[str, Any]] = {}
        self._corpora: dict[str, TextFiles | None] = {}
        self._found: dict[tuple[str, System, Group], tuple[list[Record], list[str]]] = {}

    def build(self, target: Target, asked: Iterable[Group] = ()) -> dict[str, Any]:
        """Everything the page of a target says."""
        self._remember_tests(target)
        groups = [self._group(target, group) for group in self._groups(target, asked)]
        return {
            "made_by": MADE_BY,
            "format": 1,
            "target": target.name,
            "title": target.title,
            "about": list(target.about),
            "against": target.against,
            "comparable": target.comparable,
            "groups": groups,
        }

    def _groups(self, target: Target, asked: Iterable[Group]) -> list[Group]:
        """Those asked for, now or before, and those with runs of this target's systems, paper before fast.

        A user's own settings with a run of nothing but the system that others are compared with are left out.
        """
        own = {(row.pair, row.system.name) for row in target.rows}
        found = {
            Group(record.about["recipe"], tuple(record.about["overrides"]))
            for record in self.records
            if (record.about["pair"], record.about["system"]) in own
            and not (record.about["overrides"] and record.about["system"] == target.against)
        }
        families = {row.system.family for row in target.rows}
        wanted = {Group(family or group.kind, group.overrides) for group in asked for family in families}
        before = read_summary(self.results / f"{target.name}.json") or {"groups": []}
        wanted |= {Group(group["recipe"]) for group in before["groups"] if not group["overrides"]}
        if not found and not wanted:
            wanted = {Group(family or KINDS[0]) for family in families}
        order = {kind: place for place, kind in enumerate(KINDS)}
        return sorted(found | wanted, key=lambda g: (g.overrides, order.get(g.kind, len(order))))

    def _group(self, target: Target, group: Group) -> dict[str, Any]:
        rows = [self._row(target, row, group, *self._kept(row, group)) for row in target.rows]
        _note_gains(target, rows)
        spread = noise(self._seeds_of(target, group))
        return {
            "recipe": group.kind,
            "overrides": list(group.overrides),
            "rows": rows,
            "noise": spread,
            **orderings(target, rows, spread),
        }

    def _seeds_of(self, target: Target, group: Group) -> dict[tuple[str, str], list[float]]:
        """Scores by pair and system, in the target's figure of the pair: of all tables' systems, since each
        says something of the noise that this target's differences are read against. A run counts once.
        """
        figures = {row.pair: row.figure for row in target.rows}
        found, counted = {}, set[str]()
        for row in (row for each in TARGETS.values() for row in each.rows if row.pair in figures):
            if (key := (row.pair, row.system.name)) not in found:
                kept = [record for record in self._kept(row, group)[0] if record.name not in counted]
                counted |= {record.name for record in kept}
                values = (record.figure(figures[row.pair]) for record in kept)
                found[key] = [value for value in values if value is not None]
        return found

    def _of(self, group: Group) -> list[Record]:
        return [
            record
            for record in self.records
            if (record.about["recipe"], tuple(record.about["overrides"])) == (group.kind, group.overrides)
        ]

    def _kept(self, row: Row, group: Group) -> tuple[list[Record], list[str]]:
        """The runs of a row by seed, and of those that no longer are what the row asks for, why.

        A run of another row that is the very same training is this row's too.
        """
        key = (row.pair, row.system, group)
        if key not in self._found:
            self._found[key] = self._find(row, group)
        return self._found[key]

    def _find(self, row: Row, group: Group) -> tuple[list[Record], list[str]]:
        own, twins, stale = dict[int, Record](), dict[int, Record](), []
        for record in self._of(group):
            if record.about["pair"] != row.pair:
                continue
            asked = Experiment(row.pair, row.system, group.kind, record.seed, group.overrides)
            reason = record.mismatch(asked.recipe(self.data), self._corpus(asked))
            is_own = record.about["system"] == row.system.name
            if reason is None:
                (own if is_own else twins)[record.seed] = record
            elif is_own:
                stale.append(f"{record.name} is kept, but {reason}")
        kept = twins | own
        return [kept[seed] for seed in sorted(kept)], stale

    def _corpus(self, asked: Experiment) -> TextFiles | None:
        if asked.pair not in self._corpora:
            self._corpora[asked.pair] = find_text(asked.recipe(self.data))
        return self._corpora[asked.pair]

    def _row(
        self, target: Target, row: Row, group: Group, kept: list[Record], stale: list[str]
    ) -> dict[str, Any]:
        about: dict[str, Any] = {
            "label": row.label,
            "pair": row.pair,
            "system": row.system.name,
            "changes": list(row.system.changes),
            "figure": row.figure,
            "paper": row.paper,
            "paper_facts": dict(row.facts),
            "note": row.note,
            "failures": self._failed(row, group),
        }
        if not kept:
            return about | self._not_run(target, row, group, stale)
        values = [record.figure(row.figure) for record in kept]
        ours = [value for value in values if value is not None]
        mean = statistics.fmean(ours) if ours else None
        caveat = kept[0].caveat()
        comparable = target.comparable and caveat is None
        first = kept[0]
        return about | {
            "status": "done",
            "stale": stale,
            "seeds": [record.seed for record in kept],
            "values": values,
            "ours": mean,
            "spread": statistics.stdev(ours) if len(ours) > 1 else None,
            "difference": mean - row.paper
            if mean is not None and row.paper is not None and comparable
            else None,
            "caveat": caveat,
            "dev": [record.figure(_dev_figure(row)) for record in kept],
            "tests": self._compared(target, row, group, kept),
            "facts": {
                "examples": first.manifest["facts"]["examples"],
                "tokens": first.manifest["facts"]["tokens"],
                "parameters": first.about["parameters"],
                "hours": statistics.fmean(record.minutes for record in kept) / 60,
                "L": first.manifest["facts"]["L"],
                "gpu": first.about["device"],
            },
            "runs": [record.name for record in kept],
            "run_minutes": {record.name: record.minutes for record in kept},
            "run_devices": {record.name: record.about["device"] for record in kept},
            "experiments": [record.about["experiment"] for record in kept],
            "side_by_side": any(record.about.get("side_by_side") for record in kept),
            "signature": first.signature(row.figure),
            "command": command(target, row, group, [record.seed for record in kept]),
        }

    def _not_run(self, target: Target, row: Row, group: Group, stale: list[str]) -> dict[str, Any]:
        asked = experiment(row, group.kind, 1, group.overrides)
        corpus = PAIRS[row.pair].corpus
        status = "failed" if self._failed(row, group) else "not run"
        return {
            "status": status,
            "stale": stale,
            "corpus_here": self._corpus(asked) is not None,
            "get": f"qknorm data get {corpus} --to data/{corpus}",
            "command": command(target, row, group, [1]),
        }

    def _failed(self, row: Row, group: Group) -> list[dict[str, Any]]:
        wanted = (row.pair, row.system.name, group.kind, list(group.overrides))
        return [
            {"seed": each["seed"], "why": each["why"]}
            for each in self.failures
            if tuple(each[key] for key in ("pair", "system", "recipe", "overrides")) == wanted
        ]

    def _compared(self, target: Target, row: Row, group: Group, kept: list[Record]) -> list[dict[str, Any]]:
        """Paired tests against the reference of the row's pair: the same seed, or else its first."""
        if target.against is None or row.system.name == target.against:
            return []
        wanted = row.pair, target.against
        against = next((each for each in target.rows if (each.pair, each.system.name) == wanted), None)
        references = {} if against is None else {r.seed: r for r in self._kept(against, group)[0]}
        if not references:
            return []
        first = references[min(references)]
        couples = ((references.get(record.seed, first), record) for record in kept)
        tests = (self._test(other, record) for other, record in couples if other.name != record.name)
        return [test for test in tests if test is not None]

    def _test(self, baseline: Record, system: Record) -> dict[str, Any] | None:
        """One comparison, as it was made before or made now; None where it needs text that is not here."""
        key = f"{baseline.fingerprint()}:{system.fingerprint()}"
        if key not in self._tests:
            references = self._references(system)
            if references is None:
                return None
            found = compare(baseline.hypotheses(), system.hypotheses(), references, system.about["kind"])
            figures = found.to_json()
            self._tests[key] = {"key": key} | {name: figures[name] for name in COMPARED}
        seeds = {"seed": system.seed, "baseline_seed": baseline.seed}
        return {**self._tests[key], **seeds, "runs": [baseline.name, system.name]}

    def _references(self, record: Record) -> Path | None:
        """The target side of test, if it is here and what the run was scored on."""
        asked = record.recipe.data.model_copy(
            update={"folder": self.data.absolute() / PAIRS[record.about["pair"]].corpus}
        )
        try:
            test = asked.paths().test
        except UserError:
            return None
        return None if test is None else test[1]

    def _remember_tests(self, target: Target) -> None:
        """Tests made before need not be made again, nor the text to be here."""
        for row in _rows(read_summary(self.results / f"{target.name}.json")):
            for test in row.get("tests", ()):
                self._tests.setdefault(test["key"], {name: test[name] for name in ("key", *COMPARED)})


def read_summary(file: Path) -> dict[str, Any] | None:
    """A file that ``qknorm reproduce`` wrote; None for any other, or none."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("made_by") == MADE_BY else None


def command(target: Target, row: Row, group: Group, seeds: list[int]) -> str:
    """What trains a row again, or finds it done."""
    words = ["qknorm", "reproduce", target.name]
    if len({r.pair for r in target.rows}) > 1:
        words += ["--pairs", row.pair]
    if group.kind in KINDS:
        words += ["--recipe", group.kind]
    words += ["--seeds", ",".join(map(str, seeds))]
    for override in group.overrides:
        words += ["--set", override]
    return shlex.join(words)


def _rows(summary: dict[str, Any] | None) -> list[dict[str, Any]]:
    return [] if summary is None else [row for group in summary["groups"] for row in group["rows"]]


def _note_gains(target: Target, rows: list[dict[str, Any]]) -> None:
    """Add to each row run how far it is above the reference row of its pair, in its own figure."""
    references = {row["pair"]: row.get("ours") for row in rows if row["system"] == target.against}
    for row in rows:
        reference = references.get(row["pair"])
        known = row["status"] == "done" and row["ours"] is not None and reference is not None
        row["gain"] = row["ours"] - reference if known and row["system"] != target.against else None


def _dev_figure(row: Row) -> str:
    return f"dev.{row.figure.partition('.')[2]}"
