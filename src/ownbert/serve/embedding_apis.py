"""The APIs of servers for embeddings: OpenAI's (the reference of ``POST /v1/embeddings`` and ``GET
/v1/models``), and that of Hugging Face's text-embeddings-inference.
"""

import base64
from collections.abc import Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json
from scipy.special import expit

from ownbert import __version__
from ownbert.serve.exchange import Refusal, Several, bad_field, json_answer, texts_of, too_large
from ownbert.serve.served_model import Items, ServedModel
from ownbert.serve.service import ModelRequest, Service, usage_of
from ownbert.tasks.task import ranked
from ownbert.text.tokenizer import Tokenizer

# Tokens serialised to JSON in one call, which blocks other threads.
_TOKENS_PER_CALL = 500
# Fields of each model in ``/info``, besides those of this API.
_MODEL_FIELDS = ("name", "task", "pipeline", "operations", "pair", "explains", "labels")


# Maximum texts per request of OpenAI's API.
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


def openai_router(service: Service) -> APIRouter:
    """The routes of OpenAI's API."""
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
        inputs: Any = body.input
        served.require("embed")
        if isinstance(inputs, str) or (inputs and isinstance(inputs[0], int)):
            inputs = [inputs]
        if not inputs or not all(inputs):
            raise Refusal(400, "input is empty, or has an empty text", "invalid_value", "input")
        if len(inputs) > _MOST_INPUTS:
            message = f"{len(inputs):,} inputs; at most {_MOST_INPUTS:,}"
            raise Refusal(400, message, "invalid_value", "input")
        prepare = served.embed_items if isinstance(inputs[0], str) else served.embed_ids
        items = await call.prepared(inputs, prepare, inputs)
        # OpenAI's vectors have unit length, and its clients compare them by dot product.
        vectors = await call.vectors(items, normalize=True, dimensions=body.dimensions)
        tokens = usage_of(request).tokens
        answer = {
            "object": "list",
            "model": served.name,
            "data": [
                {"object": "embedding", "index": i, "embedding": _encoded(vector, body)}
                for i, vector in enumerate(vectors)
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


class Truncation(BaseModel, extra="forbid"):
    """Whether long texts are truncated, which is always at the end."""

    truncate: bool = True
    truncation_direction: Literal["Right", "right"] | None = None


class EmbedRequest(Truncation):
    """The body of ``/embed`` and ``/embed_all``."""

    inputs: Any
    normalize: bool = True
    prompt_name: str | None = None
    dimensions: int | None = Field(None, ge=1)


class PredictRequest(Truncation):
    """The body of ``/predict``: a text, a pair, or a list of lists with one or two texts."""

    inputs: str | Several[str] | Several[Several[str]]
    raw_scores: bool = False


class RerankRequest(Truncation):
    """The body of ``/rerank``."""

    query: str
    texts: Several[str] = Field(min_length=1)
    raw_scores: bool = False
    return_text: bool = False


class TokenizeRequest(BaseModel, extra="forbid"):
    """The body of ``/tokenize``."""

    inputs: Any
    add_special_tokens: bool = True


class DecodeRequest(BaseModel, extra="forbid"):
    """The body of ``/decode``."""

    ids: Several[int] | Several[Several[int]]
    skip_special_tokens: bool = True


class SimilarityInputs(BaseModel, extra="forbid"):
    """A text, and the texts to compare it with."""

    source_sentence: str
    sentences: Several[str] = Field(min_length=1)


class SimilarityParameters(Truncation):
    """How the texts are encoded."""

    prompt_name: str | None = None


class SimilarityRequest(BaseModel, extra="forbid"):
    """The body of ``/similarity``."""

    inputs: SimilarityInputs
    parameters: SimilarityParameters | None = None


def tei_router(service: Service) -> APIRouter:
    """The routes of text-embeddings-inference; ``?model=NAME`` selects one of several models."""
    routes = APIRouter(tags=["text-embeddings-inference"])
    _add_vectors(routes, service)
    _add_answers(routes, service)
    _add_tokens(routes, service)

    @routes.get("/info")
    async def info(model: str | None = None) -> dict[str, Any]:
        chosen = [service.model(model)] if model else list(service.models.values())
        first, limits = chosen[0], service.settings
        return {
            "model_id": first.name,
            "model_sha": None,
            "model_dtype": first.compute.precision,
            "model_type": _type(first),
            "max_input_length": first.max_length,
            "max_batch_tokens": limits.batch_tokens,
            "max_client_batch_size": limits.items,
            "max_concurrent_requests": limits.connections,
            "auto_truncate": True,
            "version": __version__,
            "models": [{name: getattr(m, name) for name in _MODEL_FIELDS} for m in chosen],
        }

    return routes


def _add_vectors(routes: APIRouter, service: Service) -> None:
    @routes.post("/embed")
    async def embed(body: EmbedRequest, request: Request, model: str | None = None) -> Any:
        call, items = await _embed_items(service, request, model, body)
        how = {"normalize": body.normalize, "dimensions": body.dimensions}
        vectors = await call.vectors(items, **how)
        return await json_answer(vectors, vectors.size)

    @routes.post("/embed_all")
    async def embed_all(body: EmbedRequest, request: Request, model: str | None = None) -> Any:
        call, items = await _embed_items(service, request, model, body)
        embedder = call.model.embedder
        numbers = items.total * embedder.size
        service.require_room(numbers)
        found = await call.compute(embedder.token_vectors, items)
        return await json_answer(list(found), numbers)

    @routes.post("/similarity")
    async def similarity(
        body: SimilarityRequest, request: Request, model: str | None = None
    ) -> Any:
        call, given = ModelRequest(service, request, model), body.inputs
        call.model.require("embed")
        how = body.parameters or SimilarityParameters()
        prompt = call.model.prompt(how.prompt_name)
        texts = given.source_sentence, given.sentences
        return await call.similarities(*texts, prompt=prompt, truncate=how.truncate)


def _add_answers(routes: APIRouter, service: Service) -> None:
    @routes.post("/predict")
    async def predict(body: PredictRequest, request: Request, model: str | None = None) -> Any:
        call = ModelRequest(service, request, model)
        given: Any = [body.inputs] if isinstance(body.inputs, str) else body.inputs
        single = all(isinstance(text, str) for text in given)
        rows = [_row(texts) for texts in ([given] if single else given)]
        if body.raw_scores or call.model.scores_pairs:
            score = np.asarray if body.raw_scores else expit
            logits = await call.logits(rows, body.truncate)
            found = [ranked(call.model.labels, score(row)) for row in logits]
        else:
            decided = await call.decide(rows, body.truncate)
            found = [call.model.answer(*decision, top_k=None) for decision in decided]
        return found[0] if single else found

    @routes.post("/rerank")
    async def rerank(body: RerankRequest, request: Request, model: str | None = None) -> Any:
        how = {"truncate": body.truncate, "raw": body.raw_scores}
        best = await ModelRequest(service, request, model).rank(body.query, body.texts, **how)
        found: list[dict[str, Any]] = [{"index": i, "score": score} for i, score in best]
        if body.return_text:
            for row in found:
                row["text"] = body.texts[row["index"]]
        return found


def _add_tokens(routes: APIRouter, service: Service) -> None:
    @routes.post("/tokenize")
    async def tokenize(
        body: TokenizeRequest, request: Request, model: str | None = None
    ) -> Response:
        call, texts = ModelRequest(service, request, model), _texts(body.inputs)
        most = service.settings.request_tokens
        work = partial(_tokens, _tokenizer(call.model), texts, body.add_special_tokens, most)
        content = await call.prepared(texts, work)
        return Response(content, media_type="application/json")

    @routes.post("/decode")
    async def decode(body: DecodeRequest, request: Request, model: str | None = None) -> Any:
        call = ModelRequest(service, request, model)
        tokenizer = _tokenizer(call.model)
        several: Any = body.ids if body.ids and isinstance(body.ids[0], list) else [body.ids]
        count, most = sum(map(len, several)), service.settings.request_tokens
        if not count:
            raise bad_field("ids is empty; give one or more", "ids")
        if count > most:
            raise too_large(f"{count:,} ids; at most {most:,} in a request")
        if any(not 0 <= i < tokenizer.vocab_size for ids in several for i in ids):
            raise bad_field(f"ids must be from 0 to {tokenizer.vocab_size - 1:,}", "ids")
        skip = body.skip_special_tokens
        return await call.prepared(
            several, lambda: [tokenizer.decode(ids, skip_special_tokens=skip) for ids in several]
        )


async def _embed_items(
    service: Service, request: Request, model: str | None, body: EmbedRequest
) -> tuple[ModelRequest, Items]:
    """The request to a model, and the sequences of its body, from texts, or from ids without
    special tokens."""
    call, given = ModelRequest(service, request, model), body.inputs
    if not isinstance(given, list) or not given or isinstance(given[0], str):
        texts, work = _texts(given), call.model.embed_items
        how = (call.model.prompt(body.prompt_name), body.truncate)
        return call, await call.prepared(texts, work, texts, *how)
    sequences = [given] if isinstance(given[0], int) else given
    if not all(isinstance(ids, list) and all(type(i) is int for i in ids) for ids in sequences):
        raise bad_field("inputs must be a text, ids of tokens, or a list of either", "inputs")
    if body.prompt_name is not None:
        raise bad_field("prompt_name applies to texts, but the inputs are ids", "prompt_name")
    return call, await call.prepared(sequences, call.model.embed_ids, sequences)


def _texts(inputs: Any) -> list[str]:
    texts = texts_of(inputs)
    if not texts or not all(texts):
        raise bad_field("inputs is empty, or has an empty text", "inputs")
    return texts


def _tokens(tokenizer: Tokenizer, texts: list[str], special: bool, most: int) -> bytes:
    """Serialise at most ``most`` tokens of texts as JSON, in parts, because Python objects take ten
    times the memory."""
    marks = tokenizer.backend.encode("a", add_special_tokens=special).special_tokens_mask
    before, behind = marks.index(0) if 0 in marks else 0, marks[::-1].index(0) if 0 in marks else 0
    around = tokenizer.backend.encode("a", add_special_tokens=special).ids
    first, last = around[:before], around[len(around) - behind :]

    def mark(ids: Sequence[int]) -> list[dict[str, Any]]:
        names = zip(ids, tokenizer.tokens(ids), strict=True)
        about = {"special": True, "start": None, "stop": None}
        return [{"id": i, "text": token, **about} for i, token in names]

    def between(text: str, index: int, start: int, stop: int) -> dict[str, Any]:
        token = text[start:stop] if stop > start else tokenizer.tokens([index])[0]
        return {"id": index, "text": token, "special": False, "start": start, "stop": stop}

    count, found = 0, []
    for text, (ids, offsets) in zip(texts, tokenizer.with_offsets(texts), strict=True):
        count += len(ids) + before + behind
        if count > most:
            raise too_large(f"the request has more than {most:,} tokens")
        places = zip(ids.tolist(), offsets.tolist(), strict=True)
        spans = (between(text, index, *place) for index, place in places)
        rows, written = chain(mark(first), spans, mark(last)), []
        while some := list(islice(rows, _TOKENS_PER_CALL)):
            written.append(to_json(some)[1:-1])
        found.append(b"[" + b",".join(written) + b"]")
    return b"[" + b",".join(found) + b"]"


def _row(texts: Any) -> Any:
    if len(texts) == 1:
        return texts[0]
    if len(texts) != 2:
        raise bad_field("each input must be one text or a pair", "inputs")
    return {"text": texts[0], "text_pair": texts[1]}


def _tokenizer(model: ServedModel) -> Any:
    if model.tokenizer is None:
        raise bad_field(f"the model {model.name} has no tokenizer", "model")
    return model.tokenizer


def _type(model: ServedModel) -> dict[str, Any]:
    """The kind of model in this API's terms."""
    if model.embedder is not None:
        return {"embedding": {"pooling": model.embedder.embedding_config.pooling}}
    numbers = dict(enumerate(model.labels))
    names = {label: i for i, label in numbers.items()}
    return {"classifier": {"id2label": numbers, "label2id": names}}
