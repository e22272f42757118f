"""What pages are made of: texts that stay texts, data that comes back, and a policy that holds."""

from __future__ import annotations

import http.server
import json
import threading
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


#: What would do harm on a page without a policy: writes into the title, or asks.
HARM = (
    "<script>document.title += 1</script><script src='{0}/a.js'></script>"
    "<p id='p' onclick='document.title += 2'>p</p>"
    "<img src='data:,' onerror='document.title += 3'>"
    "<img src='{0}/b.png'><link rel='stylesheet' href='{0}/c.css'>"
    "<style>h1 {{ color: rgb(9, 9, 9) }}</style><p id='q' style='color: rgb(9, 9, 9)'>q</p>"
    "<iframe src='{0}/d.html'></iframe><object data='{0}/e.svg'></object>"
)


def colour(browser: Browser, selector: str) -> str:
    return browser.one(selector).value_of_css_property("color")


@pytest.mark.slow
def test_pages_run_their_own_scripts_and_nothing_else(tmp_path: Path):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Requests)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    code = HARM.format(f"http://127.0.0.1:{server.server_port}")
    values = [NASTY, {"a": NASTY[0]}]
    good = page.head("title", scripts=[SHOW]) + "<p id='shown'></p>"
    good += "".join(page.data("block", value) for value in values) + page.table([{"<b>": NASTY[0]}])
    own, bad, bare = (tmp_path / name for name in ("own.html", "bad.html", "bare.html"))
    own.write_text(good + page.TAIL, "utf-8")
    bad.write_text(good + code + page.TAIL, "utf-8")
    bare.write_text("<!DOCTYPE html><title>title</title><h1>h</h1>" + code, "utf-8")
    with chromium() as browser:
        browser.open(own)
        assert json.loads(browser.texts("#shown")[0]) == values
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
        assert json.loads(browser.texts("#shown")[0]) == values
    server.shutdown()
    server.server_close()
