"""The one writer of HTML pages: templates of Jinja in ``pages``, filled with values.

A page needs no other file and no network: it contains its styles, scripts, pictures and data, and
its Content-Security-Policy allows nothing else. Styles and scripts are allowed by their hashes, so
no other text of the page is ever run. Every value is escaped, its control characters spelled out.

Pure functions; ``lab/commands/pages.py`` writes pages to files.
"""

import base64
import functools
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...output import printable
from ..data.table import Table

if TYPE_CHECKING:  # helps of commands do without them
    from jinja2 import Environment
    from markupsafe import Markup

#: Start of every page. Files with another start are never overwritten.
MARK = "<!DOCTYPE html>\n<!-- fairseq_paradec."

#: The styles of all pages, the server's too.
COMMON = Path(__file__).parents[2] / "page.css"

FOLDER = Path(__file__).with_name("pages")


def _shown(value: object) -> object:
    """Return a value as a template shows it."""
    from markupsafe import Markup

    return value if isinstance(value, Markup) else printable(str(value))


@functools.cache
def _templates() -> "Environment":
    """Return the templates, with what they call."""
    import jinja2

    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        finalize=_shown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters["prose"] = prose
    templates.globals |= {"grid": table, "picture": picture}
    return templates


def prose(line: object) -> "Markup":
    """Return a note; text between backticks is code."""
    from markupsafe import Markup, escape

    parts = [escape(_shown(part)) for part in str(line).split("`")]
    if len(parts) % 2 == 0:  # one of them has no other
        return escape(_shown(line))
    code = Markup("<code>{}</code>")
    return Markup("").join(code.format(part) if i % 2 else part for i, part in enumerate(parts))


def resource(name: str) -> str:
    """Return a style or a script of ``pages``."""
    return (FOLDER / name).read_text("utf-8")


def page(
    template: str, styles: Sequence[str] = (), scripts: Sequence[str] = (), **values: Any
) -> Iterator[str]:
    """Fill the template of a page; yield it piece by piece, as its values come.

    Args:
        template: a file of ``pages``.
        styles: of ``resource``, after the common one.
        scripts: of ``resource``; none may hold ``</script``.
        values: what the template names, ``title`` among them.
    """
    from markupsafe import Markup

    styles = [COMMON.read_text("utf-8"), *styles]
    if any("</script" in script.lower() for script in scripts):
        raise ValueError("a script of a page may not hold </script")
    rules = [
        "default-src 'none'",
        "img-src data:",
        "style-src " + " ".join(map(_hash, styles)),
        "script-src " + (" ".join(map(_hash, scripts)) or "'none'"),
    ]
    values |= {"styles": list(map(Markup, styles)), "scripts": list(map(Markup, scripts))}
    yield from _templates().get_template(template).generate(policy="; ".join(rules), **values)


def _hash(code: str) -> str:
    """Return the source expression that allows an inline style or script."""
    digest = hashlib.sha256(code.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def data(name: str, value: Any) -> "Markup":
    """Return a hidden block of data, which scripts find by its class."""
    from markupsafe import Markup

    code = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Only these can end a script element or begin a comment in it.
    code = code.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    block = Markup('<script type="application/json" class="{}">{}</script>\n')
    return block.format(name, Markup(code))


def picture(svg: bytes) -> str:
    """Return the address of a picture that is part of the page."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode('ascii')}"


def table(table: Table, name: str = "table") -> "Markup":
    """Return a table as a part of a page; columns of numbers are aligned to the right."""
    from markupsafe import Markup

    numeric = [table.is_numeric(column.key) for column in table.shown]
    template = _templates().get_template("table.html")
    return Markup(template.render(table=table, name=name, numeric=numeric))
