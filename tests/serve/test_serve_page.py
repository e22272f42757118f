"""The page of ``paradec serve`` in Chromium: it translates while one types, and shows passes."""

import re

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait
from support.browser import chromium
from support.commands import DEMO, run_python, succeed
from support.server import serving

from fairseq_paradec.serve.settings import ServerSettings

pytestmark = pytest.mark.slow

FIRST = "A dog runs across the grass."
THEN = "A dog runs across the beach."


@pytest.fixture(scope="module")
def client():
    with serving(ServerSettings(models=(str(DEMO),), port=0, decoding="greedy")) as one:
        yield one


@pytest.fixture(scope="module")
def browser():
    with chromium() as one:
        yield one


def show(browser, client, width=1400, scheme="light"):
    """Open the page at a width in a theme, and wait until all is drawn."""
    cdp = browser.driver.execute_cdp_cmd
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    cdp("Emulation.setEmulatedMedia", {"features": features})
    size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    cdp("Emulation.setDeviceMetricsOverride", size)
    browser.driver.get("about:blank")
    browser.console(), browser.requests()
    browser.driver.get(client.url)
    wait(browser, browser.one("#text").get_property("value"))


def wait(browser, text):
    """Wait until a text is translated, and both decoders have been compared on it."""
    done = "return document.body.dataset.done"
    WebDriverWait(browser.driver, 60).until(lambda driver: driver.execute_script(done) == text)


def write(browser, text):
    """Write a text into the box, as one does who types fast."""
    box = browser.one("#text")
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys(text)
    wait(browser, text)


def paste(browser, text):
    """Put a text into the box at once."""
    script = "text.value = arguments[0]; text.dispatchEvent(new Event('input'))"
    browser.driver.execute_script(script, text)
    wait(browser, text)


def tokens(browser, panel, state):
    return browser.texts(f"#{panel} .token.{state}")


def test_it_translates_while_one_types_with_the_last_translation_as_draft(browser, client):
    show(browser, client)
    write(browser, FIRST)
    assert browser.texts("#translation") == ["Ein Hund rennt \u00fcber das Gras."]
    paste(browser, THEN)
    assert browser.texts("#translation") == [client.translate(THEN)["translatedText"]]
    assert tokens(browser, "typing", "given")[:3] == ["Ein", "Hund", "rennt"]
    assert "Gras" in tokens(browser, "typing", "rejected")
    assert "of them from the last translation" in browser.one("#typing .numbers").text
    assert browser.console() == []
    asked = [one for one in browser.requests() if one.startswith("http")]
    assert asked and all(one.startswith(client.url) for one in asked)


def test_two_decoders_are_side_by_side(browser, client):
    show(browser, client)
    paste(browser, FIRST)
    left, right = browser.texts("#left .numbers")[0], browser.texts("#right .numbers")[0]
    steps = client.translate(FIRST, decoding="greedy")["passes"]
    assert left.startswith(f"{steps} passes, ") and left.endswith(" ms")
    assert right.startswith("1 pass, ")
    assert len(browser.all("#left .passes li")) == steps and len(browser.all("#right li")) == 1
    assert tokens(browser, "left", "own") == tokens(browser, "right", "accepted")
    browser.driver.execute_script("delete document.body.dataset.done")
    browser.one("#right select").send_keys("hgj")
    wait(browser, FIRST)
    used = client.translate(FIRST, decoding="hgj")["passes"]
    assert len(browser.all("#right .passes li")) == used != 1


def test_the_keyboard_reaches_every_token_and_says_what_is_known_of_it(browser, client):
    show(browser, client)
    paste(browser, FIRST)
    assert len(browser.all('#left .passes [tabindex="0"]')) == 1
    browser.one('#left .passes [tabindex="0"]').send_keys(Keys.ARROW_DOWN)
    active = browser.driver.switch_to.active_element
    assert active.text == "Hund" and active.accessible_name == "Hund, written by the model"
    active.send_keys(Keys.ENTER)
    told = browser.one("#left .told").text
    assert told.startswith("Hund, written by the model: probability 0.")
    assert "next best" in told and "nothing was drafted here" in told
    browser.all("#right .token")[1].click()
    told = browser.one("#right .told").text
    assert "the drafter wanted it, too; the drafter's own probability 0." in told


def test_what_is_written_from_right_to_left_is_shown_so(browser, client):
    show(browser, client)
    for text, way in ((FIRST, "ltr"), ("\u05e9\u05dc\u05d5\u05dd", "rtl")):
        paste(browser, text)
        assert browser.one("#text").value_of_css_property("direction") == way
    shown = browser.all("#translation, #typing .line, #left .line")
    assert len(shown) > 2 and all(one.get_attribute("dir") == "auto" for one in shown)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_it_fits_a_telephone_and_a_desk_in_both_themes(browser, client, width, scheme):
    show(browser, client, width, scheme)
    wide = "return document.documentElement.scrollWidth <= innerWidth"
    assert browser.driver.execute_script(wide)
    backs = {one: browser.one("body").value_of_css_property(one) for one in ("background-color",)}
    assert ("22, 22, 22" in backs["background-color"]) == (scheme == "dark")
    labelled = "return [...document.querySelectorAll('select, input, textarea')]"
    names = browser.driver.execute_script(f"{labelled}.filter((one) => one.checkVisibility())")
    assert names and all(one.accessible_name for one in names)


def test_what_goes_wrong_is_said(browser, client):
    show(browser, client)
    browser.driver.execute_script("document.getElementById('text').maxLength = 10 ** 6")
    script = "const t = document.getElementById('text'); t.value = 'a '.repeat(20000);"
    browser.driver.execute_script(f"{script} t.dispatchEvent(new Event('input'))")
    alert = browser.one("#wrong")
    WebDriverWait(browser.driver, 30).until(lambda driver: alert.is_displayed())
    assert "characters; allowed: 20000" in alert.text


def test_a_model_that_one_decoder_alone_fits_is_translated_by_it(browser, tmp_path):
    words = ["pack", str(DEMO), str(tmp_path / "model"), "--path", str(DEMO / "ibdecoder.pt")]
    codes = ["--tokenizer", "moses", "--bpe", "subword_nmt", "--bpe-codes", str(DEMO / "codes.bpe")]
    code = "import sys; from fairseq_paradec.cli.main import main; sys.exit(main(sys.argv[1:]))"
    succeed(run_python(code, *words, *codes))
    with serving(ServerSettings(models=(str(tmp_path / "model"),), port=0)) as one:
        assert one.get("/health").value["decoders"] == {"en-de": []}
        show(browser, one)
        for text in (FIRST, THEN):
            paste(browser, text)
            assert browser.texts("#translation") == [one.translate(text)["translatedText"]]
            assert re.match(r"\d+ passes, \d+ tokens$", browser.one("#typing .numbers").text)
        shown = [one.is_displayed() for one in browser.all("#wrong, #compared, #legend, select")]
        assert not any(shown) and browser.console() == []
