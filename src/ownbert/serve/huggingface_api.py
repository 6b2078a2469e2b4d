"""The API of Hugging Face's inference endpoints, used by ``huggingface_hub.InferenceClient``.

All tasks are posted to one address as ``{"inputs": ..., "parameters": {...}}`` (feature extraction
has its parameters beside ``inputs``), so the model's task determines the response.
"""

import base64
import binascii
import io
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from scipy.special import expit, softmax

from ownbert import limits
from ownbert.serve.exchange import Refusal, bad_field, json_answer, texts_of, too_large
from ownbert.serve.served_model import ServedModel
from ownbert.serve.service import ModelRequest, Service
from ownbert.tasks.tag import OUTSIDE
from ownbert.tasks.task import ranked

_TOP_WORDS = 5  # default top_k of filled masks and of images
# Parameters that clients may send; some depend on training and have no effect here.
_PARAMETERS = {
    "text-classification": ("top_k", "function_to_apply", "truncation"),
    "token-classification": ("aggregation_strategy", "ignore_labels", "stride"),
    "question-answering": (
        *("top_k", "doc_stride", "max_answer_len", "max_seq_len", "max_question_len"),
        *("handle_impossible_answer", "align_to_words"),
    ),
    "zero-shot-classification": ("candidate_labels", "multi_label", "hypothesis_template"),
    "fill-mask": ("top_k", "targets"),
    "feature-extraction": ("normalize", "prompt_name", "truncate", "truncation_direction"),
    "sentence-similarity": ("normalize", "prompt_name", "truncate", "truncation_direction"),
    "translation": (
        *("src_lang", "tgt_lang", "clean_up_tokenization_spaces", "truncation"),
        "generate_parameters",
    ),
}
_AGGREGATIONS = ("none", "simple", "first", "average", "max")
# Functions of a text's logits (C), by name.
_FUNCTIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "none": lambda logits: logits,
    "softmax": softmax,
    "sigmoid": expit,
}


def router(service: Service) -> APIRouter:
    """The routes of this API."""
    routes = APIRouter(tags=["Hugging Face"])

    @routes.post("/")
    async def only(request: Request) -> Any:
        return await _answer(ModelRequest(service, request, None))

    @routes.post("/models/{name:path}")
    async def named(name: str, request: Request) -> Any:
        return await _answer(ModelRequest(service, request, name))

    @routes.post("/pipeline/{task}")
    @routes.post("/pipeline/{task}/{name:path}")
    async def pipeline(task: str, request: Request, name: str | None = None) -> Any:
        return await _answer(ModelRequest(service, request, name), task)

    return routes


async def _answer(call: ModelRequest, task: str | None = None) -> Any:
    model = call.model
    if model.reads_images:
        return await _image(call)
    try:
        body = json.loads(await call.request.body())
    except (ValueError, RecursionError):
        raise Refusal(400, "the body is not JSON", "invalid_json") from None
    if not isinstance(body, Mapping) or "inputs" not in body:
        raise bad_field('the body must be {"inputs": ..., "parameters": {...}}', "inputs")
    inputs = body["inputs"]
    parameters = body.get("parameters") or {k: v for k, v in body.items() if k != "inputs"}
    if not isinstance(parameters, Mapping):
        raise bad_field("parameters must be an object", "parameters")
    if task is not None and task not in _ANSWERS:
        raise Refusal(404, f"there is no task {task!r} here", "wrong_task")
    found = task or _task_of(model, inputs, parameters)
    if found not in model.pipelines:
        known = ", ".join(sorted(model.pipelines))
        raise Refusal(422, f"the model {model.name} is for {known}, not for {found}", "wrong_task")
    known = _PARAMETERS.get(found, ("top_k",))
    for name in body.get("parameters") or ():
        if name not in known:
            listed = ", ".join(known)
            raise bad_field(
                f"{found} has no parameter {name[:40]!r}; it has {listed}", "parameters"
            )
    return await _ANSWERS[found](call, inputs, parameters)


