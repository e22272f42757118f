"""Names that modules had before they moved into rooms: they still import, with a warning."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

#: Old name -> new name, inside the package; a folder's covers what is in it.
MOVED = {
    "analysis": "lab.analysis",
    "compat": "plugin.compat",
    "corpus": "translator.corpus",
    "criterions": "training.criterions",
    "decoding.engine": "engine",
    "decoding.row": "row",
    "decoding.token_rules": "token_rules",
    "encoders": "plugin.encoders",
    "importing": "translator.importing",
    "measure": "lab.measure",
    "methods.model_checks": "model_checks",
    "methods.registry": "registry",
    "methods.variants": "variants",
    "model_folder": "translator.model_folder",
    "models": "plugin.models",
    "models.image_transformer": "images.image_transformer",
    "options": "config",
    "tasks": "plugin.tasks",
    "tasks.super_resolution": "images.super_resolution",
    "updates": "plugin.updates",
}


class _Moved(MetaPathFinder, Loader):
    """Finds old names; a module that was imported by one is the module itself."""

    def __init__(self, package: str) -> None:
        self.package = package
        self._specs: dict[str, ModuleSpec | None] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec of an old name; None for any other name."""
        if name.startswith(self.package + ".") and self._today(name) is not None:
            return ModuleSpec(name, self)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import the module of today."""
        new = self._today(spec.name)
        assert new is not None
        text = f"{spec.name} is {new} now; the old name goes with the next version"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        module = importlib.import_module(new)
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back, which the import by its old name replaced."""
        assert module.__spec__ is not None
        module.__spec__ = self._specs.pop(module.__spec__.name)

    def _today(self, name: str) -> str | None:
        """Return the name of today of a module; None if it did not move."""
        inside = name[len(self.package) + 1 :]
        old = inside
        while old and old not in MOVED:
            old = old.rpartition(".")[0]
        return f"{self.package}.{MOVED[old]}{inside[len(old) :]}" if old else None


def keep_old_names(package: str) -> None:
    """Let old names of the package import, whatever a user dir calls it; idempotent."""
    if not any(isinstance(one, _Moved) and one.package == package for one in sys.meta_path):
        sys.meta_path.insert(0, _Moved(package))
