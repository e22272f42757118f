"""Why a checkpoint does not load: errors that name its fault, and what is allowed.

A function ``..._problem`` returns a UsageError, or None if it finds no fault in the checkpoint.
"""

import errno
import logging
import os
import pickle
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from fairseq import checkpoint_utils, utils
from fairseq.data import data_utils
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.tasks import TASK_REGISTRY, setup_task

from ...errors import UsageError
from ...model.checkpoint import read, settings
from ...model.file import is_one
from .model_files import checkpoint_of

logger = logging.getLogger(__name__)

#: The flag in messages; fairseq's loaders do not know it (``loading.named`` replaces it).
ANY_CHECKPOINT_FLAG = "--path (or the flag that gave this checkpoint)"


def checkpoint_error(path: str, wrong: str, allowed: str) -> UsageError:
    """Build the message: the flag, what was given, what is wrong with it, what is allowed."""
    return UsageError(f"{ANY_CHECKPOINT_FLAG}: got {str(path)!r}, {wrong}; allowed: {allowed}")


def checkpoint_or_none(path: str) -> Any:
    """Read a checkpoint safely, without fairseq's upgrade; None if that is impossible."""
    try:
        return _content(path)[0]
    except Exception:
        return None


def _content(path: str) -> tuple[Any, list[str]]:
    """Return what a checkpoint holds, and the names in it that safe loading refuses.

    torch reads those before its version 1.6, and what is damaged.
    """
    if is_one(path):
        return checkpoint_of(path), []
    try:
        checkpoint = read(path)
        return checkpoint.content, [name for name in checkpoint.foreign if name not in _allowed()]
    except UsageError:
        pass
    try:
        return torch.load(path, map_location="cpu", weights_only=True), []
    except pickle.UnpicklingError as error:
        refused = re.findall(r"GLOBAL (\w[\w.]*\w)", str(error))
        if not refused:
            raise
        return None, sorted(set(refused))


def _allowed() -> set[str]:
    """Return the names that this process lets safe loading accept."""
    return {
        given[1] if isinstance(given, tuple) else f"{given.__module__}.{given.__qualname__}"
        for given in torch.serialization.get_safe_globals()
    }


def field(settings: Any, name: str) -> Any:
    """Return a field of settings as fairseq has or stores them; None: it is not there."""
    if isinstance(settings, Mapping):
        return settings.get(name)
    return getattr(settings, name, None)


def file_problem(path: str) -> UsageError | None:
    """Return why a file cannot be a fairseq checkpoint, or None if it can be one."""
    allowed = "a checkpoint file that fairseq-train wrote"
    if not os.path.exists(path):
        return checkpoint_error(path, "which does not exist", allowed)
    if os.path.isdir(path):
        inside = sorted(name for name in os.listdir(path) if name.endswith(".pt"))
        held = f"which is a folder (with {', '.join(inside) or 'no .pt file'} in it)"
        return checkpoint_error(path, held, allowed)
    try:
        state, refused = _content(path)
    except OSError as error:
        if error.errno == errno.EINVAL:  # torch seeks beyond the end of a truncated file
            return checkpoint_error(path, "which is truncated", allowed)
        return None  # the system's own message about permissions or the disk is clear
    except Exception:
        return checkpoint_error(path, "which is truncated or no checkpoint at all", allowed)
    if refused:
        return checkpoint_error(
            path,
            f"which holds objects that safe loading refuses: {', '.join(refused)}",
            "a checkpoint of tensors, numbers, numpy arrays and settings; save it again without "
            "those objects, where it was written",
        )
    keys = sorted(map(str, state)) if isinstance(state, Mapping) else []
    if "model" in keys and (state.get("args") is not None or state.get("cfg") is not None):
        return None
    held = f"the keys {', '.join(keys[:4])}{', …' * (len(keys) > 4)}" if keys else "no keys"
    kind = f"a {type(state).__name__} with {held}"
    return checkpoint_error(
        path,
        f"which is no fairseq checkpoint but {kind}",
        f"{allowed}, with the keys 'model' and 'cfg' (or 'args')",
    )


def _names(state: Any, part: str, legacy: str) -> str | None:
    """Look up the name of a checkpoint's model or task, in ``cfg`` or in old ``args``."""
    args = state.get("args")
    if args is not None:
        return settings(args).get(legacy)
    fields = settings(settings(state.get("cfg")).get(part))
    return fields.get("_name") or fields.get(legacy)


def registry_problem(path: str, state: Any, task: Any = None) -> UsageError | None:
    """Return the error for an unknown architecture or, without a given task, an unknown task."""
    if not isinstance(state, Mapping):
        return None
    arch = _names(state, "model", "arch")
    if arch and arch not in ARCH_MODEL_REGISTRY and arch not in MODEL_DATACLASS_REGISTRY:
        return checkpoint_error(
            path,
            f"whose architecture {arch!r} is not registered",
            "--user-dir with the folder of the plugin that defines it",
        )
    task_name = _names(state, "task", "task")
    if task is None and task_name and task_name not in TASK_REGISTRY:
        return checkpoint_error(
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
        return checkpoint_error(
            path,
            f"whose {side} embeds {len(weight)} symbols, while the {name} dictionary "
            f"({getattr(settings, f'{name}_lang', None)}) of DATA {data!r} has {len(dictionary)}: "
            "the checkpoint and DATA do not belong together",
            "a checkpoint and the data-bin folder it was trained with (or one preprocessed with "
            "that folder's dictionaries: --srcdict, --tgtdict)",
        )
    return None


def models_problem(
    filenames: Sequence[str], arg_overrides: dict[str, Any] | None, task: Any, error: Exception
) -> UsageError | None:
    """Find the first of the files that explains why an ensemble did not load."""
    # fairseq adds suffixes and shard numbers to the name; its message has the missing file's.
    missing = re.match(r"Model file not found: (.*)", str(error), flags=re.DOTALL)
    if missing is not None:
        return file_problem(missing.group(1))
    for path in filenames:
        if not os.path.isfile(path):
            continue
        state = checkpoint_or_none(path)
        problem = (
            file_problem(path)
            or registry_problem(path, state, task)
            or _dictionary_problem(path, state, task or _task_of(path, arg_overrides))
        )
        if problem is not None:
            return problem
    if isinstance(error, RuntimeError) and "state_dict" in str(error):
        first = " ".join(str(error).split())[:200]
        return checkpoint_error(
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
    return checkpoint_error(
        path, f"which gives no model ({why})", "an undamaged checkpoint, and settings that fit it"
    )


def warn_of_other_languages(filenames: Sequence[str], cfg: Any, task: Any) -> None:
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
