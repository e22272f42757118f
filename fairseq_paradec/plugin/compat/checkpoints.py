"""Checkpoints: safe loading accepts fairseq's, refuses what is no model, and explains errors."""

import argparse
import contextlib
import logging
import os
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils
from fairseq.logging import meters
from omegaconf import (
    AnyNode,
    BooleanNode,
    DictConfig,
    FloatNode,
    IntegerNode,
    ListConfig,
    OmegaConf,
    StringNode,
)
from omegaconf.base import ContainerMetadata, Metadata

from ...errors import UsageError, option_error
from ...files import check_unpacked
from ...forks import computing
from ...model import file
from ...model.model import PACKED_ONLY
from .checkpoint_problems import (
    ANY_CHECKPOINT_FLAG,
    checkpoint_error,
    checkpoint_or_none,
    field,
    file_problem,
    form_problem,
    models_problem,
    registry_problem,
    warn_of_other_languages,
)
from .model_files import ALL_WEIGHTS, checkpoint_of
from .patching import Function, around, wrap_once

logger = logging.getLogger(__name__)

#: Positions that a model may have: their tables are made, not read.
POSITIONS = 1 << 17

#: How many times the bytes of its weights a model may have, beside 64 MB: settings of a spoilt
#: checkpoint may ask for any size, before the weights are compared with it.
LARGER = 8

#: Modules that have had fairseq's meters.
_METERS = ("fairseq.meters", "fairseq.logging.meters")

#: What counts the parameters of models that are built; a model may load another one.
_BUILDING: list[Any] = []

#: The overrides of the checkpoint's settings in the current load.
OVERRIDES: ContextVar[Mapping[str, Any] | None] = ContextVar("overrides", default=None)


def allow_fairseq_checkpoints() -> None:
    """Let torch's safe loading accept the objects in fairseq-train's checkpoints.

    Fault: ``torch.load`` loads weights only since torch 2.6, and refuses the ``argparse.Namespace``
    in every checkpoint and the numpy arrays and scalars in those trained with ``--eval-bleu``.
    numpy < 2 writes them under ``numpy.core``, numpy >= 2 under ``numpy._core``; both names are
    allowed with any numpy. fairseq up to 0.8 wrote its meters, then under ``fairseq.meters``;
    1.0.0a0 wrote its settings as nodes of omegaconf. Safe loading stays on: these types hold data
    only.
    """
    reconstruct: Any = np.zeros(0).__reduce__()[0]
    scalar: Any = np.float64(0).__reduce__()[0]
    dtypes = {type(np.dtype(name)) for name in ("f4", "f8", "i4", "i8", "bool")}
    torch.serialization.add_safe_globals([argparse.Namespace, np.ndarray, np.dtype, *dtypes])
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):
        torch.serialization.add_safe_globals(
            [(reconstruct, f"{module}._reconstruct"), (scalar, f"{module}.scalar")]
        )
    kinds = (meters.AverageMeter, meters.TimeMeter, meters.StopwatchMeter)
    torch.serialization.add_safe_globals(
        [(kind, f"{place}.{kind.__name__}") for place in _METERS for kind in kinds]
    )
    settings = [DictConfig, ListConfig, AnyNode, BooleanNode, FloatNode, IntegerNode, StringNode]
    about = [Metadata, ContainerMetadata, Any, defaultdict, dict, list, int, float, str, bool]
    torch.serialization.add_safe_globals([*settings, *about])


def explain_checkpoint_errors() -> None:
    """Raise errors that name the fault of a checkpoint, and what is allowed.

    Fault: fairseq 0.12 raises the loader's own errors: ``KeyError: 'best_loss'`` for a file of
    plain weights, ``IndexError: Replacement index 1 out of range`` for an architecture that no
    plugin has registered, a list of tensor shapes for the wrong dictionary. generate, interactive,
    hub and the trainer all call the two functions wrapped here. Other errors pass unchanged.
    """
    wrap_once(checkpoint_utils, "load_checkpoint_to_cpu", explain_file)
    wrap_once(checkpoint_utils, "load_model_ensemble_and_task", explain_models)


def keep_last_norms() -> None:
    """Let pre-norm Transformers of fairseq 0.6 to 0.8 keep the norm behind their decoder's layers.

    Fault: such decoders are of version 2 and have that norm; older ones, which have none, are of
    version 1. fairseq 0.12 takes both for decoders without it, and refuses its weights.
    """

    @around(checkpoint_utils, "load_checkpoint_to_cpu", fix="keep_last_norms")
    def load(original: Function, *args: Any, **kwargs: Any) -> Any:
        state = original(*args, **kwargs)
        weights = state["model"]
        if {"decoder.layer_norm.weight", "decoder.version"} <= weights.keys():
            weights["decoder.version"] = torch.tensor([3.0])
        return state


