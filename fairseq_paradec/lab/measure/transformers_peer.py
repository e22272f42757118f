"""The same checkpoint in Hugging Face's transformers: greedy, beam 5 and assisted generation."""

from collections.abc import Mapping, Sequence
from typing import Any

from fairseq.data import Dictionary
from fairseq.modules import LearnedPositionalEmbedding
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ... import extras
from ...errors import UsageError, option_error
from ...model_checks import TRANSFORMER
from . import TRANSFORMERS
from .outputs import System
from .own import Loader
from .peers import Peer, search_name
from .systems import FairseqSystem, Models, torch_dtype

#: transformers' families by whether norms come first, and whether embeddings have one.
_FAMILIES = {
    (False, False): "Marian",
    (False, True): "Bart",
    (True, False): "M2M100",
    (True, True): "MBart",
}

#: Activations that have one name in both, and are the same function.
_ACTIVATIONS = ("relu", "gelu", "swish", "tanh")

#: fairseq's first position is its padding's number plus one.
_OFFSET = 2

#: Weights with the same names in fairseq and transformers; all others but these are refused.
_SAME = (".layers.", ".layer_norm.", ".layernorm_embedding.")
_WRITTEN = (
    "embed_tokens.weight",
    "embed_positions.weight",
    "output_projection.weight",
    "output_projection.bias",
    "version",
    "_float_tensor",
)


class TransformersSystem(Peer):
    """``generate`` of transformers, with fairseq's limits and the run's threads, dtype and device.

    Args:
        name: of the search.
        model: of transformers.
        settings: of its generation.
        models: where the checkpoint and the test set come from.
        path: the checkpoint.
        assistant: of transformers; it takes one sentence at a time.
    """

    def __init__(
        self, name: str, model: Any, settings: Any, models: Loader, path: str, assistant: Any = None
    ) -> None:
        dtype = str(torch_dtype(models.dtype)).removeprefix("torch.")
        super().__init__(f"transformers {name}, {dtype}", TRANSFORMERS, dtype, None, models, path)
        self._model, self._settings, self._assistant = model, settings, assistant
        self._device = models.device

    def search(self, sources: Sequence[Tensor]) -> list[list[str]]:
        """Return the words of each translation."""
        words = self.task.target_dictionary
        size = 1 if self._assistant else len(sources)
        texts: list[list[str]] = []
        for start in range(0, len(sources), size):
            batch = sources[start : start + size]
            rows = pad_sequence(list(batch), batch_first=True, padding_value=words.pad())
            rows = rows.to(self._device)
            outputs = self._model.generate(
                rows,
                attention_mask=rows.ne(words.pad()).long(),
                generation_config=self._settings,
                assistant_model=self._assistant,
            ).cpu()
            texts += [words.string(row[row.ne(words.pad())]).split() for row in outputs]
        return texts


def transformers_systems(
    systems: Sequence[System], models: Loader, path: str, common: Mapping[str, Any]
) -> tuple[list[TransformersSystem], list[str]]:
    """Convert the checkpoint, and the drafters of ``assisted`` among these systems.

    Returns:
        Greedy, beam 5, and assisted generation for each drafter; why a drafter is left out.

    Raises:
        UsageError: transformers is not installed, or has no layout for the model.
    """
    loaded, task = Models(models.data, models.subset, "fp32", "cpu").load(path)
    if len(loaded) > 1:
        raise option_error("--peers", TRANSFORMERS, f"one model; --path has {len(loaded)}")
    (model,), words = loaded, task.target_dictionary
    place = {"device": models.device, "dtype": torch_dtype(models.dtype)}
    there = converted(model.encoder, model.decoder, words).to(**place)
    first = getattr(model, "first_target_token", None)
    longest = min(int(common.get("max_len_b", 200)), model.max_decoder_positions() - 1)
    options = {
        "decoder_start_token_id": words.eos(),
        "eos_token_id": words.eos(),
        "pad_token_id": words.pad(),
        "bos_token_id": words.bos(),
        "forced_bos_token_id": first and words.index(first),
        "forced_eos_token_id": words.eos(),
        "max_new_tokens": longest + 1,
        "min_new_tokens": int(common.get("min_len", 1)),
        "suppress_tokens": [words.pad()],
        "do_sample": False,
    }
    config = load_class("GenerationConfig")
    peers = [
        TransformersSystem(search_name(beam), there, config(**options, **more), models, path)
        for beam, more in ((1, {}), (5, {"num_beams": 5, "early_stopping": True}))
    ]
    left_out = []
    for system in systems:
        if not (isinstance(system, FairseqSystem) and system.drafts_by == TRANSFORMER):
            continue
        generator = system.generator
        encoder = model.encoder if generator.on_verifiers_encoder else generator.drafter.encoder
        try:
            drafter = converted(encoder, generator.drafter.decoder, words).to(**place)
        except UsageError as error:
            left_out.append(f"transformers does not draft as `{system.label}`: {error}")
            continue
        name, settings = f"assisted as {system.label}", config(**options)
        peers.append(TransformersSystem(name, there, settings, models, path, drafter))
    return peers, left_out


