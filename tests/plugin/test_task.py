"""The task: no sentence is lost, whatever it is, and bad calls are named errors."""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.criterions.cross_entropy import CrossEntropyCriterionConfig
from fairseq.data import LanguagePairDataset
from fairseq.tasks import setup_task
from omegaconf import OmegaConf
from support.builders import Limits, batch, built, collate, decode, sources, tiny_task
from support.commands import DEMO, PLUGIN, fairseq, lines_of, run_python, succeed

from fairseq_paradec.config import DecodingConfig
from fairseq_paradec.errors import UsageError
from fairseq_paradec.methods.configure import configure
from fairseq_paradec.plugin.compat import given
from fairseq_paradec.plugin.tasks.flags import ParallelTranslationConfig
from fairseq_paradec.plugin.tasks.translation import ParallelTranslationTask

GENERATE = (DEMO, "--user-dir", PLUGIN, "--path", DEMO / "model.pt", "--cpu")
TEXT = f"A dog runs across the grass .\n\n{'a dog runs ' * 400}\nxyzzy ☃ ㋡\nTwo men sit .\n"


def test_an_empty_or_too_long_sentence_has_an_empty_output(caplog):
    task, model = built("learned_positions")
    rows = sources(task, [6, 1, 70, 4])  # 64 positions; a length of 1 is </s> alone
    dataset = task.build_dataset_for_inference(rows, [len(row) for row in rows])
    batches = task.get_batch_iterator(dataset, max_sentences=3, max_positions=(64, 24))
    seen = {}
    for sample in batches.next_epoch_itr(shuffle=False):
        generator = task.build_generator([model], argparse.Namespace(decoding="pgj", max_len_b=9))
        hypos = task.inference_step(generator, [model], sample)
        seen |= dict(zip(sample["id"].tolist(), hypos, strict=True))
    assert sorted(seen) == [0, 1, 2, 3]
    assert seen[1][0]["tokens"].tolist() == seen[2][0]["tokens"].tolist() == [2]
    assert "sentence 1 is empty" in caplog.text
    assert "has 70 tokens, and the model takes 64" in caplog.text
    for i in (0, 3):
        alone = collate(task, [rows[i]])
        (want,) = decode(task, [model], alone, Limits(max_len_b=9), decoding="pgj")
        assert torch.equal(seen[i][0]["tokens"], want["tokens"])


def batches_of(task, lengths, **options):
    """The sentences of each batch of sentences of these lengths; 64 positions."""
    rows = sources(task, lengths)
    dataset = task.build_dataset_for_inference(rows, [len(row) for row in rows])
    task.datasets["train"] = dataset
    found = task.get_batch_iterator(dataset, max_positions=(64, 24), **options).frozen_batches
    return [list(one) for one in found]


def test_too_long_stays_an_error_in_training_and_skippable_in_generation():
    task, one = tiny_task(), {"max_sentences": 1}
    assert batches_of(task, [6, 70], **one) == [[0], [1]]
    assert batches_of(task, [6, 70], **one, ignore_invalid_inputs=True) == [[0]]
    task.build_criterion(CrossEntropyCriterionConfig(_name="cross_entropy"))
    with pytest.raises(Exception, match="skip-invalid-size-inputs"):
        batches_of(task, [6, 70], **one)


def test_a_reference_beyond_max_target_positions_is_an_error_or_skipped(monkeypatch):
    """As in fairseq, where the user gave the flag; references count by their tokens with </s>."""
    task = tiny_task()
    rows, references = sources(task, [6, 5, 4, 70]), sources(task, [8, 9, 30, 8])
    sizes = [[len(row) for row in side] for side in (rows, references)]
    words = task.source_dictionary
    dataset = LanguagePairDataset(rows, sizes[0], words, references, sizes[1], words)
    task.datasets["train"] = dataset

    def kept(positions, **options):
        found = task.get_batch_iterator(
            dataset, max_sentences=4, max_positions=(64, positions), **options
        )
        return sorted(i for one in found.frozen_batches for i in one)

    assert kept(8) == kept(24) == [0, 1, 2, 3]
    assert kept(8, ignore_invalid_inputs=True) == [0]
    assert kept(24, ignore_invalid_inputs=True) == [0, 1]
    monkeypatch.setattr(task.cfg, "max_target_positions", 8)
    token = given.GIVEN.set(frozenset({"max_target_positions"}))
    try:
        said = "--max-target-positions: got 8; allowed: 30 or more, .* leaves 2 of 4 sentences out"
        with pytest.raises(UsageError, match=said):
            kept(8)
        assert kept(8, ignore_invalid_inputs=True) == [0]
        monkeypatch.setattr(task.cfg, "max_target_positions", 30)
        assert kept(30) == [0, 1, 2, 3]
    finally:
        given.GIVEN.reset(token)


