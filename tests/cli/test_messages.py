"""What each mistake says: every row of a table is provoked, and docs/messages.md shows them all.

``PYTHONPATH=tests python tests/cli/test_messages.py`` writes the page anew. The mistakes of
fairseq's own commands are test_mistakes.py's, spoilt model folders test_translate.py's.
"""

import argparse
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.commands import DEMO, ROOT, cut, lose, put

from fairseq_paradec.cli import translate
from fairseq_paradec.cli.main import main as paradec

PAGE = ROOT / "docs" / "messages.md"
#: How every message ends: what is allowed, needed or excluded, or what is wrong.
FORM = re.compile(
    r"got .*; allowed: |needs |excludes |does not |cannot |required: |expected |unrecognized "
    r"|invalid |has another |there is none|is missing: "
)
#: What no message says: it would not be a sentence.
NO_SENTENCE = re.compile(r"allowed: (it|nothing|with|without)\b")

#: Commands by title. ``{demo}`` is the demo's model folder, ``{tmp}`` a folder with the files of
#: ``make``.
COMMANDS: dict[str, tuple[str, ...]] = {
    "Input and output": (
        "translate",
        "translate --model no-such --text a",
        "translate --model {tmp} --text a",
        "translate --model {demo} no-such",
        "translate --model {demo} {tmp}",
        "translate --model {demo} {tmp}/latin1",
        "translate --model {demo} {tmp}/text --text a",
        "translate --model {demo} --text a --column words",
        "translate --model {demo} --text a --processes 2",
        "translate --model {demo} --text a --cluster local",
        "translate --model {demo} --text a --give-up 9",
        "translate --model {demo} --text a --device gpu",
        "translate --model {demo} --text a --threads 0",
        "translate --model {demo} --text a --batch-size x",
        "translate --model {demo} --text a --buffer-size 0",
        "translate --model {demo} --text a --no-such-flag",
        "translate --model {demo} --text a --decodng hgj",
        "translate --model {torn} --text a",
        "translate --model {changed} --text a",
    ),
    "Corpora": (
        "translate --model {demo} --out {tmp}/out",
        "translate --model {demo} no-such --out {tmp}/out",
        "translate --model {demo} {tmp}/*.none --out {tmp}/out",
        "translate --model {demo} {tmp} --out {tmp}/out",
        "translate --model {demo} {tmp}/text --out {tmp}/text",
        "translate --model {demo} {tmp}/text --out {tmp}/full",
        "translate --model {demo} {tmp}/text --out {tmp}/out --audit",
        "translate --model {demo} {tmp}/text --out {tmp}/out --stats-file s.jsonl",
        "translate --model {demo} {tmp}/text --out {tmp}/out --decoding auto_fast",
        "translate --model {demo} {tmp}/text --out {tmp}/out --decoding gready",
        "translate --model {demo} {tmp}/torn.gz --out {tmp}/out",
    ),
    "Decoders": (
        "translate --model {demo} --text a --decoding gready",
        "translate --model {demo} --text a --decoding greedy --beam 5",
        "translate --model {demo} --text a --beam 0",
        "translate --model {demo} --text a --decoding hgj --beam 2",
        "translate --model {demo} --text a --decoding pgj --block-size 0",
        "translate --model {demo} --text a --decoding greedy --block-size 3",
        "translate --model {demo} --text a --decoding pgj --adaptive-block",
        "translate --model {demo} --text a --decoding pgj --jacobi-window wide",
        "translate --model {demo} --text a --decoding pgj --jacobi-window sliding --jacobi-stop "
        "unchanged",
        "translate --model {demo} --text a --decoding gad --drafter-path no.pt",
        "translate --model {demo} --text a --decoding assisted --accept-margin 1",
        "translate --model {demo} --text a --decoding assisted --draft-confidence 2",
        "translate --model {demo} --text a --decoding blockwise --min-block 2 --draft-tree 4",
        "translate --model {demo} --text a --decoding blockwise --accept-topk 2 "
        "--accept-distance 1",
        "translate --model {demo} --text a --decoding blockwise",
        "translate --model {demo} --text a --decoding nat",
        "translate --model {demo} --text a --decoding nat --audit",
        "translate --model {demo} --text a --decoding multiword_beam --audit",
        "translate --model {demo} --text a --decoding beam --audit",
        "translate --model {demo} --text a --decoding auto --audit",
        "translate --model {demo} --text a --decoding greedy --engine fast",
        "translate --model {demo} --text a --decoding greedy --engine-dtype fp8",
        "translate --model {demo} --text a --decoding greedy --engine native --engine-dtype fp16",
        "translate --model {demo} --text a --decoding greedy --lenpen x",
        "translate --model {demo} --text a --decoding greedy --max-len-b 1.5",
        "translate --model {demo} --text a --decoding greedy --max-len-b -5",
        "translate --model {demo} --text a --decoding greedy --max-len-b 0",
        "translate --model {demo} --text a --decoding greedy --lenpen 400",
        "translate --model {demo} --text a --latency-budget-ms 0",
        "translate --model {demo} --text a --latency-budget-ms 9 --audit",
        "translate --model {demo} --text a --decoding multiword_beam --deduplicate-ngrams 1 "
        "--trace-file t.jsonl",
    ),
    "Reports": (
        "translate --model {demo} --text a --decoding greedy --stats-file {tmp}",
        "translate --model {demo} --text a --decoding greedy --stats-file {tmp}/none/s.jsonl",
        "translate --model {demo} --text a --decoding greedy --stats-file {tmp}/text",
        "translate --model {demo} --text a --decoding greedy --stats-file {tmp}/s --trace-file "
        "{tmp}/s",
    ),
    "Model folders": (
        "pack {demo}",
        "pack no-such {tmp}/new --path {demo}/model.pt",
        "pack {demo} {tmp}/new --path no.pt",
        "pack {demo} {tmp}/full --path {demo}/model.pt",
        "pack {demo} {tmp}/new --path {tmp}/text",
        "pack {demo} {tmp}/new --path {demo}/model.pt --bpe subword_nmt",
        "pack {demo} {tmp}/new --path {demo}/model.pt --bpe-codes {demo}/codes.bpe",
        "pack {demo} {tmp}/new --path {demo}/model.pt --bpe no-such",
        "pack {demo} {tmp}/new --path {demo}/model.pt -s xx -t de",
        "import",
        "import hf no-such {tmp}/new",
        "import hf {tmp} {tmp}/new",
        "import marian no.npz {tmp}/new",
        "import marian {tmp}/text {tmp}/new",
        "import {tmp} {tmp}/new",
        "import ct3 {tmp} {tmp}/new",
        "import ct2 {tmp} {tmp}/new",
        "import argos {tmp}/text {tmp}/new",
        "import hf {tmp} {tmp}/new --tokenizer space",
        "import --selftest no-such",
        "import --selftest {demo} hf a b",
        "doctor no.pt",
        "doctor {tmp}/text",
        "shrink no.pt {tmp}/small.pt",
        "widen no.pt {tmp}/wide.pt",
        "average {tmp} --out {tmp}/mean.pt",
        "tranlate",
        "data captionz",
    ),
    "Training and experiments": (
        "train",
        "train no-such",
        "train-drafter",
        "train-drafter --model no-such --text {tmp}/text",
        "train-drafter --model {demo} --text no-such",
        "distill",
        "average {tmp}/none --out {tmp}/mean.pt",
        "shrink {tmp}/text {tmp}/small.pt",
        "benchmark",
        "benchmark no-such --path no.pt --out {tmp}/b.json",
        "benchmark no-such --preset lossless --path no.pt --out {tmp}/l.json",
        "benchmark {demo} --preset lossless --path {demo}/model.pt --decoder no-such "
        "--out {tmp}/l.json",
        "benchmark {demo} --preset lossless --path {demo}/model.pt --timed 5 --out {tmp}/l.json",
        "benchmark {demo} --path {demo}/model.pt --sweep block=4 --out {tmp}/b.json",
        "analyse",
        "analyse no-such",
        "trace no-such",
        "trace {tmp}/text",
        "trace {tmp}/text --image-size 8x8",
        "trace {tmp}/text --image-size 8",
        "trace {tmp}/text --arch ibdecoder",
        "trace --kind order --arch no-such",
        "report no-such",
        "report {tmp}/full",
    ),
}


