"""A flag that is given is honoured or refused: every flag of every way in, by tables."""

import argparse
import copy
import functools
import json
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq import options
from fairseq.dataclass import utils
from fairseq.dataclass.configs import GenerationConfig
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models.transformer import TransformerModel
from omegaconf import open_dict
from support.builders import batch, built
from support.commands import DEMO, PLUGIN, run_python, succeed
from support.side_by_side import Composer

import fairseq_paradec
from fairseq_paradec.cli import translate
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.config import ALL, OPTIONS, RULE_FLAGS, SEARCH_OPTIONS
from fairseq_paradec.errors import UsageError
from fairseq_paradec.methods.build import build_decoder
from fairseq_paradec.methods.configure import configure
from fairseq_paradec.plugin.compat import given
from fairseq_paradec.plugin.generators import batch_of
from fairseq_paradec.token_rules import repeating

SENTENCE = "A dog runs across the grass."
MODEL = ["--path", str(DEMO / "model.pt"), "--cpu"]
COMMANDS = {
    "fairseq-generate": options.get_generation_parser,
    "fairseq-interactive": options.get_interactive_generation_parser,
}
#: Values that a flag takes, where its type does not say.
VALUES = {
    "task": "translation",
    "user_dir": str(PLUGIN),
    "num_shards": "1",
    "shard_id": "0",
    "model_overrides": "{}",
    "decoding": "hgj",
    "optimizer_overrides": "{}",
    "print_alignment": "hard",
    "constraints": "ordered",
    "eval_bleu_args": "{}",
    "eval_bleu_detok_args": "{}",
    "dataset_impl": "mmap",
}
#: Words that have to be there before a flag means anything.
BEFORE = {
    "lm_weight": ["--lm-path", "lm.pt"],
    "retain_dropout_modules": ["--retain-dropout"],
    "diverse_beam_strength": ["--diverse-beam-groups", "1"],
    "sampling": ["--beam", "1"],
}


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """What one command was given is not for the next."""
    token = given.GIVEN.set(frozenset())
    yield
    given.GIVEN.reset(token)


#: What composes a command's settings, from those of the command before where it can.
COMPOSER = Composer(utils.compose)


@pytest.fixture(autouse=True)
def _settings_are_composed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utils, "compose", COMPOSER)


@functools.cache
def loaded() -> Any:
    """The demo's model."""
    return fairseq_paradec.load(DEMO)


def parse(command: str, *words: str) -> argparse.Namespace:
    """Parse the words of a command of fairseq."""
    parser = COMMANDS[command](default_task="translation")
    sides = ["-s", "en", "-t", "de"]
    return options.parse_args_and_arch(parser, [str(DEMO), *MODEL, *sides, *words])


@functools.cache
def of_nothing_typed(command: str) -> Any:
    """The settings of a command's search that was given no flag of it: leave them as they are."""
    return convert_namespace_to_omegaconf(parse(command)).generation


def actions(command: str) -> list[argparse.Action]:
    """Every flag of a command, those of Moses and subword-nmt among them."""
    parser = COMMANDS[command](default_task="translation")
    words = [str(DEMO), *MODEL, "--tokenizer", "moses", "--bpe", "subword_nmt", "-s", "en"]
    options.parse_args_and_arch(parser, [*words, "-t", "de"])
    return [one for one in parser._actions if one.option_strings and one.dest != "help"]


def typed(action: argparse.Action) -> list[str]:
    """A flag and a value, as typed."""
    words = [*BEFORE.get(action.dest, []), action.option_strings[0]]
    if action.nargs == 0:
        return words
    if action.dest in VALUES:
        return [*words, VALUES[action.dest]]
    if action.choices:
        return [*words, str(next(iter(action.choices)))]
    return [*words, {int: "2", float: "0.5"}.get(action.type, "2")]  # type: ignore[call-overload]


