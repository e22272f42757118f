"""A clock inside a decoder: the seconds spent in the parts of one generator."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from . import rounds

#: By name, a generator's part and its methods that are timed.
Parts = Mapping[str, tuple[str, Sequence[str]]]


class Clock:
    """Adds up the seconds spent in the parts of one generator.

    Args:
        generator: the methods of its parts are wrapped; what is missing takes no time.
        parts: the timed methods.
        device: ``cpu`` or ``cuda``; on ``cuda`` the clock waits for the device.
    """

    def __init__(self, generator: Any, parts: Parts, device: str = "cpu") -> None:
        self.device = device
        self.seconds = dict.fromkeys(parts, 0.0)
        self._inside = False
        for name, (part, methods) in parts.items():
            owner = getattr(generator, part, None)
            for method in filter(partial(hasattr, owner), methods):
                setattr(owner, method, self._timed(name, getattr(owner, method)))

    def restart(self) -> None:
        """Set all sums to zero."""
        self.seconds = dict.fromkeys(self.seconds, 0.0)

    def now(self) -> float:
        """Return the time after all work on the device is done."""
        return rounds.now(self.device)

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:  # one part calls another: the outer one counts
                return method(*args, **kwargs)
            self._inside, begin = True, self.now()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds[name] += self.now() - begin
                self._inside = False

        return timed
