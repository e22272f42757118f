"""`make docs` builds the documentation as a site, strictly; pages need no network."""

import functools
import html
import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import mutants
import pytest
from selenium.webdriver.support.ui import WebDriverWait
from support import commands
from support.browser import chromium
from support.commands import ROOT

pytestmark = pytest.mark.slow


def make(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `make docs` of a copy; this environment is set up, whatever the age of the copy."""
    words = ["make", "-o", f"{sys.prefix}/.set-up", "docs", f"VENV={sys.prefix}"]
    env = commands.environment()
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs") / "checkout"
    unwanted = shutil.ignore_patterns("__pycache__", "lib", "*.pt")
    for name in (
        "fairseq_paradec",
        "tools",
        "tests",
        "docs",
        "results",
        "scripts",
        "data-bin/demo.en-de",
    ):
        shutil.copytree(ROOT / name, folder / name, ignore=unwanted)
    for path in ROOT.iterdir():
        if path.is_file() and path.name != ".git":
            shutil.copy(path, folder)
    return folder


@pytest.fixture(scope="module")
def site(checkout):
    commands.succeed(make(checkout))
    return checkout / "site" / "html"


def page_of(site: Path, address: str) -> str:
    """The HTML of a page."""
    return (site / address / "index.html").read_text("utf-8")


def test_every_page_is_in_the_site_and_is_found_by_search(site):
    assert all(page_of(site, f"docs/{page.stem}") for page in (ROOT / "docs").glob("*.md"))
    found = json.loads((site / "search" / "search_index.json").read_text("utf-8"))["docs"]
    assert any("self_draft" in one["text"] and one["location"].startswith("docs/") for one in found)


def test_every_result_and_mutant_is_in_the_site_and_links_lead_there(site):
    results = {path.stem for path in (ROOT / "results").glob("*.json")} - {"summary"}
    assert all(page_of(site, f"results/{name}") for name in results)
    assert re.search(r'href="?(\.\./)*results/benchmark-[\w-]+/', page_of(site, "RESULTS"))
    assert page_of(site, "docs/mutants").count("<tr>") > len(mutants.MUTANTS)


def test_the_page_of_python_shows_types(site):
    text = html.unescape(re.sub(r"<[^>]+>", "", page_of(site, "docs/api")))
    assert re.search(
        r"translate\(\s*sentences: Iterable\[str\], \*\*options: Any\s*\) -> list", text
    )


def test_pages_load_nothing_from_elsewhere(site):
    for page in ("", "docs/api", "results"):
        text = page_of(site, page)
        loaded = re.findall(r"<(?:script|img|iframe)[^>]* src=\"?(http[^\s\">]*)", text)
        loaded += re.findall(r"<link[^>]* rel=\"?stylesheet[^>]* href=\"?(http[^\s\">]*)", text)
        assert not loaded


def test_a_browser_searches_and_asks_nobody_else(site):
    """Also on a telephone's width, where nothing but tables and code is wider than the page."""
    answer = functools.partial(http.server.SimpleHTTPRequestHandler, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), answer) as server, chromium() as browser:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        browser.driver.get("about:blank")
        browser.requests()  # those of Chromium's own first page are forgotten
        browser.driver.get(f"{address}?q=self_draft")
        found = WebDriverWait(browser.driver, 30).until(
            lambda _: browser.all("a.md-search-result__link")
        )
        assert found
        assert [one for one in browser.requests() if not one.startswith((address, "data:"))] == []
        browser.driver.set_window_size(500, 900)  # Chromium has no narrower window
        for page in ("", "docs/your-model/", "docs/api/", "RESULTS/"):
            browser.driver.get(address + page)
            script = "return [document.documentElement.scrollWidth, window.innerWidth]"
            width, room = browser.driver.execute_script(script)
            assert width <= room, page
        server.shutdown()


@pytest.mark.parametrize("link", ["#no-such-heading", "other.md", "report.md"])
def test_a_link_to_nothing_is_refused(link, tmp_path):
    """By the settings of the site, of one page: a link to the page itself is none to nothing."""
    settings = (ROOT / "mkdocs.yml").read_text("utf-8")
    for key in ("nav:", "not_in_nav:", "extra_css:", "docs_dir:", "site_dir:"):
        settings = re.sub(rf"(?m)^{key}.*\n(?:[ ].*\n|\n)*", "", settings)
    (tmp_path / "mkdocs.yml").write_text(settings, "utf-8")
    page = tmp_path / "docs" / "report.md"
    page.parent.mkdir()
    page.write_text(f"# Report\n\n[a link]({link})\n", "utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    env = commands.environment()
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    refused = f"contains a link '{link}', but" in done.stderr
    assert (done.returncode != 0) == refused == (link != "report.md"), done.stderr
