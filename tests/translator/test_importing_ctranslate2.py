"""Models of CTranslate2 and Argos: outputs of CTranslate2's own searches, and bad input."""

import argparse
import functools
import json
import random
import shutil
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.builders import (
    DEMO,
    Limits,
    collate,
    decode,
    demo,
    lend,
    sources,
    task_for,
    tiny_model,
)
from support.commands import Spoil, alone, lose, put
from support.converted import (
    Judge,
    argos_folder,
    open_model_of,
    prenorm,
    random_spec,
    save,
    small_spec,
    spec_of,
    variables_of,
    write_bin,
    zipped,
)
from support.foreign import load, pieces, saved, words_of
from support.losses import build

import fairseq_paradec
from fairseq_paradec.cli.main import main
from fairseq_paradec.engine.native.packing import packed
from fairseq_paradec.plugin.files import options_of, read_checkpoint
from fairseq_paradec.translator.batches import collate as side_by_side
from fairseq_paradec.translator.importing.model_bin import ModelBin

pytest.importorskip("ctranslate2")

EN_DE = ["--source", "en", "--target", "de"]
SPACE = ["--tokenizer", "space"]
#: Tokens of an output, at most.
LONGEST = 20
FORMS = ("float32", "float16", "bfloat16", "int8", "int8_float16", "int8_bfloat16", "int16")


def imported(given: Path, out: Path, *flags: str) -> Any:
    """What `paradec import` makes of a model, loaded."""
    assert main(["import", str(given), str(out), *EN_DE, *flags]) == 0
    return fairseq_paradec.load(out)


def outputs(model: Any, lines: Sequence[str], beam: int = 1, **rules: Any) -> list[list[str]]:
    """The words of the best outputs of plain text, without `</s>`, greedy with a beam of 1."""
    options: dict[str, Any] = {"max_len_b": LONGEST, "decoding": "greedy"} | rules
    if beam > 1:
        options |= {"decoding": "beam", "beam": beam}
    read = [model.sources.encode_line(model.processing.encode(line)) for line in lines]
    places, batch = side_by_side(read, range(len(lines)))
    rows = model.decode(model.generator(options), batch)
    words = {
        place: [model.targets[token] for token in row[0]["tokens"].tolist()[:-1]]
        for place, row in zip(places, rows, strict=True)
    }
    return [words[place] for place in range(len(lines))]


def compare(model: Any, judge: Judge, lines: Sequence[str], least: int) -> None:
    """Check that greedy and beam 5 write what CTranslate2 does, but for ties.

    Of so many lines at least, outputs end before the limit: there the two count `</s>` otherwise.
    """
    for beam in (1, 5):
        theirs, compared = judge.translate(lines, beam, LONGEST), 0
        for line, ours, wanted in zip(lines, outputs(model, lines, beam), theirs, strict=True):
            if max(len(ours), len(wanted)) >= LONGEST:
                assert beam > 1 or ours[:LONGEST] == wanted[:LONGEST]
                continue
            compared += 1
            assert ours == wanted or judge.is_tie(line, ours, wanted, beam), (line, ours, wanted)
        assert compared >= least, compared
        assert len({*map(tuple, theirs)}) > 1


def random_lines(words: Sequence[str], count: int = 24, seed: int = 0) -> list[str]:
    """Lines of random words."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(words, k=rng.randint(1, 12))) for _ in range(count)]


@functools.cache
def demo_lines() -> list[str]:
    """Sentences of the demo, split as its model reads them."""
    model = fairseq_paradec.load(DEMO)
    lines = (DEMO / "raw/demo.en").read_text("utf-8").splitlines()[:40]
    return [model.processing.encode(line) for line in lines]


@functools.cache
def demo_spec() -> Callable[[], Any]:
    """Makes the demo's specification anew."""
    task, model, _ = demo()
    state = read_checkpoint(str(DEMO / "model.pt"))
    model.flags = argparse.Namespace(**options_of(state["cfg"]["model"]))
    return lambda: spec_of(task, model)


