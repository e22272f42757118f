"""Systems of fairseq's modules: decoders of this package, and fairseq's search."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from fairseq import utils

from ...config import DecodingConfig
from ...decoding.audit import Audit
from ...plugin.generators import batch_of
from ...plugin.models.heads import PREFIX
from ...plugin.tasks import loading
from ..analysis.promises import EXACT
from . import DTYPES
from .own import OwnSystem
from .specs import Spec

_DTYPES = dict(zip(DTYPES, (torch.float32, torch.float16, torch.bfloat16), strict=True))


def torch_dtype(name: str) -> torch.dtype:
    """Return what torch calls a ``--dtype``."""
    return _DTYPES[name]


class Models:
    """Loads each checkpoint once by fairseq; see ``Loader``."""

    exact = EXACT

    def __init__(self, data: str, subset: str, dtype: str, device: str) -> None:
        self.data, self.subset, self.dtype, self.device = data, subset, dtype, device
        self._loaded: dict[str, tuple[list[Any], Any]] = {}

    def load(self, path: str) -> tuple[list[Any], Any]:
        """Return models and task of a checkpoint (or several with ``:`` between them)."""
        if path not in self._loaded:
            models, task = loading.load(self.data, path)
            for model in models:
                model.to(device=self.device, dtype=_DTYPES[self.dtype])
            self._loaded[path] = models, task
        models, task = self._loaded[path]
        if self.subset not in task.datasets:
            task.load_dataset(self.subset)
        return models, task

    def parameters(self, models: Sequence[Any]) -> int:
        """Return the number of parameters of models, shared ones once."""
        return count_parameters(models)

    def same_greedy(self, ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
        """See ``Loader``."""
        return same_greedy(ours, theirs)

    def system(self, spec: Spec, path: str, common: Mapping[str, Any]) -> "FairseqSystem":
        """Build a decoder; see ``OwnSystem``."""
        return FairseqSystem(spec, self, path, common)

    def on(self, subset: str) -> "Models":
        """Return the same models for another subset."""
        other = copy.copy(self)
        other.subset = subset
        return other


class FairseqSystem(OwnSystem):
    """A decoder that fairseq's task builds: this package's, or fairseq's own search."""

    def build(self, config: DecodingConfig, models: Models, path: str) -> Any:
        """See ``OwnSystem``."""
        return self.task.build_decoder(self.models, config)

    def count(self, helper: Any, shared: bool) -> int:
        """See ``OwnSystem``."""
        helpers = [] if helper is None else [helper.decoder if shared else helper]
        return count_parameters([*self.models, *helpers])

    def search(self, sentences: Sequence[int]) -> list[list[dict[str, Any]]]:
        """Return the n-best lists of one batch, as fairseq has them."""
        sample = self.sample(sentences)
        with torch.inference_mode():
            hypos = self.task.inference_step(self.generator, self.models, sample)
        # The collater sorts by length.
        by_number = dict(zip(sample["id"].tolist(), hypos, strict=True))
        return [by_number[i] for i in sentences]

    def symbols(self, tokens: Any) -> list[str]:
        """See ``OwnSystem``."""
        # In one copy: fairseq would wait for the device at every token.
        symbols: str = self.task.target_dictionary.string(tokens.cpu())
        return symbols.split()

    def tie_of_lists(
        self, sentence: int, ours: Sequence[list[int]], theirs: Sequence[list[int]]
    ) -> bool:
        """Return whether two n-best lists that differ do so by a tie, as the audit says it.

        ``theirs`` are those of fairseq's search, whose beam is as many.
        """
        names = {"unkpen": "unk_penalty"}
        limits = {names.get(name, name): value for name, value in self.common.items()}
        judge = Audit(self.models, self.task.target_dictionary, len(theirs), **limits)
        first, second = (
            [[{"tokens": torch.tensor(tokens, device=self.device)} for tokens in hypos]]
            for hypos in (ours, theirs)
        )
        (verdict,) = judge.compare_with(batch_of(self.sample([sentence])), first, second)
        return bool(verdict["tie"])

    def sample(self, sentences: Sequence[int]) -> dict[str, Any]:
        """Return a batch on the device."""
        sample = self.dataset.collater([self.dataset[i] for i in sentences])
        return utils.move_to_cuda(sample) if self.device == "cuda" else sample


def count_parameters(models: Sequence[Any]) -> int:
    """Return the number of parameters of all models, shared ones once."""
    return sum(p.numel() for p in {id(p): p for m in models for p in m.parameters()}.values())


def same_greedy(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    """Return whether models have the same greedy output: equal weights without the heads'.

    Heads on a frozen base do not change its output; a fine-tuned base, or a learned first head,
    does.
    """
    if len(ours) != len(theirs):
        return False
    for pair in zip(ours, theirs, strict=True):
        if any(0 in model.block_heads.learned for model in pair if hasattr(model, "block_heads")):
            return pair[0] is pair[1]
        first, second = (
            {name: w for name, w in m.state_dict().items() if not name.startswith(PREFIX)}
            for m in pair
        )
        if first.keys() != second.keys():
            return False
        if not all(
            w.shape == second[name].shape and torch.equal(w, second[name])
            for name, w in first.items()
        ):
            return False
    return True
