"""Where the shell scripts of training lie, their environment, and a kill in the middle of one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from support.commands import ROOT, wait_until

SCRIPTS = ROOT / "scripts"
ENV = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHON": sys.executable}


def cut_short(command: list[str], made: Path) -> str:
    """Kill a recipe as soon as it has made something, give it again, and return what it says."""
    process = subprocess.Popen(command, env=ENV, stderr=subprocess.DEVNULL, start_new_session=True)
    wait_until(lambda: list(made.parent.glob(made.name)), process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    result = subprocess.run(command, env=ENV, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr
