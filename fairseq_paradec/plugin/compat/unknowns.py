"""A fix of ``--replace-unk``."""

from typing import Any

from fairseq import utils

from .patching import Function, around


def take_alignments() -> None:
    """Let ``--replace-unk`` read alignments as fairseq makes them.

    Fault: fairseq 0.12 makes pairs of a source and a target token, and asks for the source token of
    each word of an output by the number of the word. So it ends with a TypeError at the first
    ``<unk>``, and with an IndexError without ``--print-alignment`` (see
    ``ChoosesMethod.build_generator``).
    """

    @around(utils, "replace_unk")
    def replace(
        original: Function, hypo: str, source: str, alignment: Any, words: Any, unk: str
    ) -> Any:
        if isinstance(alignment, list):
            looked_at = {target: place for place, target in alignment}
            count = len(hypo.split())
            alignment = [looked_at.get(number, -1) for number in range(count)]  # -1: <eos>
        return original(hypo, source, alignment, words, unk)
