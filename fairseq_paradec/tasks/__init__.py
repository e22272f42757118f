"""The tasks: fairseq's own, with the plugin's flags."""

from . import parallel_translation  # noqa: F401  (registers the task)
