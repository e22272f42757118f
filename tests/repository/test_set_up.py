"""The Makefile: what it says where it cannot begin, and its two stages.

Its interpreter is a script: Python for what make asks of it, with another version, and a log of
what would be installed and run.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import ROOT, WITHOUT_TORCH, environment, wait_until

#: Its first argument is code that changes what Python says of itself.
PYTHON = """#!/bin/sh
log={log}
if [ "$1" = -c ]; then
    exec {python} -c {before}"$2"
fi
echo "${*#-m }" | sed 's/--quiet .*-location //' >> $log
case "$*" in
    *"-m venv"*)
        mkdir -p .venv/bin
        cp "$0" .venv/bin/python
        printf '#!/bin/sh\\necho "paradec $*" >> %s\\n' $log > .venv/bin/paradec
        chmod +x .venv/bin/paradec
        ;;
esac
[ -z "$FAIL" ] || ! echo "$*" | grep -q -e "$FAIL" || exit 1
[ -z "$HANG" ] || ! echo "$*" | grep -q -e "$HANG" || exec {python} -c {hang}
"""

#: Ends by Ctrl-C alone, and says when it has begun: a shell may outlive one that comes before.
HANG = """
import pathlib, signal, time
signal.signal(signal.SIGINT, signal.SIG_DFL)
pathlib.Path("hangs").touch()
time.sleep(600)
"""

VENV = "venv --clear .venv"
CORE = [
    VENV,
    "pip install -c requirements.txt setuptools wheel",
    "pip install -c requirements.txt --no-build-isolation --editable .",
]
DEMO = "paradec demo"
REST = [
    "pip install -c requirements.txt torch numpy cython",
    "pip install -c requirements.txt --no-build-isolation fairseq-fixed",
    "pip install --no-build-isolation -r requirements.txt",
    "pip uninstall --quiet --yes torchaudio",
]
PLUGIN = "paradec demo --plugin"
TOOLS = "pip install -c requirements.txt pytest pytest-xdist"


class Checkout:
    """A folder with the Makefile, and a Python of some version."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        (folder / "Makefile").write_text((ROOT / "Makefile").read_text("utf-8"), "utf-8")
        for name in ("requirements.txt", "setup.py"):
            (folder / name).touch()
        (folder / "fairseq_paradec").mkdir()
        self.site = folder / "site"
        self.stamps = [folder / ".venv" / name for name in (".core", ".set-up")]

    def python(self, minor: int, before: str = "") -> str:
        """Write an interpreter; return its name, relative to the folder."""
        change = f"""
import sys, sysconfig
sys.version_info, where = (3, {minor}, 5), sysconfig.get_paths
sysconfig.get_paths = lambda *how: where(*how) | {{"purelib": {str(self.site)!r}}}
{before}
"""
        script = self.folder / f"it's python 3.{minor}"
        fills = {"log": self.log, "python": sys.executable, "before": change, "hang": HANG}
        text = PYTHON
        for name, value in fills.items():
            text = text.replace(f"{{{name}}}", shlex.quote(str(value)))
        script.write_text(text, "utf-8")
        script.chmod(0o755)
        return f"./{script.name}"

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        """Start make, in a session of its own, as these tests may run under make themselves."""
        outer = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        self.log.write_text("", "utf-8")
        return subprocess.Popen(
            ["make", *words],
            cwd=self.folder,
            env=outer | {"CXX": ""} | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def make(self, *words: str, status: int = 0, **env: str) -> tuple[list[str], str, str]:
        """Run make; return what was installed and run, and both outputs."""
        running = self.start(*words, **env)
        out, err = running.communicate(timeout=120)
        assert running.returncode == status, err
        return self.logged(), out, err

    def logged(self) -> list[str]:
        """Return what was installed and run, without questions to pip."""
        lines = self.log.read_text("utf-8").splitlines()
        return [line.strip() for line in lines if line.strip() != "pip --version"]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def refused(checkout: Checkout, python: str, **env: str) -> str:
    """Return the one line of a set-up that cannot begin."""
    done, _, err = checkout.make("setup", f"PYTHON={python}", status=2, **env)
    assert not done and not (checkout.folder / ".venv").exists()
    (said,) = [line for line in err.splitlines() if not line.startswith(("make: ", "make[1]: "))]
    return said


@pytest.mark.parametrize("minor", [9, 10, 15])
def test_another_python_is_refused(checkout: Checkout, minor: int) -> None:
    python = checkout.python(minor, "sys.executable = '/usr/bin/python'")
    assert refused(checkout, python) == (
        f"setup: /usr/bin/python is Python 3.{minor}; 3.11 to 3.14 is needed: "
        "make PYTHON=/path/to/python3.12"
    )


def test_no_python_is_named(checkout: Checkout) -> None:
    said = refused(checkout, "no/python")
    assert said.startswith("setup: no interpreter 'no/python': install Python 3.11 to 3.14")


def test_all_that_is_missing_is_named_at_once(checkout: Checkout) -> None:
    lacking = (
        "import shutil; sys.modules['ensurepip'] = None; shutil.which = lambda name: None; "
        "sysconfig.get_paths = lambda: {'include': 'none'}"
    )
    assert refused(checkout, checkout.python(12, lacking)) == (
        "setup: Python 3.12 lacks the module ensurepip; there is no C++ compiler (c++, g++, "
        "clang++), nor does CXX name one; the headers of Python 3.12 are missing "
        "(none/Python.h): install what is missing (Debian, Ubuntu: apt-get install "
        "python3.12-venv g++ python3.12-dev)"
    )


def test_a_compiler_that_is_not_there_is_named(checkout: Checkout) -> None:
    said = refused(checkout, checkout.python(12), CXX="no-compiler -O2")
    assert "there is no C++ compiler (no-compiler)" in said and "apt-get install g++)" in said


@pytest.mark.parametrize("minor", [11, 12])
def test_the_demo_begins_with_the_core_and_goes_on(checkout: Checkout, minor: int) -> None:
    python = f"PYTHON={checkout.python(minor)}"
    done, out, _ = checkout.make("demo", python)
    assert done == [*CORE, DEMO, *REST, PLUGIN]
    told = " ".join(out.splitlines())
    assert re.search(r"Next, into \.venv: .* GB of .*, about \d minutes\. Ctrl-C keeps what ", told)
    assert checkout.make("demo", python)[0] == [DEMO, PLUGIN]
    assert checkout.make("setup", python)[0] == []
    done, _, _ = checkout.make("demo", "TEXT=It's $1.", "ARGS=--sentences 2")
    assert done == ["paradec demo --sentences 2 --text It's $1.", PLUGIN]


@pytest.mark.parametrize("minor", [13, 14])
def test_a_python_without_fairseq_has_the_core(checkout: Checkout, minor: int) -> None:
    python = f"PYTHON={checkout.python(minor)}"
    done, out, _ = checkout.make("demo", python)
    assert done == [*CORE, DEMO]
    assert out.splitlines()[-1] == (
        f"fairseq is tested on Python 3.11 and 3.12, not on 3.{minor}: left out is the plugin by "
        "fairseq's own commands (make demo PYTHON=/path/to/python3.12)."
    )
    done, out, _ = checkout.make("test", python)
    assert done[0].startswith(TOOLS) and [line.split()[0] for line in done[1:]] == [
        *("ruff", "ruff", "pytest")
    ]
    lines = [line for line in out.splitlines() if line.startswith("fairseq is tested on ")]
    assert [line.partition(f"not on 3.{minor}: ")[2] for line in lines] == [
        "set up are the core and what tests it.",
        "left out are mypy, and the tests that need torch or fairseq.",
    ]
    assert [line.split()[0] for line in checkout.make("test", python)[0]] == [
        *("ruff", "ruff", "pytest")
    ]


def test_a_python_with_fairseq_runs_all_checks(checkout: Checkout) -> None:
    done, out, _ = checkout.make("test", f"PYTHON={checkout.python(12)}")
    assert done[:-4] == [*CORE, *REST] and "left out" not in out
    assert [line.split()[0] for line in done[-4:]] == ["ruff", "ruff", "mypy", "pytest"]


def test_an_environment_that_has_all_is_not_set_up_again(checkout: Checkout) -> None:
    """Of before the core had a stamp, and after requirements have changed."""
    python = f"PYTHON={checkout.python(12)}"
    checkout.make("setup", python)
    core, whole = checkout.stamps
    core.unlink()
    assert checkout.make("demo", python)[0] == [DEMO, PLUGIN]
    old = whole.stat().st_mtime - 100
    os.utime(whole, (old, old))
    done, _, _ = checkout.make("demo", python)
    assert done == [*CORE[1:], *REST, DEMO, PLUGIN]  # what is there stays


def test_another_python_begins_anew(checkout: Checkout) -> None:
    checkout.make("setup", f"PYTHON={checkout.python(12)}")
    done, _, _ = checkout.make("demo", f"PYTHON={checkout.python(11)}")
    assert done == [*CORE, *REST, DEMO, PLUGIN]
    assert checkout.make("demo", f"PYTHON={checkout.python(11)}")[0] == [DEMO, PLUGIN]


@pytest.mark.parametrize(
    ("fails", "again"),
    [
        ("setuptools", [*CORE, DEMO, *REST, PLUGIN]),
        ("torch", [DEMO, *REST, PLUGIN]),
        ("fairseq-fixed", [DEMO, *REST, PLUGIN]),
    ],
)
def test_what_failed_is_done_again_and_no_more(
    checkout: Checkout, fails: str, again: list[str]
) -> None:
    python = f"PYTHON={checkout.python(12)}"
    done, _, _ = checkout.make("demo", python, status=2, FAIL=fails)
    assert fails in done[-1] and not checkout.stamps[1].exists()
    assert checkout.make("demo", python)[0] == again


def test_a_package_that_was_cut_short_is_installed_again(checkout: Checkout) -> None:
    python = f"PYTHON={checkout.python(12)}"
    checkout.make("demo", python, status=2, FAIL="torch")
    for name, files in {"torch-2": ["METADATA"], "numpy-2": ["METADATA", "INSTALLER"]}.items():
        about = checkout.site / f"{name}.dist-info"
        about.mkdir(parents=True)
        for file in files:
            (about / file).touch()
    checkout.make("demo", python)
    assert [path.name for path in checkout.site.iterdir()] == ["numpy-2.dist-info"]


@pytest.mark.slow
@pytest.mark.fairseq
def test_the_cores_tests_pass_without_torch_and_fairseq() -> None:
    """What `make test` runs on a Python without fairseq; here they are blocked."""
    words = [sys.executable, "-m", "pytest", "tests", "-n0", "-m", "not slow"]
    env = environment(WITHOUT_TORCH)
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "without torch and fairseq: 13 of " in done.stdout and " 4 skipped" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("during", ["torch", "fairseq-fixed"])
def test_ctrl_c_keeps_what_was_shown(checkout: Checkout, during: str) -> None:
    python = f"PYTHON={checkout.python(12)}"
    running = checkout.start("demo", python, HANG=during)
    wait_until((checkout.folder / "hangs").exists, running)
    os.killpg(running.pid, signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode in (2, 130, -signal.SIGINT), err
    said = "demo: stopped; what was set up stays, and make demo goes on with the rest"
    assert said in err.splitlines()
    assert DEMO in checkout.logged()
    assert checkout.make("demo", python)[0] == [DEMO, *REST, PLUGIN]
