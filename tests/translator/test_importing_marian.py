"""Marian's own files: outputs of its formulas, whatever the shape and the format, and bad input."""

import functools
import json
import random
import shutil
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.builders import DEMO
from support.commands import Spoil, alone, lose, put
from support.foreign import load, pieces, words_of
from support.marian import (
    BERGAMOT8,
    BERGAMOT16,
    FLOAT16,
    FLOAT32,
    INTGEMM8,
    INTGEMM16,
    SETTINGS,
    Marian,
    binary,
    own_pieces,
    random_weights,
    write_bin,
    write_npz,
)

import fairseq_paradec
from fairseq_paradec.cli.main import main
from fairseq_paradec.errors import UsageError
from fairseq_paradec.model.architecture import NORM_EPSILON
from fairseq_paradec.translator.importing.marian_files import MarianFile

EN_DE = ["--source", "en", "--target", "de"]
#: Words of an output, at most; numbers by which outputs of all shapes are several.
LONGEST, SEED = 20, 5

NEW = {"version": "v1.12.42 abc 2025"}
PRE = NEW | {"transformer-preprocess": "n", "transformer-postprocess": "da"}
SEPARATE = {"tied-embeddings-all": False}
#: What models have that the one of ``SETTINGS`` has not.
SHAPES: dict[str, dict[str, Any]] = {
    "post-norm": {},
    "pre-norm": PRE | {"transformer-postprocess-top": "n"},
    "pre-norm without a last norm": PRE,
    "tied layers": {"transformer-tied-layers": [1, 2, 1], "dec-depth": 3},
    "no projection": {"transformer-no-projection": True, "transformer-ffn-activation": "relu"},
    "trained positions": {"transformer-train-positions": True},
    "positions that were not trained": {"transformer-train-position-embeddings": True},
    "two tables": SEPARATE | {"tied-embeddings": True, "transformer-decoder-dim-ffn": 48},
    "an output of its own": SEPARATE | {"tied-embeddings-src": True},
    "three tables": SEPARATE | {"output-omit-bias": True},
    "an old GELU": {"transformer-ffn-activation": "gelu"},
    "a new GELU": NEW | {"transformer-ffn-activation": "gelu"},
    "a norm of embeddings": {"transformer-postprocess-emb": "nd"},
}
#: Binary files by the type of their matrices.
KINDS = {
    "float32": FLOAT32,
    "float16": FLOAT16,
    "intgemm8": INTGEMM8,
    "intgemm16": INTGEMM16,
    "Bergamot's intgemm8": BERGAMOT8,
    "Bergamot's intgemm16": BERGAMOT16,
}


@functools.cache
def lines(count: int = 6) -> list[str]:
    """Sentences of the demo, some short."""
    given = (DEMO / "raw/demo.en").read_text("utf-8").splitlines()
    return [line if at % 2 else " ".join(line.split()[:3]) for at, line in enumerate(given[:count])]


@functools.cache
def splitter() -> Any:
    """sentencepiece with the vocabulary of the tests' models."""
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_file=str(own_pieces()))


def new_folder(folder: Path, shape: str = "post-norm") -> tuple[dict[str, Any], dict[str, Any]]:
    """A folder with a vocabulary, and decoder.yml: -> weights and settings of a model for it."""
    settings = SETTINGS | SHAPES[shape]
    folder.mkdir(parents=True)
    shutil.copy(own_pieces(), folder / "vocab.spm")
    (folder / "decoder.yml").write_text("vocabs: [/any/vocab.spm, vocab.spm]\n", "utf-8")
    return random_weights(settings, (128, 128), SEED), settings


def imported(given: Path, out: Path) -> Path:
    """What `paradec import` makes of a model, whose format it finds."""
    assert main(["import", str(given), str(out), *EN_DE]) == 0
    return out


