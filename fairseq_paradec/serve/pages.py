"""The page at ``/`` and the description of the API, read once: no request reaches the disk."""

import html
import json
from collections.abc import Awaitable, Callable
from importlib import resources
from pathlib import Path
from typing import Any

from fastapi import Response
from fastapi.responses import HTMLResponse

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_FOLDER = resources.files(__package__) / "page"
#: The styles that all pages of the package have.
_COMMON = Path(__file__).parents[1] / "page.css"

#: By path: the name of the file in the package.
FILES = {
    "/": "index.html",
    "/page.css": "page.css",
    "/page.js": "page.js",
    "/passes.js": "passes.js",
}


def sender(path: str) -> Callable[[], Awaitable[Response]]:
    """Return the route of a file."""
    name = FILES[path]
    content = (_FOLDER / name).read_bytes()
    if name.endswith(".css"):
        content = _COMMON.read_bytes() + content
    kind = _TYPES[name.rpartition(".")[2]]

    async def send() -> Response:
        return Response(content, media_type=f"{kind}; charset=utf-8")

    return send


def description(schema: dict[str, Any]) -> HTMLResponse:
    """Return a page of the API, from its OpenAPI description."""
    parts = [
        "<!DOCTYPE html>\n<html lang=en><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width, initial-scale=1">',
        "<title>paradec serve: API</title><link rel=stylesheet href=page.css>",
        "<main class=api><h1>paradec serve: API</h1>",
        '<p>The same for programs: <a href="openapi.json">openapi.json</a>. '
        '<a href="./">Translate</a></p>',
    ]
    for path, methods in schema["paths"].items():
        for method, route in methods.items():
            parts.append(f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>")
            parts.append(f"<p>{html.escape(route.get('description', ''))}</p>")
            body = route.get("requestBody", {}).get("content", {}).get("application/json")
            if body:
                parts.append(_table(body["schema"]))
            for status, answer in route["responses"].items():
                said = html.escape(answer["description"])
                parts.append(f"<p><code>{html.escape(status)}</code> {said}</p>")
    return HTMLResponse("\n".join([*parts, "</main></html>"]))


def _table(schema: dict[str, Any]) -> str:
    """Return the fields of a body."""
    rows = []
    for name, field in schema["properties"].items():
        kinds = [_kind(each) for each in field.get("anyOf", [field])]
        kind = " or ".join(each for each in kinds if each != "null")
        default = "required" if name in schema["required"] else json.dumps(field.get("default"))
        cells = (f"<code>{name}</code>", kind, default, field.get("description", ""))
        texts = [cells[0], *map(html.escape, cells[1:])]
        rows.append("<tr>" + "".join(f"<td>{text}</td>" for text in texts) + "</tr>")
    head = "<tr><th>field<th>type<th>default<th>what it is</tr>"
    return f"<table>{head}{''.join(rows)}</table>"


def _kind(schema: dict[str, Any]) -> str:
    """Return a type in words."""
    if "enum" in schema:
        return ", ".join(schema["enum"])
    if schema.get("type") == "array":
        return f"list of {schema['items']['type']}"
    return str(schema.get("type", ""))
