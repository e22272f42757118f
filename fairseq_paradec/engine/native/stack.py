"""Weights of an encoder or a decoder, packed for native passes."""

import ctypes
import weakref
from collections.abc import Callable, Sequence
from copy import copy
from typing import TypeAlias

import numpy as np

from ...model.architecture import Layers
from ...model.model import HeadWeights, Model
from ...threads import num_threads
from .library import Heads, MapOf, NormOf, NormOfStack, halves, library
from .shelf import Shelf

#: How weights are kept: csrc's ``Form``. ``drafts``: of a model that drafts on another's encoder
#: and cache, int4, and its projection int2.
FORMS = {"fp32": 0, "bf16": 1, "int8": 2, "int4": 3, "int2": 4, "drafts": 3}

#: csrc's ``Activation`` by fairseq's name.
ACTIVATIONS = {"linear": 0, "relu": 1, "gelu": 2, "gelu_accurate": 3, "tanh": 4, "swish": 5}


#: Of a map or a norm; None: it has no bias.
WeightAndBias: TypeAlias = tuple[np.ndarray, np.ndarray | None]


class NativeMap:
    """A linear map with packed weights; its products are fp32 in and out.

    Args:
        weight: O×I.
        bias: O, or None.
        form: a key of ``FORMS``.
        shelf: of a file that holds the packed map, or that is being written; None: no file.
    """

    def __init__(
        self, weight: np.ndarray, bias: np.ndarray | None, form: str, shelf: Shelf | None = None
    ) -> None:
        self.outputs, self.inputs = weight.shape
        self.form, self.shelf = form, shelf  # a mapped file lives as long as its maps
        self._parts: tuple[NativeMap, ...] = ()
        if shelf is not None and shelf.reads:
            at = shelf.place(self.outputs, self.inputs, FORMS[form])
            self.address = library().paradec_map_at(at, *weight.shape, FORMS[form])
        else:
            weight, bias = plain(weight), None if bias is None else plain(bias)
            self.address = library().paradec_map_new(
                address_of(weight), address_of(bias), *weight.shape, FORMS[form]
            )
        if self.address is None:
            raise MemoryError("no room for packed weights")
        weakref.finalize(self, library().paradec_map_free, self.address).atexit = False
        if shelf is not None and not shelf.reads:
            room = shelf.room(self.outputs, self.inputs, FORMS[form])
            library().paradec_map_write(self.address, room)
            shelf.keep(room)

    def with_exact(self, exact: "NativeMap") -> "NativeMap":
        """Return the map with its largest outputs taken from another one: both of one weight.

        Args:
            exact: in int8.
        """
        if self.form not in ("int4", "int2") or exact.form != "int8" or not halves():
            return self
        both = copy(self)
        both._parts = self, exact  # whose memory it reads
        both.address = library().paradec_map_with_exact(self.address, exact.address)
        if both.address is None:
            raise MemoryError("no room for packed weights")
        weakref.finalize(both, library().paradec_map_free, both.address).atexit = False
        return both

    def __call__(
        self, x: np.ndarray, out: np.ndarray | None = None, activation: int = 0
    ) -> np.ndarray:
        """Map the last dimension, which lies densely; the same is true of ``out``, if given.

        Args:
            x: ...×I, rows at one distance, in fp32.
            out: ...×O, rows at one distance, in fp32.
            activation: csrc's ``Activation``.
        """
        if out is None:
            x = np.ascontiguousarray(x, np.float32)
            out = np.empty((*x.shape[:-1], self.outputs), np.float32)
        check(
            library().paradec_map(
                self.address,
                address_of(x),
                x.strides[-2] // x.itemsize,
                x.size // x.shape[-1],
                address_of(out),
                out.strides[-2] // out.itemsize,
                activation,
                num_threads(),
            )
        )
        return out


