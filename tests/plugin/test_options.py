"""Every wrong option is an error that names the flag, what was given and what is allowed."""

import argparse
import contextlib

import pytest
import torch
from fairseq import options as fairseq_options
from fairseq.sequence_generator import SequenceGenerator
from support.builders import (
    Limits,
    batch,
    built,
    lend,
    tiny_blockwise,
    tiny_drafter,
    tiny_reordered,
)
from support.commands import ROOT

from fairseq_paradec import config as options
from fairseq_paradec.config import (
    ALL,
    ENGINE_FLAGS,
    METHOD_FLAGS,
    REPORT_FLAGS,
    RULE_FLAGS,
    DecodingConfig,
    flag,
)
from fairseq_paradec.errors import UsageError
from fairseq_paradec.methods import describe
from fairseq_paradec.methods.base import Decoder
from fairseq_paradec.methods.build import build_decoder
from fairseq_paradec.methods.configure import FLAGS_OF_AUTO, configure
from fairseq_paradec.plugin.generators import batch_of
from fairseq_paradec.plugin.tasks.flags import ParallelTranslationConfig
from fairseq_paradec.records import open_report
from fairseq_paradec.registry import DECODINGS, METHODS

NAN = float("nan")
SLIDING = {"jacobi_window": "sliding"}
GOOD = {
    "block_size": 3,
    "jacobi_window": "block",
    "jacobi_init": "bos",
    "jacobi_length": "grow",
    "jacobi_stop": "unchanged",
    "hybrid_length": 7,
    "drafter_path": "drafter.pt",
    "accept_topk": 4,
    "accept_margin": 2.5,
    "accept_distance": 2,
    "min_block": 2,
    "adaptive_block": True,
    "drafter_shortlist": 100,
    "drafter_dtype": "bf16",
    "speed_profile": "profile.json",
    "latency_budget_ms": 20.0,
    "deduplicate_ngrams": 2,
    "length_formula": "google",
    "beam_stop": "settled",
    "draft_confidence": 0.4,
    "draft_tree": 24,
}
ENGINE = {"engine": "native", "engine_dtype": "bf16"}
REPORTS = {"audit": True, "stats_file": "s.jsonl", "trace_file": "t.jsonl"}


@pytest.fixture(autouse=True)
def _somewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def config(**options):
    return configure(argparse.Namespace(**options))


def needed(decoding, drafter="drafter.pt", name=None):
    """The flags without which a method cannot run, or not with the flag of this name."""
    if name == "adaptive_block" and decoding in ("pgj", "hgj"):
        return SLIDING
    needs = decoding in METHODS and METHODS[decoding].needs_drafter
    flags = {"drafter_path": drafter} if needs else {}
    relaxes = decoding == "assisted" and name == "accept_margin"
    return flags | ({"accept_topk": 3} if relaxes else {})


def test_every_method_is_registered_offered_and_described():
    assert set(DECODINGS) == {"auto", "beam", *METHODS}
    assert set(GOOD) == set(METHOD_FLAGS)
    assert (set(ENGINE), set(REPORTS)) == (set(ENGINE_FLAGS), set(REPORT_FLAGS))
    assert FLAGS_OF_AUTO == ("block_size", *REPORT_FLAGS, *ENGINE_FLAGS)
    fields = ParallelTranslationConfig.__dataclass_fields__
    for name in (*METHOD_FLAGS, *options.COMMON_FLAGS, "decoding"):
        assert fields[name].metadata["help"]
    for method in METHODS.values():
        assert issubclass(method.load(), Decoder)
    page = (ROOT / describe.PAGE).read_text(encoding="utf-8")
    assert page == describe.fill(page), "run python -m fairseq_paradec.methods.describe"


def test_defaults_of_a_method():
    assert config() == DecodingConfig()
    assert config(decoding="hgj").block_size == 5
    papers = config(decoding="gad_pp", drafter_path="x")
    assert (papers.accept_topk, papers.accept_margin) == (3, 1.0)
    heads = config(decoding="blockwise")  # they may be in the model
    assert (heads.drafter_path, heads.accept_topk, heads.accept_distance) == (None, 1, None)


