"""All that is fairseq's: tasks, models, updates, text processing, and the cures of its faults."""

import fairseq  # noqa: F401  (which registers the modules of this folder, whole: see ``arrival``)
