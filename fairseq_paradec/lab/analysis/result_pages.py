"""The page of a result: a pure function of the JSON document."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..data.table import Result
from ..show.table import markdown


def bullets(lines: Iterable[str]) -> str:
    """Return a Markdown list."""
    return "\n".join(f"- {line}" for line in lines)


def page(result: Result, picture: str | None = None) -> str:
    """Render one result with its circumstances."""
    document = result.content
    packages = (f"{package} {version}" for package, version in document["versions"].items())
    parts = [
        f"# {document['title']}",
        "; ".join([document["date"], machine(document), ", ".join(packages)]),
        f"```\n{document['command']}\n```",
        bullets(document["notes"]),
        f"![{document['title']}]({picture})" if picture else "",
        markdown(result.tables).rstrip("\n"),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def machine(document: Mapping[str, Any]) -> str:
    """Return the machine that a document was measured on."""
    facts = document["machine"]
    return (
        f"{facts['processor']}, {facts['cores']} cores, {facts['threads']} used, "
        f"accelerator: {facts['accelerator']}"
    )
