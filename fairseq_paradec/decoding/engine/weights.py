"""Linear maps and norms, in the forms in which a pass over a chunk wants their weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Norm(NamedTuple):
    """A layer norm's weights."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return torch.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class Linear(NamedTuple):
    """A linear map's weights; without the overhead of calling a module."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """Map the last dimension."""
        return F.linear(x, self.weight, self.bias)


class PackedLinear:
    """A linear map in fp32 or bfloat16 on a CPU, its weight laid out once as oneDNN wants it.

    In bfloat16, torch's own ``F.linear`` lays it out anew in every call, which takes as long as the
    product. In fp32 it is the form for several rows and weights that do not fit into the cache; one
    row is served as well by the weight as it is, and packing waits for the first chunk.

    Args:
        weight: O×I.
        bias: O, or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.plain = Linear(weight, bias)
        self.packed: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Map the last dimension."""
        if x.dtype == torch.float32 and x.numel() == x.size(-1):
            return self.plain(x)
        if self.packed is None:
            weight = self.plain.weight.contiguous()
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.packed, self.plain.bias, "none", [], ""
        )
        return out


class Int8Linear:
    """A linear map with weights in 8 bits, a scale for each output; inputs are quantised as met.

    The kernels are torch's own (fbgemm); what goes in and comes out is fp32.

    Args:
        weight: O×I.
        bias: O, or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        weight = weight.float().contiguous()
        scales = weight.abs().amax(dim=1).clamp(min=1e-12).double() / 127
        zeros = torch.zeros(len(scales), dtype=torch.long)
        whole = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(
            whole, None if bias is None else bias.float()
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Map the last dimension."""
        out: Tensor = torch.ops.quantized.linear_dynamic(x, self.packed, True)
        return out


# How a weight lies in memory; see join.
Form = Literal["plain", "columns", "packed", "int8"]
Map = Linear | PackedLinear | Int8Linear


def gather_norm(norm: Any) -> Norm:
    """Take a layer norm's weights."""
    return Norm(norm.weight.detach(), norm.bias.detach(), norm.eps)


def join(linears: Sequence[Any], form: Form = "plain") -> Map:
    """Make one linear map of several that have the same input.

    Args:
        linears: modules with weight and bias.
        form: how the weight is kept. ``plain``: as it is; ``columns``: a copy in which a column of
            it lies together in memory (in fp32 on a CPU, products of the few rows of a chunk with
            weights in the cache then take about half as long); ``packed``: see PackedLinear;
            ``int8``: see Int8Linear.
    """
    weights = [linear.weight.detach() for linear in linears]
    weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    return make_map(weight, torch.cat(biases) if biases else None, form)


def make_map(weight: Tensor, bias: Tensor | None, form: Form) -> Map:
    """Make a linear map of its weight, O×I, and bias; see join for its forms."""
    if form == "packed":
        return PackedLinear(weight, bias)
    if form == "int8":
        return Int8Linear(weight, bias)
    if form == "columns":
        weight = weight.t().contiguous().t()
    return Linear(weight, bias)


def compiles(form: Form, dtype: torch.dtype, rows: int) -> bool:
    """Say whether torch.compile can look into products of weights in this form.

    What libraries have laid out is closed to it, and a call from compiled code costs more than what
    compiling saves.

    Args:
        form: of the weights.
        dtype: of the states.
        rows: of what is multiplied.
    """
    return form in ("plain", "columns") or (form == "packed" and rows == 1 and dtype.itemsize == 4)


# Weights of more bytes than this are read from memory in every pass.
CACHED_BYTES = 16 * 2**20


def best_form(
    dtype: torch.dtype, device: torch.device, lasting: bool = True, count: int = 0
) -> Form:
    """Return the form in which weights serve chunks best, without a change of their values.

    Args:
        dtype: of the weights.
        device: where they are.
        lasting: whether they will not change; otherwise a copy is not worth its time.
        count: how many numbers a pass reads.
    """
    if not lasting or device.type != "cpu":
        return "plain"
    packs = torch.backends.mkldnn.is_available()
    if dtype == torch.bfloat16 and packs and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "packed"
    if dtype == torch.float32 and packs and count * dtype.itemsize > CACHED_BYTES:
        return "packed"
    return "columns" if dtype in (torch.float32, torch.float64) else "plain"
