"""Every wrong option is an error that names the flag, what was given and what is allowed."""

from __future__ import annotations

import argparse

import pytest
import torch
from builders import batch, built
from fairseq.sequence_generator import SequenceGenerator

from fairseq_paradec.decoding.config import (
    DECODINGS,
    FLAGS_OF_METHOD,
    METHOD_FLAGS,
    DecodingConfig,
    flag,
)
from fairseq_paradec.decoding.trace import open_report
from fairseq_paradec.errors import UsageError
from fairseq_paradec.methods import METHODS
from fairseq_paradec.tasks.parallel_translation import ParallelTranslationConfig

GOOD = {
    "block_size": 3,
    "jacobi_window": "block",
    "jacobi_init": "bos",
    "jacobi_length": "grow",
    "jacobi_stop": "unchanged",
    "hybrid_length": 7,
}


def config(**options):
    return DecodingConfig.from_options(argparse.Namespace(**options))


def test_every_method_is_registered_and_offered():
    assert set(METHODS) == set(FLAGS_OF_METHOD)
    assert set(DECODINGS) == {"auto", "beam", *METHODS}
    assert set(GOOD) == set(METHOD_FLAGS)
    fields = ParallelTranslationConfig.__dataclass_fields__
    for name in (*METHOD_FLAGS, "decoding", "audit", "stats_file", "trace_file"):
        assert fields[name].metadata["help"]


def test_defaults():
    assert config() == DecodingConfig()
    assert config(decoding="hgj").block_size == 5


def test_a_call_overrides_the_task():
    task = argparse.Namespace(decoding="hgj", block_size=3, audit=True)

    def of(**call):
        return DecodingConfig.from_options(argparse.Namespace(**call), task)

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
    if name in FLAGS_OF_METHOD.get(decoding, ()):
        assert getattr(config(decoding=decoding, **{name: GOOD[name]}), name) == GOOD[name]
    else:
        with pytest.raises(UsageError, match=f"{flag(name)}.*--decoding {decoding}"):
            config(decoding=decoding, **{name: GOOD[name]})


@pytest.mark.parametrize("name", ["audit", "stats_file", "trace_file"])
def test_reports_need_a_method(name, tmp_path):
    value = True if name == "audit" else str(tmp_path / "x")
    assert getattr(config(decoding="greedy", **{name: value}), name) == value
    with pytest.raises(UsageError, match=flag(name)):
        config(**{name: value})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"decoding": "gready"}, ["--decoding", "gready", "greedy", "hgj"]),
        ({"decoding": "hgj", "block_size": 0}, ["--block-size", "0", "from 1"]),
        ({"decoding": "hgj", "block_size": -3}, ["--block-size", "-3", "from 1"]),
        ({"decoding": "hgj", "block_size": 2.5}, ["--block-size", "2.5", "from 1"]),
        ({"decoding": "hgj", "hybrid_length": 0}, ["--hybrid-length", "0", "from 1"]),
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
        config(**options)
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
    task, model = built("default")
    with pytest.raises(UsageError, match=f"{flag(name)}: got"):
        task.build_generator([model], argparse.Namespace(decoding=decoding, **{name: value}))


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
    with pytest.raises(UsageError, match="--tokens-to-suppress"):
        task.build_generator([model], args, extra_gen_cls_kwargs={"tokens_to_suppress": ("w1",)})
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
