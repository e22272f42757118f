"""The task: no sentence is lost, whatever it is, and bad calls are named errors."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import pytest
import torch
from builders import Limits, batch, built, decode, sources, tiny_task
from fairseq.criterions.cross_entropy import CrossEntropyCriterionConfig
from helpers_cli import DEMO, PLUGIN, fairseq, lines_of, run_python, succeed

from fairseq_paradec.decoding.config import METHOD_FLAGS, REPORT_FLAGS, flag
from fairseq_paradec.errors import UsageError

METHODS = ("beam", "greedy", "hgj")
GENERATE = (DEMO, "--user-dir", PLUGIN, "--path", DEMO / "model.pt", "--cpu")
TEXT = (
    "A dog runs across the grass .\n"
    "\n"
    f"{'a dog runs ' * 400}\n"
    "xyzzy ☃ ㋡\n"
    "Two men sit on a bench .\n"
)


def test_an_empty_or_too_long_sentence_has_an_empty_output(caplog):
    task, model = built("learned_positions")
    rows = sources(task, [6, 1, 70, 4])  # 64 positions; a length of 1 is </s> alone
    dataset = task.build_dataset_for_inference(rows, [len(row) for row in rows])
    limits = (64, 24)
    batches = task.get_batch_iterator(dataset, max_sentences=3, max_positions=limits)
    seen = {}
    for sample in batches.next_epoch_itr(shuffle=False):
        generator = task.build_generator([model], argparse.Namespace(decoding="pgj", max_len_b=9))
        hypos = task.inference_step(generator, [model], sample)
        seen |= dict(zip(sample["id"].tolist(), hypos, strict=True))
    assert sorted(seen) == [0, 1, 2, 3]
    assert seen[1][0]["tokens"].tolist() == seen[2][0]["tokens"].tolist() == [2]
    assert "sentence 1 is empty" in caplog.text
    assert "sentence 2 has 70 tokens, and the model takes 64" in caplog.text
    for i in (0, 3):
        alone = {"src_tokens": rows[i][None], "src_lengths": torch.tensor([len(rows[i])])}
        sample = {"net_input": alone}
        (want,) = decode(task, [model], sample, Limits(max_len_b=9), decoding="pgj")
        assert torch.equal(seen[i][0]["tokens"], want["tokens"])


def test_too_long_stays_an_error_in_training_and_skippable_in_generation():
    task = tiny_task()
    rows = sources(task, [6, 70])

    def batches(**options):
        dataset = task.build_dataset_for_inference(rows, [len(row) for row in rows])
        limits = {"max_sentences": 1, "max_positions": (64, 24)}
        return task.get_batch_iterator(dataset, **limits, **options).frozen_batches

    assert [list(b) for b in batches()] == [[0], [1]]
    assert [list(b) for b in batches(ignore_invalid_inputs=True)] == [[0]]
    task.build_criterion(CrossEntropyCriterionConfig(_name="cross_entropy"))
    with pytest.raises(Exception, match="skip-invalid-size-inputs"):
        batches()


def test_an_iterator_asked_for_twice_has_every_sentence_once():
    task = tiny_task()
    rows = sources(task, [6, 70, 3])
    dataset = task.build_dataset_for_inference(rows, [len(row) for row in rows])
    for _ in range(2):
        batches = task.get_batch_iterator(dataset, max_sentences=8, max_positions=(64, 24))
        assert sorted(i for b in batches.frozen_batches for i in b) == [0, 1, 2]


def test_a_sentence_beyond_max_tokens_comes_alone():
    task = tiny_task()
    rows = sources(task, [6, 30, 3, 4])
    dataset = task.build_dataset_for_inference(rows, [len(row) for row in rows])
    batches = task.get_batch_iterator(dataset, max_tokens=13, max_positions=(64, 24))
    assert [1] in [list(b) for b in batches.frozen_batches]
    assert sorted(i for b in batches.frozen_batches for i in b) == [0, 1, 2, 3]


def test_min_len_beyond_the_limit_is_named():
    task, model = built("default")
    with pytest.raises(UsageError, match="--min-len: got 9.*limit, here 5"):
        limits = Limits(min_len=9, max_len_b=5)
        decode(task, [model], batch(task, [4]), limits, decoding="greedy")


@pytest.mark.parametrize("decoding", METHODS)
def test_interactive_answers_every_line(decoding):
    result = succeed(
        fairseq(
            "interactive", *GENERATE, "-s", "en", "-t", "de", "--decoding", decoding,
            "--tokenizer", "moses", "--bpe", "subword_nmt", "--bpe-codes", DEMO / "codes.bpe",
            "--buffer-size", 4, "--batch-size", 2, stdin=TEXT,
        )
    )  # fmt: skip
    texts = [line.split("\t")[2] for line in lines_of(result.stdout, "D")]
    assert [line.split("\t")[0] for line in lines_of(result.stdout, "D")] == [
        f"D-{i}" for i in range(5)
    ]
    assert texts[1] == texts[2] == ""
    assert "Hund" in texts[0]
    assert "Männer" in texts[4]
    assert "is empty; its output is empty" in result.stderr
    assert "the model takes 1024; its output is empty" in result.stderr


@pytest.fixture(scope="module")
def hard_data(tmp_path_factory) -> Path:
    """A data folder whose test set holds the lines of TEXT."""
    folder = tmp_path_factory.mktemp("hard lines'")
    (folder / "test.en").write_text(TEXT, encoding="utf-8")
    (folder / "test.de").write_text("ein\n" * 5, encoding="utf-8")
    dicts = ["--srcdict", DEMO / "dict.en.txt", "--tgtdict", DEMO / "dict.de.txt"]
    data = folder / "data-bin"
    prefix = ["--testpref", folder / "test", "--destdir", data]
    succeed(fairseq("preprocess", "-s", "en", "-t", "de", *prefix, *dicts))
    return data


@pytest.mark.parametrize("decoding", ["beam", "pgj"])
def test_generate_answers_every_line(hard_data, decoding):
    result = succeed(
        fairseq("generate", hard_data, *GENERATE[1:], "--decoding", decoding, "--batch-size", 2)
    )
    heads = sorted(line.split("\t")[0] for line in lines_of(result.stdout, "H"))
    assert heads == [f"H-{i}" for i in range(5)]
    assert "Translated 5 sentences" in result.stderr
    assert "sentence 1 is empty" in result.stderr
    assert "sentence 2 has" in result.stderr


def test_the_card_commands_run_as_written():
    """`fairseq-generate DATA --user-dir fairseq_paradec --path M --decoding hgj`, in the checkout.

    And what it gives is what fairseq's own search gives.
    """
    root = PLUGIN.parent
    data, model = "data-bin/demo.en-de", "data-bin/demo.en-de/model.pt"
    given = (data, "--user-dir", "fairseq_paradec", "--path", model)
    ours = succeed(fairseq("generate", *given, "--decoding", "hgj", "--audit", cwd=root))
    stock = succeed(fairseq("generate", *given, "--beam", "1", cwd=root))
    hypotheses = [
        {line.split("\t")[0]: line.split("\t")[2] for line in lines_of(r.stdout, "H")}
        for r in (ours, stock)
    ]
    assert len(hypotheses[0]) == 100
    assert hypotheses[0] == hypotheses[1]
    assert "audit: 100 of 100 sentences identical" in ours.stderr
    assert "hgj: 100 sentences" in ours.stderr
    assert "beam=1" in ours.stdout


def test_hub_translates_by_any_method(tmp_path):
    """translate(..., decoding=...) through fairseq's hub interface, with the user dir named."""
    shutil.copy(DEMO / "model.pt", tmp_path / "model.pt")
    code = f"""
from fairseq.models.transformer import TransformerModel
hub = TransformerModel.from_pretrained(
    {str(tmp_path)!r}, "model.pt", {str(DEMO)!r}, user_dir={str(PLUGIN)!r},
    tokenizer="moses", source_lang="en", target_lang="de",
    bpe="subword_nmt", bpe_codes={str(DEMO / "codes.bpe")!r},
)
text = ["A dog runs across the grass.", "Two men sit on a bench."]
want = hub.translate(text, beam=1)
for options in (dict(decoding="hgj", block_size=3), dict(decoding="greedy"), dict(decoding="pj")):
    assert hub.translate(text, **options) == want, options
print(want)
"""
    assert "Hund" in succeed(run_python(code)).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--decoding", "gready"), ("--decoding", "gready", "allowed: auto, beam, greedy")),
        (("--decoding", "hgj", "--block-size", "0"), ("--block-size", "0", "from 1 up")),
        (("--decoding", "hgj", "--nbest", "2"), ("--nbest", "2", "--nbest 1")),
        (("--decoding", "pj", "--sampling", "--beam", "1"), ("--sampling", "True", "no sampling")),
    ],
)
def test_bad_flags_stop_before_decoding(arguments, words):
    result = fairseq("generate", *GENERATE, *arguments)
    assert result.returncode != 0
    message = result.stderr.strip().splitlines()[-1]
    assert all(word in message for word in words), message
    assert not lines_of(result.stdout, "H")


def test_a_missing_data_folder_is_named():
    result = fairseq("generate", "no/such folder", *GENERATE[1:])
    assert result.returncode != 0
    assert "DATA: got 'no/such folder'" in result.stderr.strip().splitlines()[-1]


def test_a_missing_dictionary_is_named(tmp_path):
    result = fairseq("generate", tmp_path, *GENERATE[1:], "-s", "en", "-t", "de")
    assert result.returncode != 0
    assert "dict.en.txt is not there" in result.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("command", ["generate", "train"])
def test_help_teaches_the_flags(command):
    result = succeed(fairseq(command, "--user-dir", PLUGIN, "--help"))
    for name in (*METHOD_FLAGS, *REPORT_FLAGS, "decoding"):
        assert f"\n  {flag(name)} " in result.stdout
    assert "each pass predicts a whole block" in " ".join(result.stdout.split())
