"""paradec trace --kind order: the figure of the paper as text and as picture, and wrong flags."""

from fairseq_paradec.cli.main import main as paradec

# zhang2020, Figure 1e and 1f, for six words: y1 y6 y2 y5 | y3 y4 </s>.
FIGURE = """\
in 2 directions, 2 tokens per direction and step, 4 tokens a step

target      A B C D E F </s>
is written  [A F B E] [C D </s> -]
            2 steps, a bracket each

slot  step  direction  predicts  place  from input  at position
   0     1  1→         A             1  </s>                 +1
   1     1  2←         F             6  </s>                 -1
   2     1  1→         B             2  </s>                 +2
   3     1  2←         E             5  </s>                 -2
   4     2  1→         C             3  A                    +3
   5     2  2←         D             4  F                    -3
   6     2  1→         </s>             B                    +4
   7     2  2←         -                E                    -4
"""


def test_the_papers_figure(capsys):
    arguments = ["--directions", "2", "--tokens-per-direction", "2", "--words", "A B C D E F"]
    assert paradec(["trace", "--kind", "order", *arguments]) == 0
    drawing, mask = capsys.readouterr().out.split("\nmask: ")
    assert drawing == FIGURE
    seen = [line[2:] for line in mask.splitlines()[2:]]
    assert seen == ["● ● ● ● · · · ·"] * 4 + ["● ● ● ● ● ● ● ●"] * 4


def test_targets_are_rewritten_and_drawn(tmp_path, capsys):
    path, picture = tmp_path / "train.de", tmp_path / "a.png"
    path.write_text("A B C D E\n\nschläft@@ e x\n", encoding="utf-8")
    assert paradec(["trace", "--kind", "order", "--arch", "ibdecoder", "--rewrite", str(path)]) == 0
    assert capsys.readouterr().out == "A E B D C\n\nschläft@@ x e\n"
    arguments = ["--arch", "double_token", "--length", "3", "--picture", str(picture)]
    assert paradec(["trace", "--kind", "order", *arguments]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_mistakes_are_named(capsys):
    for arguments, message in (
        (["--directions", "3"], "--directions: got 3; allowed: 1, or an even number"),
        (["--arch", "nothing"], "--arch: got 'nothing'; allowed: ibdecoder, ibdecoder_sa, imd"),
        (["--words", "a", "--length", "3"], "--words a excludes --length"),
        (["some.jsonl"], "FILE some.jsonl excludes --kind order"),
        (["--words", " "], "--words: got ' '; allowed: 1 to 200 words"),
        (["--rewrite", "no"], "--rewrite: got 'no'; allowed: a file that can be read (No such"),
    ):
        assert paradec(["trace", "--kind", "order", *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith(f"paradec trace: error: {message}")
