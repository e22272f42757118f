"""Our Translator beside CTranslate2's: words, scores, attention, and what is refused."""

import ast
import inspect
import math
import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.builders import DEMO, task_for, tiny_model
from support.commands import WITHOUT_TORCH
from support.converted import open_model_of, open_nmt, prenorm, random_spec, save

import fairseq_paradec
import fairseq_paradec.compat.ctranslate2 as door
from fairseq_paradec.compat.options import Options
from fairseq_paradec.errors import UsageError
from fairseq_paradec.lab.measure.peers import converted_model

ctranslate2 = pytest.importorskip("ctranslate2")

Texts = list[list[str]]


class Pair:
    """The two engines, with one model."""

    def __init__(self, folder: str) -> None:
        settings: dict[str, Any] = {"compute_type": "float32", "intra_threads": 1}
        self.theirs = ctranslate2.Translator(folder, **settings)
        self.ours = door.Translator(folder, **settings)

    def both(self, texts: Texts, prefix: Any = None, **options: Any) -> list[tuple[Any, Any]]:
        """The results of each text."""
        options = {"return_scores": True} | options
        found = [one.translate_batch(texts, prefix, **options) for one in (self.theirs, self.ours)]
        return [*zip(*found, strict=True)]


@pytest.fixture(scope="module")
def texts() -> Texts:
    """The demo's test sentences, split as its model reads them."""
    model = fairseq_paradec.load(DEMO)
    lines = (DEMO / "raw/demo.en").read_text("utf-8").splitlines()
    return [model.encode(line).split() for line in lines[:60:2]]


