"""Make a Transformer twice as wide that computes the same (Net2WiderNet, Chen et al. 2016).

Each feature, head and unit is there twice, and what reads both divides its weights between them: in
unequal shares, so that the two learn different things when training goes on. A base model so begins
with what a small one knows, for which it would need days on a CPU.

Sinusoidal positions are the exception. Wide ones have more frequencies: a feature's second copy
oscillates up to 4% slower than its first (7% where the small one has 128). Models with learned
positions compute exactly the same.
"""

import argparse
import math
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import option_error

if TYPE_CHECKING:  # takes seconds to load
    from torch import Tensor

_SIZES = ("embed_dim", "ffn_embed_dim", "attention_heads", "input_dim", "output_dim")
_GROWING = {f"{side}_{name}" for side in ("encoder", "decoder") for name in _SIZES}

# | weight                       | rows (what it writes)       | columns (what it reads)          |
# |------------------------------|-----------------------------|----------------------------------|
# | embedding, output projection |                             | pairs, over the square root of 2 |
# | positions, directions, norms | pairs                       |                                  |
# | query, key, value            | all heads, then again       | pairs, shared out                |
# | attention's output           | pairs                       | all heads, then again, shared out|
# | first feed-forward layer     | all units, then again       | pairs, shared out                |
# | second feed-forward layer    | pairs                       | all units, then again, shared out|
# | heads: hidden units          | each head's, then again     | pairs, shared out                |
# | heads: outputs               | pairs                       | each head's units, again, shared |
#
# An embedding is multiplied by the square root of the width, which grows, too. The output
# projection reads pairs: the norm before it is divided by the square root of 2.

#: The ends of weights' names, by what is done to them; others are refused.
_ENDS = {
    "embedding": ("embed_tokens.weight", "output_projection.weight"),
    "features": (
        *("layer_norm.weight", "layer_norm.bias"),
        *("layernorm_embedding.weight", "layernorm_embedding.bias"),
        *("embed_positions.weight", "learned.weight", "starts", "directions.weight", "mask_vector"),
        *("out_proj.bias", "fc2.bias"),
    ),
    "units": ("q_proj.bias", "k_proj.bias", "v_proj.bias", "fc1.bias"),
    "features to units": ("q_proj.weight", "k_proj.weight", "v_proj.weight", "fc1.weight"),
    "units to features": ("out_proj.weight", "fc2.weight"),
    "kept": ("version", "_float_tensor", "output_projection.bias", "copy_sharpness"),
    "heads": ("heads.inner.weight", "heads.inner.bias", "heads.outer", "heads.bias"),
}


