"""One file per method; ``registry.py`` describes each of them."""