@pytest.fixture(scope="module")
def demo() -> Pair:
    """The demo's model."""
    model = fairseq_paradec.load(DEMO)
    words = [model.sources.symbols, model.targets.symbols]
    return Pair(converted_model(model.core.model, words))


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A random model, which writes anything, `<unk>` too."""
    task = task_for("default")
    model = tiny_model(task, "default", torch.float32, max_target_positions=64)
    spec = random_spec(task, model, ending=0.5)
    spec.decoder.projection.bias[3] = 3
    return Pair(str(save(spec, tmp_path_factory.mktemp("random") / "there")))


def random_texts(pair: Pair, count: int, seed: int = 0) -> Texts:
    """Texts of words that the random model knows, and of one that it does not."""
    rng = np.random.default_rng(seed)
    words = [*task_for("default").source_dictionary.symbols[4:], "nowhere"]
    return [list(rng.choice(words, rng.integers(1, 9))) for _ in range(count)]


def compare(both: Sequence[tuple[Any, Any]]) -> int:
    """Check that words and scores are the same, but for ties; return how many tie."""
    ties = 0
    for theirs, ours in both:
        assert len(ours.hypotheses) == len(theirs.hypotheses) == len(ours.scores)
        np.testing.assert_allclose(ours.scores, theirs.scores, atol=1e-4, rtol=1e-4)
        ties += ours.hypotheses != theirs.hypotheses
    return ties


BEAMS: list[dict[str, Any]] = [
    {"beam_size": 1},
    {},
    {"beam_size": 5},
    {"beam_size": 5, "num_hypotheses": 5},
    {"beam_size": 3, "num_hypotheses": 2, "length_penalty": 0},
    {"beam_size": 4, "length_penalty": 0.2},
    {"beam_size": 1, "length_penalty": 2},
    {"beam_size": 1, "max_decoding_length": 5},
    {"beam_size": 5, "num_hypotheses": 4, "max_decoding_length": 6, "return_end_token": True},
    {"beam_size": 1, "min_decoding_length": 11},
    {"beam_size": 5, "min_decoding_length": 11},
    {"beam_size": 2, "max_input_length": 5},
    {"beam_size": 1, "no_repeat_ngram_size": 1, "return_end_token": True},
    {"beam_size": 3, "no_repeat_ngram_size": 2, "min_decoding_length": 9},
    {"beam_size": 2, "disable_unk": True, "max_batch_size": 7},
    {"beam_size": 1, "repetition_penalty": 1.3},
    {"beam_size": 4, "num_hypotheses": 3, "repetition_penalty": 1.6},
    {"beam_size": 3, "repetition_penalty": 0.7, "no_repeat_ngram_size": 2, "disable_unk": True},
    {"beam_size": 1, "max_batch_size": 40, "batch_type": "tokens"},
    {"beam_size": 2, "num_hypotheses": 4, "patience": 2},
    {"beam_size": 4, "patience": 0.3, "length_penalty": 0.4},
    {"beam_size": 5, "num_hypotheses": 2, "patience": 0.3},
    {"beam_size": 3, "num_hypotheses": 5, "patience": 50, "max_decoding_length": 4},
    {"beam_size": 2, "num_hypotheses": 3, "patience": 1.5, "length_penalty": 0},
    {"beam_size": 1, "num_hypotheses": 2, "patience": 2},
]


@pytest.mark.parametrize("options", BEAMS, ids=str)
def test_words_and_scores_are_those_of_ctranslate2(
    options: dict[str, Any], demo: Pair, texts: Texts, untrained: Pair
) -> None:
    assert compare(demo.both(texts, **options)) == 0
    short = {"max_decoding_length": 12} | options
    assert compare(untrained.both(random_texts(untrained, 12), **short)) <= 1


@pytest.mark.parametrize("beam", [1, 2, 5])
def test_words_that_are_not_written_one_behind_the_other(
    beam: int, demo: Pair, texts: Texts, untrained: Pair
) -> None:
    """What would be written alone, in pairs and in threes, also behind what outputs begin with."""
    for pair, some in ((demo, texts), (untrained, random_texts(untrained, 12))):
        how = {"beam_size": beam, "max_decoding_length": 12}
        free = [result.hypotheses[0] for result in pair.theirs.translate_batch(some, **how)]
        written = [words for words in free if len(words) > 4]
        banned = [[words[i % 3 : i % 3 + 1 + i % 3]] for i, words in enumerate(written)]
        for rule in (
            {"suppress_sequences": [words for (words,) in banned]},
            {"suppress_sequences": [["</s>"], *written], "repetition_penalty": 1.2},
            {"suppress_sequences": [words[:2] for words in written], "no_repeat_ngram_size": 3},
        ):
            assert compare(pair.both(some, **how, **rule)) == 0
            begun = [words[: i % 3] or None for i, words in enumerate(free)]
            assert compare(pair.both(some, begun, **how, **rule)) == 0


@pytest.mark.parametrize("beam", [1, 2, 5])
def test_outputs_begin_as_they_are_told(beam: int, demo: Pair, texts: Texts) -> None:
    """By nothing, by some words of the output, by all of it, and by others."""
    whole = [result.hypotheses[0] for result in demo.theirs.translate_batch(texts, beam_size=1)]
    begun = [words[: i % 4] or None for i, words in enumerate(whole)]
    count = {"beam_size": beam, "num_hypotheses": min(beam, 3)}
    for prefixes in (begun, whole, [["Zwei"]] * len(texts), [["nowhere", "a"]] * len(texts)):
        assert compare(demo.both(texts, prefixes, **count)) == 0
    assert compare(demo.both(texts, whole, **count, max_decoding_length=3)) == 0


@pytest.mark.parametrize("beam", [1, 2, 4, 5])
def test_behind_prefixes_of_several_lengths(beam: int, tmp_path: Path) -> None:
    """A model that likes to end, so that the first free step has many ends to forbid.

    A text without a prefix, and a short one, have the least length still, whatever others begin by.
    """
    task = task_for("default")
    spec = random_spec(task, tiny_model(task, "default", torch.float32), ending=2.5)
    pair = Pair(str(save(spec, tmp_path / "there")))
    some, rng = random_texts(pair, 60), np.random.default_rng(1)
    words = task.target_dictionary.symbols[4:]
    prefixes = [[*rng.choice(words, i % 4)] or None for i in range(len(some))]
    prefixes[1], prefixes[2] = ["nowhere"], ["nowhere", words[0]]
    count = {"beam_size": beam, "num_hypotheses": min(beam, 2), "max_decoding_length": 9}
    for options in (
        {},
        {"length_penalty": 0},
        {"min_decoding_length": 0},
        {"min_decoding_length": 3},
        {"disable_unk": True},
        {"max_batch_size": 7},
    ):
        assert compare(pair.both(some, prefixes, **count, **options)) == 0


@pytest.mark.parametrize("beginning", [False, True])
@pytest.mark.parametrize("ending", [False, True])
def test_sources_that_are_cut(beginning: bool, ending: bool, tmp_path: Path) -> None:
    """A last `</s>` stays, the program's too; and words that are cut off are looked at with 0."""
    spec = open_nmt(*prenorm())
    spec.config.add_source_bos, spec.config.add_source_eos = beginning, ending
    pair = Pair(str(save(spec, tmp_path / "there")))
    words = task_for("prenorm").source_dictionary.symbols[4:8]
    texts = [words, [*words, "</s>"], ["<s>", *words, "</s>"], [words[0], "</s>", *words]]
    options = {"max_decoding_length": 5, "return_attention": True}
    for longest in range(3, 9):
        for theirs, ours in pair.both(texts, max_input_length=longest, beam_size=1, **options):
            assert ours.hypotheses == theirs.hypotheses
            np.testing.assert_allclose(ours.scores, theirs.scores, atol=1e-4)
            np.testing.assert_allclose(ours.attention, theirs.attention, atol=1e-5)
        scores = [
            one.score_batch(texts, [words] * 4, max_input_length=longest)
            for one in (pair.theirs, pair.ours)
        ]
        for theirs, ours in zip(*scores, strict=True):
            assert ours.tokens == theirs.tokens
            np.testing.assert_allclose(ours.log_probs, theirs.log_probs, atol=1e-4)
    (cut,) = pair.ours.translate_batch([words], max_input_length=1, replace_unknowns=True)
    assert len(cut.hypotheses) == 1


