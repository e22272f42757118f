"""fairseq's generators of the decoders: its batch becomes a Batch, and hypotheses go back."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from fairseq.search import BeamSearch
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator
from fairseq.tasks.translation import TranslationTask
from omegaconf import OmegaConf
from torch import Tensor, nn

from ..batch import Batch, Numbers
from ..config import ALL, DecodingConfig
from ..errors import excludes, option_error, refuse_unknown
from ..methods.base import Context, Decoder
from ..methods.build import build_decoder
from ..methods.configure import cannot_honour, configure
from ..model_facts import dictionaries_of
from ..registry import METHODS, own_decoding
from .alignment import align, kind_of
from .tasks.drafters import Drafters
from .tasks.flags import ParallelTranslationConfig

#: Options of decoding that fairseq's constructor has by another name or the same.
FAIRSEQS = {
    "beam": "beam_size",
    "max_len_a": "max_len_a",
    "max_len_b": "max_len_b",
    "min_len": "min_len",
    "lenpen": "len_penalty",
    "unkpen": "unk_penalty",
    "temperature": "temperature",
    "match_source_len": "match_source_len",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
}
#: What fairseq's constructor takes.
_ARGUMENTS = inspect.signature(SequenceGenerator)


class _Recipe:
    """What a decoder is made of, besides the models; copies of a generator share it.

    Args:
        config: the options of decoding.
        context: with the dictionaries.
        load: loads drafters; None: a task of these dictionaries does.
    """

    def __init__(self, config: DecodingConfig, context: Context, load: Any = None) -> None:
        self.config, self.context = config, context
        self.load = load or Drafters(_task_of(context.sources, context.words)).load

    def decoder(self, models: Sequence[Any]) -> Any:
        """Build the decoder of some models."""
        return build_decoder(models, self.config, self.context, self.load)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Recipe":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without what loads: it is of a task, and fairseq's cannot be pickled."""
        return _Recipe, (self.config, self.context)


