"""The application: all APIs, health checks, metrics and the web page."""

import html
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from ownbert import __version__
from ownbert.serve import huggingface_api, native_api
from ownbert.serve.embedding_apis import openai_router, tei_router
from ownbert.serve.exchange import Refusal
from ownbert.serve.gate import Gate, error_response
from ownbert.serve.service import Service

_PAGE = Path(__file__).with_name("page.html").read_text(encoding="utf-8")


def make_app(service: Service, log: Any = sys.stderr) -> Gate:
    """Create the application for a service; ``log`` is the stream for the access log, or None."""
    app = FastAPI(
        title="OwnBERT",
        version=__version__,
        description="Your own models, with the APIs of OpenAI (embeddings), Hugging Face and "
        "text-embeddings-inference, and one path per task.",
        openapi_url="/openapi.json",
        docs_url=None,  # its scripts would be loaded from a CDN
        redoc_url=None,
    )
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _failed)

    @app.get("/livez", include_in_schema=False)
    async def livez() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz", include_in_schema=False)
    @app.get("/health", include_in_schema=False)
    @app.get("/ping", include_in_schema=False)
    async def readyz() -> JSONResponse:
        status = 200 if service.ready else 503
        return JSONResponse({"status": "ok" if service.ready else "loading"}, status)

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        return Response(service.metrics.page(), media_type="text/plain; version=0.0.4")

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(
            _PAGE, headers={"content-security-policy": "default-src 'self' 'unsafe-inline'"}
        )

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(_list_of_paths(app.openapi()))

    for router in (openai_router, huggingface_api.router, tei_router, native_api.router):
        app.include_router(router(service))
    return Gate(app, service, log)


def _list_of_paths(schema: Mapping[str, Any]) -> str:
    """All paths as an HTML page without scripts."""
    rows = [
        f"<tr><td>{method.upper()}<td>{html.escape(path)}<td>{', '.join(about.get('tags', ()))}"
        for path, methods in schema["paths"].items()
        for method, about in methods.items()
    ]
    head = '<!doctype html><meta charset="utf-8"><title>OwnBERT</title>'
    more = '<p><a href="openapi.json">openapi.json</a> has the fields of all bodies.'
    return f"{head}<table>{''.join(rows)}</table>{more}"


async def _refused(request: Request, error: Any) -> JSONResponse:
    return error_response(error, request.scope["path"])


async def _invalid(request: Request, error: Any) -> JSONResponse:
    """Report the first validation error of a body, as one line."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_json = kind == "application/json" or kind.endswith("+json")
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:] if not str(part).startswith("list["))
    message = first["msg"]
    if first["type"] == "extra_forbidden":
        message = "there is no field of this name; /openapi.json lists the fields"
    refusal = Refusal(422, f"{where or 'the body'}: {message}", "invalid_value", where or None)
    if not is_json and tuple(first["loc"]) == ("body",):
        message = "the body was not sent as JSON; add the header content-type: application/json"
        refusal = Refusal(422, message, "invalid_value")
    elif first["type"] == "json_invalid":
        refusal = Refusal(400, "the body is not JSON", "invalid_json")
    return await _refused(request, refusal)


async def _http(request: Request, error: Any) -> JSONResponse:
    codes = {400: "invalid_json", 404: "not_found", 405: "wrong_method"}
    code = codes.get(error.status_code, "refused")
    message = f"{request.scope['path']}: {error.detail}"
    response = await _refused(request, Refusal(error.status_code, message, code))
    response.headers.update(error.headers or {})  # Allow
    return response


async def _failed(request: Request, error: Any) -> JSONResponse:
    return await _refused(request, Refusal(500, "the server failed on this request", "failed"))
