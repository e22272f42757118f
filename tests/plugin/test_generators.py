"""Every generator of the plugin is fairseq's SequenceGenerator, for all who wrap or extend one."""

import argparse
import copy
import json
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.dataclass.configs import GenerationConfig
from fairseq.models.transformer import TransformerModel
from fairseq.search import BeamSearch, Sampling
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator
from fairseq.tasks import FairseqTask
from omegaconf import OmegaConf
from reference.greedy import stock_greedy
from support.again import registered
from support.builders import (
    Limits,
    batch,
    built,
    collate,
    lend,
    save_drafter,
    source_rows,
    task_for,
    tiny_blockwise,
    tiny_drafter,
    tiny_model,
    tiny_reordered,
)
from support.commands import DEMO, ROOT
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from fairseq_paradec import (
    Method,
    records,
)
from fairseq_paradec.errors import UsageError
from fairseq_paradec.plugin import generators
from fairseq_paradec.plugin.generators import (
    AssistedGenerator,
    CoreGenerator,
    GadGenerator,
    JacobiGenerator,
    MultiwordBeamGenerator,
    SelfDraftGenerator,
    family_of,
)
from fairseq_paradec.registry import METHODS, TRANSFORMER

LIMITS = Limits(max_len_b=12)
FAMILIES = [one for one in vars(generators).values() if getattr(one, "decodings", ())]


@pytest.fixture
def again() -> Iterator[Method]:
    """A method of another package, registered."""
    with registered() as method:
        yield method


def suited(decoding: str) -> tuple[Any, Any, dict[str, Any]]:
    """A task, a model that a method decodes, and its flags."""
    task, model = built("default")
    method = METHODS[decoding]
    helper = model if method.drafter == TRANSFORMER else tiny_drafter(task)
    flags = {"drafter_path": lend(task, model, helper)} if method.needs_drafter else {}
    own = {"nat": tiny_drafter, "blockwise": tiny_blockwise}
    if decoding in own:
        model = own[decoding](task)
    elif decoding == "double_token_beam":
        model = tiny_reordered(task, "double_token")
    return task, model, flags | {"decoding": decoding}


def tokens_of(hypos: list[list[dict[str, Any]]]) -> list[list[list[int]]]:
    return [[one["tokens"].tolist() for one in row] for row in hypos]


def greedy(task: Any, model: Any, sample: Any, prefix: Any = None) -> list[list[list[int]]]:
    """fairseq's own search, of beam 1."""
    wanted = stock_greedy(task, [model], sample, prefix, **LIMITS.stock())
    return [[one["tokens"].tolist()] for one in wanted]


@pytest.mark.parametrize("decoding", [*METHODS, "again"])
def test_every_generator_is_fairseqs(decoding: str, again: None) -> None:
    """And decodes by every way that there is to it as one that is built by hand."""
    task, model, flags = suited(decoding)
    words, sample = task.target_dictionary, batch(task, (3, 7, 5), seed=1)
    made = task.build_generator([model], argparse.Namespace(**LIMITS.flags(), **flags))
    assert isinstance(made, SequenceGenerator) and type(made) is family_of(decoding)
    assert isinstance(made.model, EnsembleModel) and made.model.single_model is model
    assert made.beam_size == (5 if METHODS[decoding].beam else 1)
    assert (made.max_len_b, made.min_len, made.eos) == (12, 1, words.eos())
    theirs = SequenceGenerator([model], words, **LIMITS.stock())
    assert made.state_dict().keys() == theirs.state_dict().keys()
    assert [*made.parameters()] == [*theirs.parameters()]
    with torch.no_grad():
        hypos = made.generate([model], sample)
    wanted = tokens_of(hypos)
    assert tokens_of(made(sample)) == tokens_of(task.inference_step(made, [model], sample))
    assert tokens_of(made(sample)) == wanted
    by_hand = CoreGenerator(
        [model],
        words,
        made.beam_size,
        **LIMITS.stock(),
        load_drafter=task.drafters.load,
        **flags,
    )
    for row, other in zip(hypos, by_hand.generate([model], sample), strict=True):
        for hypo, same in zip(row, other, strict=True):
            for name in ("tokens", "score", "positional_scores"):
                assert torch.equal(hypo[name], same[name])
    if METHODS[decoding].is_lossless_by_default:
        assert wanted == greedy(task, model, sample)


