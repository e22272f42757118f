"""Specifications of decoders: ``[LABEL=]DECODING [flags of fairseq-generate]``."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from typing import Any

from fairseq import options as fairseq_options

from ..errors import UsageError, option_error
from ..options import ENGINE_FLAGS, METHOD_FLAGS

# fairseq's flags that all decoders share; with other values for one decoder, times do not compare.
COMMON = ("max_len_a", "max_len_b", "min_len", "unkpen", "temperature")
_INSTEAD = {
    **{name: "--" + name.replace("_", "-") for name in COMMON},
    "fp16": "--dtype fp16",
    "memory_efficient_fp16": "--dtype fp16",
    "bf16": "--dtype bf16",
    "memory_efficient_bf16": "--dtype bf16",
    "cpu": "--device cpu",
    "gen_subset": "--subset",
    "batch_size": "--batch-sizes",
    "max_tokens": "--batch-sizes",
}
# Flags that turn fairseq's search into another one than plain beam search.
OTHER_SEARCH = (
    "no_repeat_ngram_size", "match_source_len", "diverse_beam_groups", "diverse_beam_strength",
    "diversity_rate", "sampling", "sampling_topk", "sampling_topp",
)  # fmt: skip
# The allowed flags of fairseq-generate: those that the building of a generator reads.
OF_A_DECODER = (
    "decoding", "path", "beam", "lenpen", "unnormalized", *OTHER_SEARCH, *METHOD_FLAGS,
    *ENGINE_FLAGS,
)  # fmt: skip


def split_label(spec: str) -> tuple[str, str]:
    """Split ``LABEL=DECODING flags``; without a label the specification is the label.

    Raises:
        UsageError: nothing is left.
    """
    label, sign, command = spec.partition("=")
    if not sign or " --" in label or label.strip().startswith("--"):
        label = command = spec
    if not command.strip() or not label.strip():
        raise option_error("--decoder", spec, "[LABEL=]DECODING [flags of fairseq-generate]")
    return " ".join(label.split()), command.strip()


def parse(command: str, data: str, path: str) -> tuple[argparse.Namespace, list[str]]:
    """Parse a decoder's flags with fairseq-generate's parser; also return the given flags."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise option_error("--decoder", command, f"flags as a shell takes them ({error})") from None

    def refuse(message: str) -> None:
        raise UsageError(f"--decoder: got {command!r}: {message}")

    def parsed(*flags: str) -> argparse.Namespace:
        parser = fairseq_options.get_generation_parser()
        parser.error = refuse
        return fairseq_options.parse_args_and_arch(parser, [data, "--path", path, *flags])

    idle, found = parsed(), parsed("--decoding", *words)
    given = [name for name, value in vars(found).items() if value != getattr(idle, name, None)]
    for name in given:
        if name not in OF_A_DECODER:
            instead = _INSTEAD.get(name)
            raise UsageError(
                f"--decoder: got {command!r}, and --{name.replace('_', '-')} is no flag of one "
                "decoder; allowed: "
                + (
                    f"{instead} of the benchmark, for all decoders"
                    if instead
                    else ", ".join("--" + n.replace("_", "-") for n in OF_A_DECODER[1:])
                )
            )
    return found, given


def spell(options: Mapping[str, Any]) -> str:
    """Return the specification of a decoder.

    Args:
        options: options by the flags' names, with ``decoding``; a switch is True.
    """
    words = [options["decoding"]]
    for name, value in options.items():
        if name != "decoding":
            words += ["--" + name.replace("_", "-"), *([] if value is True else [str(value)])]
    return shlex.join(words)
