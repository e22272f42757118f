"""A checkpoint's settings, as fairseq or this package's models saved them, as an Architecture."""

import ast
import math
from typing import Any, NamedTuple

from ..errors import UsageError, shown
from ..target_order import TargetOrder
from .architecture import (
    ACTIVATIONS,
    ATTENTIONS,
    LAYERS,
    MOST,
    ORDER,
    POSITIONS,
    STARTS,
    Architecture,
    Block,
    Heads,
    Layers,
    Slots,
    checked,
)
from .checkpoint import settings as named
from .pickles import Record

#: fairseq's architectures whose models are plain Transformers; those of BART have other defaults.
PLAIN = {
    "transformer": ("", "_tiny", "_iwslt_de_en", "_wmt_en_de", "_vaswani_wmt_en_de_big")
    + ("_vaswani_wmt_en_fr_big", "_wmt_en_de_big", "_wmt_en_de_big_t2t", "_align")
    + ("_wmt_en_de_big_align",),
    "bart": ("_base", "_large"),
    "mbart": ("_base", "_large", "_base_wmt20"),
}
#: This package's presets of an order, by name: options that are not left to right.
ORDERS: dict[str, dict[str, Any]] = {
    "ibdecoder": {"directions": 2},
    "ibdecoder_sa": {"directions": 2, "tokens_per_direction": 2},
    "imdecoder": {"directions": 4},
    "sa_transformer": {"tokens_per_direction": 2},
    "transformer_r2l": {"right_to_left": True},
    "transformer_both_ends": {"directions": 2, "alternate_ends": True},
    "double_token": {"directions": 2, "double_token": True},
    "double_token_l2r": {"tokens_per_direction": 2, "double_token": True},
    "double_token_r2l": {"tokens_per_direction": 2, "double_token": True, "right_to_left": True},
}
#: The ends of names of this package's architectures: sizes, which their settings hold.
SIZES = ("", "_tiny", "_iwslt", "_big")
#: Names of architectures, and the kind of model that each is.
ARCHITECTURES: dict[str, str] = {
    **{f"{name}{end}": "transformer" for name, ends in PLAIN.items() for end in ends},
    **{f"{name}{size}": "reordered" for name in ORDERS for size in SIZES},
    **{f"block_nat{size}": "block_nat" for size in (*SIZES, "_fast")},
    **{f"blockwise_transformer{size}": "blockwise" for size in SIZES},
    "shallow_decoder": "shallow",
    "imported_transformer": "imported",
}

#: Settings of models that the record does not describe, by their flags; others have none of them.
_UNKNOWN = (
    *("cross_self_attention", "no_cross_attention", "adaptive_input", "merge_src_tgt_embed"),
    *("tie_adaptive_weights", "tie_adaptive_proj", "char_inputs", "quant_noise_pq"),
    *("encoder_layers_to_keep", "decoder_layers_to_keep", "base_layers", "scale_attn"),
    *("scale_heads", "scale_fc", "scale_resids", "encoder_xformers_att_config"),
    *("decoder_xformers_att_config", "return_fc"),
)


class UnknownModel(UsageError):
    """A model that the record does not describe; fairseq may know it."""


class Settings:
    """Settings by name, each read as the type that it has to be.

    Args:
        part: in whatever form fairseq saved them.
    """

    def __init__(self, part: Any) -> None:
        self._given = {}
        for name, value in named(part).items():
            nested = {f"{name}_{key}": own for key, own in named(value).items()}
            is_part = name in ("encoder", "decoder", "quant_noise")  # as newer fairseq has them
            self._given.update(nested if is_part else {name: value})

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting as it is; the default, if it is not given or refers to another."""
        value = self._given.get(name)
        refers = isinstance(value, str) and value.startswith("${")
        return default if value is None or refers else value

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a switch."""
        value = self.get(name, default)
        if type(value) not in (bool, int):
            raise _wrong(name, value, "True or False")
        return bool(value)

    def number(self, name: str, default: int, most: int = MOST, least: int = 1) -> int:
        """Return a whole number."""
        value = self.get(name, default)
        if type(value) is not int or not least <= value < most:
            raise _wrong(name, value, f"a whole number from {least} up, below {most}")
        return value

    def word(self, name: str, default: str | None, allowed: tuple[str, ...] = ()) -> Any:
        """Return a text, one of some."""
        value = self.get(name, default)
        if value is not None and (type(value) is not str or (allowed and value not in allowed)):
            raise _wrong(name, value, ", ".join(allowed) or "a text")
        return value


