"""The models of a folder: read by the core, or loaded by fairseq where something needs torch."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..arrival import log_level_kept
from ..config import ALL, DecodingConfig, flag
from ..decoding.helper import check_kind, check_languages, check_positions, kind_of
from ..engine.native.library import NativeUnavailable, library
from ..engine.native.packing import offer, why_not
from ..engine.native.stack import FORMS
from ..errors import UsageError, option_error
from ..extras import is_installed, named
from ..files import stamp_of
from ..methods.base import Context
from ..methods.build import build_decoder
from ..methods.configure import for_models
from ..methods.stock import OTHER_SEARCH
from ..model.dictionary import Dictionary
from ..model.model import Model
from ..model.settings import UnknownModel
from ..model.weights import stored
from ..model_checks import one_set_of_heads
from ..model_facts import class_of
from ..registry import ANY, HEADS, STOCK_DECODINGS, check_models
from .model_folder import ModelFolder

#: Held while fairseq is imported and loads a model, by one of the threads that need it.
_LOADING = threading.RLock()


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
        self._reason = f"{path}, whose weights are packed alone," if folder.packed_only else flag
        if device != "cpu":
            self._reason = f"--device {device}"
        self._loaded: tuple[list[Any], Any] | None = None

    def get(self, reason: str | None = None) -> tuple[list[Any], Any]:
        """Return the models, and the task.

        Args:
            reason: the option that needs them, for errors; None: that of the device or the folder.

        Raises:
            UsageError: fairseq is not installed, or the files do not fit each other.
        """
        with _LOADING:
            if self._loaded is None:
                with named(reason or self._reason):
                    self._loaded = self._load()
            return self._loaded

    def _load(self) -> tuple[list[Any], Any]:
        """Load them; see ``get``."""
        with log_level_kept():  # first, so that fairseq is what is missing
            from ..plugin.compat.loading import named as naming
            from ..plugin.tasks.loading import load_paths
            from ..plugin.tasks.translation import ParallelTranslationTask
        from ..engine.settings import usable_device
        from ..engine.torch import views

        folder, device = self.folder, usable_device(self.device)
        model = str(self.path / folder.model)
        pair = {"source_lang": folder.source, "target_lang": folder.target}
        with naming(self.flag):
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
    """A model and its drafters, read without torch.

    Args:
        path: the model's file.
        words: the source and the target vocabulary.
        pair: the languages.
        packed: files with its packed weights, by form.
        drafter: the file of a drafter, or heads, that comes with it; None: none does.

    Raises:
        UsageError: a file is damaged, or of a model that native passes do not know.
        NativeUnavailable: there is no native library.
    """

    def __init__(
        self,
        path: Path,
        words: tuple[Dictionary, Dictionary],
        pair: tuple[str, str],
        packed: Mapping[str, Path] | None = None,
        drafter: Path | None = None,
    ) -> None:
        library()
        self.words, self.pair = words, pair
        #: Files that weights are mapped from, as they were then.
        self._mapped: dict[str, tuple[int, ...] | None] = {}
        self.model = self._read(str(path))
        self._drafters: dict[str, Model] = {}
        for form, file in (packed or {}).items():
            self._mapped[str(file)] = stamp_of(file)
            offer(self.model, form, file)
        if drafter is not None:
            self.load(str(drafter), ANY, [self.model])

    def _read(self, path: str, base: Model | None = None) -> Model:
        """Read a model that native passes know."""
        written = stamp_of(path)
        model = Model.read(path, *self.words, base=base)
        model.lasts = True
        if not all(weight.flags.writeable for weight in stored(model.weights).values()):
            self._mapped[path] = written
        reason = "its softmax is adaptive" if model.architecture.cutoffs else why_not(model)
        if reason is not None:
            raise UnknownModel(f"{path}: {reason}")
        return model

    def _drafter(self, path: str) -> Model:
        """Return the drafter, or heads, of a path, read once."""
        if path not in self._drafters:
            self._drafters[path] = self._read(path, self.model)
        return self._drafters[path]

    def check_files(self) -> None:
        """Refuse weights that somebody has written over, as ``cp`` does; ``mv`` spares them.

        Raises:
            UsageError: a file that is mapped was written to.
        """
        for path, before in [*self._mapped.items()]:
            now = stamp_of(path)
            if now == before:
                continue
            if before is not None and now is not None and now[:2] == before[:2]:
                raise UsageError(
                    f"{path}: got a file that was written to while its model was in use; "
                    "allowed: a new file in its place, as mv puts it, and a new start"
                )
            self._mapped.pop(path, None)  # the old one stays until its maps are gone

    def config_of(self, config: DecodingConfig) -> DecodingConfig | str:
        """Return by what the core decodes, or the option for which it needs torch and fairseq.

        Of weights that are packed alone the core builds, or refuses, every decoder.

        Raises:
            UsageError: the method does not decode this model, or fairseq has no class of it.
        """
        own = self._native(config)
        if isinstance(own, str) and not self.model.architecture.in_fairseq:
            kind = self.model.architecture.kind
            raise UsageError(f"{own} needs a model that fairseq can build; this one is a {kind}")
        return config if isinstance(own, str) and self.model.is_packed_only else own

    def _native(self, config: DecodingConfig) -> DecodingConfig | str:
        """Return by what native passes decode, or what they do not; see ``config_of``."""
        own = for_models(config, [self.model])
        check_models(own.decoding, [self.model], own.drafter_path)
        if own.audit:
            return "--audit"
        if own.engine == "torch" and self.model.architecture.in_fairseq:
            return "--engine torch"
        if own.decoding in STOCK_DECODINGS:
            rules = [flag(n) for n in OTHER_SEARCH if getattr(own, n) != ALL[n].default]
            return " ".join(["--decoding", own.decoding, *rules[:1]])
        if own.latency_budget_ms is not None:  # fairseq's search takes part
            return "--latency-budget-ms"
        for name in ("engine_dtype", "drafter_dtype"):
            if (form := getattr(own, name)) is not None and form not in FORMS:
                return f"{flag(name)} {form}"
        if own.drafter_path is None or self._reads(own.drafter_path):
            return own
        return f"--drafter-path {own.drafter_path}"

    def _reads(self, path: str) -> bool:
        """Return whether a drafter can be read; else fairseq knows it, or says what is wrong.

        Raises:
            UsageError: it cannot, and fairseq is not installed.
        """
        try:
            drafter = self._drafter(path)
        except FileNotFoundError as error:
            raise UsageError(
                f"--drafter-path: got {path!r}, which does not exist; allowed: a checkpoint file "
                "that fairseq-train wrote"
            ) from error
        except (UsageError, OSError) as error:
            if is_installed("fairseq"):
                return False
            raise UsageError(f"--drafter-path: {_said(error)}") from error
        return kind_of(drafter) != HEADS or drafter.is_heads  # heads beside a base of their own

    def build(self, config: DecodingConfig) -> Any:
        """Build a decoder of what ``config_of`` returned."""
        source, target = self.words
        return build_decoder([self.model], config, Context(target, source), self.load)

    def load(self, path: str, kind: str, models: Sequence[Any]) -> Model:
        """Return a drafter of a kind; see ``build_decoder``.

        Raises:
            UsageError: it is of another kind or pair, or takes shorter sources than the model.
        """
        drafter = self._drafter(path)
        name = "set of heads" if drafter.is_heads else f"{class_of(drafter)} model"
        check_kind(path, kind, kind_of(drafter), name)
        if drafter.is_heads:
            one_set_of_heads("blockwise", [self.model], path)
        else:
            check_languages(path, drafter.languages, self.pair)
            check_positions(path, drafter.max_positions()[0], self.model.max_positions()[0])
        return drafter


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
    packed = {form: path / name for form, name in folder.packed.items()}
    drafter = None if folder.drafter is None else path / folder.drafter
    pair = folder.source, folder.target
    only = folder.packed_only
    core = core_of(path / folder.model, words, pair, packed, drafter, only)
    if core is not None:
        core.model.checked = folder.checked.get(folder.model)
    return core


def core_of(
    path: Path,
    words: tuple[Dictionary, Dictionary],
    pair: tuple[str, str],
    packed: Mapping[str, Path] | None = None,
    drafter: Path | None = None,
    only: bool = False,
) -> CoreModels | None:
    """Read a model without torch, and what comes with it; see ``CoreModels`` and ``read_core``.

    With ``only`` nothing else can: its weights are packed alone.
    """
    try:
        return CoreModels(path, words, pair, packed, drafter)
    except (UsageError, NativeUnavailable, OSError) as error:
        if is_installed("fairseq") and not only:
            return None
        raise UsageError(_said(error)) from error


def _said(error: Exception) -> str:
    """Return why the core cannot read a model, with the extra that can."""
    needs = isinstance(error, UnknownModel | NativeUnavailable)
    return f"{error}: it needs fairseq_paradec[fairseq]" if needs else str(error)
