"""Models as Hugging Face's transformers and Marian store them, made of fairseq's."""

import functools
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary

from fairseq_paradec.lab.measure.transformers_peer import configuration, load_class
from fairseq_paradec.plugin.tasks.flags import ParallelTranslationConfig
from fairseq_paradec.plugin.tasks.translation import ParallelTranslationTask
from fairseq_paradec.translator import model_folder
from fairseq_paradec.translator.importing.vocabulary import M2M_100
from support.builders import DEMO, tiny_model

SHARED = {"share_all_embeddings": True}

#: For each family: the class in transformers, the variant of `tiny_model` that has its layers, more
#: options of that, and the seed and the bias of ``</s>`` of a model that ends at various lengths.
FAMILIES: dict[str, tuple[str, str, dict[str, Any], int, float]] = {
    "marian": ("MarianMT", "learned_positions", {"activation_fn": "swish"}, 0, 3.0),
    "marian_two_vocabularies": ("MarianMT", "learned_positions", {"activation_fn": "relu"}, 4, 3.0),
    "m2m_100": ("M2M100ForConditionalGeneration", "prenorm", SHARED, 2, 5.0),
    "nllb": ("M2M100ForConditionalGeneration", "prenorm", SHARED, 1, 4.0),
    "mbart": ("MBartForConditionalGeneration", "mbart", {}, 3, 4.0),
}
#: What the tests translate from and to.
SPOKEN = ("__en__", "__de__", "eng_Latn", "deu_Latn", "en_XX", "de_DE")
LANGUAGES = {
    "m2m_100": tuple(f"__{code}__" for code in M2M_100),
    "nllb": ("eng_Latn", "deu_Latn"),
    "mbart": ("en_XX", "de_DE"),
}


@functools.cache
def pieces(language: str, size: int = 150) -> Path:
    """A sentencepiece model of the demo's sentences."""
    import sentencepiece

    prefix = str(Path(tempfile.mkdtemp()) / language)
    sentencepiece.SentencePieceTrainer.train(
        input=str(DEMO / f"raw/demo.{language}"),
        model_prefix=prefix,
        vocab_size=size,
        minloglevel=2,
    )
    return Path(f"{prefix}.model")


def words_of(path: Path) -> list[str]:
    """The pieces of a sentencepiece model but its three special ones."""
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [model.id_to_piece(number) for number in range(3, len(model))]


