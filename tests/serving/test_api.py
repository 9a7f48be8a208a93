"""What the API answers, held against the translator and the command line."""

import re

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the server's packages: pip install qknorm[serve]")

from qknorm.analysis import pair_attention
from qknorm.serving import Limits, load_served
from qknorm.serving.guard import HEADERS
from support.command import Command

LINES = ["gato casa", "", "ela home ano bico", "dente", "   ", "zebra gato", "fume fume fume casa casa ela"]


def test_translations_are_those_of_the_translator(client, models):
    for served in models:
        body = {"text": LINES, "model": served.name, "nbest": 2}
        answer = client.post("/translate", json=body).json()
        assert answer["model"] == served.name
        expected = list(served.translator.stream(LINES, nbest=2))
        assert [s["text"] for s in answer["sentences"]] == [
            found[0].text if found else "" for found in expected
        ]
        for sentence, found in zip(answer["sentences"], expected, strict=True):
            assert [each["text"] for each in sentence["translations"]] == [each.text for each in found]
            for each, other in zip(sentence["translations"], found, strict=True):
                assert each["score"] == pytest.approx(other.score, abs=1e-5)
                assert each["log_prob"] == pytest.approx(other.log_prob, abs=1e-5)
                assert each["attention"] is None


def test_translations_are_those_of_the_command(client, runs, tmp_path, monkeypatch, capsys):
    (tmp_path / "text").write_text("".join(line + "\n" for line in LINES))
    command = Command(tmp_path, monkeypatch, capsys)
    done = command("translate", runs[0], "text", "--nbest", 2, "--device", "cpu")
    assert done.code == 0
    rows = []
    for number, sentence in enumerate(
        client.post("/translate", json={"text": LINES, "nbest": 2}).json()["sentences"], 1
    ):
        for each in sentence["translations"] or [{"score": 0.0, "text": ""}]:
            rows.append((number, pytest.approx(each["score"], abs=1e-5), each["text"]))
    printed = [line.split("\t") for line in done.out.splitlines()]
    assert [(int(number), float(score), text) for number, score, text in printed] == rows


def test_one_sentence_may_be_sent_alone(client):
    alone = client.post("/translate", json={"text": "gato casa"}).json()
    listed = client.post("/translate", json={"text": ["gato casa"]}).json()
    assert alone == listed
    assert len(alone["sentences"]) == 1


def test_a_blank_sentence_stays_blank(client):
    answer = client.post("/translate", json={"text": " ", "attention": True}).json()
    assert answer["sentences"] == [{"text": "", "translations": [], "note": None}]


def test_the_beam_is_the_runs_own_unless_asked(client, models):
    for beam in (1, 3):
        answer = client.post("/translate", json={"text": LINES[2], "beam": beam}).json()
        (expected,) = models[0].translator([LINES[2]], beam=beam)
        assert answer["sentences"][0]["text"] == expected


def test_attention_is_the_models_between_words(client, models):
    body = {"text": ["gato casa", ""], "attention": True, "nbest": 2}
    first, blank = client.post("/translate", json=body).json()["sentences"]
    assert blank == {"text": "", "translations": [], "note": None}
    translator = models[0].translator
    (found,) = translator.stream(["gato casa"], nbest=2)
    (source,) = translator.subwords.encode(["gato casa"], "source")
    assert len(first["translations"]) == 2
    for each, translation in zip(first["translations"], found, strict=True):
        (seen,) = pair_attention(translator.models[0], translator.subwords, [source], [translation.ids])
        expected = seen.cross.words()
        assert each["attention"]["source"] == ["gato", "casa", "</s>"] == expected.columns
        assert each["attention"]["target"] == expected.rows
        weights = np.array(each["attention"]["weights"])
        assert weights.shape == expected.weights.shape
        assert np.abs(weights - expected.weights).max() < 1e-4
        assert np.abs(weights.sum(-1) - 1).max() < 1e-3


def test_words_the_model_does_not_know_are_named_as_sent(client, models):
    body = {"text": "gato Ünbekannt casa", "attention": True}
    (sentence,) = client.post("/translate", json=body).json()["sentences"]
    attention = sentence["translations"][0]["attention"]
    assert attention["source"] == ["gato", "Ünbekannt", "casa", "</s>"]
    assert np.abs(np.array(attention["weights"]).sum(-1) - 1).max() < 1e-3


