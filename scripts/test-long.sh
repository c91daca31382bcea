#!/usr/bin/env bash
# The recorded long run: scripts/test-long.sh [FILE or FILE::TEST ...]. All that is marked long, a file
# after the other: both demos, the checks of the engines, a llama-server that is built for it, tasks of
# lm-eval, which is installed for it, and SGLang in an environment of its own (6.5 GB). A file that fails
# does not end the run; its last lines say which real engines and demos ran. What each test showed goes
# into docs/long-run.json and docs/long-run.md.
set -uo pipefail
cd "$(dirname "$0")/.."

python=${VENV:-.venv}/bin/python
sglang=${SGLANG_VENV:-.venv-sglang}
KVRUN_WHICH_RAN=$(mktemp)
export KVRUN_WHICH_RAN
results=$(mktemp --suffix .xml)
trap 'rm -f "$KVRUN_WHICH_RAN" "$results"' EXIT

parts=("$@")
if ((${#parts[@]} == 0)); then
  mapfile -t parts < <(grep -rlE --include='test_*.py' 'pytest\.mark\.long' tests | sort)
fi
failed=()
for part in "${parts[@]}"; do
  with=$python
  if grep -qE 'importorskip\("sglang"' "${part%%::*}"; then
    VENV=$sglang scripts/sglang-venv.sh || { failed+=("SGLang's environment"); continue; }
    with=$sglang/bin/python
  fi
  if grep -qE 'importorskip\("lm_eval"' "${part%%::*}" && ! "$python" -c 'import lm_eval' 2>/dev/null; then
    # What is there keeps its version: engines are particular about theirs.
    "$python" -m pip install --quiet --constraint <("$python" -m pip freeze --all --exclude-editable) \
      --editable '.[lm-eval]' || { failed+=("lm-eval"); continue; }
  fi
  if [[ $part == *test_llama_stock* && ! -v KVRUN_LLAMA_SERVER ]]; then
    server=$(scripts/llama-server.sh) || { failed+=("llama.cpp's own server"); continue; }
    export KVRUN_LLAMA_SERVER=$server
  fi
  rm -f "$results"
  echo "== $part"
  "$with" -m pytest -m long --timeout 7200 --junitxml "$results" "$part" || failed+=("$part")
  "$with" scripts/write_long_run.py "$part" "$results" || failed+=("the record of $part")
done
echo
cat "$KVRUN_WHICH_RAN"
((${#failed[@]} == 0)) || { printf 'failed: %s\n' "${failed[@]}"; exit 1; }