@pytest.mark.parametrize("form", FORMS)
def test_the_demo_comes_back_from_every_type(form: str, tmp_path: Path, capsys: Any) -> None:
    folder = save(demo_spec()(), tmp_path / "there", form)
    model = imported(folder, tmp_path / "out", *SPACE)
    said = capsys.readouterr().out.splitlines()
    kind = form.partition("_")[0]
    assert (said[0] == f"{tmp_path / 'out'}: a model folder, en to de") == (form == "float32")
    assert form == "float32" or f"weights: {kind}, widened to fp32" in said[0]
    compare(model, Judge(folder), demo_lines(), 40)
    if form == "float32":
        there = demo()[1].state_dict()
        own = model.core.model.weights
        assert all(np.array_equal(there[n].numpy(), w) for n, w in own.items() if ".layers." in n)


def test_rules_are_those_of_ctranslate2(tmp_path: Path, capsys: Any) -> None:
    """Of the demo, by greedy search: what others are, docs/importing.md says."""
    folder = save(demo_spec()(), tmp_path / "there")
    model, judge, lines = imported(folder, tmp_path / "out", *SPACE), Judge(folder), demo_lines()
    free = judge.translate(lines, 1, LONGEST)
    for rules in (
        {"repetition_penalty": 9.0},
        {"repetition_penalty": 0.2, "no_repeat_ngram_size": 2},
        {"suppress_sequences": [["Ein"], *(words[1:3] for words in free)]},
    ):
        theirs = judge.translate(lines, 1, LONGEST, **rules)
        if "suppress_sequences" in rules:
            rules = {"suppress_sequences": "\n".join(map(" ".join, rules["suppress_sequences"]))}
        ours = outputs(model, lines, **rules)
        for a, b in zip(ours, theirs, strict=True):
            assert a[:LONGEST] == b[:LONGEST], rules
        assert ours != free


def test_int8_computes_with_the_integers_of_the_file(tmp_path: Path) -> None:
    """A row's largest number is 127 steps in both, so rounding to 8 bits again changes nothing."""
    folder = save(demo_spec()(), tmp_path / "there", "int8")
    content = ModelBin(folder / "model.bin")
    name = "encoder/layer_1/ffn/linear_0/weight"
    weight = content.weight(name)
    steps = np.rint(weight * (np.float32(127) / np.abs(weight).max(1, keepdims=True)))
    np.testing.assert_array_equal(steps, content._variables[name])


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("default", {}),
    ("prenorm", {"activation_fn": "swish"}),
    ("share_all", {}),
    ("share_decoder", {"activation_fn": "gelu_accurate"}),
    ("separate", {}),
    ("layernorm_embedding", {}),
    ("no_scale", {"activation_fn": "gelu"}),
    ("learned_positions", {"seed": 1, "encoder_layers": 1, "decoder_layers": 3}),
]


@pytest.mark.parametrize(("variant", "options"), VARIANTS, ids=[name for name, _ in VARIANTS])
def test_random_models_of_fairseq(variant: str, options: dict[str, Any], tmp_path: Path) -> None:
    task = task_for(variant)
    model = tiny_model(task, variant, torch.float32, **options, max_target_positions=64)
    folder = save(random_spec(task, model), tmp_path / "there")
    own = imported(folder, tmp_path / "out", *SPACE)
    compare(own, Judge(folder), random_lines(task.source_dictionary.symbols[4:]), 8)


@functools.cache
def open_model(folder: Path) -> tuple[Path, Any]:
    """Such a model's folder, and what is imported of it."""
    there = open_model_of(folder / "there")
    return there, imported(there, folder / "out", *SPACE)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """An OpenNMT-like model's folder, and what is imported of it."""
    return open_model(tmp_path_factory.mktemp("open"))


def test_a_model_whose_sources_have_no_end(opened: tuple[Path, Any]) -> None:
    folder, model = opened
    assert not model.core.model.architecture.source_end
    compare(model, Judge(folder), random_lines(prenorm()[0].source_dictionary.symbols[4:]), 8)


