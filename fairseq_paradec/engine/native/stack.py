"""Weights of an encoder or a decoder, packed for native passes."""

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...threads import num_threads
from ..known import activation_name
from .library import Heads, MapOf, NormOf, NormOfStack, library
from .shelf import Shelf

#: How weights are kept: csrc's ``Form``.
FORMS = {"fp32": 0, "bf16": 1, "int8": 2, "int4": 3}

#: csrc's ``Activation`` by fairseq's name.
ACTIVATIONS = {"linear": 0, "relu": 1, "gelu": 2, "gelu_accurate": 3, "tanh": 4, "swish": 5}


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
        if shelf is not None and shelf.reads:
            at = shelf.place(*weight.shape)
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
            room = shelf.room(*weight.shape)
            library().paradec_map_write(self.address, room)
            shelf.keep(room)

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

    def __init__(self, heads: Any, form: str) -> None:
        self.count = len(heads.learned)
        self.first = heads.block_size - self.count  # 1 if head 0 is the identity
        self.seen = heads.seen
        self.activation = ACTIVATIONS[str(activation_name(heads.activation))]
        self.inner = NativeMap(plain(heads.inner.weight), plain(heads.inner.bias), form)
        # One map of all hidden units, or one a head of its own.
        outer, biases = plain(heads.outer), plain(heads.bias)
        if heads.is_dense:
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
        layers: gathered plainly.
        embedding: V×D.
        scale: of the embedding.
        positions: P×D, or None.
        embedding_norm: or None.
        final_norm: or None.
        form: a key of ``FORMS``.
        shelf: see ``NativeMap``.
    """

    def __init__(
        self,
        layers: Sequence[Any],
        embedding: Any,
        scale: float,
        positions: Any,
        embedding_norm: Any,
        final_norm: Any,
        form: str,
        shelf: Shelf | None = None,
    ) -> None:
        self.form, self.shelf = form, shelf
        self.dim, self.heads = embedding.shape[1], layers[0].attention.heads
        self.own_size = self.dim // self.heads
        lanes = library().paradec_lanes()
        self.lanes = lanes
        self.head_size = -(-self.own_size // lanes) * lanes
        self.stride = -(-self.dim // lanes) * lanes
        self.num_layers = len(layers)
        self.address = library().paradec_stack_new(
            self.dim, self.heads, self.head_size, self.own_size**-0.5, len(layers)
        )
        if self.address is None:
            raise MemoryError("no room for packed weights")
        weakref.finalize(self, library().paradec_stack_free, self.address).atexit = False
        self._vectors = vectors = plain(embedding)  # the library reads them in place
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
        for index, layer in enumerate(layers):
            self._add(index, layer)
        for which, norm in zip(NormOfStack, (embedding_norm, final_norm), strict=True):
            if norm is not None:
                self._norm(-1, which, norm)

    def _add(self, index: int, layer: Any) -> None:
        """Pack one layer."""
        # Gathered plainly, all maps are Linear.
        attention: Any = layer.attention
        feed: Any = layer.feed_forward
        qkv = attention.qkv
        parts = [self.pad_heads(w) for w in np.split(plain(qkv.weight), 3)]
        biases = [self.pad_heads(b) for b in np.split(plain(qkv.bias), 3)]
        self._map(index, MapOf.QKV, np.concatenate(parts), np.concatenate(biases))
        self._map(index, MapOf.SELF_OUT, self._pad_inputs(attention.out.weight), attention.out.bias)
        self._norm(index, NormOf.SELF, attention.norm)
        if hasattr(layer, "source"):
            source: Any = layer.source
            query = self.pad_heads(source.query.weight), self.pad_heads(source.query.bias)
            self._map(index, MapOf.CROSS_QUERY, *query)
            out = self._pad_inputs(source.out.weight), source.out.bias
            self._map(index, MapOf.CROSS_OUT, *out)
            self._norm(index, NormOf.CROSS, source.norm)
        self._map(index, MapOf.FEED_IN, feed.fc1.weight, feed.fc1.bias)
        self._map(index, MapOf.FEED_OUT, feed.fc2.weight, feed.fc2.bias)
        self._norm(index, NormOf.FEED, feed.norm)
        activation = ACTIVATIONS[str(activation_name(feed.activation))]
        library().paradec_stack_layer(self.address, index, attention.pre_norm, activation)

    def pad_heads(self, x: Any) -> np.ndarray:
        """Pad the outputs of each head: (H·Dh)×... -> (H·Dp)×..."""
        x = plain(x).reshape(self.heads, self.own_size, -1)
        padded = np.zeros((self.heads, self.head_size, x.shape[2]), np.float32)
        padded[:, : self.own_size] = x
        return padded.reshape(self.heads * self.head_size, -1)

    def _pad_inputs(self, weight: Any) -> np.ndarray:
        """Pad the inputs of each head: D×(H·Dh) -> D×(H·Dp)."""
        x = plain(weight).reshape(-1, self.heads, self.own_size)
        padded = np.zeros((len(x), self.heads, self.head_size), np.float32)
        padded[:, :, : self.own_size] = x
        return padded.reshape(len(x), -1)

    def _map(self, layer: int, which: MapOf, weight: Any, bias: Any) -> None:
        where, shape = (self.address, layer, which), (*weight.shape, FORMS[self.form])
        if self.shelf is not None and self.shelf.reads:
            library().paradec_stack_map_at(*where, self.shelf.place(*weight.shape), *shape)
            return
        weight, bias = plain(weight), plain(bias)
        check(library().paradec_stack_map(*where, address_of(weight), address_of(bias), *shape))
        if self.shelf is not None:
            room = self.shelf.room(*weight.shape)
            library().paradec_stack_map_write(*where, room)
            self.shelf.keep(room)

    def _norm(self, layer: int, which: NormOf | NormOfStack, norm: Any) -> None:
        weight, bias = plain(norm.weight), plain(norm.bias)
        check(
            library().paradec_stack_norm(
                self.address, layer, which, address_of(weight), address_of(bias), norm.eps
            )
        )


def why_not(layers: Sequence[Any]) -> str | None:
    """Say why native passes do not know these layers, or return None."""
    if not layers:
        return "it has no layers"
    for layer in layers:
        if activation_name(layer.feed_forward.activation) not in ACTIVATIONS:
            return "its activation has no native form"
    return None


def plain(weight: Any) -> np.ndarray:
    """Return a weight in fp32, its numbers one behind the other."""
    if hasattr(weight, "detach"):  # torch's
        if weight.is_meta:  # packed in a file: only its size is asked for
            return np.broadcast_to(np.float32(0), tuple(weight.shape))
        weight = weight.detach()
    return np.ascontiguousarray(weight, np.float32)


def address_of(array: np.ndarray | None) -> int | None:
    """Return where an array's numbers lie; None: there is no array."""
    return None if array is None else array.ctypes.data


def check(status: int) -> None:
    """Raise a MemoryError if the library says that memory is short."""
    if status != 0:
        raise MemoryError("no room for a native pass")