def test_attention_that_is_too_large_is_left_out_and_told(serve, models):
    (found,) = models[0].translator.stream(["gato casa"], nbest=2)
    length = models[0].length("gato casa")
    about = models[0].about
    first = about.decoder_layers * about.heads * (length + 1) * (len(found[0].ids) + 1)
    client = serve(Limits(weights=first))
    body = {"text": "gato casa", "attention": True, "nbest": 2}
    (sentence,) = client.post("/translate", json=body).json()["sentences"]
    assert [each["attention"] is None for each in sentence["translations"]] == [False, True]
    assert "first 1 of 2" in sentence["note"]
    body["text"] = ["gato casa", "", "gato casa"]  # half as much for each of two
    sentences = client.post("/translate", json=body).json()["sentences"]
    assert all(each["attention"] is None for found in sentences for each in found["translations"])
    assert "first 0 of 2" in sentences[0]["note"]


def test_models_say_what_they_are(client):
    answer = client.get("/models").json()
    assert [model["name"] for model in answer["models"]] == ["qknorm", "baseline"]
    first, second = answer["models"]
    assert (first["qk_norm"], second["qk_norm"]) == ("l2", None)
    assert (first["decoder_layers"], second["decoder_layers"], first["heads"]) == (2, 1, 2)
    assert (first["source"], first["target"], first["text"], first["beam"]) == ("src", "tgt", "words", 2)
    assert answer["limits"] == {"sentences": 64, "characters": 2000, "subwords": 256, "beam": 16}


def test_nothing_tells_where_the_runs_are(client, runs):
    for path in ("/models", "/health", "/metrics", "/openapi.json", "/"):
        assert str(runs[0].parent) not in client.get(path).text


def test_runs_of_one_folder_name_get_names_of_their_own(runs):
    assert [each.name for each in load_served([runs[0], runs[0], runs[1]], "cpu")] == [
        "qknorm",
        "qknorm-2",
        "baseline",
    ]


def test_health(client):
    answer = client.get("/health")
    assert answer.status_code == 200
    assert answer.json()["status"] == "ok"
    assert answer.json()["queued"] == 0


def test_metrics_count_in_prometheus_format(serve):
    client = serve()
    client.post("/translate", json={"text": ["gato", "", "casa ela"]})
    client.post("/translate", json={"text": 3})
    client.get("/no/such/page")
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = answer.text
    for line in text.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) \w+ .+|\w+(\{\w+="[^"]*"(,\w+="[^"]*")*\})? [-+.e\d]+', line), (
            line
        )
    assert 'qknorm_requests_total{method="POST",path="/translate",status="200"} 1\n' in text
    assert 'qknorm_requests_total{method="POST",path="/translate",status="422"} 1\n' in text
    assert 'qknorm_requests_total{method="GET",path="other",status="404"} 1\n' in text
    assert "qknorm_sentences_total 2\n" in text
    assert "qknorm_batch_sentences_sum 2" in text
    assert 'qknorm_translate_seconds_bucket{le="+Inf"} 1\n' in text
    assert "qknorm_queued_sentences 0\n" in text


def test_the_api_describes_itself(client):
    about = client.get("/openapi.json").json()
    paths, parts = about["paths"], about["components"]["schemas"]
    assert {"/translate", "/models", "/health", "/metrics"} == set(paths)
    asked = paths["/translate"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(asked["properties"]) == {"text", "model", "beam", "nbest", "attention"}
    assert {"400", "401", "404", "408", "413", "415", "422", "503"} <= set(
        paths["/translate"]["post"]["responses"]
    )
    fields = {
        **asked["properties"],
        **{f"{n}.{k}": v for n, p in parts.items() for k, v in p["properties"].items()},
    }
    assert [name for name, each in fields.items() if not each.get("description")] == []


@pytest.mark.parametrize("path", ["/", "/docs", "/health", "/models", "/static/page.js", "/none"])
def test_every_answer_has_the_security_headers(client, path):
    answer = client.get(path)
    for name, value in HEADERS.items():
        if name != "Cache-Control":
            assert answer.headers[name] == value
    assert "server" not in answer.headers


def test_pages_bring_all_they_need_themselves(client):
    for path in ("/", "/docs"):
        page = client.get(path)
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "unsafe" not in page.headers["content-security-policy"]
        used = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        assert used and all(each.startswith("/") for each in used)
        assert not re.search(r"<style|style=|<script(?![^>]*src=)|\son\w+=", page.text)
        for each in used:
            assert client.get(each).status_code == 200, each
            for inner in re.findall(r'from "\./([^"]+)"', client.get(each).text):
                assert client.get(f"/static/{inner}").status_code == 200, inner


@pytest.mark.parametrize(
    "path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/app.py"]
)
def test_no_path_leads_to_another_file(client, path):
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"].endswith(".")
