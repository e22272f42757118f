"""Imported T5s beside transformers: logits, outputs of every decoder, both engines, bad files."""

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support import foreign
from support.builders import DEMO
from support.commands import Spoil, alone, lose, put
from support.t5 import FAMILIES, SIZES, saved

import fairseq_paradec
from fairseq_paradec.batch import Batch
from fairseq_paradec.cli.main import main
from fairseq_paradec.engine.chunk import ChunkScorer
from fairseq_paradec.engine.masks import Tree
from fairseq_paradec.engine.settings import Engine
from fairseq_paradec.errors import UsageError
from fairseq_paradec.model import file
from fairseq_paradec.model.architecture import Relative
from fairseq_paradec.model.dictionary import EOS, PAD
from fairseq_paradec.model.model import Model
from fairseq_paradec.model.relative import buckets
from fairseq_paradec.plugin.compat.model_files import checkpoint_of
from fairseq_paradec.translator.importing import hugging_face, selftest
from fairseq_paradec.translator.importing.foreign import dictionary_order
from fairseq_paradec.translator.translator import Translator

#: Families besides, whose import needs no torch either.
OTHERS = ("m2m_100", "nllb", "mbart")
PAIR = ["--source", "en", "--target", "de"]
LINES = (DEMO / "raw/demo.en").read_text("utf-8").splitlines()[:100]
#: The last is longer than the distances that have buckets of their own.
FEW = [*LINES[:7], " ".join(LINES[7:13])]
LIMIT = 30

#: Every decoder that needs no trained drafter; ``model``: its drafter is the model itself.
EXACT: list[dict[str, Any]] = [
    {"decoding": "pj"},
    {"decoding": "pgj"},
    {"decoding": "hgj"},
    {"decoding": "self_draft"},
    {"decoding": "assisted", "drafter_path": "model", "draft_tree": 6},
    {"decoding": "auto_fast"},
    {"decoding": "greedy", "engine": "torch"},
    {"decoding": "hgj", "engine": "torch"},
    {"decoding": "self_draft", "engine": "torch"},
    {"decoding": "assisted", "drafter_path": "model", "draft_tree": 6, "engine": "torch"},
]
BEAMS: list[dict[str, Any]] = [
    {"decoding": "multiword_beam"},
    {"decoding": "self_draft"},
    {"decoding": "assisted", "drafter_path": "model"},
    {"decoding": "multiword_beam", "engine": "torch"},
    {"decoding": "self_draft", "engine": "torch"},
]


@functools.cache
def imported(family: str) -> tuple[Path, Translator]:
    """What ``paradec import`` makes of a family's model."""
    folder, _ = saved(family)
    out = folder.with_name("out")
    assert main(["import", str(folder), str(out), *PAIR]) == 0
    return out, fairseq_paradec.load(out)


class There:
    """transformers with a family's model; numbers of words are those of the imported one."""

    def __init__(self, family: str) -> None:
        folder, self.model = saved(family)
        self.translator = imported(family)[1]
        given = hugging_face.read(folder, "en", "de")
        self.order = dictionary_order(given.words[0])
        self.here = {there: here for here, there in enumerate(self.order) if there is not None}

    def read(self, lines: list[str]) -> list[list[int]]:
        """The words of lines by numbers of the imported model."""
        own = self.translator
        return [own.sources.encode_line(own.encode(line)) for line in lines]

    def arguments(self, rows: list[list[int]]) -> dict[str, torch.Tensor]:
        """Rows of words as transformers takes them, padded on the right."""
        width = max(map(len, rows))
        pad = self.model.config.pad_token_id
        ids = [[self.order[i] for i in row] + [pad] * (width - len(row)) for row in rows]
        mask = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
        return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}

    @torch.no_grad()
    def generate(self, rows: list[list[int]], beam: int) -> list[list[int]]:
        """The outputs of transformers' generate, up to ``</s>``."""
        config = self.model.config
        found = self.model.generate(
            **self.arguments(rows),
            do_sample=False,
            num_beams=beam,
            early_stopping=beam > 1,
            max_new_tokens=LIMIT + 1,
            forced_eos_token_id=config.eos_token_id,
            bad_words_ids=[[config.pad_token_id]],
        )
        outputs = [[self.here[i] for i in row[1:]] for row in found.tolist()]
        return [row[: row.index(EOS) + 1] for row in outputs]

    @torch.no_grad()
    def logits(self, rows: list[list[int]], fed: np.ndarray) -> np.ndarray:
        """Log-probabilities of words that both have behind what the decoder is fed."""
        ids = torch.tensor([[self.order[i] for i in row] for row in fed.tolist()])
        ids[:, 0] = self.model.config.decoder_start_token_id
        out = self.model(**self.arguments(rows), decoder_input_ids=ids).logits.log_softmax(-1)
        known: np.ndarray = out[..., [i for i in self.order if i is not None]].numpy()
        return known


