"""The models of a folder: read by the core, or loaded by fairseq where something needs torch."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config import DecodingConfig
from ..engine.native.library import NativeUnavailable, library
from ..engine.native.packing import offer, why_not
from ..engine.native.stack import FORMS
from ..errors import UsageError, option_error
from ..extras import is_installed
from ..methods.configure import for_models, native_search
from ..model.dictionary import Dictionary
from ..model.model import Model
from ..model_facts import is_heads
from ..registry import ANY, BLOCK_NAT, HEADS, METHODS, STOCK_DECODINGS
from .model_folder import ModelFolder


class Modules:
    """fairseq's modules of a folder and its task, loaded when they are first asked for.

    Args:
        path: the folder.
        folder: what it holds.
        device: ``cpu`` or ``cuda``.
        flag: the flag that names the folder or its model, for errors.
    """

    def __init__(self, path: Path, folder: ModelFolder, device: str, flag: str) -> None:
        self.path, self.folder, self.device, self.flag = path, folder, device, flag
        self._lock = threading.RLock()
        self._loaded: tuple[list[Any], Any] | None = None

    def get(self) -> tuple[list[Any], Any]:
        """Return the models, and the task.

        Raises:
            UsageError: fairseq is not installed, or the files do not fit each other.
        """
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def _load(self) -> tuple[list[Any], Any]:
        """Load them; see ``get``."""
        from ..engine.settings import usable_device
        from ..engine.torch import views
        from ..extras import named as named_extra

        with named_extra(self.flag):
            from ..plugin.compat.loading import named
            from ..plugin.tasks.loading import load_paths
            from ..plugin.tasks.translation import ParallelTranslationTask

        folder, device = self.folder, usable_device(self.device)
        model = str(self.path / folder.model)
        pair = {"source_lang": folder.source, "target_lang": folder.target}
        with named(self.flag):
            models, task, kind = load_paths([model], data=str(self.path), **pair)
        if not isinstance(task, ParallelTranslationTask):
            given = f"{model}, of --task {kind}"
            raise option_error(self.flag, given, "a model of --task translation")
        for loaded in models:
            loaded.to(device)
        if device == "cpu":
            for form, name in folder.packed.items():
                views.offer(models[0], form, self.path / name)
        if folder.drafter is not None:
            task.drafters.load(str(self.path / folder.drafter), ANY, models)
        return models, task


class CoreModels:
    """A folder's model and its drafters, read without torch.

    Args:
        path: the folder.
        folder: what it holds.
        sources: the source vocabulary.
        targets: the target vocabulary.

    Raises:
        UsageError: a file is damaged, or of a model that native passes do not know.
        NativeUnavailable: there is no native library.
    """

    def __init__(
        self, path: Path, folder: ModelFolder, sources: Dictionary, targets: Dictionary
    ) -> None:
        library()
        self.words = sources, targets
        self.model = self._read(str(path / folder.model))
        self.drafters: dict[str, Model] = {}
        for form, name in folder.packed.items():
            offer(self.model, form, path / name)
        if folder.drafter is not None:
            self.drafter(str(path / folder.drafter))

    def _read(self, path: str, base: Model | None = None) -> Model:
        """Read a model that native passes know."""
        model = Model.read(path, *self.words, base=base)
        model.lasts = True
        reason = "its softmax is adaptive" if model.architecture.cutoffs else why_not(model)
        if reason is not None:
            raise UsageError(f"{path}: {reason}")
        return model

    def drafter(self, path: str) -> Model:
        """Return the drafter, or heads, of a path, read once."""
        if path not in self.drafters:
            self.drafters[path] = self._read(path, self.model)
        return self.drafters[path]

    def config_of(self, config: DecodingConfig) -> DecodingConfig | None:
        """Return by what the core decodes; None: it needs torch or fairseq.

        Of weights that are packed alone the core builds, or refuses, every decoder.
        """
        own = self._native(config)
        return config if own is None and self.model.is_packed_only else own

    def _native(self, config: DecodingConfig) -> DecodingConfig | None:
        """Return by what native passes decode; None: there is more to do.

        ``--decoding beam`` is fairseq's search by native passes, unless it has rules of its own.
        """
        own: DecodingConfig | None = for_models(config, [self.model])
        if config.audit or config.engine == "torch":
            return None
        if own is not None and own.decoding in STOCK_DECODINGS:
            own = native_search(own)
        if own is None or own.sampling:
            return None
        if own.latency_budget_ms is not None:  # fairseq's search is a candidate
            return None
        if not {own.engine_dtype or "fp32", own.drafter_dtype or "fp32"} <= FORMS.keys():
            return None
        return own if own.drafter_path is None or self._drafts(own) else None

    def _drafts(self, config: DecodingConfig) -> bool:
        """Return whether the drafter is one that the method takes."""
        assert config.drafter_path is not None
        try:
            drafter = self.drafter(config.drafter_path)
        except (UsageError, OSError):
            return False
        if not _fits(drafter, METHODS[config.decoding].drafter):
            return False
        return is_heads(drafter) or drafter.max_positions()[0] >= self.model.max_positions()[0]

    def load(self, path: str, kind: str, models: Sequence[Any]) -> Model:
        """Return a drafter of a kind; see ``build_decoder``."""
        return self.drafter(path)


def _fits(drafter: Model, kind: str | None) -> bool:
    """Return whether a drafter is of the kind that a method takes; see the registry."""
    architecture = drafter.architecture
    if kind == BLOCK_NAT:
        return architecture.block is not None
    if kind == HEADS:
        return is_heads(drafter)
    special = architecture.block or architecture.heads or architecture.order
    return kind == ANY or not special


def read_core(
    path: Path, folder: ModelFolder, device: str, words: tuple[Dictionary, Dictionary]
) -> CoreModels | None:
    """Read a folder without torch; None: torch has to compute, or fairseq says what is wrong.

    Raises:
        UsageError: it cannot be read, and fairseq cannot read it, or is not installed.
    """
    if device != "cpu":
        if folder.packed_only:
            allowed = "cpu, for this folder's weights are packed alone"
            raise option_error("--device", device, allowed)
        return None
    try:
        return CoreModels(path, folder, *words)
    except (UsageError, NativeUnavailable, OSError) as error:
        if is_installed("fairseq") and not folder.packed_only:
            return None
        raise error if isinstance(error, UsageError) else UsageError(str(error)) from error
