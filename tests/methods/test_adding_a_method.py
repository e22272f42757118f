"""A method is one file and one registry entry: docs/adding-a-method.md adds one to a copy."""

import json
import os
import re
import shutil

import pytest
from support.commands import DEMO, ROOT, run_python

PAGE = (ROOT / "docs" / "adding-a-method.md").read_text(encoding="utf-8")
#: file -> the code that the page puts into it
BLOCKS = dict(re.findall(r"`([\w/.]+\.py)`[^\n]*\n\n```python\n(.*?)```", PAGE, flags=re.DOTALL))
METHOD, REGISTRY, TEST = (
    "fairseq_paradec/methods/echo.py",
    "fairseq_paradec/registry.py",
    "tests/test_echo.py",
)

# Each command in the one process, and what it printed: {"help": [0, "..."], ...}.
DRIVER = """
import contextlib, io, json, shlex, sys
from fairseq_cli import generate
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.methods import describe

def fairseq_generate(words):
    sys.argv = ["fairseq-generate", *words]
    return generate.cli_main()

programs = {"paradec": paradec, "generate": fairseq_generate}
said = {"table": [0, describe.tables()]}
for name, line in json.loads(sys.argv[1]).items():
    program, *words = shlex.split(line)
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            status = programs[program](words)
        except SystemExit as end:
            status = end.code
        except ValueError as error:
            status = str(error)
    said[name] = [status, out.getvalue()]
print("\\n" + json.dumps(said))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a copy of the package, to which the page's method was added."""
    home = tmp_path_factory.mktemp("home")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "fairseq_paradec", home / "fairseq_paradec", ignore=ignored)
    (home / METHOD).write_text(BLOCKS[METHOD], encoding="utf-8")
    table = (home / REGISTRY).read_text(encoding="utf-8")
    assert table.count("_ENTRIES = (\n") == 1
    table = table.replace("_ENTRIES = (\n", "_ENTRIES = (\n" + BLOCKS[REGISTRY] + ",")
    (home / REGISTRY).write_text(table, encoding="utf-8")
    (home / "demo").symlink_to(DEMO)
    (home / "runs").mkdir()
    return home


def run(home, code, *words):
    """Run Python code on the copy."""
    paths = [str(home), str(ROOT / "tests"), str(ROOT)]
    code = f"import sys\nsys.path[:0] = {paths}\n{code}"
    done = run_python(code, *words, cwd=home, env={"PYTHONPATH": os.pathsep.join(paths)})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def run_module(home, name, *words):
    """Run a module as ``python -m`` does."""
    return run(home, f"import runpy\nrunpy.run_module({name!r}, run_name='__main__')", *words)


@pytest.fixture(scope="module")
def said(home):
    """What the commands of a user print of it."""
    model = "--path demo/model.pt"
    data = f"generate demo {model} --user-dir fairseq_paradec --cpu"
    echo = f"{data} --decoding echo"
    timed = "--sentences 4 --timed 2 --rounds 2 --batch-sizes 4 --busy"
    wide = "--decoder 'echo --block-size 3'"
    traced = "--audit --trace-file runs/t.jsonl --max-sentences 3 --num-shards 16 --quiet"
    few = "--sentences 2 --batch-sizes 2"
    commands = {
        "help": f"{data} --help",
        "unknown": f"{data} --decoding ekko",
        "wrong flag": f"{echo} --jacobi-init bos",
        "out of range": f"{echo} --block-size 0",
        "generate": f"{echo} --block-size 3 {traced}",
        "benchmark": f"paradec benchmark demo {model} {timed} --out runs/b.json {wide}",
        "lossless": f"paradec benchmark demo --preset lossless {model} {few} --out runs/l.json",
        "flops": f"paradec analyse flops runs/t.jsonl {model}",
        "trace": "paradec trace runs/t.jsonl --limit 1 --html runs/t.html",
        "report": "paradec report runs",
    }
    return json.loads(run(home, DRIVER, json.dumps(commands)).splitlines()[-1])


def test_the_pages_test_passes(home):
    assert list(BLOCKS) == [METHOD, REGISTRY, TEST]
    path = home / "test_echo.py"
    path.write_text(BLOCKS[TEST], encoding="utf-8")
    out = run_module(home, "pytest", "-q", "-n0", "-p", "no:cacheprovider", "--rootdir", home, path)
    assert " passed" in out and "failed" not in out


