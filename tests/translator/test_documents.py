"""Long texts and markup: nothing of it is lost, whatever the translations are."""

import re
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.commands import DEMO
from support.markup_texts import HTML_TEXT, KEPT, MARKDOWN_TEXT, kept

import fairseq_paradec
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.errors import UsageError
from fairseq_paradec.translator import documents, sentences
from fairseq_paradec.translator.documents import Document, place
from fairseq_paradec.translator.markup import CLOSE, DEEPEST, OPEN

#: Pieces in HTML, each with what must be in the result, in any order.
HTML = [
    "<p class='a b'>Hello <b>big <i>old</i></b> world.</p>",
    '<a href="x?a=1&amp;b=2" title="a > b">This page</a> is <em>new</em>. Read it!',
    "<ul>\n  <li>One thing\n  <li>Two <b>things\n</ul>",
    "Unclosed <b>bold and <i>both</b> crossed</i> here",
    "<p>Use <code>x &lt; 1</code> or <kbd>Ctrl</kbd>+<kbd>C</kbd> now.</p>",
    "<script>if (a < b) { say('no words'); }</script><p>After it.</p>",
    "<style>p > a { color: red }</style>Text<br/>and <br>more text",
    "<!-- a comment --> Text <!-- and one <b> inside --> goes on.",
    "<pre>\n  keep   this\n</pre>\n\n<h1>A  title</h1>\n",
    "<p translate='no'>Not this.</p><p>But <span class=\"notranslate x\">Acme Inc.</span> is.</p>",
    "&lt;b&gt; is a tag &amp; &copy; a sign &#8212; they say.",
    "Dear {{user.name}}, you have %d new %s. See https://x.org/a?b=c&amp;d=e.",
    "<p dir='rtl'>שלום <b>עולם</b>. מה <i>שלומך</i>?</p>",
    "<div dir=rtl>مرحبا <a href='/ar'>بالعالم</a> {0}</div>",
    "<table><tr><td>Cell <b>one</b><td>Cell two</table>",
    "a < b and c > d, <3 you",
    "<img src='a.png' alt='A picture'> A dog <img src=b.png> runs<wbr>fast.",
    '<p>Cut off <a href="http://x',
    "<svg><text>No</text></svg> Yes <custom-tag x=1>inside it</custom-tag>.",
    "<b></b><i> </i><p></p>",
    "<p>Write to a.b@example.org or go to www.example.org/x_y now.</p>",
    "<B>Upper</B> <P>Case</P> <BR>",
    "<p>你好<b>世界</b>。再见！</p>",
    "<textarea>keep\nthis</textarea><button>Press <u>me</u></button>",
    "<a><a><b><a>Nested</a></b></a> in itself</a>",
    "<p>A man<br>plays <b>the<BR/>\n guitar</b><br>and sings.<br>Then<br>he<br><br>goes.</p>",
    "<![CDATA[raw]]><!DOCTYPE html><html lang=en><title>A title</title>",
]
MARKDOWN = [
    "# A title\n\nSome *text* with `code` and **strong _both_ words**.\n",
    "- one item\n- two [links](http://a.b/c_d 'title') here\n  1. deeper ones\n\n* [ ] a task\n",
    "```python\nx = *1*\n```\n\nAfter the code.\n",
    "    indented code\n\nText ![a picture](p.png) and ![one][ref].\n\n[ref]: http://x.y 'T'\n",
    "> A quote with `x`.\n> Another line.\n\n---\n\nEnd.\n",
    "| Head one | Head *two* |\n|:---|---:|\n| cell `a\\|b` | [x](y) |\n",
    "Title\n=====\n\nOther\n-----\n\nHard  \nbreak and\\\nanother.\n",
    "See <https://x.org> and <b>html</b> &amp; more &lt;tags&gt; here.\n",
    "A footnote[^1] and snake_case_word and 5 \\* 3 \\_ here.\n\n[^1]: The note.\n",
    "<div class='x'>\n<p>Some html</p>\n</div>\n\nThen *text*.\n",
    "---\ntitle: Not this\n---\n\nBody of **it**.\n",
    "Hello {{name}}, you have {0} of %(count)d. Go to https://x.org/a_b_c!\n",
    "*unclosed and **both and `ticks\n",
    "~~old~~ ***all three*** __strong__ words_\n",
    "[outer *em* ![img](i.png) text](http://a.b/(c)) then [text][id] and [id].\n",
    "1. One\n2. Two\n\n10) Ten\n\n+ plus\n",
    "שלום **עולם**, ראה [כאן](http://x.il).\n",
    "<!-- a comment\n\nover lines -->\n\nText.\n",
    "~~~\nno *end* of code\n",
    "Two\nlines *of a\nparagraph* here.\r\nAnd more.\r\n",
]
TEXTS = [
    "One. Two!\n\n  - three\n\t4) four five\n\n\n> quoted words\n",
    "no end of line and {{ spaced name }} %s",
    "  * Dr. Smith went to Washington, e.g. on Monday. He came back.\r\n\r\nNew line",
    "See {{ Mr. A. B }} now. Then {{ x! Y }} goes. On.\n",
    "100% of ${HOME} & <b>no tag</b> {x!r:>10}\n",
]

