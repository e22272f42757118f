"""The common parts of this package's HTML pages: a head, data for scripts, a tail.

A page needs no other file and no network: it contains its styles, scripts, pictures and data, and
its Content-Security-Policy allows nothing else. Styles and scripts are allowed by their hashes, so
no other text of the page is ever run.

Pure functions; ``lab/commands/pages.py`` writes them to files.
"""

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...output import printable
from ..data.table import Table

#: Start of every page. Files with another start are never overwritten.
MARK = "<!DOCTYPE html>\n<!-- fairseq_paradec."
LAYOUT = 2  # version of the layout

#: The styles of all pages, the server's too.
COMMON = Path(__file__).parents[2] / "page.css"

TAIL = "</main>\n</body>\n</html>\n"


def resource(name: str) -> str:
    """Return a style or a script from this module's folder."""
    return Path(__file__).with_name(name).read_text("utf-8")


def text(value: object) -> str:
    """Escape a text for HTML and its attributes; control characters are spelled out."""
    return html.escape(printable(str(value)), quote=True)


def head(title: str, styles: Sequence[str] = (), scripts: Sequence[str] = ()) -> str:
    """Return a page's beginning, its heading included.

    Scripts run when the whole page is loaded.

    Args:
        title: of the page.
        styles: of ``resource``, after the common one.
        scripts: of ``resource``; none may hold ``</script``.
    """
    styles = [COMMON.read_text("utf-8"), *styles]
    policy = "; ".join(
        [
            "default-src 'none'",
            "img-src data:",
            "style-src " + " ".join(map(_hash, styles)),
            "script-src " + (" ".join(map(_hash, scripts)) or "'none'"),
        ]
    )
    if any("</script" in script.lower() for script in scripts):
        raise ValueError("a script of a page may not hold </script")
    return (
        f'{MARK}page {LAYOUT} -->\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n"
        + "".join(f"<style>{style}</style>\n" for style in styles)
        # type=module: scripts run after loading, in order, each in its own scope
        + "".join(f'<script type="module">{script}</script>\n' for script in scripts)
        + f"</head>\n<body>\n<main>\n<h1>{text(title)}</h1>\n"
    )


def _hash(code: str) -> str:
    """Return the source expression that allows an inline style or script."""
    digest = hashlib.sha256(code.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def data(name: str, value: Any) -> str:
    """Return a hidden block of data, which scripts find by its class."""
    code = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Only these can end a script element or begin a comment in it.
    code = code.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return f'<script type="application/json" class="{text(name)}">{code}</script>\n'


def picture(svg: bytes, description: str) -> str:
    """Return a picture as a part of a page."""
    code = base64.b64encode(svg).decode("ascii")
    return f'<img src="data:image/svg+xml;base64,{code}" alt="{text(description)}">\n'


def table(found: Table, name: str = "table") -> str:
    """Return a table as a part of a page; columns of numbers are aligned to the right."""
    kinds = [' class="number"' if found.is_numeric(one.key) else "" for one in found.shown]
    top = "".join(
        f'<th scope="col"{kind}>{text(one.name)}</th>' for one, kind in zip(found.shown, kinds)
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(name)}">\n'
        f'<table class="grid">\n<thead><tr>{top}</tr></thead>\n<tbody>\n'
        + "".join(_line(line, kinds) for line in found.text())
        + "</tbody>\n</table>\n</div>\n"
    )


def _line(cells: Sequence[str], kinds: Sequence[str]) -> str:
    """Return one row; its first cell is its head."""
    tags = ['th scope="row"', *["td"] * (len(cells) - 1)]
    row = "".join(
        f"<{tag}{kind}>{text(cell)}</{tag[:2]}>" for tag, kind, cell in zip(tags, kinds, cells)
    )
    return f"<tr>{row}</tr>\n"