def test_scores_that_could_grow_have_no_bound():
    stop = {"decoding": "multiword_beam", "beam_stop": "settled"}
    assert config(**stop, unkpen=0.0).beam_stop == "settled"
    with pytest.raises(UsageError, match="^--beam-stop settled excludes --unkpen below 0"):
        config(**stop, unkpen=-0.1)


def test_the_edges_of_ranges_are_allowed():
    for edge in ({"accept_margin": float("inf")}, {"accept_margin": 0, "accept_topk": 1}):
        assert config(decoding="gad_pp", drafter_path="x", **edge)
    assert config(decoding="blockwise", accept_distance=0).accept_distance == 0


def test_a_call_overrides_the_task():
    task = argparse.Namespace(decoding="hgj", block_size=3, audit=True)

    def called(**options):
        return configure(argparse.Namespace(**options), task)

    assert called() == called(decoding="hgj") == DecodingConfig("hgj", block_size=3, audit=True)
    assert called(audit=False) == DecodingConfig("hgj", block_size=3)
    assert called(decoding="pgj") == DecodingConfig("pgj", audit=True)
    assert called(decoding="beam") == DecodingConfig("beam")


@pytest.mark.parametrize("decoding", DECODINGS)
def test_a_flag_is_used_or_refused(decoding):
    read = {"auto": FLAGS_OF_AUTO, "beam": ()}.get(decoding)
    if read is None:
        read = (*METHODS[decoding].reads, *ENGINE)
    for name, value in (GOOD | ENGINE).items():
        options = {"decoding": decoding, **needed(decoding, name=name), name: value}
        if name in read:
            assert getattr(config(**options), name) == value
        else:
            with pytest.raises(UsageError, match=f"{flag(name)}.*--decoding {decoding}"):
                config(**options)


def test_a_switch_that_is_off_is_not_given():
    off = {"adaptive_block": False, "audit": False}
    assert set(off) == set(options.SWITCHES)
    for decoding in ("auto", "beam", "greedy"):
        assert config(decoding=decoding, **off) == DecodingConfig(decoding)
    task = argparse.Namespace(decoding="greedy", audit=True)
    assert not configure(argparse.Namespace(audit=False), task).audit


@pytest.mark.parametrize("name", ["block_size", *ENGINE, *REPORTS])
def test_auto_refuses_what_is_only_of_a_method(name):
    """Only with the models is it known whether they have a way of their own."""
    value = (GOOD | ENGINE | REPORTS)[name]
    task, model = built("default")
    said = f"{flag(name)}( {value})? needs a --decoding that reads it .*; with auto fairseq's own"
    for models in ([model], [model, model]):
        with pytest.raises(UsageError, match=said):
            task.build_generator(models, argparse.Namespace(**{name: value}))
        task.build_generator(models, argparse.Namespace(**{name: None}))
    if name == "audit":
        with pytest.raises(UsageError, match="--audit needs .*multiword_beam does not"):
            task.build_generator([tiny_reordered(task)], argparse.Namespace(beam=1, audit=True))
    elif name in REPORTS:
        args = argparse.Namespace(beam=1, **{name: value})
        generator = task.build_generator([tiny_reordered(task)], args)
        assert getattr(generator.decoder.config, name) == value
        assert generator.decoder.config.decoding == "multiword_beam"


@pytest.mark.parametrize(
    ("decoding", "options", "words"),
    [
        ("auto", {"block_size": 0}, "--block-size 0 from 1"),
        ("hgj", {"block_size": 2.5}, "--block-size 2.5 from 1"),
        ("hgj", {"block_size": False}, "--block-size False from 1"),
        ("hgj", {"hybrid_length": 0}, "--hybrid-length 0 from 1"),
        ("gad", {"drafter_path": ""}, "--drafter-path block_nat gad"),
        ("gad_pp", {"drafter_path": None}, "--drafter-path block_nat gad_pp"),
        ("gad_pp", {"accept_topk": 0}, "--accept-topk 0 from 1"),
        ("gad_pp", {"accept_margin": -0.1}, "--accept-margin -0.1 from 0"),
        ("gad_pp", {"accept_margin": NAN}, "--accept-margin nan from 0"),
        ("gad_pp", {"accept_margin": "1"}, "--accept-margin '1' from 0"),
        ("blockwise", {"accept_distance": -1}, "--accept-distance -1 from 0"),
        ("blockwise", {"min_block": 0}, "--min-block 0 from 1"),
        (
            "blockwise",
            {"min_block": 2, "no_repeat_ngram_size": 3},
            "--no-repeat-ngram-size 3 excludes --min-block",
        ),
        ("gad", {"drafter_shortlist": 0}, "--drafter-shortlist 0 from 1"),
        ("pj", {"jacobi_init": "zero"}, "--jacobi-init zero source-copy"),
        ("pj", {"jacobi_length": "ref"}, "--jacobi-length ref oracle"),
        ("greedy", {"trace_file": "."}, "--trace-file folder"),
        ("greedy", {"stats_file": ""}, "--stats-file ''"),
    ],
)
def test_wrong_values(decoding, options, words):
    """Those that test_messages.py does not type."""
    with pytest.raises(UsageError) as error:
        config(**needed(decoding) | options, decoding=decoding)
    for word in words.split():
        assert word in str(error.value)


