"""What trained models add to their own training text."""

import gzip
import json
import shutil

import pytest

from qknorm import Translator
from qknorm.errors import UserError
from qknorm.progress import Progress
from qknorm.training import train
from qknorm.translation import augment as module
from qknorm.translation import translator
from qknorm.translation.augment import Search, augment
from support.command import Command, run_command
from support.processes import run_together
from support.tiny import tiny_recipe, write_corpus

LONGER = ["training.max_epochs=6", "training.epoch_batches=12"]
BACK = ["data.source=tgt", "data.target=src"]


def made(recipe, run, cache):
    return train(recipe, run, device="cpu", progress=Progress(quiet=True), cache=cache).run.path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run, one the other way round on the same text, and one on other text."""
    folder = tmp_path_factory.mktemp("runs")
    corpus = write_corpus(folder / "corpus", train=120)
    other = write_corpus(folder / "other", seed=1)
    return (
        made(tiny_recipe(corpus, *LONGER), folder / "there", folder),
        made(tiny_recipe(corpus, *LONGER, *BACK), folder / "back", folder),
        made(tiny_recipe(other), folder / "other-text", folder),
    )


def read(path):
    return path.read_text().split("\n")[:-1]


def both(folder, split="train"):
    return list(zip(read(folder / f"{split}.src"), read(folder / f"{split}.tgt"), strict=True))


def add(runs, to, quiet=True, **options):
    return augment(runs, to, progress=Progress(quiet=quiet), **options)


def joined(real, *parts):
    """What the corpus is to be: all real pairs, then each new one once, none with an empty side."""
    new = [pair for part in parts for pair in part if all(side.strip() for side in pair)]
    return real + [pair for pair in dict.fromkeys(new) if pair not in set(real)]


def test_both_ways_are_what_the_models_say(runs, tmp_path):
    there, back, _ = runs
    corpus = there.parent / "corpus"
    made = add([there, back], tmp_path / "more")
    real = both(corpus)
    said = list(
        zip(read(corpus / "train.src"), Translator.load(there)(read(corpus / "train.src")), strict=True)
    )
    asked = list(
        zip(Translator.load(back)(read(corpus / "train.tgt")), read(corpus / "train.tgt"), strict=True)
    )
    assert both(tmp_path / "more") == joined(real, said, asked)
    assert made.counts["train"] == len(both(tmp_path / "more")) > len(real) + 20, "the models must differ"
    assert both(tmp_path / "more", "dev") == both(corpus, "dev")
    assert both(tmp_path / "more", "test") == both(corpus, "test")
    about = json.loads((tmp_path / "more" / "augmented.json").read_bytes())
    assert about["real"] == len(real)
    assert [(part["run"], part["reads"]) for part in about["parts"]] == [
        ("there", "source"),
        ("back", "target"),
    ]
    for part in about["parts"]:
        assert part["lines"] == 120 == part["kept"] + part["copies"] + part["blank"]
    assert about["real"] + sum(part["kept"] for part in about["parts"]) == made.counts["train"]
    assert "120 pairs as they were." in made.note and "there, train.src:" in made.note


def test_one_can_train_on_it(runs, tmp_path):
    add(runs[:2], tmp_path / "more")
    path = made(tiny_recipe(tmp_path / "more"), tmp_path / "run", tmp_path)
    assert (path / "hypotheses" / "test.txt").exists()


def test_stopped_and_gone_on_with_is_as_if_never_stopped(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(translator, "CHUNK", 7)
    add(runs[:2], tmp_path / "whole")
    honest = Translator.stream
    read_lines = []

    def counted(self, lines, *arguments, **options):
        def seen():
            for line in lines:
                read_lines.append(line)
                yield line

        return honest(self, seen(), *arguments, **options)

    def stopped(self, lines, *arguments, **options):
        for number, found in enumerate(honest(self, lines, *arguments, **options)):
            if number == 30:
                raise KeyboardInterrupt
            yield found

    monkeypatch.setattr(Translator, "stream", stopped)
    with pytest.raises(KeyboardInterrupt):
        add(runs[:2], tmp_path / "more")
    (begun,) = (tmp_path / "more" / "parts").iterdir()
    assert begun.name.endswith(".begun") and len(read(begun)) == 28, "four steps of seven lines"
    assert not (tmp_path / "more" / "train.src").exists()
    with begun.open("ab") as file:
        file.write(b"a line that was cut o")
    monkeypatch.setattr(Translator, "stream", counted)
    add(runs[:2], tmp_path / "more", quiet=False)
    assert len(read_lines) == 120 - 28 + 120
    said = capsys.readouterr().err
    assert "there translates train.src: 120 lines, 28 of them done before\n" in said
    assert "back translates train.tgt: 120 lines\n" in said
    for name in ("train.src", "train.tgt", "augmented.json", "SHA256SUMS"):
        assert (tmp_path / "more" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    read_lines.clear()
    add(runs[:2], tmp_path / "more")
    assert not read_lines, "all of it is there"
    add(runs[:2], tmp_path / "more", search=Search(beam=1))
    assert len(read_lines) == 240, "another search is another translation"


def test_text_of_one_language_alone(runs, tmp_path):
    """Back-translation: what is real is the target side."""
    there, back, _ = runs
    (tmp_path / "more.tgt").write_text("cat man\n\nshe smoke year\n")
    with pytest.raises(UserError, match="no run was named that translates the other way round than"):
        add([there], tmp_path / "more", target_text=[tmp_path / "more.tgt"])
    add([there, back], tmp_path / "more", target_text=[tmp_path / "more.tgt"])
    about = json.loads((tmp_path / "more" / "augmented.json").read_bytes())["parts"]
    assert [(part["run"], part["text"]) for part in about] == [
        ("there", "train.src"),
        ("back", "train.tgt"),
        ("back", "more.tgt"),
    ]
    last = about[-1]
    assert (last["lines"], last["blank"]) == (3, 1) and last["kept"] > 0
    said = Translator.load(back)(["cat man", "she smoke year"])
    assert (
        both(tmp_path / "more")[-last["kept"] :]
        == list(zip(said, ["cat man", "she smoke year"], strict=True))[-last["kept"] :]
    )
    (tmp_path / "bad.src").write_bytes(b"ano\n\xff\n")
    with pytest.raises(UserError, match=r"bad\.src line 2 is not valid UTF-8"):
        add([there], tmp_path / "bad", source_text=[tmp_path / "bad.src"])


def test_dev_text_split_off_train_stays_out(tmp_path):
    """Where the run has set dev pairs aside, they must not come back as training text."""
    corpus = write_corpus(tmp_path / "corpus", train=150)
    for file in [*corpus.glob("dev.*"), *corpus.glob("test.*")]:
        file.unlink()
    there = made(tiny_recipe(corpus, "data.dev_size=20"), tmp_path / "there", tmp_path)
    add([there], tmp_path / "more")
    more = tmp_path / "more"
    assert both(more, "dev") == list(
        zip(read(there / "data" / "dev.source"), read(there / "data" / "dev.target"), strict=True)
    )
    assert not {source for source, _ in both(more)} & {source for source, _ in both(more, "dev")}
    assert not (more / "test.src").exists()


def test_packed_text(tmp_path):
    corpus = write_corpus(tmp_path / "corpus", train=60)
    plain = made(tiny_recipe(corpus), tmp_path / "run", tmp_path)
    add([plain], tmp_path / "a")
    for file in list(corpus.iterdir()):
        with gzip.open(f"{file}.gz", "wb") as packed:
            packed.write(file.read_bytes())
        file.unlink()
    with pytest.raises(UserError, match=r"train\.src\.gz is not the train text that .* was trained with"):
        add([plain], tmp_path / "b")
    packed = made(tiny_recipe(corpus), tmp_path / "packed" / "run", tmp_path)
    add([packed], tmp_path / "b")
    assert both(tmp_path / "b") == both(tmp_path / "a")


def test_what_does_not_fit_is_refused(runs, tmp_path):
    there, back, other = runs
    with pytest.raises(UserError, match=r"other-text was not trained on the text of .*there, neither"):
        add([there, other], tmp_path / "more")
    with pytest.raises(UserError, match="holds the text that is to be translated; name another folder"):
        add([there], there.parent / "corpus")
    with pytest.raises(UserError, match="is not a run folder"):
        add([tmp_path], tmp_path / "more")
    shutil.copytree(back, tmp_path / "young")
    (tmp_path / "young" / "best.safetensors").unlink()
    with pytest.raises(UserError, match=r"best\.safetensors does not exist yet; train .*young first"):
        add([there, tmp_path / "young"], tmp_path / "more")
    with pytest.raises(UserError, match="There is no file .*none.tgt"):
        add([there, back], tmp_path / "more", target_text=[tmp_path / "none.tgt"])
    assert not (tmp_path / "more").exists(), "all of it is said before anything is translated"


def test_text_that_is_there_stays(runs, tmp_path):
    """A folder that this command did not make is not written in; its own may be made again."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "dev.tgt").write_text("precious\n")
    with pytest.raises(UserError, match=r"dev\.tgt is there already, and not by this command"):
        add(runs[:1], tmp_path / "mine")
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["dev.tgt"]
    assert (tmp_path / "mine" / "dev.tgt").read_text() == "precious\n"


