"""The worked example of docs/adding-a-method.md works as it stands there."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import re
import sys

import pytest
import torch
from gpu import gates
from reference.greedy import full_log_probs, rules_for, stock_greedy
from support.builders import VARIANTS, Limits, batch, built, decode, demo
from support.commands import ROOT

from fairseq_paradec.cli import demo as demo_command
from fairseq_paradec.decoding.acceptance import ExactMatch
from fairseq_paradec.errors import UsageError
from fairseq_paradec.methods import METHODS
from fairseq_paradec.options import FLAGS_OF_METHOD, DecodingConfig

PAGE = (ROOT / "docs" / "adding-a-method.md").read_text(encoding="utf-8")
#: file -> the code that the page puts into it
BLOCKS = dict(re.findall(r"`([\w/.]+\.py)`[^\n]*\n\n```python\n(.*?)```", PAGE, flags=re.DOTALL))
METHOD, TEST = "fairseq_paradec/methods/echo.py", "tests/test_echo.py"
TABLES = {
    "fairseq_paradec/methods/__init__.py": "METHODS",
    "fairseq_paradec/options.py": "FLAGS_OF_METHOD",
    "fairseq_paradec/cli/demo.py": "decoders",
}


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The method's file, as a module of the package."""
    path = tmp_path / "echo.py"
    path.write_text(BLOCKS[METHOD], encoding="utf-8")
    name = "fairseq_paradec.methods.echo"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def registered(module, monkeypatch):
    """Both entries made, as the page says."""
    for file, table in (
        ("fairseq_paradec/methods/__init__.py", METHODS),
        ("fairseq_paradec/options.py", FLAGS_OF_METHOD),
    ):
        for name, value in entry(file, vars(module)).items():
            monkeypatch.setitem(table, name, value)


def entry(file, names):
    """An entry of a table, as the page has it."""
    return eval("{" + BLOCKS[file].strip() + "}", dict(names))


def test_the_page_has_the_code_and_it_is_short():
    assert list(BLOCKS) == [METHOD, *list(TABLES)[:2], TEST, *list(TABLES)[2:]]
    lines = [line for code in BLOCKS.values() for line in code.splitlines() if line.strip()]
    assert len(lines) < 60


def test_the_tables_are_where_the_page_says():
    for file, table in TABLES.items():
        assert f"{table}" in (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"`{re.escape(file)}`, in `{table}`", PAGE)


def test_without_its_entries_it_is_unknown_and_with_them_its_flags_are_checked(request):
    def config(**options):
        return DecodingConfig.from_options(argparse.Namespace(**options))

    with pytest.raises(UsageError, match="--decoding: got 'echo'"):
        config(decoding="echo")
    request.getfixturevalue("registered")
    assert config(decoding="echo", block_size=3).block_size == 3
    with pytest.raises(UsageError, match="--jacobi-init.*--decoding echo"):
        config(decoding="echo", jacobi_init="bos")
    with pytest.raises(UsageError, match="allowed: .*hgj, .*, echo"):
        config(decoding="eco")


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_pages_test_passes(variant, registered):
    names = {"__name__": "test_echo"}
    exec(BLOCKS[TEST], names)
    names["test_tokens_are_fairseqs"](variant)


def test_the_pages_test_can_fail(registered, module, monkeypatch):
    """A drafter that never guesses, and guesses that are committed unseen."""
    names = {"__name__": "test_echo"}
    exec(BLOCKS[TEST], names)
    with monkeypatch.context() as patch, pytest.raises(AssertionError):
        patch.setattr(module.EchoDrafter, "_echo", lambda self, tokens, count: [])
        names["test_tokens_are_fairseqs"]("mbart")
    monkeypatch.setattr(ExactMatch, "commit", lambda self, accepted, drafted, rows: rows)
    with pytest.raises(AssertionError):
        names["test_tokens_are_fairseqs"]("default")


def plain_echo(models, row, rules, size):
    """What the page describes, token by token with fairseq's full forward: accepted per pass."""
    greedy, accepted = [], []
    while rules.eos not in greedy:
        scores = rules.apply(full_log_probs(models, row, greedy)[-1], len(greedy))
        greedy.append(int(scores.argmax()))
    done = 0
    while done < len(greedy):
        known = greedy[:done]
        before = [i for i, token in enumerate(known[:-1]) if token == known[-1]]
        guess = known[before[-1] + 1 :] if before else []
        guess = guess[: min(size, rules.max_len - done)]
        pairs = zip(guess, greedy[done:], strict=False)
        right = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        accepted.append(right)
        done += right + 1
    return greedy, accepted


@pytest.mark.parametrize("variant", ["mbart", "learned_positions", "share_all"])
def test_passes_are_those_of_a_plain_twin(variant, registered, tmp_path):
    task, model = built(variant)
    sample = batch(task, (3, 7, 5, 9, 2, 4), seed=1)
    trace = tmp_path / "trace.jsonl"
    flags = {"decoding": "echo", "block_size": 3, "trace_file": str(trace)}
    decode(task, [model], sample, Limits(), **flags)
    records = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
    assert len(records) == 6
    for record, tokens in zip(records, sample["net_input"]["src_tokens"].tolist(), strict=True):
        row = [token for token in tokens if token != task.source_dictionary.pad()]
        rules = rules_for(task.target_dictionary, [model], len(row), **Limits().reference())
        greedy, accepted = plain_echo([model], row, rules, 3)
        assert record["output"] == [task.target_dictionary[token] for token in greedy]
        assert record["num_accepted"] == accepted
    assert sum(sum(record["num_accepted"]) for record in records) > 0


def test_the_demo_model_and_limits(registered):
    """A trained model, and rows that end at their limit."""
    task, model, rows = demo(torch.float64)
    sample = gates.collate(task, rows[:20])
    for limits in (Limits(max_len_b=60), Limits(max_len_b=4), Limits(max_len_b=60, min_len=30)):
        wanted = stock_greedy(task, [model], sample, **limits.stock())
        hypos = decode(task, [model], sample, limits, decoding="echo")
        tokens = [hypo["tokens"].tolist() for hypo in hypos]
        assert tokens == [hypo["tokens"].tolist() for hypo in wanted]
    assert sum(hypo["steps"] for hypo in hypos) < sum(map(len, tokens)), "long outputs repeat"


def test_it_has_gates_and_a_row_in_the_demo(registered, monkeypatch, capsys):
    (case,) = [c for c in gates.cases() if str(c) == "echo-fp32-random"]
    row, complaints = gates.hold(case, "cpu", True)
    assert complaints == [] and row["identical in batch"] == row["sentences"] > 0

    rows = demo_command.decoders
    more = entry("fairseq_paradec/cli/demo.py", {"size": "--block-size 3"})
    monkeypatch.setattr(demo_command, "decoders", lambda *given: rows(*given) | more)
    threads = torch.get_num_threads()
    assert demo_command.main(["--sentences", "3"]) == 0
    torch.set_num_threads(threads)
    (line,) = re.findall(r"^echo .*", capsys.readouterr().out, flags=re.MULTILINE)
    assert line.endswith("3/3")
