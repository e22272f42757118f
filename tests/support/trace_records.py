"""Records with a trace, written by hand."""

import json

from fairseq_paradec.records import SCHEMA, VERSION


def one_pass(start, draft, verifier, accepted, committed, **more):
    """An entry of the trace; tokens as words of a text."""
    numbers = {"start": start, "num_accepted": accepted, "num_committed": committed}
    return numbers | {"draft": draft.split(), "verifier": verifier.split()} | more


def record(output, *passes, **more):
    head = {"schema": SCHEMA, "version": VERSION, "id": 3, "decoding": "any"}
    texts = {"source": ["s1", "s2", "</s>"], "output": output.split()}
    return head | texts | {"trace": list(passes)} | more


GOOD = record("a b", one_pass(0, "a x", "a b", 1, 2))
FACTS = {
    "log_probs": [-0.25, -1.5, None],
    "runner_up": ["x", None, "y"],
    "runner_up_log_probs": [-2.0, None, -3.0],
    "draft_log_probs": [-0.25, None],
    "draft_ranks": [0, 39],
}


def write(path, *records):
    path.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def written(start, words, places):
    """A pass of a model that writes in another order."""
    return {
        "start": start,
        "draft": [],
        "verifier": words,
        "num_accepted": 0,
        "num_committed": len(words),
        "positions": places,
        "log_probs": [-0.5] * len(words),
    }


FROM_BOTH_ENDS = (written(0, ["A", "D"], [0, 3]), written(2, ["B", "C"], [1, 2]))