@pytest.mark.parametrize("command", COMMANDS)
def test_fairseqs_commands_refuse_what_they_do_not_read(command: str) -> None:
    """And nothing else; that they read the rest is the next test's."""
    read = given.BOTH | given.ALONE[command] | ALL.keys()
    if command == "fairseq-interactive":
        read -= given.NOT_INTERACTIVE
    refused = set()
    for action in actions(command):
        own = action.dest.startswith(("moses", "bpe_")) or action.dest == "source_lang"
        more = ["--tokenizer", "moses", "--bpe", "subword_nmt"] if own else []
        try:
            parse(command, *more, *typed(action))
        except UsageError as error:
            if f"{command} does not read it" in str(error):
                refused.add(action.dest)
    every = {action.dest for action in actions(command)}
    moses = {"moses_no_dash_splits", "moses_no_escape", "bpe_codes", "bpe_separator"}
    assert {"save_dir", "sacrebleu", "beam_mt", "eval_bleu", "iter_decode_max_iter"} <= refused
    more = {"num_shards", "shard_id"}  # which are refused in words of their own
    assert every - refused - more == (read & every | moses) - more


#: Runs a command and prints which of its settings some line of code reads by name.
RECORDER = """
import importlib, json, sys
from omegaconf import DictConfig
reads = set()
def note(key):
    frame = sys._getframe(2)
    while "omegaconf" in frame.f_code.co_filename:
        frame = frame.f_back
    if key in frame.f_code.co_names or key in frame.f_code.co_consts:
        reads.add(key)
def watch(name):
    original = getattr(DictConfig, name)
    def read(self, key, *more, **others):
        note(key)
        return original(self, key, *more, **others)
    setattr(DictConfig, name, read)
for name in ("__getattr__", "__getitem__", "get"):
    watch(name)
sys.path.insert(0, ROOT)
import fairseq_paradec
importlib.import_module(MODULE).cli_main()
print("READ", json.dumps(sorted(reads)), file=sys.stderr)
"""

#: What is read before there is a configuration, or by a line that does not run here.
READ_ELSEWHERE = {
    "cpu",  # after a look for CUDA
    "data",
    "memory_efficient_bf16",  # by the parser, as --bf16
    "memory_efficient_fp16",
    "num_shards",  # by honour_shards
    "shard_id",
    "lm_weight",
    "retain_dropout_modules",
}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_what_fairseqs_commands_do_not_refuse_is_read(command: str) -> None:
    module = command.replace("fairseq-", "fairseq_cli.")
    root = str(Path(fairseq_paradec.__file__).parents[1])
    code = RECORDER.replace("ROOT", repr(root)).replace("MODULE", repr(module))
    words = [DEMO, *MODEL, "--max-len-b", "3", "-s", "en", "-t", "de"]
    words += ["--batch-size", "100"] if command == "fairseq-generate" else []
    result = succeed(run_python(code, *words, stdin=SENTENCE + "\n"))
    (line,) = [one for one in result.stderr.splitlines() if one.startswith("READ ")]
    wanted = given.BOTH | given.ALONE[command]
    assert wanted - READ_ELSEWHERE <= {*json.loads(line[5:])}


#: Decoding, what is typed, and what it says; None: it is built.
BEAMS = [
    ("pj", ["--beam", "5"], "--beam 5 needs --decoding beam or another .*; pj is greedy search"),
    ("pj", ["--beam=3"], "--beam 3 needs"),
    ("pj", ["--beam", "1"], None),
    ("pj", [], None),
    ("multiword_beam", ["--beam", "5"], None),
    ("beam", ["--beam", "5"], None),
    ("auto", ["--beam", "5"], None),
]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("decoding", "words", "said"), BEAMS)
def test_a_beam_that_is_typed_is_read_or_refused(
    command: str, decoding: str, words: list[str], said: str | None
) -> None:
    """fairseq's default of 5 is not typed; a 5 that is typed is."""
    task, model = built("default")
    settings = convert_namespace_to_omegaconf(parse(command, *words)).generation
    with open_dict(settings):
        settings.decoding = decoding  # which the command's own task would have
    if said is None:
        assert task.build_generator([model], settings)
    else:
        with pytest.raises(UsageError, match=said):
            task.build_generator([model], settings)


