"""Linear maps and norms, with weights in the memory layout that suits passes over chunks."""

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


class SquareNorm(NamedTuple):
    """The weights of a norm by the root of the mean square."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        wide = x.float() if x.dtype != torch.float64 else x
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * scaled.to(x.dtype)


class Linear(NamedTuple):
    """A linear map's weights, without the overhead of a module call."""

    weight: Tensor
    bias: Tensor | None

    @property
    def dtype(self) -> torch.dtype:
        """Of the weight, as it is kept."""
        return self.weight.dtype

    def __call__(self, x: Tensor) -> Tensor:
        """Map the last dimension."""
        return F.linear(x, self.weight, self.bias)


class PackedLinear:
    """A linear map in fp32 or bfloat16 on a CPU, with its weight packed once for oneDNN.

    In bfloat16, torch's own ``F.linear`` packs the weight in every call, which takes as long as the
    product. In fp32, packing speeds up products of several rows with weights that exceed the CPU
    cache. A product of one row is as fast with the plain weight, so the weight is packed at the
    first product of several rows.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.plain = Linear(weight, bias)
        self.packed: Tensor | None = None
        self.dtype = weight.dtype

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
    """A linear map with 8-bit weights, one scale per output; inputs are quantised dynamically.

    The kernels are torch's own (fbgemm); inputs and outputs are fp32.
    """

    dtype = torch.int8

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


# The memory layout of a weight; see join.
Form = Literal["plain", "columns", "packed", "int8"]
Map = Linear | PackedLinear | Int8Linear


def gather_norm(norm: Any) -> Norm:
    """Gather a layer norm's weights."""
    return Norm(norm.weight.detach(), norm.bias.detach(), norm.eps)


def join(linears: Sequence[Any], form: Form = "plain") -> Map:
    """Make one linear map of several that have the same input.

    Args:
        linears: modules with weight and bias.
        form: the memory layout of the weight. ``plain``: the module's own; ``columns``: a
            column-major copy (in fp32 on a CPU, products of a chunk's few rows with weights in the
            CPU cache then take about half as long); ``packed``: see PackedLinear; ``int8``: see
            Int8Linear.
    """
    weights = [linear.weight.detach() for linear in linears]
    weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    return make_map(weight, torch.cat(biases) if biases else None, form)


def make_map(weight: Tensor, bias: Tensor | None, form: Form) -> Map:
    """Make a linear map from its weight, O×I, and bias; see join for the forms."""
    if form == "packed":
        return PackedLinear(weight, bias)
    if form == "int8":
        return Int8Linear(weight, bias)
    if form == "columns":
        weight = weight.t().contiguous().t()
    return Linear(weight, bias)


# More bytes of weights than this do not fit into the CPU cache.
CACHED_BYTES = 16 * 2**20


def best_form(
    dtype: torch.dtype, device: torch.device, lasting: bool = True, count: int = 0
) -> Form:
    """Return the fastest form for chunks that keeps the weights' values.

    Args:
        dtype: of the weights.
        device: of the weights.
        lasting: whether the weights do not change; otherwise a copy costs more than it saves.
        count: the number of parameters that a pass reads.
    """
    if not lasting or device.type != "cpu":
        return "plain"
    packs = torch.backends.mkldnn.is_available()
    if dtype == torch.bfloat16 and packs and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "packed"
    if dtype == torch.float32 and packs and count * dtype.itemsize > CACHED_BYTES:
        return "packed"
    return "columns" if dtype in (torch.float32, torch.float64) else "plain"
