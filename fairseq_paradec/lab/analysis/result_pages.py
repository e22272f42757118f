"""The page of each result, and the list of them: pure functions of the JSON documents."""

from collections.abc import Iterable, Mapping
from typing import Any

from .markdown import markdown

# Older results show their command as it was typed.
OLD_COMMAND = "Today `paradec NAME` is what was `python -m fairseq_paradec.cli.NAME` then."


def bullets(lines: Iterable[str]) -> str:
    """Return a Markdown list."""
    return "\n".join(f"- {line}" for line in lines)


def page(document: Mapping[str, Any], picture: str | None = None) -> str:
    """Render one document with its circumstances."""
    packages = (f"{package} {version}" for package, version in document["versions"].items())
    parts = [
        f"# {document['title']}",
        "; ".join([document["date"], machine(document), ", ".join(packages)]),
        f"```\n{document['command']}\n```",
        OLD_COMMAND if "fairseq_paradec.cli." in document["command"] else "",
        bullets(document["notes"]),
        f"![{document['title']}]({picture})" if picture else "",
        markdown(document["tables"]).rstrip("\n"),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def machine(document: Mapping[str, Any]) -> str:
    """Return the machine that a document was measured on."""
    found = document["machine"]
    return (
        f"{found['processor']}, {found['cores']} cores, {found['threads']} used, "
        f"accelerator: {found['accelerator']}"
    )


def index(documents: Mapping[str, Mapping[str, Any]]) -> str:
    """Render the list of all results."""
    lines = (f"[{one['title']}]({name}.md), {one['date']}" for name, one in documents.items())
    head = "# Each result\n\nBeside each page lies the JSON file that it is rendered from."
    return f"{head}\n\n{bullets(lines)}\n"