def make(folder: Path) -> dict[str, Path]:
    """Make the files that the commands are given; return the names in them."""
    files = folder / "files"
    files.mkdir(parents=True)
    (files / "text").write_text("A dog runs.\n")
    (files / "latin1").write_bytes(b"a\nb\xfc c\n")
    (files / "torn.gz").write_bytes(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03KTH")
    (files / "full").mkdir()
    (files / "full" / "mine").touch()
    spoils: dict[str, Callable[[Path], object]] = {
        "torn": cut("paradec.json", 90),
        "changed": put("codes.bpe", lambda was: was + b"a b\n"),
    }
    names = {"demo": DEMO, "tmp": files}
    for name, spoil in spoils.items():
        names[name] = folder / name
        shutil.copytree(DEMO, names[name], ignore=lambda *_: ["raw", "bpe"])
        spoil(names[name])
    lose("drafter.pt")(names["torn"])
    return names


def provoked(names: dict[str, Path], command: str, read: Callable[[], str]) -> str:
    """What a command says that is refused, with the names in place of the folders."""
    try:
        status = paradec(shlex.split(command.format(**names)))
    except SystemExit as ended:  # argparse's
        status = int(ended.code or 0)
    said = read().strip()
    assert status == 2, (command, said)
    lines = [line for line in said.splitlines() if "error: " in line]
    assert len(lines) == 1 and said.endswith(lines[0]), said
    message = re.sub(r"^.*?error: ", "", lines[0])
    shown = {"tmp": "DIR", "demo": "data-bin/demo.en-de", "torn": "TORN", "changed": "CHANGED"}
    for name in sorted(names, key=lambda one: -len(str(names[one]))):
        message = message.replace(str(names[name]), shown[name])
    return message


def page(names: dict[str, Path], read: Callable[[], str]) -> str:
    """Return the page of all messages."""
    lines = [
        "# Messages",
        "",
        "What `paradec` says of mistakes: one line on stderr, with exit status 2. It names the "
        "flag or file, what was given, and what to do. Each is provoked by a test, which compares "
        "it with this page. DIR has `text`, `latin1` (no UTF-8), `torn.gz` (cut off), and `full` "
        "(a folder with another file); TORN and CHANGED are model folders with a spoilt file.",
        "",
    ]
    shown = {"tmp": "DIR", "demo": "data-bin/demo.en-de", "torn": "TORN", "changed": "CHANGED"}
    for title, commands in COMMANDS.items():
        lines += [f"## {title}", ""]
        for command in commands:
            said = provoked(names, command, read)
            lines += ["```", f"$ paradec {command.format(**shown)}", said, "```", ""]
    return "\n".join(lines[:-1]) + "\n"


def test_every_message_says_what_is_wrong_and_is_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    # A model folder that loads is loaded once for all commands.
    loaded, load = {}, translate.load

    def once(args: argparse.Namespace) -> Any:
        key = args.model, args.device
        if key not in loaded:
            loaded[key] = load(args)
        return loaded[key]

    monkeypatch.setattr(translate, "load", once)
    written = page(make(tmp_path), lambda: capsys.readouterr().err)
    said = [line for line in written.split("```")[1::2]]
    assert len(said) == sum(map(len, COMMANDS.values()))
    for one in said:
        _, command, message = one.rstrip("\n").split("\n", 2)
        assert FORM.search(message), (command, message)
        assert not NO_SENTENCE.search(message), (command, message)
        assert "Traceback" not in message and "Error" not in message, (command, message)
    assert written == PAGE.read_text("utf-8"), (
        "run PYTHONPATH=tests python tests/cli/test_messages.py"
    )


if __name__ == "__main__":
    import contextlib
    import io
    import tempfile

    errors = io.StringIO()

    def read_errors() -> str:
        """What was written since the last call."""
        text = errors.getvalue()
        errors.seek(0)
        errors.truncate()
        return text

    with tempfile.TemporaryDirectory() as made, contextlib.redirect_stderr(errors):
        found = page(make(Path(made)), read_errors)
    PAGE.write_text(found, "utf-8")
    print(f"{PAGE.relative_to(ROOT)}: written", file=sys.stdout)
