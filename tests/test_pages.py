"""README and docs: short, with commands and links that exist."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from pathlib import Path

import pytest
from support.commands import ROOT

from fairseq_paradec.cli.main import COMMANDS

PAGES = [ROOT / "README.md", ROOT / "RESULTS.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_first_page_is_short():
    assert (ROOT / "README.md").stat().st_size <= 9 * 1024


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_links_of_a_page(page: Path):
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"(?:^|`)paradec(?: |-)([a-z][a-z-]*)", text, re.MULTILINE)
    assert set(named) <= set(COMMANDS)
    for script in re.findall(r"(?<![\w/])(scripts/[\w./]+\.(?:sh|py|queue))\b", text):
        assert (ROOT / script).exists(), script
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert "://" in link or (page.parent / link).exists(), link
    # Its commands are parsed as typed; nothing is run.
    for line in re.findall(r"^paradec .*|(?<=\| )paradec .*", text, re.MULTILINE):
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|>")
        lexer.whitespace_split = True
        words = list(lexer)
        end = next((i for i, word in enumerate(words) if set(word) <= set("|>")), len(words))
        module = importlib.import_module(f"fairseq_paradec.cli.{words[1].replace('-', '_')}")
        parser = argparse.ArgumentParser(prog=line, exit_on_error=False)
        module.declare(parser)
        parser.parse_args(words[2:end])
