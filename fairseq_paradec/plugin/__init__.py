"""All that is fairseq's: tasks, models, updates, text processing, and the cures of its faults."""

from .. import register

# Before the modules of this folder, which import fairseq: what they define is then complete.
register()