class CoreGenerator(SequenceGenerator):
    """Decodes by any method of the registry, also those of other packages.

    As fairseq's own: ``generate``, ``forward``, ``beam_size``, ``model``. A subclass of yours may
    be the ``seq_gen_cls`` of ``task.build_generator``.

    Args:
        models: one model, or several as an ensemble.
        tgt_dict: the target dictionary.
        args: fairseq's further arguments, in its order.
        load_drafter: loads the drafter of a path, of a kind and for these models, as a task does;
            None: ``drafter_path`` is loaded for this generator.
        kwargs: fairseq's arguments by name, with its defaults; and decoding's options, such as
            ``decoding="hgj", block_size=5``. Without ``decoding`` the models' own method decodes,
            or what writes the output of fairseq's search.

    Raises:
        UsageError: a name is unknown, a value wrong, or the method does not support it or the
            models.
    """

    #: The methods of a family, the usual one first; empty: every method.
    decodings: tuple[str, ...] = ()

    def __init__(
        self,
        models: Any,
        tgt_dict: Any,
        *args: Any,
        load_drafter: Callable[[str, str, Sequence[Any]], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        models = list(models.models if isinstance(models, EnsembleModel) else models)
        named = {name: kwargs.pop(name) for name in [*_ARGUMENTS.parameters] if name in kwargs}
        fairseqs = _ARGUMENTS.bind(models, tgt_dict, *args, **named).arguments
        del fairseqs["models"], fairseqs["tgt_dict"]
        refuse_unknown(f"{type(self).__name__}()", kwargs, ALL)
        for option, name in FAIRSEQS.items():
            if option in kwargs and name in fairseqs:
                raise excludes(option, kwargs[option], f"{name}, fairseq's word for it")
        config = self._configure(models, _options_of(fairseqs) | kwargs)
        alignment = kind_of(config, models)
        config = replace(config, print_alignment=None, replace_unk=None)
        _refuse(config, tgt_dict, **fairseqs)
        suppressed = fairseqs.get("tokens_to_suppress", ())
        sources = dictionaries_of(models[0])[1]
        context = Context(tgt_dict, sources, tokens_to_suppress=suppressed)
        recipe = _Recipe(config, context, load_drafter)
        decoder = recipe.decoder(models)
        fairseqs |= {name: getattr(config, option) for option, name in FAIRSEQS.items()}
        fairseqs |= {"beam_size": decoder.beam_size, "normalize_scores": not config.unnormalized}
        super().__init__(models, tgt_dict, **fairseqs)
        self._recipe, self._decoder, self._alignment = recipe, decoder, alignment

    @classmethod
    def usual(cls, models: Sequence[Any], beam: int) -> str:
        """Return the method where none is named."""
        if cls.decodings:
            return cls.decodings[0]
        return own_decoding(models) or ("greedy" if beam == 1 else "multiword_beam")

    def _configure(self, models: Sequence[Any], options: dict[str, Any]) -> DecodingConfig:
        """Return the options of a method of this class."""
        decoding = options.get("decoding", "auto")
        if decoding == "auto":
            decoding = self.usual(models, 1 if options.get("sampling") else options["beam"])
        known = self.decodings or METHODS
        if decoding not in known:
            allowed = f"{', '.join(known)} with {type(self).__name__}"
            raise option_error("--decoding", decoding, allowed)
        return configure(**options | {"decoding": decoding})

    @property
    def decoder(self) -> Decoder:
        """The core's decoder, which has no weights of its own; a copy makes another."""
        if self._decoder is None:
            self._decoder = self._recipe.decoder([*self.model.models])
        return self._decoder

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_decoder": None}

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        """Move or convert the models; another decoder follows."""
        self._decoder = None
        return super()._apply(*args, **kwargs)

    def cuda(self, device: Any = None) -> Any:
        """As any module's; fairseq's moves the models alone."""
        return nn.Module.cuda(self, device)

    def generate(
        self, models: Any, sample: Any = None, **kwargs: Any
    ) -> list[list[dict[str, Any]]]:
        """Decode a batch by the generator's own models, as fairseq's.

        Fault: ``generate_batched_itr`` of fairseq 0.12 gives the net input alone, and no models.
        """
        sample = {"net_input": models} if sample is None else sample
        return self._generate(sample, **kwargs)

    def _generate(
        self,
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
        bos_token: int | None = None,
    ) -> list[list[dict[str, Any]]]:
        """Decode a batch; what ``generate`` and ``forward`` call."""
        batch = batch_of(sample, prefix_tokens, constraints, bos_token, self.pad)
        device = sample["net_input"]["src_tokens"].device
        found = self.decoder.decode(batch)
        outputs = [[tensors_of(hypo, device) for hypo in hypos] for hypos in found]
        if self._alignment is not None:
            align(self.model.models, sample, outputs, self._alignment, self._recipe.context.words)
        return outputs


class JacobiGenerator(CoreGenerator):
    """Jacobi decoding.

    Santilli et al. 2023. Accelerating Transformer Inference for Translation via Parallel Decoding.
    """

    decodings = ("hgj", "pgj", "pj")


class GadGenerator(CoreGenerator):
    """GAD and GAD++: a non-autoregressive model drafts.

    Xia et al. 2022. Lossless Speedup of Autoregressive Translation with Generalized Aggressive
    Decoding.
    """

    decodings = ("gad", "gad_pp")


class BlockwiseGenerator(CoreGenerator):
    """Heads on the Transformer draft.

    Stern et al. 2018. Blockwise Parallel Decoding for Deep Autoregressive Models.
    """

    decodings = ("blockwise",)


class AssistedGenerator(CoreGenerator):
    """A small Transformer drafts token by token.

    Leviathan et al. 2023. Fast Inference from Transformers via Speculative Decoding.
    """

    decodings = ("assisted",)


class SelfDraftGenerator(CoreGenerator):
    """The model in fewer bits drafts for itself.

    Zhao et al. 2025. QSpec: Speculative Decoding with Complementary Quantization Schemes.
    """

    decodings = ("self_draft",)


class MultiwordBeamGenerator(CoreGenerator):
    """Beam search by steps of several words.

    Zhang et al. 2020. Fast Interleaved Bidirectional Sequence Generation.
    """

    decodings = ("multiword_beam",)


class DoubleTokenBeamGenerator(CoreGenerator):
    """Beam search by pairs of words, from both ends.

    Imamura and Sumita 2020. Transformer-based Double-token Bidirectional Autoregressive Decoding in
    Neural Machine Translation.
    """

    decodings = ("double_token_beam",)


_FAMILIES = (
    JacobiGenerator,
    GadGenerator,
    BlockwiseGenerator,
    AssistedGenerator,
    SelfDraftGenerator,
    MultiwordBeamGenerator,
    DoubleTokenBeamGenerator,
)


def family_of(decoding: str) -> type[CoreGenerator]:
    """Return the generator of a method: its family, or the one of all methods."""
    return next((one for one in _FAMILIES if decoding in one.decodings), CoreGenerator)


def settings_of(config: DecodingConfig) -> dict[str, Any]:
    """Return the options of a method as its generator's arguments, some by fairseq's names."""
    options = {name: getattr(config, name) for name in ALL if config.is_given(name)}
    options["decoding"] = config.decoding
    method = METHODS.get(config.decoding)
    if method is not None and method.reads_beam(config):
        options["beam"] = config.beam
    normalized = not options.pop("unnormalized", False)
    named = {FAIRSEQS.get(name, name): value for name, value in options.items()}
    return named | {"normalize_scores": normalized}


def _options_of(fairseqs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of decoding among arguments of fairseq's constructor."""
    named = {option: fairseqs[name] for option, name in FAIRSEQS.items() if name in fairseqs}
    normalized = fairseqs.get("normalize_scores", True)
    return {"beam": 1, "unnormalized": not normalized} | named


def batch_of(
    sample: dict[str, Any],
    prefix_tokens: Any = None,
    constraints: Any = None,
    bos_token: int | None = None,
    pad: int = 1,
) -> Batch:
    """Return fairseq's batch, and what its search is given beside it, as a Batch.

    Args:
        sample: with ``net_input`` and, if it has them, ``id`` and ``drafts``: B lists of tokens,
            earlier outputs of its sentences.
        prefix_tokens: B×P, or None.
        constraints: as they are.
        bos_token: the decoder's first input.
        pad: the padding symbol.
    """
    return Batch(
        tokens=_array(sample["net_input"]["src_tokens"]),
        ids=_array(sample["id"]) if "id" in sample else None,
        drafts=sample.get("drafts", ()),
        prefix=None if prefix_tokens is None else _array(prefix_tokens),
        start=bos_token,
        constraints=constraints,
        pad=pad,
    )


def _array(tensor: Tensor) -> Numbers:
    """Return a tensor of any device as an array."""
    return tensor.numpy(force=True)


def tensors_of(hypo: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Return a decoder's hypothesis as fairseq's, whose arrays are tensors.

    One of a generator stays as it is.

    Args:
        hypo: the hypothesis.
        device: of the batch, where fairseq's tensors are; only ``attention`` and ``alignment`` are
            always on the CPU.
    """
    if isinstance(hypo["tokens"], Tensor):
        return hypo

    def there(array: Any) -> Tensor:
        return torch.as_tensor(array).to(device)

    arrays = ("tokens", "positional_scores", "score")
    history = [{"tokens": there(state["tokens"])} for state in hypo["history"]]
    nothing = {"attention": torch.empty(0), "alignment": torch.empty(0)}
    return nothing | hypo | {name: there(hypo[name]) for name in arrays} | {"history": history}


def _refuse(
    config: DecodingConfig,
    words: Any,
    max_len: int = 0,
    eos: int | None = None,
    search_strategy: Any = None,
    lm_model: Any = None,
    **others: Any,
) -> None:
    """Refuse arguments of fairseq's constructor that no method can honour."""
    plain = type(search_strategy) in (type(None), BeamSearch)
    no_lm = lm_model is None or config.lm_path  # which is refused as the user typed it
    for name, given, fits, allowed in (
        ("max_len", max_len, max_len == 0, "0; --max-len-b is the longest output"),
        ("eos", eos, eos in (None, words.eos()), "the dictionary's </s>"),
        ("search_strategy", type(search_strategy), plain, "fairseq's BeamSearch"),
        ("lm_model", type(lm_model), no_lm, "no language model"),
    ):
        if not fits:
            raise cannot_honour(config, name, given, allowed)


def _task_of(sources: Any, words: Any) -> TranslationTask:
    """Return a task of these dictionaries, by which a drafter is loaded."""
    return TranslationTask(OmegaConf.structured(ParallelTranslationConfig()), sources, words)
