"""The names that the package offers to others, used as a program of theirs would."""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from reference.greedy import stock_greedy
from support.again import registered
from support.builders import batch, tiny_model, tiny_task

import fairseq_paradec
from fairseq_paradec import (
    Batch,
    DecodingConfig,
    Method,
    UsageError,
    build_decoder,
    configure,
    records,
)


def of_arrays(sample: dict[str, Any]) -> Batch:
    """The sentences of fairseq's batch."""
    return Batch(sample["net_input"]["src_tokens"].numpy())


@pytest.mark.parametrize("name", fairseq_paradec.__all__)
def test_every_public_name_is_there_and_explained(name: str) -> None:
    found = getattr(fairseq_paradec, name)
    assert len(inspect.getdoc(found) or "") > 20
    assert name in dir(fairseq_paradec) or name in fairseq_paradec._PUBLIC


def test_a_name_that_is_not_public_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Decorder'"):
        fairseq_paradec.Decorder  # noqa: B018


def test_models_and_options_make_a_decoder() -> None:
    task = tiny_task()
    model = tiny_model(task, "default")
    sample = batch(task, (3, 7, 5))
    config = configure(decoding="pgj", block_size=3, max_len_b=20)
    assert isinstance(config, DecodingConfig)
    hypos = build_decoder([model], config).decode(of_arrays(sample))
    wanted = stock_greedy(task, [model], sample, max_len_b=20)
    assert [h[0]["tokens"].tolist() for h in hypos] == [w["tokens"].tolist() for w in wanted]


def test_a_wrong_option_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="--block-size: got 0"):
        configure(decoding="pgj", block_size=0)


@pytest.fixture
def again() -> Iterator[Method]:
    """A method of another package, registered."""
    with registered() as method:
        yield method


def test_a_method_of_ones_own_decodes_as_greedy_search(again: Method) -> None:
    task = tiny_task()
    model = tiny_model(task, "default")
    sample = batch(task, (3, 7, 5))
    decoder = build_decoder([model], configure(decoding="again", max_len_b=20))
    tokens = [hypos[0]["tokens"].tolist() for hypos in decoder.decode(of_arrays(sample))]
    wanted = stock_greedy(task, [model], sample, max_len_b=20)
    assert tokens == [one["tokens"].tolist() for one in wanted] and decoder.lossless
    assert decoder.stats.passes <= decoder.stats.tokens


def test_a_name_is_taken_once(again: Method) -> None:
    with pytest.raises(ValueError, match="again is there already"):
        fairseq_paradec.register(again)


def test_records_are_read(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = tiny_task()
    path = str(tmp_path / "stats.jsonl")
    config = configure(decoding="greedy", stats_file=path)
    decoder = build_decoder([tiny_model(task, "default", torch.float32)], config)
    decoder.decode(of_arrays(batch(task, (3, 7))))
    del decoder
    found = [record for _, record in records.read(path, records.STATS)]
    assert [one["decoding"] for one in found] == ["greedy"] * 2