def test_the_command(runs, tmp_path, monkeypatch, capsys):
    there, back, other = runs
    command = Command(tmp_path, monkeypatch, capsys)
    done = command("data", "augment", there, back, "--to", "more", "--device", "cpu")
    assert done.code == 0, done.err
    assert "120 pairs as they were." in done.out and "there, train.src: " in done.out
    assert "--dev-source more/dev.src --dev-target more/dev.tgt" in done.out
    again = command("data", "augment", there, other, "--to", "more")
    assert again.code == 2 and "neither that way round nor the other" in again.err
    assert command("data", "augment", there, "--to", there / "recipe.yaml").code == 2

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_translate", interrupted)
    stopped = command("data", "augment", there, "--beam", "3", "--to", "more")
    assert stopped.code == 130 and "The same command goes on." in stopped.err


def test_two_processes_share_it(runs, tmp_path):
    there, back, _ = runs
    alone = run_command(tmp_path, "data", "augment", there, back, "--to", "alone")
    assert alone.code == 0, alone.err
    ended = run_together(
        tmp_path, 2, "-m", "qknorm", "data", "augment", there, back, "--to", "shared", "--device", "cpu"
    )
    assert [done.code for done in ended] == [0, 0], ended
    assert ended[0].out == alone.out.replace("alone", "shared") and not ended[1].out
    for name in ("train.src", "train.tgt", "augmented.json"):
        assert (tmp_path / "shared" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
