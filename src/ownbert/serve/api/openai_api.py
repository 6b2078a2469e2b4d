"""OpenAI's API for embeddings, for its clients.

The format follows the reference of ``POST /v1/embeddings`` and ``GET /v1/models``.
"""

import base64
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from ownbert.serve.api.exchange import Refusal, Several, json_answer
from ownbert.serve.service import ModelRequest, Service, usage_of

# Maximum texts per request.
_MOST_INPUTS = 2048


class EmbeddingsRequest(BaseModel):
    """The body of ``POST /v1/embeddings``."""

    model_config = ConfigDict(
        extra="ignore", json_schema_extra={"examples": [{"model": "NAME", "input": ["a text"]}]}
    )

    input: str | Several[str] | Several[int] | Several[Several[int]]
    model: str
    encoding_format: str | None = Field("float", pattern="^(float|base64)$")
    dimensions: int | None = Field(None, ge=1)
    user: str | None = None


def router(service: Service) -> APIRouter:
    """The routes of this API."""
    routes = APIRouter(tags=["OpenAI"])

    @routes.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model_entry(name) for name in service.models]}

    @routes.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        return _model_entry(service.model(name).name)

    @routes.post("/v1/embeddings")
    async def embeddings(body: EmbeddingsRequest, request: Request) -> Response:
        call = ModelRequest(service, request, body.model)
        served = call.model
        served.require("embed")
        given: Any = body.input
        if isinstance(given, str) or (given and isinstance(given[0], int)):
            given = [given]
        if not given or not all(given):
            raise Refusal(400, "input is empty, or has an empty text", "invalid_value", "input")
        if len(given) > _MOST_INPUTS:
            message = f"{len(given):,} inputs; at most {_MOST_INPUTS:,}"
            raise Refusal(400, message, "invalid_value", "input")
        prepare = served.embed_items if isinstance(given[0], str) else served.embed_ids
        items = await call.prepared(given, prepare, given)
        # OpenAI's vectors have unit length, and its clients compare them by dot product.
        vectors = await call.vectors(items, normalize=True, dimensions=body.dimensions)
        tokens = usage_of(request).tokens
        answer = {
            "object": "list",
            "model": served.name,
            "data": [
                {"object": "embedding", "index": i, "embedding": _encoded(each, body)}
                for i, each in enumerate(vectors)
            ],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
        return await json_answer(answer, vectors.size)

    return routes


def _encoded(vector: np.ndarray, body: EmbeddingsRequest) -> Any:
    """A list of numbers, or little-endian float32 in base64."""
    if body.encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector


def _model_entry(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "ownbert"}