def _task_of(model: ServedModel, inputs: Any, parameters: Mapping[str, Any]) -> str:
    """The requested task, which clients with a single address do not name: inferred from inputs and
    parameters that only one task has, else the model's task."""
    if isinstance(inputs, Mapping) and "source_sentence" in inputs:
        return "sentence-similarity"
    question = {"question", "context"}
    if isinstance(inputs, Mapping) and question <= {*inputs} and not question <= model.columns:
        return "question-answering"
    for name in parameters:
        tasks = [task for task, names in _PARAMETERS.items() if name in names]
        if len(tasks) == 1:
            return tasks[0]
    if model.filler is not None:
        spelled = model.filler.spelling
        texts = texts_of(inputs)
        return "fill-mask" if any(map(spelled.search, texts)) else "feature-extraction"
    return model.pipeline if model.embedder is None else "feature-extraction"


def _top(parameters: Mapping[str, Any], default: int | None) -> int | None:
    top = parameters.get("top_k", default)
    if top is not None and (not isinstance(top, int) or isinstance(top, bool) or top < 1):
        raise bad_field(f"top_k is {top!r}; it must be a whole number, at least 1", "top_k")
    return top


async def _classify(call: ModelRequest, inputs: Any, parameters: Any) -> Any:
    model = call.model
    applied = {"regress": "none", "multilabel": "sigmoid"}.get(model.task, "softmax")
    default = "sigmoid" if model.scores_pairs else applied
    wanted = parameters.get("function_to_apply") or default
    if not isinstance(wanted, str) or wanted not in _FUNCTIONS:
        known = ", ".join(_FUNCTIONS)
        raise bad_field(f"function_to_apply is {wanted!r}; it must be one of {known}", "parameters")
    rows = inputs if isinstance(inputs, list) else [inputs]
    top = _top(parameters, None)
    if wanted != applied:
        logits = await call.logits(rows)
        return [ranked(model.labels, _FUNCTIONS[wanted](row))[:top] for row in logits]
    found = [model.answer(*decided, top_k=top) for decided in await call.decide(rows)]
    return [labels if isinstance(labels, list) else [labels] for labels in found]


async def _tag(call: ModelRequest, inputs: Any, parameters: Any) -> Any:
    how = parameters.get("aggregation_strategy", "simple")
    if how not in _AGGREGATIONS:
        known = ", ".join(_AGGREGATIONS)
        raise bad_field(f"aggregation_strategy is {how!r}; it must be one of {known}", "parameters")
    ignored = parameters.get("ignore_labels")
    ignored = [OUTSIDE] if ignored is None else texts_of(ignored, "ignore_labels")
    # Every word has one tag, so all strategies for aggregating tokens are equal.
    convert = call.model.words if how == "none" else call.model.answer

    def tags(*decided: Any) -> list[dict[str, Any]]:
        found = convert(*decided)
        return [tag for tag in found if tag.get("entity_group", tag.get("entity")) not in ignored]

    return await _for_each(call, inputs, tags)


async def _question(call: ModelRequest, inputs: Any, parameters: Any) -> Any:
    top = _top(parameters, 1)

    def answers(*decided: Any) -> Any:
        found = call.model.answer(*decided, top_k=top)
        return found[0] if top == 1 else found

    return await _for_each(call, inputs, answers)


async def _choose(call: ModelRequest, inputs: Any, parameters: Any) -> Any:
    convert = partial(call.model.answer, top_k=_top(parameters, None))
    return await _for_each(call, inputs, convert)


async def _for_each(call: ModelRequest, inputs: Any, convert: Callable[..., Any]) -> Any:
    """Apply ``convert`` to the decision on each input and its row; a list if there are several."""
    single = not isinstance(inputs, list)
    decided = await call.decide([inputs] if single else inputs)
    found = [convert(*decision) for decision in decided]
    return found[0] if single else found


