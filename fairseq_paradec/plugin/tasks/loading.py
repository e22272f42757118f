"""Loading of checkpoints for decoding, with fairseq's task."""

import os
from collections.abc import Sequence
from typing import Any

from fairseq import checkpoint_utils

from ...engine.torch.watch import keep_weights
from ...errors import option_error
from ...methods.configure import configure

#: Tasks of data that are no text: by the file in DATA that says so. Rooms above add theirs.
OWN_TASKS: dict[str, str] = {}


def load(data: str, path: str) -> tuple[list[Any], Any]:
    """Load a checkpoint of a data folder for inference in fp32; see ``load_paths``.

    Returns:
        The models and the task.

    Raises:
        UsageError: the data are images, and the model is for another task.
    """
    models, task, kind = load_paths(path.split(os.pathsep), data=data)
    for file, name in OWN_TASKS.items():
        if os.path.isfile(os.path.join(data, file)) and kind != name:
            allowed = f"a model of --task {name}: DATA ({data}) holds {file}"
            raise option_error("--path", path, allowed)
    return models, task


def load_paths(paths: Sequence[str], **overrides: str) -> tuple[list[Any], Any, str]:
    """Load checkpoints, one model or an ensemble, for inference in fp32; their weights stay.

    Args:
        paths: the checkpoints.
        overrides: options to take in the place of a checkpoint's, such as ``data``.

    Returns:
        The models, the task, and its fairseq name.
    """
    models, cfg, task = checkpoint_utils.load_model_ensemble_and_task(
        list(paths), arg_overrides=overrides
    )
    for model in models:
        model.float().prepare_for_inference_(cfg)
        keep_weights(model)
    return models, task, cfg.task._name


def decoder(task: Any, models: Sequence[Any], **options: Any) -> Any:
    """Build a decoder from options, by the flags' names."""
    return task.build_decoder(models, configure(**options))