def test_a_family_has_its_methods_alone() -> None:
    task, model = built("default")
    words = task.target_dictionary
    every = [name for family in FAMILIES for name in family.decodings]
    assert len({*every}) == len(every) == 10 and {*every} <= {*METHODS}
    assert {*METHODS} - {*every} == {"greedy", "nat", "auto_fast"}
    for family in FAMILIES:
        assert re.search(r"\. \w", family.__doc__ or "") and "20" in (family.__doc__ or "")
        for name in {*METHODS, "beam", "none"} - {*family.decodings}:
            said = f"^--decoding: got '{name}'; allowed: .*{family.decodings[0]}.* with "
            with pytest.raises(UsageError, match=f"{said}{family.__name__}$"):
                family([model], words, decoding=name)
    for family in (JacobiGenerator, SelfDraftGenerator, MultiwordBeamGenerator):
        assert family([model], words).decoder.config.decoding == family.decodings[0]


def test_where_no_method_is_named_it_is_the_models_own_or_fairseqs_search() -> None:
    task, model = built("default")
    words, sample = task.target_dictionary, batch(task, (3, 7, 5), seed=1)
    found = CoreGenerator([tiny_drafter(task)], words).decoder.config
    assert (found.decoding, found.block_size) == ("nat", 6)
    for beam, decoding in ((1, "greedy"), (4, "multiword_beam")):
        ours = CoreGenerator([model], words, beam_size=beam, **LIMITS.stock())
        theirs = SequenceGenerator([model], words, beam_size=beam, **LIMITS.stock())
        assert ours.decoder.config.decoding == decoding
        found, wanted = (one.generate([model], sample) for one in (ours, theirs))
        assert tokens_of(found) == tokens_of(wanted)


def test_fairseqs_arguments_are_taken_in_its_order_and_by_name() -> None:
    task, model = built("default")
    words, strip = task.target_dictionary, {5}
    places = ([model], words, 1, 0.5, 9, 0, 3, False, 1.0, 2.0, 1.5, False, 0)
    made = JacobiGenerator(*places, BeamSearch(words), words.eos(), strip, None, 1.0, ("w1",))
    config = made.decoder.config
    found = (config.max_len_a, config.max_len_b, config.min_len, config.unkpen, config.temperature)
    assert found == (0.5, 9, 3, 2.0, 1.5) and config.unnormalized
    assert made.symbols_to_strip_from_output == {5, words.eos()}
    assert made.decoder._rules.suppressed == (words.index("w1"),)
    assert (made.max_len_a, made.len_penalty, made.normalize_scores) == (0.5, 1.0, False)
    ensemble = JacobiGenerator(EnsembleModel([model, model]), words)
    assert ensemble.decoder.models == [model, model] == [*ensemble.model.models]
    with pytest.raises(TypeError, match="too many positional arguments"):
        JacobiGenerator(*places, None, None, None, None, 1.0, (), "one more")
    with pytest.raises(TypeError, match="multiple values for argument 'beam_size'"):
        MultiwordBeamGenerator([model], words, 5, beam_size=3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"blocksize": 3}, r"JacobiGenerator\(\): got 'blocksize'; allowed: .* such as block_size"),
        ({"beam": 1, "beam_size": 1}, "beam 1 excludes beam_size, fairseq's word for it"),
        ({"block_size": 0}, "--block-size: got 0; allowed: a whole number from 1 up"),
        ({"beam_size": 4}, "--beam 4 needs --decoding .*; hgj is greedy search"),
        ({"temperature": 0.0}, "--temperature: got 0.0; allowed: a number from 1e-06 up"),
        ({"match_source_len": True}, "--match-source-len: got True, which --decoding hgj"),
        ({"max_len": 9}, "--max-len: got 9, which .*; allowed: 0; --max-len-b is"),
        ({"eos": 7}, "--eos: got 7, which .*; allowed: the dictionary's </s>"),
        ({"tokens_to_suppress": ("</s>",)}, "tokens_to_suppress: got '</s>'"),
        ({"drafter_path": "x.pt"}, "--drafter-path: got 'x.pt', which --decoding hgj does not use"),
    ],
)
def test_what_a_method_cannot_honour_is_one_line(given: dict[str, Any], said: str) -> None:
    task, model = built("default")
    words = task.target_dictionary
    with pytest.raises(UsageError, match=f"^{said}") as error:
        JacobiGenerator([model], words, **given)
    assert "\n" not in str(error.value)
    strategy = Sampling(words)
    with pytest.raises(UsageError, match="^--search-strategy: got <class .*Sampling'>, which"):
        JacobiGenerator([model], words, search_strategy=strategy)
    with pytest.raises(UsageError, match="^--lm-model: got <class .*TransformerModel'>, which"):
        JacobiGenerator([model], words, lm_model=model)