class NativeHeads:
    """Prediction heads by native products; called like ``models.heads.BlockHeads``."""

    def __init__(self, heads: HeadWeights, form: str) -> None:
        record, weights = heads.record, heads.weights
        self.count = record.learned
        self.first = record.size - self.count  # 1 if head 0 is the identity
        self.seen = record.seen
        self.activation = ACTIVATIONS[record.activation]
        self.inner = NativeMap(weights["inner.weight"], weights["inner.bias"], form)
        # One map of all hidden units, or one a head of its own.
        outer, biases = weights["outer"], weights["bias"]
        if record.is_dense:
            outer, biases = outer.reshape(1, -1, outer.shape[2]), biases.reshape(1, -1)
        self.outer = [NativeMap(w, b, form) for w, b in zip(outer, biases, strict=True)]
        self._outer = (ctypes.c_void_p * len(self.outer))(*(map.address for map in self.outer))
        #: As the native loop reads them, for as long as this lives.
        self.structure = Heads(
            inner=self.inner.address,
            outer=ctypes.addressof(self._outer),
            maps=len(self.outer),
            learned=self.count,
            identity=self.first,
            seen=self.seen > 0,
            activation=self.activation,
        )

    def __call__(
        self, states: np.ndarray, heads: Sequence[int], following: np.ndarray | None = None
    ) -> np.ndarray:
        """Compute the outputs of learned heads in a row, B×D -> B×N×D; see BlockHeads."""
        states = np.asarray(states)
        parts = [states] if following is None else [states, np.asarray(following)]
        hidden = self.inner(np.concatenate(parts, axis=1), activation=self.activation)  # B×W
        outputs = np.empty((len(states), self.count, states.shape[1]), np.float32)
        pairs = [(hidden, outputs.reshape(len(states), -1))]
        if len(self.outer) > 1:
            each = np.split(hidden, self.count, axis=1)
            pairs = [(x, outputs[:, head]) for head, x in enumerate(each)]
        for outer, (x, y) in zip(self.outer, pairs, strict=True):
            outer(x, y)
        outputs = outputs[:, heads[0] - self.first : heads[-1] + 1 - self.first]
        outputs += states[:, None]
        return outputs


