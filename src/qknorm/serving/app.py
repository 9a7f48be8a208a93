"""The web application: the API, the page, and the pages about the API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException
from starlette.routing import Route

from qknorm import __version__
from qknorm.serving.asked import Asked, RefusedError, read_asked
from qknorm.serving.batcher import Batcher, OverloadedError
from qknorm.serving.guard import ApiKey, Guard, problem
from qknorm.serving.limits import Limits
from qknorm.serving.metrics import CONTENT_TYPE, Metrics
from qknorm.serving.schema import Health, Models, Problem, Translated, TranslateRequest
from qknorm.serving.served import Served
from qknorm.serving.work import Job, blank, to_json

PAGES = {
    "/": ("index.html", "text/html"),
    "/docs": ("docs.html", "text/html"),
    "/static/page.css": ("page.css", "text/css"),
    "/static/page.js": ("page.js", "text/javascript"),
    "/static/words.js": ("words.js", "text/javascript"),
    "/static/panel.js": ("panel.js", "text/javascript"),
    "/static/docs.js": ("docs.js", "text/javascript"),
    "/static/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""Everything that is sent as a file: there is no other way to a file."""

GONE = 499
"""Counted when the client went away; nobody gets this answer."""

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "Not JSON, or not UTF-8"},
    401: {"model": Problem, "description": "The API key is missing or wrong"},
    404: {"model": Problem, "description": "Unknown model"},
    408: {"model": Problem, "description": "The request took too long to arrive"},
    413: {"model": Problem, "description": "The request is too large"},
    415: {"model": Problem, "description": "Not sent as application/json"},
    422: {"model": Problem, "description": "A wrong type or value, or too long, or too many"},
    503: {"model": Problem, "description": "Too much is waiting; Retry-After says when to come again"},
}

BEARER = HTTPBearer(auto_error=False, description="The API key, where the server was started with one.")
Shown = Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]


def create_app(
    models: Sequence[Served], limits: Limits | None = None, api_key: str | None = None, local: bool = True
) -> FastAPI:
    """The application that serves these models.

    Args:
        models: the runs; requests that name none get the first.
        limits: how much to take on.
        api_key: what clients must send as ``Authorization: Bearer``; None for no key.
        local: answer only to requests for localhost; see ``Guard``.
    """
    limits = limits or Limits()
    metrics = Metrics()
    batcher = Batcher(limits, metrics)
    metrics.queued = lambda: batcher.queued
    named = {each.name: each for each in models}
    key = ApiKey(api_key)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        yield
        await batcher.stop()

    app = FastAPI(
        title="qknorm",
        version=__version__,
        description="Translation with trained runs. Errors are JSON objects whose `error` is a sentence.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        exception_handlers={RefusedError: _refused, HTTPException: _http_error},
        routes=[Route(path, _page(*page)) for path, page in PAGES.items()],
    )

    def check_key(shown: Shown) -> None:
        if not key.admits(shown.credentials if shown else None):
            raise RefusedError(
                401,
                "This server needs an API key; send it in the header Authorization: Bearer KEY.",
                {"WWW-Authenticate": "Bearer"},
            )

    admitted = [Depends(check_key)]
    body = {"application/json": {"schema": TranslateRequest.model_json_schema()}}

    @app.post(
        "/translate",
        dependencies=admitted,
        response_model=Translated,
        responses=ERRORS,
        openapi_extra={"requestBody": {"required": True, "content": body}},
    )
    async def translate(request: Request) -> Response:
        """Translate one sentence or many; the answer has one entry a sentence, in their order.

        Translations are those of `qknorm translate` with the same beam, whatever else is asked meanwhile.
        """
        return await _translate(request, await read_asked(request, named, limits), batcher)

    @app.get("/models", dependencies=admitted, responses={401: ERRORS[401]})
    async def list_models() -> Models:
        """The runs that are served; the first is the one that requests get which name none."""
        shown = ("sentences", "characters", "subwords", "beam")
        return Models(
            models=[each.about for each in models], limits={name: getattr(limits, name) for name in shown}
        )

    @app.get("/health")
    async def health() -> Health:
        """That the server is up. Needs no key."""
        return Health(status="ok", version=__version__, queued=batcher.queued)

    @app.get("/metrics", dependencies=admitted, response_class=Response, responses={401: ERRORS[401]})
    async def show_metrics() -> Response:
        """Counts since the start, in Prometheus's text format."""
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    paths = {*PAGES, "/translate", "/models", "/health", "/metrics", "/openapi.json"}
    app.add_middleware(Guard, metrics=metrics, paths=paths, local=local, most=limits.requests)
    return app


async def _translate(request: Request, asked: Asked, batcher: Batcher) -> Response:
    """Queue the sentences and wait for their translations, or for the client to go away."""
    weights = batcher.limits.weights // max(1, sum(length > 0 for length in asked.lengths))
    shared = (asked.beam, asked.nbest, asked.attention, weights)
    pairs = zip(asked.lines, asked.lengths, strict=True)
    jobs = [Job(asked.served, line, length, *shared) if length else None for line, length in pairs]
    queued = [job for job in jobs if job is not None]
    try:
        batcher.submit(queued)
    except OverloadedError as error:
        raise RefusedError(
            503,
            f"Too much is waiting to be translated; try again in {error.retry_after} s.",
            {"Retry-After": str(error.retry_after)},
        ) from None
    try:
        if not await _finished(request, queued):
            return Response(status_code=GONE)
    finally:
        batcher.drop(queued)  # those that are not done by now: nobody waits for them
    sentences = b",".join(blank() if job is None else job.answer.result() for job in jobs)
    answer = b'{"model":%b,"sentences":[%b]}' % (to_json(asked.served.name), sentences)
    return Response(answer, media_type="application/json")


async def _finished(request: Request, jobs: Sequence[Job]) -> bool:
    """Whether all jobs are done, well or not; False when the client went away first."""
    if not jobs:
        return True
    gone = asyncio.create_task(_disconnected(request))
    done = asyncio.create_task(_all(jobs))
    try:
        await asyncio.wait([gone, done], return_when=asyncio.FIRST_COMPLETED)
        return done.done()
    finally:
        gone.cancel()
        done.cancel()


async def _all(jobs: Sequence[Job]) -> None:
    """Wait for all answers; giving up the wait leaves them alone."""
    done, _ = await asyncio.wait([job.answer for job in jobs])
    for answer in done:
        answer.exception()  # looked at, so that none is reported as lost when another is raised


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _page(name: str, kind: str) -> Any:
    """What answers with one of our own files, read once."""
    content = files("qknorm.serving").joinpath("static", name).read_bytes()

    async def page(_: Request) -> Response:
        return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

    return page


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    return problem(error.status, error.sentence, error.headers)


async def _http_error(_: Request, error: Exception) -> Response:
    """There is no such page, or not for this method."""
    assert isinstance(error, HTTPException)
    sentence = {
        404: "There is nothing here; the API is described at /docs.",
        405: "This cannot be asked with that method; the API is described at /docs.",
    }.get(error.status_code, f"{error.detail}.")
    return problem(error.status_code, sentence, dict(error.headers or {}))