def test_sources_without_end_in_every_engine(opened: tuple[Path, Any]) -> None:
    """fairseq's own search, torch's passes and native ones, two kinds of drafters, the audit."""
    _, folder = opened[0], opened[1].path
    task, model = load(folder)
    model.make_generation_fast_()
    assert not isinstance(packed(opened[1].core.model, "fp32"), str)
    sample = collate(task, sources(task, (5, 9, 1, 12, 7, 8, 3, 4)))
    limits = Limits(max_len_b=12, min_len=0)
    wanted = [
        row["tokens"].tolist()
        for row in decode(task, [model], sample, limits, decoding="beam", beam=1)
    ]
    assert len({*map(tuple, wanted)}) > 1
    path = str(folder / "model.safetensors")
    new = (build(task, arch, encoder_from=path) for arch in ("shallow_decoder", "block_nat_tiny"))
    shallow, blocks = (lend(task, model, drafter.eval()) for drafter in new)
    for flags in (
        {"decoding": "greedy", "engine": "torch"},
        {"decoding": "greedy", "engine": "native"},
        {"decoding": "hgj", "engine": "native", "audit": True},
        {"decoding": "assisted", "engine": "native", "drafter_path": shallow},
        {"decoding": "gad", "engine": "native", "drafter_path": blocks},
    ):
        rows = decode(task, [model], sample, limits, **flags)
        assert [row["tokens"].tolist() for row in rows] == wanted, flags
    # The end is read by a model that is like it but for this.
    model.encoder.without_end = lambda tokens: tokens
    rows = decode(task, [model], sample, limits, decoding="beam", beam=1)
    assert [row["tokens"].tolist() for row in rows] != wanted


def test_a_decoder_that_begins_with_zeros(tmp_path: Path) -> None:
    """As Marian's models, whose last norm and biases of outputs are their own."""
    task, model = prenorm()
    spec = random_spec(task, model)
    spec.decoder.start_from_zero_embedding = True
    spec.decoder.projection.bias[2:] = np.linspace(-1, 1, len(task.target_dictionary) - 2)
    folder = save(spec, tmp_path / "there")
    own = imported(folder, tmp_path / "out", *SPACE)
    compare(own, Judge(folder), random_lines(task.source_dictionary.symbols[4:]), 8)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_older_files_are_read(version: int, tmp_path: Path) -> None:
    """Settings of tokens among the variables, those of layers once for both sides, text files."""
    task, model = prenorm()
    spec = random_spec(task, model)
    folder = save(spec, tmp_path / "there", "int8")
    variables, aliases = variables_of(spec)
    for name in ("num_heads", "pre_norm", "activation"):
        for side in ("decoder", "encoder"):
            variables[name] = variables.pop(f"{side}/{name}")
    for name in [*variables]:
        if name.endswith(("multi_query_attention", "embeddings_merge")):
            del variables[name]
    variables |= {"with_source_eos": np.int8(1), "with_target_bos": np.int8(0)}
    write_bin(folder / "model.bin", variables, aliases, version, 4)
    (folder / "config.json").unlink()
    words = json.loads((folder / "shared_vocabulary.json").read_text("utf-8"))
    (folder / "shared_vocabulary.json").unlink()
    (folder / "shared_vocabulary.txt").write_text("\n".join(words) + "\n", "utf-8")
    own = imported(folder, tmp_path / "out", *SPACE)
    compare(own, Judge(folder), random_lines(words[4:]), 8)


def test_a_model_with_tokens_of_languages(tmp_path: Path, capsys: Any) -> None:
    """As NLLB: transformers' tokenizer puts the language before a source and `</s>` behind it."""
    task = task_for("share_all")
    languages = ["eng_Latn", "deu_Latn", *(f"x{letter}x_Latn" for letter in "abcdefgh")]
    for word in (*languages, *words_of(pieces("de"))):
        task.source_dictionary.add_symbol(word)
    spec = random_spec(task, tiny_model(task, "share_all", torch.float32, 1))
    spec.config.add_source_eos = False
    folder = save(spec, tmp_path / "there")
    shutil.copy(pieces("de"), folder / "sentencepiece.bpe.model")
    pair = ["--source", "eng_Latn", "--target", "deu_Latn"]
    assert main(["import", "ct2", str(folder), str(tmp_path / "out"), *pair]) == 0
    assert "sources end with </s>" in capsys.readouterr().out
    model = fairseq_paradec.load(tmp_path / "out")
    assert model.processing.encode("Ein Hund").split()[0] == "eng_Latn"
    lines = (DEMO / "raw/demo.de").read_text("utf-8").splitlines()[:12]
    judge = Judge(folder, ["deu_Latn"], ["</s>"])
    split = [model.processing.encode(line) for line in lines]
    for ours, theirs in zip(outputs(model, lines), judge.translate(split, 1, LONGEST), strict=True):
        assert ours[: LONGEST - 2] == theirs[: LONGEST - 2]
    assert (
        main(
            ["import", str(folder), str(tmp_path / "new"), "--source", "eng_Latn", "--target", "de"]
        )
        == 2
    )
    assert "'de'; allowed: one of the model's 10 tokens" in capsys.readouterr().err


