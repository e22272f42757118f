"""Parallel decoding of translations as a fairseq plugin.

fairseq imports this package for ``--user-dir fairseq_paradec``. Importing it applies the fixes of
``compat`` and puts the plugin's task in the place of ``translation``, so that the plugin's flags
work in every fairseq command without ``--task``. Only ``paradec`` itself puts this off until one of
its commands runs, so that help and usage errors need neither torch nor fairseq.
"""

import logging
import os
import sys

__version__ = "0.1.0"


def register() -> None:
    """Apply the fixes, and register tasks, models and criterions with fairseq; once is enough."""
    # What fairseq asks for while it is imported: tensorboardX.
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
    from . import compat

    compat.apply()
    from . import criterions, models, tasks  # noqa: F401  (the fixes come first)


def _is_command_line() -> bool:
    """Say whether this process is ``paradec``, or ``python -m fairseq_paradec``, as it starts.

    Python calls a program "-m" while it looks for the module that ``-m`` names.
    """
    program = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    return program in ("paradec", "-m") and "fairseq" not in sys.modules


if not _is_command_line():
    register()
