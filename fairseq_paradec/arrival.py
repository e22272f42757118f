"""Something is done as soon as fairseq has been imported, whoever imports it.

fairseq's ``--user-dir`` does nothing for a package that is imported already, so that the package
itself has to see fairseq come. The import system's lock of fairseq makes this safe among threads
that import fairseq at once, as ``register`` does: none has it before all is done. (A thread that
imports a module inside fairseq, or inside ``plugin``, holds more locks, and Python then hands
out unfinished modules.)
"""

import contextlib
import gc
import importlib.abc
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

#: The package that is waited for.
FAIRSEQ = "fairseq"


def when_fairseq_is_there(do: Callable[[], None]) -> None:
    """Do something once: now if fairseq is imported, else at the end of its import.

    The import is also faster than fairseq's own: see ``deferred``.
    """
    if sys.modules.get(FAIRSEQ) is not None:
        do()
    else:
        sys.meta_path.insert(0, _Finder(do))


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Import and load without garbage collections, which would find nothing, at each start."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextlib.contextmanager
def log_level_kept() -> Iterator[None]:
    """Import fairseq without its level of the log, INFO, in the place of the command's."""
    root = logging.getLogger()
    level = root.level
    try:
        yield
    finally:
        root.setLevel(level)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds fairseq where it is, and has it loaded by ``_Loader``."""

    def __init__(self, do: Callable[[], None]) -> None:
        self.do = do

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how fairseq is loaded; None for other modules."""
        if name != FAIRSEQ:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    """Loads fairseq as its own loader does, and does what waits for it."""

    def __init__(self, loader: importlib.abc.Loader, finder: _Finder) -> None:
        self.loader, self.finder = loader, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As fairseq's own loader."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Import fairseq; if that fails, the next import is seen, too."""
        from .deferred import without_unused

        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        with uncollected():
            with without_unused():
                self.loader.exec_module(module)
            self.finder.do()
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)