#: What a model may do.
MODELS = {
    "nothing": lambda text: text,
    "upper": str.upper,
    "turns": lambda text: " ".join(reversed(text.split())),
    "loses": lambda text: "Wort",
    "longer": lambda text: " ".join(f"{word} Wort" for word in text.split()),
    "none": lambda text: None,
    "empty": lambda text: "",
}


def translated(text: str, format: str, model: str) -> str:
    document = Document(text, format, "en")
    return document.join([MODELS[model](one) for one in document.sentences]).text


def nothing_is_lost(text: str, format: str) -> None:
    """Tags and things are all there, and in the same order where the words are."""
    assert translated(text, format, "nothing").replace("&gt;", ">") == text.replace("&gt;", ">")
    for model in MODELS:
        assert not kept(text, format) - kept(translated(text, format, model), format), model


PIECES = [("html", one) for one in HTML] + [("markdown", one) for one in MARKDOWN]


@pytest.mark.parametrize(("format", "text"), PIECES + [("text", one) for one in TEXTS])
def test_everything_that_is_no_word_is_kept(format, text):
    for model in MODELS:
        found = translated(text, format, model)
        assert not kept(text, format) - kept(found, format), (model, found)


BREAKS = [
    ("A man<br>plays the guitar.", ["A man plays the guitar."]),
    ("A man<br />\n <b><i>plays</b></i>", ["A man \n plays"]),
    ("A man.<br>plays", ["A man.", "plays"]),
    ("A man:”)<br>plays", ["A man:”)", "plays"]),
    ("Anna Li<br>Main street<br>5 Berlin<br>- a list<br>(b) x", 5),
    ("A man<br><br>plays<br><p>on", ["A man", "plays", "on"]),
    ("<br>a man<br>", ["a man"]),
    ("5<br>a man<br>\u4f60\u597d", ["a man \u4f60\u597d"]),
]


@pytest.mark.parametrize(("text", "wanted"), BREAKS)
def test_a_line_break_is_inside_a_sentence_or_ends_it(text, wanted):
    found = Document(text, "html", "en").sentences
    assert (len(found) if isinstance(wanted, int) else found) == wanted


def test_many_line_breaks_take_no_time():
    begin = time.thread_time()
    Document("word<br>" * 50_000, "html", "en")
    assert time.thread_time() - begin < 5


GENEROUS = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[*HealthCheck],
)


@GENEROUS
@given(HTML_TEXT)
def test_html_of_any_shape_keeps_its_tags(text):
    own = kept(text, "html")
    for model in MODELS:
        found = translated(text, "html", model)
        assert kept(found, "html") == own, (model, found)
    order = [one[0] for one in KEPT["html"].finditer(text)]
    assert [one[0] for one in KEPT["html"].finditer(translated(text, "html", "nothing"))] == order


@GENEROUS
@given(MARKDOWN_TEXT)
def test_markdown_of_any_shape_keeps_its_marks(text):
    assert translated(text, "markdown", "nothing") == text
    for model in MODELS:
        found = translated(text, "markdown", model)
        assert kept(found, "markdown") == kept(text, "markdown"), (model, found)
        assert found.count("\n") == text.count("\n")


@GENEROUS
@given(st.text(alphabet="<>/!-&;\"'`*_[]()|\\~{}% \nab.#1é", max_size=80))
def test_any_signs_come_back(text):
    for format in KEPT:
        found = translated(text, format, "nothing")
        assert found == text


@pytest.mark.parametrize("format", ["text", "html", "markdown"])
def test_a_byte_order_mark_is_no_part_of_a_text(format):
    text = "\ufeff# Two dogs\n\n\ufeff* A dog.\ufeff It \ufeff<b>runs</b>.\n\ufeff\n"
    marked, other = (Document(one, format, "en") for one in (text, text.replace("\ufeff", "")))
    assert marked.sentences == other.sentences and marked.pieces == other.pieces


