"""Loading what ``--drafter-path`` names, and telling which method belongs to which model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from fairseq import checkpoint_utils, utils

from ..compat.loading import load_beside, named
from ..errors import option_error
from ..models.block_nat import BlockNatModel
from ..models.blockwise_transformer import BlockwiseTransformer, load_heads
from ..models.reordered_transformer import ReorderedTransformer
from ..options import BEAM_DECODINGS
from ..target_order import order_of


class Drafters:
    """The drafters that a task has loaded so far: hub users build a generator per call.

    Args:
        task: whose dictionaries and languages drafters must fit.
    """

    def __init__(self, task: Any) -> None:
        self.task = task
        # By path, dtype and device, for what one generator uses another must not convert.
        self.block_models: dict[tuple[str, Any, Any], BlockNatModel] = {}
        # Heads belong to the base whose states they read.
        self.heads: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()

    def load(self, path: str, decoding: str, models: Sequence[Any]) -> Any:
        """Load a drafter that fits the task and these models, or find it loaded.

        Raises:
            UsageError: it is none for this method, or belongs to other data or models.
        """
        if decoding == "auto_fast":
            decoding = self._kind(path, models)
        if decoding == "blockwise":
            loaded = self.heads.setdefault(models[0], {})
            if path not in loaded:
                loaded[path] = load_heads(path, models[0])
            return loaded[path]
        like = next(models[0].parameters())
        key = (path, like.dtype, like.device)
        if key not in self.block_models:
            drafter = self._read(path).to(dtype=like.dtype, device=like.device)
            drafter.make_generation_fast_()  # else its weights are gathered for every batch
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
        """Return the method that a drafter's checkpoint is for: ``gad`` or ``blockwise``.

        Raises:
            UsageError: it is for neither, or these models cannot have its heads.
        """
        decoding = "gad"
        if path in self.heads.get(models[0], {}):
            decoding = "blockwise"
        elif not any(path == known for known, *_ in self.block_models):
            with named("--drafter-path"):
                weights = checkpoint_utils.load_checkpoint_to_cpu(path)["model"]
            if any(name.startswith("decoder.heads.") for name in weights):
                decoding = "blockwise"
            elif "decoder.mask_vector" not in weights:
                raise option_error(
                    "--drafter-path", path,
                    "a checkpoint of --arch block_nat, or heads of --arch blockwise_transformer; "
                    "this holds another model",
                )  # fmt: skip
        if decoding == "blockwise":
            _check_blockwise(models, path)
        return decoding

    def _read(self, path: str) -> BlockNatModel:
        """Read a drafter's checkpoint.

        Raises:
            UsageError: there is none, or it does not fit this task's languages and dictionaries.
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


def own_decoding(models: Sequence[Any]) -> str | None:
    """Return the method that a model was made for; None for a plain Transformer."""
    model = models[0]
    if isinstance(model, BlockNatModel):
        return "nat"
    if isinstance(model, BlockwiseTransformer):
        return "blockwise" if len(models) == 1 else None
    return model.target_order.decoding if isinstance(model, ReorderedTransformer) else None


def check_models(decoding: str, models: Sequence[Any], drafter_path: str | None) -> None:
    """Refuse models that the method was not made for.

    Raises:
        UsageError: there is one.
    """
    if len({order_of(model) for model in models}) > 1:
        raise option_error(
            "--path", f"{len(models)} models with different target orders", "one order for all"
        )
    for model in models:
        if isinstance(model, ReorderedTransformer) and decoding != model.target_order.decoding:
            raise option_error(
                "--decoding", decoding,
                f"{model.target_order.decoding}, or auto, with this model: it writes its target in "
                "another order",
            )  # fmt: skip
    if decoding in BEAM_DECODINGS and hasattr(models[0], "image_sizes"):
        raise option_error(
            "--decoding", decoding,
            f"any other with a {type(models[0]).__name__}, whose attention is local",
        )  # fmt: skip
    if decoding == "double_token_beam" and not hasattr(models[0], "target_order"):
        raise option_error(
            "--path", f"a {type(models[0]).__name__}",
            "a model of --arch double_token, with --decoding double_token_beam",
        )  # fmt: skip
    if decoding != "nat" and any(isinstance(model, BlockNatModel) for model in models):
        raise option_error(
            "--path", "a model of --arch block_nat",
            f"a Transformer, with --decoding {decoding}; a block_nat model with nat",
        )  # fmt: skip
    if decoding == "blockwise":
        _check_blockwise(models, drafter_path)


def _check_blockwise(models: Sequence[Any], drafter_path: str | None) -> None:
    """Refuse what blockwise decoding has no heads for, or two sets of them."""
    if len(models) > 1:
        raise option_error(
            "--path",
            f"{len(models)} models",
            "one, with --decoding blockwise: heads read its states",
        )
    has_heads = isinstance(models[0], BlockwiseTransformer)
    if has_heads and drafter_path is not None:
        raise option_error(
            "--drafter-path", drafter_path,
            "nothing with a model of --arch blockwise_transformer or blockwise_image_transformer, "
            "which has heads; or the base of these heads as --path",
        )  # fmt: skip
    if not has_heads and drafter_path is None:
        raise option_error(
            "--path", f"a {type(models[0]).__name__}",
            "a model of --arch blockwise_transformer (of images: blockwise_image_transformer) with "
            "--decoding blockwise; or --drafter-path with heads that were trained on it",
        )  # fmt: skip