def padded(rows: list[list[int]]) -> np.ndarray:
    """Rows of words, padded on the left."""
    width = max(map(len, rows))
    return np.array([[PAD] * (width - len(row)) + row for row in rows])


def decode(translator: Translator, rows: list[list[int]], **options: Any) -> list[list[int]]:
    """The best outputs of rows of words, up to ``</s>``."""
    if options.get("drafter_path") == "model":
        options["drafter_path"] = str(translator.path / translator.folder.model)
    generator = translator.generator({"max_len_a": 0, "max_len_b": LIMIT, "min_len": 0, **options})
    outputs = translator.decode(generator, Batch(padded(rows), np.arange(len(rows))))
    return [row[0]["tokens"].tolist() for row in outputs]


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize(("count", "most"), [(32, 128), (8, 20), (4, 5), (64, 1000), (6, 4096)])
def test_buckets_are_those_of_transformers(count: int, most: int, both_ways: bool) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = np.arange(-5000, 5001)
    bucket = T5Attention._relative_position_bucket
    wanted = bucket(torch.from_numpy(distances), both_ways, count, most)
    assert (buckets(distances, Relative(count, most), both_ways) == wanted.numpy()).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(family: str) -> None:
    """In one pass, and in several from caches of different lengths, by both engines."""
    there, model = There(family), imported(family)[1].core.model
    rows = there.read(FEW)
    assert max(map(len, rows)) > 3 * SIZES["relative_attention_max_distance"]
    chance = np.random.default_rng(1)
    fed = chance.integers(4, 150, (len(rows), 45))
    fed[:, 0] = EOS
    wanted = there.logits(rows, fed)
    known = [here for here, there in enumerate(there.order) if there is not None]
    starts = chance.integers(1, 40, len(rows))
    for kind in ("native", "torch"):
        scorer = ChunkScorer(model, Engine(kind=kind))
        scorer.encode(padded(rows))
        once = scorer.step(fed)
        got = np.asarray(scorer.log_probs(once))[..., known]
        np.testing.assert_allclose(got, wanted, atol=1e-4)
        scorer.keep(starts.tolist())  # of each row another length
        some = np.stack([row[n : n + 5] for row, n in zip(fed, starts, strict=True)])
        again = scorer.step(some)
        for number, start in enumerate(starts):
            first, second = np.asarray(once)[number, start : start + 5], np.asarray(again)[number]
            if kind == "native":
                assert (first == second).all()
            np.testing.assert_allclose(first, second, atol=1e-4)


def compare(family: str, lines: list[str]) -> None:
    """Compare outputs of all decoders with those of transformers."""
    there, translator = There(family), imported(family)[1]
    rows = there.read(lines)
    greedy = there.generate(rows, 1)
    assert len({*map(len, greedy)}) > 2
    assert decode(translator, rows, decoding="greedy") == greedy
    for flags in EXACT:
        assert decode(translator, rows, **flags) == greedy, flags
    beams = there.generate(rows, 5)
    # At the limit the two count </s> differently.
    ended = [number for number, row in enumerate(beams) if len(row) <= LIMIT]
    assert ended
    for flags in BEAMS:
        found = decode(translator, rows, beam=5, **flags)
        assert [found[n] for n in ended] == [beams[n] for n in ended], flags


