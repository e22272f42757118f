"""The tasks: fairseq's ``translation`` with the plugin's flags, and super-resolution of images."""

from . import super_resolution, translation  # noqa: F401  (registers the tasks)
