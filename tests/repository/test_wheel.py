"""The wheel of `make wheel`, installed in new environments outside the checkout, decodes the demo.

The first environment borrows the heavy packages of this one through a ``.pth`` file; only fairseq
gets a folder of its own there, because it looks for a user dir beside that. The second is the core
alone: it has the files of those packages only that the wheel requires, and of what these require
themselves. Both download nothing. One of each Python is made by pip.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import fairseq
import fairseq_cli  # type: ignore[import-untyped]
import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support import alone, commands
from support.commands import DEMO, ROOT, lines_of
from support.server import process

from fairseq_paradec.engine.native import building
from fairseq_paradec.lab.analysis.benchmark_tables import label
from fairseq_paradec.lab.data import documents

pytestmark = pytest.mark.slow

#: Code that says at the end where the plugin came from.
TELL = """
import atexit, sys
atexit.register(lambda: print("plugin:", sys.modules["fairseq_paradec"].__file__, file=sys.stderr))
"""


def run(*command, cwd=None, env=None):
    words, env = [*map(str, command)], commands.environment(env)
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
    return commands.succeed(done)


def pip(*args, env=None):
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", *args, env=env)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    # A copy of the sources: a build leaves files, and picks up old ones.
    source = folder / "source"
    unwanted = shutil.ignore_patterns("__pycache__")
    for name in ("fairseq_paradec", "tools"):
        shutil.copytree(ROOT / name, source / name, ignore=unwanted)
    for path in ROOT.iterdir():
        if path.is_file() and path.name != ".git":
            shutil.copy(path, source)
    # This environment is set up, whatever the age of the copies.
    run("make", "-o", f"{sys.prefix}/.set-up", "wheel", f"VENV={sys.prefix}", cwd=source)
    (source / "dist").rename(folder / "dist")
    (built,) = (folder / "dist").glob("fairseq_paradec-*.whl")
    return built


def test_the_wheel_fits_every_python_and_any_linux_since_glibc_2_28(wheel):
    assert "-py3-none-" in wheel.name and "manylinux_2_28" in wheel.name
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
    assert all(name.startswith("fairseq_paradec") for name in names)
    for instructions, *_ in building.targets():
        found = [name for name in names if name.startswith(f"fairseq_paradec/lib/{instructions}-")]
        # "avx512-" begins "avx512-vnni-" and "avx512-bf16-vnni-", too.
        assert sum(name.count("-") == instructions.count("-") + 2 for name in found) == 1


def test_the_sdist_has_all_that_a_build_needs(wheel):
    """Its wheel is that of the tests; here, that it brings no tests, tools and libraries."""
    (sdist,) = wheel.parent.glob("fairseq_paradec-*.tar.gz")
    with tarfile.open(sdist) as content:
        names = [name.partition("/")[2] for name in content.getnames()]
    assert {"LICENSE", "README.md", "CITATION.cff"} <= set(names)
    assert not [
        name for name in names if name.startswith(("tests/", "tools/")) or name.endswith(".so")
    ]


def borrowing(new):
    """Make the first environment; return its folder of packages."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(new)
    (site,) = new.glob("lib/python*/site-packages")
    for package in (fairseq, fairseq_cli):
        # A link to the folder would not do: "fairseq/.." would lead to where the link points.
        here = Path(str(package.__file__)).parent
        (site / here.name).mkdir()
        for entry in here.iterdir():
            if entry.name != "__pycache__":
                (site / here.name / entry.name).symlink_to(entry)
    borrowed = Path(str(torch.__file__)).parent.parent
    (site / "borrowed.pth").write_text(f"{borrowed}\n", encoding="utf-8")
    return site


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    new = tmp_path_factory.mktemp("borrowing") / "environment"
    borrowing(new)
    pip("--python", new / "bin" / "python", "install", "--no-deps", "--no-index", wheel)
    return new


BEFORE = pytest.mark.parametrize(
    "before", [TELL, TELL + "import fairseq_paradec"], ids=["user-dir", "imported-first"]
)


@BEFORE
def test_the_installed_wheel_decodes_the_demo(before, environment, tmp_path):
    assert plugin_of(environment, before, tmp_path).is_relative_to(environment.resolve())


