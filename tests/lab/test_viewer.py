"""Pages: texts that stay texts, a policy that holds, and what Chromium shows of traces."""

import itertools
import json
import math
import re

import pytest
from support.browser import chromium
from support.builders import DEMO, Limits, decode
from support.trace_records import read

from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.lab.data.table import Table
from fairseq_paradec.lab.show import beam_tree
from fairseq_paradec.lab.show import page as writer
from fairseq_paradec.lab.show.ddg import from_record
from fairseq_paradec.lab.show.trace_records import read_sentence
from fairseq_paradec.lab.show.trace_view import ORIGINS
from fairseq_paradec.plugin.tasks import loading


@pytest.fixture(scope="module")
def browser():
    with chromium() as one:
        yield one


def choose(browser, group, text):
    """Click on a radio button by its text."""
    (label,) = [one for one in browser.all(f".{group} label") if one.text == text]
    label.click()


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


def tips(browser, selector, with_data=False):
    return browser.driver.execute_script(READ, selector, with_data)


def check_told(told, one):
    """Compare tips, one per token of the output, with the record."""
    for place, (tip, fact) in enumerate(zip(told, read_sentence(one, "s").origins, strict=True)):
        assert tip["token"] == one["output"][place]
        assert (tip["position"], tip["pass"]) == (str(place), str(fact.pass_number))
        by = f"written by direction {fact.direction}" if fact.direction else ORIGINS[fact.state]
        assert tip["by"] == by
        share, log_prob = re.fullmatch(r"(\S+) \(log (\S+)\)", tip["probability"]).groups()
        assert float(log_prob) == pytest.approx(fact.log_prob, abs=6e-5)
        assert float(share) == pytest.approx(math.exp(fact.log_prob), rel=1e-3, abs=1e-4)
        assert tip.get("runner_up") == fact.runner_up
        assert tip.get("rank") == (None if fact.rank is None else str(fact.rank))
        sure = fact.confidence
        assert tip.get("confidence") == (None if sure is None else f"{sure:.4f}")


WAYS = {
    "hgj": {"decoding": "hgj", "block_size": 4},
    "gad_pp": {"decoding": "gad_pp", "drafter_path": str(DEMO / "drafter.pt"), "accept_margin": 3},
    "ibdecoder": {"decoding": "multiword_beam", "beam": 2},
}
IDS = (82, 7, 8)


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Traces of the demo's models, by method: path and records by sentence."""
    folder = tmp_path_factory.mktemp("traces")
    found = {}
    for name, flags in WAYS.items():
        model = "ibdecoder" if name == "ibdecoder" else "model"
        models, task = loading.load(str(DEMO), str(DEMO / f"{model}.pt"))
        task.load_dataset("test")
        dataset = task.dataset("test")
        sample = dataset.collater([dataset[i] for i in IDS])
        path = folder / f"{name}.jsonl"
        decode(task, models, sample, Limits(max_len_b=50), trace_file=str(path), **flags)
        found[name] = path, {one["id"]: one for one in read(path)}
    return found


def cells_of(shown, reordered):
    """Yield a pass's cells as the page has them: what was there before, then D above V."""
    if reordered:  # without the last passes, which write nothing
        yield from shown.verifier if shown.places else ()
        return
    yield from shown.verifier[: shown.start]
    own = [line[shown.start :] for line in (shown.draft, shown.verifier)]
    for pair in itertools.zip_longest(*own):
        yield from filter(None, pair)


@pytest.mark.slow
def test_every_token_is_told_as_its_trace_has_it(browser, traces, tmp_path):
    """Token, pass, origin, probability, rank and runner-up; the passes; the graph."""
    path, files = tmp_path / "page.html", [str(file) for file, _ in traces.values()]
    assert paradec(["trace", *files, "--html", str(path), "--color", "never"]) == 0
    browser.open(path)
    names = browser.texts(".sentences option")
    order = [int(name.removeprefix("sentence ")) for name in names]
    assert sorted(order) == sorted(IDS)
    for count, which in enumerate(order, start=1):
        assert browser.one(".head .name").text == f"sentence {which}"
        for i, (name, (_, records)) in enumerate(traces.items()):
            one, panel = records[which], f'section[data-panel="{i}"]'
            choose(browser, "views", "output")
            assert browser.one(f"{panel} .decoding").text == one["decoding"]
            check_told(tips(browser, f"{panel} .box"), one)
            choose(browser, "views", "passes")
            told = tips(browser, f"{panel} .token[data-what]", with_data=True)
            passes = read_sentence(one, "s").passes
            cells = [c for shown in passes for c in cells_of(shown, name == "ibdecoder")]
            wanted = [(cell.token, cell.state, str(cell.position)) for cell in cells]
            assert [(seen["word"], seen["state"], seen["position"]) for seen in told] == wanted
            if name == "hgj":  # the only one with a graph
                choose(browser, "views", "dependencies")
                nodes = {int(one["position"]): one for one in tips(browser, f"{panel} .node")}
                graph = from_record(one, "s")
                assert [nodes[i]["token"] for i in range(len(nodes))] == graph.tokens
                assert [int(nodes[i]["pass"]) for i in range(len(nodes))] == graph.final_pass
        assert browser.texts(".source .word") == records[which]["source"]
        if count < 3:
            browser.one(".onward").click()
    browser.check_quiet()


