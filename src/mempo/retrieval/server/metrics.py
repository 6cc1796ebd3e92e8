"""What the service counts, in Prometheus's text form.

With several workers, whichever of them is asked for `/metrics` reports the sum over all: they write to files in the
folder that PROMETHEUS_MULTIPROC_DIR names.
"""

from __future__ import annotations

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MULTIPROC_DIR = "PROMETHEUS_MULTIPROC_DIR"

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class ServiceMetrics:
    """The counters of one application; each has its own registry."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        name = "mempo_retrieval_"
        self.requests = Counter(
            name + "requests", "Requests by path and HTTP status.", ["path", "status"], registry=registry
        )
        self.seconds = Histogram(
            name + "request_seconds",
            "Seconds from a request's header to its reply.",
            ["path"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.queries = Counter(name + "queries", "Queries asked.", registry=registry)
        self.cached = Counter(name + "cached_queries", "Queries answered from the cache.", registry=registry)
        self.batches = Histogram(
            name + "batch_queries", "Queries that the index was asked at once.", buckets=_QUERIES, registry=registry
        )
        self.waiting = Gauge(
            name + "waiting_queries",
            "Queries accepted and not yet answered.",
            registry=registry,
            multiprocess_mode="livesum",
        )

    def text(self) -> bytes:
        if os.environ.get(MULTIPROC_DIR):
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
            return generate_latest(registry)
        return generate_latest(self.registry)
