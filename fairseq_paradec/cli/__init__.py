"""``paradec``, and the commands of the core; other rooms have theirs in ``commands``."""
