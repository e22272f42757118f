"""Every wrong option is an error that names the flag, what was given and what is allowed."""

from __future__ import annotations

import argparse

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from support.builders import batch, built, lend, tiny_blockwise, tiny_drafter, tiny_reordered
from support.commands import ROOT

from fairseq_paradec.decoding.trace import open_report
from fairseq_paradec.errors import UsageError
from fairseq_paradec.methods import describe
from fairseq_paradec.methods.base import MethodGenerator
from fairseq_paradec.methods.configure import FLAGS_OF_AUTO, configure
from fairseq_paradec.methods.registry import DECODINGS, METHODS
from fairseq_paradec.options import (
    COMMON_FLAGS,
    ENGINE_FLAGS,
    METHOD_FLAGS,
    REPORT_FLAGS,
    SWITCHES,
    DecodingConfig,
    flag,
)
from fairseq_paradec.tasks.flags import ParallelTranslationConfig

NAN = float("nan")
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
    "speed_profile": "profile.json",
    "latency_budget_ms": 20.0,
    "deduplicate_ngrams": 2,
}
ENGINE = {"compile": True, "engine": "native", "engine_dtype": "bf16"}


def config(**options):
    return configure(argparse.Namespace(**options))


def needed(decoding, drafter="drafter.pt", name=None):
    """The flags without which a method cannot run, or not with the flag of this name."""
    if name == "adaptive_block" and decoding in ("pgj", "hgj"):
        return {"jacobi_window": "sliding"}
    return {"drafter_path": drafter} if decoding in ("gad", "gad_pp") else {}


def test_every_method_is_registered_and_offered():
    assert set(DECODINGS) == {"auto", "beam", *METHODS}
    assert set(GOOD) == set(METHOD_FLAGS)
    fields = ParallelTranslationConfig.__dataclass_fields__
    for name in (*METHOD_FLAGS, *COMMON_FLAGS, "decoding"):
        assert fields[name].metadata["help"]


def test_defaults():
    assert config() == DecodingConfig()
    assert config(decoding="hgj").block_size == 5


def test_a_call_overrides_the_task():
    task = argparse.Namespace(decoding="hgj", block_size=3, audit=True)

    def of(**call):
        return configure(argparse.Namespace(**call), task)

    assert of() == of(decoding="hgj") == DecodingConfig("hgj", block_size=3, audit=True)
    assert of(audit=False) == DecodingConfig("hgj", block_size=3)
    assert of(decoding="greedy") == DecodingConfig("greedy", audit=True)
    assert of(decoding="pgj") == DecodingConfig("pgj", audit=True)
    assert of(decoding="beam") == DecodingConfig("beam")
    with pytest.raises(UsageError, match="--block-size"):
        of(decoding="greedy", block_size=2)


def test_one_file_cannot_hold_both_reports(tmp_path):
    path = str(tmp_path / "x")
    with pytest.raises(UsageError, match="--trace-file.*--stats-file"):
        config(decoding="greedy", stats_file=path, trace_file=path)


@pytest.mark.parametrize("decoding", DECODINGS)
@pytest.mark.parametrize("name", METHOD_FLAGS)
def test_a_flag_is_used_or_refused(decoding, name):
    options = {"decoding": decoding, **needed(decoding, name=name), name: GOOD[name]}
    own_flags = {"auto": FLAGS_OF_AUTO, "beam": ()}.get(decoding)
    own_flags = METHODS[decoding].reads if own_flags is None else own_flags
    if name in own_flags:
        assert getattr(config(**options), name) == GOOD[name]
    else:
        with pytest.raises(UsageError, match=f"{flag(name)}.*--decoding {decoding}"):
            config(**options)


@pytest.mark.parametrize("decoding", DECODINGS)
@pytest.mark.parametrize("name", ENGINE)
def test_a_flag_of_the_engine_is_every_methods(decoding, name):
    """But not of fairseq's own search, which `auto` may turn out to be."""
    assert set(ENGINE) == set(ENGINE_FLAGS)
    options = {"decoding": decoding, **needed(decoding), name: ENGINE[name]}
    if decoding == "beam":
        with pytest.raises(UsageError, match=f"{flag(name)}: got .*--decoding beam does not use"):
            config(**options)
    else:
        assert getattr(config(**options), name) == ENGINE[name]


