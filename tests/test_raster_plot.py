"""Images in traces: which step wrote which intensity, as arrays, as a picture, by paradec trace."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.stats_records import greedy

from fairseq_paradec.analysis.raster_plot import maps
from fairseq_paradec.analysis.trace_view import ACCEPTED, Origin, Pass, Sentence
from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.errors import UsageError
from fairseq_paradec.images import Size

GREY = Size(2, 2, 1)


def sentence(decoding: str, output: str, passes: list[int], accepted: list[int]) -> Sentence:
    """A sentence of which only this is known: the pass of each token, and what passes accepted."""
    origins = [Origin(number, ACCEPTED, None, None, None, None, None) for number in passes]
    each = [Pass(i + 1, 0, [], [], [], [], count) for i, count in enumerate(accepted)]
    return Sentence("sentence 0", decoding, None, output.split(), each, origins, {})


#: The passes write 1, then 2 3 4, then </s>; the blocks are 1 2 3, then 4, then </s>.
BLOCKS = sentence("blockwise", "10 20 30 40 </s>", [1, 2, 2, 2, 3], [0, 2, 0])
#: A Jacobi decoder's passes, the second of which writes nothing.
PASSES = sentence("pgj", "10 20 30 40 </s>", [1, 1, 3, 3, 3], [1, 0, 2])


def test_steps_by_hand():
    pixels, steps, sizes = maps(BLOCKS, GREY)
    assert pixels.tolist() == [[10, 20], [30, 40]]
    assert steps.tolist() == [[1, 1], [1, 2]] and sizes.tolist() == [[3, 3], [3, 1]]
    _, steps, sizes = maps(PASSES, GREY)
    assert steps.tolist() == [[1, 1], [3, 3]] and sizes.tolist() == [[2, 2], [3, 3]]
    # The intensities of a pixel stand side by side.
    one = sentence("greedy", "1 2 3 4 5 6 </s>", [1, 2, 3, 4, 5, 6, 7], [0] * 7)
    pixels, steps, sizes = maps(one, Size(1, 2, 3))
    assert pixels.tolist() == [[[1, 2, 3], [4, 5, 6]]]
    assert steps.tolist() == [[1, 2, 3, 4, 5, 6]] and sizes.tolist() == [[1] * 6]


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("10 20 30 </s>", "sentence 0 (pgj) has 3"),
        ("ein Haus steht da </s>", "it with images: sentence 0 (pgj) has 'ein'"),
        ("10 20 30 256 </s>", "sentence 0 (pgj): tokens[3]: got 256; allowed: 0 to 255"),
    ],
)  # fmt: skip
def test_what_is_no_image_is_refused(output: str, said: str):
    with pytest.raises(UsageError, match=re.escape(said)):
        maps(sentence("pgj", output, [1] * 5, [4]), GREY)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    record: dict[str, Any] = greedy(0, ["5", "</s>"], ["10", "20", "30", "40", "</s>"])
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    out, plain = tmp_path / "out.png", tmp_path / "plain.png"
    common = [str(tmp_path / "a.jsonl"), "--image-size"]
    assert paradec(["trace", *common, "2x2", "--picture", str(out)]) == 0
    assert paradec(["trace", common[0], "--picture", str(plain)]) == 0
    assert plain.read_bytes() != out.read_bytes()
    out.unlink()
    capsys.readouterr()
    assert paradec(["trace", *common, "2x2x3", "--picture", str(out)]) == 2
    assert "--image-size: got '2x2x3'; allowed: that of the outputs" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        paradec(["trace", *common, "2x2x2", "--picture", str(out)])
    assert "--image-size: got '2x2x2'; allowed: pixels and cha" in capsys.readouterr().err
    assert not out.exists()