@pytest.mark.parametrize("name", [one.name for one in ALL.values() if one.kind in (int, float)])
def test_numbers_just_out_of_range_are_refused_by_their_own_flag(name):
    """And those at its ends are not. Numbers have ends, but for penalties and rates."""
    option = ALL[name]
    if option.least is None and option.above is None:
        assert name in ("unkpen", "diverse_beam_strength", "diversity_rate")
        return
    step = 1 if option.kind is int else 1e-7
    inside = {option.least, option.most} - {None}
    below = option.above if option.least is None else option.least - step
    for value in (below, *(() if option.most is None else (option.most + step,))):
        with pytest.raises(UsageError, match=f"{flag(name)}: got .*; allowed: "):
            option.check(value)
    for value in inside:
        option.check(option.kind(value))


@pytest.mark.parametrize("decoding", ["greedy", "self_draft", "multiword_beam", "beam"])
def test_the_largest_length_penalties_decode(decoding):
    """As fairseq's search does; larger ones overflowed."""
    task, model = built("default")
    sample = batch(task, [6, 4])
    for lenpen in (-10.0, 10.0):
        limits = Limits(max_len_b=9, lenpen=lenpen).flags()
        limits["beam"] = 1 if decoding == "greedy" else 3
        made = [
            task.build_generator([model], argparse.Namespace(**limits, decoding=name))
            for name in (decoding, "beam")
        ]
        mine, stock = (
            [hypos[0]["tokens"].tolist() for hypos in task.inference_step(one, [model], sample)]
            for one in made
        )
        assert mine == stock


@pytest.mark.parametrize("decoding", ["greedy", "multiword_beam", "beam"])
@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"max_len_b": 0}, "--max-len-b: got 0; allowed: .* from 1 up"),
        ({"min_len": 5, "max_len_b": 4}, "--min-len: got 5; allowed: at most .* here 4"),
        ({"min_len": 0, "max_len_b": 0}, ""),
        ({"max_len_a": 1.0, "max_len_b": 0}, ""),
    ],
)
def test_a_length_limit_is_refused_by_the_flag_that_was_given(decoding, limits, words):
    _, model = built("default")
    how = contextlib.nullcontext() if words == "" else pytest.raises(UsageError, match=words)
    with how:
        build_decoder([model], configure(decoding=decoding, **limits))


@pytest.mark.parametrize(
    ("interactive", "typed"), [(False, "--prefix-size=-1"), (True, "--buffer-size=0")]
)
def test_numbers_of_fairseqs_commands_have_a_least_value(interactive, typed):
    name, value = typed.split("=")
    with pytest.raises(UsageError, match=f"{name}: got {value}; allowed: a whole number from "):
        parser = fairseq_options.get_generation_parser(interactive=interactive)
        fairseq_options.parse_args_and_arch(parser, ["DATA", "--path", "model.pt", typed])
    usual = fairseq_options.get_generation_parser(interactive=interactive)
    assert fairseq_options.parse_args_and_arch(usual, ["DATA", "--path", "model.pt"])


