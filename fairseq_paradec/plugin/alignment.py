"""Which source token each token of an output looks at: fairseq's ``--print-alignment``."""

from collections.abc import Sequence
from typing import Any

import torch
from fairseq import utils
from fairseq.data.data_utils import collate_tokens
from fairseq.sequence_generator import EnsembleModelWithAlignment
from torch import Tensor

from ..config import DecodingConfig
from ..errors import excludes, option_error
from ..methods.configure import cannot_honour
from ..registry import METHODS
from ..target_order import TargetOrder, order_of

#: What fairseq makes of attention, by ``--print-alignment``.
KINDS = {"hard": utils.extract_hard_alignment, "soft": utils.extract_soft_alignment}


def kind_of(config: DecodingConfig, models: Sequence[Any]) -> str | None:
    """Return the kind of alignments that options ask for; None: they ask for none.

    ``--replace-unk`` needs hard ones.

    Raises:
        UsageError: there is no such kind, the options contradict each other, or nothing of the
            method or the models attends as fairseq's search would.
    """
    for name in ("print_alignment", "replace_unk"):
        value = getattr(config, name)
        if value in (None, False):
            continue
        method = METHODS[config.decoding]
        verified = method.audited or method.reads_beam(config)
        if not verified or order_of(models[0]) != TargetOrder():
            allowed = "none where words are not written from left to right, and verified"
            raise cannot_honour(config, name, value, allowed)
    asked = config.print_alignment or None
    if asked is not None and asked not in KINDS:
        raise option_error("--print-alignment", asked, ", ".join(KINDS))
    if config.replace_unk not in (None, False):
        if asked == "soft":
            raise excludes("--replace-unk", config.replace_unk, "--print-alignment soft")
        asked = "hard"
    kind: str | None = asked
    return kind


@torch.no_grad()
def align(
    models: Sequence[Any],
    sample: dict[str, Any],
    outputs: list[list[dict[str, Any]]],
    kind: str,
    words: Any,
) -> None:
    """Add their alignments to hypotheses, by one forward pass of the models over all of them.

    Args:
        models: fairseq's; attention is their mean, of the last layer's heads.
        sample: fairseq's batch.
        outputs: B lists of hypotheses, of tensors.
        kind: see ``KINDS``.
        words: the target dictionary.
    """
    pad, eos = words.pad(), words.eos()
    hypos = [hypo for row in outputs for hypo in row]
    rows = [b for b, row in enumerate(outputs) for _ in row]
    sources = sample["net_input"]["src_tokens"][rows]
    tokens = [hypo["tokens"] for hypo in hypos]
    inputs = collate_tokens(tokens, pad, eos, move_eos_to_beginning=True).to(sources.device)
    attention = _attention(models, sources, sources.ne(pad).sum(1), inputs).float().cpu()
    targets, sources = collate_tokens(tokens, pad, eos).cpu(), sources.cpu()
    for hypo, *parts in zip(hypos, attention, sources, targets, strict=True):
        hypo["alignment"] = KINDS[kind](*parts, pad, eos)


def _attention(models: Sequence[Any], sources: Tensor, lengths: Tensor, inputs: Tensor) -> Tensor:
    """Return the attention that fairseq's search aligns by, N×T×S.

    It is that of the heads that a model aligns by only where this model attends to all of an output
    (``--full-context-alignment``).
    """
    if any(getattr(model, "full_context_alignment", False) for model in models):
        return EnsembleModelWithAlignment([*models]).forward_align(sources, lengths, inputs)
    each = []
    for model in models:
        encoded = model.encoder(sources, src_lengths=lengths)
        each.append(model.decoder(inputs, encoder_out=encoded)[1]["attn"][0])
    return torch.stack(each).mean(0)
