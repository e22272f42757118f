"""``python -m fairseq_paradec``: the same as ``paradec``."""

import sys

from .cli.main import main

sys.exit(main())