def plugin_of(environment, before, cwd):
    """Decode the demo in a folder; return where the plugin lies that did it."""
    code = f"{before}\nfrom fairseq_cli.generate import cli_main\ncli_main()"
    flags = ("--user-dir", "fairseq_paradec", "--path", DEMO / "model.pt", "--decoding", "hgj")
    python = environment / "bin" / "python"
    result = run(python, "-P", "-c", code, DEMO, *flags, "--cpu", cwd=cwd)
    assert len(lines_of(result.stdout, "H")) == 100
    (plugin,) = (line for line in result.stderr.splitlines() if line.startswith("plugin:"))
    return Path(plugin.partition(" ")[2]).resolve()


@pytest.fixture(scope="module")
def editable(tmp_path_factory):
    """An environment with an editable install, and the sources, in a folder of their own."""
    folder = tmp_path_factory.mktemp("editable")
    new, source = folder / "environment", folder / "source"
    unwanted = shutil.ignore_patterns("__pycache__", "lib")
    for name in ("fairseq_paradec", "tools"):
        shutil.copytree(ROOT / name, source / name, ignore=unwanted)
    for name in ("setup.py", "pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, source)
    site = borrowing(new)
    words = ("--no-deps", "--no-index", "--no-build-isolation", "--editable", source)
    pip("--python", new / "bin" / "python", "install", *words, env={"CXX": "no-such-compiler"})
    library = Path("fairseq_paradec", "lib")
    shutil.copytree(ROOT / library, source / library, dirs_exist_ok=True)
    return new, site, source


@BEFORE
def test_an_editable_install_is_a_user_dir_in_every_folder(before, editable, tmp_path):
    environment, _, source = editable
    assert plugin_of(environment, before, tmp_path).is_relative_to(source.resolve())


def test_an_editable_install_goes_whole(editable):
    environment, site, _ = editable
    assert (site / "fairseq_paradec").is_file()
    pip("--python", environment / "bin" / "python", "uninstall", "--yes", "fairseq_paradec")
    assert not [*site.glob("*fairseq_paradec*")]


def required(given: Distribution) -> dict[str, Distribution]:
    """What a distribution requires without extras, and what that requires, as metadata say."""
    found: dict[str, Distribution] = {}
    left = [(given, frozenset[str]())]
    while left:
        one, extras = left.pop()
        for requirement in map(Requirement, one.requires or ()):
            marker = requirement.marker
            if marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                continue
            name = canonicalize_name(requirement.name)
            if name not in found or requirement.extras:
                found[name] = distribution(name)
                left.append((found[name], frozenset(requirement.extras)))
    return found


def link_files(one: Distribution, site: Path) -> None:
    """Give an environment a distribution's files: links to those of this environment."""
    for file in one.files or ():
        if ".." not in file.parts and "__pycache__" not in file.parts:
            place = site / file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(Path(str(file.locate())))


@pytest.fixture(scope="module")
def core(wheel, tmp_path_factory):
    """An environment of the wheel and the packages of the core: no torch, no fairseq."""
    new = tmp_path_factory.mktemp("alone") / "environment"
    venv.EnvBuilder(with_pip=False, symlinks=True).create(new)
    (site,) = new.glob("lib/python*/site-packages")
    pip("--python", new / "bin" / "python", "install", "--no-deps", "--no-index", wheel)
    (metadata,) = site.glob("fairseq_paradec-*.dist-info")
    for one in required(Distribution.at(metadata)).values():
        link_files(one, site)
    return new


def test_the_core_requires_seven_packages(core):
    (metadata,) = core.glob("lib/python*/site-packages/fairseq_paradec-*.dist-info")
    requirements = [Requirement(text) for text in Distribution.at(metadata).requires or ()]
    assert sorted(one.name for one in requirements if not one.marker) == [
        "fsspec",
        "numpy",
        "sacremoses",
        "sentencepiece",
        "sentencex",
        "subword-nmt",
        "tqdm",
    ]


def test_the_core_alone_names_the_extra_of_other_commands(core, tmp_path):
    python = (core / "bin" / "python", "-I")
    probe = "import importlib.util as u, sys; print(*(n for n in sys.argv[1:] if u.find_spec(n)))"
    lacks = ("torch", "fairseq", "matplotlib", "jsonschema", "rouge_score", "PIL", "ray")
    assert run(*python, "-c", probe, *lacks, cwd=tmp_path).stdout == "\n"
    run(*python, "-m", "fairseq_paradec", "benchmark", "--help", cwd=tmp_path)
    for words, lack in (
        (
            ("profile", "start-up", "--model", DEMO, "--out", tmp_path / "s.json"),
            "matplotlib [lab]",
        ),
        (("report", tmp_path), "matplotlib [lab]"),
        (("train", DEMO, "--save-dir", tmp_path / "new"), "fairseq [train]"),
        (("serve", "--model", DEMO), "fastapi [serve]"),
        (("distill", DEMO, "--path", DEMO / "model.pt", tmp_path / "new"), "fairseq [fairseq]"),
    ):
        done = subprocess.run(
            [*map(str, (*python, "-m", "fairseq_paradec", *words))],
            cwd=tmp_path,
            env=commands.environment(),
            capture_output=True,
            text=True,
            timeout=300,
        )
        package, extra = lack.split()
        line = f"paradec {words[0]}: error: needs {package}; install fairseq_paradec{extra}\n"
        assert (done.returncode, done.stdout, done.stderr) == (2, "", line)


def test_the_core_alone_compares_its_decoders(core, tmp_path):
    """Two sentences; without packages that draw, score and check, and without peers."""
    few = "--sentences 2 --timed 1 --rounds 1 --batch-sizes 2 --busy --peers --decoder self_draft"
    out = tmp_path / "b.json"
    words = ("benchmark", DEMO, "--path", DEMO / "model.pt", *few.split(), "--out", out)
    done = run(core / "bin" / "python", "-I", "-m", "fairseq_paradec", *words, cwd=tmp_path)
    assert done.stderr == f"paradec benchmark: no {tmp_path / 'b.png'}: it needs [lab]\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["b.json", "b.md"]
    document = documents.read(out).content
    needs = {"ctranslate2": "needs [peers]"}
    needs |= dict.fromkeys(("fairseq beam 5", "fairseq greedy"), "needs [fairseq]")
    assert document["not_run"] == needs and document["signatures"] == {}
    assert {system["label"]: label(system) for system in document["systems"]} == {
        "greedy": "= our greedy",
        "own beam 5": "beam search",
        "self_draft": "= our greedy",
    }


@pytest.mark.parametrize("name", alone.PAIRS)
def test_the_core_alone_writes_what_it_writes_with_torch_and_fairseq(name, core, tmp_path):
    """Tokens and scores of all sentences of a demo, and of odd lines; the command prints them.

    The judges are the same methods by fairseq's modules, and fairseq's own search.
    """
    pair = alone.PAIRS[name]
    folder = alone.with_model(pair, tmp_path / "folder")
    lines = [*(pair.folder / "raw" / "demo.en").read_text("utf-8").splitlines(), *alone.ODD]
    ours = alone.written(core / "bin" / "python", folder, pair.runs, lines, False)
    search = {f"fairseq's {way}": alone.FAIRSEQS[way] for way in pair.runs if way in alone.FAIRSEQS}
    theirs = alone.written(sys.executable, folder, {**pair.runs, **search}, lines, True)
    for way, outputs in theirs.items():
        alone.check_same(way, lines, ours[way.removeprefix("fairseq's ")], outputs)
    text = tmp_path / "lines"
    text.write_text("".join(f"{line}\n" for line in lines), "utf-8", newline="\n")
    for way in pair.printed:
        options = pair.runs[way].items()
        flags = [w for key, value in options for w in (f"--{key.replace('_', '-')}", value)]
        command = ("-I", "-m", "fairseq_paradec", "translate", text, "--model", folder, *flags)
        printed = run(core / "bin" / "python", *command, cwd=tmp_path).stdout
        assert printed == "".join(f"{output}\n" for output, _ in ours[way]), way


def interpreter(version):
    """Return a Python of a version: of PATH, or one that pyenv has; None: there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which(f"python{version}"), *pyenv.glob(f"versions/{version}.*/bin/python")]
    for python in filter(None, found):
        says = [python, "-c", "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(says, capture_output=True, text=True)
        if done.stdout.strip() == version:  # one of pyenv's shims may lead nowhere
            return python
    return None


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_pip_installs_the_core_and_the_server_on_every_python(version, wheel, tmp_path):
    """pip downloads what the wheel requires, and what its extra does."""
    if (base := interpreter(version)) is None:
        pytest.skip(f"no python{version} with ensurepip in PATH or of pyenv")
    run(base, "-m", "venv", tmp_path / "new")
    python = tmp_path / "new" / "bin" / "python"
    run(python, "-m", "pip", "--disable-pip-version-check", "install", wheel)
    runs = {name: alone.PAIRS["tiny"].runs[name] for name in ("self_draft", "beam 5")}
    lines = ["A dog runs.", "Two men in black suits are waiting at the train station."]
    ours, here = (alone.written(one, DEMO, runs, lines, False) for one in (python, sys.executable))
    for way in runs:
        alone.check_same(way, lines, ours[way], here[way])
    run(python, "-m", "pip", "--disable-pip-version-check", "install", f"{wheel}[serve]")
    for module in ("torch", "fairseq"):
        assert not [*(tmp_path / "new").glob(f"lib/python*/site-packages/{module}")]
    with process(python=[str(python), "-I"]) as (_, client):
        answer = client.translate(lines)
    assert answer["translatedText"] == [text for text, _ in here["self_draft"]]


def test_an_installation_is_measured_and_small(wheel, tmp_path):
    out = tmp_path / "installation.json"
    words = ("profile", "installation", wheel, "--model", DEMO, "--extra", "detect", "--out", out)
    run(sys.executable, "-m", "fairseq_paradec", *words)
    rows = {row["package"]: row for row in json.loads(out.read_text("utf-8"))["rows"]}
    core = [row for row in rows.values() if row["by"] == "core"]
    *packages, whole = core
    assert {"numpy", "fairseq_paradec", "sacremoses"} < {row["package"] for row in packages}
    assert whole == rows["all of core"] and 50 < whole["MB"] < 150
    for key in ("files", "opened"):
        assert whole[key] == sum(row[key] for row in packages) > 100
    assert rows["lingua-language-detector"]["by"] == "[detect]"
    assert rows["lingua-language-detector"]["opened"] == 0 < rows["the model folder"]["opened"]


@pytest.fixture
def without_compiler(tmp_path):
    """Run a command of an environment where no compiler is, and no library built before."""
    (tmp_path / "bin").mkdir()
    env = {"PATH": str(tmp_path / "bin"), "CXX": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    paradec = ("-I", "-m", "fairseq_paradec")
    return lambda place, *words: run(
        place / "bin" / "python", *paradec, *words, cwd=tmp_path, env=env
    )


@pytest.fixture
def without_libraries():
    """Take the wheel's libraries out of an environment for a while."""
    away = []

    def take(place):
        (lib,) = place.glob("lib/python*/site-packages/fairseq_paradec/lib")
        away.append((lib, lib.rename(lib.with_name("away"))))

    yield take
    for lib, there in away:
        there.rename(lib)


def test_without_a_compiler_the_wheel_decodes_natively(without_compiler, core):
    said = without_compiler(core, "--version").stdout.splitlines()
    assert said[1].startswith("engine: native, instruction set ")
    assert Path(said[2].removeprefix("library: ")).is_relative_to(core)
    words = ("translate", "--model", DEMO, "--decoding", "greedy", "--engine", "native")
    done = without_compiler(core, *words, "--text", "A dog runs.")
    assert done.stdout == "Ein Hund rennt.\n"


def test_without_a_compiler_and_without_its_libraries_torch_decodes(
    without_compiler, without_libraries, environment
):
    without_libraries(environment)
    said = without_compiler(environment, "--version").stdout.splitlines()
    assert said[1] == "engine: torch; the native one is unavailable: no C++ compiler (c++, g++)"
    words = ("translate", "--model", DEMO, "--decoding", "greedy", "--text", "A dog runs.")
    assert without_compiler(environment, *words).stdout == "Ein Hund rennt.\n"


def test_without_all_three_the_extra_is_named(without_compiler, without_libraries, core):
    """No compiler, no libraries, no torch."""
    without_libraries(core)
    said = without_compiler(core, "--version").stdout.splitlines()
    lack = "no C++ compiler (c++, g++)"
    engine = "none without fairseq_paradec[fairseq]"
    assert said[1] == f"engine: {engine}; the native one is unavailable: {lack}"
    lacks = r"no C\+\+ compiler .*: it needs fairseq_paradec\[fairseq"
    with pytest.raises(AssertionError, match=lacks):
        without_compiler(core, "translate", "--model", DEMO, "--text", "A dog runs.")