def test_scores_of_translations(demo: Pair, texts: Texts, untrained: Pair) -> None:
    targets = [words[::-1] for words in texts]
    targets[0], targets[1] = [], ["nowhere", "a"]
    cases = [(demo, [[], *texts[1:]], targets), (untrained, *[random_texts(untrained, 9)] * 2)]
    for pair, sources, wanted in cases:
        for options in ({}, {"offset": 2}, {"max_input_length": 4}, {"max_batch_size": 4}):
            theirs = pair.theirs.score_batch(sources, wanted, **options)
            ours = pair.ours.score_batch(sources, wanted, **options)
            assert [one.tokens for one in ours] == [one.tokens for one in theirs]
            for one, other in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-4)
        (later,) = pair.ours.score_batch(sources[:1], wanted[:1], asynchronous=True)
        assert later.result() == pair.ours.score_batch(sources[:1], wanted[:1])[0]
        assert [*pair.ours.score_iterable(iter(sources), iter(wanted))] == pair.ours.score_batch(
            sources, wanted
        )


@pytest.mark.parametrize("beam", [1, 2, 5])
def test_attention_and_unknown_words(beam: int, untrained: Pair, demo: Pair, texts: Texts) -> None:
    """Text by text: of several with a beam CTranslate2 4.8.5 gives first words that of others."""
    options = {"beam_size": beam, "max_decoding_length": 12, "return_attention": True}
    some, unknown = random_texts(untrained, 20), 0
    for pair, each in ((untrained, some), (demo, texts[:8])):
        together = pair.ours.translate_batch(each, **options)
        for one, theirs in zip(together, pair.theirs.translate_batch(each, **options), strict=True):
            if one.hypotheses == theirs.hypotheses:
                rest = [found.attention[0][1:] for found in (one, theirs)]
                np.testing.assert_allclose(*rest, atol=1e-5)
        replaced = pair.ours.translate_batch(each, **options, replace_unknowns=True)
        for text, one, words in zip(each, together, replaced, strict=True):
            (theirs,) = pair.theirs.translate_batch([text], **options)
            if one.hypotheses == theirs.hypotheses:
                np.testing.assert_allclose(one.attention, theirs.attention, atol=1e-5)
                (theirs,) = pair.theirs.translate_batch([text], **options, replace_unknowns=True)
                assert words.hypotheses == theirs.hypotheses
                unknown += "<unk>" in one.hypotheses[0]
    assert unknown > 5


@pytest.mark.parametrize(("layer", "heads"), [(0, 1), (1, 0), (-1, 2), (-1, 0)])
def test_a_model_says_which_heads_align(layer: int, heads: int, tmp_path: Path) -> None:
    task = task_for("default")
    spec = random_spec(task, tiny_model(task, "default", torch.float32))
    spec.decoder.alignment_layer, spec.decoder.alignment_heads = np.int16(layer), np.int16(heads)
    pair = Pair(str(save(spec, tmp_path / "there")))
    options = {"beam_size": 1, "max_decoding_length": 7, "return_attention": True}
    for theirs, ours in pair.both(random_texts(pair, 5), **options):
        np.testing.assert_allclose(ours.attention[0], theirs.attention[0], atol=1e-5)