def test_tags_stand_where_their_words_are():
    text = "The <b>red ball</b> of <a href=u>Anna</a> is <i>here</i>."
    document = Document(text, "html", "en")
    assert document.sentences == ["The red ball of Anna is here."]
    found = document.join(["Der rote Ball von Anna ist hier."])
    want = "Der <b>rote Ball</b> von <a href=u>Anna</a> ist <i>hier</i>."
    assert found.text == want and not found.notes


def test_a_mark_keeps_its_share_of_the_words_between_equal_ones():
    marks = [(4, OPEN), (9, CLOSE)]
    assert place(marks, "one two x, five", "eins zwei x, fünf") == [5, 11]
    assert place([(0, OPEN), (3, CLOSE)], "one", "") == [0, 0]


def test_a_thing_that_the_translation_lost_is_placed_and_told():
    document = Document("Hello {{name}}, you have %d files.", "text", "en")
    assert document.sentences == ["Hello {{name}}, you have %d files.", "Hello , you have files."]
    good = document.join(["Hallo {{name}}, Sie haben %d Dateien.", "no"])
    assert good.text == "Hallo {{name}}, Sie haben %d Dateien." and not good.notes
    lost = document.join(["Hallo, Sie haben %d Dateien.", "Hallo, Sie haben Dateien."])
    assert sorted(re.findall(r"\{\{name\}\}|%d", lost.text)) == ["%d", "{{name}}"]
    assert [note.split(" in ")[0] for note in lost.notes] == [
        "placed by position: {{name}}",
        "placed by position: %d",
    ]
    assert Document("A man.", "text", "en").join([None]) == ("A man.", ["not translated: A man."])


def test_things_without_their_words_stand_one_space_apart():
    document = Document("A dog %s runs %d of {0}.", "text", "en")
    found = document.join(["x", document.sentences[1]])
    assert (found.text, len(found.notes)) == ("A dog %s runs %d of {0}.", 3)
    assert Document("%s %d {0} a", "text", "en").join(["x", "a"]).text == "%s %d {0} a"


@pytest.mark.parametrize(
    "url", ["https://x.org/Dog_(animal)", "https://x.org/a?b=(c)&d=e", "www.x.org/(a)_(b)"]
)
def test_a_url_has_its_brackets_and_no_others(url):
    assert Document(f"See {url}, now", "text", "en").sentences[1] == "See , now"
    assert Document(f"One (see {url}). Two", "text", "en").sentences[1] == "One (see )."


THINGS = {
    "Here %s%d": ["%s%d"],
    "Here %d%% now": ["%d%%"],
    "It took %ds": ["%d"],
    "Of %dx%d or v%s now": ["%d", "%d", "%s"],
    "Is %1$s %(user.id)s %-5.2f": ["%1$s", "%(user.id)s", "%-5.2f"],
    "Is {{{raw}}} {{x}} {user[name]}": ["{{{raw}}}", "{{x}}", "{user[name]}"],
    "It is 100% sure, 5%, a 50%discount, 20% of %appdata%, caf%c3%a9": [],
}


@pytest.mark.parametrize("text", THINGS)
def test_placeholders_are_known_by_whatever_they_stand(text):
    pieces = Document(text, "text", "en").pieces
    found = [thing.raw for one in pieces if not isinstance(one, str) for thing in one.things]
    assert found == THINGS[text]


def test_what_only_looks_like_code_in_markdown_is_translated():
    text = "``` a ``` is code\n\nwords\n"
    assert Document(text, "markdown", "en").sentences == ["a is code", "is code", "words"]
    text = "[a `x]` b](y) and a `tick](z)\n"
    found = Document(text, "markdown", "en").join(["eins", "zwei"]).text
    assert "](y)" in found and "[" in found and "`x]`" in found


def test_a_note_at_the_foot_is_translated():
    document = Document("Words[^1].\n\n[^1]: A note.\n", "markdown", "en")
    assert document.sentences == ["Words.", "A note."]
    assert document.join(["Eins.", "Zwei."]).text == "Eins[^1].\n\n[^1]: Zwei.\n"


def test_no_thing_is_cut_by_the_end_of_a_sentence(monkeypatch):
    monkeypatch.setattr(documents, "split", lambda text, _: re.split(r"(?<=! )", text))
    document = Document("Go! See {{ it! So }} now! On", "text", "en")
    assert document.sentences == ["Go!", "See {{ it! So }} now!", "See now!", "On"]


