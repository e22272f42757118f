"""Keywords of fairseq's hub, and other settings by name, that nothing would read."""

import argparse
import inspect
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from fairseq import checkpoint_utils, hub_utils
from fairseq.dataclass.configs import FairseqConfig
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import DictConfig, OmegaConf

from ...config import ALL
from ...errors import refuse_unknown
from .given import given_by
from .patching import Function, around, wrap_once

#: What the hub itself reads.
_OF_HUB = ("data", "user_dir", "generation_args", "is_vocoder")


def refuse_unknown_overrides() -> None:
    """Refuse settings for a checkpoint that it does not have.

    Fault: fairseq 0.12 ignores them, as keywords of ``from_pretrained`` and in
    ``--model-overrides``. (Checkpoints from before 0.10 take any setting.)
    """

    @around(checkpoint_utils, "overwrite_args_by_name")
    def overwrite(original: Function, cfg: DictConfig, overrides: dict[str, Any]) -> None:
        if set(overrides) <= {*_OF_HUB, *_names(cfg)}:  # the rest takes a tenth of a second
            return original(cfg, overrides)
        known = {*_OF_HUB, *_names(cfg), *_names(OmegaConf.structured(FairseqConfig()))}
        kinds = [TASK_DATACLASS_REGISTRY.get(cfg.task.get("_name"))]
        for name, registry in REGISTRIES.items():
            known.add(name)
            kinds += registry["dataclass_registry"].values()
        known |= {field.name for kind in kinds if kind is not None for field in fields(kind)}
        refuse_unknown("from_pretrained(), --model-overrides", overrides, known)
        original(cfg, overrides)


#: Keywords of the hub's ``generate`` besides the options of decoding.
_OF_GENERATE = ("verbose", "skip_invalid_size_inputs", "inference_step_args")

#: Options of decoding that the hub reads when it loads a model, or not at all.
_NOT_OF_CALLS = {"lm_path", "replace_unk", "retain_dropout", "constraints", "nbest"}


def refuse_unknown_keywords() -> None:
    """Refuse keywords of the hub's ``translate``, ``sample`` and ``generate`` that are not read.

    Fault: fairseq 0.12 ignores them. It also gives ``generate`` a beam if the user gives none; only
    the user's counts as given, in the call or before in ``from_pretrained``.
    """

    def wrap(original: Function) -> Function:
        names = [*inspect.signature(original).parameters][1:]  # the first is self
        known = {*names, *_OF_GENERATE, *ALL, "prefix_allowed_tokens_fn"} - _NOT_OF_CALLS

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if hasattr(self.task.cfg, "decoding"):
                given = dict(zip(names, args, strict=False)) | kwargs
                draws = given.get("sampling") and given.get("nbest") == given.get("beam")
                read = known | {"nbest"} if draws else known
                refuse_unknown("translate(), generate()", kwargs, read)
            usual = getattr(getattr(self.cfg, "generation", None), "beam", None)
            if usual not in (None, ALL["beam"].default) and "beam" not in names[: len(args)]:
                kwargs.setdefault("beam", usual)
            with given_by([*names[: len(args)], *kwargs]):
                return original(self, *args, **kwargs)

        return call

    for name in ("translate", "sample", "generate"):
        wrap_once(hub_utils.GeneratorHubInterface, name, wrap)


def _names(cfg: Any) -> Iterator[str]:
    """Yield the names of all settings in a configuration."""
    for name in cfg:
        yield str(name)
        part = None if OmegaConf.is_missing(cfg, name) else cfg[name]
        if isinstance(part, DictConfig):
            yield from _names(part)
        elif isinstance(part, argparse.Namespace):
            yield from vars(part)