@dataclass
class Saved:
    """A model in transformers' format, and its numbers of words by fairseq's dictionary."""

    folder: Path
    model: Any
    numbers: dict[str, int]
    languages: Sequence[str]

    def tokenizer(self, name: str, *files: str) -> Any:
        """A tokenizer of transformers, of these files in the folder."""
        return load_class(name)(*(str(self.folder / file) for file in files))

    def read(self, words: Dictionary, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        """fairseq's B×T tokens, padded on either side, as arguments of transformers' model."""
        rows = [[self.numbers[words[i]] for i in row if i != words.pad()] for row in tokens]
        width = max(map(len, rows))
        pad = self.model.config.pad_token_id
        ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        return {"input_ids": ids, "attention_mask": mask}

    @torch.no_grad()
    def generate(self, words: Dictionary, tokens: torch.Tensor, **more: Any) -> list[list[int]]:
        """What transformers' generate makes of sources, as fairseq's numbers up to ``</s>``."""
        config = self.model.config
        if self.languages:
            more["forced_bos_token_id"] = self.numbers[self.languages[1]]
        found = self.model.generate(
            **self.read(words, tokens),
            do_sample=False,
            bad_words_ids=[[config.pad_token_id], *more.pop("bad_words_ids", [])],
            forced_eos_token_id=config.eos_token_id,
            early_stopping=more.get("num_beams", 1) > 1,
            **more,
        )
        known = {number: word for word, number in self.numbers.items()}
        rows = [[words.index(known[i]) for i in row[1:]] for row in found.tolist()]
        return [row[: row.index(words.eos()) + 1] for row in rows]


def _without_bars() -> None:
    """Let transformers write no progress bars: tests read what commands write."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def save(
    folder: Path, kind: str, given: Any, order: Sequence[int], words: Dictionary, **changes: Any
) -> Saved:
    """Save a fairseq Transformer by transformers' own ``save_pretrained``.

    `order` are fairseq's numbers by theirs; `changes` go into the configuration.
    """
    state = given.state_dict()
    numbers = {words[number]: new for new, number in enumerate(order)}
    special = {"pad": "<pad>", "eos": "</s>", "bos": "<s>", "decoder_start": "</s>"}
    changes = {f"{name}_token_id": numbers[word] for name, word in special.items()} | changes
    family = kind.replace("ForConditionalGeneration", "").replace("MT", "")
    config = configuration(family, given.encoder, given.decoder, words, **changes)
    name = kind if kind.endswith("Generation") else kind + "Model"
    model = load_class(name)(config).eval()
    theirs = model.state_dict()
    for key in theirs:
        own = key.removeprefix("model.")
        if own.endswith(("shared.weight", "embed_tokens.weight", "lm_head.weight")):
            table = state.get(own, state["decoder.embed_tokens.weight"])
            theirs[key] = table[torch.tensor(order)]
        elif own in state and (kind != "MarianMT" or "embed_positions" not in own):
            theirs[key] = state[own]
    model.load_state_dict(theirs)
    _without_bars()
    model.save_pretrained(folder)
    return Saved(folder, model, numbers, ())


@functools.cache
def saved(family: str) -> Saved:
    """A tiny random model of a family in a folder as on the hub: leave it as it is."""
    kind, variant, options, seed, ending = FAMILIES[family]
    folder = Path(tempfile.mkdtemp()) / family
    languages = LANGUAGES.get(family, ())
    words, de = Dictionary(), pieces("de")
    is_marian = kind == "MarianMT"
    both = [*words_of(pieces("en")), *words_of(de)] if is_marian else words_of(de)
    for word in (*both, *languages):
        words.add_symbol(word)
    task = ParallelTranslationTask(ParallelTranslationConfig(), words, words)
    options = options | {"max_source_positions": 64, "max_target_positions": 64}
    given = tiny_model(task, variant, torch.float32, seed, **options)
    order = list(range(len(words)))
    if is_marian:  # </s>, <unk>, pieces, <s>, <pad>
        order = [*order[2:], 0, 1]
    if given.decoder.layer_norm is not None:  # as a bias of </s>: more sentences end early
        row = given.decoder.output_projection.weight[words.eos()].detach()
        given.decoder.layer_norm.bias.data += ending * row / row.square().sum()
    changes: dict[str, Any] = {"decoder_start_token_id": len(order) - 1} if is_marian else {}
    if "two" in family:
        changes["share_encoder_decoder_embeddings"] = False
    made = save(folder, kind, given, order, words, **changes)
    made.languages = [one for one in sorted(languages, reverse=True) if one in SPOKEN]
    if is_marian:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made.model.final_logits_bias.normal_(std=0.3)
            made.model.final_logits_bias[0, 0] += ending
            made.model.model.decoder.embed_tokens.weight[-1].normal_()
        _without_bars()
        made.model.save_pretrained(folder, safe_serialization=True)
        shutil.copy(pieces("en"), folder / "source.spm")
        shutil.copy(de, folder / "target.spm")
    else:
        shutil.copy(de, folder / "sentencepiece.bpe.model")
    added = {word: made.numbers[word] for word in languages}
    if is_marian or family == "m2m_100":
        plain = {word: n for word, n in made.numbers.items() if word not in added}
        for name in ("vocab.json", *(["target_vocab.json"] if "two" in family else [])):
            (folder / name).write_text(json.dumps(plain), "utf-8")
    about: dict[str, Any] = {"source_lang": "en", "target_lang": "de"}
    if family == "nllb":
        about = {"additional_special_tokens": list(languages)}
    elif family == "mbart":
        about = {"added_tokens_decoder": {n: {"content": word} for word, n in added.items()}}
    (folder / "tokenizer_config.json").write_text(json.dumps(about), "utf-8")
    if family == "m2m_100":
        there = made.tokenizer("M2M100Tokenizer", "vocab.json", "sentencepiece.bpe.model")
        there.save_pretrained(folder)
    return made


def load(folder: Path) -> tuple[Any, Any]:
    """The task and the model of a model folder."""
    models, _, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(folder / model_folder.read(folder).model)], arg_overrides={"data": str(folder)}
    )
    return task, models[0].eval()


def save_marian(made: Saved, folder: Path, **changes: Any) -> Path:
    """Save a MarianMT model, whose last word is ``<pad>``, as Marian does: -> its file."""
    config, state = made.model.config, made.model.state_dict()
    arrays: dict[str, Any] = {
        "Wemb": state["model.shared.weight"][:-1],
        "decoder_ff_logit_out_b": state["final_logits_bias"][:, :-1],
    }
    for name, weight in state.items():
        parts = name.removeprefix("model.").split(".")
        if parts[1:2] != ["layers"]:
            continue
        side, number, rest = parts[0], int(parts[2]) + 1, ".".join(parts[3:])
        there = f"{side}_l{number}_" + _marian_name(rest)
        arrays[there] = weight.t() if weight.dim() == 2 else weight[None]
    settings = {
        "type": "transformer",
        "dim-emb": config.d_model,
        "enc-depth": config.encoder_layers,
        "dec-depth": config.decoder_layers,
        "transformer-heads": config.encoder_attention_heads,
        "transformer-dim-ffn": config.encoder_ffn_dim,
        "tied-embeddings-all": True,
        "transformer-ffn-activation": config.activation_function,
        "transformer-postprocess": "dan",
        "transformer-preprocess": "",
        **changes,
    }
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items())
    arrays["special:model.yml"] = np.frombuffer(text.encode() + b"\0", dtype=np.int8)
    folder.mkdir()
    np.savez(folder / "model.npz", **{name: np.asarray(value) for name, value in arrays.items()})
    words = {word: n for word, n in made.numbers.items() if word != "<pad>"}
    lines = (f"{json.dumps(word, ensure_ascii=False)}: {n}\n" for word, n in words.items())
    (folder / "words.yml").write_text("".join(lines), "utf-8")
    (folder / "decoder.yml").write_text("vocabs: [words.yml, words.yml]\nbeam-size: 6\n", "utf-8")
    for name in ("source.spm", "target.spm"):
        shutil.copy(made.folder / name, folder / name)
    return folder / "model.npz"


def _marian_name(name: str) -> str:
    """Marian's name of a layer's weight, such as ``self_Wq``."""
    part, kind = name.rsplit(".", 1)
    letter = {"weight": "W", "bias": "b"}[kind]
    norm = {"weight": "scale", "bias": "bias"}[kind]
    if part == "final_layer_norm":
        return f"ffn_ffn_ln_{norm}"
    if part.startswith("fc"):
        return f"ffn_{letter}{part[2]}"
    place = "self" if part.startswith("self") else "context"
    if part.endswith("layer_norm"):
        return f"{place}_Wo_ln_{norm}"
    return f"{place}_{letter}{part.split('.')[1][0]}"
