"""Imported models: outputs of transformers' own generate, with every search, and bad input."""

import copy
import dataclasses
import functools
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from support.builders import DEMO, Limits, collate, decode, demo, exact_gelu, lend, sources
from support.commands import Spoil, cut, lose, put
from support.foreign import FAMILIES, Saved, load, pieces, save, save_marian, saved, words_of
from support.losses import build
from support.marian import write_bin

import fairseq_paradec
from fairseq_paradec.cli.main import main
from fairseq_paradec.model.model import sinusoids
from fairseq_paradec.plugin.encoders.sentencepiece_pair import SentencepiecePair
from fairseq_paradec.translator import model_folder
from fairseq_paradec.translator.importing import selftest, writing

ARCHS = ("shallow_decoder", "block_nat_tiny")
LENGTHS = (5, 9, 3, 12)


@functools.cache
def imported(family: str) -> tuple[Saved, Path, Any, Any]:
    """A model of a family; what `paradec import hf` makes of it, its task and fairseq's model."""
    made = saved(family)
    out = made.folder.with_name("out")
    languages = [one.strip("_") for one in made.languages] or ["en", "de"]
    assert (
        main(
            [
                "import",
                "hf",
                str(made.folder),
                str(out),
                "--target",
                languages[1],
                "--source",
                languages[0],
            ]
        )
        == 0
    )
    return made, out, *load(out)


def batch(made: Saved, task: Any) -> dict[str, Any]:
    """Random sources of words that both sides know."""
    rows = sources(task, LENGTHS)
    known = [task.source_dictionary.index(word) for word in made.numbers if word[:1] != "<"]
    return collate(task, [row.masked_fill(row == 3, known[0]) for row in rows])