@pytest.mark.parametrize("name", ENGINE)
def test_a_plain_model_has_no_engine_under_auto(name):
    task, model = built("default")
    said = f"{flag(name)}: got {ENGINE[name]!r}; .*nothing with --decoding auto.*greedy"
    for models in ([model], [model, model]):
        with pytest.raises(UsageError, match=said):
            task.build_generator(models, argparse.Namespace(**{name: ENGINE[name]}))
        task.build_generator(models, argparse.Namespace(**{name: None}))


@pytest.mark.parametrize("name", ["audit", "stats_file", "trace_file"])
def test_reports_of_auto_are_the_models_own_ways(name, tmp_path):
    """A plain model's search is fairseq's, which reports nothing."""
    given = {name: True if name == "audit" else str(tmp_path / "report.jsonl")}
    task, model = built("default")
    said = f"{flag(name)}: got .*nothing with --decoding auto.*greedy"
    with pytest.raises(UsageError, match=said):
        task.build_generator([model], argparse.Namespace(**given))
    model = tiny_reordered(task)
    if name == "audit":
        with pytest.raises(UsageError, match="--audit: got True.*multiword_beam does not"):
            task.build_generator([model], argparse.Namespace(beam=1, **given))
    else:
        generator = task.build_generator([model], argparse.Namespace(beam=1, **given))
        assert getattr(generator.config, name) == given[name]
        assert generator.config.decoding == "multiword_beam"


def test_a_switch_that_is_off_is_not_given():
    off = {"adaptive_block": False, "compile": False, "audit": False}
    assert set(off) == set(SWITCHES)
    for decoding in ("auto", "beam", "greedy"):
        assert config(decoding=decoding, **off) == DecodingConfig(decoding)
    task = argparse.Namespace(decoding="greedy", compile=True)
    assert not configure(argparse.Namespace(compile=False), task).compile
    for decoding in ("gad", "blockwise"):
        with pytest.raises(UsageError, match="--drafter-shortlist: got False; .* from 1 up"):
            config(**needed(decoding), decoding=decoding, drafter_shortlist=False)


@pytest.mark.parametrize("decoding", ["pgj", "hgj"])
@pytest.mark.parametrize("window", [None, "block"])
def test_only_a_sliding_window_adapts(decoding, window):
    """A block of the paper ends where it was to end."""
    with pytest.raises(UsageError, match="--adaptive-block: got True; .*--jacobi-window sliding"):
        config(decoding=decoding, adaptive_block=True, jacobi_window=window)


@pytest.mark.parametrize("decoding", ["gad", "gad_pp"])
@pytest.mark.parametrize("given", [{}, {"drafter_path": ""}, {"drafter_path": None}])
def test_a_drafter_is_asked_for(decoding, given):
    with pytest.raises(UsageError, match=f"--drafter-path: got .*block_nat.*{decoding} needs"):
        config(decoding=decoding, **given)


def test_blockwise_needs_no_drafter_and_accepts_only_the_verifiers_token():
    """The heads may be in the model; and beta is 1 where GAD++ has 3."""
    found = config(decoding="blockwise")
    assert (found.drafter_path, found.accept_topk, found.accept_distance) == (None, 1, None)
    assert found.min_block == 1
    assert config(decoding="blockwise", accept_distance=0).accept_distance == 0


def test_auto_takes_the_block_size_and_no_other_flag_of_a_method():
    """Whether the model has blocks is only known when there is one."""
    assert FLAGS_OF_AUTO == ("block_size", *REPORT_FLAGS, *ENGINE_FLAGS)
    assert config(block_size=3).block_size == 3
    with pytest.raises(UsageError, match="--block-size: got 0; allowed: .* from 1"):
        config(block_size=0)
    task, model = built("default")
    for source in ("call", "task"):
        for models in ([model], [model, model]):
            args = argparse.Namespace(block_size=4 if source == "call" else None)
            task.cfg.block_size = 4 if source == "task" else None
            try:
                with pytest.raises(UsageError, match="--block-size: got 4; .*with --decoding auto"):
                    task.build_generator(models, args)
            finally:
                task.cfg.block_size = None


def test_the_papers_settings_are_the_defaults():
    found = config(decoding="gad_pp", drafter_path="x")
    assert (found.accept_topk, found.accept_margin) == (3, 1.0)
    assert config(decoding="gad_pp", drafter_path="x", accept_margin=float("inf"))
    assert config(decoding="gad_pp", drafter_path="x", accept_margin=0, accept_topk=1)


