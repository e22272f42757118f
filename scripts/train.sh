#!/usr/bin/env bash
# paradec train by this checkout's Python; --python PYTHON picks another. --help says the rest.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

take_python "$@"
need_python fairseq torch
exec "${paradec[@]}" train "${words[@]}"
