"""Watch: notices that a model's weights have changed, in tens of microseconds, or 200."""

import ctypes
from operator import attrgetter
from typing import Any

from torch import Tensor, nn

_BYTES = 16


def keep_weights(model: nn.Module) -> None:
    """Note that nobody changes a model's weights once it decodes, so that no batch has to ask.

    To ask takes 0.2 milliseconds where the CPU's caches hold other things.
    """
    model.paradec_keeps_weights = True  # type: ignore[assignment]


def keeps_weights(model: nn.Module) -> bool:
    """Return whether nobody changes a model's weights; see ``keep_weights``."""
    return getattr(model, "paradec_keeps_weights", False)


class Watch:
    """Notices changes of a module's weights in place, without reading them all.

    torch counts changes, but not those through ``.data`` or numpy, as fairseq's optimisers make
    them; on the CPU the first bytes of each parameter show these, where they differ. A parameter
    that takes another's place in its module is not noticed.
    """

    def __init__(self, module: nn.Module) -> None:
        self.weights = [p for p in module.parameters() if p.numel() > 0]
        self.counted = [p for p in self.weights if not p.is_inference()]
        self.places: list[int] = []
        self.state: Any = None
        self.changed()

    def changed(self) -> bool:
        """Return whether the weights have changed since this was last asked, or since the start."""
        places = list(map(Tensor.data_ptr, self.weights))
        moved = places != self.places
        if moved:  # what was there before may be gone
            self.places = places
            self.starts = [_start(p) for p in self.weights if p.device.type == "cpu"]
        state = self._read()
        if not moved and state == self.state:
            return False
        self.state = state
        return True

    def _read(self) -> tuple[list[int], bytes]:
        """Return the counts of changes, and the first bytes of parameters on the CPU."""
        return list(map(attrgetter("_version"), self.counted)), b"".join(self.starts)


def _start(weight: Tensor) -> Any:
    """Return the first bytes of a weight in memory, as they are whenever they are read."""
    size = min(_BYTES, weight.numel() * weight.element_size())
    if not weight.is_contiguous():
        size = weight.element_size()
    return (ctypes.c_char * size).from_address(weight.data_ptr())


class Watched:
    """A module whose weights a scorer gathers.

    Args:
        module: in evaluation mode.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self._watch = Watch(module)
        self._kind: Any = None  # dtype, device, whether its weights last

    def look(self) -> tuple[bool, bool]:
        """Return whether weights gathered before are current; else whether passes are others."""
        weight = self.module.decoder.embed_tokens.weight
        lasting = getattr(self.module, "_is_generation_fast", False)
        kind = (weight.dtype, weight.device, lasting)
        changed = lasting and not keeps_weights(self.module) and self._watch.changed()
        if self._kind == kind and lasting and not changed:
            return True, False
        settles = changed or self._kind not in (None, kind)
        self._kind = kind
        return False, settles