def test_help_and_errors_know_it(said):
    text = " ".join(said["help"][1].split())
    assert "echo: what followed the last token" in text
    assert re.search(r"--block-size \S+ echo, pgj, hgj, gad", text)
    assert "\n| `echo` | what followed the last token" in said["table"][1]
    assert "allowed: auto, beam, echo, greedy" in str(said["unknown"])
    wrong = str(said["wrong flag"])
    assert "--jacobi-init: got 'bos', which --decoding echo does not use" in wrong
    assert "--block-size: got 0; allowed: a whole number from 1 up" in str(said["out of range"])


def test_it_is_decoded_measured_and_shown(said, home):
    for name in ("generate", "benchmark", "lossless", "flops", "trace", "report"):
        assert not said[name][0], said[name][1][-3000:]
    runs = home / "runs"
    records = [json.loads(line) for line in (runs / "t.jsonl").read_text().splitlines()]
    assert records and all(one["audit"]["identical"] for one in records)
    assert all(one["lossless"] and one["flags"] == {"block_size": 3} for one in records)
    systems = json.loads((runs / "b.json").read_text())["systems"]
    assert [one["promise"] for one in systems if one["label"].startswith("echo")] == ["exact"]
    rows = json.loads((runs / "l.json").read_text())["rows"]
    assert [one["beyond_ties"] for one in rows if one["decoder"] == "echo"] == [0]
    assert re.search(r"\becho\b", said["flops"][1]) and "(echo)" in said["trace"][1]
    assert all("echo" in (runs / page).read_text() for page in ("t.html", "report.html"))


PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "paradec-echo"
version = "0"

[project.entry-points."fairseq_paradec.methods"]
echo = "paradec_echo.entry:METHOD"
broken = "paradec_echo.entry:NOTHING"
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """A folder in which a package of its own is installed, with the page's method."""
    source, home = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("elsewhere")
    package = source / "paradec_echo"
    package.mkdir()
    (source / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (package / "__init__.py").touch()
    code = re.sub(r"from \.[\w.]* import", "from fairseq_paradec import", BLOCKS[METHOD])
    (package / "echo.py").write_text(code, encoding="utf-8")
    entry = BLOCKS[REGISTRY].replace('".echo.', '"paradec_echo.echo.')
    needed = "from fairseq_paradec import Method"
    (package / "entry.py").write_text(f"{needed}\n\nMETHOD = {entry}\n", encoding="utf-8")
    flags = "install --quiet --no-index --no-build-isolation --no-deps --target"
    run_module(source, "pip", *flags.split(), home, source)
    for name, path in (("fairseq_paradec", ROOT / "fairseq_paradec"), ("demo", DEMO)):
        (home / name).symlink_to(path)
    (home / "runs").mkdir()
    return home


def test_a_method_of_another_package_is_decoded_audited_traced_and_benchmarked(elsewhere):
    data = "demo --path demo/model.pt"
    traced = "--audit --trace-file runs/t.jsonl --max-sentences 3 --num-shards 16 --quiet"
    echo = "--user-dir fairseq_paradec --cpu --decoding echo --block-size 3"
    timed = "--sentences 4 --timed 2 --rounds 2 --batch-sizes 4 --busy"
    commands = {
        "generate": f"generate {data} {echo} {traced}",
        "benchmark": f"paradec benchmark {data} {timed} --out runs/b.json --decoder echo",
        "trace": "paradec trace runs/t.jsonl --limit 1",
    }
    said = json.loads(run(elsewhere, DRIVER, json.dumps(commands)).splitlines()[-1])
    for status, printed in said.values():
        assert not status, printed[-3000:]
    lines = (elsewhere / "runs" / "t.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert records and all(one["audit"]["identical"] and one["lossless"] for one in records)
    assert all(one["flags"] == {"block_size": 3} for one in records)
    systems = json.loads((elsewhere / "runs" / "b.json").read_text())["systems"]
    assert [one["promise"] for one in systems if one["label"] == "echo"] == ["exact"]
    assert "(echo)" in said["trace"][1]
