"""Checkpoints: safe loading accepts fairseq's, and errors explain why a file does not load.

A function ``_..._problem`` returns a UsageError, or None if it finds no fault in the checkpoint.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import logging
import os
import re
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils, utils
from fairseq.data import data_utils
from fairseq.logging import meters
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.tasks import TASK_REGISTRY, setup_task
from omegaconf import (
    AnyNode,
    BooleanNode,
    DictConfig,
    FloatNode,
    IntegerNode,
    ListConfig,
    StringNode,
)
from omegaconf.base import ContainerMetadata, Metadata

from ...errors import UsageError, option_error
from ...files import check_unpacked
from ...forks import computes
from .patching import wrap_once

logger = logging.getLogger(__name__)

#: The flag in messages; fairseq's loaders do not know it (``loading.named`` replaces it).
ANY_CHECKPOINT_FLAG = "--path (or the flag that gave this checkpoint)"

#: Positions that a model may have: their tables are made, not read.
POSITIONS = 1 << 17

#: How many times the bytes of its weights a model may have, beside 64 MB: settings of a spoilt
#: checkpoint may ask for any size, before the weights are compared with it.
LARGER = 8

#: In a checkpoint: what of a model is packed alone; see ``plugin/tasks/packed_only.py``.
PACKED_ONLY = "packed_only"

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

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def load(*args: Any, **kwargs: Any) -> Any:
            state = original(*args, **kwargs)
            weights = state["model"]
            if {"decoder.layer_norm.weight", "decoder.version"} <= weights.keys():
                weights["decoder.version"] = torch.tensor([3.0])
            return state

        return load

    wrap_once(checkpoint_utils, "load_checkpoint_to_cpu", wrap, fix="keep_last_norms")


def explain_file(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``load_checkpoint_to_cpu``."""

    def load(path: str, *args: Any, **kwargs: Any) -> Any:
        _check_sums(path)
        try:
            state = original(path, *args, **kwargs)
            check_content(path, state)
        except UsageError:
            raise
        except Exception as error:
            problem = _file_problem(path) or _registry_problem(path, _read(path))
            if problem is None and not isinstance(error, OSError):
                problem = form_problem(path, error)
            if problem is None:
                raise
            raise problem from error
        if PACKED_ONLY in state:
            allowed = "a checkpoint with all weights; these are packed in the folder beside it, "
            allowed += "which paradec translate --model reads"
            raise option_error(ANY_CHECKPOINT_FLAG, path, allowed)
        return state

    return load


