"""What is compared: systems, which translate sentences of a test set by their numbers.

``translate`` includes everything that a user waits for: batching, the copy to the device, encoder,
decoder, and detokenisation. ``systems.py`` has those of fairseq's modules, ``core.py`` those that
need neither torch nor fairseq.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

# The labels of systems besides EXACT and OTHER_DTYPE.
BEAM, RELAXED, PEER, OTHER_MODEL = "beam search", "relaxed", "peer", "other model"


@dataclasses.dataclass
class Output:
    """One translation."""

    tokens: list[str]  # symbols of the target dictionary, without ``</s>``
    text: str  # the detokenised text; for an image its intensities
    # decoder passes; for fairseq's own search those of the batch; None if unknown
    passes: int | None
    blocks: int | None = None  # for blockwise decoding the number of blocks; None for other methods
    # of each pass, the number of drafted tokens
    drafted: list[int] = dataclasses.field(default_factory=list)
    # of each pass, the number of accepted tokens
    accepted: list[int] = dataclasses.field(default_factory=list)


class System(Protocol):
    """One row of the benchmark."""

    label: str  # its name in every table
    command: str  # its specification
    promise: str  # ``EXACT``, ``BEAM``, ``RELAXED``, ``OTHER_MODEL``, ``OTHER_DTYPE`` or ``PEER``
    parameters: int  # the number of parameters of its models
    dtype: str  # of its weights
    threads: int | None  # its own number of CPU threads; None: the run's
    files: list[str]  # its checkpoints
    models: list[Any]  # its fairseq models
    task: Any  # fairseq's task, with the test set and dictionaries

    def translate(self, sentences: Sequence[int]) -> list[Output]:
        """Translate one batch: the sentences with these numbers, in this order."""

    def provenance(self) -> Mapping[str, Any]:
        """Return how the last batch was decoded, as docs/trace.md describes it."""

    def tie(self, sentence: int, ours: list[str], theirs: list[str]) -> bool:
        """Return whether two outputs first differ at tokens with nearly equal log-probabilities."""


def decode(
    system: System, sentences: Sequence[int], size: int, advance: Callable[[int], Any]
) -> list[Output]:
    """Translate sentences in batches of a size, in their order; advance by the size of each."""
    outputs: list[Output] = []
    for start in range(0, len(sentences), size):
        outputs += system.translate(sentences[start : start + size])
        advance(len(outputs) - start)
    return outputs
