"""The tasks: fairseq's own with the plugin's flags, and images in its place."""

from . import image_super_resolution, parallel_translation  # noqa: F401  (registers the tasks)
