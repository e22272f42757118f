"""Every option of fairseq-generate and -interactive: fairseq beside the plugin, and the table.

In ``tests``, ``python -m support.fairseq_options`` runs all cases and writes the page anew.
"""

import argparse
import json
import math
import random
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from fairseq import options
from fairseq.data import Dictionary
from fairseq.models.transformer_lm import (
    TransformerLanguageModel,
    TransformerLanguageModelConfig,
)
from fairseq.tasks.language_modeling import LanguageModelingConfig, LanguageModelingTask
from fairseq.tasks.translation import TranslationConfig

from fairseq_paradec.config import SEARCH_OPTIONS
from fairseq_paradec.plugin.compat import given
from fairseq_paradec.plugin.tasks.flags import ParallelTranslationConfig
from support import builders
from support.commands import ROOT, fairseq, run_python, succeed

TESTS = ROOT / "tests"

PAGE = ROOT / "docs" / "fairseq-options.md"
#: The lines before and after what is generated.
BEGIN = "<!-- by python -m support.fairseq_options, in tests -->"
END = "<!-- end of what is generated -->"

PARSERS = {
    "fairseq-generate": options.get_generation_parser,
    "fairseq-interactive": options.get_interactive_generation_parser,
}
#: What our side decodes by, and what fairseq is given to compare with.
DECODINGS: dict[str, list[str]] = {"beam": [], "greedy": ["--beam", "1"]}
#: How far scores of greedy passes may be from fairseq's; those of its own search are the same text.
CLOSE = 5e-4


@dataclass(frozen=True)
class Values:
    """Two values of an option as typed, one of a switch, and what lets them show.

    ``interactive`` is what fairseq-interactive needs besides.
    """

    typed: Sequence[str]
    beside: str = ""
    interactive: str = ""


