"""Specifications of decoders: ``[LABEL=]DECODING [flags of fairseq-generate]``, read once.

A sweep has several values of an option: each decoder that reads it becomes one for each value.
"""

import argparse
import itertools
import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...config import ALL, ENGINE_FLAGS, METHOD_FLAGS, flag
from ...errors import UsageError, option_error
from ...methods.stock import OTHER_SEARCH
from ...registry import METHODS
from .presets import LIMITS

# With other limits for one decoder, times do not compare.
_INSTEAD = {
    **{flag(name): flag(name) for name in LIMITS},
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

    def changed(self, changes: Mapping[str, Any]) -> "Spec":
        """Return the decoder with other values of some options, which its label then names."""
        if not changes:
            return self
        changed = {**self.options, **({"path": self.path} if self.path else {}), **changes}
        if self.label == self.command:
            return Spec.of(changed)
        words = (f"{name.replace('_', '-')} {value}" for name, value in changes.items())
        return Spec.of(changed, ", ".join([self.label, *words]))


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
    known, left = parser.parse_known_args(words)
    for word in left:
        name = word.split("=")[0]
        instead = f"{_INSTEAD[name]} of the benchmark, for all decoders" if name in _INSTEAD else ""
        allowed = instead or ", ".join(map(flag, ("path", *_OF_A_DECODER)))
        raise UsageError(
            f"--decoder: got {command!r}, and {name} is no flag of one decoder; allowed: {allowed}"
        )
    options = {name: value for name, value in vars(known).items() if value is not None}
    path = options.pop("path", None)
    return Spec(label, command, options, path)


# ---- sweeps -------------------------------------------------------------------------------------

#: The values of options, by the options' names.
Sweeps = Mapping[str, Sequence[Any]]


def read_sweeps(texts: Sequence[str]) -> Sweeps:
    """Read every ``--sweep OPTION=VALUE,...``; an option that is named again gets more values.

    Raises:
        UsageError: an option is none of one decoder, or a value is not of its kind.
    """
    sweeps: dict[str, list[Any]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        option = name.replace("-", "_")
        if option not in _OF_A_DECODER or not values:
            allowed = "OPTION=VALUE,..., an option of one decoder, such as block-size=4,8"
            raise option_error("--sweep", text, allowed)
        kind = ALL[option].kind
        for value in [values] if os.path.exists(values) else values.split(","):
            try:
                typed = {"yes": True, "no": False}[value] if kind is bool else kind(value)
            except (ValueError, KeyError):
                wanted = {bool: "yes or no", int: "whole numbers"}.get(kind, "numbers")
                raise option_error("--sweep", text, f"{wanted}, with commas between them") from None
            sweeps.setdefault(option, []).append(typed)
    return {option: list(dict.fromkeys(values)) for option, values in sweeps.items()}


def reads(decoding: str, option: str) -> bool:
    """Return whether a decoder reads an option of ``--sweep``."""
    method = METHODS.get(decoding)
    if method is None:  # fairseq's search, or what fits the model
        return option not in METHOD_FLAGS
    if option == "drafter_path" and method.drafts_alone:  # the model that it decodes
        return True
    if option in ("lenpen", "unnormalized"):
        option = "beam"
    return option in ENGINE_FLAGS or option in method.reads


def swept(spec: Spec, sweeps: Sweeps, left_out: Collection[str] = ()) -> list[Spec]:
    """Return a decoder with every combination of the values that it reads.

    Args:
        spec: the decoder; what it has of its own is not changed.
        sweeps: the values.
        left_out: options that it does not get.
    """
    decoding = spec.options["decoding"]
    names = [name for name in sweeps if reads(decoding, name) and name not in left_out]
    names = [name for name in names if name not in spec.options]
    combinations = itertools.product(*(sweeps[name] for name in names))
    specs = []
    for values in combinations:
        changes = {n: v for n, v in zip(names, values, strict=True) if v is not False}
        alone = decoding in METHODS and METHODS[decoding].drafts_alone
        if alone and "drafter_path" in changes:
            changes["path"] = changes.pop("drafter_path")
        specs.append(spec.changed(changes))
    return specs