def compare(out: Path, judge: Marian, tolerance: float = 2e-6) -> None:
    """Check logits in float64, and what greedy search writes by native passes, with a judge's."""
    task, model = load(out)
    model = model.double()
    words = task.target_dictionary
    numbers = [splitter().piece_to_id(word) for word in words.symbols]
    known = [at for at, number in enumerate(numbers) if number != 1 or at == words.unk()]
    rng, outputs = random.Random(1), []
    for line in lines():
        source = [*splitter().encode(line), 0]
        target = [rng.randrange(1, 128) for _ in range(9)]
        own = task.source_dictionary
        read = torch.tensor([[own.index(splitter().id_to_piece(number)) for number in source]])
        fed = [words.index(splitter().id_to_piece(number)) for number in target]
        with torch.no_grad():
            logits = model(read, torch.tensor([len(source)]), torch.tensor([[words.eos(), *fed]]))
        theirs = judge.logits(source, target)[:, [numbers[at] for at in known]]
        difference = np.abs(logits[0][0][:, known].numpy() - theirs).max()
        assert difference < tolerance * np.abs(theirs).max()
        outputs.append(judge.greedy(source, LONGEST))
    wanted = [splitter().decode(output[:-1]).strip() for output in outputs]
    ours = fairseq_paradec.load(out).translate(lines(), decoding="greedy", max_len_b=LONGEST)
    assert ours == wanted
    assert len({*map(tuple, outputs)}) > 2


@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_are_those_of_marians_formulas(shape: str, tmp_path: Path) -> None:
    weights, settings = new_folder(tmp_path / "given", shape)
    write_npz(tmp_path / "given/model.npz", weights, settings)
    out = imported(tmp_path / "given/model.npz", tmp_path / "out")
    compare(out, Marian(weights, settings, NORM_EPSILON))
    write_bin(tmp_path / "given/model.bin", weights, settings)
    again = imported(tmp_path / "given/model.bin", tmp_path / "again")
    model = "model.safetensors"
    assert (again / model).read_bytes() == (out / model).read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_binary_models_are_what_they_stand_for(kind: str, tmp_path: Path, capsys: Any) -> None:
    weights, settings = new_folder(tmp_path / "given", "an output of its own")
    meant = write_bin(tmp_path / "given/model.bin", weights, settings, KINDS[kind])
    out = imported(tmp_path / "given", tmp_path / "out")
    said = capsys.readouterr().out
    compare(out, Marian(meant, settings, NORM_EPSILON))
    name = kind.removeprefix("Bergamot's ")
    assert (f"weights: {name}" in said) == (name != "float32")
    assert ("; scales of activations are left out" in said) == (name != kind)


def test_an_output_of_older_versions_is_transposed(tmp_path: Path) -> None:
    weights, settings = new_folder(tmp_path / "given", "three tables")
    write_npz(tmp_path / "given/model.npz", weights, settings)
    out = imported(tmp_path / "given", tmp_path / "out")
    weights["decoder_ff_logit_out_W"] = weights.pop("decoder_ff_logit_out_Wt").T
    write_npz(tmp_path / "given/model.npz", weights, settings)
    again = imported(tmp_path / "given", tmp_path / "again")
    model = "model.safetensors"
    assert (again / model).read_bytes() == (out / model).read_bytes()


# ---- words and text -----------------------------------------------------------------------------


def of_words(folder: Path, words: dict[str, list[str]], form: str = "yml") -> Marian:
    """A folder of a small model of given words by number, of source and target; its judge.

    There is no decoder.yml of the folder, but one of the model alone, as Marian writes it.
    """
    folder.mkdir()
    settings = SETTINGS | SEPARATE | {"tied-embeddings": True}
    sizes = len(words["en"]), len(words["de"])
    weights = random_weights(settings, sizes, SEED)
    write_npz(folder / "model.npz", weights, settings)
    for language, own in words.items():
        texts = {
            "yml": "".join(f"{json.dumps(word)}: {at}\n" for at, word in enumerate(own)),
            "txt": "\n".join(own) + "\n",
        }
        (folder / f"vocab.{language}.{form}").write_text(texts[form], "utf-8")
    names = f"vocabs: [vocab.en.{form}, vocab.de.{form}]\n"
    (folder / "model.npz.decoder.yml").write_text(names, "utf-8")
    (folder / "model.npz.optimizer.npz").write_bytes(b"")
    return Marian(weights, settings, NORM_EPSILON)