def test_a_marian_model_by_the_converter_of_transformers(tmp_path: Path, capsys: Any) -> None:
    """Its decoder begins with zeros; `</s>` behind sources is the tokenizer's."""
    from ctranslate2.converters import TransformersConverter

    given, folder = saved("marian").folder, tmp_path / "there"
    TransformersConverter(str(given)).convert(str(folder))
    for name in ("source.spm", "target.spm"):
        shutil.copy(given / name, folder / name)
    capsys.readouterr()
    model = imported(folder, tmp_path / "out")
    assert "sources end with </s>" in capsys.readouterr().out
    assert model.folder.bpe == "sentencepiece_pair"
    lines = (DEMO / "raw/demo.en").read_text("utf-8").splitlines()[:20]
    split = [model.processing.encode(line) for line in lines]
    judge = Judge(folder, end=["</s>"])
    for beam in (1, 5):
        theirs = judge.translate(split, beam, LONGEST)
        ended = [number for number, row in enumerate(theirs) if len(row) < LONGEST]
        ours = outputs(model, lines, beam)
        assert len(ended) > 5 and [ours[n] for n in ended] == [theirs[n] for n in ended]


# ---- Argos --------------------------------------------------------------------------------------


def test_a_package_of_argos(tmp_path: Path) -> None:
    import sentencepiece

    folder = argos_folder(tmp_path / "package", words_of(pieces("en")))
    shutil.copy(pieces("en"), folder / "sentencepiece.model")
    (folder / "stanza").mkdir()
    (folder / "stanza" / "en.pt").write_bytes(b"not read")
    file = zipped(folder, tmp_path / "en_de.argosmodel")
    assert main(["import", str(file), str(tmp_path / "out")]) == 0
    assert main(["import", "argos", str(folder), str(tmp_path / "again")]) == 0
    model = fairseq_paradec.load(tmp_path / "out")
    assert (model.folder.source, model.folder.target) == ("en", "de")
    split = sentencepiece.SentencePieceProcessor(model_file=str(pieces("en")))
    lines = (DEMO / "raw/demo.en").read_text("utf-8").splitlines()[:20]
    given = [" ".join(split.encode(line, out_type=str)) for line in lines]
    judge = Judge(folder / "model")
    for beam in (1, 5):
        theirs = judge.translate(given, beam, LONGEST)
        ended = [number for number, row in enumerate(theirs) if len(row) < LONGEST]
        ours = outputs(model, lines, beam)
        assert len(ended) > 5 and [ours[n] for n in ended] == [theirs[n] for n in ended]
        texts = model.translate(lines, decoding="beam", beam=beam, max_len_b=LONGEST)
        for number in ended:
            if not {"<s>", "<unk>"} & {*theirs[number]}:
                wanted = "".join(theirs[number]).replace("\u2581", " ").strip()
                assert texts[number] == wanted
    again = fairseq_paradec.load(tmp_path / "again")
    assert outputs(again, lines) == outputs(model, lines)


def test_a_package_of_argos_with_bpe(tmp_path: Path) -> None:
    from sacremoses import MosesPunctNormalizer, MosesTokenizer
    from subword_nmt.apply_bpe import BPE

    codes = DEMO / "codes.bpe"
    with open(codes, encoding="utf-8") as opened:
        split = BPE(opened)
    normalize, tokenize = MosesPunctNormalizer("en").normalize, MosesTokenizer("en").tokenize
    lines = ["A well-known man\u2019s dog \u2013 \u201cbig\u201d \u2026", "Two men & a cat."]
    given = [
        " ".join(split.segment_tokens(" ".join(tokenize(normalize(line))).split(" ")))
        for line in lines
    ]
    assert "well-@@" in given[0] or "well-known" in given[0].replace("@@ ", "")
    words = sorted({word for line in given for word in line.split()})
    folder = argos_folder(tmp_path / "package", words)
    shutil.copy(codes, folder / "bpe.model")
    file = zipped(folder, tmp_path / "en_de.argosmodel")
    assert main(["import", str(file), str(tmp_path / "out")]) == 0
    model = fairseq_paradec.load(tmp_path / "out")
    assert [model.processing.encode(line) for line in lines] == given
    theirs = Judge(folder / "model").translate(given, 1, LONGEST)
    assert outputs(model, lines) == theirs