def test_of_two_equal_things_both_must_be_there():
    document = Document("%s of %s is done", "text", "en")
    found = document.join(["%s ist fertig", "ist fertig"])
    assert found.text.count("%s") == 2 and len(found.notes) == 2


def test_each_of_two_marked_words_keeps_a_word():
    document = Document("<p>So <b>a</b> <i>b</i></p>", "html", "en")
    assert document.join(["b a"]).text in (
        "<p><b>b</b> <i>a</i></p>",
        "<p>So <b>b</b> <i>a</i></p>",
    )
    assert place([(0, OPEN), (1, CLOSE), (2, OPEN), (3, CLOSE)], "a b", "b a") == [0, 1, 2, 3]


IN_WORDS = {
    "So un<b>believ</b>able.": ("So unglaublich.", "So <b>unglaublich</b>."),
    "H<sub>2</sub>O and <i>C<sub>6</sub>H<sub>9</sub></i> is": (
        "H2O und C6H9 ist",
        "H<sub>2</sub>O und <i>C<sub>6</sub>H<sub>9</sub></i> ist",
    ),
    "<i>See</i> C<sub>6</sub>H<sub>9</sub> now": (
        "Jetzt C6H9 sehen",
        "<i>Jetzt</i> C<sub>6</sub>H<sub>9</sub> sehen",
    ),
    "<b>dog </b>and<b> cat</b> run": (
        "Hund und Katze rennen",
        "<b>Hund</b> und <b>Katze</b> rennen",
    ),
}


@pytest.mark.parametrize("text", IN_WORDS)
def test_a_mark_in_a_word_is_in_the_same_word_or_around_a_whole_one(text):
    words, wanted = IN_WORDS[text]
    assert Document(text, "html", "en").join([words]) == (wanted, [])


def test_a_mark_that_no_word_is_left_for_is_told():
    found = Document("A <b>red</b> <i>dog</i>", "html", "en").join(["Hund"])
    assert found == ("<b></b><i>Hund</i>", ["around no word: <b> in Hund"])
    assert not Document("A <b></b><i> </i>dog", "html", "en").join(["Hund"]).notes


def test_a_mark_that_would_stand_in_a_thing_stands_beside_it():
    text = "{{name}} of <b>x</b> %(count)d"
    found = Document(text, "html", "en").join(["%(count)d x {{name}}", ""]).text
    assert all(one in found for one in ("{{name}}", "%(count)d", "<b>", "</b>")), found


def test_elements_that_are_not_translated_end_at_their_own_end():
    kept = "<span translate=no>A <span>b</span> c</span>"
    document = Document(f"<p>{kept}</p><p>word</p>", "html", "en")
    assert document.sentences == ["word"]


def test_words_that_look_like_markup_are_escaped():
    document = Document("<p>One &lt; two</p>", "html", "en")
    assert document.join(["Eins < zwei & drei"]).text == "<p>Eins &lt; zwei &amp; drei</p>"
    assert Document("One", "markdown", "en").join(["*Eins*"]).text == "\\*Eins\\*"


@pytest.mark.parametrize("known", [True, False], ids=["sentencex", "plain rule"])
def test_sentences_are_split_and_whole(known, monkeypatch):
    if not known:
        monkeypatch.setattr(sentences, "_sentencex", lambda: None)
    text = "Dr. Smith, e.g. on Monday, paid 3.5 km. He said: Go! Did he? Yes, he did."
    found = sentences.split(text, "en")
    assert [one.strip() for one in found][1:] == ["He said: Go!", "Did he?", "Yes, he did."]
    assert "".join(found) == text
    long = "word " * 500 + "and, then " + "word " * 500
    found = sentences.split(long, "en")
    assert "".join(found) == long and max(len(one.split()) for one in found) <= sentences.MOST_WORDS
    assert sentences.split("", "en") == []


def test_drafts_of_a_text_are_its_sentences_by_their_order():
    document = Document("One. New one. Two {{x}} things.", "text", "en")
    found = document.drafts("Eins. Zwei {{x}} Dinge.")
    assert found == ["Eins.", *["Zwei {{x}} Dinge."] * 3]