@pytest.mark.parametrize("form", ["yml", "txt"])
def test_vocabularies_of_words_with_sentencepiece_beside_them(form: str, tmp_path: Path) -> None:
    words = {one: ["</s>", "<unk>", *words_of(pieces(one)), "no", "1"] for one in ("en", "de")}
    words["en"].insert(9, ">>de<<")
    judge = of_words(tmp_path / "given", words, form)
    for side, language in (("source", "en"), ("target", "de")):
        shutil.copy(pieces(language), tmp_path / f"given/{side}.spm")
    model = fairseq_paradec.load(imported(tmp_path / "given", tmp_path / "out"))
    split = [model.processing.encode(line).split() for line in lines()]
    assert all(line[0] == ">>de<<" for line in split)
    wanted = []
    for line in split:
        source = [words["en"].index(word) if word in words["en"] else 1 for word in line]
        output = judge.greedy([*source, 0], LONGEST)[:-1]
        wanted.append(model.processing.decode(" ".join(words["de"][word] for word in output)))
    assert model.translate(lines(), decoding="greedy", max_len_b=LONGEST) == wanted
    assert len({*wanted}) > 1


def test_models_of_bpe(tmp_path: Path, capsys: Any) -> None:
    demo = fairseq_paradec.load(DEMO)
    split = [demo.processing.encode(line) for line in lines()]
    words = {
        "en": ["</s>", "<unk>", *dict.fromkeys(" ".join(split).split())],
        "de": ["</s>", "<unk>", "Hun@@", "de", "Mann", "."],
    }
    judge = of_words(tmp_path / "given", words)
    shutil.copy(DEMO / "codes.bpe", tmp_path / "given/source.bpe")
    (tmp_path / "given/source.tcmodel").write_bytes(b"")
    model = fairseq_paradec.load(imported(tmp_path / "given", tmp_path / "out"))
    said = capsys.readouterr().out
    assert "text: Moses' rules and source.bpe" in said and "tcmodel" not in said
    assert [model.processing.encode(line) for line in lines()] == split
    wanted = []
    for line in split:
        output = judge.greedy([*(words["en"].index(word) for word in line.split()), 0], LONGEST)
        wanted.append(model.processing.decode(" ".join(words["de"][word] for word in output[:-1])))
    assert model.translate(lines(), decoding="greedy", max_len_b=LONGEST) == wanted
    (tmp_path / "given/source.tcmodel").write_text("The 1\n", "utf-8")
    imported(tmp_path / "given", tmp_path / "again")
    assert "source.tcmodel is not read" in capsys.readouterr().out


def test_a_folder_without_settings_has_the_names_of_firefoxs(tmp_path: Path) -> None:
    weights, settings = new_folder(tmp_path / "one")
    write_bin(tmp_path / "one/model.ende.intgemm.alphas.bin", weights, settings, BERGAMOT8)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    (tmp_path / "one/decoder.yml").unlink()
    (tmp_path / "one/vocab.spm").rename(tmp_path / "one/vocab.ende.spm")
    (tmp_path / "one/lex.50.50.ende.s2t.bin").write_bytes(b"\xf5\x17\x34\x01\xd5\x48\x1a\xf1" * 9)
    (tmp_path / "two/decoder.yml").unlink()
    shutil.copy(tmp_path / "two/vocab.spm", tmp_path / "two/trgvocab.ende.spm")
    (tmp_path / "two/vocab.spm").rename(tmp_path / "two/srcvocab.ende.spm")
    made = [imported(tmp_path / name, tmp_path / f"{name}.out") for name in ("one", "two")]
    first, second = (fairseq_paradec.load(out).translate(lines()) for out in made)
    assert first == second and any(first)


def test_without_torch(tmp_path: Path) -> None:
    weights, settings = new_folder(tmp_path / "given")
    write_bin(tmp_path / "given/model.bin", weights, settings, INTGEMM8)
    done = alone("import", tmp_path / "given/model.bin", tmp_path / "out", *EN_DE)
    assert done.returncode == 0, done.stderr
    imported(tmp_path / "given", tmp_path / "again")
    model = "model.safetensors"
    assert (tmp_path / "out" / model).read_bytes() == (tmp_path / "again" / model).read_bytes()


