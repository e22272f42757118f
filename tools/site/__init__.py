"""What makes this repository's own pages of its results: RESULTS.md, docs/papers.md, the site."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
