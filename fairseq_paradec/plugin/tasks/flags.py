"""The plugin's flags as fields of a fairseq configuration, which gives them to every command."""

# No "int | None": fairseq reads the types of these fields, and knows Optional only.
# ruff: noqa: UP045

import contextlib
from dataclasses import dataclass, field, make_dataclass
from typing import Any, Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.tasks.translation import TranslationConfig
from omegaconf import DictConfig, open_dict

from ...config import OPTIONS, SWITCHES
from ...methods.describe import flag_help


def _fields() -> list[tuple[str, Any, Any]]:
    """Return name, type and field of every option; None means "the method's default"."""
    options = []
    for name, option in OPTIONS.items():
        always = name == "decoding" or name in SWITCHES
        kind: Any = option.kind if always else Optional[option.kind]
        default = option.default if always else None
        options.append((name, kind, field(default=default, metadata={"help": flag_help(name)})))
    return options


#: The plugin's flags.
ParallelDecodingOptions: Any = make_dataclass(
    "ParallelDecodingOptions",
    _fields(),
    bases=(FairseqDataclass,),
    namespace={"__module__": __name__},
)


@dataclass
class ParallelTranslationConfig(TranslationConfig, ParallelDecodingOptions):
    """fairseq's translation options and the plugin's."""

    autocast: bool = field(
        default=False,
        metadata={
            "help": "train on the CPU with products in bfloat16 (torch.autocast); weights and "
            "updates stay fp32. Twice as fast where the CPU has bfloat16 instructions"
        },
    )
    keep_frozen_outputs: float = field(
        default=0.0,
        metadata={
            "help": "in training keep the outputs of a frozen encoder, or of a frozen base with "
            "heads, from one epoch to the next, in at most this many gigabytes of memory"
        },
    )
    fairseq_updates: bool = field(
        default=False,
        metadata={
            "help": "in training use fairseq's dropout and Adam, and let the process give memory "
            "back after each update: for comparisons"
        },
    )


def set_options(args: Any, values: dict[str, Any]) -> None:
    """Set options, in a Namespace or in a configuration whose keys are fixed."""
    with open_dict(args) if isinstance(args, DictConfig) else contextlib.nullcontext():
        for name, value in values.items():
            setattr(args, name, value)