# ---- bad input ----------------------------------------------------------------------------------


@functools.cache
def small(folder: Path) -> tuple[Path, dict[str, np.ndarray], dict[str, str]]:
    """A folder of a small model, its variables and aliases."""
    spec = small_spec()
    return save(spec, folder / "small", "int8"), *variables_of(spec)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a small model is."""
    folder = tmp_path_factory.mktemp("given")
    small(folder)
    return folder


def setting(**changes: Any) -> Spoil:
    """Change config.json."""
    return put("config.json", lambda was: json.dumps(json.loads(was) | changes).encode())


LINEAR = "encoder/layer_0/ffn/linear_0/weight"
#: What is changed of variables: a name and its new value; None: it is lost.
BAD_VARIABLES: list[tuple[dict[str, Any], str]] = [
    ({LINEAR: None}, "there is no encoder/layer_0/ffn/linear_0"),
    ({f"{LINEAR}_scale": None}, f"there is no {LINEAR}_scale"),
    ({f"{LINEAR}_scale": np.ones(3, np.float32)}, f"{LINEAR}_scale of size (3,)"),
    ({f"{LINEAR}_scale": np.zeros(32, np.float32)}, f"{LINEAR}_scale"),
    ({LINEAR: np.zeros((32, 16), np.int32)}, "whole numbers of 32 bits"),
    ({LINEAR: np.zeros(32, np.float32), f"{LINEAR}_scale": None}, "of size (32,)"),
    ({LINEAR: np.zeros((32, 9), np.float32), f"{LINEAR}_scale": None}, "fc1.weight|(32, 9)"),
    (
        {"encoder/layer_0/self_attention/linear_0/weight": np.zeros((47, 16), np.float32)},
        "(47, 16)",
    ),
    ({"encoder/num_heads": np.int16(3)}, "attention heads of the encoder|got 3"),
    ({"encoder/num_heads": np.zeros(2, np.int16)}, "encoder/num_heads is no number"),
    ({"encoder/activation": np.int8(6), "decoder/activation": np.int8(6)}, "activation|got 6"),
    ({"encoder/activation": np.int8(2)}, "activation|the same in encoder and decoder"),
    ({"decoder/alibi": np.int8(1)}, "decoder/alibi"),
    (
        {"encoder/layer_0/ffn/linear_0_noact/weight": np.zeros((32, 16), np.float32)},
        "linear_0_noact",
    ),
    ({"encoder/layer_0/self_attention/rotary_dim": np.int32(8)}, "rotary_dim|no known use"),
    (
        {"decoder/layer_0/self_attention/relative_position_keys": np.zeros((3, 8), np.float32)},
        "relative_position_keys",
    ),
    ({"encoder/layer_0/ffn/layer_norm/beta": None}, "an RMS norm"),
    ({"encoder/embeddings_1/weight": np.zeros((9, 4), np.float32)}, "embeddings_1/weight"),
    ({"decoder/project_in/weight": np.zeros((9, 4), np.float32)}, "project_in/weight"),
    ({"encoder/scale_embeddings": np.float32("nan")}, "scale_embeddings is nan"),
    ({"decoder/projection/bias": np.zeros(7, np.float32)}, "bias of the output|(7,)"),
]
BAD_FILES: list[tuple[Spoil, str]] = [
    (lose("model.bin"), "DIR|a folder with model.bin"),
    (lose("config.json"), "config.json|missing"),
    (lose("shared_vocabulary.json"), "shared_vocabulary.json, shared_vocabulary.txt"),
    (put("shared_vocabulary.json", b"{}"), "shared_vocabulary.json|a list of tokens"),
    (put("shared_vocabulary.json", b'["<s>", "</s>"]'), "no word <unk>"),
    (put("shared_vocabulary.json", b'["<s>", "</s>", "<unk>"]'), "(40, 16)|(3, 16)"),
    (put("shared_vocabulary.json", b"\xff"), "shared_vocabulary.json"),
    (setting(decoder_start_token=None), "decoder_start_token|None|a token"),
    (setting(decoder_start_token="<x>"), "decoder_start_token|'<x>'"),
    (setting(layer_norm_epsilon=1e-6), "layer_norm_epsilon"),
    (setting(multi_query_attention=True), "multi_query_attention"),
    (setting(add_source_bos=True), "sources begin with|['<s>']|--sentencepiece-source"),
    (setting(add_source_eos="yes"), "add_source_eos|'yes'"),
    (lambda folder: None, "--sentencepiece-source|--bpe-codes"),
    (put("model.bin", b""), "model.bin|empty"),
    (put("model.bin", lambda was: was + b"\0"), "1 bytes follow"),
    (put("model.bin", lambda was: b"\x09" + was[1:]), "version|got 9"),
    (
        put("model.bin", lambda was: was.replace(b"TransformerSpec", b"WhisperSpecific")),
        "specification|WhisperSpecific",
    ),
    (
        put("model.bin", lambda was: was.replace(b"TransformerSpec\0\7", b"TransformerSpec\0\x63")),
        "revision|99",
    ),
]


def refused(folder: Path, out: Path, capsys: Any, words: str, flags: Sequence[str] = SPACE) -> None:
    """Check that a model is refused in one line, and that nothing is written."""
    capsys.readouterr()
    kind = "ct2" if folder.is_dir() else "argos"
    assert main(["import", kind, str(folder), str(out), *EN_DE, *flags]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and all(word in said for word in words.split("|")), said
    assert not out.exists() and not [*out.parent.glob(f".{out.name}*")]


@pytest.mark.parametrize("number", range(len(BAD_VARIABLES)))
def test_bad_variables_are_named(number: int, given: Path, tmp_path: Path, capsys: Any) -> None:
    changes, words = BAD_VARIABLES[number]
    made, variables, aliases = small(given)
    folder = Path(shutil.copytree(made, tmp_path / "folder"))
    changed = {name: w for name, w in (variables | changes).items() if w is not None}
    write_bin(folder / "model.bin", changed, aliases)
    refused(folder, tmp_path / "out", capsys, words)


@pytest.mark.parametrize("number", range(len(BAD_FILES)))
def test_bad_files_are_named(number: int, given: Path, tmp_path: Path, capsys: Any) -> None:
    spoil, words = BAD_FILES[number]
    folder = Path(shutil.copytree(given / "small", tmp_path / "folder"))
    spoil(folder)
    flags = [] if "--bpe-codes" in words else SPACE
    refused(folder, tmp_path / "out", capsys, words, flags)


def test_a_file_that_is_cut_short_is_refused(given: Path, tmp_path: Path, capsys: Any) -> None:
    made = small(given)[0]
    folder = Path(shutil.copytree(made, tmp_path / "folder"))
    size = (made / "model.bin").stat().st_size
    whole = (made / "model.bin").read_bytes()
    for end in [*range(1, 80), *range(80, size, size // 60), size - 1]:
        (folder / "model.bin").write_bytes(whole[:end])
        refused(folder, tmp_path / "out", capsys, "model.bin")


def test_names_that_come_twice_or_stand_for_nothing(
    given: Path, tmp_path: Path, capsys: Any
) -> None:
    made, variables, aliases = small(given)
    folder = Path(shutil.copytree(made, tmp_path / "folder"))
    twice = aliases | {LINEAR: LINEAR}
    for wrong, words in (({"a": "b"}, "'a' stands for 'b'"), (twice, "comes twice")):
        write_bin(folder / "model.bin", variables, wrong)
        refused(folder, tmp_path / "out", capsys, words)
    size = np.zeros((1, 1), np.float32)
    write_bin(folder / "model.bin", {"a": size, "b": size})
    content = (folder / "model.bin").read_bytes()
    (folder / "model.bin").write_bytes(content.replace(b"b\0", b"a\0"))
    refused(folder, tmp_path / "out", capsys, "'a' comes twice")
    huge = b"\1\0\0\0\1\0\0\0" + b"\0\4\0\0\0"
    for new in (b"\xff\xff\xff\xff" * 2, b"\0\0\1\0\0\0\1\0"):
        changed = content.replace(huge, new + huge[8:])
        assert changed != content
        (folder / "model.bin").write_bytes(changed)
        refused(folder, tmp_path / "out", capsys, "bytes for a variable of size")


def test_a_small_file_does_not_stand_for_a_large_model(
    given: Path, tmp_path: Path, capsys: Any
) -> None:
    made, variables, _ = small(given)
    folder = Path(shutil.copytree(made, tmp_path / "folder"))
    first = {n: n.split("/", 2)[2] for n in variables if n.startswith("encoder/layer_0/")}
    aliases = {
        f"encoder/layer_{at}/{rest}": name for at in range(1, 3000) for name, rest in first.items()
    }
    write_bin(folder / "model.bin", variables, small(given)[2] | aliases)
    refused(folder, tmp_path / "out", capsys, "model.bin")


def test_hostile_packages_are_refused(given: Path, tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "package"
    shutil.copytree(small(given)[0], folder / "model")
    (folder / "metadata.json").write_text('{"from_code": "en", "to_code": "de"}', "utf-8")
    file = zipped(folder, tmp_path / "x.argosmodel")
    refused(file, tmp_path / "out", capsys, "sentencepiece.model, or bpe.model", [])
    whole = file.read_bytes()
    bad: list[tuple[dict[str, bytes], str]] = [
        ({"p/../../x": b""}, "'p/../../x'|all lie in it"),
        ({"/etc/x": b""}, "'/etc/x'"),
        ({"p\\..\\x": b""}, "all lie in it"),
        ({"p/zeros": bytes(40_000_000)}, "it unpacks to"),
        ({"p/metadata.json": b"{"}, "metadata.json|JSON"),
        ({"p/metadata.json": b'{"type": "sbd"}'}, "type|'sbd'"),
        ({"p/metadata.json": b"{}", "p/sentencepiece.model": b"x"}, "x.argosmodel/model|model.bin"),
        ({"p/other": b""}, "metadata.json|missing"),
    ]
    for content, words in bad:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in content.items():
                archive.writestr(name, text)
        refused(file, tmp_path / "out", capsys, words, [])
    file.write_bytes(whole)
    with pytest.warns(UserWarning), zipfile.ZipFile(file, "a") as archive:
        archive.writestr("translate-en_de-1_0/metadata.json", b"{}")
    refused(file, tmp_path / "out", capsys, "comes twice", [])
    for end in range(0, len(whole), len(whole) // 40):
        file.write_bytes(whole[:end])
        refused(file, tmp_path / "out", capsys, "x.argosmodel", [])
    assert not (tmp_path / "x").exists() and not (tmp_path.parent / "x").exists()


def test_words_say_what_is_allowed(given: Path, tmp_path: Path, capsys: Any) -> None:
    folder = str(small(given)[0])
    ct2 = [folder, str(tmp_path / "out"), *EN_DE]
    for words, wanted in (
        (["ct", folder, "out"], "FORMAT: got 'ct'; allowed: hf, marian, ct2, argos"),
        (["hf", folder, str(tmp_path / "out")], "model_type"),
        (["a", "b", "c", "d"], "import needs PATH OUT"),
        (
            ["marian", folder, str(tmp_path / "out"), "--tokenizer", "space"],
            "--tokenizer space needs",
        ),
        ([str(tmp_path), str(tmp_path / "out")], "PATH: got"),
        ([*ct2, "--sentencepiece-target", "a"], "-target a needs --sentencepiece-source"),
        ([*ct2, "--sentencepiece-source", "a", "--bpe-codes", "b"], "-source a excludes --bpe"),
        ([*ct2, "--sentencepiece-source", "a"], "a folder with this file; it is missing"),
        ([*ct2, "--bpe-codes", "a"], "--bpe subword_nmt needs its file"),
        ([*ct2, "--tokenizer", "x"], "--tokenizer: got 'x'; allowed: moses, nltk, space, argos"),
    ):
        assert main(["import", *words]) == 2
        assert wanted in capsys.readouterr().err


def test_without_torch(given: Path, tmp_path: Path) -> None:
    """Flags may stand between the words."""
    words = ("ct2", "--source", "en", small(given)[0], "--target", "de", tmp_path / "out")
    done = alone("import", *words, *SPACE)
    assert done.returncode == 0, done.stderr
    said = alone(
        "translate", "--model", tmp_path / "out", "--text", "w1 w2", "--decoding", "greedy"
    )
    assert said.returncode == 0, said.stderr