def widened(state: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint twice as wide, without the optimizer's state.

    Args:
        state: a checkpoint as ``read_checkpoint`` returns it, its ``cfg`` in plain dicts.

    Raises:
        UsageError: a weight is not known to be a Transformer's, or no norm ends the decoder.
    """
    import torch

    settings = state["cfg"]["model"]
    if settings.get("decoder_normalize_before") and settings.get("no_decoder_final_norm"):
        raise option_error("SOURCE", "--no-decoder-final-norm", "a decoder that ends with a norm")
    kinds = {name: _kind(name) for name in state["model"]}
    if "decoder_embed_dim" not in settings:
        raise option_error("SOURCE", "another model", "a checkpoint of fairseq's Transformer")
    last = _last_norm(kinds, settings)
    weights: dict[str, Tensor] = {}
    made: dict[tuple[Any, ...], Tensor] = {}  # weights that share memory still do
    for name, weight in state["model"].items():
        key = (weight.data_ptr(), tuple(weight.shape))
        if key not in made or not weight.numel():
            # By name: a drafter's encoder from its verifier is that one's afterwards, too.
            random = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            if kinds[name] == "heads":
                made[key] = _wide_heads(
                    name, weight, state["model"], 0.5 / _words(settings), random
                )
            else:
                scale = _scale(name, kinds[name], settings, last)
                made[key] = _wide(weight, kinds[name], scale, random)
        weights[name] = made[key]
    return state | {
        "cfg": state["cfg"] | {"model": _wide_sizes(settings)},
        "model": weights,
        "args": None,  # older checkpoints have the settings here, which fairseq prefers
        "last_optimizer_state": None,
    }


def _kind(name: str) -> str:
    """Return what is done to a weight."""
    for kind, ends in _ENDS.items():
        if name.endswith(ends):
            return kind
    raise option_error(
        "SOURCE", name, "the weights of a Transformer, plain or reordered, a drafter or heads"
    )


def _last_norm(names: Any, settings: dict[str, Any]) -> str:
    """Return the name of the norm before the output projection, up to its last dot."""
    if settings.get("decoder_normalize_before"):
        return "decoder.layer_norm."
    layers = [int(name.split(".")[2]) for name in names if name.startswith("decoder.layers.")]
    if not layers:
        raise option_error("SOURCE", "no layers of a decoder", "a whole checkpoint")
    return f"decoder.layers.{max(layers)}.final_layer_norm."


def _words(settings: dict[str, Any]) -> float:
    """Return the factor of embeddings."""
    return 1.0 if settings.get("no_scale_embedding") else 1 / math.sqrt(2)


def _scale(name: str, kind: str, settings: dict[str, Any], last: str) -> float:
    """Return the factor of an embedding, or of the norm that the output projection reads."""
    if name.startswith(last):
        return 0.5 / _words(settings)
    # A drafter on its verifier's encoder has that one's settings beside its own.
    of_encoder = settings.get("encoder_settings") if name.startswith("encoder.") else None
    return _words(of_encoder or settings) if kind == "embedding" else 1.0


def _wide(weight: "Tensor", kind: str, scale: float, random: Any) -> "Tensor":
    """Return a weight as the table above says, in fp32 if it has half the digits."""
    if kind == "kept":
        return weight.clone()
    weight = _precise(weight)
    if kind in ("embedding", "features"):
        return weight.repeat_interleave(2, -1) * scale
    if kind == "units":
        return weight.repeat(2)
    if kind == "features to units":
        return _pairs_shared(weight, random).repeat(2, 1)
    return _again_shared(weight, random).repeat_interleave(2, 0)


def _wide_heads(
    name: str, weight: "Tensor", model: dict[str, Any], scale: float, random: Any
) -> "Tensor":
    """Return a weight of blockwise heads; each head's units are there again behind them.

    The states that heads read and write are for the output projection: ``scale`` is theirs.
    """
    import torch

    weight = _precise(weight)
    count, dim = model["decoder.heads.bias"].shape
    if name.endswith("bias") and "inner" not in name:
        return weight.repeat_interleave(2, 1) * scale
    if name.endswith("inner.bias"):
        return weight.view(count, -1).repeat(1, 2).flatten()
    if name.endswith("inner.weight"):
        states, seen = weight[:, :dim] / scale, weight[:, dim:]
        wide = _pairs_shared(torch.cat([states, seen], 1), random)
        return wide.view(count, -1, wide.shape[1]).repeat(1, 2, 1).flatten(0, 1)
    by_head = weight.unflatten(2, (-1, len(model["decoder.heads.inner.bias"]) // count))
    return _again_shared(by_head, random).flatten(2).repeat_interleave(2, 1) * scale


def _precise(weight: "Tensor") -> "Tensor":
    """Return a weight in fp32, unless it has more digits."""
    import torch

    return weight if weight.dtype == torch.float64 else weight.float()


def _parts(weight: "Tensor", random: Any) -> list["Tensor"]:
    """Return a weight as the sum of two: a quarter to three quarters of each number, the rest."""
    import torch

    first = weight * (0.25 + torch.rand(weight.shape, generator=random).to(weight) / 2)
    return [first, weight - first]


def _pairs_shared(weight: "Tensor", random: Any) -> "Tensor":
    """Return columns that read pairs of features."""
    import torch

    return torch.stack(_parts(weight, random), -1).flatten(-2)


def _again_shared(weight: "Tensor", random: Any) -> "Tensor":
    """Return columns that read units, then these units again."""
    import torch

    return torch.cat(_parts(weight, random), -1)


def _wide_sizes(settings: Any) -> Any:
    """Return a model's settings with twice the sizes, those of a drafter's verifier among them."""
    if not isinstance(settings, dict):
        return settings
    return {
        name: 2 * value if name in _GROWING and isinstance(value, int) else _wide_sizes(value)
        for name, value in settings.items()
    }


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        "example: paradec widen small/model.pt base-start.pt, then paradec train DATA --save-dir "
        "base --preset base --updates 2000 -- --finetune-from-model base-start.pt --lr 0.0002"
    )
    add = parser.add_argument
    add("source", type=Path, metavar="SOURCE", help="full checkpoint (only read)")
    add("target", type=Path, metavar="TARGET", help="file to write")


def run(args: argparse.Namespace) -> int:
    """Widen one checkpoint."""
    from ...plugin.files import options_of, saving
    from ..checkpoints import read_source

    state = read_source(args.source, args.target)
    state["cfg"]["model"] = options_of(state["cfg"]["model"])
    state = widened(state)
    with saving("TARGET", args.target, state):
        pass
    sizes = {
        key: state["cfg"]["model"][key] for key in sorted(_GROWING & set(state["cfg"]["model"]))
    }
    print(f"{args.target}: " + ", ".join(f"{key} {value}" for key, value in sizes.items()))
    return 0
