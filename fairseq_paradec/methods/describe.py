"""Help texts and tables of methods and flags, made from the registry and the option table."""

from pathlib import Path

from ..config import (
    ENGINE_FLAGS,
    METHOD,
    METHOD_FLAGS,
    OPTIONS,
    REPORT_FLAGS,
    RULE,
    RULE_FLAGS,
    Option,
    flag,
)
from ..registry import BLOCK_NAT, HEADS, METHODS, STOCK_DECODINGS, TRANSFORMER, Method, readers

PAGE = Path("docs") / "decoders.md"
#: The lines before and after the tables in the page.
BEGIN = "<!-- tables by python -m fairseq_paradec.methods.describe -->"
END = "<!-- end of tables -->"


def flag_help(name: str) -> str:
    """Return the help of a flag: the methods that read it, its help, and its default."""
    option = OPTIONS[name]
    if name == "decoding":
        summaries = STOCK_DECODINGS | {method.name: method.summary for method in METHODS.values()}
        methods = "; ".join(f"{method}: {summary}" for method, summary in summaries.items())
        return f"{option.help}. {methods}"
    owners = f"{', '.join(readers(name))}: " if option.group == METHOD else ""
    default = default_words(option)
    return owners + option.help + (f" (default: {default})" if default else "")


def default_words(option: Option) -> str:
    """Return an option's default in words; the empty string for a switch or a report's path."""
    if option.kind is bool:
        return ""
    words = [option.absent if option.default is None else str(option.default)]
    others = [method for method in METHODS.values() if option.name in method.defaults]
    words += [f"{method.name}: {method.defaults[option.name]}" for method in others]
    if option.name == "block_size":
        trained = [method.name for method in METHODS.values() if method.trained_block]
        words.append(f"{', '.join(trained)}: as in training")
    return "; ".join(words)


def tables() -> str:
    """Return the tables of docs/decoders.md."""
    stock = [
        f"| `{name}` | {summary} | | | fairseq's |" for name, summary in STOCK_DECODINGS.items()
    ]
    lines = [
        "| `--decoding` | what it does | greedy's output | `--path` | flags of its own |",
        "|---|---|---|---|---|",
        *stock,
        *(_row(method) for method in METHODS.values()),
        "",
        *_flag_table(METHOD_FLAGS),
        "",
        *_flag_table(RULE_FLAGS),
        "",
        *_flag_table((*ENGINE_FLAGS, *REPORT_FLAGS)),
    ]
    return "\n".join(lines) + "\n"


def fill(page: str) -> str:
    """Return a page with the current tables between its two marks."""
    head, _, rest = page.partition(BEGIN)
    return head + BEGIN + "\n" + tables() + END + rest.partition(END)[2]


def _row(method: Method) -> str:
    """Return a method's row."""
    drafters = {BLOCK_NAT: "a block_nat model", HEADS: "heads", TRANSFORMER: "a Transformer"}
    flags = []
    for name in method.own_flags:
        default = method.default(name)
        shown = "" if default in (None, False) else f" ({default})"
        if name == "block_size" and method.trained_block:
            shown = " (as trained)"
        if name == "drafter_path":
            shown = f" ({drafters.get(method.drafter or '', 'either of these')})"
        flags.append(f"`{flag(name)}`{shown}")
    if method.beam or method.beams:
        flags.insert(0, "`--beam`" if method.beam else "`--beam` (1)")
    if method.samples:
        flags.insert(0, "`--sampling`")
    cells = (f"`{method.name}`", method.summary, method.exact.words, method.verifier.words)
    return "| " + " | ".join((*map(_cell, cells), ", ".join(flags))) + " |"


def _flag_table(names: tuple[str, ...]) -> list[str]:
    """Return a table of flags."""
    lines = ["| flag | what it does | allowed | default | read by |", "|---|---|---|---|---|"]
    for name in names:
        option = OPTIONS[name]
        users = _code_names(readers(name)) if option.group in (METHOD, RULE) else "every method"
        allowed = option.allowed if option.choices or option.kind in (int, float) else ""
        cells = (f"`{flag(name)}`", option.help, allowed, default_words(option), users)
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    return lines


def _cell(text: str) -> str:
    """Escape text for a cell of a table."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def _code_names(names: list[str]) -> str:
    """Return names of methods as Markdown code."""
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
