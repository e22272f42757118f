"""fairseq's own search, which the audit and measuring compare with; its version.

No other file of ``decoding`` and ``methods`` imports fairseq.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import fairseq
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator
from fairseq.tasks import FairseqTask

FAIRSEQ_VERSION = str(fairseq.__version__)


def beam_search(models: Sequence[Any], words: Any, beam: int, **limits: Any) -> Any:
    """Build fairseq's SequenceGenerator."""
    return SequenceGenerator(models, words, beam_size=beam, **limits)


def search_of_flags(models: Sequence[Any], words: Any, flags: Any, **more: Any) -> Any:
    """Build the search that fairseq's flags of generation name."""
    task = SimpleNamespace(target_dictionary=words)
    return FairseqTask.build_generator(task, models, flags, None, more)


class CountedModel(EnsembleModel):
    """fairseq's ensemble with a count of decoder passes, which fairseq's search does not report."""

    passes = 0  # the number of passes since it was last set

    def forward_decoder(self, *args: Any, **kwargs: Any) -> Any:
        """Count the pass, and run it as fairseq does."""
        self.passes += 1
        return super().forward_decoder(*args, **kwargs)


def count_passes(search: Any, models: Sequence[Any]) -> CountedModel:
    """Let a search count its decoder passes, unless it brings an ensemble of its own."""
    counted = CountedModel(models)
    if type(search.model) is EnsembleModel:
        search.model = counted
    return counted
