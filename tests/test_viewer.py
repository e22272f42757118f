"""The interactive page of traces: its data, and what Chromium shows of it.

What the page shows is compared with numbers that are worked out here, from the traces' raw JSON.
"""

from __future__ import annotations

import itertools
import json
import math
import re

import pytest
from selenium.webdriver import ActionChains, Keys
from support.browser import chromium
from support.builders import DEMO, Limits, decode
from support.trace_records import FACTS, FROM_BOTH_ENDS, one_pass, record, written

from fairseq_paradec.analysis import page, viewer
from fairseq_paradec.analysis.trace_view import EOS, MEANINGS, ORIGINS, read_sentence
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.measure import loading

EVIL = "</script><script>alert(1)</script><!--&amp;'\"\\n\u2028\u202e{7}"


def block(sentences, records=None, *more):
    """The data of a part of the page."""
    part = viewer.sentence(sentences, records, *more)
    found = re.fullmatch(r'<script type="application/json" class="sentence">(.*)</script>\n', part)
    assert found is not None  # one line, one script
    assert "<" not in found[1] and "\u2028" not in found[1]
    return json.loads(found[1])


def block_of(*args, **more):
    one = record(*args, **more)
    return block([read_sentence(one, "sentence 3")], [one])


# ---- the data ----------------------------------------------------------------------------------


def test_a_block_holds_what_is_known():
    passes = (
        one_pass(0, "", "q", 0, 1),
        one_pass(1, "a b", "a z c", 2, 3, **FACTS | {"log_probs": [-0.25, -1.5, -0.123456789]}),
    )
    flags = {"block_size": 2, "adaptive_block": True, "drafter_shortlist": None, "x": False}
    data = block_of("q a b c", *passes, flags=flags | {"accept_margin": "inf"})
    words, (panel,) = data["words"], data["panels"]

    def told(numbers):
        return [None if n is None else words[n] for n in numbers]

    assert (data["name"], told(data["source"]), data["missing"]) == (
        "sentence 3", ["s1", "s2", EOS], [],
    )  # fmt: skip
    assert told(panel["output"]) == ["q", "a", "b", "c"] and len(set(words)) == len(words)
    assert panel["flags"] == ["--block-size 2", "--adaptive-block", "--accept-margin inf"]
    assert panel["numbers"] == {
        "tokens": 4, "passes": 2, "tokens per pass": "2.00", "drafted": 2, "accepted": 2,
        "rescued": 1, "promise": "not recorded", "engine": "not recorded",
    }  # fmt: skip
    states = list(MEANINGS)
    origins = panel["origins"]
    assert origins["pass"] == [1, 2, 2, 2]
    assert [states[n] for n in origins["by"]] == ["bonus", "accepted", "rescued", "bonus"]
    assert origins["log_prob"] == [None, -0.25, False, -0.123457]  # False: was not allowed
    assert origins["rank"] == [None, 0, 39, None]
    assert told(origins["runner_up"]) == [None, "x", "z", "y"]
    assert origins["runner_up_log_prob"] == [None, -2.0, -1.5, -3.0]
    assert "direction" not in origins  # nothing is known of any token
    draft, verifier = panel["passes"][1]["draft"], panel["passes"][1]["verifier"]
    assert (told(draft["token"]), draft["position"]) == (["a", "b"], [1, 2])
    assert [states[n] for n in draft["state"]] == ["accepted", "rescued"]
    assert (told(verifier["token"]), verifier["position"]) == (["a", "z", "c"], [1, 2, 3])
    assert [states[n] for n in verifier["state"]] == ["accepted", "discarded", "bonus"]
    assert panel["steps"] == [{"pass": 1, "position": [0]}, {"pass": 2, "position": [1, 2, 3]}]
    assert panel["graph"] is None and panel["no_graph"] == ""


def test_steps_of_blocks_end_with_the_pass_that_accepted_them():
    passes = (
        one_pass(0, "", "den", 0, 1),
        one_pass(1, "Ang war zu", "Ein war in x", 2, 3),
        one_pass(4, "", "</s>", 0, 1),
    )
    data = block_of("den Ang war in </s>", *passes, decoding="blockwise")
    assert data["panels"][0]["steps"] == [
        {"pass": 2, "position": [0, 1, 2]},
        {"pass": 2, "position": [3]},
        {"pass": 3, "position": [4]},
    ]
    ends = block_of("A B C D </s>", *FROM_BOTH_ENDS, written(4, [EOS], [4]))["panels"][0]
    assert [step["position"] for step in ends["steps"]] == [[0, 3], [1, 2], [4]]
    assert ends["reordered"] and not data["panels"][0]["reordered"]