def tokens(hypos: list[dict[str, Any]]) -> list[list[int]]:
    return [hypo["tokens"].tolist() for hypo in hypos]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(family: str) -> None:
    made, _, task, model = imported(family)
    model, there = (copy.deepcopy(one).double() for one in (model, made.model))
    exact_gelu(model)
    words, net_input = task.target_dictionary, batch(made, task)["net_input"]
    fed = torch.randint(4, len(words), (len(LENGTHS), 11))
    fed[:, 0] = words.eos()
    with torch.no_grad():
        ours = model(net_input["src_tokens"], net_input["src_lengths"], fed)[0]
        theirs = made.read(words, fed)["input_ids"]
        theirs[:, 0] = made.model.config.decoder_start_token_id
        given = made.read(words, net_input["src_tokens"])
        wanted = there(**given, decoder_input_ids=theirs).logits
    order = [made.numbers[word] for word in words.symbols]
    torch.testing.assert_close(ours, wanted[..., order], atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_search_gives_the_output_of_transformers(family: str) -> None:
    """fairseq's own searches and this package's, by native passes; drafts change nothing."""
    made, out, task, model = imported(family)
    model.make_generation_fast_()
    sample, words = batch(made, task), task.target_dictionary
    source, several = sample["net_input"]["src_tokens"], bool(made.languages)
    limits = Limits(max_len_b=60, min_len=0, unnormalized=several)
    rest = {"max_new_tokens": 61, "length_penalty": 0.0 if several else 1.0}
    wanted = made.generate(words, source, num_beams=5, **rest)
    for decoding in ("beam", "multiword_beam"):
        assert tokens(decode(task, [model], sample, limits, decoding=decoding, beam=5)) == wanted
    beams, wanted = wanted, made.generate(words, source, max_new_tokens=61)
    assert len(set(map(len, beams + wanted))) > 1 and max(map(len, beams)) < 61
    assert all(words[row[0]] == made.languages[1] for row in wanted if several)
    new = (build(task, arch, encoder_from=str(out / "model.safetensors")) for arch in ARCHS)
    shallow, blocks = (lend(task, model, drafter.eval()) for drafter in new)
    for flags in (
        {"decoding": "beam", "beam": 1},
        {"decoding": "hgj", "engine": "torch"},
        {"decoding": "hgj", "engine": "native"},
        {"decoding": "assisted", "engine": "native", "drafter_path": lend(task, model, model)},
        {"decoding": "assisted", "engine": "native", "drafter_path": shallow},
        {"decoding": "gad", "engine": "native", "drafter_path": blocks},
    ):
        assert tokens(decode(task, [model], sample, limits, **flags)) == wanted, flags


def test_text_is_split_and_joined_as_by_transformers() -> None:
    made, out, *_ = imported("marian")
    tokenizer = made.tokenizer("MarianTokenizer", "source.spm", "target.spm", "vocab.json")
    lines = ["She  sings!", *(DEMO / "raw/demo.en").read_text("utf-8").splitlines()[:12]]
    given = tokenizer(lines, return_tensors="pt", padding=True)
    found = made.model.generate(
        **given,
        max_new_tokens=64,
        do_sample=False,
        forced_eos_token_id=0,
        bad_words_ids=[[made.model.config.pad_token_id]],
    )
    wanted = tokenizer.batch_decode(found, skip_special_tokens=True)
    ours = fairseq_paradec.load(out).translate(lines, decoding="greedy")
    assert ours == wanted and any(ours)


def test_tokens_of_languages_are_no_text() -> None:
    made, out, task, _ = imported("m2m_100")
    folder = model_folder.read(out)
    files = {name: str(out / file) for name, file in folder.bpe_files.items()}
    pair = SentencepiecePair(SimpleNamespace(**files))
    split = pair.encode(">>x<< Ein Hund").split()
    assert split[:2] == ["__en__", ">>x<<"]
    assert pair.decode(f"__de__ {' '.join(split[2:])}") == "Ein Hund"
    there = made.tokenizer("M2M100Tokenizer", "vocab.json", "sentencepiece.bpe.model")
    assert {"__de__", "__fr__", "__zu__"} <= pair.dropped
    mixed = ["__fr__", *split[2:4], "__de__", *split[4:], "__fr__"]
    assert pair.decode(" ".join(mixed)) == "Ein Hund"
    assert there("Ein Hund")["input_ids"] == [
        *(made.numbers[word] for word in pair.encode("Ein Hund").split()),
        2,
    ]


def test_a_trained_model_comes_back_from_both_formats(tmp_path: Path) -> None:
    """The demo with its own positions; in Marian's format, with Marian's, it says other things."""
    task, model, sentences = demo()
    words, sample = task.target_dictionary, collate(task, sentences[:8])
    pad = len(words) - 1
    made = save(tmp_path / "hf", "MarianMT", model, [*range(2, pad + 1), 0, 1], words)
    # sentencepiece's pieces stand for the demo's first words.
    new = {word for language in ("en", "de") for word in words_of(pieces(language))}
    renamed = dict(zip([*made.numbers][2:], sorted(new - made.numbers.keys())))
    made.numbers = {renamed.get(word, word): n for word, n in made.numbers.items()}
    (made.folder / "vocab.json").write_text(json.dumps(made.numbers))
    for name in ("source", "target"):
        shutil.copy(pieces("en" if name == "source" else "de"), made.folder / f"{name}.spm")
    state = made.model.state_dict()
    table = model.decoder.embed_positions.get_embedding(1026, 128, 1)[2:]
    for side in ("encoder", "decoder"):
        state[f"model.{side}.embed_positions.weight"] = table
    pickled(state, False)(made.folder)
    pair = ["--source", "en", "--target", "de"]
    assert main(["import", "hf", str(made.folder), str(tmp_path / "a"), *pair]) == 0
    limits = Limits(max_len_b=40, min_len=0)
    there, own = load(tmp_path / "a")
    for flags in ({"decoding": "beam", "beam": 5}, {"decoding": "hgj"}):
        got = tokens(decode(there, [own], sample, limits, **flags))
        assert got == tokens(decode(task, [model], sample, limits, **flags))
    # Marian has no <pad>, its decoder begins with zeros, and its positions are fairseq's sinusoids.
    for config in (made.model.config, made.model.generation_config):
        config.decoder_start_token_id = pad
    with torch.no_grad():
        made.model.model.shared.weight[pad] = 0
        made.model.final_logits_bias[0, pad] = -1e4
        made.model.final_logits_bias[0, 0] = 1.0
        for side in (made.model.model.encoder, made.model.model.decoder):
            positions = side.embed_positions.weight
            positions.copy_(torch.from_numpy(sinusoids(np.arange(len(positions)), 128)))
    file = save_marian(made, tmp_path / "marian")
    assert main(["import", "marian", str(file), str(tmp_path / "b"), *pair]) == 0
    arrays = dict(np.load(file))
    settings = yaml.safe_load(arrays.pop("special:model.yml").tobytes().rstrip(b"\0"))
    write_bin(file.with_name("model.bin"), arrays, settings)
    given = str(file.with_name("model.bin"))
    assert main(["import", given, str(tmp_path / "c"), *pair]) == 0
    models = (tmp_path / name / "model.safetensors" for name in "bc")
    assert len({one.read_bytes() for one in models}) == 1
    there, own = load(tmp_path / "b")
    source = sample["net_input"]["src_tokens"]
    for beam, decoding in ((1, "greedy"), (5, "multiword_beam")):
        got = tokens(decode(there, [own], sample, limits, beam=beam, decoding=decoding))
        rest = {"num_beams": beam, "max_new_tokens": 41}
        assert got == made.generate(there.target_dictionary, source, **rest)


def change(file: str, **settings: Any) -> Spoil:
    """A step that changes settings in a JSON file."""
    return put(file, lambda was: json.dumps(json.loads(was) | settings).encode())


def pickled(content: Any, is_new: bool = True) -> Spoil:
    """A step that puts a file of torch in the place of the weights; or one of torch before 1.6."""

    def apply(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        file = folder / "pytorch_model.bin"
        torch.save(content, file, _use_new_zipfile_serialization=is_new)

    return apply


EXPANDED = {"weight": torch.zeros(1).expand(10**6, 10**6)}


EN_DE, GENERATE = ["--target", "de"], "generation_config.json"
BAD: list[tuple[str, Any, list[str], str]] = [
    ("marian", lose("config.json"), [], "DIR|config.json"),
    ("marian", change("config.json", model_type="bert"), [], "model_type|bert|marian, m2m_100"),
    ("marian", change("config.json", activation_function="mish"), [], "activation_function|mish"),
    ("marian", change(GENERATE, bad_words_ids=[[7000]]), [], f"{GENERATE}: bad_words_ids|[[7000]]"),
    ("marian", change(GENERATE, bad_words_ids=[7]), [], f"{GENERATE}: bad_words_ids|[7]"),
    ("marian", change(GENERATE, bad_words_ids=[[]]), [], f"{GENERATE}: bad_words_ids|[[]]"),
    ("marian", change(GENERATE, suppress_tokens="a"), [], f"{GENERATE}: suppress_tokens|'a'"),
    (
        "marian",
        change(GENERATE, repetition_penalty=0),
        [],
        f"{GENERATE}: repetition_penalty|got 0;",
    ),
    ("marian", change(GENERATE, min_length="x"), [], f"{GENERATE}: min_length|'x'"),
    ("marian", change("config.json", encoder_layers=3), [], "model.safetensors|layers.2|got none"),
    ("marian", change("config.json", decoder_ffn_dim=7), [], "model.safetensors|fc1|(32,)|(7,)"),
    ("marian", change("config.json", vocab_size=77), [], "vocab.json|the number 77|0 to 76"),
    ("marian", change("vocab.json", more=999), [], "vocab.json|999"),
    ("marian", lose("source.spm"), [], "source.spm|missing"),
    ("marian", put("source.spm", b"x"), [], "sentencepiece wrote"),
    ("marian", lose("model.safetensors"), [], "model.safetensors, |pytorch_model.bin"),
    ("marian", cut("model.safetensors", -100), [], "model.safetensors|undamaged"),
    ("marian", pickled({"a": Path("x")}), [], "pytorch_model.bin|safe loading refuses|PosixPath"),
    ("marian", pickled({"a": Path("x")}, False), [], "pytorch_model.bin|safe loading refuses"),
    ("marian", pickled({"a": "x"}), [], "pytorch_model.bin|a, which is a str"),
    ("marian", pickled([torch.ones(1)]), [], "pytorch_model.bin|a list"),
    ("marian", pickled(EXPANDED), [], "pytorch_model.bin|fewer numbers than elements"),
    ("marian", pickled(EXPANDED, False), [], "pytorch_model.bin|fewer numbers than elements"),
    ("m2m_100", lambda folder: None, ["--target", "xx"], "--target|'xx'|af"),
    ("m2m_100", lambda folder: None, [], "--target|a language"),
    ("mbart", change("tokenizer_config.json", tokenizer_class="MBartTokenizer"), [], "mBART-50"),
    ("mbart", change("config.json", decoder_start_token_id=7), [], "decoder_start_token_id|got 7"),
    ("marian", change("config.json", d_model="x"), [], "d_model|'x'|whole number"),
    ("marian", lambda folder: None, ["--target", "../x"], "--target|'../x'|without '/'"),
    ("nllb", change("tokenizer_config.json", added_tokens_decoder={"a": {}}), EN_DE, "KeyError"),
    ("npz", {"transformer-preprocess": "n"}, EN_DE, "preprocess: 'n', postprocess: 'dan'"),
    ("npz", {"tied-embeddings-all": False}, EN_DE, "no weight encoder_Wemb"),
    ("npz", {"enc-depth": 3}, EN_DE, "encoder_l3_self_Wq"),
    ("npz", {"enc-depth": 1}, EN_DE, "encoder_l2|an unknown weight"),
    ("npz", lose("decoder.yml"), EN_DE, "decoder.yml|missing"),
    ("npz", put("words.yml", b"\xff"), EN_DE, "words.yml|damaged"),
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_files_are_named_in_one_line(number: int, tmp_path: Path, capsys: Any) -> None:
    family, spoil, flags, words = BAD[number]
    given, kind = tmp_path / "folder", "hf"
    if family == "npz":
        settings = spoil if isinstance(spoil, dict) else {}
        given, kind = save_marian(saved("marian"), given, **settings), "marian"
    else:
        shutil.copytree(saved(family).folder, given)
    if callable(spoil):
        spoil(tmp_path / "folder")
    pair = ["--source", "en", *flags] if flags else []
    assert main(["import", kind, str(given), str(tmp_path / "out"), *pair]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and all(word in said for word in words.split("|")), said
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_settings_of_generate_are_read_or_named(tmp_path: Path, caplog: Any) -> None:
    shutil.copytree(saved("marian").folder, tmp_path / "folder")
    pad = saved("marian").model.config.pad_token_id
    given = {"bad_words_ids": [[pad]], "renormalize_logits": True, "guidance_scale": 1.2}
    change("generation_config.json", **given)(tmp_path / "folder")
    assert main(["import", "hf", str(tmp_path / "folder"), str(tmp_path / "out")]) == 0
    bias = load(tmp_path / "out")[1].decoder.output_projection.bias
    assert bias[1] == -1e4 and not (bias[2:] == -1e4).any()
    assert "guidance_scale is 1.2 and not read" in caplog.text


#: Rules of generate, and the options of the search that they are here.
RULES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 2}),
    ({"no_repeat_ngram_size": 1, "min_length": 9}, {"min_len": 8, "no_repeat_ngram_size": 1}),
    ({"no_repeat_ngram_size": 3, "min_length": 9}, {"min_len": 8, "no_repeat_ngram_size": 3}),
    ({"min_new_tokens": 12, "min_length": 4}, {"min_len": 12}),
    ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
    ({"repetition_penalty": 0.8, "min_length": 5}, {"repetition_penalty": 0.8, "min_len": 4}),
    ({"bad_words_ids": 3}, {}),
    (
        {"bad_words_ids": 1, "suppress_tokens": 2, "repetition_penalty": 1.1},
        {"repetition_penalty": 1.1},
    ),
    ({"renormalize_logits": True, "no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 2}),
    (
        {"renormalize_logits": True, "bad_words_ids": 2, "repetition_penalty": 1.4},
        {"repetition_penalty": 1.4},
    ),
]


@pytest.mark.parametrize("family", ["marian", "nllb"])
@pytest.mark.parametrize(("rules", "wanted"), RULES, ids=lambda value: str(value)[:60])
def test_rules_of_generate_hold_by_default(
    rules: dict[str, Any], wanted: dict[str, Any], family: str, tmp_path: Path
) -> None:
    """Greedy search with and without drafts, and beams, by native passes and by torch's.

    ``bad_words_ids`` N stands for parts of N words of what would be written without a rule.
    """
    made, given, out = saved(family), tmp_path / "folder", tmp_path / "out"
    task, model = imported(family)[2:]
    sample, several = batch(made, task), bool(made.languages)
    words, source = task.target_dictionary, sample["net_input"]["src_tokens"]
    plain = made.generate(words, source, max_new_tokens=61)
    rules, pad = dict(rules), made.model.config.pad_token_id
    n = rules.get("bad_words_ids", 0)
    parts = [row[3 : 3 + n] for row in plain if n and len(row) > 3 + n]
    if parts:
        bad = [[made.numbers[words[word]] for word in part] for part in parts]
        rules["bad_words_ids"] = [[pad], *bad, [made.model.config.eos_token_id]]
    if "suppress_tokens" in rules:
        rules["suppress_tokens"] = [made.numbers[words[plain[0][5]]]]
        parts.append([plain[0][5]])
    wanted = {"min_len": 0, "rules_of": "transformers"} | wanted
    wanted |= (
        {"suppress_sequences": "\n".join(" ".join(words[i] for i in part) for part in parts)}
        if parts
        else {}
    )
    wanted |= {"rules_renormalised": True} if "renormalize_logits" in rules else {}
    wanted |= {"rules_first": "</s>"} if several else {}
    shutil.copytree(made.folder, given)
    change("generation_config.json", **rules)(given)
    languages = [one.strip("_") for one in made.languages] or ["en", "de"]
    pair = ["--source", languages[0], "--target", languages[1]]
    assert main(["import", str(given), str(out), *pair]) == 0
    assert model_folder.read(out).settings == wanted
    task, model = load(out)
    model.make_generation_fast_()
    for beam, decodings in (
        (1, ("greedy", "pgj", "self_draft")),
        (5, ("multiword_beam", "self_draft")),
    ):
        limits = Limits(max_len_b=60, unnormalized=several and beam > 1)
        rest = {"length_penalty": 0.0 if several else 1.0} if beam > 1 else {}
        theirs = made.generate(words, source, num_beams=beam, max_new_tokens=61, **rules, **rest)
        if beam == 1 and (family == "marian" or rules.keys() - {"min_length", "min_new_tokens"}):
            assert theirs != plain  # outputs of nllb's random weights are long without a rule
        for decoding in decodings:
            for engine in ("native", "torch"):
                if decoding == "self_draft" and engine == "torch":
                    continue  # which would draft in the dtype that it verifies in
                flags = wanted | {"decoding": decoding, "engine": engine}
                flags |= {"beam": beam} if beam > 1 else {}
                ours = tokens(decode(task, [model], sample, limits, **flags))
                pairs = list(zip(ours, theirs, strict=True))
                if beam > 1:  # at the limit generate scores </s> as 0
                    pairs = [pair for pair in pairs if max(map(len, pair)) < 61]
                endless = rules.get("no_repeat_ngram_size") == 1  # nllb's </s> is read at first
                assert (pairs or endless) and all(got == want for got, want in pairs), flags


@pytest.mark.parametrize("family", ["marian", "nllb"])
def test_sequences_may_begin_with_the_first_input(family: str, tmp_path: Path) -> None:
    """So a word is forbidden at the beginning alone; Marian's first input is ``<pad>``."""
    made, given, out = saved(family), tmp_path / "folder", tmp_path / "out"
    task = imported(family)[2]
    sample, words = batch(made, task), task.target_dictionary
    source = sample["net_input"]["src_tokens"]
    plain = made.generate(words, source, max_new_tokens=41)
    count = 2 if made.languages else 1  # behind the language
    first = made.model.config.decoder_start_token_id
    bad = [[first, *(made.numbers[words[i]] for i in row[:count])] for row in plain]
    shutil.copytree(made.folder, given)
    change(GENERATE, bad_words_ids=bad)(given)
    languages = [one.strip("_") for one in made.languages] or ["en", "de"]
    pair = ["--source", languages[0], "--target", languages[1]]
    assert main(["import", str(given), str(out), *pair]) == 0
    wanted = made.generate(words, source, max_new_tokens=41, bad_words_ids=bad)
    task, model = load(out)
    for engine in ("native", "torch"):
        flags = {"decoding": "greedy", "engine": engine} | model_folder.read(out).settings
        assert tokens(decode(task, [model], sample, Limits(max_len_b=40), **flags)) == wanted
    assert all(got[:count] != row[:count] for got, row in zip(wanted, plain, strict=True))


@pytest.mark.parametrize(
    "changes",
    [
        [change("config.json", no_repeat_ngram_size=2, min_length=9)],  # they are not read there
        [change("config.json", no_repeat_ngram_size=2, min_length=9), lose(GENERATE)],
        [change(GENERATE, min_new_tokens=3, min_length=30)],
        [change(GENERATE, min_new_tokens=0, min_length=30)],
        [change(GENERATE, min_length=30)],
    ],
)
def test_settings_of_generate_are_those_that_transformers_reads(
    changes: list[Any], tmp_path: Path
) -> None:
    made, given = saved("marian"), tmp_path / "folder"
    shutil.copytree(made.folder, given)
    for each in changes:
        each(given)
    assert main(["import", str(given), str(tmp_path / "out")]) == 0
    task, model = load(tmp_path / "out")
    sample, words = batch(made, task), task.target_dictionary
    theirs = dataclasses.replace(made, model=type(made.model).from_pretrained(given))
    wanted = theirs.generate(words, sample["net_input"]["src_tokens"], max_new_tokens=41)
    flags = {"decoding": "greedy"} | model_folder.read(tmp_path / "out").settings
    assert tokens(decode(task, [model], sample, Limits(max_len_b=40), **flags)) == wanted


def few_sentences(folder: Path, monkeypatch: Any) -> None:
    """Let the self-test read each twentieth sentence: one a script."""
    every = selftest.SENTENCES.read_text("utf-8").splitlines()
    assert len(every) == len({*every}) == 200
    file = folder / "few.txt"
    file.write_text("".join(f"{line}\n" for line in every[::20]), "utf-8")
    monkeypatch.setattr(selftest, "SENTENCES", file)


def verdict(given: Path, capsys: Any, *more: str) -> tuple[int, list[str]]:
    """Status and lines of ``paradec import --selftest``."""
    status = main(["import", "--selftest", str(given), *more])
    return status, capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("family", ["marian", "m2m_100"])
def test_a_selftest_ends_with_one_verdict(
    family: str, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    few_sentences(tmp_path, monkeypatch)
    status, said = verdict(saved(family).folder, capsys, "--source", "en", "--target", "de")
    assert status == 0 and len(said) == 1
    counts = r"sources 10 of 10, logits to \S+, greedy \d+.* of 10, beam 5 \d+.* of [1-9]"
    assert re.search(rf"selftest passed: M\w+ en-de, .*: {counts}", said[0])


def test_a_selftest_notices_weights_and_pieces_that_are_others(
    tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    few_sentences(tmp_path, monkeypatch)
    given = saved("marian").folder
    convert = writing.convert

    def spoilt(model: Any) -> Any:
        architecture, weights = convert(model)
        name = "encoder.layers.0.fc1.weight"
        return architecture, weights | {name: weights[name] * 1.5}

    monkeypatch.setattr(writing, "convert", spoilt)
    status, said = verdict(given, capsys)
    assert status == 1 and "selftest FAILED" in said[-1] and "sources 10 of 10" in said[-1]
    monkeypatch.setattr(writing, "convert", convert)
    monkeypatch.setattr("fairseq_paradec.translator.translator.Translator.encode", lambda *_: "x")
    status, said = verdict(given, capsys)
    assert status == 1 and "sources 0 of 10" in said[-1] and said[0].startswith("sources: ")


def test_a_selftest_needs_a_folder_that_transformers_loads(tmp_path: Path, capsys: Any) -> None:
    shutil.copytree(saved("marian").folder, tmp_path / "folder")
    for words, wanted in (
        (["--selftest", str(tmp_path / "none")], "--selftest: got .*none'; allowed: a folder"),
        (["--selftest", "a", "hf", "b", "c"], "--selftest a excludes PATH OUT"),
        ([], "import needs PATH OUT, a model and a folder to make, or --selftest DIR"),
    ):
        assert main(["import", *words]) == 2
        assert re.search(wanted, capsys.readouterr().err)


@pytest.mark.slow
def test_a_selftest_of_all_sentences_passes(capsys: Any) -> None:
    status, said = verdict(saved("marian").folder, capsys)
    assert status == 0 and "sources 200 of 200" in said[-1]
