"""build_decoder: from models and options to a decoder."""

from collections.abc import Callable, Sequence
from typing import Any

from ..config import DecodingConfig
from ..decoding.stock_search import check_installed
from ..errors import needs, option_error
from ..forks import computing
from ..model.model import PACKED_ALONE
from ..model_facts import dictionaries_of, heads_of, is_module
from ..registry import METHODS, STOCK_DECODINGS, check_models
from .base import Context, Decoder
from .configure import as_trained, check_search, check_stock, for_models
from .stock import StockDecoder


@computing()  # it gathers and packs weights
def build_decoder(
    models: Sequence[Any],
    config: DecodingConfig,
    context: Context | None = None,
    load: Callable[[str, str, Sequence[Any]], Any] | None = None,
) -> Decoder | StockDecoder:
    """Build the decoder that a config names.

    Args:
        models: one model, or several as an ensemble, in evaluation mode.
        config: the options; with ``auto`` the models' own method decodes, or fairseq's search.
        context: dictionaries and drafter; None: the dictionaries of the first model, no drafter.
        load: loads the drafter of a path, of a kind and for these models, if the context has none;
            None: nothing does.

    Returns:
        A decoder: ``decode(batch)`` returns fairseq's hypotheses.

    Raises:
        UsageError: the method does not support an option or the models.
    """
    config = for_models(config, models)
    if context is None:
        context = Context(*dictionaries_of(models[0]))
    check_models(config.decoding, models, config.drafter_path)
    stock = config.decoding in STOCK_DECODINGS
    if stock or config.audit:
        _check_fairseqs_search(config, models)
    if stock:
        check_stock(config)
        return StockDecoder(models, config, context)
    check_search(config)
    method = METHODS[config.decoding]
    path, kind = config.drafter_path, method.drafter
    if context.drafter is None and kind is not None and path is not None:
        if load is None:
            raise option_error(
                "--drafter-path",
                path,
                "a decoder that a task builds, which loads it; or the loaded model in the context",
            )
        context = context._replace(drafter=load(path, kind, models))
    helper = context.drafter if method.drafter is not None else None
    drafts = heads_of(models[0] if helper is None else helper)
    decoder: Decoder = method.load(config.beam)(models, as_trained(config, drafts), context)
    return decoder


def _check_fairseqs_search(config: DecodingConfig, models: Sequence[Any]) -> None:
    """Refuse models that fairseq's own search, or the audit by it, cannot decode."""
    name, given = ("--audit", True) if config.audit else ("--decoding", config.decoding)
    modules = all(map(is_module, models))
    if not modules and any(model.is_packed_only for model in models):
        raise needs(name, given, PACKED_ALONE)
    check_installed(name if given is True else f"{name} {given}")
    if not modules:
        raise needs(name, given, "models that fairseq has loaded: its own search decodes them")
