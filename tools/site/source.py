"""The site's source: the repository's pages in their folders, and a page of each result."""

import re
import shlex
import shutil
from collections.abc import Iterable
from pathlib import Path

from fairseq_paradec.lab.analysis.result_pages import bullets, page
from fairseq_paradec.lab.data.table import Result
from fairseq_paradec.lab.show.benchmark_plots import draw, draw_break_even

from . import ROOT
from .published import Results, read_results

#: Pages of the site, and what they load without a link.
PAGES = ("*.md", "docs/*.md", "results/README.md")
LOADED = ("docs/site.css", "results/*.json")

#: The list of results, whose head is committed.
LIST = "results/README.md"

LINK = re.compile(r"\]\(([^)#\s]+)")


def make(folder: Path) -> None:
    """Write the source of the site into a folder, which is replaced."""
    results = read_results(ROOT / "results")
    shutil.rmtree(folder, ignore_errors=True)
    names = {name for pattern in PAGES for name in _files(pattern)}
    linked = {name for pattern in LOADED for name in _files(pattern)}
    for name in names:
        text = (ROOT / name).read_text("utf-8")
        linked |= set(_linked_files(name, text)) - names
        if name == LIST:
            text += f"\n{list_of(results)}\n"
        _write(folder / name, turn_links(text, results))
    for name in linked:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    for name, result in results.items():
        picture = make_picture(result, folder / "results")
        text = page(result, None if picture is None else picture.name)
        _write(folder / "results" / f"{name}.md", f"{text}\n[{result.name}]({result.name})\n")


def make_picture(result: Result, folder: Path) -> Path | None:
    """Return a result's picture, which is drawn unless it lies in the folder; None: it has none."""
    base = folder / result.name
    words = shlex.split(result.content["command"])
    if result.kind == "benchmark":
        draw(result.content, base.with_suffix(".png"))
    elif words[1:3] == ["profile", "breakeven"] and "--plot" in words:
        draw_break_even(result.tables[0], result.content["title"], base.with_suffix(".svg"))
    pictures = (base.with_suffix(suffix) for suffix in (".png", ".svg"))
    return next((picture for picture in pictures if picture.is_file()), None)


def list_of(results: Results) -> str:
    """Return the list of all results' pages."""
    return bullets(
        f"[{result.content['title']}]({name}.md), {result.content['date']}"
        for name, result in results.items()
    )


def turn_links(text: str, results: Results) -> str:
    """Return a page whose links to results' files go to their pages instead."""

    def turned(match: re.Match[str]) -> str:
        return f"{match[1]}.md" if match[2] in results else match[0]

    return re.sub(r"(\]\((?:\.\./)*results/([\w.-]+))\.json(?=[)#])", turned, text)


def _files(pattern: str) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob(pattern))]


def _linked_files(name: str, text: str) -> Iterable[str]:
    """Yield the files of the checkout that a page links to or shows."""
    for link in LINK.findall(text):
        path = (ROOT / name).parent / link
        if "://" not in link and path.is_file():
            yield path.resolve().relative_to(ROOT).as_posix()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
