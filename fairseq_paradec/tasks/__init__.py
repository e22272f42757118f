"""The tasks: fairseq's own with the plugin's flags, and images in its place."""

from . import super_resolution, translation  # noqa: F401  (registers the tasks)
