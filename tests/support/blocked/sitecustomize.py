"""Every Python that finds this folder on its path imports neither torch nor fairseq."""

import sys

sys.modules["torch"] = sys.modules["fairseq"] = None  # type: ignore[assignment]