def test_the_hubs_keywords_are_read_or_refused() -> None:
    names = {"bpe": "subword_nmt", "bpe_codes": str(DEMO / "codes.bpe"), "tokenizer": "moses"}
    folder = str(DEMO)
    hub = TransformerModel.from_pretrained(folder, "model.pt", folder, **names)
    usual = hub.translate(SENTENCE, decoding="hgj")
    assert usual == hub.translate(SENTENCE, 1, decoding="hgj") == hub.translate(SENTENCE, beam=1)
    tokens = hub.encode(SENTENCE)
    assert len(hub.generate(tokens, beam=2)) == 2
    for call in (
        lambda: hub.translate(SENTENCE, 5, decoding="hgj"),
        lambda: hub.translate(SENTENCE, beam=5, decoding="hgj"),
        lambda: hub.sample(SENTENCE, beam=5, decoding="hgj"),
        lambda: hub.generate(tokens, beam=5, decoding="hgj"),
        lambda: hub.generate(tokens, 5, decoding="hgj"),
    ):
        with pytest.raises(UsageError, match="--beam 5 needs --decoding beam"):
            call()
    unread = {one.name for one in fields(GenerationConfig)} - ALL.keys()
    for name in unread | {"replace_unk", "lm_path", "retain_dropout", "constraints", "nbest"}:
        with pytest.raises(UsageError, match=f"got '{name}'; allowed"):
            hub.generate(tokens, **{name: 1})


def test_a_beam_of_from_pretrained_is_that_of_its_calls() -> None:
    names = {"bpe": "subword_nmt", "bpe_codes": str(DEMO / "codes.bpe"), "tokenizer": "moses"}
    folder = str(DEMO)
    hub = TransformerModel.from_pretrained(folder, "model.pt", folder, beam=3, **names)
    tokens = hub.encode(SENTENCE)
    assert len(hub.generate(tokens)) == 3 and len(hub.generate(tokens, beam=2)) == 2
    with pytest.raises(UsageError, match="--beam 3 needs --decoding beam"):
        hub.translate(SENTENCE, decoding="hgj")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["decoding", *SEARCH_OPTIONS, *RULE_FLAGS])
def test_settings_of_the_search_are_no_overrides_of_the_model(command: str, name: str) -> None:
    typed_name = "--" + name.replace("_", "-")
    with pytest.raises(UsageError, match=f"--model-overrides: got '{name}'.*give {typed_name}$"):
        parse(command, "--model-overrides", f"{{'{name}': 3}}")


#: A value of each option of fairseq's search that shows in the output, and what it goes with.
BITES: dict[str, tuple[Any, dict[str, Any]]] = {
    "beam": (2, {}),
    "max_len_a": (0.5, {"max_len_b": 1}),
    "max_len_b": (2, {}),
    "min_len": (8, {}),
    "unnormalized": (True, {}),
    "lenpen": (2.0, {}),
    "unkpen": (-9.0, {}),
    "temperature": (3.0, {}),
    "no_repeat_ngram_size": (1, {"unkpen": -9.0}),
    "match_source_len": (True, {}),
    "diverse_beam_groups": (2, {"beam": 4}),
    "diverse_beam_strength": (9.0, {"diverse_beam_groups": 2, "beam": 4}),
    "diversity_rate": (5.0, {"beam": 3}),
    "nbest": (2, {"beam": 3}),
    "sampling": (True, {}),
    "sampling_topk": (1, {"sampling": True}),
    "sampling_topp": (0.1, {"sampling": True}),
    "seed": (2, {"sampling": True}),
    "print_alignment": ("hard", {}),
    "constraints": ("ordered", {}),
    "replace_unk": ("file", {}),
    "lm_path": ("lm.pt", {}),
    "retain_iter_history": (True, {}),
    "retain_dropout": (True, {}),
    "score_reference": (True, {}),
}
#: Those that change what is printed of the hypotheses, which are the same.
OF_PRINTING = {"nbest", "print_alignment", "retain_iter_history"}
#: Those by which decoders draw from fairseq's distribution: tests/decoding/test_sampling.py.
OF_DRAWS = {"sampling", "sampling_topp", "seed"}