#: Options whose type does not say what they take, or that show beside others alone. ``{...}`` are
#: the places of ``make_files``.
VALUES: dict[str, Values] = {
    # files and parts
    "path": Values(["--path {files}/other.pt", "--path {files}/model.pt:{files}/other.pt"]),
    "user_dir": Values(["--user-dir {files}/user_a", "--user-dir {files}/user_b"]),
    "input": Values(["--input {files}/other.txt", "--input {files}/nothing.txt"]),
    "results_path": Values(["--results-path results", "--results-path more/deep"]),
    "task": Values(["--task translation", "--task translation_lev"]),
    "source_lang": Values(["-s de -t en", "-s xx"]),
    "target_lang": Values(["-t en -s de", "-t xx"]),
    "gen_subset": Values(["--gen-subset valid", "--gen-subset none"]),
    "train_subset": Values(["--train-subset test", "--train-subset valid"]),
    "model_overrides": Values(
        ["--model-overrides {'decoder_layers_to_keep':'0'}", "--model-overrides {'dropout':0}"]
    ),
    "checkpoint_suffix": Values(["--checkpoint-suffix=-b", "--checkpoint-suffix=-none"]),
    "checkpoint_shard_count": Values(["--checkpoint-shard-count 1", "--checkpoint-shard-count 2"]),
    "dataset_impl": Values(["--dataset-impl raw", "--dataset-impl mmap"]),
    "tokenizer": Values(["--tokenizer moses", "--tokenizer space"]),
    "bpe": Values(["--bpe subword_nmt --bpe-codes {files}/codes", "--bpe characters"]),
    "bpe_codes": Values(
        ["--bpe-codes {files}/codes", "--bpe-codes {files}/none"], "--bpe subword_nmt"
    ),
    "bpe_separator": Values(
        ["--bpe-separator @@", "--bpe-separator ##"], "--bpe subword_nmt --bpe-codes {files}/codes"
    ),
    "moses_no_dash_splits": Values(["--moses-no-dash-splits"], "--tokenizer moses"),
    "moses_no_escape": Values(["--moses-no-escape"], "--tokenizer moses"),
    "scoring": Values(["--scoring sacrebleu", "--scoring chrf"]),
    "sacrebleu_tokenizer": Values(
        ["--sacrebleu-tokenizer char", "--sacrebleu-tokenizer none"], "--scoring sacrebleu"
    ),
    "sacrebleu_lowercase": Values(["--sacrebleu-lowercase"], "--scoring sacrebleu"),
    "sacrebleu_char_level": Values(["--sacrebleu-char-level"], "--scoring sacrebleu"),
    "post_process": Values(["--post-process", "--post-process sentencepiece"]),
    "log_format": Values(["--log-format json", "--log-format none"]),
    # data
    "max_tokens": Values(["--max-tokens 40", "--max-tokens 7"]),
    "batch_size": Values(["--batch-size 3", "--batch-size 1"]),
    "buffer_size": Values(["--buffer-size 3", "--buffer-size 100"], "--batch-size 2"),
    "num_workers": Values(["--num-workers 1", "--num-workers 2"]),
    "required_batch_size_multiple": Values(
        ["--required-batch-size-multiple 2", "--required-batch-size-multiple 8"], "--batch-size 5"
    ),
    "skip_invalid_size_inputs_valid_test": Values(
        [
            "--skip-invalid-size-inputs-valid-test --max-source-positions 6",
            "--skip-invalid-size-inputs-valid-test --max-target-positions 6",
        ]
    ),
    "max_source_positions": Values(["--max-source-positions 6", "--max-source-positions 90"]),
    "max_target_positions": Values(["--max-target-positions 6", "--max-target-positions 90"]),
    "truncate_source": Values(["--truncate-source"], "--max-source-positions 6"),
    "num_batch_buckets": Values(["--num-batch-buckets 2", "--num-batch-buckets 3"]),
    "num_shards": Values(["--num-shards 2", "--num-shards 3"], "--batch-size 3"),
    "shard_id": Values(["--shard-id 0", "--shard-id 1"], "--num-shards 2 --batch-size 3"),
    "distributed_world_size": Values(
        ["--distributed-world-size 2", "--distributed-world-size 3"], "--batch-size 3"
    ),
    "distributed_rank": Values(
        ["--distributed-rank 0", "--distributed-rank 1"],
        "--distributed-world-size 2 --batch-size 3",
    ),
    "distributed_init_method": Values(
        ["--distributed-init-method env://", "--distributed-init-method tcp://localhost:9"]
    ),
    # the search
    "beam": Values(["--beam 2", "--beam 1"]),
    "nbest": Values(["--nbest 2", "--nbest 1"]),
    "max_len_a": Values(["--max-len-a 0.5", "--max-len-a 2"], "--max-len-b 2 --batch-size 1"),
    "max_len_b": Values(["--max-len-b 3", "--max-len-b 300"]),
    "min_len": Values(["--min-len 5", "--min-len 9"]),
    "lenpen": Values(["--lenpen 0", "--lenpen 2.5"]),
    "unkpen": Values(["--unkpen -9", "--unkpen 3"]),
    "temperature": Values(["--temperature 3", "--temperature 0.5"]),
    "prefix_size": Values(["--prefix-size 1", "--prefix-size 3"]),
    "no_repeat_ngram_size": Values(["--no-repeat-ngram-size 1", "--no-repeat-ngram-size 2"]),
    "diverse_beam_groups": Values(["--diverse-beam-groups 5", "--diverse-beam-groups 1"]),
    "diverse_beam_strength": Values(
        ["--diverse-beam-strength 9", "--diverse-beam-strength 0"], "--diverse-beam-groups 5"
    ),
    "diversity_rate": Values(["--diversity-rate 5", "--diversity-rate 0"]),
    "match_source_len": Values(["--match-source-len"]),
    "score_reference": Values(["--score-reference"]),
    "seed": Values(["--seed 2", "--seed 3"], "--sampling --beam 1"),
    "no_seed_provided": Values(["--no-seed-provided"], "--sampling --beam 1"),
    "sampling": Values(["--sampling", "--sampling --beam 1"]),
    "sampling_topk": Values(["--sampling-topk 1", "--sampling-topk 3"], "--sampling --beam 1"),
    "sampling_topp": Values(["--sampling-topp 0.1", "--sampling-topp 0.9"], "--sampling --beam 1"),
    "constraints": Values(
        ["--constraints", "--constraints unordered"],
        interactive="--input {files}/constrained.txt",
    ),
    "print_alignment": Values(["--print-alignment", "--print-alignment soft"]),
    "replace_unk": Values(
        ["--replace-unk", "--replace-unk {files}/words"], "--unkpen -9 --dataset-impl raw"
    ),
    "lm_path": Values(["--lm-path {files}/lm.pt", "--lm-path {files}/lm.pt --lm-weight 0.5"]),
    "lm_weight": Values(["--lm-weight 0.9", "--lm-weight 0.1"], "--lm-path {files}/lm.pt"),
    "retain_dropout_modules": Values(
        [
            "--retain-dropout-modules TransformerEncoderLayerBase",
            "--retain-dropout-modules TransformerDecoderLayerBase",
        ],
        "--retain-dropout",
    ),
    "iter_decode_max_iter": Values(["--iter-decode-max-iter 1", "--iter-decode-max-iter 3"]),
    # training
    "criterion": Values(["--criterion ctc", "--criterion label_smoothed_cross_entropy"]),
    "lr_scheduler": Values(["--lr-scheduler fixed", "--lr-scheduler inverse_sqrt"]),
    "max_tokens_valid": Values(["--max-tokens-valid 2", "--max-tokens-valid 3"]),
    "batch_size_valid": Values(["--batch-size-valid 2", "--batch-size-valid 3"]),
    "update_epoch_batch_itr": Values(
        ["--update-epoch-batch-itr True", "--update-epoch-batch-itr False"]
    ),
    "optimizer_overrides": Values(["--optimizer-overrides {}", "--optimizer-overrides {'lr':1}"]),
    "eval_bleu_args": Values(["--eval-bleu-args {}", '--eval-bleu-args {"beam":2}']),
    "eval_bleu_detok_args": Values(
        ["--eval-bleu-detok-args {}", '--eval-bleu-detok-args {"target_lang":"de"}']
    ),
}


