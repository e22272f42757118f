"""Weights of an encoder or a decoder, packed for native passes."""

import ctypes
import functools
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..known import activation_function
from ..layers import DecoderLayer, EncoderLayer
from ..weights import Norm
from .library import Heads, MapOf, NormOf, NormOfStack, library
from .shelf import Shelf

#: How weights are kept: csrc's ``Form``.
FORMS = {"fp32": 0, "bf16": 1, "int8": 2, "int4": 3}

#: The dtype of the weights by form.
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8, "int4": torch.int8}


@functools.cache
def activations() -> dict[Any, int]:
    """Return csrc's ``Activation`` by fairseq's function."""
    names = ("linear", "relu", "gelu", "gelu_accurate", "tanh")
    return {activation_function(name): number for number, name in enumerate(names)} | {F.silu: 5}


class NativeMap:
    """A linear map with packed weights; its products are fp32 in and out.

    Args:
        weight: O×I.
        bias: O, or None.
        form: a key of ``FORMS``.
        shelf: of a file that holds the packed map, or that is being written; None: no file.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, form: str, shelf: Shelf | None = None
    ) -> None:
        self.outputs, self.inputs = weight.shape
        self.form, self.shelf = form, shelf  # a mapped file lives as long as its maps
        if shelf is not None and shelf.reads:
            at = shelf.place(*weight.shape)
            self.address = library().paradec_map_at(at, *weight.shape, FORMS[form])
        else:
            weight, bias = _plain(weight), None if bias is None else _plain(bias)
            self.address = library().paradec_map_new(
                weight.data_ptr(), address_of(bias), *weight.shape, FORMS[form]
            )
        if self.address is None:
            raise MemoryError("no room for packed weights")
        weakref.finalize(self, library().paradec_map_free, self.address).atexit = False
        if shelf is not None and not shelf.reads:
            room = shelf.room(*weight.shape)
            library().paradec_map_write(self.address, room)
            shelf.keep(room)

    @property
    def dtype(self) -> torch.dtype:
        """Of the weight, as it is kept."""
        return DTYPES[self.form]

    def __call__(self, x: Tensor, out: Tensor | None = None, activation: int = 0) -> Tensor:
        """Map the last dimension, which lies densely; the same is true of ``out``, if given.

        Args:
            x: ...×I, rows at one distance.
            out: ...×O, rows at one distance.
            activation: csrc's ``Activation``.
        """
        if out is None:
            x = x.contiguous()
            out = torch.empty(*x.shape[:-1], self.outputs)
        check(
            library().paradec_map(
                self.address,
                x.data_ptr(),
                x.stride(-2),
                x.shape[:-1].numel(),
                out.data_ptr(),
                out.stride(-2),
                activation,
                torch.get_num_threads(),
            )
        )
        return out


class NativeHeads:
    """Prediction heads by native products; called like ``models.heads.BlockHeads``."""

    def __init__(self, heads: Any, form: str) -> None:
        self.count = len(heads.learned)
        self.first = heads.block_size - self.count  # 1 if head 0 is the identity
        self.seen = heads.seen
        self.activation = activations()[heads.activation]
        self.inner = NativeMap(heads.inner.weight, heads.inner.bias, form)
        # One map of all hidden units, or one a head of its own.
        outer = [heads.outer.flatten(0, 1)] if heads.is_dense else list(heads.outer)
        biases = [heads.bias.flatten()] if heads.is_dense else list(heads.bias)
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
        self, states: Tensor, heads: Sequence[int], following: Tensor | None = None
    ) -> Tensor:
        """Compute the outputs of learned heads in a row, B×D -> B×N×D; see BlockHeads."""
        inputs = states if following is None else torch.cat((states, following), dim=1)
        hidden = self.inner(inputs, activation=self.activation)  # B×W
        outputs = torch.empty(len(states), self.count, states.size(1))
        parts = [(hidden, outputs.flatten(1))]
        if len(self.outer) > 1:
            parts = list(zip(hidden.chunk(self.count, dim=1), outputs.unbind(1), strict=True))
        for outer, (x, y) in zip(self.outer, parts, strict=True):
            outer(x, y)
        outputs = outputs[:, heads[0] - self.first : heads[-1] + 1 - self.first]
        return outputs.add_(states[:, None])


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
        layers: Sequence[EncoderLayer | DecoderLayer],
        embedding: Tensor,
        scale: float,
        positions: Tensor | None,
        embedding_norm: Norm | None,
        final_norm: Norm | None,
        form: str,
        shelf: Shelf | None = None,
    ) -> None:
        self.form, self.shelf = form, shelf
        self.dim, self.heads = embedding.size(1), layers[0].attention.heads
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
        self._vectors = vectors = _plain(embedding)  # the library reads them in place
        table = None if positions is None else _plain(positions)
        check(
            library().paradec_stack_tables(
                self.address,
                vectors.data_ptr(),
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

    def _add(self, index: int, layer: EncoderLayer | DecoderLayer) -> None:
        """Pack one layer."""
        # Gathered plainly, all maps are Linear.
        attention: Any = layer.attention
        feed: Any = layer.feed_forward
        qkv = attention.qkv
        parts = [self.pad_heads(w) for w in qkv.weight.chunk(3)]
        biases = [self.pad_heads(b) for b in qkv.bias.chunk(3)]
        self._map(index, MapOf.QKV, torch.cat(parts), torch.cat(biases))
        self._map(index, MapOf.SELF_OUT, self._pad_inputs(attention.out.weight), attention.out.bias)
        self._norm(index, NormOf.SELF, attention.norm)
        if isinstance(layer, DecoderLayer):
            source: Any = layer.source
            query = self.pad_heads(source.query.weight), self.pad_heads(source.query.bias)
            self._map(index, MapOf.CROSS_QUERY, *query)
            out = self._pad_inputs(source.out.weight), source.out.bias
            self._map(index, MapOf.CROSS_OUT, *out)
            self._norm(index, NormOf.CROSS, source.norm)
        self._map(index, MapOf.FEED_IN, feed.fc1.weight, feed.fc1.bias)
        self._map(index, MapOf.FEED_OUT, feed.fc2.weight, feed.fc2.bias)
        self._norm(index, NormOf.FEED, feed.norm)
        library().paradec_stack_layer(
            self.address, index, attention.pre_norm, activations()[feed.activation]
        )

    def pad_heads(self, x: Tensor) -> Tensor:
        """Pad the outputs of each head: (H·Dh)×... -> (H·Dp)×..."""
        x = x.view(self.heads, self.own_size, -1)
        padded = F.pad(x, (0, 0, 0, self.head_size - self.own_size))
        return padded.reshape(self.heads * self.head_size, -1)

    def _pad_inputs(self, weight: Tensor) -> Tensor:
        """Pad the inputs of each head: D×(H·Dh) -> D×(H·Dp)."""
        x = weight.view(-1, self.heads, self.own_size)
        return F.pad(x, (0, self.head_size - self.own_size)).flatten(1)

    def _map(self, layer: int, which: MapOf, weight: Tensor, bias: Tensor) -> None:
        where, shape = (self.address, layer, which), (*weight.shape, FORMS[self.form])
        if self.shelf is not None and self.shelf.reads:
            library().paradec_stack_map_at(*where, self.shelf.place(*weight.shape), *shape)
            return
        weight, bias = _plain(weight), _plain(bias)
        check(library().paradec_stack_map(*where, weight.data_ptr(), bias.data_ptr(), *shape))
        if self.shelf is not None:
            room = self.shelf.room(*weight.shape)
            library().paradec_stack_map_write(*where, room)
            self.shelf.keep(room)

    def _norm(self, layer: int, which: NormOf | NormOfStack, norm: Norm) -> None:
        weight, bias = _plain(norm.weight), _plain(norm.bias)
        check(
            library().paradec_stack_norm(
                self.address, layer, which, weight.data_ptr(), bias.data_ptr(), norm.eps
            )
        )


def why_not(layers: Sequence[EncoderLayer | DecoderLayer]) -> str | None:
    """Say why native passes do not know these layers, or return None."""
    if not layers:
        return "it has no layers"
    for layer in layers:
        if layer.feed_forward.activation not in activations():
            return "its activation has no native form"
    return None


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().float().contiguous()


def address_of(tensor: Tensor | None) -> int | None:
    """Return where a tensor's numbers lie; None: there is no tensor."""
    return None if tensor is None else tensor.data_ptr()


def check(status: int) -> None:
    """Raise a MemoryError if the library says that memory is short."""
    if status != 0:
        raise MemoryError("no room for a native pass")
