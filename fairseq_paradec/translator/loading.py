"""The models of a folder: read by the core, or loaded by fairseq where something needs torch."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config import DecodingConfig, flag
from ..decoding.stock_search import check_installed
from ..engine.native.library import NativeUnavailable, library
from ..engine.native.packing import offer, why_not
from ..engine.native.stack import FORMS
from ..errors import UsageError, option_error
from ..extras import EXTRAS, is_installed
from ..extras import named as named_extra
from ..methods.configure import for_models
from ..model.dictionary import Dictionary
from ..model.model import Model
from ..model.settings import UnknownModel
from ..model_facts import is_heads
from ..registry import ANY, BLOCK_NAT, HEADS, METHODS, STOCK_DECODINGS, Helper
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
        with named_extra(self.flag):
            from ..plugin.compat.loading import named
            from ..plugin.tasks import packed_only
            from ..plugin.tasks.loading import load_paths
            from ..plugin.tasks.translation import ParallelTranslationTask
        from ..engine.settings import usable_device
        from ..engine.torch import views

        folder, device = self.folder, usable_device(self.device)
        model = str(self.path / folder.model)
        pair = {"source_lang": folder.source, "target_lang": folder.target}
        with named(self.flag):
            load = packed_only.load if folder.packed_only else load_paths
            models, task, kind = load([model], data=str(self.path), **pair)
        if not isinstance(task, ParallelTranslationTask):
            given = f"{model}, of --task {kind}"
            raise option_error(self.flag, given, "a model of --task translation")
        if not folder.packed_only:
            for loaded in models:
                loaded.to(device)
        elif device != "cpu":
            allowed = "cpu, for this folder's weights are packed alone"
            raise option_error("--device", self.device, allowed)
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
            raise UnknownModel(f"{path}: {reason}")
        return model

    def drafter(self, path: str) -> Model:
        """Return the drafter, or heads, of a path, read once."""
        if path not in self.drafters:
            self.drafters[path] = self._read(path, self.model)
        return self.drafters[path]

    def beyond(self, config: DecodingConfig) -> str | None:
        """Return the option for which fairseq has to load the model; None: passes are native.

        Raises:
            UsageError: it is a drafter that the method does not take, and fairseq, which may know
                it, is not installed.
        """
        own = for_models(config, [self.model])
        if own.decoding in STOCK_DECODINGS:
            return f"--decoding {own.decoding}"
        for name in ("audit", "sampling"):
            if getattr(own, name):
                return flag(name)
        if own.engine == "torch":
            return "--engine torch"
        if own.latency_budget_ms is not None:  # fairseq's search is a candidate
            return f"--latency-budget-ms {own.latency_budget_ms}"
        for name in ("engine_dtype", "drafter_dtype"):
            if (dtype := getattr(own, name) or "fp32") not in FORMS:
                return f"{flag(name)} {dtype}"
        if own.drafter_path is None:
            return None
        refusal = self._refusal(own.drafter_path, METHODS[own.decoding].helper)
        if refusal is not None and not is_installed("fairseq"):
            raise refusal
        return None if refusal is None else f"--drafter-path {own.drafter_path}"

    def _refusal(self, path: str, helper: Helper | None) -> UsageError | None:
        """Return why a drafter is none that a method takes; ``helper``: what it has to be."""
        try:
            drafter = self.drafter(path)
        except OSError as error:
            allowed = f"a checkpoint that can be read ({error.strerror})"
            return option_error("--drafter-path", path, allowed)
        except UsageError as error:
            return _without_fairseq(error)
        if helper is None or not _fits(drafter, helper.kind):
            wanted = helper.wanted if helper else "a method that takes one"
            allowed = wanted or "heads, of --arch blockwise_transformer"
            return option_error("--drafter-path", path, allowed)
        needed, own = (model.max_positions()[0] for model in (self.model, drafter))
        if is_heads(drafter) or own >= needed:
            return None
        allowed = f"a drafter that takes {needed} source tokens, as the verifier does"
        return option_error("--drafter-path", path, f"{allowed}; this takes {own}")

    def load(self, path: str, kind: str, models: Sequence[Any]) -> Model:
        """Return a drafter of a kind; see ``build_decoder``."""
        return self.drafter(path)


def _fits(drafter: Model, kind: str) -> bool:
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
        UsageError: fairseq has to load it, and is not installed.
    """
    if device != "cpu":
        check_installed(f"--device {device}")
        return None
    if folder.packed_only:
        check_installed(f"{path}, whose weights are packed alone,")
        return None
    try:
        return CoreModels(path, folder, *words)
    except (UsageError, NativeUnavailable, OSError) as error:
        if is_installed("fairseq"):
            return None
        raise _without_fairseq(error) from error


def _without_fairseq(error: Exception) -> UsageError:
    """Return the error of a file that the core cannot read, where fairseq is not installed."""
    if isinstance(error, UnknownModel | NativeUnavailable):
        return UsageError(
            f"{error}; torch computes what native passes do not: install "
            f"fairseq_paradec[{EXTRAS['fairseq']}]"
        )
    return error if isinstance(error, UsageError) else UsageError(str(error))
