"""Prometheus metrics for ``/metrics``."""

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ownbert.inference.exported_network import ENGINE_POSITIONS

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_TOKENS = (16, 64, 256, 1024, 4096, 8192, 16384, 65536)


class Metrics:
    """Counters of a server.

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
        self.queue = Histogram(
            "ownbert_queue_seconds", "Seconds in the queue.", buckets=_SECONDS, **about
        )
        self.compute = Histogram(
            "ownbert_batch_seconds", "Seconds per batch.", buckets=_SECONDS, **about
        )
        self.batch = Histogram(
            "ownbert_batch_tokens", "Tokens per batch.", buckets=_TOKENS, **about
        )
        self.waiting = Gauge("ownbert_queue_tokens", "Tokens currently in the queue.", **about)
        self.waiting.set_function(waiting)
        self.connections = Gauge("ownbert_connections", "Connections currently open.", **about)
        self.connections.set_function(connections)
        self.padding = Gauge(
            "ownbert_padding_share",
            "Share of padding in the tokens computed by engines; packed batches have none.",
            **about,
        )
        self.padding.set_function(
            lambda: ENGINE_POSITIONS["padding"] / max(1, ENGINE_POSITIONS.total())
        )

    def on_batch(self, tokens: int, seconds: float) -> None:
        """Count a batch."""
        self.tokens.inc(tokens)
        self.batch.observe(tokens)
        self.compute.observe(seconds)

    def page(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self.registry)
