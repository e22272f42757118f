"""Makes this repository's own pages; the Makefile names the uses.

python -m tools.site pages [--check]    RESULTS.md, docs/papers.md and the parts of other pages
python -m tools.site gallery [--check]  the pictures of docs/gallery.md
python -m tools.site source             site/source, of which MkDocs builds the site
"""

import argparse
import sys

from fairseq_paradec.errors import UsageError

from . import ROOT, gallery, pages, papers, source
from .published import read_results, read_summary


def make_pages(check: bool) -> bool:
    """Write the committed pages that show results, or return whether they are up to date."""
    folder = ROOT / "results"
    results = read_results(folder)
    rendered = pages.render(results, read_summary(folder), ROOT)
    rendered[ROOT / "docs" / "papers.md"] = papers.page(papers.load(), results)
    if check:
        return all([pages.is_current(page, text) for page, text in rendered.items()])
    for page, text in rendered.items():
        page.write_text(text, "utf-8")
    return True


def make_gallery(check: bool) -> bool:
    """Draw the gallery's pictures, or return whether they are there and traces are the same."""
    if not check:
        gallery.make()
        return True
    problems = gallery.problems(gallery.PAGE)
    print("\n".join(problems) or f"{gallery.PAGE} is up to date")
    return not problems


def main() -> int:
    """Do what the words say; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.site",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("pages", "gallery", "source"))
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if it differs")
    args = parser.parse_args()
    try:
        if args.what == "source":
            source.make(ROOT / "site" / "source")
            return 0
        make = make_pages if args.what == "pages" else make_gallery
        return 0 if make(args.check) else 1
    except UsageError as error:
        print(f"tools.site: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