def _wrong(name: str, value: Any, allowed: str) -> UnknownModel:
    """Return the error for a setting of no use."""
    return UnknownModel(f"{name}: got {shown(value)}; allowed: {allowed}")


class Vocabularies(NamedTuple):
    """How many words source and target have."""

    source: int
    target: int


def architecture_of(part: Any, words: Vocabularies) -> Architecture:
    """Return the architecture of a checkpoint's settings.

    Args:
        part: of its model, in whatever form fairseq saved them.
        words: how many words its vocabularies have.

    Raises:
        UsageError: they are of no model that the record describes; the message says what.
    """
    own = Settings(part)
    name = own.get("_name") or own.get("arch")
    if type(name) is not str or name not in ARCHITECTURES:
        raise _wrong("arch", name, "transformer, and others that fairseq and this package name")
    for option in _UNKNOWN:
        if own.get(option):
            raise _wrong(option, own.get(option), "a model without it, or one in torch")
    kind = ARCHITECTURES[name]
    block = _block(own) if kind == "block_nat" else None
    decoder = _layers(own, "decoder", name, block is not None)
    # A drafter's encoder has the settings of its verifier's.
    theirs = own.get("encoder_settings")
    encoder = _layers(own, "encoder", name, block is not None)
    no_end = kind == "imported" and own.flag("no_source_end")
    if kind in ("block_nat", "shallow") and theirs is not None:
        encoder = _layers(Settings(theirs), "encoder", name, False)
        no_end = Settings(theirs).flag("no_source_end")
    order, slots = _order(own, name, decoder) if kind == "reordered" else ({}, None)
    cutoffs = _cutoffs(own.get("adaptive_softmax_cutoff"), words.target)
    shared = None
    if own.flag("share_decoder_input_output_embed"):
        shared = "output"
    if own.flag("share_all_embeddings"):
        shared = "all"
    if own.flag("share_verifier_encoder") or own.flag("freeze_encoder"):
        shared = "output"  # so that an embedding in training is none of the frozen encoder's
    if cutoffs and shared == "output":
        shared = None  # an adaptive softmax has vectors of its own
    width = own.number("decoder_output_dim", decoder.dim)
    architecture = Architecture(
        kind=kind,
        encoder=encoder,
        decoder=decoder,
        source_width=encoder.dim,
        source_words=words.source,
        target_words=words.target,
        output_dim=width,
        shared=shared,
        output_bias=kind == "imported" and own.flag("output_bias"),
        cutoffs=cutoffs,
        factor=_factor(own.get("adaptive_softmax_factor", 4.0)),
        order=order,
        slots=slots,
        block=block,
        heads=_heads(own, width, decoder) if kind == "blockwise" else None,
        shares_encoder=own.flag("share_verifier_encoder") or kind == "shallow",
        first_target_token=own.word("first_target_token", None) if kind == "imported" else None,
        source_end=not no_end,
    )
    return checked(architecture)


