"""fairseq's checkpoints, for other rooms."""

import contextlib
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.dataclass.configs import FairseqConfig
from fairseq.tasks.translation import TranslationConfig
from omegaconf import OmegaConf
from torch import Tensor

from ..errors import option_error
from ..files import replacing


def read_checkpoint(path: str) -> dict[str, Any]:
    """Return what a checkpoint holds, on the CPU; ``cfg`` as fairseq 0.12 has it."""
    state: dict[str, Any] = checkpoint_utils.load_checkpoint_to_cpu(path)
    return state


@contextlib.contextmanager
def saving(flag: str, path: Path, state: dict[str, Any]) -> Iterator[Path]:
    """Write a checkpoint whole or not at all; yields the file before it gets its name.

    Raises:
        UsageError: it cannot be written; the message names the flag. torch has no error of its own
            for a full disk.
    """
    with replacing(path) as partial:
        try:
            torch.save(state, partial)
        except (OSError, RuntimeError) as error:
            why = error.strerror if isinstance(error, OSError) else None
            allowed = f"a file that can be written ({why or 'is its disk full?'})"
            raise option_error(flag, str(path), allowed) from error
        yield partial


def options_of(part: Any) -> dict[str, Any]:
    """Return a part of a checkpoint's configuration by name, in whatever form fairseq saved it."""
    if OmegaConf.is_config(part):
        part = OmegaConf.to_container(part)
    return dict(vars(part) if isinstance(part, Namespace) else part or {})


def new_checkpoint(
    source: str | None,
    target: str | None,
    options: Mapping[str, Any],
    weights: Mapping[str, Tensor],
) -> dict[str, Any]:
    """Return a checkpoint as fairseq-train writes it, without the state of a training."""
    cfg: Any = OmegaConf.to_container(OmegaConf.structured(FairseqConfig()), enum_to_str=True)
    task = asdict(TranslationConfig(data=".", source_lang=source, target_lang=target))
    cfg["task"] = OmegaConf.to_container(OmegaConf.create(task), enum_to_str=True)
    cfg["task"]["_name"] = "translation"
    cfg["model"] = dict(options)
    history = {
        "criterion_name": "label_smoothed_cross_entropy",
        "optimizer_name": "FairseqAdam",
        "lr_scheduler_state": {"best": None},
        "num_updates": 0,
    }
    return {
        "args": None,
        "cfg": cfg,
        "model": dict(weights),
        "criterion": None,
        "optimizer_history": [history],
        "last_optimizer_state": None,
        "task_state": {},
        "extra_state": {"epoch": 0},
    }
