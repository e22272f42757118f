"""What ``/metrics`` tells, in Prometheus's form."""

import os
from collections.abc import Callable, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    multiprocess,
)

from ..translator.translation import Translation
from .scheduler import DecodingWay

#: Set where several processes count together, in files of this folder.
SHARED = "PROMETHEUS_MULTIPROC_DIR"

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class Metrics:
    """The counters of a process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        name, registry = "paradec_", self.registry
        self.requests = Counter(
            name + "requests", "Requests answered", ["path", "status"], registry=registry
        )
        self.seconds = Histogram(
            name + "request_seconds",
            "Seconds of a request",
            ["path"],
            buckets=_SECONDS,
            registry=registry,
        )
        by = ["model", "decoding"]
        self.sentences = Counter(name + "sentences", "Sentences decoded", by, registry=registry)
        self.tokens = Counter(name + "tokens", "Tokens written", by, registry=registry)
        self.passes = Counter(
            name + "passes", "Decoder passes, summed over sentences", by, registry=registry
        )
        self.predicted = Counter(
            name + "prediction_tokens",
            "Tokens of predictions",
            [*by, "verdict"],
            registry=registry,
        )
        self.batch = Histogram(
            name + "batch_sentences",
            "Sentences of a batch",
            by,
            buckets=(1, 2, 4, 8, 16, 32, 64, 128),
            registry=registry,
        )
        self.batch_seconds = Histogram(
            name + "batch_seconds", "Seconds of a batch", by, buckets=_SECONDS, registry=registry
        )
        self.waiting = Gauge(
            name + "waiting_sentences",
            "Sentences that wait",
            registry=registry,
            multiprocess_mode="livesum",
        )

    def decoded(
        self, way: DecodingWay, translations: Sequence[Translation], seconds: float
    ) -> None:
        """Count a batch."""
        by = "-".join(way.pair), way.decoding or "default"
        self.sentences.labels(*by).inc(len(translations))
        self.tokens.labels(*by).inc(sum(translation.tokens for translation in translations))
        self.passes.labels(*by).inc(sum(translation.passes for translation in translations))
        if way.drafted:
            self.predicted.labels(*by, "accepted").inc(
                sum(translation.accepted for translation in translations)
            )
            self.predicted.labels(*by, "rejected").inc(
                sum(translation.rejected for translation in translations)
            )
        self.batch.labels(*by).observe(len(translations))
        self.batch_seconds.labels(*by).observe(seconds)

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests.labels(path, status).inc()
        self.seconds.labels(path).observe(seconds)

    def text(self, waiting: Callable[[], int]) -> bytes:
        """Return all of them; with several processes, those of all."""
        self.waiting.set(waiting())
        if SHARED not in os.environ:
            return generate_latest(self.registry)
        every = CollectorRegistry()
        multiprocess.MultiProcessCollector(every)
        return generate_latest(every)
