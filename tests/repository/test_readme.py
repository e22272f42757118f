"""README's commands, each as written, in a folder that has what a clean clone has.

Beside that there are the files of one's own that README names: copies of the demo's. The demo's
test set is cut to its first sentences.
"""

import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import (
    DEMO,
    ROOT,
    environment,
    fairseq,
    lines_of,
    run_python,
    succeed,
    wait_until,
)

pytestmark = pytest.mark.slow

README = (ROOT / "README.md").read_text("utf-8")
#: Language and text of each block of code.
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
COMMANDS = [text.splitlines() for language, text in BLOCKS if not language]

#: How a line begins that is not run here -> why.
ELSEWHERE = {
    "pip install .": "test_wheel.py, in environments of its own",
    "make demo": "test_demo.py runs `paradec demo`; what it sets up before is downloaded",
    "make test": ".ci/run does",
    "source .venv/bin/activate": "the environment is the one of the tests",
    "scripts/train_drafter.sh": "it trains as its preset says; test_train_gad.py, with --smoke",
    "scripts/train_blockwise.sh": "test_train_blockwise.py, likewise",
    "scripts/train_reordered.sh": "test_recipes.py, likewise",
    "paradec serve": "the last test here",
}

#: Of the demo's test set; README traces sentence 25.
SENTENCES = 26

#: What README's user has -> the demo's file in its place; what is trained elsewhere, too.
OWN = {
    "DATA": ".",
    "checkpoint.pt": "model.pt",
    "codes": "codes.bpe",
    "checkpoints/gad/drafter/model.pt": "drafter.pt",
    "checkpoints/heads/heads.pt": "heads.pt",
    "checkpoints/ibdecoder/model/model.pt": "ibdecoder.pt",
}

TEXT, TRANSLATION = "A dog runs across the grass.", "Ein Hund rennt über das Gras."
#: What the small pair, which knows more than captions, says to its own line.
FIRST_TRANSLATION = "Wie geht es dir?"

SMALL = DEMO.with_name("demo-small.en-de")

#: The machine counts as idle: tests run side by side.
PARADEC = """
import sys
from types import SimpleNamespace
from fairseq_paradec.cli.main import main
if sys.argv[1] == "benchmark":
    from fairseq_paradec.lab.measure import machine
    machine.busy_cores = lambda: 0.0
    machine.Others = lambda: SimpleNamespace(cores=lambda: 0.0)
sys.exit(main())
"""


def is_run(line: str) -> bool:
    """Whether a line is run here."""
    return not line.startswith(tuple(ELSEWHERE))


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder."""
    clone = tmp_path_factory.mktemp("clone")
    (clone / "fairseq_paradec").symlink_to(ROOT / "fairseq_paradec")
    demo = clone / "data-bin" / "demo.en-de"
    for kind in ("raw", "bpe"):
        (demo / kind).mkdir(parents=True)
        for name in ("demo.en", "demo.de"):
            lines = (DEMO / kind / name).read_text("utf-8").splitlines(keepends=True)
            (demo / kind / name).write_text("".join(lines[:SENTENCES]), "utf-8")
    dicts = ["--srcdict", DEMO / "dict.en.txt", "--tgtdict", DEMO / "dict.de.txt"]
    to = ["--testpref", demo / "bpe" / "demo", "--destdir", demo]
    succeed(fairseq("preprocess", "-s", "en", "-t", "de", *to, *dicts))
    for path in DEMO.iterdir():
        if not (demo / path.name).exists():
            (demo / path.name).symlink_to(path)
    (clone / "data-bin" / SMALL.name).symlink_to(SMALL)
    for name, file in OWN.items():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).symlink_to(demo / file)
    (clone / "input.txt").write_text(f"{TEXT}\n", "utf-8")
    return clone


def run(line: str, clone: Path) -> subprocess.CompletedProcess[str]:
    """Run a line that redirects no more than its output."""
    line, *_ = line.split(" > ")
    program, *words = shlex.split(line)
    if program == "paradec":
        return succeed(run_python(PARADEC, *words, cwd=clone))
    return succeed(fairseq(program.removeprefix("fairseq-"), *words, cwd=clone))


@pytest.mark.parametrize(
    "lines",
    [lines for lines in COMMANDS if any(map(is_run, lines))],
    ids=lambda lines: next(filter(is_run, lines))[:24],
)
def test_a_block_of_commands_runs_as_written(lines: list[str], clone: Path) -> None:
    for line in filter(is_run, lines):
        done = run(line, clone)
        if line.startswith("fairseq-generate "):
            assert len(lines_of(done.stdout, "H")) == SENTENCES
        if " --audit" in line:
            assert f"audit: {SENTENCES} of {SENTENCES} sentences identical" in done.stderr
        if line.startswith("paradec translate ") and " --trace-file " not in line:
            wanted = FIRST_TRANSLATION if SMALL.name in line else TRANSLATION
            assert done.stdout == f"{wanted}\n" and f"`{FIRST_TRANSLATION}`" in README
        for name in re.findall(r" --(?:trace-file|html|picture|out) (\S+)", line):
            assert (clone / name).stat().st_size > 0, name
        if line.startswith("paradec benchmark "):
            systems = json.loads((clone / "runs" / "demo.json").read_text("utf-8"))["systems"]
            promises = {one["label"]: one["promise"] for one in systems}
            assert promises["pgj --block-size 5"] == "exact"


@pytest.mark.parametrize("code", [text for language, text in BLOCKS if language == "python"])
def test_the_lines_of_python_run_as_written(code: str, clone: Path) -> None:
    assert succeed(run_python(code, cwd=clone)).stdout == "['Ein Hund rennt.']\n"


def test_what_is_run_elsewhere_stands_in_readme() -> None:
    lines = [line for block in COMMANDS for line in block]
    assert [begin for begin in ELSEWHERE if not any(x.startswith(begin) for x in lines)] == []
    assert any(map(is_run, lines)) and any(language == "python" for language, _ in BLOCKS)


@pytest.fixture
def port() -> Iterator[int]:
    """The one that README names; it must be free."""
    with socket.socket() as tried:
        if tried.connect_ex(("127.0.0.1", 8000)) == 0:
            pytest.skip("another program serves at port 8000")
    yield 8000


def test_the_server_answers_where_its_page_says(clone: Path, port: int) -> None:
    (line,) = (x for block in COMMANDS for x in block if x.startswith("paradec serve "))
    words = [sys.executable, "-P", "-m", "fairseq_paradec", *shlex.split(line)[1:]]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, cwd=clone, env=environment(), **quiet) as server:
        try:
            with socket.socket() as tried:
                wait_until(lambda: tried.connect_ex(("127.0.0.1", port)) == 0, server)
            asked = json.dumps({"q": TEXT, "source": "en", "target": "de"}).encode()
            kind = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"http://127.0.0.1:{port}/translate", asked, kind)
            with urllib.request.urlopen(request, timeout=300) as answer:
                assert json.load(answer)["translatedText"] == TRANSLATION
        finally:
            server.send_signal(signal.SIGTERM)
    assert server.returncode == 0