# ---- what the cases run on -----------------------------------------------------------------------


def make_files(folder: Path) -> None:
    """Write a data folder, models of random weights and what else the values name."""
    rng = random.Random(3)
    #: Beginnings of words for BPE and sentencepiece, and some that Moses writes in its own way.
    words = [f"a{i}@@" for i in range(6)] + [f"▁b{i}" for i in range(6)] + ["&quot;", ",", "."]
    sides = {"en": [*words, "c0-c1", "w@-@x"], "de": [*words, "Ä0", "ä0"]}
    for split, count in (("test", 16), ("valid", 8)):
        for side, kinds in sides.items():
            lines = [" ".join(rng.choices(kinds, k=rng.randint(2, 11))) for _ in range(count)]
            if split == "test":
                lines[3:5] = [" ".join(kinds), lines[3]]  # every word occurs
                (folder / f"other.{side}.txt").write_text("\n".join(lines[:4]) + "\n", "utf-8")
            (folder / f"{split}.{side}").write_text("\n".join(lines) + "\n", "utf-8")
    data, pair = folder / "data", ["-s", "en", "-t", "de"]
    prefixes = ["--testpref", folder / "test", "--validpref", folder / "valid"]
    for side in sides:
        dictionary = Dictionary()
        for word in sides[side]:
            dictionary.add_symbol(word)
        dictionary.save(str(folder / f"dict.{side}.txt"))
    dictionaries = ["--srcdict", folder / "dict.en.txt", "--tgtdict", folder / "dict.de.txt"]
    for form in ("mmap", "raw"):
        more = ["--dataset-impl", form, "--destdir", data]
        succeed(fairseq("preprocess", *pair, *prefixes, *dictionaries, *more))
    (data / "dict.txt").write_text((data / "dict.de.txt").read_text("utf-8"), "utf-8")
    (folder / "other.txt").write_text((folder / "other.en.txt").read_text("utf-8"), "utf-8")
    (folder / "lines.txt").write_text((folder / "test.en").read_text("utf-8"), "utf-8")
    (folder / "nothing.txt").write_text("", "utf-8")
    lines = (folder / "test.en").read_text("utf-8").splitlines()
    constrained = [f"{line}\t{rng.choice(sides['de'])}" for line in lines]
    (folder / "constrained.txt").write_text("\n".join(constrained) + "\n", "utf-8")
    (folder / "codes").write_text("#version: 0.2\na 0\n", "utf-8")
    (folder / "words").write_text("▁b1 ein\n▁b2 zwei\n", "utf-8")
    for name in ("user_a", "user_b"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("", "utf-8")
    _save_models(folder, data)


def _save(task: Any, model: Any, path: Path, arch: str, **named: str) -> None:
    """Save a model with few settings, which load in half the time."""
    builders.save_drafter(task, model, path, arch, **named)
    state = torch.load(path, weights_only=False)
    state["cfg"] = {key: state["cfg"][key] for key in ("task", "model", "dataset", "common")}
    torch.save(state, path)


def _save_models(folder: Path, data: Path) -> None:
    """Save two translation models and a language model of random weights."""
    source, target = (Dictionary.load(str(data / f"dict.{side}.txt")) for side in ("en", "de"))
    plain = builders.ParallelTranslationConfig()
    task = builders.ParallelTranslationTask(plain, source, target)
    for seed, names in enumerate((["model.pt"], ["other.pt", "model-b.pt"])):
        model = builders.tiny_model(task, dtype=torch.float32, seed=seed, max_target_positions=60)
        for name in names:
            path = folder / name
            _save(task, model, path, "transformer", source_lang="en", target_lang="de")
    sizes = {"decoder_embed_dim": 16, "decoder_ffn_embed_dim": 32, "decoder_layers": 1}
    config = TransformerLanguageModelConfig(
        **sizes, decoder_attention_heads=2, tokens_per_sample=64, max_target_positions=64
    )
    language = LanguageModelingTask(LanguageModelingConfig(data=str(data)), target)
    language.cfg = language.args  # where other tasks have it
    torch.manual_seed(5)
    model = TransformerLanguageModel.build_model(config, language)
    model.flags = argparse.Namespace(**asdict(config))
    named = {"_name": "language_modeling", "data": str(data)}
    _save(language, model, folder / "lm.pt", "transformer_lm", **named)


# ---- options and cases ---------------------------------------------------------------------------


def fairseqs_options(command: str) -> dict[str, argparse.Action]:
    """Return every option of a command of fairseq, those of some tokenizer, BPE and score too."""
    parser = PARSERS[command](default_task="translation")
    parts = "--tokenizer moses --bpe subword_nmt".split()
    if command == "fairseq-generate":
        parts += ["--scoring", "sacrebleu"]
    words = ["data", "--path", "model.pt", "-s", "en", "-t", "de", *parts]
    options.parse_args_and_arch(parser, words)
    own = {one.name for one in fields(ParallelTranslationConfig)}
    own -= {one.name for one in fields(TranslationConfig)}
    return {
        one.dest: one
        for one in parser._actions
        if one.option_strings and one.dest not in own | {"help"}
    }


def values_of(action: argparse.Action) -> Values:
    """Return what an option is tried with."""
    if action.dest in VALUES:
        return VALUES[action.dest]
    flag = action.option_strings[0]
    if action.nargs == 0:
        return Values([flag])
    kinds: dict[Any, Sequence[object]] = {int: (2, 3), float: (0.5, 0.25)}
    chosen = kinds.get(action.type, [*(action.choices or ("this", "that"))][:2])
    return Values([f"{flag} {value}" for value in chosen])


def read_by(command: str) -> frozenset[str]:
    """Return the options that a command reads, by the plugin's own list."""
    parts = {"bpe_codes", "bpe_separator", "moses_no_dash_splits", "moses_no_escape"}
    read = given.BOTH | given.ALONE[command] | {*SEARCH_OPTIONS} | parts
    if command == "fairseq-interactive":
        return read - given.NOT_INTERACTIVE
    return read | {"sacrebleu_tokenizer", "sacrebleu_lowercase", "sacrebleu_char_level"}


#: A case: the command and its words.
Case = tuple[str, list[str]]


@dataclass(frozen=True, eq=False)
class Trial:
    """One option at one value: fairseq without and with it, and ours."""

    option: str
    flag: str
    command: str
    decoding: str
    number: int
    without: Case
    stock: Case
    ours: Case


def trials(files: str) -> Iterator[Trial]:
    """Yield all, on the files of ``make_files``."""
    base = f"{files}/data --path {files}/model.pt -s en -t de --cpu --max-len-b 12"
    more = {
        "fairseq-generate": "--num-workers 0 --required-batch-size-multiple 1",
        "fairseq-interactive": f"--input {files}/lines.txt --buffer-size 16 --batch-size 16",
    }
    for command in PARSERS:
        usual = f"{base} {more[command]}".split()
        for name, action in fairseqs_options(command).items():
            values = values_of(action)
            decodings = DECODINGS if name in read_by(command) else {"beam": []}
            beside = values.beside.split()
            if command == "fairseq-interactive":
                beside += values.interactive.split()
            beside = [word.replace("{files}", files) for word in beside]
            for decoding, compared in decodings.items():
                stock = [*usual, *compared, *beside]
                ours = [*usual, "--decoding", decoding, *beside]
                for number, typed in enumerate(values.typed):
                    words = typed.replace("{files}", files).split()
                    yield Trial(
                        name,
                        action.option_strings[0],
                        command,
                        decoding,
                        number,
                        (command, stock),
                        (command, [*stock, *words]),
                        (command, [*ours, *words]),
                    )


#: What comes of a case: see ``side_by_side.run_case``.
Outcome = dict[str, Any]


def run_all(folder: Path) -> dict[Trial, tuple[Outcome, Outcome, Outcome]]:
    """Run each trial in processes with and without the plugin, on the files of ``make_files``.

    What a command does not read is given to fairseq together, as long as that changes nothing.
    """
    make_files(folder)
    every = [*trials(str(folder))]
    single: dict[str, tuple[str, list[str], list[list[str]]]] = {}
    together: dict[tuple[str, int], tuple[str, list[str], list[list[str]]]] = {}
    for trial in every:
        command, words = trial.stock
        single[json.dumps(trial.without)] = (*trial.without, [[]])
        if trial.option in read_by(command) or VALUES.get(trial.option, Values([])).beside:
            single[json.dumps(trial.stock)] = (command, words, [[]])
            continue
        base = trial.without[1]
        group = together.setdefault((command, trial.number), (command, base, []))
        group[2].append(words[len(base) :])
    with ThreadPoolExecutor() as pool:
        own: list[Any] = [(*trial.ours, [[]]) for trial in every]
        ours = pool.submit(_run, own, folder, with_plugin=True)
        stock = pool.submit(_run, [*together.values(), *single.values()], folder, with_plugin=False)
    return {
        trial: (
            stock.result()[json.dumps(trial.without)],
            stock.result()[json.dumps(trial.stock)],
            ours.result()[json.dumps(trial.ours)],
        )
        for trial in every
    }


def unread(ours: Outcome) -> bool:
    """Return whether an option was refused since the command reads it nowhere."""
    return bool(ours["error"]) and " does not read it; " in ours["error"][1]


def _run(cases: Sequence[Any], folder: Path, with_plugin: bool) -> dict[str, Outcome]:
    """Run cases in two processes; return what comes of each, by the case in JSON."""
    side = folder / ("with" if with_plugin else "without")
    with ThreadPoolExecutor() as pool:
        found = [*pool.map(_run_in_one, (cases[::2], cases[1::2]), (f"{side}0", f"{side}1"))]
    return found[0] | found[1]


def _run_in_one(cases: Sequence[Any], folder: str) -> dict[str, Outcome]:
    """Run cases in one process, whose own folder names the side."""
    here = Path(folder)
    here.mkdir()
    asked, answers = here / "asked.json", here / "answers.json"
    asked.write_text(json.dumps(cases), "utf-8")
    code = (
        f"import sys; from pathlib import Path; sys.path.insert(0, {str(TESTS)!r}); "
        "from support.side_by_side import run_cases; "
        f"run_cases(Path({str(asked)!r}), Path({str(answers)!r}), {'without' not in here.name})"
    )
    # Without the plugin torch takes fairseq's checkpoints for unsafe.
    env = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1", "CUDA_VISIBLE_DEVICES": ""}
    succeed(run_python(code, env=env, cwd=here, longest=3600))
    found: dict[str, Outcome] = json.loads(answers.read_text("utf-8"))
    return found


# ---- what they say -------------------------------------------------------------------------------


def effect(without: Outcome, stock: Outcome) -> str:
    """Return what an option does to fairseq."""
    if stock["error"]:
        return "error"
    return "nothing" if stock == without else "changes"


def verdict(trial: Trial, without: Outcome, stock: Outcome, ours: Outcome) -> str:
    """Return how ours compares."""
    if ours["error"]:
        kind, said = ours["error"]
        words = trial.ours[1][trial.ours[1].index("--decoding") + 2 :]
        typed = {word for word in words if word.startswith("-")} | {trial.flag}
        named = any(re.search(rf"(?<![\w-]){re.escape(word)}\b", said) for word in typed)
        if kind == "UsageError" and (named or stock["error"]):
            return "refused"
        theirs, their_words = stock["error"] or ("", "")
        # The rest may list what there is, of which the plugin has more.
        return "same error" if (kind, said[:50]) == (theirs, their_words[:50]) else "fails"
    if stock["error"]:
        return "differs"
    return "same" if equal(stock["lines"], ours["lines"], trial.decoding != "beam") else "differs"


def equal(ones: Mapping[str, list[str]], others: Mapping[str, list[str]], close: bool) -> bool:
    """Return whether two outputs have the same sentences and lines, with scores that are close."""
    if ones.keys() != others.keys():
        return False
    for number, lines in ones.items():
        if len(lines) != len(others[number]):
            return False
        for one, other in zip(lines, others[number], strict=True):
            if one != other and not (close and _close(one, other)):
                return False
    return True


def _close(one: str, other: str) -> bool:
    """Return whether two lines differ in the last digits of scores alone."""
    pairs = [*zip(one.split(), other.split())]
    if len(one.split()) != len(other.split()) or one[0] not in "HDP":
        return False
    return all(a == b or _numbers_close(a, b) for a, b in pairs)


def _numbers_close(a: str, b: str) -> bool:
    try:
        return math.isclose(float(a), float(b), abs_tol=CLOSE)
    except ValueError:
        return False


# ---- the page ------------------------------------------------------------------------------------

#: Why an option differs, or why ``beam`` refuses what fairseq reads.
_EVERY = "every sentence has its line"
_IGNORED = "fairseq 0.12 ignores it; here it is honoured"
_DRAWS = "other draws of the same distribution"
_ROUNDING = "scores round otherwise in a pass over several tokens"
REASONS: dict[str, str] = {
    "bf16": _IGNORED,
    "memory_efficient_bf16": _IGNORED,
    "fp16": _ROUNDING,
    "memory_efficient_fp16": _ROUNDING,
    **dict.fromkeys(("sampling", "sampling_topk", "sampling_topp", "seed"), _DRAWS),
    "task": "another task has no `--decoding`",
    "max_tokens": f"{_EVERY}: a longer one is decoded alone",
    "required_batch_size_multiple": f"{_EVERY}: fairseq drops the rest of a batch",
    "num_shards": _IGNORED,
    "shard_id": _IGNORED,
    "no_repeat_ngram_size": "on a CPU fairseq 0.12 forbids nothing",
    "print_alignment": "soft ones are the same to the sixth digit",
    "replace_unk": "fairseq's search ends with an error at the first `<unk>`, or without a file",
    "print_step": "fairseq's search ends with a KeyError",
    "retain_iter_history": "fairseq's search ends with a KeyError",
    "max_source_positions": f"{_EVERY}: a longer one has an empty output, with a warning",
    "num_batch_buckets": "fairseq 0.12 does not work with numpy 2",
    "distributed_init_method": "fairseq starts a process for each GPU: without one it prints "
    "nothing",
}

#: What comes of all trials.
Results = Mapping[Trial, tuple[Outcome, Outcome, Outcome]]


@dataclass(frozen=True)
class Cell:
    """What comes of an option with a command and a decoder, at all its values."""

    option: str
    command: str
    decoding: str
    effects: tuple[str, ...]
    verdicts: tuple[str, ...]

    @property
    def needs_reason(self) -> bool:
        """Whether ours does other than fairseq, without an error that names the option."""
        if {"differs", "fails"} & {*self.verdicts}:
            return True
        refused = ("changes", "refused") in zip(self.effects, self.verdicts)
        return self.decoding == "beam" and refused


def cells_of(results: Results) -> dict[tuple[str, str, str], Cell]:
    """Return each cell by its option, command and decoder."""
    found: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for trial, (without, stock, ours) in results.items():
        pair = effect(without, stock), verdict(trial, without, stock, ours)
        found.setdefault((trial.option, trial.command, trial.decoding), []).append(pair)
    return {key: Cell(*key, *zip(*pairs, strict=True)) for key, pairs in found.items()}


def unread_by_all(results: Results) -> list[str]:
    """Return the options that change nothing in fairseq, and that ours refuses by name."""
    idle = {option: True for option in {trial.option: None for trial in results}}
    for trial, (without, stock, ours) in results.items():
        idle[trial.option] &= unread(ours) and effect(without, stock) == "nothing"
    return [option for option, is_idle in idle.items() if is_idle]


def fill(page: str, results: Results) -> str:
    """Return a page with the current tables between its two marks."""
    head, _, rest = page.partition(BEGIN)
    return head + BEGIN + "\n" + tables(results) + END + rest.partition(END)[2]


def tables(results: Results) -> str:
    """Return the tables of the page."""
    flags = {trial.option: trial.flag for trial in results}
    cells, idle = cells_of(results), unread_by_all(results)
    actions = {name: one for command in PARSERS for name, one in fairseqs_options(command).items()}
    columns = [(command, decoding) for command in PARSERS for decoding in DECODINGS]
    shown = [option for option in flags if option not in idle]
    counts = Counter(
        one
        for option in shown
        for where in columns
        if (option, *where) in cells
        for one in cells[option, *where].verdicts
    )
    said = ", ".join(f"{one}: {count}" for one, count in sorted(counts.items()))
    lines = [
        f"{len(flags)} options. {len(idle)} are read by neither command: below. Of the trials of "
        f"the other {len(shown)}: {said}.",
        "",
        "| option | tried | generate: fairseq | `beam` | `greedy` | interactive: fairseq | `beam` "
        "| `greedy` | why |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for option in shown:
        row = [f"`{flags[option]}`", _tried(actions[option])]
        for command in PARSERS:
            of_command = [cells.get((option, command, one)) for one in DECODINGS]
            first = of_command[0]
            row.append(_words(first.effects) if first else "-")
            missing = "refused" if first else "-"  # the command has not such an option
            row += [_words(cell.verdicts) if cell else missing for cell in of_command]
        lines.append("| " + " | ".join([*row, REASONS.get(option, "")]) + " |")
    lines += ["", "| read by neither, and refused |", "|---|"]
    for start in range(0, len(idle), 10):
        lines.append("| " + ", ".join(f"`{flags[one]}`" for one in idle[start : start + 10]) + " |")
    return "\n".join(lines) + "\n"


def _tried(action: argparse.Action) -> str:
    """Return the values of an option, without the places of files."""
    values = values_of(action)
    typed = ", ".join(f"`{one}`" for one in values.typed)
    beside = f"; beside `{values.beside}`" if values.beside else ""
    return (typed + beside).replace("{files}/", "").replace("|", "\\|")


def _words(given: Sequence[str]) -> str:
    """Return what is the same at all values once."""
    return given[0] if len({*given}) == 1 else ", ".join(given)


def flags_on(page: str) -> set[str]:
    """Return the flags that the tables of a page have a row for."""
    made = page.partition(BEGIN)[2].partition(END)[0]
    main, _, unread_ones = made.partition("| read by neither, and refused |")
    rows = re.findall(r"^\| `(--[\w-]+)` \|", main, flags=re.MULTILINE)
    return {*rows, *re.findall(r"`(--[\w-]+)`", unread_ones)}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        filled = fill(PAGE.read_text("utf-8"), run_all(Path(made)))
    PAGE.write_text(filled, "utf-8")
