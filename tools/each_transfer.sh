#!/usr/bin/env bash
# The correctness suites with each transfer forced in turn; see tests/support/transfers.py for what that means.
#
#     bash tools/each_transfer.sh [PYTEST ARGUMENT ...]     PYTHON names the interpreter
set -euo pipefail
cd "$(dirname "$0")/.."

failed=()
(($#)) || set -- tests/service tests/conformance tests/client tests/faults
for transfer in grpc tcp shared_memory local; do
  printf '\n===== %s\n' "$transfer"
  export DSNB_TRANSFER=$transfer
  "${PYTHON:-python}" -m pytest -q -n 3 --dist loadfile -m "not soak" "$@" || failed+=("$transfer")
done
if ((${#failed[@]})); then
  printf 'failed with: %s\n' "${failed[*]}" >&2
  exit 1
fi
