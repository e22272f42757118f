"""Loading of the drafter of ``--drafter-path``."""

import os
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from fairseq import checkpoint_utils, utils
from fairseq.models.transformer import TransformerModelBase

from ...decoding.helper import check_kind, check_languages, check_positions, kind_of, same_weights
from ...engine.torch.watch import keep_weights, keeps_weights
from ...errors import option_error
from ...model_checks import is_block_nat, one_set_of_heads
from ...registry import ANY, BLOCK_NAT, HEADS, TRANSFORMER
from ..compat.loading import load_beside, named
from ..models.building import has_whole_encoder
from ..models.heads import PREFIX, BlockHeads, load_heads


class Drafters:
    """The drafters that a task has loaded; hub calls, which build a generator each, share them."""

    def __init__(self, task: Any) -> None:
        self.task = task
        # By path, dtype and device: a generator must not convert another generator's drafter.
        self.models: dict[tuple[str, Any, Any], Any] = {}
        # By base model and path: heads read the states of one base.
        self.heads: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()

    def lend(self, name: str, drafter: Any, verifier: Any) -> None:
        """Let ``load`` return a drafter, or heads, that no file holds."""
        if isinstance(drafter, BlockHeads):
            self.heads.setdefault(verifier, {})[name] = drafter
            return
        like = next(verifier.parameters())
        self.models[name, like.dtype, like.device] = drafter

    def load(self, path: str, kind: str, models: Sequence[Any]) -> Any:
        """Return a drafter that fits the task and these models; it is loaded once.

        Raises:
            UsageError: the drafter is of another kind, an ensemble, or of other data or models.
        """
        if os.pathsep in path and not os.path.exists(path):
            raise option_error("--drafter-path", path, "one checkpoint; an ensemble cannot draft")
        if kind == ANY:
            kind = self._kind(path, models)
        if kind == HEADS:
            loaded = self.heads.setdefault(models[0], {})
            if path not in loaded:
                loaded[path] = load_heads(path, models[0])
            return loaded[path]
        like = next(models[0].parameters())
        key = (path, like.dtype, like.device)
        if key not in self.models:
            drafter = self._read(path, models).to(dtype=like.dtype, device=like.device)
            drafter.make_generation_fast_()  # so that a scorer gathers its weights only once
            if keeps_weights(models[0]):
                keep_weights(drafter)
            self.models[key] = drafter
        drafter = self.models[key]
        held = kind_of(drafter) if isinstance(drafter, TransformerModelBase) else None
        check_kind(path, kind, held, type(drafter).__name__)
        own = self.task.max_positions()
        needed = utils.resolve_max_positions(own, *(m.max_positions() for m in models))[0]
        check_positions(path, drafter.encoder.max_positions(), needed)
        return drafter

    def _kind(self, path: str, models: Sequence[Any]) -> str:
        """Return the kind of a checkpoint: ``BLOCK_NAT``, ``HEADS`` or ``TRANSFORMER``.

        Raises:
            UsageError: its heads do not fit these models.
        """
        known = [model for (name, *_), model in self.models.items() if name == path]
        if known:
            return BLOCK_NAT if is_block_nat(known) else TRANSFORMER
        if path not in self.heads.get(models[0], {}):
            with named("--drafter-path"):
                weights = checkpoint_utils.load_checkpoint_to_cpu(path)["model"]
            if not any(name.startswith(PREFIX) for name in weights):
                return BLOCK_NAT if "decoder.mask_vector" in weights else TRANSFORMER
        one_set_of_heads("blockwise", models, path)
        return HEADS

    def _read(self, path: str, models: Sequence[Any]) -> Any:
        """Read a drafter's checkpoint; if its encoder was left out, it gets the verifier's.

        Raises:
            UsageError: it is missing, or does not fit this task's languages and dictionaries, or
                was trained on another encoder.
        """
        with named("--drafter-path"):
            state = checkpoint_utils.load_checkpoint_to_cpu(path)
        own = state["model"]
        known = {name: w for name, w in own.items() if name.startswith("encoder.")}
        if known and not has_whole_encoder(own):
            theirs = {f"encoder.{k}": w.cpu() for k, w in models[0].encoder.state_dict().items()}
            same = same_weights(known, {k: theirs[k] for k in known if k in theirs})
            if len(models) > 1 or not same:
                raise option_error("--drafter-path", path, "a drafter on this verifier's encoder")
            state["model"] = own | theirs
        model, cfg = load_beside(path, "--drafter-path", self.task, state)
        trained = [getattr(cfg.task, name, None) for name in ("source_lang", "target_lang")]
        check_languages(path, trained, (self.task.cfg.source_lang, self.task.cfg.target_lang))
        return model