@pytest.mark.parametrize("name", ["audit", "stats_file", "trace_file"])
def test_reports_need_a_method(name, tmp_path):
    value = True if name == "audit" else str(tmp_path / "x")
    assert getattr(config(decoding="greedy", **{name: value}), name) == value
    with pytest.raises(UsageError, match=flag(name)):
        config(decoding="beam", **{name: value})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"decoding": "gready"}, ["--decoding", "gready", "greedy", "hgj"]),
        ({"decoding": "hgj", "block_size": 0}, ["--block-size", "0", "from 1"]),
        ({"decoding": "hgj", "block_size": -3}, ["--block-size", "-3", "from 1"]),
        ({"decoding": "hgj", "block_size": 2.5}, ["--block-size", "2.5", "from 1"]),
        ({"decoding": "hgj", "hybrid_length": 0}, ["--hybrid-length", "0", "from 1"]),
        ({"decoding": "hgj", "block_size": False}, ["--block-size", "False", "from 1"]),
        ({"decoding": "gad_pp", "accept_topk": 0}, ["--accept-topk", "0", "from 1"]),
        ({"decoding": "gad_pp", "accept_topk": 1.5}, ["--accept-topk", "1.5", "from 1"]),
        ({"decoding": "gad_pp", "accept_topk": True}, ["--accept-topk", "True", "from 1"]),
        ({"decoding": "gad_pp", "accept_margin": -0.1}, ["--accept-margin", "-0.1", "from 0"]),
        ({"decoding": "gad_pp", "accept_margin": NAN}, ["--accept-margin", "nan", "from 0"]),
        ({"decoding": "gad_pp", "accept_margin": True}, ["--accept-margin", "True", "from 0"]),
        ({"decoding": "gad_pp", "accept_margin": False}, ["--accept-margin", "False", "from 0"]),
        ({"decoding": "gad_pp", "accept_margin": "1"}, ["--accept-margin", "'1'", "from 0"]),
        ({"decoding": "blockwise", "accept_topk": 0}, ["--accept-topk", "0", "from 1"]),
        ({"decoding": "blockwise", "accept_distance": -1}, ["--accept-distance", "-1", "from 0"]),
        ({"decoding": "blockwise", "accept_distance": 1.0}, ["--accept-distance", "1.0", "from 0"]),
        ({"decoding": "blockwise", "accept_distance": True}, ["--accept-distance", "True"]),
        ({"decoding": "blockwise", "min_block": 0}, ["--min-block", "0", "from 1"]),
        ({"decoding": "blockwise", "min_block": True}, ["--min-block", "True", "from 1"]),
        (
            {"decoding": "blockwise", "accept_topk": 2, "accept_distance": 2},
            ["--accept-distance", "2", "--accept-topk"],
        ),
        ({"decoding": "gad", "drafter_shortlist": 0}, ["--drafter-shortlist", "0", "from 1"]),
        ({"decoding": "gad", "drafter_shortlist": 9.5}, ["--drafter-shortlist", "9.5", "from 1"]),
        ({"decoding": "greedy", "engine_dtype": "fp8"}, ["--engine-dtype", "fp8", "fp32", "int8"]),
        ({"decoding": "nat", "audit": True}, ["--audit", "True", "nat"]),
        ({"decoding": "pj", "jacobi_init": "zero"}, ["--jacobi-init", "zero", "source-copy"]),
        ({"decoding": "pj", "jacobi_length": "ref"}, ["--jacobi-length", "ref", "oracle"]),
        ({"decoding": "pgj", "jacobi_stop": "x"}, ["--jacobi-stop", "x", "prefix"]),
        ({"decoding": "pgj", "jacobi_window": "x"}, ["--jacobi-window", "x", "sliding"]),
        (
            {"decoding": "pgj", "jacobi_window": "sliding", "jacobi_stop": "unchanged"},
            ["--jacobi-stop", "unchanged", "prefix", "--jacobi-window sliding"],
        ),
    ],
)
def test_wrong_values(options, words):
    with pytest.raises(UsageError) as error:
        config(**needed(options["decoding"]), **options)
    for word in words:
        assert word in str(error.value)