@pytest.mark.slow
def test_a_beams_tree_is_on_the_page_as_the_trace_has_it(browser, tmp_path):
    """Each node's token, pass and fate; the slider hides what has not been read."""
    models, task = loading.load(str(DEMO), str(DEMO / "model.pt"))
    task.load_dataset("test")
    sample = task.dataset("test").collater([task.dataset("test")[82]])
    trace, path = tmp_path / "trace.jsonl", tmp_path / "page.html"
    flags = {"decoding": "self_draft", "beam": 4, "block_size": 6, "trace_file": str(trace)}
    decode(task, models, sample, Limits(max_len_b=50), **flags)
    greedy = tmp_path / "greedy.jsonl"
    decode(task, models, sample, Limits(max_len_b=50), decoding="greedy", trace_file=str(greedy))
    files = ["trace", str(trace), str(greedy), "--html", str(path), "--color", "never"]
    assert paradec(files) == 0
    browser.open(path)
    choose(browser, "views", "tree")
    (record,) = read(trace)
    nodes = beam_tree.read_tree(record, "s")
    best = beam_tree.best_path(nodes, record["output"])
    told = tips(browser, "section[data-panel='0'] .node")
    fates = [beam_tree.state(nodes, i, best) for i in range(len(nodes))]
    assert {*fates} == {beam_tree.BEST, beam_tree.KEPT, beam_tree.NEVER}
    assert (told[0]["by"], "position" in told[0]) == ("the decoder's first input", False)
    columns = [column for column, _ in beam_tree.places(nodes, best)]
    facts = [
        (one.word, str(one.number), str(column - 1), fate)
        for one, column, fate in zip(nodes, columns, fates, strict=True)
    ]
    keys = ("token", "pass", "position", "by")
    assert [tuple(tip[key] for key in keys) for tip in told[1:]] == facts[1:]
    needed = sum(one.kept for one in nodes)
    line = f"{len(nodes)} tokens read in {nodes[-1].number} passes, {needed} of them needed"
    assert browser.one("section[data-panel='0'] h4").text == line
    assert "No tree" in browser.one("section[data-panel='1'] .body").text
    browser.driver.execute_script(
        "const slider = document.querySelector('input.pass'); slider.value = 1;"
        "slider.dispatchEvent(new Event('input'));"
    )
    after_one = [one.number > 1 for one in nodes]
    assert ["open" in one.get_attribute("class") for one in browser.all(".node")] == after_one
    assert any(after_one)
    browser.check_quiet()


# ---- the policy of any page ---------------------------------------------------------------------

#: Texts that would end an element, begin a comment or an entity, or turn the line's direction.
NASTY = [
    "</script><script>document.title = 'run'</script>",
    "<!-- <script> ]]> \"double\" 'single' `back` \\ \\u003c &lt; &amp;",
    "\u2028 \u2029 \u202e \x00 \x1b[31m",
    "日本語 العربية 𝔘 e\u0301",
]

SHOW = """
const blocks = [...document.querySelectorAll("script.block")];
document.querySelector("#shown").textContent = JSON.stringify(
  blocks.map((block) => JSON.parse(block.textContent)));
document.querySelector("#shown").style.color = "rgb(1, 2, 3)";
"""


#: What would do harm on a page without a policy: writes into the title, or asks.
HARM = (
    "<script>document.title += 1</script><script src='http://x.invalid/a.js'></script>"
    "<p id='p' onclick='document.title += 2'>p</p>"
    "<img src='data:,' onerror='document.title += 3'>"
    "<img src='http://x.invalid/b.png'><link rel='stylesheet' href='http://x.invalid/c.css'>"
    "<style>h1 { color: rgb(9, 9, 9) }</style><p id='q' style='color: rgb(9, 9, 9)'>q</p>"
    "<iframe src='http://x.invalid/d.html'></iframe><object data='http://x.invalid/e.svg'></object>"
)


def colour(browser, selector):
    return browser.one(selector).value_of_css_property("color")


@pytest.mark.slow
def test_pages_run_their_own_scripts_and_nothing_else(browser, tmp_path):
    values = [NASTY, {"a": NASTY[0]}]
    page = "".join(writer.page("page.html", scripts=[SHOW], title="title"))
    good = "<p id='shown'></p>" + "".join(writer.data("block", value) for value in values)
    good += str(writer.table(Table.of([{"<b>": NASTY[0]}])))
    own, bad, bare = (tmp_path / name for name in ("own.html", "bad.html", "bare.html"))
    own.write_text(page.replace("</main>", f"{good}</main>"), "utf-8")
    bad.write_text(page.replace("</main>", f"{good}{HARM}</main>"), "utf-8")
    bare.write_text("<!DOCTYPE html><title>title</title><h1>h</h1>" + HARM, "utf-8")
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
    names = ("a.js", "b.png", "c.css", "d.html", "e.svg")
    assert {f"http://x.invalid/{name}" for name in names} <= set(browser.requests())

    browser.open(bad)
    browser.one("#p").click()
    assert browser.driver.title == "title"
    assert "rgba(9, 9, 9, 1)" not in (colour(browser, "#q"), colour(browser, "h1"))
    refused = "\n".join(line for line in browser.console() if "Content Security Policy" in line)
    assert all(name in refused for name in names), refused
    assert json.loads(browser.texts("#shown")[0]) == values


def test_data_is_the_value_and_ends_nothing():
    block = writer.data("a&b", NASTY)
    assert block.startswith('<script type="application/json" class="a&amp;b">')
    inside = block[block.index(">") + 1 : -len("</script>\n")]
    assert json.loads(inside) == NASTY
    assert not set("<\u2028\u2029") & set(inside)
    with pytest.raises(ValueError, match="not JSON compliant"):
        writer.data("a", float("nan"))
    with pytest.raises(ValueError, match="may not hold </script"):
        list(writer.page("page.html", scripts=["let a = '</SCRIPT>';"], title="t"))