#: What fairseq's own searches can do, and rules that they have not.
FAIRSEQS = {
    "nbest": 2,
    "sampling": True,
    "constraints": "ordered",
    "lm_path": "lm.pt",
    "no_repeat_ngram_size": 3,
    "repetition_penalty": 1.5,
    "suppress_sequences": "w1 w2",
    "print_alignment": "hard",
    "replace_unk": "dict.txt",
    "match_source_len": True,
    "diverse_beam_groups": 2,
    "diversity_rate": 0.5,
    "retain_dropout": True,
    "score_reference": True,
    "beam": 4,
    "temperature": 0.0,
}


@pytest.mark.parametrize("decoding", ["beam", "auto"])
def test_rules_that_fairseqs_search_has_not_are_refused(decoding):
    task, model = built("default")
    for name in RULE_FLAGS:
        value = FAIRSEQS[name]
        for beam in (1, 5):
            args = argparse.Namespace(decoding=decoding, beam=beam, **{name: value})
            with pytest.raises(UsageError, match=f"{flag(name)} {value} needs a --decoding that"):
                task.build_generator([model], args)
            config = configure(args)
            with pytest.raises(UsageError, match=f"{flag(name)} {value} needs a --decoding that"):
                build_decoder([model], config)


@pytest.mark.parametrize("decoding", METHODS)
def test_what_a_method_cannot_honour_is_refused(decoding):
    task, model = built("default")
    drafter = tiny_drafter(task)
    own = {"nat": drafter, "blockwise": tiny_blockwise(task)}
    own["double_token_beam"] = tiny_reordered(task, "double_token")
    for name, value in FAIRSEQS.items():
        if METHODS[decoding].beams and name == "beam":
            continue  # tests/methods/test_beam_drafts.py
        if METHODS[decoding].beam and name in ("nbest", "beam"):
            continue  # a beam search can: tests/methods/test_multiword_beam.py
        honours = decoding not in ("nat", "double_token_beam")
        if honours and name == "no_repeat_ngram_size":
            continue  # tests/methods/test_conformance.py
        if honours and name in RULE_FLAGS:
            continue  # as well
        if honours and name in ("print_alignment", "replace_unk"):
            continue  # tests/plugin/test_alignment.py
        if METHODS[decoding].samples and name == "sampling":
            continue  # tests/decoding/test_sampling.py
        helper = model if decoding == "assisted" else drafter
        options = needed(decoding, lend(task, model, helper)) | {name: value}
        said = f"{flag(name)}: got"
        if name == "beam" or name in RULE_FLAGS:
            said = f"{flag(name)} {value} needs (a )?--decoding"
        with pytest.raises(UsageError, match=said):
            args = argparse.Namespace(decoding=decoding, **options)
            task.build_generator([own.get(decoding, model)], args)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            {"decoding": "gad_pp"},
            "--sampling: got True.*no sampling, or --decoding greedy, pj, pgj, hgj, gad, assisted",
        ),
        ({"audit": True}, "--audit excludes --sampling"),
        ({"accept_topk": 2}, "--accept-topk 2 excludes --sampling"),
        ({"decoding": "blockwise", "min_block": 2}, "--min-block 2 excludes --sampling"),
        ({"sampling": False, "sampling_topk": 3}, "--sampling-topk 3 needs --sampling"),
        ({"sampling": False, "seed": 3}, "--seed 3 needs --sampling"),
    ],
)
def test_sampling_is_refused_where_it_would_not_be_honest(flags, words):
    task, model = built("default")
    path = lend(task, model, tiny_drafter(task) if "decoding" in flags else model)
    args = {"decoding": "assisted", "sampling": True, "drafter_path": path} | flags
    with pytest.raises(UsageError, match=words):
        task.build_generator([model], argparse.Namespace(**args))


def test_idle_values_are_no_wish_and_fairseqs_own_search_is_untouched():
    task, model = built("default")
    idle = {"print_alignment": False, "constraints": False, "replace_unk": "", "beam": 1}
    idle |= {"diverse_beam_groups": -1, "diversity_rate": -1.0, "nbest": 1}
    task.build_generator([model], argparse.Namespace(decoding="greedy", **idle))
    for decoding in ("auto", "beam"):
        generator = task.build_generator([model], argparse.Namespace(decoding=decoding, beam=4))
        assert type(generator).__module__ == "fairseq.sequence_generator"
        assert generator.beam_size == 4


