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
from fairseq_paradec.errors import UsageError
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
    assert gallery.problems(gallery.PAGE, ["gad"]) == []
    traces = json.loads((gallery.PAGE.with_suffix("") / "traces.json").read_text("utf-8"))
    assert [*traces] == [*filter(None, map(gallery.name_of, gallery.commands(gallery.PAGE)))]


def test_what_is_wrong_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page, pictures = tmp_path / "gallery.md", tmp_path / "gallery"
    shutil.copytree(gallery.PAGE.with_suffix(""), pictures)
    shutil.copy(gallery.PAGE, page)
    assert gallery.problems(page, []) == []
    (pictures / "order.svg").unlink()
    (pictures / "old.svg").write_text("x" * 300_001)
    with open(page, "a") as file:
        file.write("![Another](gallery/more.svg)\n")
    traces = json.loads((pictures / "traces.json").read_text("utf-8"))
    monkeypatch.setattr(gallery, "decode", lambda name, page: traces[name] | {"passes": 7})
    assert gallery.problems(page, ["gad"]) == [
        f"{page} shows more.svg without its command",
        f"{pictures}/more.svg is missing",
        f"{pictures}/order.svg is missing",
        f"{pictures}/old.svg is on no page",
        f"{pictures}/old.svg has 300001 bytes",
        "the trace of gad differs",
    ]


def test_a_command_that_fails_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    with pytest.raises(UsageError, match="status 2 of: paradec trace no.jsonl"):
        gallery.execute(["paradec", "trace", "no.jsonl"], tmp_path)
    assert "no.jsonl" in capfd.readouterr().err
