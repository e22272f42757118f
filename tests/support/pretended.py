"""A pretended CUDA device, for machines without one.

Inside ``pretended()`` torch says that there is a CUDA device. Tensors that are made or moved there
say that they are on it, and compute on the CPU. What CUDA refuses is refused: an operation on
tensors of both devices, ``numpy()`` without a copy. What is not pretended: CUDA's rounding, its
order of sums, graphs, streams, speed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

CUDA = torch.device("cuda:0")

#: Operations that may have tensors of both devices: copies from one to the other.
COPIES = ("copy_", "_to_copy", "_copy_from")
#: Operations that may have indices on the CPU for a tensor on the device.
INDEXED = ("index", "index_put_", "_index_put_impl_")

#: What torch says where a function of its C++ asks for the part that it has with CUDA alone.
MISSING = ("not linked with support for cuda", "arguments from the 'CUDA' backend")


class There(Tensor):
    """A tensor that says it is on the device.

    Attributes:
        here: what it holds, on the CPU.
    """

    here: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, here: Tensor) -> "There":
        found = torch.Tensor._make_wrapper_subclass(
            cls,
            here.size(),
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            device="meta",
            dispatch_device=True,
        )
        found.here = here
        return found

    def __repr__(self, **kwargs: Any) -> str:
        return f"There({self.here})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute an operation on the CPU, if all of its tensors are on the device."""
        if func is torch.ops.prim.device.default:
            return CUDA
        kwargs = dict(kwargs or {})
        name = func.overloadpacket.__name__
        indices = args[1] if name in INDEXED else ()
        checked = [args[0], *args[2:], *kwargs.values()] if indices else [args, kwargs]
        if name not in COPIES:
            refuse_both(name, checked, args)
        wanted = kwargs.get("device")
        if wanted is not None:
            kwargs["device"] = "cpu"
        out = computed(func, args, kwargs)
        return bare(out) if wanted is not None and not is_there(wanted) else out


def refuse_both(name: str, checked: Any, args: Any) -> None:
    """Raise as CUDA does for tensors of both devices; those without dimensions may be mixed."""
    kinds = {
        isinstance(t, There) for t in tree_leaves(checked) if isinstance(t, Tensor) and t.dim()
    }
    if kinds == {True, False} or kinds == {False} and isinstance(args[0], There):
        shapes = [(t.device.type, *t.shape) for t in tree_leaves(args) if isinstance(t, Tensor)]
        raise RuntimeError(f"{name}: expected all tensors to be on the same device: {shapes}")


def bare(values: Any) -> Any:
    """Return values with what their tensors hold."""
    return tree_map(lambda value: value.here if isinstance(value, There) else value, values)


def computed(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function of tensors on the device; a result that was given is the given tensor."""
    given = {id(bare(value)): value for value in tree_leaves((args, kwargs))}

    def there(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return given[id(value)] if id(value) in given else There(value)

    return tree_map(there, func(*bare(args), **bare(kwargs)))


def is_there(device: Any) -> bool:
    """Whether a device, or one of its name, is the pretended one."""
    return device is not None and torch.device(device).type == "cuda"


def moved(tensor: Tensor, device: Any, dtype: torch.dtype | None) -> Tensor:
    """Return a tensor there, or on the CPU: a copy, if it is not there."""
    was = isinstance(tensor, There)
    here, wanted = bare(tensor), was if device is None else is_there(device)
    if dtype not in (None, here.dtype):
        here = here.to(dtype)
    elif wanted == was:
        return tensor
    else:
        here = here.clone()
    return There(here) if wanted else here


class Device(TorchFunctionMode):
    """What functions of torch do that name a device, or that torch has outside its operations."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        self.property = getattr(func, "__self__", None)
        first = args[0] if args else None
        if isinstance(first, Tensor):
            own = getattr(self, f"on_{name.strip('_')}", None)
            found = NotImplemented if own is None else own(*args, **kwargs)
            if found is not NotImplemented:
                return found
        elif is_there(kwargs.get("device")) and name != "_parse_to":
            return There(func(*args, **kwargs | {"device": "cpu"}))
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            if not any(words in str(error) for words in MISSING):
                raise
        refuse_both(name, () if name in COPIES else (args, kwargs), args)
        return computed(func, args, kwargs)

    def on_to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        other = kwargs.pop("other", None)
        if args and isinstance(args[0], Tensor):
            other, *args = args
        if other is not None:
            return moved(tensor, other.device, other.dtype)
        device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
        return moved(tensor, device, dtype)

    def on_type_as(self, tensor: Tensor, other: Tensor) -> Tensor:
        return moved(tensor, other.device, other.dtype)

    def on_cuda(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return moved(tensor, CUDA, None)

    def on_cpu(self, tensor: Tensor) -> Tensor:
        return moved(tensor, "cpu", None)

    def on_as_tensor(self, tensor: Tensor, dtype: Any = None, device: Any = None) -> Tensor:
        return moved(tensor, device, dtype)

    def on_new_tensor(self, tensor: Tensor, values: Any, dtype: Any = None) -> Any:
        made = torch.tensor(bare(values), dtype=dtype or tensor.dtype)
        return There(made) if isinstance(tensor, There) else made

    def on_numpy(self, tensor: Tensor, *, force: bool = False) -> Any:
        if isinstance(tensor, There) and not force:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        return bare(tensor).numpy(force=force)

    def on_array(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        return self.on_numpy(tensor) if isinstance(tensor, There) else NotImplemented

    def on_tolist(self, tensor: Tensor) -> Any:
        return bare(tensor).tolist()

    def on_data_ptr(self, tensor: Tensor) -> int:
        return bare(tensor).data_ptr()

    def on_get(self, tensor: Tensor, *args: Any) -> Any:
        """``data``; other properties as torch has them."""
        if self.property is Tensor.data and isinstance(tensor, There):
            return There(tensor.here.data)
        return NotImplemented

    def on_set(self, tensor: Tensor, value: Any) -> Any:
        """``data``, after which torch alone would know the new tensor, and not what it holds."""
        if self.property is Tensor.data and isinstance(tensor, There):
            tensor.here = bare(value)
        return NotImplemented

    def on_getitem(self, tensor: Tensor, index: Any) -> Any:
        if isinstance(tensor, There):
            return There(tensor.here[bare(index)])
        if any(isinstance(part, There) for part in tree_leaves(index)):
            raise RuntimeError("indices on cuda of a tensor on the CPU")
        return NotImplemented

    def on_setitem(self, tensor: Tensor, index: Any, value: Any) -> None:
        parts = [part for part in tree_leaves(index) if isinstance(part, Tensor)]
        if parts:  # without, it is a copy
            refuse_both("index_put_", [tensor, value], [tensor, value])
        if not isinstance(tensor, There) and any(isinstance(part, There) for part in parts):
            raise RuntimeError("indices on cuda of a tensor on the CPU")
        bare(tensor)[bare(index)] = bare(value)


@contextmanager
def pretended() -> Iterator[None]:
    """Pretend that there is a CUDA device."""
    with pytest.MonkeyPatch.context() as patch, Device():
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: 1)
        patch.setattr(torch.cuda, "current_device", lambda: CUDA)
        patch.setattr(torch.cuda, "synchronize", lambda *args: None)
        patch.setattr(torch.cuda, "get_device_name", lambda *args: "pretended")
        # What torch wraps of tensors in inference mode cannot be viewed.
        patch.setattr(
            torch, "inference_mode", lambda on=True: torch.no_grad() if on else nullcontext()
        )
        yield
