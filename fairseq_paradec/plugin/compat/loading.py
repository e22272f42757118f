"""Loading of a second model: a drafter, or the verifier from which a drafter starts."""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

from fairseq import checkpoint_utils

from ...errors import UsageError
from .checkpoint_problems import ANY_CHECKPOINT_FLAG


@contextlib.contextmanager
def named(flag: str) -> Iterator[None]:
    """Put the checkpoint's flag into errors about it."""
    try:
        yield
    except UsageError as error:
        raise UsageError(str(error).replace(ANY_CHECKPOINT_FLAG, flag)) from error


def load_beside(path: str, flag: str, task: Any, state: Any = None) -> tuple[Any, Any]:
    """Load a second model for a task: a drafter, or the verifier from which a drafter starts.

    Returns:
        The model, and the configuration in its checkpoint.

    Raises:
        UsageError: the checkpoint does not load.
    """
    # A task with --eval-bleu builds a generator with every model; this copy does not.
    task = copy.copy(task)
    task.cfg = copy.deepcopy(task.cfg)
    task.cfg.eval_bleu = False
    with named(flag):
        models, cfg, _ = checkpoint_utils.load_model_ensemble_and_task(
            [path], task=task, state=state
        )
    return models[0], cfg
