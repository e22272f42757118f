"""Checkpoints of model folders that hold the weights of maps packed alone.

Such a checkpoint has fairseq's settings, and the weights that native passes do not pack:
embeddings, positions, norms, biases. The others are there by name only: in the model they are on
torch's ``meta`` device, which has shapes and no numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils, tasks
from fairseq.checkpoint_utils import overwrite_args_by_name
from torch import nn

from ...decoding.provenance import remember_hash, weights_hash
from ...engine.known import is_sinusoidal
from ...errors import UsageError
from ...files import replacing
from ..compat.checkpoints import PACKED_ONLY


def left_out(model: Any) -> list[str]:
    """Return the names of the weights that packed maps hold."""
    return [
        f"{name}.weight"
        for name, module in model.named_modules()
        if type(module) is nn.Linear and name.startswith(("encoder.layers.", "decoder.layers."))
    ]


def save(model: Any, path: Path) -> None:
    """Leave the weights of packed maps out of a checkpoint.

    Args:
        model: as loaded from it.
        path: the checkpoint, which is replaced.
    """
    state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
    names = left_out(model)
    kept = {name: weight for name, weight in model.state_dict().items() if name not in names}
    about = {"names": names, "hash": weights_hash(model)}
    found = state | {"model": kept, "last_optimizer_state": None, PACKED_ONLY: about}
    with replacing(path) as partial:
        torch.save(found, partial)


def load(paths: Sequence[str], **overrides: str) -> tuple[list[Any], Any, str]:
    """Load the one model of a folder; see ``loading.load_paths``.

    Embeddings stay in the file, which is mapped, until they are read.

    Raises:
        UsageError: the checkpoint is another one.
    """
    (path,) = paths
    state = torch.load(path, map_location="cpu", mmap=True)
    if PACKED_ONLY not in state:
        raise UsageError(f"{path}: got all weights; allowed: those that are not packed, alone")
    cfg = state["cfg"]
    overwrite_args_by_name(cfg, overrides)
    task = tasks.setup_task(cfg.task, from_checkpoint=True)
    with torch.device("meta"):
        model = task.build_model(cfg.model, from_checkpoint=True)
    missing, unknown = nn.Module.load_state_dict(model, state["model"], strict=False, assign=True)
    if sorted(missing) != sorted(state[PACKED_ONLY]["names"]) or unknown:
        raise UsageError(f"{path}: got weights of another model than its settings")
    for module in model.modules():
        if is_sinusoidal(module):
            size = module.weights.size(0)
            module.weights = module.get_embedding(size, module.embedding_dim, module.padding_idx)
    model.float().prepare_for_inference_(cfg)
    remember_hash(model, state[PACKED_ONLY]["hash"])
    return [model], task, cfg.task._name
