"""assisted beside the other methods: what measures it, and the drafters that are refused."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from reference.greedy import stock_greedy
from support import builders
from support.builders import DEMO, Limits, batch, built, decode, lend, save_drafter, tiny_model
from support.exact import refused
from support.image_models import task_of, tiny_image_model
from support.losses import build

from fairseq_paradec.cli.main import main as paradec
from fairseq_paradec.errors import UsageError

MODEL = str(DEMO / "model.pt")


def rows_of(out: Path, preset: str) -> list[dict[str, Any]]:
    """The rows of a preset of ``benchmark``, with the demo's model as its own drafter."""
    flags = f"--path {MODEL} --sweep drafter-path={MODEL} --decoder assisted --preset {preset}"
    words = ["benchmark", str(DEMO), *flags.split(), "--sentences", "3"]
    assert paradec([*words, "--out", str(out)]) == 0
    rows: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))["rows"]
    return rows


def test_commands_that_measure_it(tmp_path: Path) -> None:
    """Every value of a flag, exact as promised."""
    rows = rows_of(tmp_path / "a.json", "acceptance --subset test --sweep draft-confidence=0,1")
    found = [(row["decoder"], row["k"], row.get("confidence")) for row in rows]
    assert found == [("greedy", None, None), ("assisted", 12, 0.0), ("assisted", 12, 1.0)]
    assert all(row["label"].startswith("exact") for row in rows)
    assert rows[1]["passes_per_sentence"] < rows[2]["passes_per_sentence"]  # one token a draft

    rows = rows_of(tmp_path / "l.json", "lossless --batch-sizes 3")
    assert [row["block"] for row in rows] == [1, 3, 5, 8, 12, 12, 8, 8, 8]
    trees = [f"draft_tree={size}" for size in (1, 8, 32)]
    others = ["adaptive_block=True", "draft_confidence=0.0", *trees]
    assert [row["other"] for row in rows[4:]] == others
    assert all(row["identical"] + row["ties"] == 3 for row in rows)


@pytest.mark.parametrize("more", [{}, {"draft_tree": 6}])
def test_a_drafter_drafts_as_far_as_its_positions_go(more: dict[str, Any]) -> None:
    """Behind them the verifier goes on alone, row by row."""
    task, model = built("default")
    short = tiny_model(task, decoder_layers=1, max_target_positions=6)
    sample, flags = batch(task, (3, 7, 5, 9)), {"drafter_path": lend(task, model, short)} | more
    limits = Limits(min_len=12)
    hypos = decode(task, [model], sample, limits, decoding="assisted", block_size=4, **flags)
    wanted = stock_greedy(task, [model], sample, **limits.stock())
    for hypo, one in zip(hypos, wanted, strict=True):
        assert hypo["tokens"].tolist() == one["tokens"].tolist()
        drafted = hypo["num_drafted"]
        assert drafted[0] > 0 == max(drafted[6:])


