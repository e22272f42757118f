"""The rules of a decoder's search, of its options: one record for every method and every door."""

from collections.abc import Iterable, Sequence
from typing import Any

from ..config import ALL, TEXT_RULES, DecodingConfig, flag
from ..engine.projection import is_linear
from ..errors import option_error
from ..target_order import TargetOrder, order_of
from ..token_rules import Sampling, TokenRules


def rules_of(
    models: Sequence[Any],
    config: DecodingConfig,
    words: Any,
    to_suppress: Iterable[str],
    beam_size: int,
) -> TokenRules:
    """Return the rules of a search, for batches without a prefix.

    Args:
        models: one model, or several as an ensemble.
        config: the options of decoding.
        words: the target dictionary.
        to_suppress: its symbols that are never chosen.
        beam_size: of the search; 1: it is greedy.

    Raises:
        UsageError: ``</s>`` is suppressed, the models cannot have a rule, or a token is not in the
            dictionary.
    """
    suppressed = {_number_of(words, "tokens_to_suppress", symbol) for symbol in to_suppress}
    if words.eos() in suppressed:
        raise option_error(
            "tokens_to_suppress", words[words.eos()], "other tokens: with it each output ends"
        )
    first = config.rules_first
    lines = (config.suppress_sequences or "").split("\n")
    sequences = [
        tuple(_number_of(words, "suppress_sequences", symbol) for symbol in line.split())
        for line in lines
    ]
    of_logits = config.rules_of == "ctranslate2"
    of_logits = of_logits or (config.rules_of == "transformers" and beam_size == 1)
    _check_models(models, config, of_logits)
    return TokenRules(
        pad=words.pad(),
        unk=words.unk(),
        eos=words.eos(),
        start=words.eos(),
        min_len=config.min_len,
        unk_penalty=config.unkpen,
        temperature=config.temperature,
        forced_len=0,
        suppressed=tuple(sorted(suppressed)),
        ngram=config.no_repeat_ngram_size,
        penalty=config.repetition_penalty,
        of_logits=of_logits,
        sequences=tuple(filter(None, sequences)),
        first=None if first is None else _number_of(words, "rules_first", first),
        renormalised=config.rules_renormalised,
        sampling=Sampling(config.sampling_topk, config.sampling_topp) if config.sampling else None,
    )


def _number_of(words: Any, name: str, symbol: str) -> int:
    """Return the number of a symbol that an option names.

    Raises:
        UsageError: the dictionary does not have it.
    """
    number = int(words.index(symbol))
    if number == words.unk() and words[number] != symbol:
        given = flag(name) if name in ALL else name
        raise option_error(given, symbol, "tokens that the target dictionary has")
    return number


def _check_models(models: Sequence[Any], config: DecodingConfig, of_logits: bool) -> None:
    """Refuse rules that models cannot have; ``of_logits``: a penalty is of these."""
    for name in TEXT_RULES:
        value, usual = getattr(config, name), ALL[name].default
        if value != usual and order_of(models[0]) != TargetOrder():
            allowed = f"{usual} with a model that writes in another order than left to right"
            raise option_error(flag(name), value, allowed)
    penalty = config.repetition_penalty
    if of_logits and penalty != 1 and (len(models) > 1 or not is_linear(models[0])):
        allowed = "1 with an ensemble or an adaptive softmax, which have no logits"
        raise option_error("--repetition-penalty", penalty, allowed)
