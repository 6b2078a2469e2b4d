"""OwnBERT's own API: ``POST /v1/TASK`` for every task, operations on all texts of a request
together (the texts to label next, topics, duplicates), and reloading."""

import base64
import binascii
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from ownbert import limits
from ownbert.language.messages import Message
from ownbert.serve.exchange import Several, bad_field, json_answer, texts_of
from ownbert.serve.huggingface_api import opened
from ownbert.serve.served_model import Items
from ownbert.serve.service import ModelRequest, Service, usage_of
from ownbert.tasks.kinds import KINDS
from ownbert.tasks.rows import OutputOptions
from ownbert.unlabelled.duplicates import THRESHOLD

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


def _example(**body: Any) -> Any:
    """The schema of a body with an example."""
    return {"examples": [body]}


class OwnRequest(BaseModel, extra="forbid"):
    """A body that may name a model; that of ``/reload``."""

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


class RankRequest(OwnRequest, json_schema_extra=_example(query="a", texts=["b", "c"])):
    """The body of ``/v1/rank``."""

    query: str
    texts: Several[str] = Field(min_length=1)


class ExplainRequest(OwnRequest, json_schema_extra=_example(inputs=["a text"])):
    """The body of ``/v1/explain``."""

    inputs: Any = Field(description="One input of the model's task or several in a list.")
    method: str | None = Field(None, description="As for ownbert explain.")


class AttentionRequest(
    OwnRequest, json_schema_extra=_example(inputs="a text", layers=[-1], heads=[0, 3])
):
    """The body of ``/v1/attention``."""

    inputs: Any = Field(description="One input of the model's task.")
    layers: Several[int] = Field(
        min_length=1, description="Layers from 0; negative ones count from the last, -1."
    )
    heads: Several[int] | None = Field(
        None, min_length=1, description="Heads of these layers, from 0; by default all."
    )


class LabelRequest(OwnRequest, json_schema_extra=_example(inputs=["a", "b", "c"], count=1)):
    """The body of ``/v1/label``."""

    inputs: Several[str] = Field(min_length=1, description="Texts without labels.")
    count: int = Field(10, ge=1, description="Number of texts to choose.")


class TopicsRequest(OwnRequest, json_schema_extra=_example(inputs=["a", "b", "c"], count=2)):
    """The body of ``/v1/topics``."""

    inputs: Several[str] = Field(min_length=1, description="Texts to group.")
    count: int | None = Field(
        None,
        ge=2,
        le=limits.SHARDS,
        description="Number of topics; by default the best of several.",
    )


class DuplicatesRequest(OwnRequest, json_schema_extra=_example(inputs=["a text", "A text.", "b"])):
    """The body of ``/v1/duplicates``."""

    inputs: Several[str] = Field(min_length=1, description="Texts to compare with each other.")
    threshold: float = Field(
        THRESHOLD, gt=0, le=1, description="Lowest similarity of near duplicates."
    )


def router(service: Service) -> APIRouter:
    """The routes of this API."""
    routes = APIRouter(tags=["OwnBERT"])
    examples = {name: list(kind.example) for name, kind in KINDS.items()}
    for task, example in {**examples, **_EXAMPLES}.items():
        _add_task(routes, service, task, example)
    _add_collections(routes, service)

    @routes.post("/v1/rank")
    async def rank(body: RankRequest, request: Request) -> Response:
        """Rank texts by how well they match a query, best first."""
        call = ModelRequest(service, request, body.model)
        ranked = await call.rank(body.query, body.texts)
        found = [{"index": i, "score": score, "text": body.texts[i]} for i, score in ranked]
        return await _reply(call, found)

    @routes.post("/v1/explain")
    async def explain(body: ExplainRequest, request: Request) -> Response:
        """Relevance of each word for the prediction; all forward passes count as tokens."""
        call = ModelRequest(service, request, body.model)
        inputs = body.inputs if isinstance(body.inputs, list) else [body.inputs]
        work, prepare = call.model.explain, call.model.explain_items
        found = await call.answers(work, prepare, inputs, body.method, method=body.method)
        return await _reply(call, list(found))

    @routes.post("/v1/attention", openapi_extra=_attention_answer())
    async def attention(body: AttentionRequest, request: Request) -> Response:
        """Attention weights of chosen layers and heads.

        There is one result per sequence that the model reads: one for a text or a pair, several for
        choices and long documents. Row i contains the weights of token i and sums to 1.
        """
        call = ModelRequest(service, request, body.model)
        about = (body.inputs, body.layers, body.heads)
        query = await call.prepared([body.inputs], call.model.attention_query, *about)
        service.require_room(query.numbers, "attention weights")
        items = Items([query], [sum(query.example.lengths)])
        (found,) = await call.compute(call.model.attention, items)
        return await _reply(call, found, query.numbers)

    @routes.post("/reload")
    def reload(body: OwnRequest) -> dict[str, Any]:
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