def read_model_files() -> None:
    """Let fairseq load a model file wherever it loads a checkpoint.

    It is no fault of fairseq's: ``paradec pack`` and ``paradec import`` write such files.
    """

    @around(checkpoint_utils, "load_checkpoint_to_cpu", fix="read_model_files")
    def load(
        original: Function, path: str, arg_overrides: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if not (os.path.isfile(path) and file.is_one(path)):
            return original(path, arg_overrides, *args, **kwargs)
        try:
            state = checkpoint_of(path)
        except UsageError as error:
            raise UsageError(f"{ANY_CHECKPOINT_FLAG}: {error}") from error
        state["cfg"] = OmegaConf.create(state["cfg"])
        if arg_overrides is not None:
            checkpoint_utils.overwrite_args_by_name(state["cfg"], arg_overrides)
        return checkpoint_utils._upgrade_state_dict(state)


def explain_file(original: Function) -> Function:
    """Wrap ``load_checkpoint_to_cpu``."""

    def load(path: str, *args: Any, **kwargs: Any) -> Any:
        _check_sums(path)
        try:
            state = original(path, *args, **kwargs)
            check_content(path, state)
        except UsageError:
            raise
        except Exception as error:
            problem = file_problem(path) or registry_problem(path, checkpoint_or_none(path))
            if problem is None and not isinstance(error, OSError):
                problem = form_problem(path, error)
            if problem is None:
                raise
            raise problem from error
        if PACKED_ONLY in state:
            raise option_error(ANY_CHECKPOINT_FLAG, path, ALL_WEIGHTS)
        return state

    return load


def explain_models(original: Function) -> Function:
    """Wrap ``load_model_ensemble_and_task``."""

    def load(
        filenames: Sequence[str],
        arg_overrides: dict[str, Any] | None = None,
        task: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        asked = OVERRIDES.set(arg_overrides)
        try:
            with computing(), _no_larger(filenames, kwargs.get("state")):
                models, cfg, loaded_task = original(filenames, arg_overrides, task, *args, **kwargs)
        except UsageError:
            raise
        except Exception as error:
            problem = models_problem(filenames, arg_overrides, task, error)
            if problem is None:
                raise
            raise problem from error
        finally:
            OVERRIDES.reset(asked)
        if task is not None:
            warn_of_other_languages(filenames, cfg, task)
        return models, cfg, loaded_task

    return load


def check_content(path: str, state: Mapping[str, Any]) -> None:
    """Refuse weights and positions that are small in the file and large in memory.

    Raises:
        UsageError: a weight is sparse, or its rows are the same place; or there are too many
            positions.
    """
    for name, weight in state["model"].items():
        wrong = odd_tensor(weight)
        if wrong is not None:
            raise checkpoint_error(path, f"whose {name} {wrong}", "a checkpoint of dense weights")
    for part in ("model", "task"):
        section = field(state["cfg"], part)
        for side in ("source", "target"):
            count = field(section, f"max_{side}_positions")
            if isinstance(count, (int, float)) and not count <= POSITIONS:
                wrong = f"of {count} {side} positions"
                raise checkpoint_error(path, wrong, f"one of {POSITIONS} at most")


def odd_tensor(weight: Any) -> str | None:
    """Say why a weight is not one plain number for each of its elements; None: it is."""
    if not torch.is_tensor(weight):
        return f"is a {type(weight).__name__}"
    if weight.layout != torch.strided or weight.is_quantized or weight.is_nested:
        return "is sparse, quantised or nested"
    if weight.is_meta or weight.numel() * weight.element_size() > weight.untyped_storage().nbytes():
        return "has fewer numbers than elements"
    return None


@contextlib.contextmanager
def _no_larger(filenames: Sequence[str], state: Any) -> Iterator[None]:
    """Refuse to build models that are much larger than their checkpoints, or than ``state``."""
    if state is not None:
        held = sum(weight.numel() * 4 for weight in state["model"].values())
    elif all(map(os.path.isfile, filenames)):
        held = sum(map(os.path.getsize, filenames))
    else:  # remote, or with a suffix
        yield
        return
    most, size = LARGER * held + (1 << 26), 0

    def count(module: Any, name: str, weight: Any) -> None:
        nonlocal size
        if _BUILDING[-1] is not count:
            return
        size += 0 if weight is None else weight.numel() * weight.element_size()
        if size > most:
            raise checkpoint_error(
                ", ".join(filenames),
                f"whose settings are of a model of more than {most / 1e6:.0f} MB",
                "a checkpoint with the weights of that",
            )

    hook = torch.nn.modules.module.register_module_parameter_registration_hook(count)
    _BUILDING.append(count)
    try:
        yield
    finally:
        _BUILDING.remove(count)
        hook.remove()


def _check_sums(path: str) -> None:
    """Compare an archive with its checksums, which torch's loader does not look at.

    Raises:
        UsageError: bytes have changed, so that the weights would be noise.
    """
    if not os.path.isfile(path) or not zipfile.is_zipfile(path):
        return  # a remote file, or another error's
    try:
        with zipfile.ZipFile(path) as archive:
            check_unpacked(archive, path)
            damaged = archive.testzip()
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        damaged = "its contents"
    if damaged is not None:
        raise checkpoint_error(
            path, f"which is damaged (the checksum of {damaged} is wrong)", "an undamaged copy"
        )