@pytest.mark.parametrize(
    ("line", "rtl"),
    [
        ("מאזניים גוף", True),
        ("▁السلام عليكم", True),
        ("12 ، . 7 مرحبا", True),
        ("BBC مرحبا", False),
        ("中文 。", False),
        ("12 .", False),
        ("", False),
    ],
)
def test_a_line_reads_as_its_first_letter_says(line, rtl):
    data = block_of(line, one_pass(0, "", line, 0, len(line.split())), source=line.split())
    assert (data["rtl"], data["panels"][0]["rtl"]) == (rtl, rtl)


def test_older_traces_have_no_graph_and_say_why():
    panel = block_of(*GRAPH, decoding="pj")["panels"][0]
    assert panel["graph"]["final_pass"] == [1, 1, 2] and panel["no_graph"] == ""
    old = {name: value for name, value in GRAPH[1].items() if name != "runner_up"}
    panel = block_of(GRAPH[0], old, GRAPH[2], decoding="pj")["panels"][0]
    assert panel["graph"] is None and "'runner_up' is missing" in panel["no_graph"]


# ---- in a browser ------------------------------------------------------------------------------

#: Passes of a Jacobi decoder: ``a`` is right at once, ``b`` too and stays; ``</s>`` comes second.
GRAPH = (
    "a b </s>",
    one_pass(0, "p p p", "a b x", 0, 1, log_probs=[-0.25, -0.5, -0.75], runner_up=["r", "s", None],
             runner_up_log_probs=[-2.0, -3.0, None]),
    one_pass(1, "b x", "b </s>", 1, 2, log_probs=[-0.125, -1.0], runner_up=["t", "u"],
             runner_up_log_probs=[-4.0, -5.0]),
)  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    with chromium() as one:
        yield one


def open_page(browser, path, *parts, fragment=""):
    """Open a page made of parts, and see that it is quiet when the test is over."""
    path.write_text(viewer.head("Traces") + "".join(parts) + page.TAIL, encoding="utf-8")
    browser.open(path)
    if fragment:
        browser.driver.get(path.resolve().as_uri() + fragment)
    return browser


def part_of(*records, name="sentence 3"):
    return viewer.sentence([read_sentence(one, name) for one in records], list(records))


def choose(browser, group, text):
    """Click on a radio button by its text."""
    (label,) = [one for one in browser.all(f".{group} label") if one.text == text]
    label.click()


def set_pass(browser, number, then=""):
    slider = browser.one("input.pass")
    return browser.driver.execute_script(
        "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'));" + then,
        slider, number,
    )  # fmt: skip


#: Focus every token that a selector finds, and read the tip.
READ = """
const told = [];
for (const token of document.querySelectorAll(arguments[0])) {
  token.focus();
  const tip = document.getElementById("tip");
  const facts = tip.hidden ? {} : Object.fromEntries([...tip.querySelectorAll("[data-fact]")].map(
    (one) => [one.dataset.fact, one.textContent]));
  if (token.getAttribute("aria-describedby") !== "tip") facts.error = "not described";
  told.push(facts);
  if (arguments[1]) Object.assign(facts, { ...token.dataset, word: token.textContent });
}
return told;
"""


#: Of every token, whether its text can be seen.
VISIBLE = """
return [...document.querySelectorAll(arguments[0])].map((box) =>
  getComputedStyle(box.firstChild).visibility === "visible" ? "visible" : "");
"""


def press(browser, key, held=None):
    """Press an arrow key where the focus is; returns whether the page has taken it for itself."""
    return browser.driver.execute_script(
        "return !document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key:"
        " arguments[0], bubbles: true, cancelable: true, [arguments[1]]: true }))",
        key, held,
    )  # fmt: skip


def tips(browser, selector, with_data=False):
    return browser.driver.execute_script(READ, selector, with_data)


def tip(browser):
    """What the tip says now; None if there is none."""
    if not browser.one("#tip").is_displayed():
        return None
    return {one.get_attribute("data-fact"): one.text for one in browser.all("#tip [data-fact]")}


