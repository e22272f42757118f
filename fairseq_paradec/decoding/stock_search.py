"""fairseq's own search, which the audit and measuring compare with; its version.

No other file of ``decoding`` and ``methods`` imports fairseq.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

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