def _add_task(routes: APIRouter, service: Service, task: str, example: Any) -> None:
    schema = {"requestBody": {"content": {"application/json": {"example": {"inputs": example}}}}}

    @routes.post(f"/v1/{task}", openapi_extra=schema, name=task, operation_id=task)
    async def run(body: TaskRequest, request: Request) -> Response:
        call = ModelRequest(service, request, body.model)
        model = call.model
        model.require("fill" if task == "score" else task, requested=task)
        predictor = None if task == "embed" else model.predictor
        _check_fields(body, task, () if predictor is None else predictor.task.output_options)
        options = OutputOptions(body.top_k, unknown=body.unknown, coverage=body.coverage)
        inputs = body.inputs if isinstance(body.inputs, list) else [body.inputs]
        inputs = [_image(data) for data in inputs] if model.reads_images else inputs
        numbers = 0
        answers: Any
        if options.abstains:
            await call.in_thread(model.require_doubts, options)
            outputs = model.predictor.outputs
            answers = list(await call.answers(outputs, model.rows, inputs, options=options))
        elif predictor is not None:
            top = {} if body.top_k is None else {"top_k": body.top_k}
            decided = await call.decide(inputs)
            answers = [model.answer(*decision, **top) for decision in decided]
        elif task == "fill":
            filled = await call.fill(texts_of(inputs), body.targets, body.top_k or 5)
            answers = list(map(_candidates, filled))
        elif task == "score":
            scored = await call.answers(model.score, model.score_items, texts_of(inputs))
            answers = [text.as_row(tokens=True) for text in scored]
        elif task == "search":
            how = body.top_k or 10, body.by or "hybrid"
            answers = list(await call.search(texts_of(inputs), *how))
        elif task == "translate":
            answers = list(await call.translate(texts_of(inputs)))
        else:
            how = {"normalize": body.normalize, "dimensions": body.dimensions}
            prompt = model.prompt(body.prompt_name)
            answers = await call.embed(texts_of(inputs), prompt=prompt, **how)
            numbers = answers.size
        return await _reply(call, answers, numbers)


def _check_fields(body: TaskRequest, task: str, known: Any) -> None:
    """Refuse fields that do not apply to the task; ``known``: those for predictions that it
    has."""
    applies = {name: task in tasks for name, tasks in _TASKS_OF_FIELDS.items()}
    applies |= {name: name in known for name in ("unknown", "coverage")}
    applies["top_k"] = task not in _WITHOUT_TOP_K
    for field, does in applies.items():
        if getattr(body, field) is not None and not does:
            raise bad_field(Message("{option} does not apply to {name}", field, task), field)


def _candidates(filled: Any) -> dict[str, Any]:
    return {
        "text": filled.filled,
        "masks": [
            [{"token": c.text, "id": c.id, "score": c.probability} for c in mask.candidates]
            for mask in filled.masks
        ],
    }


def _image(data: Any) -> Any:
    try:
        return opened(base64.b64decode(data, validate=True))
    except (binascii.Error, TypeError, ValueError):
        raise bad_field("an image must be given as its bytes in base64", "inputs") from None


def _add_collections(routes: APIRouter, service: Service) -> None:
    @routes.post("/v1/label")
    async def label(body: LabelRequest, request: Request) -> Response:
        """Which texts to label next, those that may have a rare label and the least certain ones
        first, as ownbert label chooses."""
        call = ModelRequest(service, request, body.model)
        call.model.require_labels()
        rows = await call.of_all(body.inputs, call.model.to_label, count=body.count)
        places = {text: i for i, text in reversed([*enumerate(body.inputs)])}
        found = [
            {"index": places[row["text"]], **{k: row[k] for k in row if k != "label"}}
            for row in rows
        ]
        return await _reply(call, found)

    @routes.post("/v1/topics")
    async def topics(body: TopicsRequest, request: Request) -> Response:
        """Topics of texts, largest first, as ownbert topics finds them."""
        call = ModelRequest(service, request, body.model)
        call.model.require("embed")
        found = await call.of_all(body.inputs, call.model.topics, count=body.count)
        topics = [
            {"name": topic.name, "words": topic.words, "size": topic.size}
            | {"indices": np.flatnonzero(found.of_text == number).tolist()}
            for number, topic in enumerate(found.topics)
        ]
        return await _reply(call, topics)

    @routes.post("/v1/duplicates")
    async def duplicates(body: DuplicatesRequest, request: Request) -> Response:
        """Groups of texts that are duplicates or nearly so, the one to keep first, as ownbert
        duplicates finds them without a model."""
        call = ModelRequest(service, request, body.model)
        work = call.model.duplicates
        found = await call.of_all(body.inputs, work, threshold=body.threshold)
        groups = [
            [{"index": row.row - 1, "similarity": row.similarity} for row in group]
            for group in found.groups
        ]
        return await _reply(call, groups)


async def _reply(call: ModelRequest, answers: Any, numbers: int = 0) -> Response:
    """The response to a request, with its usage; ``numbers``: see ``json_answer``."""
    usage = usage_of(call.request)
    about = {"tokens": usage.tokens, "milliseconds": round(1000 * usage.computed, 3)}
    body = {"model": call.model.name, "answers": answers, "usage": about}
    return await json_answer(body, numbers)