class NativeStack:
    """The layers of an encoder or a decoder in the form that a native pass reads.

    Heads are padded to whole vectors; what pads them is zero.

    Args:
        model: the model.
        side: ``encoder`` or ``decoder``.
        form: a key of ``FORMS``.
        shelf: see ``NativeMap``.
    """

    def __init__(self, model: Model, side: str, form: str, shelf: Shelf | None = None) -> None:
        self.form, self.shelf = form, shelf
        self._model, self._side = model, side
        layers = model.layers(side)
        self.dim, self.heads = layers.dim, layers.heads
        self.own_size = layers.size
        lanes = library().paradec_lanes()
        self.lanes = lanes
        self.head_size = -(-self.own_size // lanes) * lanes
        self.stride = -(-self.dim // lanes) * lanes
        self.num_layers = layers.count
        self.epsilon = layers.epsilon
        of_scores = self.own_size**-0.5 if layers.scaled else 1.0
        self.address = library().paradec_stack_new(
            self.dim, self.heads, self.head_size, of_scores, layers.count
        )
        if self.address is None:
            raise MemoryError("no room for packed weights")
        weakref.finalize(self, library().paradec_stack_free, self.address).atexit = False
        words, scale = model.embeddings(side)
        self._vectors = vectors = plain(words)  # the library reads them in place
        positions = model.positions(side)
        table = None if positions is None else plain(positions)
        check(
            library().paradec_stack_tables(
                self.address,
                address_of(vectors),
                len(vectors),
                scale,
                address_of(table),
                0 if table is None else len(table),
            )
        )
        biases = model.relative_bias(side)
        if biases is not None:
            reach = biases.shape[1] // 2
            check(library().paradec_stack_biases(self.address, address_of(biases), reach))
        for index in range(layers.count):
            self._add(index, layers)
        if layers.embedding_norm:
            self._norm(-1, NormOfStack.EMBEDDING, f"{side}.layernorm_embedding")
        if layers.final_norm:
            self._norm(-1, NormOfStack.FINAL, f"{side}.layer_norm")

    def _add(self, index: int, layers: Layers) -> None:
        """Pack one layer."""
        name, dim, units = f"{self._side}.layers.{index}", self.dim, layers.feed_forward
        width = self.heads * self.head_size
        own = [f"{name}.self_attn.{part}_proj" for part in "qkv"]
        self._map(index, MapOf.QKV, (3 * width, dim), lambda: self._pad_outputs(own))
        self._out(index, MapOf.SELF_OUT, f"{name}.self_attn.out_proj")
        self._norm(index, NormOf.SELF, f"{name}.self_attn_layer_norm")
        if self._side == "decoder":
            query = [f"{name}.encoder_attn.q_proj"]
            self._map(index, MapOf.CROSS_QUERY, (width, dim), lambda: self._pad_outputs(query))
            self._out(index, MapOf.CROSS_OUT, f"{name}.encoder_attn.out_proj")
            self._norm(index, NormOf.CROSS, f"{name}.encoder_attn_layer_norm")
        self._map(index, MapOf.FEED_IN, (units, dim), lambda: self._weights(f"{name}.fc1"))
        if layers.gated:
            self._map(index, MapOf.FEED_GATE, (units, dim), lambda: self._weights(f"{name}.fc3"))
        self._map(index, MapOf.FEED_OUT, (dim, units), lambda: self._weights(f"{name}.fc2"))
        self._norm(index, NormOf.FEED, f"{name}.final_layer_norm")
        activation = ACTIVATIONS[layers.activation]
        library().paradec_stack_layer(self.address, index, layers.pre_norm, activation)

    def source_keys(self) -> NativeMap:
        """Pack the keys and values of the source of all layers in one map, (L·2·H·Dp)×C."""
        maps = [
            f"{self._side}.layers.{index}.encoder_attn.{part}_proj"
            for index in range(self.num_layers)
            for part in "kv"
        ]
        shape = len(maps) * self.heads * self.head_size, self._model.source_width()
        if self.shelf is not None and self.shelf.reads:
            return NativeMap(sized(shape), None, self.form, self.shelf)
        return NativeMap(*self._pad_outputs(maps), self.form, self.shelf)

    def finish(self) -> None:
        """Let the model go, once all is packed: models that nobody else has are gone then."""
        del self._model

    def _weights(self, name: str) -> WeightAndBias:
        """Return weight and bias of a map, or of a norm."""
        has_bias = self._model.has(f"{name}.bias")
        bias = self._model.weight(f"{name}.bias") if has_bias else None
        return self._model.weight(f"{name}.weight"), bias

    def _pad_outputs(self, names: Sequence[str]) -> WeightAndBias:
        """Join maps with the outputs of each head padded: (H·Dh)×... each -> (N·H·Dp)×..."""
        weights, biases = zip(*map(self._weights, names), strict=True)
        return self._padded(weights), None if biases[0] is None else self._padded(biases)

    def _padded(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Join weights, or biases, of maps; see ``_pad_outputs``."""
        inputs = parts[0][0].size
        padded = np.zeros((len(parts), self.heads, self.head_size, inputs), np.float32)
        for to, part in zip(padded, parts, strict=True):
            to[:, : self.own_size] = part.reshape(self.heads, self.own_size, inputs)
        return padded.reshape(-1, *parts[0].shape[1:])

    def _out(self, layer: int, which: MapOf, name: str) -> None:
        """Pack a map with the inputs of each head padded: D×(H·Dh) -> D×(H·Dp)."""

        def make() -> WeightAndBias:
            weight, bias = self._weights(name)
            padded = np.zeros((self.dim, self.heads, self.head_size), np.float32)
            padded[:, :, : self.own_size] = weight.reshape(self.dim, self.heads, self.own_size)
            return padded.reshape(self.dim, -1), bias

        self._map(layer, which, (self.dim, self.heads * self.head_size), make)

    def _map(
        self,
        layer: int,
        which: MapOf,
        size: tuple[int, int],
        make: Callable[[], WeightAndBias],
    ) -> None:
        """Pack a map, or take it from the file, which needs no weights."""
        where, shape = (self.address, layer, which), (*size, FORMS[self.form])
        if self.shelf is not None and self.shelf.reads:
            at = self.shelf.place(*size, FORMS[self.form])
            library().paradec_stack_map_at(*where, at, *shape)
            return
        weight, bias = map(plain_or_none, make())
        check(library().paradec_stack_map(*where, address_of(weight), address_of(bias), *shape))
        if self.shelf is not None:
            room = self.shelf.room(*size, FORMS[self.form])
            library().paradec_stack_map_write(*where, room)
            self.shelf.keep(room)

    def _norm(self, layer: int, which: NormOf | NormOfStack, name: str) -> None:
        weight, bias = map(plain_or_none, self._weights(name))
        check(
            library().paradec_stack_norm(
                self.address, layer, which, address_of(weight), address_of(bias), self.epsilon
            )
        )


def plain(weight: np.ndarray) -> np.ndarray:
    """Return a weight in fp32, its numbers one behind the other."""
    return np.ascontiguousarray(weight, np.float32)


def plain_or_none(weight: np.ndarray | None) -> np.ndarray | None:
    """As ``plain``, of a bias that may not be there."""
    return None if weight is None else plain(weight)


def sized(shape: tuple[int, int]) -> np.ndarray:
    """Return a weight that a file holds packed: it has a size, and no memory."""
    return np.broadcast_to(np.float32(0), shape)


def address_of(array: np.ndarray | None) -> int | None:
    """Return where an array's numbers lie; None: there is no array."""
    return None if array is None else array.ctypes.data


def check(status: int) -> None:
    """Raise a MemoryError if the library says that memory is short."""
    if status != 0:
        raise MemoryError("no room for a native pass")
