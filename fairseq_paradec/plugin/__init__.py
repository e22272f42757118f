"""All that is fairseq's: tasks, models, updates, text processing, and the cures of its faults."""