@pytest.mark.parametrize(
    ("earlier", "drafts"),
    [
        ("ABCD", "ABCD"),
        ("ABCDE", "ABDE"),  # the first half from the beginning, the others from the end
        ("ABC", "ABBC"),
        ("A", "A  A"),
        ("", "    "),
    ],
)
def test_drafts_are_counted_from_both_ends(earlier, drafts):
    document = Document("One. Two. Three. Four.", "text", "en")
    found = document.drafts(" ".join(f"{letter}rst." for letter in earlier))
    assert [draft[:1] or " " for draft in found] == [*drafts]


def test_things_that_stand_together_in_the_translation_stay_there():
    document = Document("The {0} of {1} is", "text", "en")
    assert document.join(["{0}{1} ist", "x"]) == ("{0}{1} ist", [])
    assert document.join(["{1}{0} ist", "x"]) == ("{1}{0} ist", [])


def test_a_note_has_sixty_characters_of_a_text_at_most():
    for length, end in ((60, "a" * 60), (61, "a" * 57 + "...")):
        document = Document("a" * length, "text", "en")
        assert document.join([None]).notes == [f"not translated: {end}"]


def test_equal_words_are_looked_for_up_to_so_many_words(monkeypatch):
    marks, source, target = [(2, OPEN), (3, CLOSE)], "a x b", "x c d"
    assert place(marks, source, target) == [0, 1]
    monkeypatch.setattr(documents, "MOST_TOKENS", 3)
    assert place(marks, source, target) == [0, 1]
    monkeypatch.setattr(documents, "MOST_TOKENS", 2)
    assert place(marks, source, target) == [2, 3]


def test_elements_in_each_other_are_followed_to_some_depth():
    for depth, without in ((DEEPEST, ["word"]), (DEEPEST + 1, [])):
        inner = "<span>" * (depth - 1) + "inner" + "</span>" * depth
        document = Document(f"<p><span translate=no>{inner} word</p>", "html", "en")
        assert document.sentences == ["inner word", *without]


@pytest.mark.parametrize("end", ["", "```\n", "```\nWords.\n"])
def test_code_ends_at_its_end_or_the_texts(end):
    document = Document("```\ncode\n" + end, "markdown", "en")
    assert document.sentences == ["Words."] * end.count("Words")
    assert document.join(["Wort."] * len(document.sentences)).text.startswith("```\ncode\n")


@pytest.mark.fairseq
def test_whole_texts_are_translated(tmp_path, capsys):
    """From Python and from the command, with an earlier translation too."""
    page = tmp_path / "page.html"
    page.write_text("<p>A <b>dog</b> runs. Two men sit.</p>\n<code>A dog</code>\n")
    words = ["translate", "--model", str(DEMO), "--decoding", "greedy", "--format"]
    assert paradec([*words, "html", str(page)]) == 0
    found = capsys.readouterr().out
    assert found == "<p>Ein <b>Hund</b> rennt. Zwei Männer sitzen.</p>\n<code>A dog</code>\n"
    earlier = tmp_path / "earlier.html"
    earlier.write_text(found)
    assert paradec([*words, "html", str(page), "--drafts", str(earlier), "--audit"]) == 0
    assert capsys.readouterr().out == found
    model = fairseq_paradec.load(DEMO)
    text = "- A dog runs.\n\n  - A man. {{x}}\n"
    (one,) = model.texts([text], "markdown", decoding="greedy")
    assert one.text.startswith("- Ein Hund rennt.\n\n  - Ein Mann") and "{{x}}" in one.text
    assert paradec([*words, "text", "--text", "A dog runs.", "--text", "  Two men sit."]) == 0
    assert capsys.readouterr().out == "Ein Hund rennt.\n  Zwei Männer sitzen.\n"


def test_wrong_formats_are_named(tmp_path, capsys):
    with pytest.raises(UsageError, match="--format: got 'rtf'; allowed: text, html, markdown"):
        list(fairseq_paradec.load(DEMO).texts(["a"], "rtf"))
    words = ["translate", "--model", str(DEMO), "--text", "a", "--format", "html"]
    assert paradec([*words, "--out", str(tmp_path / "out")]) == 2
    assert "excludes --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    "unit", [" ", "<a ", "`a ", "[a](", "*a ", "_", "{{ ", "a.", "- ", "&a", "-|"]
)
def test_long_texts_take_time_by_their_length(unit):
    """A regular expression that looks back takes minutes here."""
    text = unit * 5000 + "x"
    begin = time.process_time()
    for format in KEPT:
        assert translated(text, format, "nothing") == text
    assert time.process_time() - begin < 10