def test_a_drafters_file_is_read_without_a_task(tmp_path: Path) -> None:
    """One of another language pair too: the dictionaries have to fit."""
    task = task_for("default")
    model = tiny_model(task, dtype=torch.float32)
    words, sample = task.target_dictionary, batch(task, (3, 7, 5))
    drafter = tiny_drafter(task, dtype=torch.float32)
    path = save_drafter(task, drafter, tmp_path / "d.pt", source_lang="en", target_lang="de")
    made = GadGenerator([model], words, drafter_path=path, block_size=4, **LIMITS.stock())
    assert tokens_of(made.generate([model], sample)) == greedy(task, model, sample)
    with pytest.raises(UsageError, match="^--decoding gad needs --drafter-path"):
        GadGenerator([model], words)
    with pytest.raises(UsageError, match="^--drafter-path: got .*d.pt.*this holds a BlockNat"):
        AssistedGenerator([model], words, drafter_path=path)


class Wrapper(nn.Module):
    """Somebody's: asks a generator, and says what was asked."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.beam_size, self.asked = inner, inner.beam_size, 0

    def generate(self, models: Any, sample: Any, **more: Any) -> Any:
        assert [*self.inner.model.models] == [*models]
        self.asked += 1
        return self.inner.generate(models, sample, **more)

    def forward(self, sample: Any, prefix_tokens: Any = None, bos_token: Any = None) -> Any:
        return self.inner(sample, prefix_tokens, bos_token)


def test_a_wrapper_of_others_works() -> None:
    """In a batch with an empty sentence, with a prefix, and with another first token."""
    task, model = built("default")
    args = argparse.Namespace(**LIMITS.flags(), decoding="hgj", block_size=4)
    wrapper = Wrapper(task.build_generator([model], args))
    rows = [torch.tensor([*range(4, 4 + size), 2]) for size in (6, 3, 0)]
    sample, prefix = collate(task, rows), torch.tensor([[5], [6], [7]])
    hypos = task.inference_step(wrapper, [model], sample, prefix_tokens=prefix)
    wanted = greedy(task, model, sample, prefix)
    assert tokens_of(hypos) == [*wanted[:2], [[2]]] and wrapper.asked == 1
    assert tokens_of(wrapper(sample, prefix)) == wanted
    theirs = SequenceGenerator([model], task.target_dictionary, **LIMITS.stock())
    with torch.no_grad():
        assert tokens_of(wrapper(sample, None, 5)) == tokens_of(theirs(sample, None, 5))
    with pytest.raises(UsageError, match="^--constraints: got"):
        wrapper.generate([model], sample, constraints=torch.ones(3, 1))


def test_a_record_has_its_sentences_number_beside_an_empty_one(tmp_path: Path) -> None:
    task, model = built("default")
    path = str(tmp_path / "stats.jsonl")
    args = argparse.Namespace(**LIMITS.flags(), decoding="greedy", stats_file=path)
    made = task.build_generator([model], args)
    sample = collate(task, [torch.tensor(row) for row in ([4, 5, 2], [2], [6, 2])])
    hypos = task.inference_step(made, [model], sample)
    (empty,) = [i for i, row in zip(sample["id"].tolist(), tokens_of(hypos)) if row == [[2]]]
    del made
    numbers = [record["id"] for _, record in records.read(path, records.STATS)]
    assert numbers == [i for i in sample["id"].tolist() if i != empty] and len(numbers) == 2


class Shout(JacobiGenerator):
    """Somebody's: each output twice, and counted."""

    decodings = ("pgj", "pj")

    def __init__(self, models: Any, tgt_dict: Any, loud: int = 1, **settings: Any) -> None:
        super().__init__(models, tgt_dict, **settings)
        self.loud, self.seen = loud, 0

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        self.seen += 1
        hypos = super()._generate(*args, **kwargs)
        return [row * self.loud for row in hypos]


