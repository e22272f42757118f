"""Parallel decoding of translations as a fairseq plugin.

fairseq imports this package for ``--user-dir fairseq_paradec``. Importing it applies the fixes of
``compat`` and puts the plugin's task in the place of ``translation``, so that the plugin's flags
work in every fairseq command without ``--task``.
"""

__version__ = "0.1.0"

from . import compat

compat.apply()

from . import criterions, models, tasks  # noqa: E402,F401  (the fixes come first)
