"""OwnBERT's own API: ``POST /v1/TASK`` for every task, and reloading."""

import base64
import binascii
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from ownbert.serve.api.exchange import Several, bad_field, json_answer
from ownbert.serve.api.huggingface_api import opened
from ownbert.serve.service import ModelRequest, Service, texts_of, usage_of
from ownbert.tasks.kinds import KINDS
from ownbert.tasks.rows import OutputOptions

# Inputs of operations that are no tasks of ``finetune``.
_EXAMPLES = {
    "fill": ["a text with a [MASK]"],
    "score": ["a text"],
    "search": ["a query"],
    "translate": ["a text"],
}
_TASKS_OF_FIELDS = {
    "by": ("search",),
    "targets": ("fill",),
    **dict.fromkeys(("normalize", "prompt_name", "dimensions"), ("embed",)),
}
_WITHOUT_TOP_K = ("tag", "score", "embed", "translate")


class OwnRequest(BaseModel, extra="forbid"):
    """A body that may name a model."""

    model: str | None = Field(None, description="The name of the model, if there are several.")


class TaskRequest(OwnRequest):
    """The body of ``/v1/TASK``."""

    inputs: Any = Field(description="One input or several in a list.")
    top_k: int | None = Field(None, ge=1, description="Number of predictions per input.")
    unknown: float | None = Field(
        None, gt=0, lt=1, description="classify: the share of texts that may be unknown."
    )
    coverage: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="classify, multilabel: the share of label sets that contain the correct "
        "labels; regress: of intervals that contain the number.",
    )
    by: Literal["hybrid", "vectors", "words"] | None = Field(
        None, description="search: as of ownbert search find."
    )
    targets: Several[str] | None = Field(None, description="fill: the only candidates.")
    normalize: bool | None = Field(None, description="embed: normalise vectors to length 1.")
    prompt_name: str | None = Field(None, description="embed: a prompt of the folder.")
    dimensions: int | None = Field(
        None, ge=1, description="embed: keep only this many leading dimensions."
    )


class RankRequest(
    OwnRequest, json_schema_extra={"examples": [{"query": "a", "texts": ["b", "c"]}]}
):
    """The body of ``/v1/rank``."""

    query: str
    texts: Several[str] = Field(min_length=1)


class ExplainRequest(OwnRequest, json_schema_extra={"examples": [{"inputs": ["a text"]}]}):
    """The body of ``/v1/explain``."""

    inputs: Any = Field(description="One input of the model's task or several in a list.")
    method: str | None = Field(None, description="As for ownbert explain.")


class AttentionRequest(
    OwnRequest,
    json_schema_extra={"examples": [{"inputs": "a text", "layers": [-1], "heads": [0, 3]}]},
):
    """The body of ``/v1/attention``."""

    inputs: Any = Field(description="One input of the model's task.")
    layers: Several[int] = Field(
        min_length=1, description="Layers from 0; negative ones count from the last, -1."
    )
    heads: Several[int] | None = Field(
        None, min_length=1, description="Heads of these layers, from 0; by default all."
    )


class ReloadRequest(OwnRequest):
    """The body of ``/reload``."""


def router(service: Service) -> APIRouter:
    """The routes of this API."""
    routes = APIRouter(tags=["OwnBERT"])
    examples = {name: list(kind.example) for name, kind in KINDS.items()}
    for task, example in {**examples, **_EXAMPLES}.items():
        _add(routes, service, task, example)

    @routes.post("/v1/rank")
    async def rank(body: RankRequest, request: Request) -> Response:
        """Rank texts by how well they match a query, best first."""
        call = ModelRequest(service, request, body.model)
        ranked = await call.rank(body.query, body.texts)
        found = [{"index": i, "score": score, "text": body.texts[i]} for i, score in ranked]
        return await reply(call, found)

    @routes.post("/v1/explain")
    async def explain(body: ExplainRequest, request: Request) -> Response:
        """Relevance of each word for the prediction; all forward passes count as tokens."""
        call = ModelRequest(service, request, body.model)
        inputs = body.inputs if isinstance(body.inputs, list) else [body.inputs]
        found = list(await call.explain(inputs, body.method))
        return await reply(call, found)

    @routes.post("/v1/attention", openapi_extra=_attention_answer())
    async def attention(body: AttentionRequest, request: Request) -> Response:
        """Attention weights of chosen layers and heads.

        There is one result per sequence that the model reads: one for a text or a pair, several for
        choices and long documents. Row i contains the weights of token i and sums to 1.
        """
        call = ModelRequest(service, request, body.model)
        given = (body.inputs, body.layers, body.heads)
        query = await call.prepared([body.inputs], call.model.attention_query, *given)
        return await reply(call, await call.attention(query), query.numbers)

    @routes.post("/reload")
    def reload(body: ReloadRequest) -> dict[str, Any]:
        """Reload a model's folder; running requests still use the old model."""
        return {"model": service.reload(body.model).name, "reloaded": True}

    return routes


