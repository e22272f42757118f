"""Specifications of decoders: ``[LABEL=]DECODING [flags of fairseq-generate]``, read once."""

import argparse
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...config import ALL, ENGINE_FLAGS, METHOD_FLAGS, flag
from ...errors import UsageError, option_error
from ...methods.stock import OTHER_SEARCH

# fairseq's flags that all decoders share; with other values for one decoder, times do not compare.
COMMON = ("max_len_a", "max_len_b", "min_len", "unkpen", "temperature")
_INSTEAD = {
    **{flag(name): flag(name) for name in COMMON},
    "--fp16": "--dtype fp16",
    "--memory-efficient-fp16": "--dtype fp16",
    "--bf16": "--dtype bf16",
    "--memory-efficient-bf16": "--dtype bf16",
    "--cpu": "--device cpu",
    "--gen-subset": "--subset",
    "--batch-size": "--batch-sizes",
    "--max-tokens": "--batch-sizes",
}
# The options of one decoder: those that the building of a decoder reads.
_OF_A_DECODER = ("beam", "lenpen", "unnormalized", *OTHER_SEARCH, *METHOD_FLAGS, *ENGINE_FLAGS)


@dataclass(frozen=True)
class Spec:
    """One decoder of a comparison."""

    label: str  # its name in every table
    command: str  # it as typed, for tables
    options: Mapping[str, Any]  # its options by name, with ``decoding``
    path: str | None = None  # its checkpoint; None: that of the comparison

    @classmethod
    def of(cls, options: Mapping[str, Any], label: str | None = None) -> "Spec":
        """Make one of options by name, with ``decoding`` and perhaps ``path``."""
        words = [options["decoding"]]
        for name, value in options.items():
            if name != "decoding":
                words += [flag(name), *([] if value is True else [str(value)])]
        command, own = shlex.join(words), dict(options)
        path = own.pop("path", None)
        return cls(label or command, command, own, path)


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


def read(spec: str) -> Spec:
    """Read a ``--decoder``.

    Raises:
        UsageError: it is malformed, or has a flag that no decoder has, or that all share.
    """
    label, command = split_label(spec)
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise option_error("--decoder", command, f"flags as a shell takes them ({error})") from None

    def refuse(message: str) -> None:
        raise UsageError(f"--decoder: got {command!r}: {message}")

    parser = argparse.ArgumentParser(add_help=False)
    parser.error = refuse  # type: ignore[assignment]
    parser.add_argument("decoding")
    parser.add_argument("--path")
    for name in _OF_A_DECODER:
        if ALL[name].kind is bool:
            parser.add_argument(flag(name), action="store_true", default=None)
        else:
            parser.add_argument(flag(name), type=ALL[name].kind)
    found, left = parser.parse_known_args(words)
    for word in left:
        name = word.split("=")[0]
        instead = f"{_INSTEAD[name]} of the benchmark, for all decoders" if name in _INSTEAD else ""
        allowed = instead or ", ".join(map(flag, ("path", *_OF_A_DECODER)))
        raise UsageError(
            f"--decoder: got {command!r}, and {name} is no flag of one decoder; allowed: {allowed}"
        )
    options = {name: value for name, value in vars(found).items() if value is not None}
    path = options.pop("path", None)
    return Spec(label, command, options, path)