def written(models: list[Any], sample: Any, **chosen: Any) -> list[tuple[list[int], float]]:
    """Tokens and score of each hypothesis."""
    torch.manual_seed(1)
    np.random.seed(1)
    found = build_decoder(models, configure(**chosen)).decode(batch_of(sample))
    return [
        (one["tokens"].tolist(), round(float(one["score"]), 3)) for hypos in found for one in hypos
    ]


@pytest.mark.parametrize("name", SEARCH_OPTIONS)
def test_an_option_of_the_search_changes_the_output_as_fairseqs_or_is_refused(name: str) -> None:
    """By each kind of decoder; the exact outputs of all are test_conformance.py's."""
    task, model = built("default")
    sample = batch(task, [6] * 6)  # fairseq counts a batch's width, which here is each row's
    value, others = BITES[name]
    before = {"beam": 1, "max_len_b": 9, **others}
    after = {**before, name: value}
    typed_names = [f"--{key.replace('_', '-')}" for key in {name: value, **others}]
    stock: Any = None
    try:
        stock = written([model], sample, decoding="beam", **after)
        usual = written([model], sample, decoding="beam", **before)
        assert (stock == usual) == (name in OF_PRINTING)
    except UsageError as error:
        assert typed_names[0] in str(error)
    for decoding in ("greedy", "pj", "hgj", "self_draft", "multiword_beam"):
        try:
            found = written([model], sample, decoding=decoding, **after)
        except UsageError as error:
            assert any(one in str(error) for one in typed_names)
        else:
            if name in OF_DRAWS:  # one seed, one output
                greedy = written([model], sample, decoding="greedy", **after)
                assert found == greedy != written([model], sample, decoding=decoding, **before)
                continue
            assert found == stock or (name == "nbest" and decoding == "multiword_beam"), decoding


#: Options that ``load().translate`` refuses, since it gives one text a sentence.
NO_TEXT = {"nbest", "print_alignment", "constraints", "replace_unk", "lm_path"}
NO_TEXT |= {"retain_iter_history", "retain_dropout", "score_reference"}


def test_keywords_of_translate_are_read_or_refused_whatever_their_type() -> None:
    """Each of fairseq's and of the plugin's, with values of five types; nothing else is raised."""
    model = fairseq_paradec.load(DEMO)
    refused, taken = set(), set()
    names = {one.name for one in fields(GenerationConfig)} | set(ALL) | {"batch_size"}
    files = {"stats_file", "trace_file", "speed_profile"}
    for name in sorted(names - files - {"decoding"}):
        for value in ("x", 3, 2.5, True, [1]):
            for decoding in ("greedy", "beam"):
                try:
                    model.translate(["A dog."], decoding=decoding, max_len_b=3, **{name: value})
                    taken.add(name)
                except UsageError:
                    refused.add(name)
                except TypeError as error:  # max_len_b is given twice
                    assert name == "max_len_b" and "multiple values" in str(error)
    unread = {one.name for one in fields(GenerationConfig)} - ALL.keys()
    assert not taken & (unread | NO_TEXT)
    assert taken >= {*SEARCH_OPTIONS} - NO_TEXT - {"sampling_topk", "sampling_topp", "seed"} - {
        "diverse_beam_groups",
        "diverse_beam_strength",
        "max_len_b",
    }
    with pytest.raises(UsageError, match="--max-len-b: got 'x'; allowed: a whole number"):
        model.translate(["A dog."], max_len_b="x")
    with pytest.raises(UsageError, match="--lenpen: got 'x'; allowed: a number"):
        model.translate(["A dog."], lenpen="x")
    with pytest.raises(UsageError, match="--beam 5 needs --decoding beam"):
        model.translate(["A dog."], decoding="greedy", beam=5)