def test_what_only_a_program_can_give_is_refused():
    task, model = built("default")
    args, lm = argparse.Namespace(decoding="greedy"), {"extra_gen_cls_kwargs": {"lm_model": model}}
    for said, more in (
        ("--seq-gen-cls", {"seq_gen_cls": SequenceGenerator}),
        ("--prefix-allowed-tokens-fn", {"prefix_allowed_tokens_fn": lambda b, t: [4]}),
        ("--lm-model: got <class '.*TransformerModel'>", lm),
    ):
        with pytest.raises(UsageError, match=said):
            task.build_generator([model], args, **more)
    args.lm_path = "lm.pt"  # fairseq-generate gives it with the model
    with pytest.raises(UsageError, match="^--lm-path: got 'lm.pt'.*no language model"):
        task.build_generator([model], args, extra_gen_cls_kwargs={"lm_model": model})
    del args.lm_path
    generator = task.build_generator([model], args)
    with pytest.raises(UsageError, match="--constraints"):
        generator.generate([model], batch(task, [4]), constraints=torch.ones(1, 1))
    task, model = built("separate")
    args = argparse.Namespace(decoding="pj", jacobi_init="source-copy")
    with pytest.raises(UsageError, match="--jacobi-init.*source-copy.*dictionary"):
        task.build_generator([model], args)


def test_a_report_does_not_overwrite_other_data(tmp_path):
    checkpoint = tmp_path / "model.pt"
    checkpoint.write_bytes(b"PK weights")
    with pytest.raises(UsageError, match="--stats-file.*other data"):
        config(decoding="greedy", stats_file=str(checkpoint))
    assert checkpoint.read_bytes() == b"PK weights"
    earlier = tmp_path / "stats.jsonl"
    earlier.write_text('{"schema": "fairseq_paradec.decoding", "version": 1}\n')
    config(decoding="greedy", stats_file=str(earlier))
    with pytest.raises(UsageError, match="--stats-file: got '/proc/none/x'"):
        open_report("--stats-file", "/proc/none/x")


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("max_len_b", "x", "a whole number from 0 up"),
        ("max_len_b", 2.5, "a whole number from 0 up"),
        ("max_len_a", "1", "a number from 0 up"),
        ("beam", "5", "a whole number from 1 up"),
        ("nbest", 0, "a whole number from 1 up"),
        ("unnormalized", "no", "True or False"),
        ("temperature", 0, "a number from 1e-06 up"),
        ("stats_file", 3, "a text"),
    ],
)
def test_values_of_another_type_are_refused_wherever_they_come_from(name, value, allowed):
    """Also fairseq's own settings, as keywords, from a Namespace, and in a config made by hand."""
    said = f"{flag(name)}: got {value!r}; allowed: {allowed}$"
    for decoding in ("auto", "beam", "greedy"):
        with pytest.raises(UsageError, match=said):
            DecodingConfig(decoding, **{name: value})
        if name != "stats_file" or decoding == "greedy":
            with pytest.raises(UsageError, match=said):
                configure(decoding=decoding, **{name: value})
            with pytest.raises(UsageError, match=said):
                config(decoding=decoding, **{name: value})
    with pytest.raises(UsageError, match="configure.*blocksize.*block_size"):
        configure(decoding="pgj", blocksize=3)


def test_a_decoder_is_built_of_models_and_a_config_alone():
    """And writes what the task's writes, with and without the models' own method."""
    task, model = built("share_all")
    sample = batch(task, [7, 4])
    for chosen in (configure(decoding="hgj", max_len_b=9), configure(beam=2, max_len_b=9)):
        ours = build_decoder([model], chosen).decode(batch_of(sample))
        wanted = task.inference_step(task.build_decoder([model], chosen), [model], sample)
        for one, other in zip(ours, wanted, strict=True):
            assert one[0]["tokens"].tolist() == other[0]["tokens"].tolist()
            assert one[0]["steps"] == other[0]["steps"] <= 10
    own = build_decoder([tiny_drafter(task)], DecodingConfig())
    assert (own.config.decoding, own.config.block_size) == ("nat", 6)
    three = build_decoder([tiny_drafter(task)], DecodingConfig("nat", block_size=3))
    assert three.config.block_size == 3
