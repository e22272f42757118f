"""fairseq's task ``translation`` with the plugin's flags; importing this package registers it."""

from . import translation  # noqa: F401  (registers the task)
