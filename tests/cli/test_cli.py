"""The commands: what they say, their exit status, and that they notice a wrong output.

Lossless runs in this process, on a few sentences of the demo.
"""

import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.commands import DEMO, ROOT

from fairseq_paradec.cli import main
from fairseq_paradec.cli.arguments import Parser
from fairseq_paradec.decoding.acceptance import ExactMatch
from fairseq_paradec.lab.commands.profile import WHATS
from fairseq_paradec.lab.measure import counts, traits
from fairseq_paradec.lab.measure.specs import Spec

LOSSLESS = ["benchmark", str(DEMO), "--preset", "lossless", "--path", str(DEMO / "model.pt")]
OUT = ["--out", "never-written.json"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["benchmark", "no/such", *LOSSLESS[4:], *OUT],
            ["DATA", "'no/such'", "fairseq-preprocess"],
        ),
        (
            [*LOSSLESS[:-1], "setup.py", *OUT],
            ["--path", "setup.py", "checkpoint"],
        ),
        (
            [*LOSSLESS, *OUT, "--preset", "times", "--decoder", "assisted --drafter-path no.pt"],
            ["--drafter-path", "'no.pt'"],
        ),
        ([*LOSSLESS, *OUT, "--timed", "4"], ["--timed 4 excludes --preset lossless"]),
        ([*LOSSLESS, *OUT, "--", "--beam", "4"], ["-- excludes --preset lossless"]),
        (
            [*LOSSLESS, *OUT, "--decoder", "pgj", "--sweep", "block-size=3"],
            ["--sweep: got 'block-size'", "drafter-path", "with --preset lossless"],
        ),
        (
            ["benchmark", *LOSSLESS[1:2], *LOSSLESS[4:], *LOSSLESS[4:], *OUT],
            ["--path", "model.pt", "one; others in a --decoder"],
        ),
        (
            [*LOSSLESS, *OUT, "--preset", "times", "--subset", "test,valid"],
            ["--subset: got 'test,valid'", "one with --preset times"],
        ),
        (
            [*LOSSLESS, *OUT, "--reference", "a", "--reference", "b"],
            ["--reference: got 'a b'", "one for each subset"],
        ),
        (
            [*LOSSLESS, *OUT, "--preset", "times", "--sweep", "drafter-path=setup.py"],
            ["--sweep drafter-path needs a --decoder that reads it"],
        ),
        (
            ["profile", "workers", "x", "--model", "y", *OUT, "--", "--lr", "1"],
            ["-- excludes workers"],
        ),
        (["benchmark", str(DEMO), *OUT], ["--preset times needs --path"]),
        (LOSSLESS, ["--preset lossless needs --out"]),
        (
            [*LOSSLESS, *OUT, "--decoder", "gad"],
            ["--decoder gad needs --sweep drafter-path=FILE"],
        ),
        ([*LOSSLESS, *OUT, "--decoder", "blockwise"], ["--path", "TransformerModel"]),
        (
            [*LOSSLESS, *OUT, "--sweep", "drafter-path=setup.py"],
            ["--drafter-path setup.py needs --decoder gad or gad_pp"],
        ),
        ([*LOSSLESS, *OUT, "--sweep", "block=3"], ["--sweep: got 'block=3'", "block-size=4,8"]),
        ([*LOSSLESS, *OUT, "--sweep", "block-size=a"], ["block-size=a", "whole numbers"]),
    ],
)
def test_a_mistake_is_named(arguments, words, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert main.main(arguments) == 2
    captured = capsys.readouterr()
    assert all(word in captured.err.splitlines()[-1] for word in words), captured.err
    assert captured.out == "" and not Path("never-written.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("tranlate --model x", "COMMAND: got 'tranlate' (did you mean translate?); allowed: "),
        (
            "translate --model x --decodng=pj",
            "unrecognized arguments: --decodng=pj (did you mean --decoding?)",
        ),
        ("data captionz", "argument STEP: got 'captionz' (did you mean captions?); allowed: "),
        ("images tokens a.png --gry", "unrecognized arguments: --gry (did you mean --gray?)"),
        ("translate --model x --format htm", "got 'htm'; allowed: text, html"),
        ("trace x --qqq", "unrecognized arguments: --qqq\n"),
    ],
)
def test_what_is_mistyped_gets_a_suggestion(words, said, capsys):
    try:
        status = main.main(words.split())
    except SystemExit as ended:
        status = ended.code
    assert status == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize("name", main.COMMANDS)