@pytest.mark.parametrize(("skip", "kept"), [(False, [0, 1, 2, 3, 4]), (True, [0, 1, 2, 3])])
def test_a_sentence_beyond_max_tokens_comes_alone(skip, kept):
    found = batches_of(tiny_task(), [6, 30, 3, 4, 70], max_tokens=13, ignore_invalid_inputs=skip)
    assert [1] in found
    assert sorted(i for batch in found for i in batch) == kept


def test_no_sentence_of_the_training_set_is_dropped_when_generating():
    """Distillation translates the training set; fairseq keeps multiples of eight there."""
    task = tiny_task()
    task.cfg.train_subset = "train"
    for size in (5, 8):
        found = batches_of(task, [5] * 13, max_sentences=size, required_batch_size_multiple=8)
        assert sum(map(len, found)) == 13


def test_min_len_beyond_the_limit_is_named_before_decoding():
    """A short sentence whose limit --max-len-a sets does not stop the others."""
    task, model = built("default")  # 24 positions
    args = argparse.Namespace(min_len=29, decoding="greedy", max_len_b=200)
    with pytest.raises(UsageError, match="--min-len: got 29.*limit, here"):
        task.build_generator([model], args)
    limits = Limits(max_len_a=1.0, max_len_b=0, min_len=4)
    hypos = decode(task, [model], batch(task, [9, 2]), limits, decoding="pgj")
    assert len(hypos[1]["tokens"]) == 5
    assert 5 <= len(hypos[0]["tokens"]) <= 10


def test_how_a_model_was_decoded_in_training_is_forgotten(tmp_path):
    """A checkpoint must not write to, or ask for, the report files of its training."""
    for language in ("en", "de"):
        shutil.copy(DEMO / f"dict.{language}.txt", tmp_path)
    gone = str(tmp_path / "gone" / "stats.jsonl")
    options = {"data": str(tmp_path), "source_lang": "en", "target_lang": "de"}
    options |= {"decoding": "hgj", "block_size": 3, "audit": True, "stats_file": gone}
    cfg = OmegaConf.structured(ParallelTranslationConfig(**options))
    with pytest.raises(UsageError, match="--stats-file"):
        ParallelTranslationTask.setup_task(cfg)
    task = ParallelTranslationTask.setup_task(cfg, from_checkpoint=True)
    assert configure(task.cfg) == DecodingConfig()


def test_the_language_pair_is_saved_and_compared(caplog):
    """What fairseq infers is in the configuration that is saved; a model is asked for its pair."""
    for source, target, pair in ((None, None, "en-de"), ("de", "en", "de-en")):
        options = {"data": str(DEMO), "source_lang": source, "target_lang": target}
        whole = OmegaConf.create({"task": {"_name": "translation", **options}})
        task = setup_task(whole.task)
        assert f"{whole.task.source_lang}-{whole.task.target_lang}" == pair
        caplog.clear()
        checkpoint_utils.load_model_ensemble_and_task([str(DEMO / "model.pt")], task=task)
        warned = [one for one in caplog.messages if one.startswith("--path, -s, -t: ")]
        assert [one.split(",", 4)[-1] for one in warned] == [
            f" and the model is asked for {pair}"
        ] * (pair != "en-de")


