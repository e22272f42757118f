"""Users' mistakes with fairseq's commands: one line that names it, exit status 2, no traceback."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from support.commands import DEMO, PLUGIN, ROOT, Spoil, cut, fairseq, lose, put, run_python

TRAIN = "--arch transformer --optimizer adam --lr 1 --max-update 1"
SIZED = TRAIN + " --batch-size 9"
TEXT = "-s en -t de --input {}/"
CODES = "-s en -t de --bpe subword_nmt"
GAD_PP = "--decoding gad_pp --drafter-path {}/drafter.pt"
TORN = r"is cut off or damaged$"


def diverge(folder: Path) -> None:
    """Write a teacher whose training has diverged."""
    state = torch.load(DEMO / "model.pt", weights_only=True)
    state["model"] = {name: weight * float("nan") for name, weight in state["model"].items()}
    torch.save(state, folder / "nan.pt")


def swap(file: str) -> Spoil:
    """Put a word that the dictionary does not have in front of a file."""
    return put(file, lambda was: (60000).to_bytes(2, "little") + was[2:])


#: Command, what is done to its data, flags, and the message (a regular expression).
MISTAKES: dict[str, tuple[str, Spoil | None, str, str]] = {
    "no folder": ("generate", shutil.rmtree, "", r"DATA: got '.*there is none$"),
    "no dictionaries": ("generate", lose("dict.*"), "", r"dict\.en\.txt is not there"),
    "no subset": ("generate", None, "--gen-subset valid", r"'valid' is missing.*--gen-subset"),
    "short index": ("generate", cut("test.en-de.en.idx", 600), "", r"DATA.*en\.idx'.*" + TORN),
    "half a head": ("generate", cut("test.en-de.de.idx", 20), "", r"DATA.*de\.idx'.*" + TORN),
    "empty index": ("generate", cut("test.en-de.en.idx", 0), "", r"DATA.*en\.idx'.*" + TORN),
    "short data": ("validate", cut("test.en-de.en.bin", 300), "", r"DATA.*en\.bin'.*" + TORN),
    "no data": ("generate", cut("test.en-de.de.bin", 0), "", r"DATA.*de\.bin'.*" + TORN),
    "no counts": ("generate", put("dict.en.txt", b"a\nb\n"), "", r"DATA.*en\.txt'.*and its count"),
    "no text": ("train", put("dict.de.txt", b"\xff 3\n"), SIZED, r"DATA.*de\.txt'.*encoding"),
    "twice": ("interactive", put("dict.en.txt", b"a 3\na 2\n"), "", r"DATA.*Duplicate word"),
    "no path": ("generate", None, "", r"--path: got None; allowed: a checkpoint"),
    "no path to ask": ("interactive", None, "-s en -t de", r"--path: got None; allowed: a check"),
    "no path to check": ("validate", None, "", r"--path: got None; allowed: a checkpoint"),
    "no size": ("train", None, TRAIN, r"either with --max-tokens or --batch-size$"),
    "sampling": ("generate", None, "--sampling", r"--sampling needs --beam 1; .* --nbest 5"),
    "draws": ("generate", None, f"--sampling {GAD_PP}", r"--sampling: .*gad_pp cannot honour"),
    "overrides": ("generate", None, "--model-overrides {{", r"--model-overrides: got '{'; allowed"),
    "a list": ("validate", None, "--model-overrides [1]", r"--model-overrides: got '\[1\]'; allo"),
    "absent": ("interactive", None, TEXT + "no", r"--input: got '.*/no'; allowed.*No such file"),
    "folder": ("interactive", None, TEXT, r"--input: got '.*/'; allowed.*Is a directory"),
    "latin 1": ("interactive", put("l1", b"a\nb\xfc c\n"), TEXT + "l1", r"in UTF-8; .*b.xfc c"),
    "codes": ("interactive", None, f"{CODES} --bpe-codes {{}}/c", r"--bpe sub.*/c not found"),
    "no codes": ("generate", None, CODES, r"--bpe subword_nmt needs .*--bpe-codes FILE"),
    "words": ("generate", swap("test.en-de.en.bin"), "", r"DATA.* word 60000, and there are 7944"),
    "prefix": ("generate", swap("test.en-de.de.bin"), "--prefix-size 9", r"DATA.* a word 60000"),
    "no beam": ("generate", None, "--beam 0", r"--beam: got 0; allowed: a whole number from 1 up"),
    "no seed": ("interactive", None, "-s en -t de --seed -1", r"--seed: got -1; allowed"),
    "limits": ("generate", None, "--min-len 500", r"min_len cannot be larger than max_len"),
    "results": ("generate", None, "--results-path {}/model.pt", r".*File exists: '.*/model.pt'"),
    "constraints": ("generate", None, "--constraints", r"--constraints needs fairseq-interactive"),
    "a word": ("generate", None, "--post-process wheel", r"Unknown post_process option: wheel"),
    "json": ("train", None, f"{SIZED} --eval-bleu-args {{{{", r"--eval-bleu-args: got '{'; all.*{"),
    "sizes": ("train", None, f"{SIZED} --encoder-embed-dim 15", r"embed_dim must be divisible"),
    "no shard": ("generate", None, "--num-shards 3 --shard-id 3", r"--shard-id: got 3; allowed: f"),
    "empty shard": ("generate", None, "--num-shards 9 --shard-id 8", r"--num-shards: got 9; allo"),
    "shards": (
        "interactive",
        None,
        "-s en -t de --num-shards 2",
        r"--num-shards 2 needs fairseq-gen",
    ),
    "override": ("generate", None, "--model-overrides {{'encoder_layer':9}}", r"encoder_layers"),
    "scores": ("train", None, f'{SIZED} --eval-bleu --eval-bleu-args {{{{"beem":1}}}}', r"as beam"),
    "decoder": ("generate", None, "--decoding gready", r"--decoding: got 'gready'; .*: auto, beam"),
    "nan": ("generate", diverge, "--path {}/nan.pt --max-len-b 3", r"--path: .*gives NaN proba"),
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(mistake: str, tmp_path: Path) -> None:
    command, spoil, flags, words = MISTAKES[mistake]
    folder = tmp_path / "data"
    shutil.copytree(DEMO, folder, ignore=lambda *_: ["bpe", "raw"])
    given = flags.format(folder).split()
    if command != "train" and "path" not in mistake and "--path" not in given:
        given += ["--path", str(folder / "model.pt")]
    given += ["--valid-subset", "test", "--batch-size", "9"] if command == "validate" else []
    if spoil is not None:
        spoil(folder)
    result = fairseq(command, folder, "--user-dir", PLUGIN, "--cpu", *given, stdin="a b\n")
    lines = [line for line in result.stderr.splitlines() if " | INFO | " not in line]
    assert result.returncode == 2 and len(lines) == 1, result.stderr
    assert re.match(f"error: .*{words}", lines[0]), lines[0]


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["open('/no/such')", "assert not sys, 'it is there'"])
def test_other_programs_keep_their_tracebacks(wrong: str, tmp_path: Path) -> None:
    """Those that import the package, even from a folder named fairseq."""
    file = tmp_path / "fairseq" / "mine.py"
    file.parent.mkdir()
    file.write_text(f"import sys\nimport fairseq_paradec.plugin.tasks\n{wrong}\n")
    run = f"import runpy, sys; sys.path.insert(0, {str(ROOT)!r}); runpy.run_path({str(file)!r})"
    result = run_python(run)
    assert (result.returncode, "Traceback" in result.stderr) == (1, True), result.stderr


@pytest.mark.slow
def test_with_loglevel_debug_there_is_the_traceback() -> None:
    result = fairseq("generate", DEMO, "--user-dir", PLUGIN, env={"LOGLEVEL": "DEBUG"})
    assert result.returncode == 2 and "Traceback" in result.stderr