def number(text):
    """Read a probability of the page: both numbers must agree."""
    share, log_prob = re.fullmatch(r"(\S+) \(log (\S+)\)", text).groups()
    assert float(share) == pytest.approx(math.exp(float(log_prob)), rel=1e-3, abs=1e-4)
    return float(log_prob)


def truth(one):
    """Of each token of an output, what its record says; written anew, from docs/trace.md."""
    found = {}
    for count, entry in enumerate(one["trace"], start=1):
        if "positions" in entry:
            for i, place in enumerate(entry["positions"]):
                found[place] = {
                    "pass": count, "by": f"written by direction {entry['directions'][i]}",
                    "probability": entry["log_probs"][i], "runner_up": entry["runner_up"][i],
                }  # fmt: skip
            continue
        for i in range(min(entry["num_committed"], len(one["output"]) - entry["start"])):
            own = entry["verifier"][i]
            facts = {"pass": count, "runner_up": entry["runner_up"][i]}
            facts["probability"] = entry["log_probs"][i]
            if i < entry["num_accepted"]:
                facts |= {"by": "accepted", "rank": entry["draft_ranks"][i]}
                if entry["draft"][i] != own:
                    facts |= {"by": "rescued", "runner_up": own}
                facts["probability"] = entry["draft_log_probs"][i]
            else:
                facts["by"] = "bifurcation" if i < len(entry["draft"]) else "bonus"
            found[entry["start"] + i] = facts
    return [found[place] for place in range(len(one["output"]))]


def check_told(told, one):
    """Compare tips, one per token of the output, with the record."""
    facts = truth(one)
    assert len(told) == len(facts) == len(one["output"])
    for place, (tip, fact) in enumerate(zip(told, facts, strict=True)):
        assert tip["token"] == one["output"][place]
        assert (tip["position"], tip["pass"]) == (str(place), str(fact["pass"]))
        assert tip["by"] == ORIGINS.get(fact["by"], fact["by"])
        assert number(tip["probability"]) == pytest.approx(fact["probability"], abs=6e-5)
        assert number(tip["probability"]) == pytest.approx(
            one["positional_scores"][place], abs=2e-4
        )
        assert tip.get("runner_up") == fact["runner_up"]
        assert tip.get("rank") == (None if "rank" not in fact else str(fact["rank"]))


WAYS = {
    "greedy": {"decoding": "greedy"},
    "pj": {"decoding": "pj"},
    "hgj": {"decoding": "hgj", "block_size": 4},
    "gad": {"decoding": "gad", "drafter_path": str(DEMO / "drafter.pt")},
    "gad_pp": {"decoding": "gad_pp", "drafter_path": str(DEMO / "drafter.pt"), "accept_margin": 3},
    "blockwise": {"decoding": "blockwise", "drafter_path": str(DEMO / "heads.pt")},
    "ibdecoder": {"decoding": "multiword_beam", "beam": 2},
}
IDS = (82, 7, 8)


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Traces of the demo's models, by method: path and records by sentence."""
    folder = tmp_path_factory.mktemp("traces")
    found = {}
    for model in ("model", "ibdecoder"):
        models, task = loading.load(str(DEMO), str(DEMO / f"{model}.pt"))
        task.load_dataset("test")
        dataset = task.dataset("test")
        sample = dataset.collater([dataset[i] for i in IDS])
        for name, flags in WAYS.items():
            if (name == "ibdecoder") == (model == "ibdecoder"):
                path = folder / f"{name}.jsonl"
                decode(task, models, sample, Limits(max_len_b=50), trace_file=str(path), **flags)
                lines = path.read_text(encoding="utf-8").splitlines()
                found[name] = path, {one["id"]: one for one in map(json.loads, lines)}
    return found