@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_are_those_of_transformers(family: str) -> None:
    compare(family, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_of_many_sentences_are_those_of_transformers(family: str) -> None:
    for first in range(0, len(LINES), 25):
        compare(family, LINES[first : first + 25])


@pytest.mark.parametrize("family", FAMILIES)
def test_text_is_split_as_by_transformers(family: str, tmp_path: Path) -> None:
    """By sentencepiece alone, and by what transformers writes, which cuts MADLAD's tags out."""
    import sentencepiece
    from transformers import T5Tokenizer

    folder = shutil.copytree(saved(family)[0], tmp_path / "folder")
    before = {"t5": "translate English to German: ", "mt5": "", "madlad": "<2de> "}[family]
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    tokenizer = T5Tokenizer.from_pretrained(folder)
    lines = [*LINES[:20], "  Two  spaces ", "café ﬁne"]
    for round in range(2):
        out = tmp_path / f"out-{round}"
        assert main(["import", "hf", str(folder), str(out), *PAIR]) == 0
        there, own = There(family), fairseq_paradec.load(out)
        for line in lines:
            found = [there.order[n] for n in own.sources.encode_line(own.encode(line))]
            if round == 0:
                assert found == [*pieces.encode(before + line), pieces.eos_id()], line
            # There an unknown piece is that of T5's number, whatever the model says.
            if (round == 1 or family != "madlad") and pieces.unk_id() not in found[:-1]:
                assert found == tokenizer(before + line)["input_ids"], line
        tokenizer.save_pretrained(folder)


def test_a_token_of_a_tree_is_scored_as_a_row_that_holds_its_path() -> None:
    """Rows of a tree by native passes give the same bits as plain rows, and torch's about them."""
    model, rows = imported("mt5")[1].core.model, There("mt5").read(LINES[:1])
    path, other = [EOS, 5, 9, 12, 30, 31], [7, 8]
    found = {}
    for kind in ("native", "torch"):
        scorer = ChunkScorer(model, Engine(kind=kind))
        scorer.encode(padded(rows))
        plain = np.asarray(scorer.step(np.array([path])))[0]
        scorer.encode(padded(rows))
        scorer.step(np.array([path[:3]]))
        scorer.keep([3])
        # Slots 3 to 7: two branches, in turns.
        tokens = [path[3], other[0], path[4], other[1], path[5]]
        parents = [-1, -1, 0, 1, 2]
        sees = np.zeros((1, 5, 5), bool)
        for number, parent in enumerate(parents):
            while parent >= 0:
                sees[0, number, parent], parent = True, parents[parent]
        tree = Tree([3], sees, np.array([[0, 0, 1, 1, 2]], np.int32))
        found[kind] = np.asarray(scorer.step(np.array([tokens]), tree))[0]
        branch = found[kind][[0, 2, 4]]
        if kind == "native":
            assert (branch == plain[3:]).all()
        np.testing.assert_allclose(branch, plain[3:], atol=1e-4)
    np.testing.assert_allclose(found["native"], found["torch"], atol=1e-4)


@pytest.mark.parametrize("form", ["bf16", "int8"])
def test_a_packed_folder_gives_the_same_outputs(form: str, tmp_path: Path) -> None:
    """Weights of a form that lie in the folder are those that are packed in memory."""
    out, translator = imported("madlad")
    rows = There("madlad").read(FEW)
    wanted = decode(translator, rows, decoding="greedy", engine_dtype=form)
    assert decode(translator, rows, decoding="hgj", engine_dtype=form) == wanted
    packing = ["pack", str(out), str(tmp_path / "packed"), "-s", "en", "-t", "de"]
    packing += ["--path", str(out / "model.safetensors"), "--engine-dtype", form]
    assert main([*packing, "--packed-only"]) == 0
    packed = fairseq_paradec.load(tmp_path / "packed")
    assert packed.core.model.is_packed_only
    assert decode(packed, rows, decoding="greedy") == wanted


def test_drafts_in_fewer_bits_change_no_output() -> None:
    translator, rows = imported("mt5")[1], There("mt5").read(FEW)
    wanted = decode(translator, rows, decoding="greedy")
    for form in ("int8", "int4", "bf16"):
        flags = {"decoding": "self_draft", "drafter_dtype": form}
        assert decode(translator, rows, **flags) == wanted, form


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_and_samples_are_those_of_the_other_engine(family: str) -> None:
    translator = imported(family)[1]
    pairs = LINES[:5], ["house dog", "a", "water table", "two girls", "sun"]
    native, other = (
        [one.score for one in translator.score(*pairs, engine=kind)] for kind in ("native", "torch")
    )
    assert native == pytest.approx(other, abs=1e-4)
    flags = {"decoding": "greedy", "sampling": True, "seed": 3}
    rows = There(family).read(FEW)
    assert decode(translator, rows, **flags) == decode(translator, rows, engine="torch", **flags)


def test_a_record_of_this_version_comes_back_and_older_ones_load(tmp_path: Path) -> None:
    """A model of fairseq's names none of T5's fields, so that earlier versions read it."""
    model = imported("t5")[1].core.model
    model.save(tmp_path / "t5.safetensors")
    assert file.read(tmp_path / "t5.safetensors")[0] == model.architecture
    demo = Model.read(DEMO / "model.pt", *(fairseq_paradec.load(DEMO).core.words))
    demo.save(tmp_path / "demo.safetensors")
    content = (tmp_path / "demo.safetensors").read_bytes()
    header = content[8 : 8 + int.from_bytes(content[:8], "little")]
    assert b"pre_norm" in header
    for name in (b"head_size", b"epsilon", b"is_rms", b"relative", b"gated", b"biases"):
        assert name not in header, name
    assert file.read(tmp_path / "demo.safetensors")[0] == demo.architecture


def test_what_needs_fairseq_is_refused_in_one_line(capsys: Any) -> None:
    out = str(imported("t5")[0])
    sentence = ["--model", out, "--text", "A dog.", "--decoding", "greedy"]
    for flags, named in ((["--audit"], "--audit"), (["--engine-dtype", "fp16"], "fp16")):
        assert main(["translate", *sentence, *flags]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and named in said and "this one is a t5" in said
    with pytest.raises(UsageError, match="got a t5 model, whose positions are relative"):
        checkpoint_of(f"{out}/model.safetensors")


def test_doctor_says_what_fits(capsys: Any) -> None:
    assert main(["doctor", str(imported("madlad")[0])]) == 0
    said = capsys.readouterr().out
    assert "t5, " in said and "3 layers, pre-norm, d = 24, feed-forward 40, 4 heads" in said
    assert "hgj" in said and "no: " not in "".join(
        line for line in said.splitlines() if line.split()[:1] in (["hgj"], ["self_draft"])
    )


def test_a_selftest_passes(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    lines = [line for line in LINES if line.isascii()][:8]
    (tmp_path / "few.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    monkeypatch.setattr(selftest, "SENTENCES", tmp_path / "few.txt")
    status = main(["import", "--selftest", str(saved("t5")[0]), *PAIR])
    said = capsys.readouterr().out
    assert status == 0 and "selftest passed: T5ForConditionalGeneration en-de" in said, said
    assert "sources 8 of 8" in said


@pytest.mark.parametrize("start", [7, None])
def test_outputs_begin_as_generate_does(start: int | None, tmp_path: Path) -> None:
    """generation_config.json's first input goes before that of config.json."""
    from transformers import AutoModelForSeq2SeqLM

    folder = shutil.copytree(saved("t5")[0], tmp_path / "folder")
    about = {"decoder_start_token_id": start, "eos_token_id": 1, "pad_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(about))
    assert main(["import", str(folder), str(tmp_path / "out"), *PAIR]) == 0
    there, translator = There("t5"), fairseq_paradec.load(tmp_path / "out")
    there.model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    if start is None:  # which generate itself refuses
        there.model.generation_config.decoder_start_token_id = 0
    rows = there.read(FEW)
    found = decode(translator, rows, decoding="self_draft")
    assert found == there.generate(rows, 1)
    assert (found == There("t5").generate(rows, 1)) == (start is None)


def test_settings_of_generate_that_are_not_read_are_named(tmp_path: Path, caplog: Any) -> None:
    folder = shutil.copytree(saved("t5")[0], tmp_path / "folder")
    put_settings = (folder / "generation_config.json").write_text
    for given, named in (
        ({"forced_bos_token_id": 9}, "forced_bos_token_id is 9 and not read"),
        ({"eos_token_id": [1, 20]}, "eos_token_id is [1, 20] and not read"),
        ({"eos_token_id": 20}, "eos_token_id is 20 and not read"),
        ({"eos_token_id": [1]}, ""),
        ({"eos_token_id": 1, "forced_bos_token_id": None}, ""),
    ):
        put_settings(json.dumps(given))
        caplog.clear()
        hugging_face.read(folder, "en", "de")
        said = [record.getMessage() for record in caplog.records]
        assert (len(said) == 1 and named in said[0]) if named else not said, said


def change(**settings: Any) -> Spoil:
    """A step that changes config.json."""
    return put("config.json", lambda was: json.dumps(json.loads(was) | settings).encode())


def whole_numbers(name: str) -> Spoil:
    """A step that makes a weight's numbers whole ones."""

    def spoil(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        weights[name] = weights[name].to(torch.int64)
        save_file(weights, folder / "model.safetensors")

    return spoil


BAD: list[tuple[str, Any, list[str], str]] = [
    ("t5", change(model_type="umt5"), PAIR, "model_type|umt5|t5, mt5"),
    ("t5", change(relative_attention_num_buckets=0), PAIR, "num_buckets|got 0|from 1 up"),
    ("t5", change(relative_attention_num_buckets=7), PAIR, "7 buckets|an even number"),
    ("t5", change(relative_attention_max_distance=8), PAIR, "the distance 8|a larger distance"),
    ("t5", change(relative_attention_max_distance=1 << 20), PAIR, "1048576|at most 4096"),
    ("t5", change(relative_attention_num_buckets=16), PAIR, "relative_bias|(8, 3)|(16, 3)"),
    ("t5", change(d_kv=6), PAIR, "k_proj|(15, 24)|(18, 24)"),
    ("t5", change(d_kv=1 << 30), PAIR, "attention_heads|together below"),
    ("t5", change(num_heads="3"), PAIR, "num_heads|'3'|whole number"),
    ("t5", change(num_layers=1 << 20), PAIR, "layers|1048576"),
    ("t5", change(num_layers=4), PAIR, "layers.3|got none"),
    ("t5", change(num_decoder_layers=0), PAIR, "num_decoder_layers|got 0"),
    ("t5", change(vocab_size=1 << 30), PAIR, "model.safetensors|(170, 24)|1073741824"),
    ("t5", change(layer_norm_epsilon="x"), PAIR, "layer_norm_epsilon|'x'"),
    ("t5", change(layer_norm_epsilon=0), PAIR, "layer_norm_epsilon|got 0|above 0"),
    ("t5", change(decoder_start_token_id=True), PAIR, "decoder_start_token_id|True|0 to 169"),
    ("t5", whole_numbers("shared.weight"), PAIR, "embeddings of int64|fractions"),
    ("mt5", whole_numbers("lm_head.weight"), PAIR, "embeddings of int64|fractions"),
    ("t5", change(feed_forward_proj="gated-mish"), PAIR, "feed_forward_proj|gated-mish|gated-gelu"),
    ("t5", change(feed_forward_proj="gated-gelu"), PAIR, "layers.0.fc|got none"),
    ("t5", change(pad_token_id=500), PAIR, "pad_token_id|500|0 to 169"),
    ("t5", change(eos_token_id=0), PAIR, "</s>"),
    ("t5", change(decoder_start_token_id=999), PAIR, "decoder_start_token_id|999|0 to 169"),
    ("t5", lose("spiece.model"), PAIR, "spiece.model|missing"),
    ("t5", put("spiece.model", b"x"), PAIR, "spiece.model|sentencepiece wrote"),
    ("t5", lose("model.safetensors"), PAIR, "model.safetensors"),
    ("t5", lambda _: None, ["--source", "en", "--target", "xx"], "--target|'xx'|en, de, fr, ro"),
    ("madlad", lambda _: None, ["--source", "en", "--target", "xx"], "--target|'xx'|3 languages"),
    ("mt5", lambda _: None, ["--source", "en"], "--target|None|a language"),
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_files_are_named_in_one_line(number: int, tmp_path: Path, capsys: Any) -> None:
    family, spoil, flags, words = BAD[number]
    folder = shutil.copytree(saved(family)[0], tmp_path / "folder")
    spoil(folder)
    assert main(["import", "hf", str(folder), str(tmp_path / "out"), *flags]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and all(word in said for word in words.split("|")), said
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_tasks_of_t5_are_named_by_their_languages() -> None:
    """By config.json, or else by T5's names of them."""
    for source, target, text in (
        ("en", "de", "translate English to German:"),
        ("fr", "ro", "translate French to Romanian:"),
    ):
        before = hugging_face.read(saved("t5")[0], source, target).before
        assert "".join(before).replace("\u2581", " ").strip() == text


@pytest.mark.parametrize(
    "family", ["t5", *(pytest.param(one, marks=pytest.mark.slow) for one in OTHERS)]
)
def test_import_needs_no_torch(family: str, tmp_path: Path) -> None:
    """Where torch and fairseq are blocked; weights of safetensors, and of a pickle of torch's."""
    if family == "t5":
        given, pair = saved(family)[0], PAIR
    else:
        made = foreign.saved(family)
        there, here = (one.strip("_") for one in made.languages)
        given, pair = made.folder, ["--source", there, "--target", here]
    pickled = shutil.copytree(given, tmp_path / "pickled")
    weights = load_file(pickled / "model.safetensors")
    (pickled / "model.safetensors").unlink()
    torch.save(weights, pickled / "pytorch_model.bin")
    said = []
    (tmp_path / "text").write_text("\n".join(LINES[:6]), "utf-8")
    for number, folder in enumerate((given, pickled)):
        out = tmp_path / str(number)
        done = alone("import", "hf", str(folder), str(out), *pair)
        assert done.returncode == 0 and not done.stderr, done.stderr
        flags = ["--decoding", "self_draft", str(tmp_path / "text")]
        done = alone("translate", "--model", str(out), *flags)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.splitlines())
    assert said[0] == said[1] == fairseq_paradec.load(out).translate(LINES[:6], decoding="greedy")
