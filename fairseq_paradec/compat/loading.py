"""Loading of a model beside the task's own: a drafter, or the verifier to start one from."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

from fairseq import checkpoint_utils

from ..errors import UsageError
from .checkpoints import ANY_CHECKPOINT_FLAG


@contextlib.contextmanager
def named(flag: str) -> Iterator[None]:
    """Let errors about a checkpoint name the flag that gave it."""
    try:
        yield
    except UsageError as error:
        raise UsageError(str(error).replace(ANY_CHECKPOINT_FLAG, flag)) from error


def load_beside(path: str, flag: str, task: Any) -> tuple[Any, Any]:
    """Load a model that is not the task's own: a drafter, or the verifier to start one from.

    Args:
        path: its checkpoint.
        flag: what gave it, for errors.
        task: whose dictionaries it must fit.

    Returns:
        The model, and the configuration in its checkpoint.

    Raises:
        UsageError: it does not load.
    """
    # A task with --eval-bleu builds a generator with every model; not with this one.
    task = copy.copy(task)
    task.cfg = copy.deepcopy(task.cfg)
    task.cfg.eval_bleu = False
    with named(flag):
        models, cfg, _ = checkpoint_utils.load_model_ensemble_and_task([path], task=task)
    return models[0], cfg
