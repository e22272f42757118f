"""Translations by fairseq-generate, a command that runs all of fairseq's tasks and flags."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ...errors import UsageError
from ...images import TASK, holds_images
from .judge import target_language
from .text import plain_text, text_language


def translate(data: str, path: str, subset: str, flags: Sequence[str]) -> list[str]:
    """Return fairseq-generate's best hypotheses as plain text, in the order of the data.

    Raises:
        UsageError: fairseq-generate fails.
    """
    command = [sys.executable, "-P", "-m", "fairseq_cli.generate", data, "--path", path]
    command += ["--user-dir", str(Path(__file__).resolve().parents[2]), "--gen-subset", subset]
    # fairseq-generate uses its own settings, not the checkpoint's.
    command += ["--task", TASK] if holds_images(data) else []
    command += flags
    result = subprocess.run(command, capture_output=True, encoding="utf-8")
    if result.returncode != 0:
        said = result.stderr.strip().split("\n")[-1]
        if said.startswith("error: "):
            raise UsageError(f"fairseq-generate: {said[7:]}")
        print(result.stderr[-4000:], file=sys.stderr)
        raise UsageError(f"fairseq-generate failed with status {result.returncode}")
    by_number: dict[int, str] = {}
    # Not splitlines(): a translation may hold other characters that end a line.
    for line in result.stdout.split("\n"):
        if line.startswith("H-"):
            number, _, text = line[2:].split("\t", 2)
            by_number.setdefault(int(number), text)  # of several (--nbest) the first is the best
    language = text_language(data, target_language(data))
    return [plain_text(by_number[number].split(), language) for number in sorted(by_number)]