# ---- bad input ----------------------------------------------------------------------------------


def refused(given: Path, capsys: Any, words: str) -> None:
    """Check that a model is refused in one line, and that nothing is written."""
    capsys.readouterr()
    out = given.parent.with_name("out")
    assert main(["import", "marian", str(given), str(out), *EN_DE]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and all(word in said for word in words.split("|")), said
    assert not out.exists() and not [*out.parent.glob(f".{out.name}*")]


BAD_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"type": "s2s"}, "type|'s2s'|'transformer'"),
    ({"type": "amun"}, "type|'amun'"),
    ({"type": "nematus"}, "type|'nematus'"),
    ({"type": "multi-transformer"}, "type|'multi-transformer'"),
    ({"transformer-decoder-autoreg": "rnn", "dec-cell": "ssru"}, "autoreg|'rnn'|'self-attention'"),
    ({"transformer-decoder-autoreg": "average-attention"}, "autoreg|'average-attention'"),
    ({"right-left": True}, "right-left|True"),
    ({"transformer-ffn-depth": 3}, "transformer-ffn-depth|3"),
    ({"transformer-decoder-ffn-depth": 1}, "transformer-decoder-ffn-depth|1"),
    ({"transformer-ffn-activation": "mish"}, "transformer-ffn-activation|'mish'|'swish'"),
    ({"transformer-pool": True}, "transformer-pool"),
    ({"transformer-attention-mask": "alibi"}, "transformer-attention-mask|'alibi'"),
    ({"transformer-disable-position-embeddings": True}, "disable-position"),
    ({"ulr": True}, "ulr"),
    ({"input-types": ["class", "sequence"]}, "input-types|class"),
    ({"factors-combine": "concat"}, "factors-combine|'concat'"),
    ({"lemma-dim-emb": 9}, "lemma-dim-emb|9"),
    ({"transformer-postprocess": "dar"}, "transformer-|postprocess: 'dar'|'dan'"),
    ({"transformer-postprocess": "dhn"}, "postprocess: 'dhn'"),
    ({"transformer-preprocess": "n"}, "preprocess: 'n', postprocess: 'dan'"),
    ({"transformer-postprocess-top": "n"}, "postprocess-top: 'n'"),
    (PRE | {"transformer-postprocess-top": "an"}, "postprocess-top: 'an'"),
    ({"transformer-postprocess-emb": "a"}, "postprocess-emb: 'a'"),
    (PRE | {"version": "v1.12.41 abc"}, "version|'v1.12.41'|1.12.42 or later"),
    (PRE | {"version": None}, "version|'None'|1.12.42 or later"),
    ({"transformer-tied-layers": [1]}, "transformer-tied-layers|[1]|1 to 2"),
    ({"transformer-tied-layers": [1, 3]}, "transformer-tied-layers|[1, 3]"),
    ({"transformer-tied-layers": "ab"}, "transformer-tied-layers|'ab'"),
    ({"transformer-heads": 3}, "attention heads|3|divisor"),
    ({"transformer-dim-ffn": 9}, "fc1.weight|(32, 16)|(9, 16)"),
    ({"transformer-decoder-dim-ffn": "x"}, "transformer-decoder-dim-ffn|'x'"),
    ({"dim-emb": 8}, "Wemb of size (128, 16)|8 numbers"),
    ({"enc-depth": 3}, "no weight encoder_l3_self_Wq"),
    ({"enc-depth": 1}, "encoder_l2_ffn_W1|an unknown weight"),
    ({"dec-depth": 10**9}, "dec-depth|1000000000"),
    ({"output-omit-bias": True}, "decoder_ff_logit_out_b|an unknown weight"),
    (SEPARATE, "no weight encoder_Wemb"),
    (SEPARATE | {"tied-embeddings-src": True}, "no weight decoder_ff_logit_out_W"),
    ({"transformer-no-projection": True}, "decoder_l1_context_Wo|an unknown weight"),
]