def test_a_subclass_of_others_is_built_and_asked() -> None:
    """By the task, with the command line's options, and by fairseq's own build_generator."""
    task, model = built("default")
    sample = batch(task, (3, 7, 5), seed=1)
    wanted = [row * 2 for row in greedy(task, model, sample)]
    args = argparse.Namespace(**LIMITS.flags(), block_size=4)
    extra: dict[str, Any] = {"loud": 2, "tokens_to_suppress": ("w1",)}
    with pytest.raises(UsageError, match=r"^JacobiGenerator\(\): got 'loud'"):
        task.build_generator([model], args, JacobiGenerator, {"loud": 2})
    made = task.build_generator([model], args, seq_gen_cls=Shout, extra_gen_cls_kwargs=extra)
    assert made.decoder._rules.suppressed == (task.target_dictionary.index("w1"),)
    made = task.build_generator([model], args, Shout, {"loud": 2})
    config = made.decoder.config
    assert (config.decoding, config.block_size, args.beam) == ("pgj", 4, 1)
    assert tokens_of(task.inference_step(made, [model], sample)) == wanted and made.seen == 1
    args = argparse.Namespace(**LIMITS.flags(), decoding="hgj")
    with pytest.raises(UsageError, match="^--decoding: got 'hgj'; allowed: pgj, pj with Shout"):
        task.build_generator([model], args, Shout)
    args = argparse.Namespace(**LIMITS.flags(), decoding="beam")
    with pytest.raises(UsageError, match="^--decoding: got 'beam'; allowed: pgj, pj with Shout"):
        task.build_generator([model], args, Shout)
    args = argparse.Namespace(**LIMITS.flags(), jacobi_init="bos")
    with pytest.raises(UsageError, match="^--jacobi-init: got 'bos', which --decoding auto does"):
        task.build_generator([model], args, Shout)
    args = argparse.Namespace(**LIMITS.flags(), beam=1)
    theirs = FairseqTask.build_generator(task, [model], args, seq_gen_cls=Shout)
    assert tokens_of(theirs(sample)) == greedy(task, model, sample)
    args.beam = 3
    ours = task.build_generator([model], args, CoreGenerator)
    assert ours.decoder.config.decoding == "multiword_beam" and ours.beam_size == 3


def test_options_of_decoding_come_by_extra_kwargs() -> None:
    """For one generator: the arguments stay as they are."""
    task, model = built("default")
    args = argparse.Namespace(**LIMITS.flags(), decoding="pj")
    before, extra = copy.deepcopy(args), {"decoding": "pgj", "block_size": 3, "max_len_b": 5}
    made = task.build_generator([model], args, extra_gen_cls_kwargs=extra)
    config = made.decoder.config
    assert (config.decoding, config.block_size, config.max_len_b) == ("pgj", 3, 5)
    assert args == before and len(extra) == 3
    stock = task.build_generator([model], args, None, {"decoding": "beam", "beam": 3})
    assert type(stock) is SequenceGenerator and stock.beam_size == 3
    with pytest.raises(UsageError, match=r"^JacobiGenerator\(\): got 'blocksize'; .*block_size"):
        task.build_generator([model], args, extra_gen_cls_kwargs={"blocksize": 3})
    args = OmegaConf.structured(GenerationConfig())  # whose beam of 5 nobody gave
    for extra, beam in (({"decoding": "pgj"}, 1), ({"decoding": "multiword_beam"}, 5)):
        assert task.build_generator([model], args, None, extra).beam_size == beam
    with pytest.raises(UsageError, match="^--beam 5 needs .*; pgj is greedy search"):
        task.build_generator([model], args, None, {"decoding": "pgj", "beam": 5})


def test_a_copy_has_weights_of_its_own_and_a_move_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_for("default")
    model = tiny_model(task, dtype=torch.float32)
    path = save_drafter(task, tiny_drafter(task, dtype=torch.float32), tmp_path / "d.pt")
    args = argparse.Namespace(**LIMITS.flags(), decoding="gad", drafter_path=path)
    made, sample = task.build_generator([model], args), batch(task, (3, 7, 5), seed=1)
    before = tokens_of(made(sample))
    other = copy.deepcopy(made)
    (copied,) = other.model.models
    assert copied is not model and other.decoder.models == [copied]
    assert other.decoder.drafter is made.decoder.drafter and tokens_of(other(sample)) == before
    with torch.no_grad():
        copied.decoder.output_projection.weight.neg_()
    assert tokens_of(other(sample)) == greedy(task, copied, sample) != before
    assert tokens_of(made(sample)) == before
    # As on a GPU: every module that holds it moves it.
    monkeypatch.setattr(nn.Module, "cuda", lambda self, device=None: self.double())
    assert other.cuda() is other and other.decoder.drafter is not made.decoder.drafter
    for module in (other, nn.ModuleList([made]).to(torch.float64)[0]):
        (model,) = module.model.models
        weights = (model.encoder.embed_tokens.weight, module.decoder.drafter.decoder.mask_vector)
        assert {weight.dtype for weight in weights} == {torch.float64}
        assert tokens_of(module(sample)) == greedy(task, model, sample)


