"""The values of ``--bpe`` that are fairseq's alone: ``gpt2``, ``fastbpe`` and others."""

from argparse import Namespace
from collections.abc import Mapping

from fairseq.data.encoders import BPE_REGISTRY, build_bpe

from ...errors import option_error
from ...text.bpe import Bpe, errors_named


def build(name: str, files: Mapping[str, str]) -> Bpe:
    """Build fairseq's; arguments as ``text.bpe.build``.

    Raises:
        UsageError: fairseq has none of this name, or a file is missing or wrong.
    """
    if name not in BPE_REGISTRY:
        raise option_error("--bpe", name, ", ".join(BPE_REGISTRY))
    with errors_named(name):
        bpe: Bpe = build_bpe(Namespace(**files, _name=name, bpe=name))
    return bpe
