"""What pages are made of: texts that stay texts, data that comes back, and a policy that holds."""

from __future__ import annotations

import http.server
import json
import threading
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support.browser import Browser, chromium

from fairseq_paradec.analysis import page

#: Texts that would end an element, begin a comment or an entity, or turn the line's direction.
NASTY = [
    "</script><script>document.title = 'run'</script>",
    "<!-- <script>",
    "]]>",
    "\"double\" 'single' `back` \\ \\u003c &lt; &amp;",
    "\u2028 \u2029 \u202e \x00 \x1b[31m",
    "日本語 العربية 𝔘 e\u0301",
]


class Cells(HTMLParser):
    """What a table says: the texts of its rows' cells, and the classes of the cells."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.classes: list[list[str | None]] = []
        self.labels: list[str | None] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
            self.classes.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self.classes[-1].append(dict(attrs).get("class"))
        elif tag == "div":
            self.labels.append(dict(attrs).get("aria-label"))

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip("\n")


# ---- pure --------------------------------------------------------------------------------------


def test_text_is_escaped_and_what_would_command_is_spelled_out():
    assert page.text('<a href="x">\'&') == "&lt;a href=&quot;x&quot;&gt;&#x27;&amp;"
    assert page.text("a\x1bb\u202ec") == "a\\x1bb\\u202ec"
    assert page.text(1.5) == "1.5"


def test_data_is_the_value_and_ends_nothing():
    block = page.data("a&b", NASTY)
    assert block.startswith('<script type="application/json" class="a&amp;b">')
    inside = block[block.index(">") + 1 : -len("</script>\n")]
    assert json.loads(inside) == NASTY
    assert not set("<\u2028\u2029") & set(inside)
    with pytest.raises(ValueError, match="not JSON compliant"):
        page.data("a", float("nan"))


def test_table_cells_and_which_of_them_are_numbers():
    rows = [
        {"name": "<b>", "count": 3, "spread": "1.2x (1.1-1.3)", "mixed": "7 or so", "state": True},
        {"name": "9", "count": "-", "spread": "+0.5", "mixed": "seven", "state": None},
    ]
    found = Cells(page.table(rows, 'a "table"'))
    assert found.rows == [
        ["name", "count", "spread", "mixed", "state"],
        ["<b>", "3", "1.2x (1.1-1.3)", "7 or so", "yes"],
        ["9", "-", "+0.5", "seven", "not run"],
    ]
    assert found.classes == [[None, "number", "number", None, None]] * 3
    assert found.labels == ['a "table"']


def test_picture_is_its_svg_and_its_description():
    part = page.picture(b"<svg/>", 'a "picture"')
    assert part == '<img src="data:image/svg+xml;base64,PHN2Zy8+" alt="a &quot;picture&quot;">\n'


def test_head_names_page_and_refuses_a_script_that_would_end_itself():
    begin = page.head("A & <B>")
    assert begin.startswith(page.MARK) and "<title>A &amp; &lt;B&gt;</title>" in begin
    assert "script-src 'none'" in begin and "<script" not in begin
    with pytest.raises(ValueError, match="may not hold </script"):
        page.head("t", scripts=["let a = '</SCRIPT>';"])


# ---- in a browser ------------------------------------------------------------------------------

SHOW = """
const blocks = [...document.querySelectorAll("script.block")];
document.querySelector("#shown").textContent = JSON.stringify(
  blocks.map((block) => JSON.parse(block.textContent)));
document.querySelector("#shown").style.color = "rgb(1, 2, 3)";
"""


class Requests(http.server.BaseHTTPRequestHandler):
    """Notes what it is asked for."""

    asked: list[str] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(404)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


def harm(host: str) -> str:
    """Return what would do harm on a page without a policy: writes into the title, or asks."""
    return (
        f"<script>document.title += 1</script><script src='{host}/a.js'></script>"
        "<p id='p' onclick='document.title += 2'>p</p>"
        "<img src='data:,' onerror='document.title += 3'>"
        f"<img src='{host}/b.png'><link rel='stylesheet' href='{host}/c.css'>"
        "<style>h1 { color: rgb(9, 9, 9) }</style><p id='q' style='color: rgb(9, 9, 9)'>q</p>"
        f"<iframe src='{host}/d.html'></iframe><object data='{host}/e.svg'></object>"
    )


def shown(browser: Browser) -> Any:
    """Return what the page's own script read from its data."""
    return json.loads(browser.texts("#shown")[0])


def colour(browser: Browser, selector: str) -> str:
    """Return an element's colour."""
    return browser.one(selector).value_of_css_property("color")


@pytest.mark.slow
def test_pages_run_their_own_scripts_and_nothing_else(tmp_path: Path):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Requests)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    host = f"http://127.0.0.1:{server.server_port}"
    begin = page.head("title", [".own { color: rgb(4, 5, 6); }"], [SHOW])
    good = begin + "<p id='shown' class='own'></p>" + page.data("block", NASTY)
    good += page.data("block", {"a": NASTY[0]}) + page.table([{"<b>": NASTY[0]}]) + page.TAIL
    own, bad, bare = (tmp_path / name for name in ("own.html", "bad.html", "bare.html"))
    own.write_text(good, "utf-8")
    code = harm(host)
    bad.write_text(good.replace(page.TAIL, code + page.TAIL), "utf-8")
    bare.write_text("<!DOCTYPE html><title>title</title><h1>h</h1>" + code, "utf-8")
    with chromium() as browser:
        browser.open(own)
        assert shown(browser) == [NASTY, {"a": NASTY[0]}]
        assert colour(browser, "#shown") == "rgba(1, 2, 3, 1)"  # set by the script
        assert browser.texts("tbody th") == [NASTY[0]]
        browser.check_quiet()

        # The same code does its harm where there is no policy, so that the test can fail.
        browser.open(bare)
        browser.one("#p").click()
        assert set(browser.driver.title) >= set("123")
        assert colour(browser, "#q") == colour(browser, "h1") == "rgba(9, 9, 9, 1)"
        names = {f"/{name}" for name in ("a.js", "b.png", "c.css", "d.html", "e.svg")}
        assert names <= set(Requests.asked)

        Requests.asked.clear()
        browser.open(bad)
        browser.one("#p").click()
        assert browser.driver.title == "title"
        assert "rgba(9, 9, 9, 1)" not in (colour(browser, "#q"), colour(browser, "h1"))
        assert Requests.asked == []
        assert shown(browser) == [NASTY, {"a": NASTY[0]}]
        said = "\n".join(browser.console())
        for directive in ("script-src", "img-src", "style-src", "default-src"):
            assert directive in said, said
    server.shutdown()
    server.server_close()
