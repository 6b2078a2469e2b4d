"""Operations on all texts of a request together: the texts to label next, topics, duplicates."""

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field

from ownbert import limits
from ownbert.serve.api.exchange import Several
from ownbert.serve.api.native_api import OwnRequest, reply
from ownbert.serve.service import ModelRequest, Service
from ownbert.unlabelled.duplicates import THRESHOLD


class LabelRequest(
    OwnRequest, json_schema_extra={"examples": [{"inputs": ["a", "b", "c"], "count": 1}]}
):
    """The body of ``/v1/label``."""

    inputs: Several[str] = Field(min_length=1, description="Texts without labels.")
    count: int = Field(10, ge=1, description="Number of texts to choose.")


class TopicsRequest(
    OwnRequest, json_schema_extra={"examples": [{"inputs": ["a", "b", "c"], "count": 2}]}
):
    """The body of ``/v1/topics``."""

    inputs: Several[str] = Field(min_length=1, description="Texts to group.")
    count: int | None = Field(
        None,
        ge=2,
        le=limits.SHARDS,
        description="Number of topics; by default the best of several.",
    )


class DuplicatesRequest(
    OwnRequest, json_schema_extra={"examples": [{"inputs": ["a text", "A text.", "b"]}]}
):
    """The body of ``/v1/duplicates``."""

    inputs: Several[str] = Field(min_length=1, description="Texts to compare with each other.")
    threshold: float = Field(
        THRESHOLD, gt=0, le=1, description="Lowest similarity of near duplicates."
    )


def router(service: Service) -> APIRouter:
    """The routes of this API."""
    routes = APIRouter(tags=["OwnBERT"])

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
        return await reply(call, found)

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
        return await reply(call, topics)

    @routes.post("/v1/duplicates")
    async def duplicates(body: DuplicatesRequest, request: Request) -> Response:
        """Groups of texts that are duplicates or nearly so, the one to keep first, as ownbert
        duplicates finds them without a model."""
        call = ModelRequest(service, request, body.model)
        work = call.model.duplicates
        found = await call.of_all(body.inputs, work, threshold=body.threshold)
        groups = [
            [{"index": each.row - 1, "similarity": each.similarity} for each in group]
            for group in found.groups
        ]
        return await reply(call, groups)

    return routes