def test_reports_that_cannot_be_written(tmp_path):
    with pytest.raises(UsageError, match="--stats-file.*folder"):
        config(decoding="greedy", stats_file=str(tmp_path / "none" / "x.jsonl"))
    with pytest.raises(UsageError, match="--trace-file.*folder"):
        config(decoding="greedy", trace_file=str(tmp_path))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nbest", 2),
        ("sampling", True),
        ("constraints", "ordered"),
        ("lm_path", "lm.pt"),
        ("no_repeat_ngram_size", 3),
        ("print_alignment", "hard"),
        ("replace_unk", "dict.txt"),
        ("match_source_len", True),
        ("diverse_beam_groups", 2),
        ("diversity_rate", 0.5),
        ("retain_dropout", True),
        ("score_reference", True),
        ("beam", 4),
        ("temperature", 0.0),
    ],
)
@pytest.mark.parametrize("decoding", METHODS)
def test_what_a_method_cannot_honour_is_refused(decoding, name, value):
    if METHODS[decoding].beam and name in ("nbest", "beam"):
        return  # a beam search can: tests/test_multiword_beam.py
    task, model = built("default")
    drafter = tiny_drafter(task)
    own = {"nat": drafter, "blockwise": tiny_blockwise(task)}
    own["double_token_beam"] = tiny_reordered(task, "double_token")
    models = [own.get(decoding, model)]
    options = needed(decoding, lend(task, model, drafter)) | {name: value}
    with pytest.raises(UsageError, match=f"{flag(name)}: got"):
        task.build_generator(models, argparse.Namespace(decoding=decoding, **options))


def test_idle_values_are_no_wish():
    task, model = built("default")
    idle = {"print_alignment": False, "constraints": False, "replace_unk": "", "beam": 1}
    idle |= {"diverse_beam_groups": -1, "diversity_rate": -1.0, "nbest": 1}
    task.build_generator([model], argparse.Namespace(decoding="greedy", **idle))


def test_constraints_are_refused_while_decoding():
    task, model = built("default")
    generator = task.build_generator([model], argparse.Namespace(decoding="greedy"))
    sample = batch(task, [4])
    with pytest.raises(UsageError, match="--constraints"):
        generator.generate([model], sample, constraints=torch.ones(1, 1))


def test_prefix_function_and_language_model_are_refused():
    task, model = built("default")
    args = argparse.Namespace(decoding="greedy")
    with pytest.raises(UsageError, match="--seq-gen-cls"):
        task.build_generator([model], args, seq_gen_cls=SequenceGenerator)
    with pytest.raises(UsageError, match="--prefix-allowed-tokens-fn"):
        task.build_generator([model], args, prefix_allowed_tokens_fn=lambda b, t: [4])
    with pytest.raises(UsageError, match="--lm-model"):
        task.build_generator([model], args, extra_gen_cls_kwargs={"lm_model": model})


def test_source_copy_needs_one_dictionary():
    task, model = built("separate")
    args = argparse.Namespace(decoding="pj", jacobi_init="source-copy")
    with pytest.raises(UsageError, match="--jacobi-init.*source-copy.*dictionary"):
        task.build_generator([model], args)


def test_fairseq_own_search_is_untouched():
    task, model = built("default")
    for decoding in ("auto", "beam"):
        args = argparse.Namespace(decoding=decoding, beam=4)
        generator = task.build_generator([model], args)
        assert type(generator).__module__ == "fairseq.sequence_generator"
        assert generator.beam_size == 4


def test_a_report_does_not_overwrite_other_data(tmp_path):
    checkpoint = tmp_path / "model.pt"
    checkpoint.write_bytes(b"PK weights")
    with pytest.raises(UsageError, match="--stats-file.*other data"):
        config(decoding="greedy", stats_file=str(checkpoint))
    assert checkpoint.read_bytes() == b"PK weights"
    earlier = tmp_path / "stats.jsonl"
    earlier.write_text('{"schema": "fairseq_paradec.decoding", "version": 1}\n')
    config(decoding="greedy", stats_file=str(earlier))
    with pytest.raises(UsageError, match="--stats-file: got ''"):
        config(decoding="greedy", stats_file="")


def test_a_report_that_cannot_be_opened_is_named():
    with pytest.raises(UsageError, match="--stats-file: got '/proc/none/x'"):
        open_report("--stats-file", "/proc/none/x")


def test_the_page_of_decoders_is_what_the_registry_says():
    page = (ROOT / describe.PAGE).read_text(encoding="utf-8")
    assert page == describe.fill(page), "run python -m fairseq_paradec.methods.describe"


def test_every_generator_is_there():
    for method in METHODS.values():
        assert issubclass(method.load(), MethodGenerator)
