"""fairseq's own search, which the audit and measuring compare with; its version.

No other file of ``decoding`` and ``methods`` imports fairseq.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from ..batch import Batch
from ..errors import nan_error, needs
from ..extras import named


def check_installed(option: str) -> None:
    """Raise a UsageError that names the option, if fairseq or its torch is not installed."""
    with named(option):
        import fairseq  # noqa: F401


def beam_search(models: Sequence[Any], words: Any, beam: int, **limits: Any) -> Any:
    """Build fairseq's SequenceGenerator."""
    from fairseq.sequence_generator import SequenceGenerator

    return SequenceGenerator(models, words, beam_size=beam, **limits)


def search_of_flags(models: Sequence[Any], words: Any, flags: Any, **more: Any) -> Any:
    """Build the search that fairseq's flags of generation name."""
    from fairseq.tasks import FairseqTask

    task = SimpleNamespace(target_dictionary=words)
    return FairseqTask.build_generator(task, models, flags, None, more)


def count_passes(search: Any, models: Sequence[Any]) -> Any:
    """Return an ensemble whose ``passes`` are the decoder passes since it was last set.

    fairseq's search does not report them. The search runs the ensemble, unless it brings one of its
    own.
    """
    from fairseq.sequence_generator import EnsembleModel

    class CountedModel(EnsembleModel):
        passes = 0

        def forward_decoder(self, *args: Any, **kwargs: Any) -> Any:
            self.passes += 1
            return super().forward_decoder(*args, **kwargs)

    counted = CountedModel(models)
    if type(search.model) is EnsembleModel:
        search.model = counted
    return counted


def search_batch(search: Any, models: Sequence[Any], batch: Batch) -> list[list[dict[str, Any]]]:
    """Decode a batch by fairseq's search: B lists of its hypotheses, best first."""
    import torch

    device = next(models[0].parameters()).device
    source, lengths = (torch.from_numpy(part).to(device) for part in (batch.tokens, batch.lengths))
    found: list[list[dict[str, Any]]] = search.generate(
        models,
        {"net_input": {"src_tokens": source, "src_lengths": lengths}},
        prefix_tokens=None if batch.prefix is None else torch.from_numpy(batch.prefix).to(device),
        constraints=batch.constraints,
        bos_token=batch.start,
    )
    return found


@contextmanager
def errors_named(search: Any, models: Sequence[Any], constraints: Any) -> Iterator[None]:
    """Name the errors of fairseq's search.

    Raises:
        UsageError: the model gives NaN, where the search asserts that a sentence ends; or the
            search needs constraints, and the batch has none.
    """
    kind = getattr(search, "search", None)
    if getattr(kind, "supports_constraints", False) and constraints is None:
        needed = "fairseq-interactive, which reads constraints behind the sentence"
        raise needs("--constraints", True, needed)
    try:
        yield
    except AssertionError as error:
        if re.fullmatch(r"(\d+) < \1", str(error)):
            raise nan_error("--path", models) from error
        raise
