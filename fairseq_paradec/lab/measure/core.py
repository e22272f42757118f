"""Systems of the core's models, where fairseq is not installed: by native passes, without torch.

Their judge is this package's own greedy search, and no row is called fairseq's.
"""

import copy
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...config import LARGEST, DecodingConfig
from ...decoding.ties import TIE_GAP
from ...extras import EXTRAS, lacks
from ...images import holds_images
from ...methods.configure import configure
from ...methods.each_sentence import decode_each, problems_of
from ...model.model import HEADS, HeadWeights, Model
from ...translator.batches import collate
from ...translator.loading import CoreModels, core_of
from ..analysis.promises import AS_OURS
from .own import NotRun, OwnSystem
from .sentences import Data
from .specs import Spec


class CoreLoader:
    """Loads each checkpoint once, without torch and fairseq; see ``Loader``.

    Raises:
        UsageError: the data, ``--dtype`` or ``--device`` need fairseq, or the data are damaged.
    """

    exact = AS_OURS

    def __init__(self, data: str, subset: str, dtype: str, device: str) -> None:
        self.data, self.subset, self.dtype, self.device = data, subset, dtype, device
        asked = {"--dtype": (dtype, "fp32"), "--device": (device, "cpu")}
        for flag, (given, able) in asked.items():
            if given != able:
                raise lacks("fairseq", f"{flag} {given}")
        if holds_images(data):
            raise lacks("fairseq", f"DATA {data}, which holds images,")
        self._folder = Data(data)
        self._loaded: dict[str, CoreModels] = {}

    def core(self, path: str) -> CoreModels:
        """Return the model of a checkpoint, with what builds its decoders.

        Raises:
            UsageError: it cannot be read without fairseq.
        """
        if path not in self._loaded:
            if os.pathsep in path:
                raise lacks("fairseq", f"--path {path}, an ensemble,")
            words = self._folder.source_dictionary, self._folder.target_dictionary
            core = core_of(Path(path), words, self._folder.pair)
            assert core is not None  # fairseq, which might read it otherwise, is not installed
            self._loaded[path] = core
        return self._loaded[path]

    def load(self, path: str) -> tuple[list[Any], Any]:
        """Return the model of a checkpoint, and the data folder."""
        return [self.core(path).model], self._folder

    def parameters(self, models: Sequence[Any]) -> int:
        """Return the number of parameters of models."""
        return sum(map(count_parameters, models))

    def same_greedy(self, ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
        """See ``Loader``."""
        return same_greedy(ours[0], theirs[0])

    def system(self, spec: Spec, path: str, common: Mapping[str, Any]) -> "CoreSystem":
        """Build a decoder.

        Raises:
            NotRun: it needs fairseq.
            UsageError: see ``OwnSystem``.
        """
        return CoreSystem(spec, self, path, common)

    def on(self, subset: str) -> "CoreLoader":
        """Return the same models for another subset."""
        other = copy.copy(self)
        other.subset = subset
        return other


class CoreSystem(OwnSystem):
    """A decoder of native passes.

    Raises:
        NotRun: an option needs fairseq.
    """

    core: CoreModels

    def build(self, config: DecodingConfig, models: CoreLoader, path: str) -> Any:
        """See ``OwnSystem``."""
        self.core = models.core(path)
        native = self.core.config_of(config)
        if isinstance(native, str):
            raise NotRun(f"needs [{EXTRAS['fairseq']}]")
        return self.core.build(native)

    def count(self, helper: Any, shared: bool) -> int:
        """See ``OwnSystem``."""
        (model,) = self.models
        own = count_parameters(model)
        if helper is None or helper is model or helper is model.block_heads:
            return own
        return own + count_parameters(helper, not shared)

    def search(self, sentences: Sequence[int]) -> list[list[dict[str, Any]]]:
        """See ``OwnSystem``."""
        return self._decode(self.generator, sentences)

    def _decode(
        self, decoder: Any, sentences: Sequence[int], forced: Sequence[int] | None = None
    ) -> list[list[dict[str, Any]]]:
        """Return the hypotheses of some sentences; ``forced``: the tokens of each output."""
        (model,), sources = self.models, self.task.source_dictionary
        rows = [self.dataset[i]["source"] for i in sentences]
        order, batch = collate(rows, range(len(rows)))
        if forced is not None:
            prefix = np.array([forced] * len(sentences))
            batch = replace(batch, prefix=prefix, drafts=[forced[:-1]] * len(sentences))
        problems = problems_of(batch, model.max_positions()[0], sources)
        target = self.task.target_dictionary
        hypos = decode_each(decoder.decode, batch, problems, self.models, target)
        by_place = dict(zip(order, hypos, strict=True))
        return [by_place[place] for place in range(len(sentences))]

    def symbols(self, tokens: Any) -> list[str]:
        """See ``OwnSystem``."""
        symbols: str = self.task.target_dictionary.string(tokens.tolist())
        return symbols.split()

    def tie_of_lists(
        self, sentence: int, ours: Sequence[list[int]], theirs: Sequence[list[int]]
    ) -> bool:
        """Return whether two outputs that differ part at tokens of nearly equal probability.

        Of a list of several hypotheses nobody can say it without fairseq's search.
        """
        if len(theirs) > 1:
            return False
        pairs = zip(ours[0], theirs[0], strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if at is None:  # one is the other's beginning
            return False
        scores = [self._score(sentence, tokens[: at + 1]) for tokens in (ours[0], theirs[0])]
        return abs(scores[0] - scores[1]) < TIE_GAP

    def _score(self, sentence: int, tokens: list[int]) -> float:
        """Return the log-probability of the last token of a sentence's output that begins so."""
        ((hypo, *_),) = self._decode(self._forcing, [sentence], tokens)
        scores = hypo["positional_scores"].tolist()
        return float(scores[len(tokens) - 1]) if len(scores) >= len(tokens) else math.nan

    @cached_property
    def _forcing(self) -> Any:
        """Greedy search, which scores outputs that it is told."""
        limits = dict(self.common) | {"max_len_b": LARGEST}
        return self.core.build(configure(decoding="greedy", **limits))


def count_parameters(model: Model | HeadWeights, encodes: bool = True) -> int:
    """Return the number of parameters of a model, or of heads; ``encodes``: its encoder's too."""
    if isinstance(model, HeadWeights):
        return sum(weight.size for weight in model.weights.values())
    return sum(
        math.prod(shape)
        for name, shape in model.architecture.shapes().items()
        if (encodes or not name.startswith("encoder."))
        and (model.is_packed_only or name in model.weights)
    )


def same_greedy(ours: Model, theirs: Model) -> bool:
    """Return whether two models have the same greedy output: equal weights without the heads'.

    Heads on a frozen base do not change its output; a learned first head does.
    """
    if ours is theirs:
        return True
    for model in (ours, theirs):
        heads = model.architecture.heads
        if model.is_packed_only or (heads is not None and heads.first):
            return False
    first, second = (
        {name for name in model.weights if not name.startswith(HEADS)} for model in (ours, theirs)
    )
    return first == second and all(
        np.array_equal(ours.weight(name), theirs.weight(name)) for name in first
    )
