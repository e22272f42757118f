"""Fixes of ``--replace-unk``."""

from typing import Any

from fairseq import utils

from .patching import Function, around

#: What fairseq takes ``--replace-unk`` for where no file follows it.
_NO_FILE = "@@ "


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


def copy_without_a_file() -> None:
    """Let ``--replace-unk`` without a file copy the source's words, as its help says.

    Fault: fairseq 0.12 takes it for a file called ``@@`` with a space, and does not find that.
    """

    @around(utils, "load_align_dict")
    def load(original: Function, given: Any) -> Any:
        return original("" if given == _NO_FILE else given)