def test_a_help_has_exit_statuses_and_an_example_that_is_right(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main.parse([name, "--help"])
    said = capsys.readouterr().out
    assert ended.value.code == 0 and re.search(r"^exit status: 0; ", said, re.M)
    parser = Parser()
    main.find(name).declare(parser)
    text = (parser.epilog or "").replace("\\\n", " ")
    example = re.search(rf"paradec {name}\s.*?(?=\n\n|, then |\n  paradec |\Z)", text, re.S)
    assert example is not None
    assert " ".join(example[0].split()) in " ".join(said.replace("\\\n", " ").split())
    words = shlex.split(example[0])[1:]
    words = words[: words.index("<")] if "<" in words else words
    module, args = main.parse(words)
    assert args.argv == words


@pytest.mark.parametrize("what", WHATS)
def test_an_example_of_profile_is_right(what, capsys):
    _, args = main.parse(["profile", what, *shlex.split(WHATS[what].example)])
    assert args.what == what
    with pytest.raises(SystemExit):
        main.parse(["profile", what, "--help"])
    assert f"example: paradec profile {what} " in capsys.readouterr().out


def test_every_module_with_a_parser_is_a_command():
    files = Path(main.__file__).parent.glob("*.py")
    modules = {path.stem for path in files if "\ndef run(args" in path.read_text(encoding="utf-8")}
    assert modules <= {name.replace("-", "_") for name in main.COMMANDS}


def test_lossless_notices_a_wrong_output(tmp_path, monkeypatch):
    """All predictions of a pass are committed, whatever the acceptance rule saw."""
    monkeypatch.setattr(ExactMatch, "commit", lambda self, accepted, drafted, rows: rows)
    monkeypatch.setattr(ExactMatch, "known_to_library", False)
    monkeypatch.setattr(counts, "lossless_kinds", lambda: ["greedy", "pgj"])
    few = {"greedy": [{}], "pgj": [{"block_size": 3}]}
    exact = {name: traits.Traits(exact=settings) for name, settings in few.items()}
    monkeypatch.setattr(counts, "traits", exact.get)
    given, out = ["--sentences", "3", "--batch-sizes", "2", "--out"], tmp_path / "lossless.json"
    assert main.main([*LOSSLESS, *given, str(out)]) == 0
    greedy, broken = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert (greedy["identical"], greedy["beyond_ties"]) == (3, 0)
    assert broken["beyond_ties"] > 0
    assert broken["identical"] + broken["ties"] + broken["beyond_ties"] == 3


def test_separate_dictionaries_leave_source_copy_out():
    joined, other = object(), object()
    inits = []
    for target in (joined, other):
        task = SimpleNamespace(source_dictionary=joined, target_dictionary=target)
        verifier = SimpleNamespace(load=lambda task=task: ([], task))
        specs = [Spec.of({"decoding": name}) for name in ("greedy", "pj", "pgj", "hgj")]
        settings = [counts.variants(verifier, spec, False) for spec in specs]
        inits.append({spec.options.get("jacobi_init") for own in settings for spec in own})
    assert inits[0] - inits[1] == {"source-copy"}
    assert len(inits[1]) == 4  # greedy has none


def test_earlier_translations_save_passes(tmp_path):
    small = ROOT / "data-bin" / "demo-small.en-de"
    words = [str(small / "raw" / "demo.en"), "--preset", "drafts", "--path", str(small)]
    given, out = ["--sentences", "2", "--rounds", "1", "--busy", "--out"], tmp_path / "drafts.json"
    assert main.main(["benchmark", *words, *given, str(out)]) == 0
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert len(rows) == 3 * 2 * 2 and all(row["identical"] == row["texts"] for row in rows)
    alone, with_drafts = rows[-4:-2]  # greedy search of unchanged texts
    assert alone["passes"] == alone["steps_of_greedy"] > 2 and alone["speed_up"] == 1
    assert with_drafts["passes"] == 1 and with_drafts["in_one_pass"] == 100