def test_a_pickle_decodes_the_same(tmp_path: Path) -> None:
    """As fairseq's own; also of a task's generator, whose drafter is loaded again."""
    task = task_for("default")
    model = tiny_model(task, dtype=torch.float32)
    path = save_drafter(task, tiny_drafter(task, dtype=torch.float32), tmp_path / "d.pt")
    args = argparse.Namespace(**LIMITS.flags(), decoding="gad", drafter_path=path)
    made, sample = task.build_generator([model], args), batch(task, (3, 7, 5), seed=1)
    other = pickle.loads(pickle.dumps(made))
    (copied,) = other.model.models
    assert type(other) is GadGenerator and other.decoder.models == [copied] != [model]
    assert tokens_of(other(sample)) == tokens_of(made(sample)) == greedy(task, model, sample)
    assert other.decoder.config == made.decoder.config


def test_an_iterator_of_batches_is_translated() -> None:
    """By fairseq's generate_batched_itr, whose own call of generate lacks an argument."""
    task, model = built("default")
    made = JacobiGenerator([model], task.target_dictionary, **LIMITS.stock())
    samples = [batch(task, lengths, seed=1) | {"target": None} for lengths in ((3, 7), (5,))]
    wanted = [row for sample in samples for row in greedy(task, model, sample)]
    found = [*made.generate_batched_itr([*samples, {}])]
    assert tokens_of([hypos for *_, hypos in found]) == wanted
    assert [source.tolist() for _, source, _, _ in found] == [
        row for sample in samples for row in source_rows(sample)
    ]


def test_training_validates_by_it() -> None:
    """--eval-bleu: BLEU is that of fairseq's greedy search."""
    task, scores = task_for("default"), set()
    task.cfg.eval_bleu, task.cfg.eval_tokenized_bleu = True, True
    flags = argparse.Namespace(**vars(tiny_model(task).flags), arch="transformer")
    weights = tiny_model(task, dtype=torch.float32).state_dict()
    sample = batch(task, (5, 9, 7), seed=1)
    for decoding, kind in (("hgj", JacobiGenerator), ("beam", SequenceGenerator)):
        task.cfg.eval_bleu_args = json.dumps({"decoding": decoding, "beam": 1, "max_len_b": 12})
        model = task.build_model(flags)
        model.load_state_dict(weights)
        assert type(task.sequence_generator) is kind
        outputs = [torch.tensor(row[-6:]) for (row,) in greedy(task, model.eval(), sample)]
        sample["target"] = pad_sequence(outputs, batch_first=True, padding_value=1)
        scores.add(task._inference_with_bleu(task.sequence_generator, sample, model).score)
    assert len(scores) == 1 and 1 < scores.pop() < 99


def test_the_lines_of_python_in_the_guide_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/fairseq.md: fairseq's hub, and a generator that is built by hand."""
    monkeypatch.chdir(ROOT)
    page = Path("docs/fairseq.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    said = capsys.readouterr().out.splitlines()
    assert len(blocks) == 2 and len({*said}) == 1 and said[0].endswith(" Gras.")


def test_the_hub_translates_by_every_family() -> None:
    names = {"bpe": "subword_nmt", "bpe_codes": str(DEMO / "codes.bpe"), "tokenizer": "moses"}
    hub = TransformerModel.from_pretrained(str(DEMO), "model.pt", str(DEMO), **names)
    text = ["A dog runs across the grass.", "Two men sit on a bench."]
    wanted = hub.translate(text, beam=1)
    for given in (
        {"decoding": "pgj"},
        {"decoding": "self_draft"},
        {"decoding": "multiword_beam", "beam": 1},
        {"decoding": "gad", "drafter_path": str(DEMO / "drafter.pt")},
        {"decoding": "assisted", "drafter_path": str(DEMO / "assistant.pt")},
        {"decoding": "blockwise", "drafter_path": str(DEMO / "heads.pt")},
    ):
        assert hub.translate(text, **given) == wanted, given
    options = {"decoding": "greedy", "sampling": True, "beam": 3, "seed": 2}
    ((*drawn,),) = hub.generate([hub.encode(text[0])], nbest=3, **options)
    scores = [float(hypo["score"]) for hypo in drawn]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True)
    assert hub.sample(text[0], nbest=3, **options) == hub.decode(drawn[0]["tokens"])
    for nbest in (2, 4):
        with pytest.raises(UsageError, match="got 'nbest'"):
            hub.generate([hub.encode(text[0])], nbest=nbest, **options)
