#!/usr/bin/env bash
# paradec distill by this checkout's Python; --python PYTHON picks another. --help says the rest.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

take_python "$@"
need_python fairseq torch tqdm
export LOGLEVEL=${LOGLEVEL:-WARNING} OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec "${paradec[@]}" distill "${words[@]}"
