"""``paradec profile passes``: what a pass costs here, and how far that is from the least."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from ....errors import option_error
from ...data import documents
from ...data.documents import PASSES, VERSION, check
from ...show.table import markdown
from .. import machine
from ..peers import converted, converted_model
from ..rounds import others_used
from .bench import NEW_TOKENS, SEARCH_TOKENS, Bench, PassSettings, peer_tokens
from .estimate import read_acceptance
from .models import DRAFTS, Pair, check_model, make_pair, sizes


def _check(args: PassSettings) -> None:
    """Refuse flags that do not go together, and files that are not there."""
    check_model(args)
    if args.out is not None and args.out.suffix != ".json":
        raise option_error("--out", str(args.out), "a name that ends in .json")
    if args.acceptance is not None and args.batch > 1:
        raise option_error("--batch", args.batch, "1 with --acceptance: its passes are of batch 1")


def _check_positions(args: PassSettings, pair: Pair) -> None:
    """Refuse passes beyond a model's positions."""
    source, target = pair.model.max_positions()
    longest = max(args.cached + max(args.chunks), SEARCH_TOKENS + 2)
    if args.peers:
        longest = max(longest, peer_tokens(args.cached) + 1)
    for drafter in filter(None, (pair.drafter, pair.token_drafter)):
        target = min(target, drafter.decoder.max_positions())
    if pair.drafter is not None:
        longest = max(longest, args.cached + NEW_TOKENS + max(args.block_sizes))
    if args.source_length > source:
        raise option_error("--source-length", args.source_length, f"at most {source}")
    if longest > target:
        raise option_error(
            "--cached, --chunks, --block-sizes", f"{longest} positions", f"at most {target}"
        )


def passes(args: PassSettings) -> int:
    """Measure, print the tables and write the file; return the exit status."""
    _check(args)
    if args.out is not None:
        documents.check_out(args.out)
    acceptance = None
    if args.acceptance is not None:
        acceptance = read_acceptance(args.acceptance, args.block_sizes[0])
    torch.set_num_threads(args.threads)
    pair = make_pair(args, args.block_sizes[0])
    _check_positions(args, pair)
    args = replace(
        args,
        chunks=[*dict.fromkeys(args.chunks)],
        block_sizes=[*dict.fromkeys(args.block_sizes)],
        engines=[*dict.fromkeys(args.engines)],
    )
    peer = None
    if args.peers:
        if args.path is not None and args.data is not None:
            peer = converted(args.path, args.data)
        else:
            peer = converted_model(pair.model, pair.task, pair.args)
    with torch.inference_mode():
        bench = Bench(pair, args, peer)
        busy = bench.run()
    named = args.drafter_path or "as block_nat_fast"
    setting = {
        "model": args.name,
        "sizes": sizes(pair.model),
        "vocabulary": len(pair.task.target_dictionary),
        "drafter": "none" if pair.drafter is None else named,
        "heads": 0 if pair.heads is None else pair.heads.block_size - 1,
        "drafter sizes": "none" if pair.drafter is None else sizes(pair.drafter),
        "token drafter": "none" if pair.token_drafter is None else sizes(pair.token_drafter),
        "batch": args.batch,
        "source length": args.source_length,
        "cached": args.cached,
        "chunks": args.chunks,
        "block sizes": args.block_sizes,
        "engines": args.engines,
        "rounds": args.rounds,
        "repetitions": args.repetitions,
        "threads": args.threads,
        "busy cores": busy,
    }
    document = {
        "schema": PASSES,
        "version": VERSION,
        "title": args.title or f"Passes of {args.name}",
        "notes": notes(setting, args.busy),
        **machine.circumstances(args.argv),
        "setting": setting,
        **bench.report(),
        "acceptance": acceptance,
    }
    result = check(document, str(args.out))
    if args.out is not None:
        documents.write(args.out, documents.compact(document))
    print("".join(f"- {note}\n" for note in document["notes"]))
    print(markdown(result.tables))
    return 0


def notes(setting: Mapping[str, Any], busy: bool) -> list[str]:
    """Return what a reader must know to read the numbers right."""
    drafter = "" if setting["drafter"] == "none" else f", {setting['drafter sizes']}"
    return [
        f"{setting['model']}: {setting['sizes']}, vocabulary {setting['vocabulary']}. Drafter: "
        f"{setting['drafter']}{drafter}; token by token: {setting['token drafter']}. Heads: "
        f"{setting['heads'] or 'none'}. Native drafters and heads are in {DRAFTS}; assisted "
        "itself drafts in int4, unless told otherwise.",
        f"Batch {setting['batch']}, sources of {setting['source length']} tokens, "
        f"{setting['cached']} cached; cpu, {setting['threads']} thread(s). Medians and quartiles "
        f"of {setting['rounds']} interleaved rounds of {setting['repetitions']} after a warm-up; "
        f"{others_used([setting['busy cores']], busy)}.",
    ]
