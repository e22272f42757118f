"""Checkpoints of ``paradec analyse flops`` and ``training-flops``: sizes and options alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import UsageError, option_error
from ..analysis import flops
from ..analysis.flops import Heads, Shape

TRANSFORMER, BLOCK_NAT, BLOCKWISE = "a Transformer", "a block_nat model", "blockwise heads"


@dataclass(frozen=True)
class Checkpoint:
    """Sizes and training options of a checkpoint; the model is not built."""

    kind: str  # one of the kinds above
    shape: Shape | None  # the model's; None for heads without a model
    heads: Heads | None  # for blockwise decoding, or None
    model: Mapping[str, Any]  # the model's options
    criterion: Mapping[str, Any]  # the loss's options
    encoder: Mapping[str, Any] = field(default_factory=dict)  # the encoder's weights by name


def read_checkpoint(flag: str, path: str) -> Checkpoint:
    """Read a checkpoint's sizes and options, safely; no model is built.

    Raises:
        UsageError: it cannot be read, or holds no model whose FLOPs are known.
    """
    from ...plugin.compat.loading import named as naming
    from ...plugin.files import options_of, read_checkpoint

    with naming(flag):
        state = read_checkpoint(path)
    sizes = {name: tuple(weight.shape) for name, weight in state["model"].items()}
    model, criterion = (options_of(state["cfg"].get(part)) for part in ("model", "criterion"))
    if model.get("attention_block"):
        raise option_error(
            flag, path, "a model with full attention; local attention is not counted"
        )
    heads = flops.read_heads(sizes, model.get("block_size") or 0)
    if heads is not None and "decoder.embed_tokens.weight" not in sizes:
        return Checkpoint(BLOCKWISE, None, heads, model, criterion)
    kind = TRANSFORMER if heads is None else BLOCKWISE
    shared = bool(model.get("share_verifier_encoder"))
    settings: dict[str, Any] = {"heads": heads, "shares_encoder": shared}
    if "decoder.mask_vector" in sizes:
        kind = BLOCK_NAT
        settings["block"] = 0 if model.get("random_block_size") else model["drafter_block_size"]
        settings["caches_prefix"] = model.get("drafter_attention") == "prefix_causal"
    elif model.get("directions"):
        z = model["directions"] * model["tokens_per_direction"]
        settings["tokens_per_step"] = 1 if model.get("alternate_ends") else z
    try:
        shape = flops.read_shape(sizes, **settings)
    except UsageError as error:
        raise UsageError(f"{flag}: got {path!r}, {error}") from error
    read = {name: w for name, w in state["model"].items() if name.startswith("encoder.")}
    return Checkpoint(kind, shape, heads, model, criterion, read)