def test_a_model_whose_sources_have_no_end(tmp_path: Path) -> None:
    """What ends them is up to the program."""
    pair = Pair(str(open_model_of(tmp_path / "there")))
    some = random_texts(pair, 8)
    for each in (some, [[*text, "</s>"] for text in some]):
        assert compare(pair.both(each, max_decoding_length=9)) == 0


def test_neither_torch_nor_fairseq_is_needed() -> None:
    code = (
        "import fairseq_paradec.compat.ctranslate2 as ctranslate2; "
        f"t = ctranslate2.Translator({str(DEMO)!r}, compute_type='float32'); "
        "print(t.translate_batch([['A', 'dog', '.']], [['nowhere']], replace_unknowns=True)"
        "[0].hypotheses[0][0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | WITHOUT_TORCH, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout.strip() in ("A", "dog", "."), done.stderr


def test_empty_texts(demo: Pair, texts: Texts) -> None:
    some = [[], texts[0], ["</s>"], ["<s>", "</s>"], ["</s>", "A"], ["<s>", "</s>", "A"]]
    some += [["<s>"], ["<s>", "<s>"], ["</s>", "A", "A"], ["A", "</s>"]]
    told = [["Zwei"], None, ["nowhere", "</s>", "Zwei"], [], *[["Zwei", "a"]] * 6]
    more = {"return_end_token": True, "return_attention": True, "replace_unknowns": True}
    for prefixes in (None, told):
        for options in ({"beam_size": 1}, {"num_hypotheses": 2}, {"max_decoding_length": 1}):
            assert compare(demo.both(some, prefixes, **options)) == 0
            for text, prefix in zip(some, prefixes or [None] * len(some), strict=True):
                ((theirs, ours),) = demo.both([text], prefix and [prefix], **options, **more)
                assert ours.hypotheses == theirs.hypotheses
                np.testing.assert_allclose(ours.attention[0], theirs.attention[0], atol=1e-5)
    only = demo.ours.translate_batch([["</s>"] * 2, ["<pad>"]], [["Zwei"], None])
    assert [one.hypotheses for one in only] == [[["Zwei"]], [[]]]
    assert demo.ours.translate_batch([]) == demo.theirs.translate_batch([]) == []


def test_outputs_are_drawn_from_the_models_distribution(demo: Pair, texts: Texts) -> None:
    options: dict[str, Any] = {"beam_size": 1, "sampling_topk": 0, "max_decoding_length": 8}
    runs = []
    for seed in (1, 1, 2):
        door.set_random_seed(seed)
        hot = {"num_hypotheses": 3, "sampling_temperature": 2.0}
        runs.append(demo.ours.translate_batch(texts[:4], **options, **hot))
    assert runs[0] == runs[1] != runs[2]
    assert all(len(one.hypotheses) == 3 for one in runs[0])
    greedy = demo.ours.translate_batch(texts[:4], beam_size=1)
    cold = {"sampling_topk": 5, "sampling_temperature": 1e-3}
    for same in (cold, {"sampling_topk": 0, "sampling_topp": 1e-6}, {"sampling_topp": 0.5}):
        assert demo.ours.translate_batch(texts[:4], beam_size=1, **same) == greedy


def test_iterables_threads_and_results_that_come_later(demo: Pair, texts: Texts) -> None:
    wanted = demo.ours.translate_batch(texts, beam_size=1)
    assert [*demo.ours.translate_iterable(iter(texts), beam_size=1, max_batch_size=3)] == wanted
    begun = ([words[0]] for words in texts)
    found = [*demo.ours.translate_iterable(iter(texts), begun, beam_size=1, max_batch_size=4)]
    assert [one.hypotheses[0][0] for one in found] == [
        one.hypotheses[0][0]
        for one in demo.theirs.translate_batch(texts, [[words[0]] for words in texts], beam_size=1)
    ]
    path = str(demo.ours._path)
    several = door.Translator(path, inter_threads=2, intra_threads=1, compute_type="float32")
    later = several.translate_batch(texts, beam_size=1, asynchronous=True, max_batch_size=5)
    assert [one.result() for one in later] == wanted and all(one.done() for one in later)
    assert several.translate_batch(texts, beam_size=1, max_batch_size=5) == wanted
    assert several.num_translators == 2 and several.num_active_batches == 0
    found = [None] * 3

    def work(number: int) -> None:
        found[number] = several.translate_batch(texts, beam_size=1)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [wanted] * 3


def test_one_of_our_own_folders(demo: Pair, texts: Texts) -> None:
    own = door.Translator(DEMO, compute_type="float32")
    assert own.translate_batch(texts, beam_size=2) == demo.ours.translate_batch(texts, beam_size=2)
    facts = own.device, own.device_index, own.compute_type, own.num_queued_batches
    assert facts == ("cpu", [0], "float32", 0) and not own.tensor_parallel
    own.unload_model()
    assert not own.model_is_loaded
    with pytest.raises(UsageError, match="was unloaded; allowed: load_model"):
        own.translate_batch(texts)
    own.load_model()
    assert own.model_is_loaded and own.translate_batch(texts[:1])[0].hypotheses[0]
    assert door.contains_model(DEMO) and not door.contains_model(DEMO / "raw")
    assert door.get_supported_compute_types() >= {"float32", "int8"}
    assert door.get_cuda_device_count() == 0
    for kind, name in (("auto", "int8_float32"), ({"cpu": "bfloat16"}, "bfloat16")):
        other = door.Translator(DEMO, compute_type=kind)
        assert other.compute_type == name and other.translate_batch(texts[:1], beam_size=1)


def test_results_have_their_older_form_too(demo: Pair, texts: Texts) -> None:
    """And where a translation holds `</s>`, it ends what is scored."""
    for options in ({}, {"return_scores": True, "return_attention": True}):
        ours = demo.ours.translate_batch(texts[:1], num_hypotheses=2, **options)[0]
        theirs = demo.theirs.translate_batch(texts[:1], num_hypotheses=2, **options)[0]
        assert len(ours) == len(theirs) == 2 and len([*ours]) == len([*theirs])
        for one, other in zip(ours, theirs, strict=True):
            assert one.keys() == other.keys() and one["tokens"] == other["tokens"]
        with pytest.raises(IndexError):
            ours[2]
    assert ours[1]["score"] == ours.scores[1] and ours[1]["attention"] == ours.attention[1]
    assert door.__version__ == ctranslate2.__version__
    (one,) = demo.ours.score_batch(texts[:1], [["Zwei", "</s>", "Zwei"]])
    assert one.tokens == ["Zwei", "</s>"] and len(one.log_probs) == 2


def test_names_and_defaults_are_those_of_ctranslate2() -> None:
    """Of its signature, as its documentation shows it."""
    own = {field.name: field.default for field in fields(Options)}
    signature = ctranslate2.Translator.translate_batch.__doc__.splitlines()[0]
    given = signature.partition("*, ")[2].partition(") -> ")[0]
    named = inspect.signature(door.Translator.translate_batch).parameters
    usual = own | {name: one.default for name, one in named.items()}
    for name, value in usual.items():
        if name not in ("self", "source", "target_prefix", "options"):
            (text,) = re.findall(rf"\b{name}: .*? = ([^,]+)", given)
            assert ast.literal_eval(text) == value, name
    assert given.count(" = ") == len(usual) - 4
    init = ctranslate2.Translator.__init__.__doc__.splitlines()[0]
    for name, one in inspect.signature(door.Translator).parameters.items():
        assert f"{name}: " in init
        if one.default is not inspect.Parameter.empty and isinstance(one.default, int):
            assert f" = {one.default}" in init.partition(f"{name}: ")[2].partition(",  ")[0]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"patience": 0}, "patience: got 0; allowed: a number above 0"),
    ({"patience": math.inf}, "patience: got inf; allowed: a number above 0"),
    ({"patience": 0.1}, "num_hypotheses: got 1; allowed: at most beam_size \\* patience, 0"),
    ({"patience": "2"}, "patience: got '2'; allowed: a number"),
    ({"repetition_penalty": "1.2"}, "repetition_penalty: got '1.2'; allowed: a number"),
    ({"length_penalty": None}, "length_penalty: got None; allowed: a number"),
    ({"coverage_penalty": 0.1}, "coverage_penalty: got 0.1; allowed: 0"),
    ({"repetition_penalty": 0}, "--repetition-penalty: got 0.0; allowed: a number above 0"),
    ({"suppress_sequences": ["ab"]}, "suppress_sequences: got 'ab'; allowed: lists of words"),
    ({"suppress_sequences": [["nowhere"]]}, "--suppress-sequences: got 'nowhere'"),
    ({"end_token": "a"}, "end_token: got 'a'; allowed: None, or </s>"),
    ({"prefix_bias_beta": 0.5}, "prefix_bias_beta: got 0.5"),
    ({"use_vmap": True}, "use_vmap: got True"),
    ({"return_logits_vocab": True}, "return_logits_vocab: got True"),
    ({"return_alternatives": True}, "return_alternatives: got True"),
    ({"min_alternative_expansion_prob": 0.1}, "min_alternative_expansion_prob: got 0.1"),
    ({"callback": print}, "callback: got <built-in function print>"),
    ({"beam_size": 0}, "beam_size: got 0; allowed: a whole number from 1"),
    ({"beam_size": 2.0}, "beam_size: got 2.0"),
    ({"num_hypotheses": 3}, "num_hypotheses: got 3; allowed: at most beam_size \\* patience, 2"),
    ({"min_decoding_length": 300}, "min_decoding_length: got 300; allowed: at most max_decoding"),
    ({"sampling_topp": 0}, "sampling_topp: got 0; allowed: a number above 0, up to 1"),
    ({"sampling_topk": 5}, "sampling_topk 5 excludes beam_size 2"),
    ({"length_penalty": 11}, "--lenpen: got 11.0"),
    ({"batch_type": "words"}, "batch_type: got 'words'; allowed: examples, tokens"),
    ({"max_batch_size": -1}, "max_batch_size: got -1"),
    ({"target_prefix": []}, "^$"),
    ({"target_prefix": [["a"]] * 2}, "target_prefix: got '2 of them'; allowed: 1, one for each"),
]