def _layers(own: Settings, side: str, name: str, block: bool) -> Layers:
    """Return the layers of one side."""
    is_encoder, bart = side == "encoder", "bart" in name
    # A decoder is as wide as its encoder, unless it says so; drafters' positions are named apart.
    default = {"dim": 512, "feed": 2048, "heads": 8, "layers": 6}
    if not is_encoder:
        default["dim"] = own.number("encoder_embed_dim", 512)
        default["feed"] = own.number("encoder_ffn_embed_dim", 2048)
    learned = block and own.word("drafter_positions", "learned") == "learned"
    dim = own.number(f"{side}_embed_dim", default["dim"])
    heads = own.number(f"{side}_attention_heads", default["heads"])
    pre_norm = own.flag(f"{side}_normalize_before")
    pairs = name.startswith("double_token") and not is_encoder
    is_learned = own.flag(f"{side}_learned_pos", learned or bart or pairs)
    positions: str | None = "learned" if is_learned else "sinusoidal"
    if own.flag("no_token_positional_embeddings"):
        positions = None
    text = "source" if is_encoder else "target"
    most = own.get("max_positions", 1024)  # of old checkpoints: for both
    most = own.number(f"max_{text}_positions", most, POSITIONS + 1)
    if positions == "sinusoidal":
        most = min(most, 100_000)  # fairseq's limit
    no_norm = own.flag(f"no_{side}_final_norm")
    unscaled = own.flag("no_scale_embedding", learned or name.startswith("bart"))
    activation = own.word(
        "activation_fn", "gelu" if block or bart else "relu", (*ACTIVATIONS, "gelu_fast")
    )
    return Layers(
        count=own.number(f"{side}_layers", default["layers"], LAYERS),
        dim=dim,
        feed_forward=own.number(f"{side}_ffn_embed_dim", default["feed"]),
        heads=heads,
        pre_norm=pre_norm,
        activation="gelu_accurate" if activation == "gelu_fast" else activation,
        scale=1.0 if unscaled else math.sqrt(dim),
        positions=positions,
        most=most,
        embedding_norm=own.flag("layernorm_embedding", block or bart),
        final_norm=pre_norm and not no_norm,
    )


def _block(own: Settings) -> Block:
    """Return the block of a drafter of masks."""
    return Block(
        size=own.number("drafter_block_size", 25),
        is_random=own.flag("random_block_size"),
        attention=own.word("drafter_attention", "bidirectional", ATTENTIONS),
        soft_copy=own.flag("soft_copy"),
    )


def _heads(own: Settings, dim: int, decoder: Layers) -> Heads:
    """Return the heads of a blockwise model."""
    return Heads(
        size=own.number("block_size", 8),
        hidden=decoder.feed_forward,
        is_dense=own.word("head_layer", "dense", ("dense", "per_head")) == "dense",
        first=own.flag("train_first_head"),
        seen=decoder.dim if own.flag("heads_see_token") else 0,
        activation=decoder.activation,
    )


def _order(own: Settings, name: str, decoder: Layers) -> tuple[dict[str, Any], Slots | None]:
    """Return the options of an order that are not left to right, and the positions it needs."""
    ends = [end for end in SIZES if end and name.endswith(end)]
    preset = ORDERS[name.removesuffix(ends[0]) if ends else name]
    order: dict[str, Any] = {}
    for option, plain in ORDER.items():
        read = own.flag if type(plain) is bool else own.number
        value = read(option, preset.get(option, plain))
        if value != plain:
            order[option] = value
    whole = TargetOrder(**order)
    h = whole.directions
    starts = own.word("start_rows", "tokens", STARTS)
    if decoder.positions is None:
        return order, None
    learned = decoder.positions == "learned"
    if starts == "tokens" and (whole.counts_slots or (learned and h == 2)):
        return order, None
    return order, Slots(
        h if h > 2 and not whole.vanilla_positions else 0, starts, whole.tokens_per_step
    )


def _cutoffs(given: Any, words: int) -> tuple[int, ...]:
    """Return the cutoffs of an adaptive softmax, up to the vocabulary's size."""
    if given is None:
        return ()
    name, allowed = "adaptive_softmax_cutoff", f"ascending whole numbers, up to {words}"
    if isinstance(given, Record) and isinstance(given.state, dict):  # omegaconf's list
        content = given.state.get("_content")
        nodes: list[Any] = content if isinstance(content, list) else [None]
        given = [getattr(node, "state", None) for node in nodes]
        given = [node.get("_val") if isinstance(node, dict) else None for node in given]
    if isinstance(given, str):
        try:
            given = ast.literal_eval(given[:1000])
        except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
            raise _wrong(name, given, allowed) from error
    cuts = list(given) if isinstance(given, (list, tuple)) else [given]
    if not cuts or any(type(cut) is not int for cut in cuts):
        raise _wrong(name, given, allowed)
    return tuple(cuts if cuts[-1] >= words else [*cuts, words])


def _factor(given: Any) -> float:
    """Return by which an adaptive softmax narrows."""
    if type(given) not in (int, float):
        raise _wrong("adaptive_softmax_factor", given, "a number from 1 up")
    return float(given)