def explain_models(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``load_model_ensemble_and_task``."""

    def load(
        filenames: Sequence[str],
        arg_overrides: dict[str, Any] | None = None,
        task: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        computes()  # torch fills and copies weights on all threads
        asked = OVERRIDES.set(arg_overrides)
        try:
            with _no_larger(filenames, kwargs.get("state")):
                models, cfg, loaded_task = original(filenames, arg_overrides, task, *args, **kwargs)
        except UsageError:
            raise
        except Exception as error:
            problem = _models_problem(filenames, arg_overrides, task, error)
            if problem is None:
                raise
            raise problem from error
        finally:
            OVERRIDES.reset(asked)
        if task is not None:
            _warn_of_other_languages(filenames, cfg, task)
        return models, cfg, loaded_task

    return load


def _models_problem(
    filenames: Sequence[str], arg_overrides: dict[str, Any] | None, task: Any, error: Exception
) -> UsageError | None:
    """Find the first of the files that explains why an ensemble did not load."""
    # fairseq adds suffixes and shard numbers to the name; its message has the missing file's.
    missing = re.match(r"Model file not found: (.*)", str(error), flags=re.DOTALL)
    if missing is not None:
        return _file_problem(missing.group(1))
    for path in filenames:
        if not os.path.isfile(path):
            continue
        state = _read(path)
        problem = (
            _file_problem(path)
            or _registry_problem(path, state, task)
            or _dictionary_problem(path, state, task or _task_of(path, arg_overrides))
        )
        if problem is not None:
            return problem
    if isinstance(error, RuntimeError) and "state_dict" in str(error):
        first = " ".join(str(error).split())[:200]
        return _checkpoint_error(
            ", ".join(filenames),
            f"whose weights do not fit its architecture ({first} ...)",
            "an undamaged checkpoint, and --model-overrides that fit it",
        )
    if isinstance(error, OSError):
        return None  # the system's own message is clear
    return form_problem(", ".join(filenames), error)


def form_problem(path: str, error: Exception) -> UsageError:
    """Return the error for a checkpoint from which no model can be made."""
    why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return _checkpoint_error(
        path,
        f"which gives no model ({why})",
        "an undamaged checkpoint, and settings that fit it",
    )


def check_content(path: str, state: Mapping[str, Any]) -> None:
    """Refuse weights and positions that are small in the file and large in memory.

    Raises:
        UsageError: a weight is sparse, or its rows are the same place; or there are too many
            positions.
    """
    for name, weight in state["model"].items():
        wrong = odd_tensor(weight)
        if wrong is not None:
            raise _checkpoint_error(path, f"whose {name} {wrong}", "a checkpoint of dense weights")
    for part in ("model", "task"):
        section = _field(state["cfg"], part)
        for side in ("source", "target"):
            count = _field(section, f"max_{side}_positions")
            if isinstance(count, (int, float)) and not count <= POSITIONS:
                wrong = f"of {count} {side} positions"
                raise _checkpoint_error(path, wrong, f"one of {POSITIONS} at most")


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
            raise _checkpoint_error(
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


def _checkpoint_error(path: str, wrong: str, allowed: str) -> UsageError:
    """Build the message: the flag, what was given, what is wrong with it, what is allowed."""
    return UsageError(f"{ANY_CHECKPOINT_FLAG}: got {str(path)!r}, {wrong}; allowed: {allowed}")


def _read(path: str) -> Any:
    """Read a checkpoint safely, without fairseq's upgrade; None if that is impossible."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception:
        return None


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
        raise _checkpoint_error(
            path, f"which is damaged (the checksum of {damaged} is wrong)", "an undamaged copy"
        )


def _file_problem(path: str) -> UsageError | None:
    """Return why a file cannot be a fairseq checkpoint, or None if it can be one."""
    allowed = "a checkpoint file that fairseq-train wrote"
    if not os.path.exists(path):
        return _checkpoint_error(path, "which does not exist", allowed)
    if os.path.isdir(path):
        inside = sorted(name for name in os.listdir(path) if name.endswith(".pt"))
        held = f"which is a folder (with {', '.join(inside) or 'no .pt file'} in it)"
        return _checkpoint_error(path, held, allowed)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        if error.errno == errno.EINVAL:  # torch seeks beyond the end of a truncated file
            return _checkpoint_error(path, "which is truncated", allowed)
        return None  # the system's own message about permissions or the disk is clear
    except Exception as error:
        refused = _refused_globals(path, error)
        if not refused:
            return _checkpoint_error(path, "which is truncated or no checkpoint at all", allowed)
        return _checkpoint_error(
            path,
            f"which holds objects that safe loading refuses: {', '.join(refused)}",
            "a checkpoint of tensors, numbers, numpy arrays and settings; if you trust its author, "
            "read it by torch.load(FILE, weights_only=False) where it was written, and save it "
            "without those objects",
        )
    keys = sorted(map(str, state)) if isinstance(state, Mapping) else []
    if "model" in keys and (state.get("args") is not None or state.get("cfg") is not None):
        return None
    held = f"the keys {', '.join(keys[:4])}{', …' * (len(keys) > 4)}" if keys else "no keys"
    kind = f"a {type(state).__name__} with {held}"
    return _checkpoint_error(
        path,
        f"which is no fairseq checkpoint but {kind}",
        f"{allowed}, with the keys 'model' and 'cfg' (or 'args')",
    )


def _refused_globals(path: str, error: Exception) -> list[str]:
    """Return the names that safe loading refuses; empty if the file cannot be read."""
    try:
        refused = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # not a zip file, as checkpoints before torch 1.6
        refused = []
    refused += re.findall(r"GLOBAL (\w[\w.]*\w)", str(error))
    return sorted(set(refused))


def _field(settings: Any, name: str) -> Any:
    """Return a field of settings as fairseq has or stores them; None: it is not there."""
    if isinstance(settings, Mapping):
        return settings.get(name)
    return getattr(settings, name, None)


def _names(state: Any, part: str, legacy: str) -> str | None:
    """Look up the name of a checkpoint's model or task, in ``cfg`` or in old ``args``."""
    args, cfg = state.get("args"), state.get("cfg")
    if args is not None:
        return getattr(args, legacy, None)
    section = cfg.get(part) if isinstance(cfg, Mapping) else None
    fields = section if isinstance(section, Mapping) else getattr(section, "__dict__", {})
    return fields.get("_name") or fields.get(legacy)


def _registry_problem(path: str, state: Any, task: Any = None) -> UsageError | None:
    """Return the error for an unknown architecture or, without a given task, an unknown task."""
    if not isinstance(state, Mapping):
        return None
    arch = _names(state, "model", "arch")
    if arch and arch not in ARCH_MODEL_REGISTRY and arch not in MODEL_DATACLASS_REGISTRY:
        return _checkpoint_error(
            path,
            f"whose architecture {arch!r} is not registered",
            "--user-dir with the folder of the plugin that defines it",
        )
    task_name = _names(state, "task", "task")
    if task is None and task_name and task_name not in TASK_REGISTRY:
        return _checkpoint_error(
            path,
            f"whose task {task_name!r} is not registered",
            "--user-dir with the folder of the plugin that defines it",
        )
    return None


def _task_of(path: str, arg_overrides: dict[str, Any] | None) -> Any:
    """Set up the task that a checkpoint names, for its dictionaries; None if that is impossible."""
    try:
        state = checkpoint_utils.load_checkpoint_to_cpu(path, arg_overrides)
        return setup_task(state["cfg"].task, from_checkpoint=True)
    except Exception:
        return None


def _dictionary_problem(path: str, state: Any, task: Any) -> UsageError | None:
    """Compare the sizes of embeddings and dictionaries."""
    weights = state["model"] if isinstance(state, Mapping) else {}
    for side in ("encoder", "decoder"):
        weight = weights.get(f"{side}.embed_tokens.weight")
        name = "source" if side == "encoder" else "target"
        dictionary = getattr(task, f"{name}_dictionary", None)
        if weight is None or dictionary is None or len(weight) == len(dictionary):
            continue
        settings = getattr(task, "cfg", None) or getattr(task, "args", None)
        data = getattr(settings, "data", None)
        return _checkpoint_error(
            path,
            f"whose {side} embeds {len(weight)} symbols, while the {name} dictionary "
            f"({getattr(settings, f'{name}_lang', None)}) of DATA {data!r} has {len(dictionary)}: "
            "the checkpoint and DATA do not belong together",
            "a checkpoint and the data-bin folder it was trained with (or one preprocessed with "
            "that folder's dictionaries: --srcdict, --tgtdict)",
        )
    return None


def _warn_of_other_languages(filenames: Sequence[str], cfg: Any, task: Any) -> None:
    """Log a warning if the checkpoint was trained for another language pair than the task's.

    A checkpoint of older versions that names no pair was trained without -s and -t, for the pair
    that its data's files are named after; DATA's stand for them.
    """
    settings = getattr(task, "cfg", None)
    sides = ("source_lang", "target_lang")
    trained = [getattr(cfg.task, side, None) for side in sides]
    wanted = [getattr(settings, side, None) for side in sides]
    known = "was trained for %s-%s"
    data = getattr(settings, "data", None)
    if trained == [None, None] and data:
        trained = list(data_utils.infer_language_pair(utils.split_paths(data)[0]))
        known = "names no language pair, DATA's files are of %s-%s,"
    if any(a and b and a != b for a, b in zip(trained, wanted)):
        logger.warning(
            f"--path, -s, -t: %s {known} and the model is asked for %s-%s",
            ", ".join(map(str, filenames)),
            *trained,
            *wanted,
        )