#: What is given to ``translate``, and what it says.
MEAN: list[tuple[Any, dict[str, Any], str]] = [
    ("A dog.", {}, r"translate\(\): got 'A dog.'; allowed: a list"),
    (5, {}, r"translate\(\): got 5; allowed: a list"),
    (["a"], {"drafts": "Ein Hund"}, "--drafts: got 'Ein Hund'; allowed: a list"),
    (["a"], {"drafts": 5}, "--drafts: got 5; allowed: a list"),
    (["a"], {"decoding": [1]}, r"--decoding: got \[1\]; allowed: auto"),
    (["a"], {"batch_size": 10**30}, "batch_size: got .*; allowed: a whole number from 1 to"),
    (["a"], {"max_tokens": 10**30}, "max_tokens: got .*; allowed: a whole number from 1 to"),
    (["a"], {"buffer_size": 10**30}, "buffer_size: got .*; allowed: a whole number from 1 to"),
    (["a"], {"beam": 10**30}, "--beam: got .*; allowed: 2147483647 at most"),
    (["a"], {"max_len_b": 10**30}, "--max-len-b: got .*; allowed: 2147483647 at most"),
]

#: Flags of real numbers, and a decoder that reads each.
REAL = {name: "greedy" for name, one in ALL.items() if one.kind is float} | {
    "draft_confidence": "assisted",
    "accept_margin": "gad_pp",
    "latency_budget_ms": "auto_fast",
}
#: Values that are no size: with the flags that take them.
ENDLESS: dict[str, set[str]] = {"nan": set(), "inf": {"accept_margin", "unkpen"}, "-inf": set()}


def test_what_no_decoder_can_take_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fairseq_paradec.load(DEMO)
    for lines, given_options, said in MEAN:
        with pytest.raises(UsageError, match=said):
            [*model.stream(lines, **{"decoding": "greedy", **given_options})]
    for call in (model.stream, model.results, model.texts):  # before anything is read
        with pytest.raises(UsageError, match="--decoding: got 'gready'; allowed: "):
            call(iter(()), decoding="gready")
        with pytest.raises(UsageError, match="batch_size: got 0; allowed: "):
            call(iter(()), batch_size=0)
    with pytest.raises(UsageError, match="--format: got 'rtf'; allowed: "):
        model.texts(iter(()), "rtf")
    for value in ("x", -1):
        with pytest.raises(UsageError, match="others: got .*; allowed: a whole number from 0 up"):
            [*model.results(["a"], others=value, decoding="greedy")]  # type: ignore[arg-type]
    for path, device, said in ((None, "cpu", "load()"), (5, "cpu", "load()"), (DEMO, "gpu", "dev")):
        with pytest.raises(UsageError, match=re.escape(said)):
            fairseq_paradec.load(path, device)  # type: ignore[arg-type]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    for device in ("cuda", "cuda:1"):
        with pytest.raises(UsageError, match=f"--device: got '{device}'; allowed: cpu: torch"):
            fairseq_paradec.load(DEMO, device)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    for device in ("cuda:x", "cuda:2"):
        with pytest.raises(UsageError, match=f"--device: got '{device}'; allowed: "):
            fairseq_paradec.load(DEMO, device)
    for texts in ("A dog.", 5):
        with pytest.raises(UsageError, match=r"texts\(\): got .*; allowed: a list of texts"):
            [*model.texts(texts)]  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ENDLESS)
