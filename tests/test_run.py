"""The run folder when something stops while it is written, and when it is damaged."""

from __future__ import annotations

import pytest

import qknorm.run as module
from qknorm.cli.recipe import choose_recipe
from qknorm.data import write_atomic
from qknorm.errors import UserError
from qknorm.progress import Progress
from qknorm.run import Run
from qknorm.training import train
from support.command import Command
from support.tiny import tiny_recipe, write_corpus

SHORT = "training.max_epochs=1"


@pytest.fixture
def run(tmp_path):
    recipe = tiny_recipe(write_corpus(tmp_path / "corpus"), SHORT)
    return train(recipe, tmp_path / "run", device="cpu", progress=Progress(quiet=True), cache=tmp_path).run


@pytest.mark.parametrize("writes", [0, 1, 2, 3])
@pytest.mark.parametrize("again", [False, True])
def test_stopped_while_its_recipe_is_replaced_it_can_be_read_and_replaced(run, monkeypatch, writes, again):
    """After any number of its writes; a second stop like the first changes nothing."""
    recipe, corpus = run.recipe(), run.manifest()["corpus"]
    other = recipe.model_copy(update={"name": "other"})
    for _ in range(1 + again):
        left = [None] * writes

        def write(path, text, left=left):
            if not left:
                raise KeyboardInterrupt
            left.pop()
            write_atomic(path, text)

        with monkeypatch.context() as patch:
            patch.setattr(module, "write_atomic", write)
            if writes < 3:
                with pytest.raises(KeyboardInterrupt):
                    run.replace_recipe(other, corpus)
            else:
                run.replace_recipe(other, corpus)
        assert Run(run.path).recipe() == (recipe if writes < 2 else other)
    run.replace_recipe(other, corpus)
    assert run.recipe() == other and "replaced" not in run.manifest()
    run.recipe_file.write_text(run.recipe_file.read_text().replace("other", "altered"))
    with pytest.raises(UserError, match="recipe.yaml was altered since it was written"):
        run.recipe()


@pytest.mark.parametrize("begun", ["cpu", "cuda"])
def test_what_the_device_chose_stays_on_another(run, tmp_path, begun, capsys):
    """Without a recipe: begun where there is no GPU, and gone on with where there is one, and the reverse."""
    files = {
        f"train_{side}": tmp_path / f"corpus/train.{end}"
        for side, end in (("source", "src"), ("target", "tgt"))
    }

    def chosen(path, *overrides, device="cuda" if begun == "cpu" else "cpu"):
        return choose_recipe(None, files, "words", path, overrides, Progress(), device)[0]

    first, other = chosen(tmp_path / "new", device=begun), chosen(tmp_path / "new")
    assert first.training.batching != other.training.batching and first.training != other.training
    run.replace_recipe(first, run.manifest()["corpus"])
    capsys.readouterr()
    assert chosen(run.path) == first
    assert ("Without a GPU" in capsys.readouterr().err) == (begun == "cpu")
    changed = chosen(run.path, "training.label_smoothing=0.2", "training.batch_tokens=512")
    expected = {"label_smoothing": 0.2, "batch_tokens": 512}
    assert changed == first.model_copy(update={"training": first.training.model_copy(update=expected)})


@pytest.mark.parametrize("where", ["finish", "open_run"])
def test_stopped_outside_of_training_it_says_how_to_go_on(run, tmp_path, monkeypatch, capsys, where):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"qknorm.training.members.{where}", interrupted)
    command = Command(tmp_path, monkeypatch, capsys)
    done = command("train", "--run", "run", "--set", "training.members=2", "--device", "cpu")
    assert done.code == 130
    assert "Stopped; nothing that was trained is lost. Go on with: qknorm train --run run\n" in done.err
    monkeypatch.undo()
    assert train(run.recipe(), run.path, device="cpu", progress=Progress(quiet=True)).scores is not None


@pytest.mark.parametrize("text", ["", "{", "[1]"])
def test_damaged_scores_are_named(run, text):
    run.scores_file.write_text(text)
    with pytest.raises(UserError, match=r"scores.json is damaged.*restore it from a copy"):
        run.scores()


def test_a_run_knows_whether_it_is_one_of_several(run, tmp_path, monkeypatch):
    assert run.whole() is None
    member = Run(run.path / "members" / "2")
    assert member.whole().path == run.path
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run" / "members" / "2").mkdir(parents=True)
    assert str(Run("run/members/2").whole().path) == "run"
    monkeypatch.chdir(tmp_path / "run" / "members")
    assert Run("2").whole().path == tmp_path / "run"
    assert Run(tmp_path / "elsewhere" / "members" / "2").whole() is None