@pytest.mark.slow
def test_generate_answers_every_line(tmp_path):
    """A test set with the lines of TEXT; scores of references are left to fairseq."""
    (tmp_path / "test.en").write_text(TEXT, encoding="utf-8")
    (tmp_path / "test.de").write_text("ein\n" * 5, encoding="utf-8")
    dicts = ["--srcdict", DEMO / "dict.en.txt", "--tgtdict", DEMO / "dict.de.txt"]
    prefix = ["--testpref", tmp_path / "test", "--destdir", tmp_path / "lines' data"]
    succeed(fairseq("preprocess", "-s", "en", "-t", "de", *prefix, *dicts))
    for how, numbers in (
        (("--decoding", "pgj"), [0, 1, 2, 3, 4]),
        (("--score-reference", "--skip-invalid-size-inputs-valid-test"), [0, 1, 3, 4]),
    ):
        given = (tmp_path / "lines' data", *GENERATE[1:], "--batch-size", 2, *how)
        result = succeed(fairseq("generate", *given))
        heads = sorted(line.split("\t")[0] for line in lines_of(result.stdout, "H"))
        assert heads == [f"H-{i}" for i in numbers]
        assert ("its output is empty" in result.stderr) == ("--decoding" in how)
        if "--decoding" in how:
            assert "Translated 5 sentences" in result.stderr
            assert "sentence 1 is empty" in result.stderr
            assert "sentence 2 (a dog runs a dog ...) has" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", ["data-bin/demo.en-de/README.md", "data-bin/demo-small.en-de/README.md"]
)
def test_the_commands_of_a_page_run_as_written(page):
    """In the checkout, with fairseq's own scripts on the path; text for those that read some."""
    root = PLUGIN.parent
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    lines = (root / page).read_text(encoding="utf-8").splitlines()
    commands = [line for line in lines if line.startswith(("fairseq-", "paradec translate "))]
    assert any("paradec translate" in command for command in commands)
    for command in commands:
        result = subprocess.run(
            ["bash", "-euc", command],
            cwd=root,
            input="A dog runs across the grass.\n",
            env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert result.returncode == 0, result.stderr[-2000:]
        if command.startswith("paradec"):
            assert result.stdout.endswith(" Gras.\n")
            continue
        wanted = 1 if "interactive" in command else 100
        assert len(lines_of(result.stdout, "H")) == wanted


@pytest.mark.slow
def test_generate_is_fairseq_greedy_by_the_audit_and_by_text():
    root = PLUGIN.parent
    data, model = "data-bin/demo.en-de", "data-bin/demo.en-de/model.pt"
    given = (data, "--user-dir", "fairseq_paradec", "--path", model, "--prefix-size", "1")
    flags = ("--decoding", "hgj", "--audit", "--print-step")
    ours = succeed(fairseq("generate", *given, *flags, cwd=root))
    parts = ("--beam", "1", "--batch-size", "30", "--num-shards", "3", "--shard-id")
    stock = [succeed(fairseq("generate", *given, *parts, n, cwd=root)).stdout for n in range(3)]
    hypotheses = [
        {line.split("\t")[0]: line.split("\t")[2] for line in lines_of(text, "H")}
        for text in (ours.stdout, "".join(stock))
    ]
    assert [len(lines_of(text, "H")) for text in stock] == [40, 30, 30]
    assert len(hypotheses[0]) == len(lines_of(ours.stdout, "I")) == 100
    assert hypotheses[0] == hypotheses[1]
    assert "audit: 100 of 100 sentences identical" in ours.stderr
    assert "hgj: 100 sentences" in ours.stderr
    assert "beam=1" in ours.stdout


@pytest.mark.slow
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
wide = hub.generate([hub.encode(line) for line in text], beam=3)
drafted = hub.generate([hub.encode(line) for line in text], beam=3, decoding="self_draft")
for ours, theirs in zip(drafted, wide):
    assert [one["tokens"].tolist() for one in ours] == [one["tokens"].tolist() for one in theirs]
load = lambda **given: TransformerModel.from_pretrained({str(DEMO)!r}, "model.pt", **given)
ask = lambda **given: hub.translate(text, **given)
for call, wrong, right in ((load, "decodin", "decoding"), (ask, "blocksize", "block_size")):
    try:
        assert not call(**{{wrong: 3}})
    except ValueError as error:
        assert f"got {{wrong!r}}" in str(error) and right in str(error)
print(want)
"""
    assert "Hund" in succeed(run_python(code)).stdout