def _attention_answer() -> dict[str, Any]:
    """An example response of ``/v1/attention``, for the OpenAPI schema."""
    weights = [[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]]
    layer = {"layer": 11, "heads": [{"head": 0, "weights": weights}]}
    answer = {"tokens": ["[CLS]", "text", "[SEP]"], "layers": [layer]}
    usage = {"tokens": 3, "milliseconds": 1.5}
    example = {"model": "NAME", "answers": [answer], "usage": usage}
    return {"responses": {"200": {"content": {"application/json": {"example": example}}}}}


def _add(routes: APIRouter, service: Service, task: str, example: Any) -> None:
    schema = {"requestBody": {"content": {"application/json": {"example": {"inputs": example}}}}}

    @routes.post(f"/v1/{task}", openapi_extra=schema, name=task, operation_id=task)
    async def run(body: TaskRequest, request: Request) -> Response:
        call = ModelRequest(service, request, body.model)
        call.model.require("fill" if task == "score" else task, requested=task)
        predictor = None if task == "embed" else call.model.predictor
        known = frozenset[str]() if predictor is None else predictor.task.output_options
        applies = {name: task in tasks for name, tasks in _TASKS_OF_FIELDS.items()}
        applies |= {name: name in known for name in ("unknown", "coverage")}
        applies["top_k"] = task not in _WITHOUT_TOP_K
        for field, does in applies.items():
            if getattr(body, field) is not None and not does:
                raise bad_field(f"{field} does not apply to {task}", field)
        options = OutputOptions(body.top_k, unknown=body.unknown, coverage=body.coverage)
        inputs = body.inputs if isinstance(body.inputs, list) else [body.inputs]
        inputs = [_image(each) for each in inputs] if call.model.reads_images else inputs
        numbers = 0
        if options.abstains:
            answers: Any = list(await call.abstain(inputs, options))
        elif predictor is not None:
            top = {} if body.top_k is None else {"top_k": body.top_k}
            decided = await call.decide(inputs)
            answers = [call.model.answer(*each, **top) for each in decided]
        elif task == "fill":
            filled = await call.fill(texts_of(inputs), body.targets, body.top_k or 5)
            answers = [_candidates(each) for each in filled]
        elif task == "score":
            scored = await call.score(texts_of(inputs))
            answers = [each.as_row(tokens=True) for each in scored]
        elif task == "search":
            how = body.top_k or 10, body.by or "hybrid"
            answers = list(await call.search(texts_of(inputs), *how))
        elif task == "translate":
            answers = list(await call.translate(texts_of(inputs)))
        else:
            how = {"normalize": body.normalize, "dimensions": body.dimensions}
            prompt = call.model.prompt(body.prompt_name)
            vectors = await call.embed(texts_of(inputs), prompt=prompt, **how)
            answers, numbers = vectors, vectors.size
        return await reply(call, answers, numbers)


def _candidates(filled: Any) -> dict[str, Any]:
    return {
        "text": filled.filled,
        "masks": [
            [{"token": c.text, "id": c.id, "score": c.probability} for c in mask.candidates]
            for mask in filled.masks
        ],
    }


def _image(given: Any) -> Any:
    try:
        return opened(base64.b64decode(given, validate=True))
    except (binascii.Error, TypeError, ValueError):
        raise bad_field("an image must be given as its bytes in base64", "inputs") from None


async def reply(call: ModelRequest, answers: Any, numbers: int = 0) -> Response:
    """The response to a request, with its usage; ``numbers``: see ``json_answer``."""
    usage = usage_of(call.request)
    about = {"tokens": usage.tokens, "milliseconds": round(1000 * usage.computed, 3)}
    body = {"model": call.model.name, "answers": answers, "usage": about}
    return await json_answer(body, numbers)
