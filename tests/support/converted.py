"""Models as CTranslate2 converts them, made of fairseq's, and what it says of them."""

import argparse
import json
import struct
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from support.builders import task_for, tiny_model

#: CTranslate2's types by number, as ``model_spec.py`` has them.
TYPES = ("float32", "int8", "int16", "int32", "float16")


def spec_of(task: Any, model: Any, arch: str = "transformer") -> Any:
    """A fairseq Transformer as CTranslate2's own converter of fairseq's checkpoints reads it."""
    from ctranslate2.converters import FairseqConverter

    with tempfile.TemporaryDirectory() as folder:
        for side in ("source", "target"):
            getattr(task, f"{side}_dictionary").save(f"{folder}/dict.{side}.txt")
        more = {"source_lang": "source", "target_lang": "target", "arch": arch}
        args = argparse.Namespace(**vars(model.flags) | more | {"task": "translation"})
        torch.save({"args": args, "model": model.state_dict()}, f"{folder}/model.pt")
        return FairseqConverter(f"{folder}/model.pt", folder)._load()


def random_spec(task: Any, model: Any, ending: float = 0.0) -> Any:
    """The specification of an untrained model; ``ending`` is the bias of `</s>`.

    It never writes the padding symbol, as fairseq never does.
    """
    spec = spec_of(task, model)
    spec.decoder.projection.bias = np.zeros(len(task.target_dictionary), np.float32)
    spec.decoder.projection.bias[1:3] = -1e4, ending
    return spec


def small_spec() -> Any:
    """The specification of a model of one layer a side."""
    task = task_for("share_all")
    sizes = {"encoder_layers": 1, "decoder_layers": 1}
    return random_spec(task, tiny_model(task, "share_all", torch.float32, **sizes))


def open_nmt(task: Any, model: Any) -> Any:
    """The specification of a model as OpenNMT trains them, as far as CTranslate2 can tell.

    Sources have no end, the decoder begins with `<s>`; and what else is not fairseq's: GELU by a
    sigmoid, maps without biases, computed positions, another scale of embeddings.
    """
    spec = random_spec(task, model)
    spec.config.decoder_start_token, spec.config.add_source_eos = "<s>", False
    for side in (spec.encoder, spec.decoder):
        side.activation = np.int8(4)
        side.scale_embeddings = 2.5
        side.position_encodings.encodings = "__optional"
        side.layer[0].ffn.linear_0.bias = "__optional"
        side.layer[1].self_attention.linear[0].bias = "__optional"
    return spec


def prenorm(seed: int = 0) -> tuple[Any, Any]:
    """A task and a random pre-norm model."""
    task = task_for("prenorm")
    return task, tiny_model(task, "prenorm", torch.float32, seed)


def save(spec: Any, folder: Path, quantization: str | None = None) -> Path:
    """Write a specification as a converter does."""
    spec.validate()
    spec.optimize(quantization)
    folder.mkdir(parents=True)
    spec.save(str(folder))
    return folder


def open_model_of(folder: Path) -> Path:
    """A folder of a random model whose sources have no end."""
    return save(open_nmt(*prenorm()), folder)


def write_bin(
    file: Path,
    variables: Mapping[str, Any],
    aliases: Mapping[str, str] | None = None,
    version: int = 6,
    revision: int = 7,
    spec: str = "TransformerSpec",
) -> None:
    """Write a file of weights of any version, by the rules of CTranslate2's."""

    def name(text: str) -> bytes:
        content = text.encode() + b"\0"
        return struct.pack("<H", len(content)) + content

    parts = [struct.pack("<I", version), name(spec), struct.pack("<II", revision, len(variables))]
    for key, value in variables.items():
        weight = np.asarray(value)
        parts += [name(key), struct.pack(f"<B{weight.ndim}I", weight.ndim, *weight.shape)]
        if version >= 4:
            parts.append(struct.pack("<BI", TYPES.index(weight.dtype.name), weight.nbytes))
        else:
            parts.append(struct.pack("<BI", weight.itemsize, weight.size))
        parts.append(weight.tobytes())
    parts.append(struct.pack("<I", len(aliases or {})))
    parts += [name(one) + name(other) for one, other in (aliases or {}).items()]
    file.write_bytes(b"".join(parts))


def variables_of(spec: Any) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The variables of a specification that is saved, and its aliases."""
    pairs = spec.variables(ordered=True)
    aliases = {name: value for name, value in pairs if isinstance(value, str)}
    return {name: value.numpy() for name, value in pairs if name not in aliases}, aliases


def argos_folder(folder: Path, words: Sequence[str]) -> Path:
    """A folder of a model as Argos' are, whose words come behind OpenNMT's special ones."""
    task, _ = prenorm()
    dictionary = task.source_dictionary
    for word in words:
        dictionary.add_symbol(word)
    spec = open_nmt(task, tiny_model(task, "prenorm", torch.float32, 2))
    save(spec, folder / "model", "int8")
    about = {"from_code": "en", "to_code": "de", "package_version": "1.0", "argos_version": "1.5"}
    (folder / "metadata.json").write_text(json.dumps(about), "utf-8")
    return folder


def zipped(folder: Path, file: Path) -> Path:
    """A folder in a zip, as its only one."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, f"translate-en_de-1_0/{path.relative_to(folder)}")
    return file


class Judge:
    """CTranslate2 with a folder that it converted, in fp32, and its own tokens."""

    def __init__(self, folder: Path, prefix: Sequence[str] = (), end: Sequence[str] = ()) -> None:
        import ctranslate2

        self.engine = ctranslate2.Translator(
            str(folder), device="cpu", compute_type="float32", intra_threads=1
        )
        self.prefix, self.end = list(prefix), list(end)

    def translate(
        self, lines: Sequence[str], beam: int, longest: int, **rules: Any
    ) -> list[list[str]]:
        """The best outputs of lines of words, greedy with a beam of 1."""
        found = self.engine.translate_batch(
            [[*line.split(), *self.end] for line in lines],
            target_prefix=[self.prefix] * len(lines) if self.prefix else None,
            beam_size=beam,
            max_decoding_length=longest,
            min_decoding_length=0,
            **rules,
        )
        return [result.hypotheses[0] for result in found]

    def is_tie(self, line: str, ours: list[str], theirs: list[str], beam: int) -> bool:
        """Whether two outputs are equally good to 1e-4: where they part, or a beam's as wholes."""
        given = [*line.split(), *self.end]
        scores = [found.log_probs for found in self.engine.score_batch([given] * 2, [ours, theirs])]
        if beam > 1:
            own, other = (sum(score) / len(score) for score in scores)
            return abs(own - other) < 1e-4
        both = [[*ours, "</s>"], [*theirs, "</s>"]]
        at = next(i for i, pair in enumerate(zip(*both, strict=False)) if pair[0] != pair[1])
        return abs(scores[0][at] - scores[1][at]) < 1e-4
