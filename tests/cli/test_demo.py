"""``paradec demo``: the tables of the core, without torch and fairseq; the plugin, live."""

import re
from pathlib import Path

import pytest
from support.commands import alone

from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.decoding.acceptance import ExactMatch
from fairseq_paradec.lab.measure import demo

JACOBI = ["pj", "pgj block 5", "hgj block 5", "hgj sliding 5"]


def tables(printed: str) -> list[dict[str, list[str]]]:
    """The cells of each table, by the name of the decoder."""
    lines, found = printed.splitlines(), []
    for place, line in enumerate(lines):
        if set(line) == {"-"}:
            rows = lines[place + 1 : lines.index("", place)]
            cells = [re.split(r"\s{2,}", row) for row in rows]
            found.append({name: own for name, *own in cells})
    return found


def test_the_core_shows_both_pairs_without_torch_and_fairseq() -> None:
    done = alone("demo", "--sentences", "4", "--text", "How are you?")
    assert (done.returncode, done.stderr) == (0, "")
    small, tiny = tables(done.stdout)
    exact = ["greedy", *JACOBI, "assisted", "self_draft"]
    missing = {"gad": "no drafter.pt here", "gad_pp": "no drafter.pt here"}
    missing |= {"blockwise": "no heads.pt here"}
    assert [*small] == [*exact, *missing]
    assert {name: small[name][3:] for name in exact} == dict.fromkeys(exact, ["4/4", "yes"])
    assert {name: small[name] for name in missing} == {
        name: ["-", "-", "-", lack, "-"] for name, lack in missing.items()
    }
    relaxed, others = "gad_pp top-3, 1.0", ["IBDecoder", "IBDecoder+SA"]
    assert [*tiny] == ["greedy", "gad", relaxed, "blockwise", *others]
    assert tiny["gad"][3:] == tiny["blockwise"][3:] == ["4/4", "yes"] and tiny[relaxed][4] == "no"
    assert [tiny[name][3:] for name in others] == [["another model", "-"]] * 2
    for faster, table in (("assisted", small), ("gad", tiny)):  # their drafts are of use
        assert float(table[faster][0]) < 0.7 * float(table["greedy"][0])
    assert "\nExact decoders are exact.\n" in done.stdout
    own = dict(line.split(maxsplit=1) for line in done.stdout.splitlines()[-4:])
    assert own.pop("source") == "How are you?"
    assert own == dict.fromkeys(("greedy", "assisted", "self_draft"), "Wie geht es dir?")


def test_a_decoder_that_is_not_exact_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All predictions of a pass are committed, whatever the acceptance rule saw."""
    monkeypatch.setattr(ExactMatch, "commit", lambda self, accepted, drafted, rows: rows)
    monkeypatch.setattr(ExactMatch, "known_to_library", False)
    assert paradec(["demo", "--sentences", "3"]) == 1
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("NOT fairseq's outputs: pj, ") and "greedy" not in said


def test_without_a_checkout_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "SMALL", tmp_path / "data-bin" / "demo-small.en-de")
    monkeypatch.setattr(demo, "TINY", tmp_path / "data-bin" / "demo.en-de")
    assert paradec(["demo"]) == 2
    needs = "of a checkout of the source; an installed package has none\n"
    said = capsys.readouterr().err
    assert said == f"paradec demo: error: needs data-bin/demo-small.en-de {needs}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--plugin"], "needs torch; install fairseq_paradec[fairseq]"),
        (["--plugin", "--text", "a"], "--text a excludes --plugin"),
        (["--plugin", "--sentences", "3"], "--sentences 3 excludes --plugin"),
        (["--sentences", "0"], "argument --sentences: got '0'; allowed: a whole number from 1 up"),
    ],
)
def test_what_is_wrong_is_one_line(words: list[str], said: str) -> None:
    done = alone("demo", *words)
    assert done.returncode == 2 and done.stderr.splitlines()[-1] == f"paradec demo: error: {said}"


@pytest.mark.slow
@pytest.mark.fairseq
def test_the_plugin_is_shown_by_fairseqs_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Its first command makes the stored outputs of the tiny pair again."""
    assert paradec(["demo", "--plugin"]) == 0
    printed = capsys.readouterr().out
    commands = [line for line in printed.splitlines() if line.startswith("$ ")]
    assert len(commands) == 3 and all(" --user-dir fairseq_paradec " in one for one in commands)
    (table,) = tables(printed)
    fairseqs, lossless, relaxed = table.values()
    assert fairseqs[1] == lossless[1] == "100/100" and "NOT" not in printed
    assert relaxed[1].endswith("/100") and 50 < int(relaxed[1].partition("/")[0]) < 100


@pytest.mark.slow
@pytest.mark.fairseq
@pytest.mark.parametrize("folder", [demo.SMALL, demo.TINY], ids=lambda folder: folder.name)
def test_what_is_stored_is_what_fairseqs_greedy_search_writes(folder: Path) -> None:
    """No choice is a tie but for rounding, so that every processor writes the same."""
    import torch
    from fairseq.checkpoint_utils import load_model_ensemble_and_task

    words = f"{demo.GENERATE} --decoding beam --beam 1 --cpu".format(data=folder).split()
    outputs, _ = demo.generate(words)
    stored = demo.read_lines(folder / demo.STORED)
    assert outputs == stored and len(stored) == 100
    assert len(demo.read_lines(folder / demo.SENTENCES)) == 100
    data = {"data": str(folder)}
    (model,), _, task = load_model_ensemble_and_task([str(folder / "model.pt")], data)
    task.load_dataset("test")
    for line, pair in zip(stored, task.dataset("test"), strict=True):
        tokens = task.target_dictionary.encode_line(line, add_if_not_exist=False).long()
        before = torch.cat((tokens[-1:], tokens[:-1]))[None]  # fairseq begins with </s>
        source = pair["source"][None]
        with torch.inference_mode():
            scores = model.eval()(source, torch.tensor([source.size(1)]), before)[0][0]
        best, second = scores.topk(2).values.T
        assert torch.equal(scores.argmax(1), tokens) and (best - second).min() > 1e-3, line
