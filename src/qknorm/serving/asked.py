"""From the bytes of a request to what it asks for; what is wrong with it, in a sentence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request

from qknorm.serving.limits import Limits
from qknorm.serving.schema import TranslateRequest
from qknorm.serving.served import Served

_KINDS = {
    "missing": "is missing",
    "extra_forbidden": "is not something a request can have",
    "int_type": "must be a whole number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "greater_than_equal": "must be at least 1",
}


class RefusedError(Exception):
    """A request that is not answered: the status and a sentence."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, dict(headers or {})


@dataclass(frozen=True)
class Asked:
    """A request that can be answered."""

    served: Served
    lines: list[str]
    lengths: list[int]
    """The subwords of each line."""
    beam: int
    nbest: int
    attention: bool


async def read_asked(request: Request, models: Mapping[str, Served], limits: Limits) -> Asked:
    """Read a request for translations and check all of it; a RefusedError says what is wrong."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RefusedError(415, "Send the request as JSON, with the header Content-Type: application/json.")
    values = parse(await read_body(request, limits))
    if values.model is not None and values.model not in models:
        known = ", ".join(models)
        raise RefusedError(404, f"There is no model of that name here; there is: {known}.")
    served = next(iter(models.values())) if values.model is None else models[values.model]
    beam = served.about.beam if values.beam is None else values.beam
    if beam > limits.beam and values.beam is not None:
        raise RefusedError(422, f"beam must be at most {limits.beam}, not {beam}.")
    if values.nbest > beam:
        raise RefusedError(422, f"nbest must be at most beam ({beam}), not {values.nbest}.")
    lines = check_lines([values.text] if isinstance(values.text, str) else values.text, limits)
    lengths = measure(lines, served, limits)
    return Asked(served, lines, lengths, beam, values.nbest, values.attention)


async def read_body(request: Request, limits: Limits) -> bytes:
    """The body, as long as it is not too large nor too slow."""
    body = bytearray()
    too_large = RefusedError(
        413, f"The request is larger than {limits.body_bytes:,} bytes; send fewer sentences."
    )
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limits.body_bytes:
        raise too_large
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limits.body_bytes:
                    raise too_large
    except TimeoutError:
        raise RefusedError(
            408, f"The request did not arrive within {limits.body_seconds:g} seconds; send it again."
        ) from None
    except ClientDisconnect:
        raise RefusedError(400, "The request broke off before its end.") from None
    return bytes(body)


def parse(body: bytes) -> TranslateRequest:
    """The fields of a request, of the right types."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RefusedError(400, f"The request is not valid UTF-8, from byte {error.start} on.") from None
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise RefusedError(
            400, f"The request is not JSON: {error.msg}, line {error.lineno} column {error.colno}."
        ) from None
    except (RecursionError, ValueError):  # nested too deeply; a number of thousands of digits
        raise RefusedError(400, "The request is not JSON that can be read here.") from None
    if not isinstance(values, dict):
        raise RefusedError(422, 'The request must be a JSON object, such as {"text": "a sentence"}.')
    try:
        return TranslateRequest.model_validate(values)
    except ValidationError as error:
        raise RefusedError(422, _sentences(error)) from None


def check_lines(lines: list[str], limits: Limits) -> list[str]:
    """The same sentences; a RefusedError where one of them is not a line of text."""
    if not lines:
        raise RefusedError(422, "text is an empty list; send at least one sentence.")
    if len(lines) > limits.sentences:
        raise RefusedError(
            422, f"There are {len(lines)} sentences; at most {limits.sentences} fit in one request."
        )
    for number, line in enumerate(lines, 1):
        if len(line) > limits.characters:
            raise RefusedError(
                422,
                f"Sentence {number} has {len(line)} characters; at most {limits.characters} are translated.",
            )
        if "\n" in line:
            raise RefusedError(
                422, f"Sentence {number} has a line break in it; send each line as a sentence of its own."
            )
        if "\0" in line:
            raise RefusedError(422, f"Sentence {number} has a NUL character in it, which is not text.")
        if any("\ud800" <= c <= "\udfff" for c in line):
            raise RefusedError(422, f"Sentence {number} has half of a surrogate pair, which is not text.")
    return lines


def measure(lines: list[str], served: Served, limits: Limits) -> list[int]:
    """The subwords of each line; a RefusedError at the first that has too many, before more are counted."""
    lengths = []
    for number, line in enumerate(lines, 1):
        lengths.append(served.length(line))
        if lengths[-1] > limits.subwords:
            raise RefusedError(
                422,
                f"Sentence {number} has {lengths[-1]} subwords; at most {limits.subwords} are translated. "
                "Cut it into shorter sentences.",
            )
    return lengths


def _sentences(error: ValidationError) -> str:
    """What pydantic found wrong; the value itself is not repeated."""
    found = reversed(error.errors(include_url=False))
    faults = {str(fault["loc"][0]) if fault["loc"] else "": fault for fault in found}  # "": a name not text
    known = TranslateRequest.model_fields
    said = []
    for name, fault in reversed(faults.items()):
        if name == "text" and fault["type"] != "missing":
            said.append("text must be a sentence or a list of sentences.")
        elif name not in known:
            said.append(f"The request has a field that is not known; the fields are {', '.join(known)}.")
        else:
            said.append(f"{name} {_KINDS[fault['type']]}.")
    return " ".join(dict.fromkeys(said))