@pytest.mark.parametrize(("options", "said"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_is_not_known_is_refused_by_name(
    options: dict[str, Any], said: str, demo: Pair, texts: Texts
) -> None:
    if said == "^$":  # as CTranslate2, which takes an empty list as none
        assert demo.ours.translate_batch(texts[:1], **options)
        return
    with pytest.raises(UsageError, match=said):
        demo.ours.translate_batch(texts[:1], **options)


def test_other_mistakes_are_one_line(demo: Pair, texts: Texts, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'beam_sise'"):
        demo.ours.translate_batch(texts[:1], beam_sise=1)
    for given in ("A dog", ["A", "dog"], 5):
        with pytest.raises(UsageError, match="source: got .*; allowed: a list of lists of words"):
            demo.ours.translate_batch(given)
    with pytest.raises(UsageError, match="target: got '1 texts'; allowed: 2, as source has"):
        demo.ours.score_batch(texts[:2], texts[:1])
    with pytest.raises(UsageError, match="source: got 'a text that .*has 1101 tokens"):
        demo.ours.translate_batch([["A"] * 1100], max_input_length=0)
    with pytest.raises(UsageError, match="source: got 'a text of 1101 tokens'; allowed: 1024 at"):
        demo.ours.score_batch([["A"] * 1100], [["A"]], max_input_length=0)
    with pytest.raises(UsageError, match="source: got '3 texts in one iterable'"):
        [*demo.ours.translate_iterable(texts[:3], [["a"]] * 4)]
    with pytest.raises(UsageError, match="max_batch_size: got 0; allowed: a whole number from 1"):
        [*demo.ours.translate_iterable(texts[:3], max_batch_size=0)]
    path = str(demo.ours._path)
    for options, said in (
        ({"device": "cuda"}, "device: got 'cuda'; allowed: cpu, auto"),
        ({"device_index": 1}, "device_index: got 1; allowed: 0"),
        ({"compute_type": "float16"}, "compute_type: got 'float16'; allowed: default, auto, float"),
        ({"inter_threads": 0}, "inter_threads: got 0; allowed: 1 or more"),
        ({"intra_threads": -1}, "intra_threads: got -1; allowed: 0 or more"),
        ({"flash_attention": True}, "flash_attention: got True; allowed: False"),
        ({"tensor_parallel": True}, "tensor_parallel: got True; allowed: False"),
        ({"files": {}}, "files: got {}; allowed: None, and model_path"),
    ):
        with pytest.raises(UsageError, match=said):
            door.Translator(path, **options)
    with pytest.raises(UsageError, match="model_path: got .*; allowed: a folder with paradec.json"):
        door.Translator(tmp_path)
    with pytest.raises(UsageError, match="device: got 'cuda'; allowed: cpu"):
        door.get_supported_compute_types("cuda")
