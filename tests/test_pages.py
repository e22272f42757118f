"""README and docs: short, with commands and links that exist; the gallery is what it says."""

import argparse
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from support.commands import ROOT

from fairseq_paradec.cli.main import COMMANDS, find
from tools.site import gallery

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
        module = find(words[1])
        parser = argparse.ArgumentParser(prog=line, exit_on_error=False)
        module.declare(parser)
        parser.parse_args(words[2:end])


def test_every_page_is_in_the_navigation_of_the_site():
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert [page.name for page in PAGES if f" {page.relative_to(ROOT)}\n" not in navigation] == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_paragraphs_have_at_most_four_lines(page: Path):
    """Of 100 characters, as the site and a repository's view show them; links take no room."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    parts = re.split(r"\n\s*\n|\n\s*(?=- |\d+\. )", text)  # an item of a list is one, too
    assert [part for part in parts if len(part) > 400 and not part.startswith(("|", "<"))] == []


# ---- the gallery -------------------------------------------------------------------------------


def test_gallery_is_whole_and_a_trace_is_still_the_same():
    assert gallery.problems(gallery.OUT, ["gad"]) == []


def test_what_is_wrong_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = tmp_path / "gallery"
    shutil.copytree(gallery.OUT, out)
    out.with_suffix(".md").write_text(gallery.page(out), "utf-8")
    assert gallery.problems(out, []) == []
    (out / "order.svg").unlink()
    (out / "old.svg").write_text("x" * 300_001)
    with open(out.with_suffix(".md"), "a") as file:
        file.write("More.\n")
    brief = json.loads((out / "traces.json").read_text("utf-8"))
    monkeypatch.setattr(gallery, "decode", lambda name, folder: brief[name] | {"passes": 7})
    assert gallery.problems(out, ["gad"]) == [
        f"{out}.md is not what make gallery writes",
        f"{out}/order.svg is missing",
        f"{out}/old.svg is on no page",
        f"{out}/old.svg has 300001 bytes",
        "the trace of gad differs",
    ]
