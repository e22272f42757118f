"""Stand-ins for what fairseq imports, and nobody calls."""

import contextlib
import functools
import importlib
import logging
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from hydra.core.config_store import ConfigStore

#: Packages that fairseq imports for a score each of two tasks, with the modules that it takes.
_PACKAGES = {"sklearn": "sklearn.metrics", "scipy": "scipy.stats"}


class _Deferred(ModuleType):
    """A stand-in for a module: each of its names is a function that imports it when called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return functools.partial(_call, self.__name__, name)


def _call(module: str, name: str, *args: Any, **kwargs: Any) -> Any:
    """Call a function of the module itself."""
    return getattr(importlib.import_module(module), name)(*args, **kwargs)


class _LaterStore(ConfigStore):
    """Hydra's store of configurations, which makes what it is given when somebody first looks.

    fairseq stores those of its 110 models, tasks and criterions while it is imported: a quarter of
    a second. Training and fairseq-generate look, a translator does not.
    """

    waiting: list[tuple[tuple[Any, ...], dict[str, Any]]]

    def store(self, *args: Any, **kwargs: Any) -> None:
        """Keep a configuration for later."""
        self.waiting.append((args, kwargs))

    def _open(self, path: str) -> Any:
        """Look for a configuration or a group: all of hydra's reads do so here."""
        waiting, self.waiting = self.waiting, []
        for args, kwargs in waiting:
            super().store(*args, **kwargs)
        return super()._open(path)


@contextlib.contextmanager
def without_unused() -> Iterator[None]:
    """Let the body import fairseq without what nobody calls.

    Fault: fairseq 0.12 imports scikit-learn and SciPy for scores of ``sentence_prediction`` and
    ``audio_classification``. Both still compute them. The stand-ins are in ``sys.modules`` only
    while fairseq is imported. It also imports pyarrow for ``plasma``, which pyarrow has not had
    since version 12: fairseq is told so at once. Its debugger, which no part of it calls, makes a
    lock that needs a /dev/shm in which this user may write. Its configurations wait
    (``_LaterStore``). It logs a request for tensorboardX.
    """
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
    store = ConfigStore.instance()
    if type(store) is ConfigStore:
        store.waiting = []
        store.__class__ = _LaterStore
    import torch  # noqa: F401  (it looks for SciPy, too)

    placed: dict[str, ModuleType | None] = {"fairseq.pdb": _Deferred("fairseq.pdb")}
    for package, taken in _PACKAGES.items():
        if package not in sys.modules:
            placed |= {package: _Deferred(package), taken: _Deferred(taken)}
            setattr(placed[package], taken.rpartition(".")[2], placed[taken])
    if "pyarrow" not in sys.modules:
        placed["pyarrow"] = None  # an ImportError, which fairseq expects
    sys.modules.update(placed)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name, module in placed.items():
            if sys.modules.get(name, ...) is module:
                del sys.modules[name]
