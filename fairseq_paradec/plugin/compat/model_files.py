"""Model files as fairseq's checkpoints: what they mean as its options, and weights by its names."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from ...errors import UsageError
from ...files import MODEL_FOLDER
from ...model import file
from ...model.architecture import Architecture, Layers
from ...model.model import check_sizes
from ...model.settings import ORDERS, Vocabularies, architecture_of
from ...model.weights import as_fp32
from ...target_order import TargetOrder
from ..files import new_checkpoint

#: The architecture of each kind of model; that of ``reordered`` is an order's.
_ARCHITECTURES = {
    "transformer": "transformer",
    "block_nat": "block_nat",
    "blockwise": "blockwise_transformer",
    "shallow": "shallow_decoder",
    "imported": "imported_transformer",
}


def checkpoint_of(path: str) -> dict[str, Any]:
    """Return what fairseq-train would have saved of a model file's model.

    The languages are those of the model folder that it lies in, if it lies in one.

    Raises:
        UsageError: it is damaged, lacks weights that are packed, or is of a model that fairseq
            cannot build.
    """
    try:
        architecture, given, digits = file.read(path)
        if digits is not None:
            raise UsageError("got weights that are packed alone; allowed: " + ALL_WEIGHTS)
        shapes = architecture.shapes()
        check_sizes(given, {name: shape for name, shape in shapes.items() if name in given})
        options = options_of(architecture)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    weights = {name: torch.tensor(as_fp32(weight)) for name, weight in given.items()}
    for name, other in architecture.ties().items():
        if other in weights:
            weights[name] = weights[other]
    for side, layers in (("encoder", architecture.encoder), ("decoder", architecture.decoder)):
        if layers is not None and f"{side}.embed_tokens.weight" in weights:
            weights[f"{side}.version"] = torch.tensor([1.0 if _is_old(side, layers) else 3.0])
    if architecture.cutoffs:
        weights["decoder.adaptive_softmax.version"] = torch.tensor([1])
    return new_checkpoint(*_languages(path), options, weights)


#: What fairseq's own loaders take of a packed folder.
ALL_WEIGHTS = (
    "a checkpoint with all weights; these are packed in the folder beside it, which paradec "
    "translate --model reads"
)


def _is_old(side: str, layers: Layers) -> bool:
    """Return whether an encoder has no norm behind pre-norm layers, as fairseq's first ones."""
    return side == "encoder" and layers.pre_norm and not layers.final_norm


def _languages(path: str) -> tuple[str | None, str | None]:
    """Return the languages of the model folder that a file lies in; None: it lies in none."""
    try:
        about = json.loads(Path(path).with_name(MODEL_FOLDER).read_text("utf-8"))
        return str(about["source"]), str(about["target"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None, None


def options_of(architecture: Architecture) -> dict[str, Any]:
    """Return fairseq's options of a model; ``architecture_of`` returns the model again.

    Raises:
        UsageError: fairseq has no such model.
    """
    own, encoder = architecture, architecture.encoder
    if not own.in_fairseq:
        raise UsageError(
            f"got a {own.kind} model, whose positions are relative; allowed: a model that fairseq "
            "can build; this one is decoded by paradec's commands, on the CPU, without fairseq"
        )
    if encoder is None:
        raise UsageError("got a model without an encoder; allowed: one of fairseq's")
    orders = (name for name, order in ORDERS.items() if order == own.order)
    name = _ARCHITECTURES.get(own.kind) or next(orders, "ibdecoder")
    options: dict[str, Any] = {
        **{"_name": name, "arch": name},
        **_side("encoder", encoder),
        **_side("decoder", own.decoder),
        "decoder_output_dim": own.output_dim,
        "share_all_embeddings": own.shared == "all",
        "share_decoder_input_output_embed": own.shared is not None,
    }
    if own.cutoffs:
        options["adaptive_softmax_cutoff"] = str([*own.cutoffs])
        options["adaptive_softmax_factor"] = own.factor
    if own.kind in ("block_nat", "shallow"):
        # Its encoder is built by settings of its own; the checkpoint of ``encoder_from`` is not
        # read again.
        settings = options | _side("encoder", encoder) | {"no_source_end": not own.source_end}
        options |= {"encoder_settings": settings, "encoder_from": "model.pt"}
        options |= {"encoder_copied": True, "share_verifier_encoder": own.shares_encoder}
    if own.block is not None:
        options |= {
            "drafter_block_size": own.block.size,
            "random_block_size": own.block.is_random,
            "drafter_attention": own.block.attention,
            "drafter_positions": own.decoder.positions,
            "soft_copy": own.block.soft_copy,
        }
    if own.heads is not None:
        options |= {
            "block_size": own.heads.size,
            "head_layer": "dense" if own.heads.is_dense else "per_head",
            "train_first_head": own.heads.first,
            "heads_see_token": own.heads.seen > 0,
            **{"base_path": "base.pt", "base_copied": True},
        }
    if own.kind == "imported":
        options["output_bias"] = own.output_bias
        options["first_target_token"] = own.first_target_token
        options["no_source_end"] = not own.source_end
    if own.kind == "reordered":
        options |= asdict(TargetOrder(**own.order))
        options["start_rows"] = "tokens" if own.slots is None else own.slots.starts
    wanted = own
    if _is_old("encoder", encoder):
        wanted = replace(own, encoder=replace(encoder, final_norm=True))
    if architecture_of(options, Vocabularies(own.source_words, own.target_words)) != wanted:
        raise UsageError(f"got a {own.kind} of odd settings; allowed: one that fairseq can build")
    return options


def _side(side: str, layers: Layers) -> dict[str, Any]:
    """Return the options of an encoder or a decoder, and those that both have."""
    text = "source" if side == "encoder" else "target"
    options = {
        f"{side}_layers": layers.count,
        f"{side}_embed_dim": layers.dim,
        f"{side}_ffn_embed_dim": layers.feed_forward,
        f"{side}_attention_heads": layers.heads,
        f"{side}_normalize_before": layers.pre_norm,
        f"{side}_learned_pos": layers.positions == "learned",
        f"max_{text}_positions": layers.most,
        "activation_fn": layers.activation,
        "no_scale_embedding": layers.scale == 1.0,
        "no_token_positional_embeddings": layers.positions is None,
        "layernorm_embedding": layers.embedding_norm,
    }
    if side == "decoder":
        options["no_decoder_final_norm"] = layers.pre_norm and not layers.final_norm
    return options
