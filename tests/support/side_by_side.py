"""fairseq-generate and fairseq-interactive many times in one process, with or without the plugin.

It imports nothing of the package, so that a process without it runs fairseq as it is.
"""

import contextlib
import contextvars
import copy
import importlib
import io
import itertools
import json
import logging
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.dataclass import utils
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

#: Lines of the commands' output that belong to a sentence; W, a time, is not compared.
LINE = re.compile(r"([A-Z])-(\d+)(?:_\d+)?\t(.*)")


def run_cases(asked: Path, answers: Path, with_plugin: bool) -> None:
    """Run the cases of a file: a command, words, choices of more; write what comes of each."""
    if with_plugin:
        importlib.import_module("fairseq_paradec")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    utils.compose = Composer(utils.compose)
    found = {}
    for command, words, choices in json.loads(asked.read_text("utf-8")):
        for chosen, outcome in run_choices(command, words, choices):
            found[json.dumps([command, [*words, *chosen]])] = outcome
    answers.write_text(json.dumps(found), encoding="utf-8")


def run_choices(
    command: str, words: Sequence[str], choices: Sequence[Sequence[str]]
) -> Iterator[tuple[Sequence[str], dict[str, Any]]]:
    """Run a command beside each of some choices of more words; yield what comes of each.

    What changes nothing together changes nothing alone; else each half is tried.
    """
    outcome = run_case(command, [*words, *itertools.chain(*choices)])
    if len(choices) == 1 or outcome == run_case(command, words):
        yield from ((chosen, outcome) for chosen in choices)
        return
    middle = len(choices) // 2
    for half in (choices[:middle], choices[middle:]):
        yield from run_choices(command, words, half)


class Composer:
    """hydra's ``compose``, which takes half a second, from the last result for the same parts.

    What differs is set as hydra sets it. The first time this is compared with hydra's own result.
    """

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original, self._parser = original, OverridesParser.create()
        self._made: dict[tuple[str, ...], tuple[Sequence[str], Any]] = {}
        self._checked = False

    def __call__(self, name: str, overrides: Sequence[str], strict: bool) -> Any:
        """Return what ``compose`` returns."""
        parts = tuple(one.split("=")[0] if "." in one else one for one in overrides)
        if parts not in self._made:
            self._made[parts] = overrides, self._original(name, overrides=overrides, strict=strict)
        before, made = self._made[parts]
        made = copy.deepcopy(made)
        changed = [new for old, new in zip(before, overrides, strict=True) if old != new]
        for one in self._parser.parse_overrides(changed):
            OmegaConf.update(made, one.key_or_group, one.value(), merge=True, force_add=True)
        if changed and not self._checked:
            assert made == self._original(name, overrides=overrides, strict=strict)
            self._checked = True
        return made


def run_case(command: str, words: Sequence[str]) -> dict[str, Any]:
    """Run one command as a process of its own would; return its lines, or its error.

    Each case has the random numbers of a new process, and forgets what the one before was given.
    """
    module = importlib.import_module(command.replace("fairseq-", "fairseq_cli."))
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    printed, errors, error = io.StringIO(), io.StringIO(), None
    before, sys.argv = sys.argv, [command, *words]
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
            contextvars.copy_context().run(module.cli_main)
    except (Exception, SystemExit) as raised:
        said = str(raised)
        if isinstance(raised, SystemExit):  # argparse prints its usage before
            said = errors.getvalue().rpartition("error: ")[2]
        error = [type(raised).__name__, " ".join(said.split())]
    finally:
        sys.argv = before
    text = printed.getvalue()
    if "--results-path" in words:
        folder = Path(words[len(words) - 1 - words[::-1].index("--results-path") + 1])
        for file in sorted(folder.glob("generate-*.txt")):
            text += "in a file\n" + file.read_text("utf-8")
            file.unlink()
    return {"error": error, "lines": lines_of(text)}


def lines_of(text: str) -> dict[str, list[str]]:
    """Return the lines of each sentence, by its number, and the score under ``score``."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        match = LINE.fullmatch(line)
        if match and match[1] != "W":
            found.setdefault(match[2], []).append(f"{match[1]}\t{match[3]}")
        elif line.startswith("Generate "):
            found["score"] = [line.split(": ", 1)[1]]
        elif line == "in a file":
            found["file"] = []
    return found