def test_drafters_that_do_not_fit_are_named(tmp_path: Path) -> None:
    """By flag, with what was given and what is allowed; of another method with its name."""
    task, model, _ = builders.demo()
    tiny, small = built("default")
    shallow = build(task, "shallow_decoder", encoder_from=MODEL)
    shallow.encoder.layers[0].fc1.bias.data += 1
    files = {
        "words": save_drafter(tiny, small, tmp_path / "words.pt", "transformer"),
        "elsewhere": save_drafter(task, shallow, tmp_path / "elsewhere.pt", "shallow_decoder"),
    } | {name: str(DEMO / f"{name}.pt") for name in ("model", "drafter", "heads", "ibdecoder")}
    files |= {"two": f"{MODEL}:{MODEL}", "none": str(tmp_path / "none.pt")}
    lent = {"image": tiny_image_model(task_of()), "headed": builders.tiny_blockwise(tiny)}
    lent["pairs"] = builders.tiny_reordered(tiny, "double_token")
    for decoding, given, words in (
        ("assisted", "words", "40 symbols|has 7944"),
        ("assisted", "elsewhere", "this verifier's encoder"),
        ("assisted", "image", "Transformer for text|ImageTransformer"),
        ("assisted", "ibdecoder", "left to right|holds a ReorderedTransformer"),
        ("assisted", "pairs", "left to right|holds a ReorderedTransformer"),
        ("assisted", "headed", "Transformer for text|BlockwiseTransformer"),
        ("assisted", "heads", "--decoding blockwise|--path"),
        ("assisted", "drafter", "holds a BlockNatModel: use --decoding gad or gad_pp"),
        ("gad", "model", "block_nat; this holds a TransformerModel: use --decoding assisted"),
        ("gad_pp", "elsewhere", "holds a ShallowDecoderModel: use --decoding assisted"),
        ("assisted", "two", "one checkpoint|ensemble"),
        ("assisted", "none", "none.pt|does not exist"),
        ("auto_fast", "two", "one checkpoint|ensemble"),
    ):
        at = (task, model) if given in files else (tiny, small)
        path = files[given] if given in files else lend(*at, lent[given])
        words = f"--drafter-path: got|{words}"
        refused(at[0], [at[1]], words, decoding=decoding, drafter_path=path)


def test_verifiers_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees and local attention; native states for a drafter whose passes are torch's."""
    images, (task, model) = tiny_image_model(task_of()).float(), built("default", torch.float32)
    shallow = tiny_model(task, dtype=torch.float32, decoder_layers=1, decoder_output_dim=12)
    shallow.encoder.load_state_dict(model.encoder.state_dict())
    given = {"decoding": "assisted", "draft_tree": 8}
    flags = argparse.Namespace(**given, drafter_path=lend(task, model, shallow))
    with pytest.raises(UsageError, match="--draft-tree 8 excludes .*local"):
        task.build_generator([images], flags)
    refused(task, [images], "--decoding: got 'self_draft'|local", decoding="self_draft")
    auto = task.build_generator([images], argparse.Namespace(decoding="auto_fast")).decoder
    assert "self_draft" not in auto.candidates
    for one in (model, shallow):
        monkeypatch.setattr(one, "_is_generation_fast", True, raising=False)
    flags.engine_dtype, flags.draft_tree = "bf16", None
    generator = task.build_generator([model], flags).decoder
    hypos = task.inference_step(generator, [model], batch(task, (5, 3)))
    assert all(len(hypo[0]["tokens"]) > 0 for hypo in hypos)
    assert generator.scorer.native and not generator.draft_scorer.native
    words = "--engine-dtype: got 'bf16'; allowed: with self_draft another"
    refused(task, [model], words, decoding="self_draft", drafter_dtype="bf16", engine_dtype="bf16")


def test_a_model_that_drafts_for_itself_changes_its_dtype() -> None:
    """Between batches; passes may be torch's in fp16 while drafts are native."""
    task, sample = builders.tiny_task(), batch(builders.tiny_task(), (5, 3, 9))
    model = tiny_model(task, dtype=torch.float32)
    model._is_generation_fast = True
    flags = [Limits().flags() | {"engine_dtype": dtype} for dtype in (None, "fp16")]
    of = {
        name: [task.build_generator([model], argparse.Namespace(decoding=name, **f)) for f in flags]
        for name in ("self_draft", "greedy")
    }
    for dtype in (torch.float32, torch.float16, torch.float32):
        model.to(dtype)
        for both in zip(*of.values(), strict=True):
            found = [task.inference_step(one, [model], sample) for one in both]
            for (hypo,), (want,) in zip(*found, strict=True):
                assert hypo["tokens"].equal(want["tokens"])
                assert hypo["steps"] < len(hypo["tokens"]) / 3
    model.decoder.layers[0].fc1.bias.data[0] = torch.nan
    with pytest.raises(UsageError, match="^--path: .*NaN"):
        task.inference_step(of["self_draft"][0], [model], sample)
