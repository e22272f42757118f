"""Checkpoints of model folders that hold the weights of maps packed alone.

Such a checkpoint has fairseq's settings, and the weights that native passes do not pack:
embeddings, positions, norms, biases. The others are there by name only: in the model they are on
torch's ``meta`` device, which has shapes and no numbers.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils, tasks
from fairseq.checkpoint_utils import overwrite_args_by_name
from torch import nn
from torch.overrides import TorchFunctionMode

from ...decoding.provenance import remember_hash, weights_hash
from ...engine.torch.known import is_sinusoidal
from ...engine.torch.watch import keep_weights
from ...errors import UsageError
from ..compat.checkpoint_problems import form_problem
from ..compat.checkpoints import PACKED_ONLY, check_content
from ..files import saving


class _Unfilled(TorchFunctionMode):
    """Keeps torch from importing sympy, for a second, to fill tensors that have no numbers.

    Sinusoids are computed on the CPU.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func in (torch.Tensor.normal_, torch.Tensor.uniform_):
            return args[0]
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else given["tensor"]
        if func in (torch.arange, torch.zeros):
            given = {"device": "cpu"} | given
        return func(*args, **given)


def left_out(model: Any) -> list[str]:
    """Return the names of the weights that packed maps hold."""
    return [
        f"{name}.weight"
        for name, module in model.named_modules()
        if type(module) is nn.Linear and name.startswith(("encoder.layers.", "decoder.layers."))
    ]


def save(model: Any, path: Path) -> None:
    """Leave the weights of packed maps out of a checkpoint, which is replaced."""
    state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
    names = left_out(model)
    kept = {name: weight for name, weight in model.state_dict().items() if name not in names}
    about = {"names": names, "hash": weights_hash(model)}
    packed_state = state | {"model": kept, "last_optimizer_state": None, PACKED_ONLY: about}
    with saving("OUT", path, packed_state):
        pass


def load(paths: Sequence[str], **overrides: str) -> tuple[list[Any], Any, str]:
    """Load the one model of a folder; see ``loading.load_paths``.

    Embeddings stay in the file, which is mapped, until they are read.

    Raises:
        UsageError: the checkpoint is another one.
    """
    (path,) = paths
    try:
        return _load(path, overrides)
    except (UsageError, OSError):
        raise
    except Exception as error:  # torch and fairseq raise many kinds
        raise form_problem(path, error) from error


def _load(path: str, overrides: Mapping[str, str]) -> tuple[list[Any], Any, str]:
    """Load the model; see ``load``."""
    state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    if PACKED_ONLY not in state:
        raise UsageError(f"{path}: got all weights; allowed: those that are not packed, alone")
    check_content(path, state)
    cfg, names = state["cfg"], state[PACKED_ONLY]["names"]
    if max(cfg.model.encoder_layers, cfg.model.decoder_layers) > len(names):  # before it is built
        raise UsageError(f"{path}: got more layers than weights; allowed: an undamaged checkpoint")
    overwrite_args_by_name(cfg, overrides)
    task = tasks.setup_task(cfg.task, from_checkpoint=True)
    with torch.device("meta"), _Unfilled():
        model = task.build_model(cfg.model, from_checkpoint=True)
    missing, unknown = nn.Module.load_state_dict(model, state["model"], strict=False, assign=True)
    if sorted(missing) != sorted(names) or unknown:
        raise UsageError(f"{path}: got weights of another model than its settings")
    for module in model.modules():
        if is_sinusoidal(module):
            size = module.weights.size(0)
            module.weights = module.get_embedding(size, module.embedding_dim, module.padding_idx)
    model.float().prepare_for_inference_(cfg)
    keep_weights(model)
    remember_hash(model, state[PACKED_ONLY]["hash"])
    return [model], task, cfg.task._name