@pytest.mark.parametrize("name", REAL)
def test_what_is_no_size_is_refused_by_every_way_in(
    name: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """fairseq-generate's generator, Python and paradec translate, if it has the flag."""
    typed_name = "--" + name.replace("_", "-")
    said = rf"{typed_name}: got {value}; allowed: a number.*, and finite$"
    task, model = built("default")
    settings = copy.deepcopy(of_nothing_typed("fairseq-generate"))
    with open_dict(settings):
        settings.decoding = REAL[name]
        settings[name] = float(value)
    words = ["translate", "--model", str(DEMO), "--text", "a", "--decoding", REAL[name]]
    words.append(f"{typed_name}={value}")
    own = name in OPTIONS or name in translate.SEARCH
    if name in ENDLESS[value]:
        ALL[name].check(float(value))
        return
    with pytest.raises(UsageError, match=said):
        task.build_generator([model], settings)
    with pytest.raises(UsageError, match=said):
        loaded().translate(["a"], **{"decoding": REAL[name], name: float(value)})
    if own:
        assert paradec(words) == 2
        assert re.fullmatch(f"paradec translate: error: {said[:-1]}\n", capsys.readouterr().err)


def test_more_threads_than_a_process_has_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """OpenMP ends the process."""
    with pytest.raises(SystemExit):
        paradec(["translate", "--model", str(DEMO), "--text", "a", "--threads", "100000"])
    assert "argument --threads: got '100000'; allowed: 1024 at most" in capsys.readouterr().err


def test_numbers_beyond_32_bits_are_refused_on_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("--threads", "--batch-size", "--max-tokens", "--buffer-size"):
        for number in ("9" * 30, "9" * 5000, str(1 << 31)):
            with pytest.raises(SystemExit):
                paradec(["translate", "--model", str(DEMO), "--text", "a", name, number])
            said = capsys.readouterr().err
            assert f"argument {name}: got '{number[:20]}'; allowed: 2147483647 at most" in said


TEXT = DEMO / "raw" / "demo.en"
#: Flags of ``paradec translate``, what is typed, and where it must arrive.
TYPED: dict[str, tuple[list[str], Any]] = {
    "beam": (["--beam", "4"], 4),
    "lenpen": (["--lenpen", "0.5"], 0.5),
    "max_len_a": (["--max-len-a", "2"], 2.0),
    "max_len_b": (["--max-len-b", "7"], 7),
    "batch_size": (["--batch-size", "3"], 3),
    "max_tokens": (["--max-tokens", "300"], 300),
    "buffer_size": (["--buffer-size", "5"], 5),
    "text": (["--text", "a"], ["a"]),
    "files": ([str(TEXT)], TEXT.read_text("utf-8")),
    "drafts": (["--drafts", str(TEXT)], TEXT.read_text("utf-8")),
    "format": (["--format", "text"], "text"),
    "threads": (["--threads", "1"], 1),
    "device": (["--device", "cpu"], "cpu"),
}
#: Flags of corpora: without --out they are refused, and test_corpus.py has them with it.
OF_CORPORA = {"column": "text", "cluster": "local", "give_up": "9.0", "processes": "2"}


def test_flags_of_translate_arrive_or_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arrived: dict[str, Any] = {}

    class Recorder:
        folder = argparse.Namespace(source="en")

        def __init__(self, path: Path, device: str) -> None:
            arrived.update(model=path, device=device)

        def of_one_sentence(self, options: dict[str, Any]) -> dict[str, Any]:
            return options

        def results(self, lines: Any, **given: Any) -> list[str]:
            arrived.update(given, lines=[*lines])
            return []

        def texts(self, texts: Any, form: str, drafts: Any, **given: Any) -> list[str]:
            arrived.update(given, lines=texts, format=form, drafts=drafts)
            return []

    monkeypatch.setattr("fairseq_paradec.translator.translator.Translator", Recorder)
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    parser = argparse.ArgumentParser()
    translate.declare(parser)
    for action in parser._actions:
        name = action.dest
        if name in ("help", "model", "out", "nbest", "scores", "split"):  # or what is printed
            continue
        if name in ("source_language", "target_language"):  # tests/translator/test_hub.py
            continue
        if name in OF_CORPORA:
            words = ["--text", "a", action.option_strings[0], OF_CORPORA[name]]
            assert paradec(["translate", "--model", str(DEMO), *words]) == 2
            assert f"error: {action.option_strings[0]}" in capsys.readouterr().err
            continue
        words, value = TYPED.get(name, (None, None))
        if words is None:
            value = True if action.nargs == 0 else {int: 2, float: 0.5}.get(action.type, "x")
            words = [action.option_strings[0]] + ([] if value is True else [str(value)])
        arrived.clear()
        text = [] if name in ("text", "files") else ["--text", "a"]
        assert paradec(["translate", "--model", str(DEMO), *text, *words]) == 0, name
        if name in ("text", "files"):
            found: Any = arrived["lines"] if name == "text" else "".join(arrived["lines"])
        else:
            found = threads.pop() if name == "threads" else arrived[name]
            found = "".join(found) if name == "drafts" else found
        assert found == value, name
        assert arrived["model"] == DEMO


@pytest.mark.parametrize("flag", ["print_step", "retain_iter_history"])
def test_what_fairseqs_search_does_not_record_is_refused(flag: str) -> None:
    """fairseq ends with a KeyError there."""
    task, model = built("default")
    word = "--" + flag.replace("_", "-")
    settings = convert_namespace_to_omegaconf(parse("fairseq-generate", word)).generation
    with open_dict(settings):
        for decoding in ("auto", "beam"):
            settings.decoding = decoding
            with pytest.raises(UsageError, match=f"{word} needs a --decoding of this plugin"):
                task.build_generator([model], settings)
        settings.decoding = "greedy"
    assert task.build_generator([model], settings)


def test_the_defaults_of_the_search_are_fairseqs() -> None:
    """So that a value of fairseq's configuration is told from one that is given."""
    theirs = GenerationConfig()
    for name in {*SEARCH_OPTIONS} - {"seed"}:  # theirs is of all that a command does
        assert getattr(theirs, name) == ALL[name].default
    assert {*BITES} == {*SEARCH_OPTIONS} and not {*OPTIONS} & {*SEARCH_OPTIONS}


def test_an_ngram_that_is_not_to_repeat_does_not() -> None:
    """fairseq 0.12 forbids nothing on a CPU."""
    assert repeating([2, 5, 6, 5], 2) == [6] and repeating([2, 5, 6, 5], 1) == [2, 5, 6]
    assert repeating([2, 5, 6, 7, 5, 6], 3) == [7] and repeating([2, 5], 3) == []
    task, model = built("default")
    words = {"decoding": "beam", "beam": 3, "max_len_b": 18, "min_len": 8, "unkpen": -9.0}
    for size in (1, 2, 3):
        found = written([model], batch(task, [6] * 6), **words, no_repeat_ngram_size=size)
        for tokens, _ in found:
            ngrams = [*zip(*(tokens[i:] for i in range(size)))]
            assert len(set(ngrams)) == len(ngrams)


@pytest.mark.parametrize("beam", [1, 3])
def test_an_ngram_repeats_where_a_prefix_forces_it(beam: int) -> None:
    """fairseq's own search ended in an assertion."""
    task, model = built("default")
    prefix = np.array([[6, 6, 6], [7, 8, 7], [9, 1, 1], [5, 6, 7]])
    given = replace(batch_of(batch(task, [6] * 4)), prefix=prefix)
    limits = {"beam": beam, "max_len_b": 12, "min_len": 6, "no_repeat_ngram_size": 1}
    both = []
    for decoding in ("beam", "multiword_beam"):
        found = build_decoder([model], configure(decoding=decoding, **limits)).decode(given)
        both.append([[one["tokens"].tolist() for one in hypos] for hypos in found])
    assert both[0] == both[1]
    assert all(one[:3] == [6, 6, 6] and len({*one[3:]} - {6}) >= 4 for one in both[0][0])
