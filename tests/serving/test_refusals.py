"""What is wrong with a request is said in a sentence, and the server goes on."""

import asyncio

import pytest

pytest.importorskip("fastapi", reason="needs the server's packages: pip install qknorm[serve]")

from starlette.requests import Request

from qknorm.serving import Limits
from qknorm.serving.asked import RefusedError, read_body

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        (b"", 400, "not JSON"),
        (b'{"text": "gato"', 400, "line 1 column 16"),
        (b'{"text": "ga\xffto"}', 400, "not valid UTF-8, from byte 12"),
        ('{"text": "gato"}'.encode("utf-16"), 400, "not valid UTF-8"),
        (b"[" * 100_000, 400, "JSON"),
        (b'{"text": "gato", "beam": ' + b"9" * 5000 + b"}", 400, "JSON"),
        (b'["gato"]', 422, "must be a JSON object"),
        (b"null", 422, "must be a JSON object"),
        (b"{}", 422, "text is missing"),
        (b'{"text": 3}', 422, "text must be a sentence or a list"),
        (b'{"text": null}', 422, "text must be a sentence or a list"),
        (b'{"text": ["gato", 3]}', 422, "text must be a sentence or a list"),
        (b'{"text": []}', 422, "empty list"),
        (b'{"text": "gato", "beam": "4"}', 422, "beam must be a whole number"),
        (b'{"text": "gato", "beam": 1.5}', 422, "beam must be a whole number"),
        (b'{"text": "gato", "beam": true}', 422, "beam must be a whole number"),
        (b'{"text": "gato", "beam": NaN}', 422, "beam must be a whole number"),
        (b'{"text": "gato", "beam": 0}', 422, "beam must be at least 1"),
        (b'{"text": "gato", "beam": 17}', 422, "beam must be at most 16, not 17"),
        (b'{"text": "gato", "nbest": 0}', 422, "nbest must be at least 1"),
        (b'{"text": "gato", "nbest": null}', 422, "nbest must be a whole number"),
        (b'{"text": "gato", "nbest": 3}', 422, "nbest must be at most beam (2), not 3"),
        (b'{"text": "gato", "attention": 1}', 422, "attention must be true or false"),
        (b'{"text": "gato", "model": 1}', 422, "model must be text"),
        (b'{"text": "gato", "model": "other"}', 404, "there is: qknorm, baseline"),
        (b'{"text": "gato", "model": "../qknorm"}', 404, "there is: qknorm, baseline"),
        (b'{"text": "gato", "file": "/etc/passwd"}', 422, "the fields are text, model, beam, nbest"),
        (b'{"text": "gato", "\\ud83d": 1}', 422, "the fields are text, model, beam, nbest"),
        (b'{"text": "gato\\ncasa"}', 422, "Sentence 1 has a line break"),
        (b'{"text": ["casa", "gato\\u0000"]}', 422, "Sentence 2 has a NUL"),
        (b'{"text": "\\ud83d"}', 422, "surrogate"),
        (b'{"text": "' + b"a" * 2001 + b'"}', 422, "has 2001 characters; at most 2000"),
        (b'{"text": "' + b"a b " * 150 + b'"}', 422, "has 300 subwords; at most 256"),
        (b'{"text": [' + b'"a",' * 64 + b'"a"]}', 422, "65 sentences; at most 64"),
        (b'{"text": "' + b"a" * 300_000 + b'"}', 413, "larger than 262,144 bytes"),
    ],
)
def test_bad_requests_get_a_sentence(client, body, status, sentence):
    answer = client.post("/translate", content=body, headers=JSON)
    assert (answer.status_code, list(answer.json())) == (status, ["error"])
    assert sentence in answer.json()["error"]
    assert answer.json()["error"].endswith(".")
    assert client.post("/translate", json={"text": "gato"}).status_code == 200


def test_a_body_without_its_length_is_cut_off_too(client):
    answer = client.post("/translate", content=(b" " * 65536 for _ in range(5)), headers=JSON)
    assert answer.status_code == 413


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_only_json_is_read(client, kind):
    """What a form on another site could send is not taken."""
    headers = {} if kind is None else {"content-type": kind}
    answer = client.post("/translate", content=b'{"text": "gato"}', headers=headers)
    assert answer.status_code == 415
    assert "application/json" in answer.json()["error"]


def test_a_slow_body_is_not_waited_for():
    async def receive():
        await asyncio.sleep(10)

    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    with pytest.raises(RefusedError) as refused:
        asyncio.run(read_body(request, Limits(body_seconds=0.01)))
    assert refused.value.status == 408


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/translate", 405), ("GET", "/nix", 404)])
def test_what_is_not_there(client, method, path, status):
    answer = client.request(method, path)
    assert answer.status_code == status
    assert "/docs" in answer.json()["error"]


@pytest.mark.parametrize("path", ["/translate", "/models", "/metrics"])
@pytest.mark.parametrize(
    "shown", [None, "Bearer wrong", "Bearer ", "Basic c2VjcmV0", "secret", "Bearer sécret"]
)
def test_without_the_key_nothing_is_told(serve, path, shown):
    client = serve(api_key="secret")
    headers = {} if shown is None else {"Authorization": shown.encode()}
    method = "POST" if path == "/translate" else "GET"
    answer = client.request(method, path, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "API key" in answer.json()["error"]


def test_with_the_key_all_is_told(serve):
    client = serve(api_key="secret")
    headers = {"Authorization": "Bearer secret"}
    assert client.post("/translate", json={"text": "gato"}, headers=headers).status_code == 200
    assert client.get("/models", headers=headers).status_code == 200
    assert client.get("/metrics", headers=headers).status_code == 200
    assert client.get("/health").status_code == 200
    assert client.get("/").status_code == 200


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000", "[::1]"])
def test_names_of_this_machine_are_answered(client, host):
    assert client.get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1.example.org:8000", "", "192.168.1.4"])
def test_other_names_are_not_answered_on_loopback(client, serve, host):
    assert client.get("/health", headers={"Host": host}).status_code == 421
    assert serve(local=False).get("/health", headers={"Host": "example.org"}).status_code == 200


def test_a_failure_inside_is_a_sentence_without_details(serve, models, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("/some/where")

    monkeypatch.setattr(type(models[0].translator), "stream", broken)
    client = serve()
    answer = client.post("/translate", json={"text": ["gato", "casa"]})
    assert answer.status_code == 500
    assert "/some/where" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    monkeypatch.undo()
    assert client.post("/translate", json={"text": "gato"}).status_code == 200
