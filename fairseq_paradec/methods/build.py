"""build_decoder: from models and options to a decoder."""

from collections.abc import Callable, Sequence
from typing import Any

from ..config import DecodingConfig
from ..engine.torch.views import packed_only
from ..errors import needs, option_error
from ..forks import computing
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
        context = Context(models[0].decoder.dictionary, models[0].encoder.dictionary)
    check_models(config.decoding, models, config.drafter_path)
    stock = config.decoding in STOCK_DECODINGS
    if (stock or config.audit) and any(map(packed_only, models)):
        name, given = ("--audit", True) if config.audit else ("--decoding", config.decoding)
        raise needs(name, given, "torch's weights; this model folder holds them packed alone")
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
    drafts = helper if helper is not None else getattr(models[0], "block_heads", models[0])
    decoder: Decoder = method.load(config.beam)(models, as_trained(config, drafts), context)
    return decoder
