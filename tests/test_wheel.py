"""The wheel, installed in a new environment outside the checkout, decodes the demo.

Nothing is downloaded: the new environment borrows the heavy packages of this one through a ``.pth``
file. Only fairseq gets a folder of its own there, because it looks for a user dir beside that.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import fairseq as fairseq_package
import fairseq_cli  # type: ignore[import-untyped]
import pytest
import torch
from support.commands import DEMO, ROOT, fairseq, lines_of, succeed

pytestmark = pytest.mark.slow

#: Sentences of the demo.
SENTENCES = 100

#: Code that says at the end where the plugin came from.
TELL = """
import atexit, sys
atexit.register(lambda: print("plugin:", sys.modules["fairseq_paradec"].__file__, file=sys.stderr))
"""


def pip(*args: object) -> None:
    """Run this interpreter's pip, offline."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, args)]
    succeed(subprocess.run(command, capture_output=True, text=True, timeout=300))


def build_wheel(folder: Path) -> Path:
    """Build the wheel from a copy of the sources: a build leaves files, and picks up old ones."""
    source = folder / "source"
    shutil.copytree(
        ROOT / "fairseq_paradec",
        source / "fairseq_paradec",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", folder, source)
    (wheel,) = folder.glob("fairseq_paradec-*.whl")
    return wheel


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the new environment and install the wheel in it."""
    folder = tmp_path_factory.mktemp("wheel")
    new = folder / "environment"
    venv.EnvBuilder(with_pip=False, symlinks=True).create(new)
    python = new / "bin" / "python"
    (site,) = new.glob("lib/python*/site-packages")
    for package in (fairseq_package, fairseq_cli):
        # A link to the folder would not do: "fairseq/.." would lead to where the link points.
        here = Path(str(package.__file__)).parent
        (site / here.name).mkdir()
        for entry in here.iterdir():
            if entry.name != "__pycache__":
                (site / here.name / entry.name).symlink_to(entry)
    borrowed = Path(str(torch.__file__)).parent.parent
    (site / "borrowed.pth").write_text(f"{borrowed}\n", encoding="utf-8")
    wheel = build_wheel(folder)
    pip("--python", python, "install", "--no-deps", "--no-index", wheel)
    return new


@pytest.mark.parametrize(
    "before", [TELL, TELL + "import fairseq_paradec"], ids=["user-dir", "imported-first"]
)
def test_the_installed_wheel_decodes_the_demo(
    before: str, environment: Path, tmp_path: Path
) -> None:
    result = succeed(
        fairseq(
            "generate",
            *(DEMO, "--user-dir", "fairseq_paradec", "--path", DEMO / "model.pt"),
            *("--decoding", "hgj", "--cpu"),
            before=before,
            python=environment / "bin" / "python",
            cwd=tmp_path,
        )
    )
    assert len(lines_of(result.stdout, "H")) == SENTENCES
    (plugin,) = (line for line in result.stderr.splitlines() if line.startswith("plugin:"))
    assert Path(plugin.partition(" ")[2]).resolve().is_relative_to(environment.resolve())


def test_the_installed_wheel_has_what_the_benchmark_needs(
    environment: Path, tmp_path: Path
) -> None:
    out = tmp_path / "b.json"
    result = succeed(
        subprocess.run(
            [
                *(environment / "bin" / "paradec", "benchmark", DEMO, "--path", DEMO / "model.pt"),
                *(
                    "--sentences",
                    "3",
                    "--rounds",
                    "1",
                    "--busy",
                    "--batch-sizes",
                    "3",
                    "--out",
                    out,
                ),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
    )
    assert "## Latency: batch 1, fp32, 1 thread" in result.stdout
    assert out.is_file() and out.with_suffix(".png").is_file()