async def _fill(call: ModelRequest, inputs: Any, parameters: Any) -> Any:
    targets = parameters.get("targets")
    targets = None if targets is None else texts_of(targets, "targets")
    top = _top(parameters, _TOP_WORDS) or _TOP_WORDS
    replaced, found = call.model.filler.replaced, []
    for filled in await call.fill(texts_of(inputs), targets, top):
        masks = [
            [
                {"score": token.probability, "token": token.id, "token_str": token.text}
                | {"sequence": replaced(filled.text, number, token)}
                for token in mask.candidates
            ]
            for number, mask in enumerate(filled.masks)
        ]
        found.append(masks[0] if len(masks) == 1 else masks)
    return found[0] if isinstance(inputs, str) else found


async def _features(call: ModelRequest, inputs: Any, parameters: Any) -> Any:
    normalize = parameters.get("normalize")
    if normalize is not None and not isinstance(normalize, bool):
        raise bad_field("normalize must be true or false", "normalize")
    how = _embedding_options(call.model, parameters)
    vectors = await call.embed(texts_of(inputs), normalize=normalize, **how)
    return await json_answer(vectors, vectors.size)


def _embedding_options(model: ServedModel, parameters: Any) -> dict[str, Any]:
    """Options for embedding texts."""
    if str(parameters.get("truncation_direction") or "right").lower() != "right":
        raise bad_field(
            "truncation_direction: long texts are truncated at the end", "truncation_direction"
        )
    prompt = model.prompt(parameters.get("prompt_name"))
    return {"prompt": prompt, "truncate": parameters.get("truncate") is not False}


async def _similar(call: ModelRequest, inputs: Any, parameters: Any) -> Any:
    if not isinstance(inputs, Mapping) or not isinstance(inputs.get("source_sentence"), str):
        raise bad_field('inputs must be {"source_sentence": ..., "sentences": [...]}', "inputs")
    others = texts_of(inputs.get("sentences"), "sentences")
    call.model.require("embed")
    how = _embedding_options(call.model, parameters)
    return await call.similarities(inputs["source_sentence"], others, **how)


async def _translate(call: ModelRequest, inputs: Any, parameters: Any) -> Any:
    return [{"translation_text": text} for text in await call.translate(texts_of(inputs))]


async def _image(call: ModelRequest) -> Any:
    """Classify an image, sent as raw bytes, or in base64 with parameters."""
    data, parameters = await call.request.body(), {}
    if call.request.headers.get("content-type", "").startswith("application/json"):
        try:
            body = json.loads(data)
            data = base64.b64decode(body["inputs"], validate=True)
            parameters = body.get("parameters") or {}
        except (ValueError, KeyError, TypeError, binascii.Error, RecursionError):
            raise bad_field("inputs must be an image in base64", "inputs") from None
    (decided,) = await call.decide([opened(data)])
    return call.model.answer(*decided, top_k=_top(parameters, _TOP_WORDS))


# Not those for which Pillow starts other programs, such as EPS with Ghostscript.
_FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")


def opened(data: bytes) -> Any:
    """Open an image from bytes; a ``Refusal`` if they are none, or it is too large."""
    from PIL import Image

    try:
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
        if max(image.size) > limits.PIXELS:
            raise too_large(
                f"{image.width} x {image.height} pixels; at most {limits.PIXELS:,} per side"
            )
        image.load()
    except Refusal:
        raise
    except Exception as error:  # Pillow's errors are of many kinds
        raise bad_field(f"the body is not a readable image: {error}", "inputs") from None
    return image


_ANSWERS = {
    "text-classification": _classify,
    "token-classification": _tag,
    "question-answering": _question,
    "multiple-choice": _choose,
    "fill-mask": _fill,
    "feature-extraction": _features,
    "sentence-similarity": _similar,
    "translation": _translate,
}