@pytest.fixture(scope="module")
def demo_page(traces, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    files = [str(file) for file, _ in traces.values()]
    assert paradec(["trace", *files, "--html", str(path), "--color", "never"]) == 0
    return path


def ids_on(browser):
    return [int(text.removeprefix("sentence ")) for text in browser.texts(".sentences option")]


@pytest.mark.slow
def test_every_token_is_told_as_its_trace_has_it(browser, demo_page, traces):
    """All methods of the demo: token, pass, origin, probability, rank and runner-up."""
    browser.open(demo_page)
    order = ids_on(browser)
    assert sorted(order) == sorted(IDS)
    origins = set()
    for count, which in enumerate(order, start=1):
        assert browser.one(".head .name").text == f"sentence {which}"
        assert browser.one(".count").text == f"{count} of 3 sentences"
        for i, (_, records) in enumerate(traces.values()):
            one = records[which]
            panel = f'[data-panel="{i}"]'
            assert browser.one(f"section{panel} .decoding").text == one["decoding"]
            assert browser.texts(f"section{panel} .box .word") == one["output"]
            told = tips(browser, f"section{panel} .box")
            check_told(told, one)
            origins |= {tip["by"] for tip in told}
            numbers = dict(
                zip(
                    browser.texts(f"section{panel} dt"), browser.texts(f"section{panel} dd"),
                    strict=True,
                )
            )  # fmt: skip
            assert numbers["tokens"] == str(one["num_tokens"])
            assert numbers["passes"] == str(one["decoder_passes"])
            assert numbers["tokens per pass"] == f"{one['num_tokens'] / one['decoder_passes']:.2f}"
            if "positions" not in one["trace"][0]:
                rescued = sum(tip["by"] == ORIGINS["rescued"] for tip in told)
                drafted = rescued + sum(tip["by"] == ORIGINS["accepted"] for tip in told)
                assert (numbers["accepted"], numbers["rescued"]) == (str(drafted), str(rescued))
        assert browser.texts(".source .word") == records[which]["source"]
        if count < 3:
            browser.one(".onward").click()
    assert not browser.one(".onward").is_enabled() and browser.one(".back").is_enabled()
    directions = {f"written by direction {name}" for name in ("1→", "2←")}
    assert origins == set(ORIGINS.values()) | directions
    browser.check_quiet()


def cells_of(shown, reordered):
    """Yield a pass's cells as the page has them: what was there before, then D above V."""
    if reordered:
        yield from shown.verifier
        return
    yield from shown.verifier[: shown.start]
    own = [line[shown.start :] for line in (shown.draft, shown.verifier)]
    for pair in itertools.zip_longest(*own):
        yield from filter(None, pair)


@pytest.mark.slow
def test_passes_are_shown_as_the_terminal_shows_them(browser, demo_page, traces):
    """Cell by cell: token, state, and of every cell the numbers of the record."""
    browser.open(demo_page)
    which = ids_on(browser)[0]
    choose(browser, "views", "passes")
    for i, (name, (_, records)) in enumerate(traces.items()):
        one = records[which]
        told = iter(tips(browser, f'section[data-panel="{i}"] .token[data-what]', with_data=True))
        passes = zip(read_sentence(one, "s").passes, one["trace"], strict=True)
        for count, (shown, entry) in enumerate(passes, start=1):
            for cell in cells_of(shown, reordered=name == "ibdecoder"):
                seen = next(told)
                assert (seen["word"], seen["state"]) == (cell.token, cell.state)
                assert seen["position"] == str(cell.position)
                if cell.state in ("previous", "open"):
                    continue
                assert seen["pass"] == str(count)
                what = seen["what"]
                k = cell.position - entry["start"]
                if name == "ibdecoder":
                    k = entry["positions"].index(cell.position)
                    assert seen["by"] == f"written by direction {entry['directions'][k]}"
                else:
                    assert seen["by"].endswith(MEANINGS[cell.state])
                raw = entry["draft_log_probs" if what == "draft" else "log_probs"][k]
                if raw is None:  # <pad>, for example
                    assert seen["probability"] == "not allowed here"
                else:
                    assert number(seen["probability"]) == pytest.approx(raw, abs=6e-5)
                if what == "draft":
                    assert seen["rank"] == str(entry["draft_ranks"][k])
                else:
                    assert seen.get("runner_up") == entry["runner_up"][k]
        assert next(told, None) is None
    legend = browser.texts(".legend .token .word")
    assert {"previous", "accepted", "bifurcation", "discarded", "bonus"} <= set(legend)
    assert "pending" not in legend  # there is none on the page
    browser.check_quiet()


@pytest.mark.slow
def test_the_slider_shows_what_is_there_after_a_pass(browser, demo_page, traces):
    browser.open(demo_page)
    which = ids_on(browser)[0]
    most = max(len(records[which]["trace"]) for _, records in traces.values())
    assert browser.one("output.after").text == f"after pass {most} of {most}"
    assert browser.all(".body .box.open") == []
    for count in (0, 1, 3):
        set_pass(browser, count)
        assert browser.one("output.after").text == f"after pass {count} of {most}"
        for i, (_, records) in enumerate(traces.values()):
            wanted = [fact["pass"] > count for fact in truth(records[which])]
            seen = browser.driver.execute_script(VISIBLE, f'section[data-panel="{i}"] .box')
            # nothing can be read of what is not there yet
            assert seen == ["" if is_open else "visible" for is_open in wanted]
            done = browser.one(f'section[data-panel="{i}"] .done').text
            total = len(wanted)
            written = "all" if not any(wanted) else f"{wanted.count(False)} of"
            assert done == f"{written} {total} tokens written"
    told = tips(browser, 'section[data-panel="0"] .box')
    assert told[3] == {"token": "·", "position": "3", "by": MEANINGS["open"]}
    choose(browser, "views", "passes")
    rows = browser.all('section[data-panel="0"] .row')
    assert [row.is_displayed() for row in rows] == [i < 3 for i in range(len(rows))]
    choose(browser, "views", "steps")
    rows = browser.all('section[data-panel="0"] .row')
    assert [row.is_displayed() for row in rows] == [i < 3 for i in range(len(rows))]
    # Play goes on from here, and to the end; the clock ticks when it is told to.
    browser.driver.execute_script(
        "window.setInterval = (tick, ms) => { window.tick = tick; window.ms = ms; return 1; }"
    )
    browser.one(".play").click()
    assert browser.one(".play").text == "❚❚ Pause"
    assert browser.driver.execute_script("return window.ms") == 700
    browser.driver.execute_script("window.tick()")
    assert browser.one("output.after").text == f"after pass 4 of {most}"
    browser.one(".play").click()
    assert browser.one(".play").text == "▶ Play"
    # At the end it begins anew.
    set_pass(browser, most)
    browser.one(".play").click()
    assert browser.one("output.after").text == f"after pass 0 of {most}"
    browser.one(".play").click()
    browser.check_quiet()


@pytest.mark.slow
def test_sentences_are_chosen_in_every_way(browser, demo_page):
    browser.open(demo_page)
    first, second, third = (f"sentence {i}" for i in ids_on(browser))

    def shown():
        return browser.one(".head .name").text

    assert shown() == first and not browser.one(".back").is_enabled()
    browser.one(".onward").click()
    assert shown() == second
    assert browser.driver.current_url.endswith("#" + second.replace(" ", "-"))
    browser.one(".back").send_keys(Keys.ENTER)
    assert shown() == first
    browser.one("body").send_keys(Keys.ARROW_RIGHT)
    browser.one("body").send_keys(Keys.ARROW_RIGHT)
    assert shown() == third
    browser.one("body").send_keys(Keys.ARROW_RIGHT)  # there is no more
    browser.one("body").send_keys(Keys.ARROW_LEFT)
    assert shown() == second
    browser.one(".sentences").send_keys(third)
    assert shown() == third
    browser.driver.get(demo_page.resolve().as_uri() + "#" + second.replace(" ", "-"))
    assert shown() == second
    browser.driver.get("about:blank")
    browser.driver.get(demo_page.resolve().as_uri() + "#" + third.replace(" ", "-"))
    assert shown() == third
    # The view that was chosen stays.
    choose(browser, "views", "steps")
    browser.one(".back").click()
    assert browser.one("#viewer").get_attribute("data-view") == "steps" and browser.all(".step")
    browser.check_quiet()


@pytest.mark.slow
def test_pointer_and_keys(browser, tmp_path):
    """The tip comes by hovering, and by keys alone; arrow keys go from token to token."""
    passes = (
        one_pass(0, "", "q", 0, 1),
        one_pass(1, "a b x", "a z c d", 2, 3, **FACTS | {"log_probs": [-0.25, -1.5, -2.5]}),
    )
    open_page(browser, tmp_path / "p.html", part_of(record("q a b c", *passes)))
    assert tip(browser) is None
    boxes = browser.all(".body .box")
    ActionChains(browser.driver).move_to_element(boxes[2]).perform()
    assert tip(browser) == {
        "token": "b", "position": "2", "pass": "2", "by": ORIGINS["rescued"],
        "probability": "not allowed here", "rank": "39", "runner_up": "z",
        "runner_up_probability": "0.2231 (log -1.5000)",
    }  # fmt: skip
    assert boxes[2].get_attribute("aria-describedby") == "tip"
    assert [box.accessible_name for box in boxes] == [
        "q, pass 1", "a, pass 2", "b, pass 2", "c, pass 2",
    ]  # fmt: skip
    assert browser.one("#tip").get_attribute("role") == "tooltip"
    ActionChains(browser.driver).move_to_element(browser.one("h1")).perform()
    assert tip(browser) is None
    # By keys: the last control, then the first token.
    browser.one(".colours input:checked").send_keys(Keys.TAB)
    active = browser.driver.switch_to.active_element
    assert active == boxes[0] and tip(browser)["token"] == "q"
    active.send_keys(Keys.ARROW_RIGHT)
    assert tip(browser)["token"] == "a"
    browser.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert tip(browser) is None
    browser.driver.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
    assert tip(browser)["token"] == "q"
    # The slider takes what the tip says along.
    boxes[0].send_keys(Keys.ARROW_RIGHT)
    set_pass(browser, 1)
    assert tip(browser) == {"token": "·", "position": "1", "by": MEANINGS["open"]}
    assert [box.accessible_name for box in boxes] == ["q, pass 1", *[MEANINGS["open"]] * 3]
    set_pass(browser, 2)
    assert tip(browser)["token"] == "a"
    # Keys with Alt, Ctrl, Meta or Shift are the browser's.
    for held in ("altKey", "ctrlKey", "metaKey", "shiftKey"):
        assert not press(browser, "ArrowRight", held), held
        assert tip(browser)["token"] == "a", held
    assert press(browser, "ArrowRight") and tip(browser)["token"] == "b"
    # What loses the focus loses its tip.
    browser.driver.switch_to.active_element.send_keys(Keys.SHIFT, Keys.TAB)
    assert browser.driver.switch_to.active_element != boxes[2] and tip(browser) is None
    assert boxes[2].get_attribute("aria-describedby") is None
    # From D to V and back, and along D.
    choose(browser, "views", "passes")
    start = browser.one('.row[data-pass="2"] [data-what="draft"][data-position="1"]')
    browser.driver.execute_script("arguments[0].focus()", start)
    keys = (Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ARROW_UP)
    seen = []
    for key in keys:
        browser.driver.switch_to.active_element.send_keys(key)
        seen.append(tip(browser)["token"])
    assert seen == ["b", "z", "c", "x"]
    assert len(browser.all('.body [tabindex="0"]')) == 1  # Tab leaves the tokens again
    active = browser.driver.switch_to.active_element
    assert active.accessible_name == "x, bifurcation"
    # A tip goes with the row of its token, at once.
    browser.driver.execute_script("document.activeElement.blur()")
    ActionChains(browser.driver).move_to_element(active).perform()
    assert tip(browser)["token"] == "x"
    assert set_pass(browser, 1, "return document.getElementById('tip').hidden") is True
    browser.check_quiet()


def colour(text):
    """Read the numbers of a colour as the browser writes it."""
    return [float(part) for part in re.findall(r"[\d.]+", text)][:3]


def dimmed(browser):
    """Where what covers the later rows of the matrix begins, and how high it is."""
    later = browser.one(".later")
    assert 0.5 < float(later.value_of_css_property("opacity")) < 1
    back = browser.one("body").value_of_css_property("background-color")
    assert colour(later.value_of_css_property("fill")) == colour(back)
    box = browser.driver.execute_script(
        "const box = arguments[0].getBoundingClientRect(); return [box.top + scrollY, box.height]",
        later,
    )
    return tuple(box)


@pytest.mark.slow
def test_dependencies(browser, tmp_path):
    """The graph, the matrix, and what is told of their cells."""
    one = record(*GRAPH, decoding="pj", flags={"jacobi_length": "grow"})
    other = record(*GRAPH, decoding="gad")
    open_page(browser, tmp_path / "p.html", part_of(one, other), part_of(other))
    choose(browser, "views", "dependencies")
    assert browser.texts(".node .word") == ["a", "b", "</s>"]
    assert browser.texts(".node .probability") == ["0.78", "0.61", "0.37"]
    parallel = ["parallel" in x.get_attribute("class").split() for x in browser.all(".node")]
    assert parallel == [True, True, False]
    assert browser.texts(".wave") == ["1", "2"]
    edges = browser.one(".edges:not(.hot)")
    assert edges.get_attribute("d").count("C") == 2  # from </s> to both tokens before
    told = tips(browser, ".node")
    assert told[2] == {
        "token": "</s>", "position": "2", "pass": "2", "by": "final from pass 2 on",
        "probability": "0.3679 (log -1.0000)", "runner_up": "u",
        "runner_up_probability": "0.0067 (log -5.0000)", "waited": "a b",
    }  # fmt: skip
    hot = browser.one(".edges.hot")
    assert hot.get_attribute("d") == edges.get_attribute("d")
    waiting = []
    for place in (0, 1):  # </s> waits for each of the two
        tips(browser, f'.node[data-position="{place}"]')
        waiting.append(hot.get_attribute("d"))
        assert waiting[place].count("C") == 1
    assert "".join(waiting) == edges.get_attribute("d")
    browser.driver.execute_script("document.activeElement.blur()")
    assert hot.get_attribute("d") == "" and tip(browser) is None
    names = [node.accessible_name for node in browser.all(".node")]
    assert names == ["a, pass 1", "b, pass 1", "</s>, pass 2"]
    finals = [
        (x.get_attribute("data-pass"), x.get_attribute("data-position"), x.text)
        for x in browser.all("text.final")
    ]
    assert finals == [("1", "0", "0.78"), ("1", "1", "0.61"), ("2", "2", "0.37")]
    assert browser.texts(".axis:not(.pass)") == ["a", "b", "</s>"]
    # Those that are final in the same pass have one colour, in the graph and in the matrix.
    fills = [x.value_of_css_property("fill") for x in browser.all(".node.parallel rect")]
    orange = browser.one(".cells.parallel").value_of_css_property("fill")
    assert fills == [orange] * 2
    swatch = browser.one(".legend .swatch.parallel").value_of_css_property("background-color")
    assert colour(swatch) == colour(orange)
    assert orange != browser.one(".cells.final").value_of_css_property("fill")
    cells = [browser.one(f".cells.{kind}").get_attribute("d") for kind in ("parallel", "final")]
    assert [d.count("M") for d in cells] == [2, 1]
    boxes = [x.rect for x in browser.all(".cells.parallel, text.final")]
    assert all(boxes[0]["y"] < box["y"] < boxes[0]["y"] + 20 for box in boxes[1:3])
    assert boxes[3]["y"] > boxes[0]["y"] + 20
    # One cursor leads over all cells.
    cursor = browser.one(".cursor")
    browser.driver.execute_script("arguments[0].focus()", cursor)
    assert tip(browser)["token"] == "a"
    assert cursor.accessible_name == (
        "a, position 0, pass 1, how final from here on, probability 0.7788 (log -0.2500), "
        "runner-up r, its probability 0.1353 (log -2.0000)"
    )
    for key in (Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT):  # the last: there is no more
        cursor.send_keys(key)
    assert tip(browser) == {
        "token": "x", "position": "2", "pass": "1", "by": "another token",
        "probability": "0.4724 (log -0.7500)",
    }  # fmt: skip
    assert cursor.aria_role in ("img", "image") and cursor.accessible_name == (
        "x, position 2, pass 1, how another token, probability 0.4724 (log -0.7500)"
    )
    for key in (Keys.ARROW_DOWN, Keys.ARROW_LEFT):
        cursor.send_keys(key)
    assert tip(browser)["by"] == "right, and final already" and tip(browser)["runner_up"] == "t"
    cursor.send_keys(Keys.ARROW_LEFT)
    assert tip(browser) == {"token": "a", "position": "0", "pass": "2", "by": "committed before"}
    # The pointer moves it, too: to the cell whose number is pointed at.
    cell = browser.one('text.final[data-pass="1"][data-position="1"]')
    ActionChains(browser.driver).move_to_element(cell).perform()
    assert (tip(browser)["token"], tip(browser)["by"]) == ("b", "final from here on")
    # The rows of passes to come are dimmed.
    assert dimmed(browser)[1] < 2
    set_pass(browser, 1)
    top, height = dimmed(browser)
    assert abs(top - browser.one(".cells.final").rect["y"]) < 2 and 20 <= height < 22
    assert browser.one(".node:last-of-type").accessible_name == MEANINGS["open"]
    set_pass(browser, 0)
    assert abs(dimmed(browser)[0] - browser.one(".cells.parallel").rect["y"]) < 2
    assert dimmed(browser)[1] >= 40
    set_pass(browser, 1)
    assert edges.get_attribute("d") == ""
    opened = ["open" in x.get_attribute("class").split() for x in browser.all(".node")]
    assert opened == [False, False, True]
    # Another method has none, and says so; a sentence without any has no such view.
    assert "Only Jacobi decoding" in browser.one('[data-decoding="gad"] .no-graph').text
    legend = browser.texts(".legend .meaning")[1:]
    assert legend[0].endswith("decoded in parallel") and "right, not for good" not in legend
    assert "another token" in legend
    browser.one(".onward").click()
    assert browser.one("#viewer").get_attribute("data-view") == "output"
    assert "dependencies" not in [one.text for one in browser.all(".views label")]
    browser.one(".back").click()
    assert browser.one("#viewer").get_attribute("data-view") == "dependencies"
    browser.check_quiet()


@pytest.mark.slow
def test_whatever_a_text_says_it_is_only_shown(browser, tmp_path):
    """As source, token, runner-up, method, flag, file and name; in every view."""
    shown = "</script><script>alert(1)</script><!--&amp;'\"\\n\\u2028\\u202e{7}"
    evil = record("", decoding=EVIL, source=[EVIL], flags={EVIL: EVIL})
    evil |= {"output": [EVIL, EOS]}
    evil |= {"trace": [
        {"start": 0, "num_accepted": 1, "num_committed": 2, "draft": [EVIL, EVIL],
         "verifier": [EVIL, EOS], "runner_up": [EVIL, EVIL], "log_probs": [-1, -1],
         "runner_up_log_probs": [-2, -2], "draft_log_probs": [-1, -9], "draft_ranks": [0, 7]},
    ]}  # fmt: skip
    sentence = read_sentence(evil, EVIL)
    jacobi = read_sentence(evil | {"decoding": "pj"}, EVIL)
    path = tmp_path / "p.html"
    part = viewer.sentence(
        [sentence, sentence, jacobi], [evil, evil, evil | {"decoding": "pj"}], [EVIL] * 3, [EVIL]
    )
    path.write_text(viewer.head(EVIL) + part + page.TAIL, encoding="utf-8")
    browser.open(path)
    assert browser.one("h1").text == shown == browser.one(".head .name").text
    assert browser.texts(".source .word") == [shown]
    assert browser.texts(".decoding") == [shown, shown, "pj"]
    assert browser.texts(".file") == [shown, shown]
    assert browser.one(".missing").text == f"{shown} does not have this sentence."
    assert browser.texts('[data-panel="0"] .flag') == [f"--{shown.replace('_', '-')} {shown}"]
    assert browser.texts('[data-panel="0"] .box .word') == [shown, EOS]
    told = tips(browser, '[data-panel="0"] .box')[0]
    assert (told["token"], told["runner_up"]) == (shown, shown)
    for view in ("passes", "steps", "dependencies"):
        choose(browser, "views", view)
        assert shown in browser.texts('[data-panel="0"] .word, .matrix .axis, .node .word') or (
            view == "dependencies"
        )
    node = tips(browser, ".node")[0]
    assert node["token"] == shown
    assert browser.driver.execute_script("return document.scripts.length") == 3
    browser.check_quiet()


@pytest.mark.slow
def test_a_beam_that_goes_on_with_other_hypotheses(browser, tmp_path):
    """Passes that wrote nothing of this output are counted, not drawn."""
    empty = [written(5, [], []) for _ in range(40)]
    one = record("A B C D </s>", *FROM_BOTH_ENDS, written(4, [EOS], [4]), *empty)
    open_page(browser, tmp_path / "p.html", part_of(one))
    assert browser.one('[data-number="passes"]').text == "43"
    assert browser.one("output.after").text == "after pass 3 of 3"
    choose(browser, "views", "passes")
    assert len(browser.all(".row")) == 3
    assert browser.one(".rest").text.startswith("40 more passes, in which")
    states = [x.get_attribute("data-state") for x in browser.all('.row[data-pass="2"] .token')]
    assert states == ["previous", "bonus", "bonus", "previous", "open"]
    browser.check_quiet()


@pytest.mark.slow
def test_an_empty_output_and_no_sentence(browser, tmp_path):
    open_page(browser, tmp_path / "p.html", part_of(record("", source=None)))
    assert browser.one(".body").text == "(no output)"
    assert not browser.one(".play").is_enabled() and not browser.one("input.pass").is_enabled()
    assert browser.one(".source").text == "(the source is not in the trace)"
    for view in ("passes", "steps"):
        choose(browser, "views", view)
    open_page(browser, tmp_path / "p.html")
    assert browser.one("#viewer").text == "There is no sentence on this page."
    browser.check_quiet()