@pytest.mark.parametrize("number", range(len(BAD_SETTINGS)))
def test_settings_that_are_not_known_are_named(number: int, tmp_path: Path, capsys: Any) -> None:
    changes, words = BAD_SETTINGS[number]
    weights, settings = new_folder(tmp_path / "given")
    write_bin(tmp_path / "given/model.bin", weights, settings | changes)
    refused(tmp_path / "given/model.bin", capsys, words)


def test_of_several_models_in_a_folder_none_is_taken(tmp_path: Path, capsys: Any) -> None:
    given, out = tmp_path / "given", tmp_path / "out"
    weights, settings = new_folder(given)
    write_npz(given / "model.npz", weights, settings)
    for name in ("model.npz.best-bleu.npz", "model.npz.optimizer.npz"):
        shutil.copy(given / "model.npz", given / name)
    assert main(["import", str(given), str(out)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "with model.npz, model.npz.best-bleu.npz'; allowed" in said
    assert main(["import", str(given / "model.npz"), str(out), *EN_DE]) == 0


BIN = "model.bin"
BAD_FILES: list[tuple[Spoil, str]] = [
    (lose(BIN), "MODEL: got"),
    (put(BIN, b""), "MODEL: got"),
    (put(BIN, lambda was: b"\2" + was[1:]), "MODEL: got"),
    (put(BIN, lambda was: was[:8] + b"\0" * 8 + was[16:]), "MODEL: got"),
    (put(BIN, lambda was: was + b"\0"), "1 bytes follow"),
    (put(BIN, lambda was: was.replace(b"Wemb\0", b"Wenb\0")), "no weight Wemb"),
    (put(BIN, lambda was: was.replace(b"self_Wk\0", b"self_Wq\0")), "comes twice"),
    (put(BIN, lambda was: was.replace(b"special:model", b"special:nodel")), "special:model.yml"),
    (put(BIN, lambda was: was.replace(b"type: ", b"type{{")), "damaged YAML"),
    (put(BIN, lambda was: was.replace(b"\1\1\0\0", b"\1\2\0\0")), "the type 0x201"),
    (put(BIN, lambda was: was.replace(b"\1\0\1\0", b"\2\0\1\0")), "bytes for 'Wemb' of size"),
    (put(BIN, lambda was: was.replace(b"\1\0\1\0", b"\1\x10\1\0")), "Wemb|the type 0x11001"),
    (put(BIN, lambda was: was.replace(b"\1\0\1\0", b"\1\1\0\0")), "'Wemb' is of int8"),
    (lose("[dv]*"), "decoder.yml, which is missing"),
    (put("decoder.yml", b"vocabs: [vocab.spm]"), "decoder.yml|vocabs: two files"),
    (put("decoder.yml", b"vocabs: [a.spm, a.spm]"), "a.spm|missing"),
    (put("decoder.yml", b"vocabs: [vocab.spm, decoder.yml]"), "two of sentencepiece, or none"),
    (put("decoder.yml", b"- a"), "decoder.yml|a list"),
    (put("vocab.spm", b"x"), "sentencepiece wrote"),
]


@pytest.mark.parametrize("number", range(len(BAD_FILES)))
def test_bad_files_are_named(number: int, tmp_path: Path, capsys: Any) -> None:
    spoil, words = BAD_FILES[number]
    weights, settings = new_folder(tmp_path / "given")
    write_bin(tmp_path / "given/model.bin", weights, settings, INTGEMM8)
    spoil(tmp_path / "given")
    refused(tmp_path / "given/model.bin", capsys, words)


def test_items_that_are_not_there(tmp_path: Path, capsys: Any) -> None:
    """Headers that name more than the file has, and scales that are none."""
    new_folder(tmp_path / "given")
    file = tmp_path / "given/model.bin"
    number = struct.pack("<f", 1.0)
    good = binary([("Wemb", FLOAT32, (2, 2), number * 4)])
    cases = [
        (binary([], count=65536), "it ends after"),
        (good[:16] + b"\xff" * 8 + good[24:], "it ends after"),  # a name's length
        (good[:32] + b"\xff" * 8 + good[40:], "dimensions"),
        (good[:40] + b"\xff" * 8 + good[48:], "it ends after"),  # the size of its bytes
        (good[:61] + b"\xff" * 8 + good[69:], "it ends after"),  # the padding
        (binary([("Wemb", FLOAT32, (2, 2, 1, 1, 1), number * 4)]), "5 dimensions"),
        (binary([("Wemb", FLOAT32, (1 << 30, 1 << 30), number * 4)]), "256 bytes for 'Wemb'"),
        (binary([("Wemb", FLOAT32, (-2, -2), number * 4)]), "of size (-2, -2)"),
        (binary([("Wemb", FLOAT32, (2, 0), number * 4)]), "of size (2, 0)"),
        (binary([("Wemb", 0x804, (2, 2), number * 4)]), "the type 0x804"),
    ]
    cases.append((binary([("a_W1", INTGEMM8, (24, 16), bytes(384) + number)]), "multiples of 16"))
    for value in (0.0, -1.0, float("nan"), float("inf")):
        content = bytes(4) + struct.pack("<f", value)
        cases.append((binary([("Wemb", INTGEMM8, (2, 2), content)]), "the scale"))
    assert good[61:69] == struct.pack("<Q", 256 - 69)
    for content, words in cases:
        file.write_bytes(content)
        refused(file, capsys, words)


def test_a_file_that_is_cut_short_is_refused(tmp_path: Path, capsys: Any) -> None:
    weights, settings = new_folder(tmp_path / "given")
    write_bin(tmp_path / "given/model.bin", weights, settings, INTGEMM8)
    write_npz(tmp_path / "given/model.npz", weights, settings)
    for name in ("model.bin", "model.npz"):
        file = tmp_path / "given" / name
        whole = file.read_bytes()
        for end in [*range(1, 40), *range(40, len(whole), len(whole) // 40), len(whole) - 1]:
            file.write_bytes(whole[:end])
            refused(file, capsys, "")


def test_an_array_that_comes_twice_is_refused(tmp_path: Path, capsys: Any) -> None:
    weights, settings = new_folder(tmp_path / "given")
    write_npz(tmp_path / "given/model.npz", weights, settings)
    with pytest.warns(UserWarning), zipfile.ZipFile(tmp_path / "given/model.npz", "a") as archive:
        archive.writestr("Wemb.npy", archive.read("decoder_l1_self_Wq.npy"))
    refused(tmp_path / "given/model.npz", capsys, "model.npz|comes twice")


def test_a_small_file_does_not_stand_for_a_large_model(tmp_path: Path, capsys: Any) -> None:
    weights, settings = new_folder(tmp_path / "given")
    settings |= {"dec-depth": 1000, "transformer-tied-layers": [1] * 1000, "dim-emb": 128}
    weights = random_weights(settings | {"transformer-dim-ffn": 512}, (128, 128))
    write_bin(tmp_path / "given/model.bin", weights, settings | {"transformer-dim-ffn": 512})
    refused(tmp_path / "given/model.bin", capsys, "bytes that stand for")
    flat = {name: w.reshape(1, 1, *w.shape) for name, w in weights.items()}
    write_npz(tmp_path / "given/model.npz", flat, settings)
    refused(tmp_path / "given/model.npz", capsys, "a size of one or two numbers")


def test_spoilt_files_are_read_or_refused(tmp_path: Path) -> None:
    """Changed bytes, most of them of headers: no other error, and no more memory than the file."""
    weights, settings = new_folder(tmp_path / "given")
    file = tmp_path / "given/model.bin"
    write_bin(file, weights, settings, BERGAMOT8)
    whole, rng, ends = file.read_bytes(), random.Random(0), {"read": 0, "refused": 0}
    for _ in range(400):
        spoilt = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(rng.choice((48, 4096, len(whole) - 8)))
            size = rng.choice((1, 1, 4, 8))
            spoilt[at : at + size] = rng.choice((rng.randbytes(size), b"\xff" * size, bytes(size)))
        file.write_bytes(spoilt)
        try:
            read = MarianFile(file)
            for name in read.left():
                assert read.take(name).nbytes <= 4 * len(whole)
            ends["read"] += 1
        except (UsageError, ValueError):
            ends["refused"] += 1
    assert min(ends.values()) > 20, ends
