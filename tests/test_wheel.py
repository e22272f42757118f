"""The wheel, installed in a new environment outside the checkout, decodes the demo.

Nothing is downloaded: the new environment borrows the heavy packages of this one through a ``.pth``
file. Only fairseq gets a folder of its own there, because it looks for a user dir beside that.
"""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import fairseq
import fairseq_cli  # type: ignore[import-untyped]
import pytest
import torch
from support import commands
from support.commands import DEMO, ROOT, lines_of

pytestmark = pytest.mark.slow

#: Code that says at the end where the plugin came from.
TELL = """
import atexit, sys
atexit.register(lambda: print("plugin:", sys.modules["fairseq_paradec"].__file__, file=sys.stderr))
"""


def run(*command, cwd=None):
    words, env = [*map(str, command)], commands.environment()
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
    return commands.succeed(done)


def pip(*args):
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", *args)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    # A copy of the sources: a build leaves files, and picks up old ones.
    source, new = folder / "source", folder / "environment"
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "fairseq_paradec", source / "fairseq_paradec", ignore=unwanted)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", folder, source)
    (wheel,) = folder.glob("fairseq_paradec-*.whl")
    venv.EnvBuilder(with_pip=False, symlinks=True).create(new)
    (site,) = new.glob("lib/python*/site-packages")
    for package in (fairseq, fairseq_cli):
        # A link to the folder would not do: "fairseq/.." would lead to where the link points.
        here = Path(str(package.__file__)).parent
        (site / here.name).mkdir()
        for entry in here.iterdir():
            if entry.name != "__pycache__":
                (site / here.name / entry.name).symlink_to(entry)
    (site / "borrowed.pth").write_text(f"{Path(str(torch.__file__)).parent.parent}\n")
    pip("--python", new / "bin" / "python", "install", "--no-deps", "--no-index", wheel)
    return new


@pytest.mark.parametrize(
    "before", [TELL, TELL + "import fairseq_paradec"], ids=["user-dir", "imported-first"]
)
def test_the_installed_wheel_decodes_the_demo(before, environment, tmp_path):
    code = f"{before}\nfrom fairseq_cli.generate import cli_main\ncli_main()"
    flags = ("--user-dir", "fairseq_paradec", "--path", DEMO / "model.pt", "--decoding", "hgj")
    python = environment / "bin" / "python"
    result = run(python, "-P", "-c", code, DEMO, *flags, "--cpu", cwd=tmp_path)
    assert len(lines_of(result.stdout, "H")) == 100
    (plugin,) = (line for line in result.stderr.splitlines() if line.startswith("plugin:"))
    assert Path(plugin.partition(" ")[2]).resolve().is_relative_to(environment.resolve())
