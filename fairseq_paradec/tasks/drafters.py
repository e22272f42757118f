"""Loading of the drafter of ``--drafter-path``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from fairseq import checkpoint_utils, utils

from ..compat.loading import load_beside, named
from ..errors import option_error
from ..methods.model_checks import one_set_of_heads
from ..methods.registry import BLOCK_NAT, BLOCK_NAT_OR_HEADS, HEADS
from ..models.block_nat import BlockNatModel
from ..models.heads import PREFIX, load_heads


class Drafters:
    """The drafters that a task has loaded; hub calls, which build a generator each, share them.

    Args:
        task: the task; drafters must fit its dictionaries and languages.
    """

    def __init__(self, task: Any) -> None:
        self.task = task
        # By path, dtype and device: a generator must not convert another generator's drafter.
        self.block_models: dict[tuple[str, Any, Any], BlockNatModel] = {}
        # By base model and path: heads read the states of one base.
        self.heads: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()

    def load(self, path: str, kind: str, models: Sequence[Any]) -> Any:
        """Return a drafter that fits the task and these models; it is loaded once.

        Args:
            path: its checkpoint.
            kind: ``BLOCK_NAT``, ``HEADS`` or ``BLOCK_NAT_OR_HEADS``.
            models: the verifiers.

        Raises:
            UsageError: the drafter is of another kind, or belongs to other data or models.
        """
        if kind == BLOCK_NAT_OR_HEADS:
            kind = self._kind(path, models)
        if kind == HEADS:
            loaded = self.heads.setdefault(models[0], {})
            if path not in loaded:
                loaded[path] = load_heads(path, models[0])
            return loaded[path]
        like = next(models[0].parameters())
        key = (path, like.dtype, like.device)
        if key not in self.block_models:
            drafter = self._read(path).to(dtype=like.dtype, device=like.device)
            drafter.make_generation_fast_()  # so that a scorer gathers its weights only once
            self.block_models[key] = drafter
        drafter = self.block_models[key]
        own = self.task.max_positions()
        needed = utils.resolve_max_positions(own, *(m.max_positions() for m in models))[0]
        positions = drafter.encoder.max_positions()
        if positions < needed:
            raise option_error(
                "--drafter-path", path,
                f"a drafter that takes {needed} source tokens, as the verifier does; this takes "
                f"{positions}",
            )  # fmt: skip
        return drafter

    def _kind(self, path: str, models: Sequence[Any]) -> str:
        """Return the kind of a checkpoint: ``BLOCK_NAT`` or ``HEADS``.

        Raises:
            UsageError: it is of neither kind, or its heads do not fit these models.
        """
        kind = BLOCK_NAT
        if path in self.heads.get(models[0], {}):
            kind = HEADS
        elif not any(path == known for known, *_ in self.block_models):
            with named("--drafter-path"):
                weights = checkpoint_utils.load_checkpoint_to_cpu(path)["model"]
            if any(name.startswith(PREFIX) for name in weights):
                kind = HEADS
            elif "decoder.mask_vector" not in weights:
                raise option_error(
                    "--drafter-path", path,
                    "a checkpoint of --arch block_nat, or heads of --arch blockwise_transformer; "
                    "this holds another model",
                )  # fmt: skip
        if kind == HEADS:
            one_set_of_heads("blockwise", models, path)
        return kind

    def _read(self, path: str) -> BlockNatModel:
        """Read a drafter's checkpoint.

        Raises:
            UsageError: it is missing, or does not fit this task's languages and dictionaries.
        """
        model, cfg = load_beside(path, "--drafter-path", self.task)
        if not isinstance(model, BlockNatModel):
            raise option_error(
                "--drafter-path", path,
                f"a checkpoint of --arch block_nat; this holds a {type(model).__name__}",
            )  # fmt: skip
        trained = [getattr(cfg.task, name, None) for name in ("source_lang", "target_lang")]
        wanted = (self.task.cfg.source_lang, self.task.cfg.target_lang)
        if any(a and b and a != b for a, b in zip(trained, wanted, strict=True)):
            raise option_error(
                "--drafter-path", path,
                f"a drafter for {'-'.join(wanted)}; this was trained for {trained[0]}-{trained[1]}",
            )  # fmt: skip
        return model
