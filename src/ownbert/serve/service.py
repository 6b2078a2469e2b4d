"""Shared by all APIs: models, queue, limits, metrics, requests to a model, and the usage of a
request."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from scipy.special import expit
from starlette.requests import Request

from ownbert.exceptions import InputError
from ownbert.inference.embedding_outputs import shortened
from ownbert.inference.exported_network import ENGINE_POSITIONS
from ownbert.language.messages import Message
from ownbert.serve.connections import Bounds
from ownbert.serve.exchange import Refusal, bad_field, too_large
from ownbert.serve.scheduler import QueuedRequest, Scheduler, Turns
from ownbert.serve.served_model import Items, ServedModel
from ownbert.serve.server_settings import ServeSettings
from ownbert.time_limit import check_wanted, wanted_until
from ownbert.train.device import return_memory

T = TypeVar("T")

# Longer texts, in characters, are tokenised in a thread, so that other requests need not wait.
_IN_THREAD = 4_000
# Maximum requests tokenised concurrently, because each takes memory.
_TOKENISED = 2
# Maximum requests of the largest size waiting for tokenisation.
_UNTOKENISED = 4
# Seconds between returns of free memory to the system: batches of varying sizes fragment it.
_RETURNED = 10.0
# Maximum candidates for a mask; size of a candidate in a response, in numbers, and of a number in
# bytes.
_MOST_CANDIDATES, _PER_CANDIDATE, _NUMBER = 100, 20, 10
# Bounds of the bins of histograms.
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_TOKENS = (16, 64, 256, 1024, 4096, 8192, 16384, 65536)


class Metrics:
    """Prometheus metrics of a server, for ``/metrics``.

    Args:
        waiting: returns the number of tokens in the queue.
        connections: returns the number of open connections.
    """

    def __init__(self, waiting: Callable[[], int], connections: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        about: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter(
            "ownbert_requests", "Requests by path and status.", ["path", "status"], **about
        )
        self.tokens = Counter("ownbert_tokens", "Tokens computed.", **about)
        seconds = {"buckets": _SECONDS, **about}
        self.queue = Histogram("ownbert_queue_seconds", "Seconds in the queue.", **seconds)
        self.compute = Histogram("ownbert_batch_seconds", "Seconds per batch.", **seconds)
        self.batch = Histogram(
            "ownbert_batch_tokens", "Tokens per batch.", buckets=_TOKENS, **about
        )
        for name, help, value in (
            ("queue_tokens", "Tokens currently in the queue.", waiting),
            ("connections", "Connections currently open.", connections),
            (
                "padding_share",
                "Share of padding in the tokens computed by engines; packed batches have none.",
                lambda: ENGINE_POSITIONS["padding"] / max(1, ENGINE_POSITIONS.total()),
            ),
        ):
            Gauge(f"ownbert_{name}", help, **about).set_function(value)

    def on_batch(self, tokens: int, seconds: float) -> None:
        """Count a batch."""
        self.tokens.inc(tokens)
        self.batch.observe(tokens)
        self.compute.observe(seconds)

    def page(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self.registry)


@dataclass
class Usage:
    """Resources used by a request so far.

    Args:
        tokens: number of computed tokens.
        waited: seconds in the queue.
        computed: seconds of its batches.
    """

    tokens: int = 0
    waited: float = 0.0
    computed: float = 0.0

    def add(self, job: QueuedRequest) -> None:
        """Add a finished job."""
        self.tokens += job.tokens
        self.waited += job.waited
        self.computed += job.computed


def usage_of(request: Request) -> Usage:
    """The usage of a request, for its access log and headers."""
    return request.scope.setdefault("ownbert", Usage())


class Service:
    """The models of a server with the queue in front of them.

    Args:
        models: at least one; a single model also serves requests that name none.
        settings: limits.

    Attributes:
        models: the models by name; one can be reloaded while the server runs.
        bounds: limits of the connections.
        turns: schedules requests in the event loop's thread.
        ready: whether the models are warmed up.
    """

    def __init__(self, models: Sequence[ServedModel], settings: ServeSettings) -> None:
        self.models, self.settings = {model.name: model for model in models}, settings
        self._exchange = threading.Lock()
        self.bounds = Bounds(settings.idle_seconds, settings.connections)
        self.turns = Turns()
        self.metrics = Metrics(lambda: self.scheduler.waiting, lambda: len(self.bounds.connections))
        self.scheduler = Scheduler(
            batch_tokens=settings.batch_tokens,
            queue_tokens=settings.queue_tokens,
            on_batch=self._on_batch,
        )
        self._returned = time.monotonic()
        self.ready = False
        self._untokenised = 0  # characters waiting for tokenisation
        self._speed = 0.0  # characters per second of the last tokenisation
        self.threads = ThreadPoolExecutor(_TOKENISED, "tokens")

    def model(self, name: str | None) -> ServedModel:
        """The model with a name, or the only one; a ``Refusal`` if there is none."""
        known = ", ".join(self.models)
        if name is None:
            if len(self.models) > 1:
                raise bad_field(f"there are several models; choose one of {known}", "model")
            return next(iter(self.models.values()))
        if name not in self.models:
            message = f"no model {name!r}; choose one of {known}"
            raise Refusal(404, message, "model_not_found", "model")
        return self.models[name]

    def reload(self, name: str | None) -> ServedModel:
        """Load a folder again and switch to it; if that fails, refuse and keep the old model."""
        old = self.model(name)
        if not self._exchange.acquire(blocking=False):
            # Waiting requests would block threads and repeat the reload.
            raise Refusal(429, "a model is being loaded; try again later", "loading", retry_after=1)
        try:
            torch.set_num_threads(1)  # no second thread team besides the computing one
            new = old.reloaded()
            new.warm_up()
            self.models[old.name] = new
        except InputError as error:
            raise Refusal(409, f"{old.name} was not reloaded: {error}", "not_loaded") from None
        finally:
            self._exchange.release()
        return new

    def _on_batch(self, tokens: int, seconds: float) -> None:
        self.metrics.on_batch(tokens, seconds)
        if time.monotonic() - self._returned > _RETURNED:
            return_memory()
            self._returned = time.monotonic()

    def require_room(self, count: int, what: str = "numbers", size: int = 1) -> None:
        """Raise a ``Refusal`` if a response would be too large: ``count`` elements, each of
        ``size`` numbers."""
        most = self.settings.answer_numbers // size
        if count > most:
            raise too_large(f"the answer would have {count:,} {what}; at most {most:,}")

    def require_size(self, data: Sequence[Any]) -> int:
        """Check the limits of items and characters; return the number of characters."""
        if len(data) > self.settings.items:
            raise too_large(f"{len(data):,} texts; at most {self.settings.items:,} in a request")
        count, most = sum(map(_characters, data)), self.settings.characters
        if count > most:
            raise too_large(f"{count:,} characters; at most {most:,} in a request")
        return count

    @contextlib.contextmanager
    def tokenising(self, count: int) -> Iterator[None]:
        """Count characters as waiting for tokenisation during the block, and measure its speed;
        a ``Refusal`` if too many are waiting."""
        ahead = self._untokenised + count
        late = 0 < self._speed * self.settings.timeout / 4 < ahead
        if self._untokenised and (late or ahead > _UNTOKENISED * self.settings.characters):
            message = f"texts of {self._untokenised:,} characters are queued; try again later"
            raise Refusal(429, message, "queue_full", retry_after=1)
        self._untokenised += count
        began = time.monotonic()
        try:
            yield
            self._speed = ahead / (time.monotonic() - began)
        finally:
            self._untokenised -= count


class ModelRequest:
    """A client's request to one of the models.

    Args:
        service: the service, whose queue computes the answer.
        request: request of the client; if the client disconnects, its items leave the queue.
        name: name of the model; None: the only one.
    """

    def __init__(self, service: Service, request: Request, name: str | None) -> None:
        self.service, self.request = service, request
        self.model = service.model(name)

    async def answers(
        self,
        compute: Callable[..., Any],
        prepare: Callable[..., Items],
        data: Sequence[Any],
        *about: Any,
        **options: Hashable,
    ) -> Sequence[Any]:
        """The results for ``data``: of ``compute`` for the items that ``prepare(data, *about)``
        makes of it."""
        items = await self.prepared(data, prepare, data, *about)
        return await self.compute(compute, items, **options)

    async def compute(
        self, compute: Callable[..., Any], items: Items, **options: Hashable
    ) -> Sequence[Any]:
        """Compute the items of the request, in order.

        Requests with the same function and options may share a batch.

        Args:
            compute: function of the model from items and the options to a result for each item.
        """
        service, limits = self.service, self.service.settings
        if items.total > limits.request_tokens:
            most = limits.request_tokens
            raise too_large(f"{items.total:,} tokens; at most {most:,} in a request")
        work = partial(compute, **options)
        what = (compute, *options.values())
        answer = asyncio.ensure_future(
            service.scheduler.answer(what, work, items.items, items.total, limits.timeout)
        )
        job = await _unless_gone(self.request, answer)
        await service.turns.wait()
        service.metrics.queue.observe(job.waited)
        usage_of(self.request).add(job)
        assert job.answers is not None
        return job.answers

    async def prepared(self, data: Sequence[Any], work: Callable[..., T], *about: Any) -> T:
        """The result of ``work`` on the data of the request, in a thread if there is much text.
        What is empty, too large or cannot be used is a ``Refusal``."""
        if not data:
            raise bad_field("inputs is empty; give one or more", "inputs")
        count = self.service.require_size(data)
        try:
            if count < _IN_THREAD:
                return work(*about)
            with self.service.tokenising(count):
                return await self.in_thread(work, *about)
        except InputError as error:
            raise bad_field(error.message) from None

    async def in_thread(self, work: Callable[..., T], *about: Any) -> T:
        """Run ``work`` in a thread; it stops when its result is not needed (``check_wanted``)."""
        given_up = threading.Event()

        def run() -> T:
            with wanted_until(given_up):
                check_wanted()
                return work(*about)

        seconds = self.service.settings.timeout
        future = asyncio.get_running_loop().run_in_executor(self.service.threads, run)
        try:
            return await asyncio.wait_for(_unless_gone(self.request, future), seconds)
        except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
            raise Refusal(504, f"no answer within {seconds:g} seconds", "deadline") from None
        finally:
            given_up.set()

    async def decide(self, data: Sequence[Any], truncate: bool = True) -> list[tuple[Any, Any]]:
        """The task's decision for each row, and the row; for ``truncate`` see
        ``ServedModel.rows``."""
        items = await self.prepared(data, self.model.rows, data, truncate)
        decided = await self.compute(self.model.predictor.decide, items)
        return list(zip(decided, items.items, strict=True))

    async def logits(self, data: Sequence[Any], truncate: bool = True) -> Sequence[np.ndarray]:
        """The logits (C) of each row; for ``truncate`` see ``ServedModel.rows``."""
        network = self.model.network()
        return await self.answers(network.logits, self.model.rows, data, truncate)

    async def embed(
        self,
        texts: Sequence[str],
        *,
        normalize: bool | None = None,
        prompt: str | None = None,
        dimensions: int | None = None,
        truncate: bool = True,
    ) -> np.ndarray:
        """Vectors (N, D) of texts; for the arguments see ``Embedder.encode`` and
        ``embed_items``."""
        items = await self.prepared(texts, self.model.embed_items, texts, prompt, truncate)
        return await self.vectors(items, normalize=normalize, dimensions=dimensions)

    async def vectors(
        self, items: Items, *, normalize: bool | None = None, dimensions: int | None = None
    ) -> np.ndarray:
        """Vectors (N, D) of sequences of ids, truncated to ``dimensions``."""
        embedder = self.model.embedder
        size = embedder.get_sentence_embedding_dimension()
        if dimensions is not None and not 1 <= dimensions <= size:
            raise bad_field(
                f"dimensions is {dimensions}; it must be from 1 to {size}", "dimensions"
            )
        self.service.require_room(len(items.items) * (dimensions or size))
        unit = embedder.embedding_config.normalize if normalize is None else normalize
        found = await self.compute(embedder.encode_ids, items, normalize=unit)
        vectors = np.asarray(found, dtype=np.float32).reshape(len(items.items), embedder.size)
        unit = bool(normalize) if dimensions is None else normalize is not False
        return shortened(vectors, dimensions or embedder.truncate_dim, unit=unit)

    async def similarities(self, source: str, texts: Sequence[str], **options: Any) -> list[float]:
        """The cosine similarities of a text with several; for ``options`` see ``embed``."""
        if not texts:
            raise bad_field("sentences is empty; give one or more", "sentences")
        vectors = await self.embed([source, *texts], normalize=True, **options)
        return (vectors[1:] @ vectors[0]).tolist()

    async def rank(
        self, query: str, texts: Sequence[str], truncate: bool = True, raw: bool = False
    ) -> list[tuple[int, float]]:
        """Rank texts by a query: indices with scores, best first.

        The score is the value or probability of a model for pairs, or else the cosine similarity.

        Args:
            truncate: see ``ServedModel.rows``.
            raw: return logits instead of probabilities.
        """
        pairs = [{"text": query, "text_pair": text} for text in texts]
        model = self.model
        if model.predictor is None or model.task not in ("classify", "regress"):
            model.require("embed")
            scores = await self.similarities(query, texts, truncate=truncate)
        elif len(model.labels) > (2 if model.task == "classify" else 1):
            raise bad_field(
                f"the model {model.name} has {len(model.labels)} labels; ranking needs one score, "
                "or two labels of which the last one means that the texts match"
            )
        elif raw and model.task == "classify":
            found = await self.logits(pairs, truncate)
            scores = [float(logits[-1] - logits[0]) for logits in found]
        else:
            decided = await self.decide(pairs, truncate)
            scores = [float(np.ravel(value)[-1]) for value, _ in decided]
            if model.pair is None and model.task == "regress" and not raw:
                scores = expit(scores).tolist()  # a reranker of the hub: its logit
        return sorted(enumerate(scores), key=lambda pair: -pair[1])

    async def fill(
        self, texts: Sequence[str], targets: Sequence[str] | None = None, top: int = 5
    ) -> Sequence[Any]:
        """Candidates for the masks of texts: ``top`` for each, or all targets."""
        model = self.model
        model.require("fill")
        self.service.require_size(texts)
        ids = None if targets is None else tuple(dict.fromkeys(_target_ids(model, targets)))
        top = min(top, _MOST_CANDIDATES)
        masks = sum(len(model.filler.spelling.findall(text)) for text in texts)
        self.service.require_room(masks * top, "candidates", _PER_CANDIDATE)
        return await self.answers(model.fill, model.texts, texts, targets=ids, top=top)

    async def of_all(
        self, texts: Sequence[str], work: Callable[..., Sequence[T]], **options: Hashable
    ) -> T:
        """The result of ``work``, a method of the model, for all texts of a request together."""
        (found,) = await self.answers(work, self.model.group_items, texts, **options)
        return found

    async def search(self, queries: Sequence[str], top: int, by: str) -> Sequence[Any]:
        """Search an index; see ``Index.search``."""
        self.model.require("search")
        index = self.model.index
        size = _PER_CANDIDATE + index.text_bytes // _NUMBER
        self.service.require_room(len(queries) * min(top, len(index)), "texts", size)
        return await self.answers(index.search, self.model.texts, queries, top_k=top, by=by)

    async def translate(self, texts: Sequence[str]) -> Sequence[str]:
        """Translations."""
        self.model.require("translate")
        return await self.answers(self.model.translate, self.model.texts, texts)


async def _unless_gone(request: Request, work: "asyncio.Future[T]") -> T:
    """The result of a future, which is cancelled if the client disconnects."""
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise Refusal(499, "the client has disconnected", "client_left")
        return await work
    finally:
        gone.cancel()
        work.cancel()


async def _gone(request: Request) -> None:
    """Return when the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _characters(value: Any) -> int:
    """The total characters of a text, or of all texts in lists and objects."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_characters, [*value, *value.values()]))
    if isinstance(value, list):
        return sum(map(_characters, value))
    return 1


def _target_ids(model: ServedModel, targets: Sequence[str]) -> list[int]:
    ids = [model.tokenizer.id_of(token) for token in targets]
    if None in ids:
        raise bad_field(
            Message("{targets!r} is not a token of the vocabulary", targets[ids.index(None)]),
            "targets",
        )
    if not ids:
        raise bad_field("targets is empty; name tokens of the vocabulary", "targets")
    return ids