def load_class(name: str) -> Any:
    """Return a class of transformers, which needs no torchaudio here, and may have a broken one.

    Raises:
        UsageError: transformers is not installed.
    """
    with extras.named(f"--peers {TRANSFORMERS}"):
        import transformers
    transformers.utils.is_torchaudio_available = lambda: False
    return getattr(transformers, name)


def configuration(
    family: str, encoder: Any, decoder: Any, words: Dictionary, **changes: Any
) -> Any:
    """Return transformers' configuration of a model whose words have fairseq's numbers.

    Raises:
        UsageError: transformers is not installed, or the activation is unknown to it.
    """
    here, there = encoder.layers, decoder.layers
    activation = str(decoder.cfg.activation_fn)
    if activation not in _ACTIVATIONS:
        given = f"{TRANSFORMERS} and a model of --activation-fn {activation}"
        raise option_error("--peers", given, ", ".join(_ACTIVATIONS))
    settings = {
        "vocab_size": len(words),
        "d_model": here[0].embed_dim,
        "encoder_layers": len(here),
        "decoder_layers": len(there),
        "encoder_attention_heads": here[0].self_attn.num_heads,
        "decoder_attention_heads": there[0].self_attn.num_heads,
        "encoder_ffn_dim": here[0].fc1.out_features,
        "decoder_ffn_dim": there[0].fc1.out_features,
        "activation_function": activation,
        "scale_embedding": decoder.embed_scale != 1,
        "max_position_embeddings": decoder.max_target_positions,
        "pad_token_id": words.pad(),
        "eos_token_id": words.eos(),
        "bos_token_id": words.bos(),
        "decoder_start_token_id": words.eos(),
        "forced_eos_token_id": None,
    }
    return load_class(f"{family}Config")(**settings | changes)


def converted(encoder: Any, decoder: Any, words: Dictionary) -> Any:
    """Return an equal model of transformers.

    Raises:
        UsageError: transformers is not installed, or has no layout for the model.
    """
    is_first, has_norm = decoder.layers[0].normalize_before, decoder.layernorm_embedding is not None
    family = _FAMILIES[is_first, has_norm]
    kind = "MarianMTModel" if family == "Marian" else f"{family}ForConditionalGeneration"
    model = load_class(kind)(configuration(family, encoder, decoder, words)).eval()
    sides = {"encoder": encoder, "decoder": decoder}
    ours = {
        f"{side}.{name}": weight
        for side, module in sides.items()
        for name, weight in module.state_dict().items()
        if not name.endswith(_WRITTEN)
    }
    theirs = {
        name: weight
        for name, weight in model.model.state_dict().items()
        if any(part in name for part in _SAME)
    }
    for name in sorted(ours.keys() | theirs.keys()):
        shapes = [
            tuple(weights[name].shape) if name in weights else None for weights in (ours, theirs)
        ]
        if shapes[0] != shapes[1]:
            raise option_error(
                "--peers",
                f"{TRANSFORMERS} and a model with {name} of size {shapes[0]}",
                f"{shapes[1]}, as in {kind}",
            )
    model.model.load_state_dict(ours, strict=False)
    for side, module in sides.items():
        _embed(getattr(model.model, side), module)
    model.lm_head.weight = nn.Parameter(decoder.output_projection.weight.detach().float())
    if decoder.output_projection.bias is not None:
        model.lm_head.bias = nn.Parameter(decoder.output_projection.bias.detach().float())
    return model


def _embed(there: Any, here: Any) -> None:
    """Give a side of transformers' model the embeddings and positions of fairseq's."""
    table = here.embed_tokens.weight.detach().float()
    there.embed_tokens.weight = nn.Parameter(table)
    positions, count = here.embed_positions, here.max_positions() + _OFFSET
    if positions is None:
        rows = table.new_zeros(count, table.size(1))
    elif isinstance(positions, LearnedPositionalEmbedding):
        rows = positions.weight.detach().float()
    else:
        rows = positions.get_embedding(count, table.size(1), positions.padding_idx)
    if hasattr(there.embed_positions, "weights"):  # M2M-100's, which are no parameter
        there.embed_positions.weights = rows
    else:  # Marian's begin at 0
        offset = getattr(there.embed_positions, "offset", 0)
        there.embed_positions.weight = nn.Parameter(rows[_OFFSET - offset :])
