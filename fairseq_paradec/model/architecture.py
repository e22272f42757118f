"""What a model is: sizes, norms, positions, ties, and what it adds to a plain Transformer.

The names of weights are fairseq's, so that a checkpoint's and a live module's are the same.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..errors import UsageError, shown
from ..target_order import TargetOrder
from .dictionary import BOS, EOS

#: What fairseq's norms add to a variance.
NORM_EPSILON = 1e-5
#: Rows of position tables before the first token's: fairseq counts positions from here on.
FIRST_POSITION = 2


@dataclass(frozen=True)
class Relative:
    """Biases of attention by the distance from a query to a key, in tokens, as T5 has them.

    Attributes:
        buckets: of distances; each has a bias for each head.
        most: distances from here on are in the last bucket.
    """

    buckets: int
    most: int


@dataclass(frozen=True)
class Layers:
    """The layers of an encoder or a decoder, and what surrounds them.

    Those behind ``final_norm`` are what fairseq's Transformers never have.

    Attributes:
        count: L.
        dim: D, of states and of embeddings.
        feed_forward: hidden units.
        heads: of attention.
        pre_norm: norms come before sublayers, not after the residual.
        activation: fairseq's name of it.
        scale: of embeddings.
        positions: ``learned``, ``sinusoidal``, or None.
        most: positions at most; a longer text is refused.
        embedding_norm: whether a norm follows embeddings and positions.
        final_norm: whether a norm follows the last layer.
        head_size: Dh, of a head's queries, keys and values; None: D / heads.
        epsilon: what norms add to a variance.
        is_rms: norms divide by the root of the mean square alone, and have no bias.
        biases: whether linear maps have them.
        gated: hidden units are multiplied by those of a second map, ``fc3``.
        scaled: scores of attention are divided by the root of Dh.
        relative: of self-attention; the same in all layers; None: there are none.
    """

    count: int
    dim: int
    feed_forward: int
    heads: int
    pre_norm: bool
    activation: str
    scale: float
    positions: str | None
    most: int
    embedding_norm: bool
    final_norm: bool
    head_size: int | None = None
    epsilon: float = NORM_EPSILON
    is_rms: bool = False
    biases: bool = True
    gated: bool = False
    scaled: bool = True
    relative: Relative | None = None

    @property
    def size(self) -> int:
        """Dh, of a head."""
        return self.dim // self.heads if self.head_size is None else self.head_size


@dataclass(frozen=True)
class Block:
    """A decoder that fills blocks of masks (block_nat).

    Attributes:
        size: K in training.
        is_random: whether it was drawn from 1 to K.
        attention: ``bidirectional`` or ``prefix_causal``.
        soft_copy: masks get averages of source embeddings.
    """

    size: int
    is_random: bool
    attention: str
    soft_copy: bool


@dataclass(frozen=True)
class Heads:
    """Prediction heads on a decoder's states.

    Attributes:
        size: k tokens predicted from a state.
        hidden: units of each learned head.
        is_dense: each output reads the hidden units of all heads.
        first: head 0 is learned; else it is the identity.
        seen: the dimension of the embedding that heads see beside the state, or 0.
        activation: fairseq's name of it.
    """

    size: int
    hidden: int
    is_dense: bool
    first: bool
    seen: int
    activation: str

    @property
    def learned(self) -> int:
        """How many heads are learned."""
        return self.size if self.first else self.size - 1


@dataclass(frozen=True)
class Slots:
    """Positions of a decoder that writes in an order of its own, with parameters of their own.

    Attributes:
        directions: how many have an embedding; 0: none.
        starts: ``tokens``, ``zero`` or ``learned``: what the first step reads.
        step: how many tokens it has.
    """

    directions: int
    starts: str
    step: int


@dataclass(frozen=True)
class Architecture:
    """What a model's weights mean.

    Attributes:
        kind: of ``KINDS``: what class of fairseq's or this package's has these weights; ``t5``:
            none has.
        encoder: None: the encoder is none that this record describes.
        decoder: its layers.
        source_width: C, of the encoder's states.
        source_words: of the source vocabulary.
        target_words: of the target vocabulary.
        output_dim: what the projection reads; states are mapped to it if it is not their size.
        shared: ``all``: source, target and output vectors are the same; ``output``: the last two.
        output_bias: whether the projection has a bias.
        cutoffs: of an adaptive softmax, the last is the vocabulary's size; (): a linear projection.
        factor: by which an adaptive softmax narrows.
        order: options of the target's order that are not left to right, by name.
        slots: positions that the order needs, or None: the decoder's.
        block: or None.
        heads: or None.
        shares_encoder: the encoder is the verifier's.
        first_target_token: the word that outputs begin with, or None.
        source_end: whether the encoder reads the ``</s>`` of a source; else it is as padding.
    """

    kind: str
    encoder: Layers | None
    decoder: Layers
    source_width: int
    source_words: int
    target_words: int
    output_dim: int
    shared: str | None = None
    output_bias: bool = False
    cutoffs: tuple[int, ...] = ()
    factor: float = 4.0
    order: dict[str, Any] = field(default_factory=dict)
    slots: Slots | None = None
    block: Block | None = None
    heads: Heads | None = None
    shares_encoder: bool = False
    first_target_token: str | None = None
    source_end: bool = True

    @property
    def in_fairseq(self) -> bool:
        """Whether fairseq, or this package's plugin, has a class with these weights."""
        return self.kind != "t5"

    @property
    def target_order(self) -> TargetOrder:
        """The order in which it writes."""
        return TargetOrder(**self.order)

    @property
    def tokens_per_step(self) -> int:
        """How many tokens the decoder writes in a step."""
        return self.target_order.tokens_per_step

    def slot_positions(self, width: int) -> np.ndarray:
        """Return the numbers of an order's first positions; see ``TargetOrder.positions``.

        Those that count slots begin at 0 in learned tables, and at fairseq's first in sinusoids.
        """
        order, t = self.target_order, np.arange(width)
        is_learned = self.decoder.positions == "learned"
        if order.counts_slots or (is_learned and order.directions == 2):
            return t if is_learned else t + FIRST_POSITION
        return order.positions(width)

    def start_symbols(self) -> list[int]:
        """Return the inputs of the first step; see ``TargetOrder.start``."""
        return self.target_order.start(BOS, EOS)

    def ties(self) -> dict[str, str]:
        """Return names that stand for another name's weight."""
        source, target = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
        output = "decoder.output_projection.weight"
        ties = {target: source} if self.shared == "all" else {}
        if self.shared and not self.cutoffs:
            ties[output] = ties.get(target, target)
        return ties

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each weight, by its name; those of ties come once."""
        decoder, shapes = self.decoder, dict[str, tuple[int, ...]]()
        if self.encoder is not None:
            shapes |= _layers("encoder", self.encoder, self.source_words, None)
            shapes |= _positions("encoder", self.encoder) | _relative("encoder", self.encoder)
        shapes |= _layers("decoder", decoder, self.target_words, self.source_width)
        shapes |= _relative("decoder", decoder)
        if self.output_dim != decoder.dim:
            shapes["decoder.project_out_dim.weight"] = self.output_dim, decoder.dim
        if self.cutoffs:
            shapes |= self._adaptive()
        else:
            shapes["decoder.output_projection.weight"] = self.target_words, self.output_dim
        if self.output_bias:
            shapes["decoder.output_projection.bias"] = (self.target_words,)
        if self.slots is None:
            shapes |= _positions("decoder", decoder)
        else:
            shapes |= self._slots(self.slots)
        if self.block is not None:
            shapes["decoder.mask_vector"] = (decoder.dim,)
            if self.block.soft_copy:
                shapes["decoder.copy_sharpness"] = (1,)
        if self.heads is not None:
            shapes |= self._heads(self.heads)
        ties = self.ties()
        return {name: shape for name, shape in shapes.items() if name not in ties}

    def _slots(self, slots: Slots) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a step's positions."""
        name, dim = "decoder.embed_positions", self.decoder.dim
        shapes: dict[str, tuple[int, ...]] = {}
        if self.decoder.positions == "learned":
            shapes[f"{name}.learned.weight"] = self.decoder.most, dim
        if slots.directions:
            shapes[f"{name}.directions.weight"] = slots.directions, dim
        if slots.starts == "learned":
            shapes[f"{name}.starts"] = slots.step, dim
        return shapes

    def _heads(self, heads: Heads) -> dict[str, tuple[int, ...]]:
        """Return the shapes of prediction heads."""
        dim, units = self.output_dim, heads.learned * heads.hidden
        return {
            "decoder.heads.inner.weight": (units, dim + heads.seen),
            "decoder.heads.inner.bias": (units,),
            "decoder.heads.outer": (heads.learned, dim, units if heads.is_dense else heads.hidden),
            "decoder.heads.bias": (heads.learned, dim),
        }

    def _adaptive(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of an adaptive softmax."""
        name, dim, cuts = "decoder.adaptive_softmax", self.output_dim, self.cutoffs
        shapes: dict[str, tuple[int, ...]] = {f"{name}.head.weight": (cuts[0] + len(cuts) - 1, dim)}
        for band, (start, end) in enumerate(zip(cuts, cuts[1:], strict=False)):
            narrow = int(dim // self.factor ** (band + 1))
            shapes[f"{name}.tail.{band}.0.weight"] = narrow, dim
            shapes[f"{name}.tail.{band}.2.weight"] = end - start, narrow
        return shapes


#: Options of an order, and what they are from left to right.
ORDER: dict[str, Any] = asdict(TargetOrder())
#: Sizes are smaller than this, and positions, layers.
MOST, POSITIONS, LAYERS = 1 << 24, 1 << 17, 1 << 10
#: A relative position is not farther.
_DISTANCE = 1 << 12
#: An adaptive softmax has fewer bands.
_BANDS = 32
#: Activations that a record may name, by fairseq's names.
ACTIVATIONS = ("linear", "relu", "gelu", "gelu_accurate", "tanh", "swish")
KINDS = ("transformer", "reordered", "block_nat", "blockwise", "shallow", "imported", "t5")
ATTENTIONS, STARTS = ("bidirectional", "prefix_causal"), ("tokens", "zero", "learned")


def checked(architecture: Architecture) -> Architecture:
    """Return an architecture whose parts fit each other, and memory.

    Raises:
        UsageError: one does not.
    """
    own = architecture
    _check("kind", own.kind, own.kind in KINDS, ", ".join(KINDS))
    _check("shared", own.shared, own.shared in (None, "all", "output"), "all, output or none")
    for layers in filter(None, (own.encoder, own.decoder)):
        _check_layers(layers)
    sizes = {"source_words": own.source_words, "target_words": own.target_words}
    sizes |= {"source_width": own.source_width, "output_dim": own.output_dim}
    for name, size in sizes.items():
        _check(name, size, 0 < size < MOST, f"from 1 up, below {MOST}")
    cuts = own.cutoffs
    ascend = not cuts or (0 < cuts[0] and [*cuts] == sorted(set(cuts)) and len(cuts) < _BANDS)
    ascend = ascend and (not cuts or cuts[-1] == own.target_words)
    _check("cutoffs", cuts, ascend, "some ascending numbers, the last the vocabulary's size")
    _check("factor", own.factor, 1 <= own.factor < MOST, "a number from 1 up")
    for name, value in own.order.items():
        known = name in ORDER and type(value) is type(ORDER[name])
        _check(shown(name), value, known and 0 <= value < MOST, "an option of an order")
    step = own.tokens_per_step
    _check("order", own.order, 1 <= step <= own.decoder.most, "steps as long as the positions")
    if own.slots is not None:
        fits = own.slots.step == step and own.slots.starts in STARTS
        fits = fits and own.slots.directions in (0, own.order.get("directions", 1))
        _check("slots", own.slots, fits and own.decoder.positions is not None, "the order's")
    if own.block is not None:
        known = own.block.attention in ATTENTIONS and 0 < own.block.size < MOST
        _check("block", own.block, known, "a size from 1 up, attention " + ", ".join(ATTENTIONS))
    if own.heads is not None:
        heads = own.heads
        known = 0 < heads.size < LAYERS and 0 <= heads.hidden < MOST and 0 <= heads.seen < MOST
        _check("heads", heads, known and heads.activation in ACTIVATIONS, "known sizes")
    return architecture


def _check_layers(layers: Layers) -> None:
    """Refuse layers that do not fit together, or into memory; see ``checked``."""
    for name, size in (("dim", layers.dim), ("feed_forward", layers.feed_forward)):
        _check(name, size, 0 < size < MOST, f"from 1 up, below {MOST}")
    _check("layers", layers.count, 0 < layers.count < LAYERS, f"from 1 up, below {LAYERS}")
    if layers.head_size is None:
        divides = layers.heads > 0 and layers.dim % layers.heads == 0
        _check("attention_heads", layers.heads, divides, f"a divisor of {layers.dim}")
    else:
        fits = layers.heads > 0 and 0 < layers.head_size < MOST // layers.heads
        given = f"{layers.heads} of size {layers.head_size}"
        _check("attention_heads", given, fits, f"from 1 up, together below {MOST}")
    _check(
        "activation_fn", layers.activation, layers.activation in ACTIVATIONS, ", ".join(ACTIVATIONS)
    )
    kinds = (None, "learned", "sinusoidal")
    _check("positions", layers.positions, layers.positions in kinds, "learned, sinusoidal or none")
    _check("max_positions", layers.most, 0 < layers.most <= POSITIONS, f"1 to {POSITIONS}")
    _check("epsilon", layers.epsilon, 0 <= layers.epsilon < 1, "from 0 up, below 1")
    if layers.relative is not None:
        near, far = layers.relative.buckets, layers.relative.most
        fits = near >= 4 and near % 2 == 0 and near < far <= _DISTANCE
        allowed = f"an even number of buckets from 4 up, and a larger distance, at most {_DISTANCE}"
        _check("relative", f"{near} buckets up to the distance {far}", fits, allowed)


def _check(name: str, value: object, fits: bool, allowed: str) -> None:
    """Refuse a value that does not fit."""
    if not fits:
        raise UsageError(f"{name}: got {shown(value)}; allowed: {allowed}")


def _positions(side: str, layers: Layers) -> dict[str, tuple[int, ...]]:
    """Return the shape of learned positions."""
    if layers.positions != "learned":
        return {}
    return {f"{side}.embed_positions.weight": (layers.most + FIRST_POSITION, layers.dim)}


def _relative(side: str, layers: Layers) -> dict[str, tuple[int, ...]]:
    """Return the shape of biases by distance."""
    if layers.relative is None:
        return {}
    return {f"{side}.relative_bias.weight": (layers.relative.buckets, layers.heads)}


def _layers(
    side: str, layers: Layers, words: int, source: int | None
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of an encoder, or of a decoder that reads states of width ``source``."""
    dim, units, width = layers.dim, layers.feed_forward, layers.heads * layers.size
    shapes: dict[str, tuple[int, ...]] = {f"{side}.embed_tokens.weight": (words, dim)}
    norms = ["self_attn_layer_norm", "final_layer_norm"]
    maps = {f"self_attn.{part}_proj": (width, dim) for part in "qkv"}
    maps |= {"self_attn.out_proj": (dim, width), "fc1": (units, dim), "fc2": (dim, units)}
    if layers.gated:
        maps["fc3"] = units, dim
    if source is not None:
        norms.append("encoder_attn_layer_norm")
        maps |= {"encoder_attn.q_proj": (width, dim), "encoder_attn.out_proj": (dim, width)}
        maps |= {f"encoder_attn.{part}_proj": (width, source) for part in ("k", "v")}
    for index in range(layers.count):
        for name, shape in maps.items():
            shapes[f"{side}.layers.{index}.{name}.weight"] = shape
            if layers.biases:
                shapes[f"{side}.layers.{index}.{name}.bias"] = shape[:1]
        for name in norms:
            shapes |= _norm(f"{side}.layers.{index}.{name}", layers)
    if layers.embedding_norm:
        shapes |= _norm(f"{side}.layernorm_embedding", layers)
    if layers.final_norm:
        shapes |= _norm(f"{side}.layer_norm", layers)
    return shapes


def _norm(name: str, layers: Layers) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a norm."""
    parts = ("weight",) if layers.is_rms else ("weight", "bias")
    return {f"{name}.{part}": (layers.dim,) for part in parts}
