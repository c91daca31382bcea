#!/usr/bin/env bash
# Makes .venv-sglang (or $VENV) with SGLang for a CPU, kvrun and the tools of its tests: 6.5 GB, some
# minutes. Quick when nothing changed. SGLang publishes no kernels for CPUs: a stand-in of the tests
# (tests/support/sglang) takes their place, so what this environment serves is for tests only.
# Needs g++, ninja, the headers of Python and of OpenSSL (apt: g++ libssl-dev python3-dev).
set -euo pipefail
cd "$(dirname "$0")/.."

venv=${VENV:-.venv-sglang}
python=${PYTHON:-python3.11}
sglang=0.5.23
command -v "$python" >/dev/null || { echo "SGLang's environment needs $python; set PYTHON" >&2; exit 1; }

wanted=$(cat pyproject.toml scripts/sglang-requirements.txt scripts/sglang-venv.sh \
  tests/support/sglang/sgl_kernel/*.py tests/support/sglang/cpu_shim/*.{py,toml} | sha256sum)
stamp=$venv/kvrun-setup
[[ -f $stamp && $(cat "$stamp") == "$wanted" ]] && exit 0

echo "setting up $venv with SGLang $sglang (some minutes the first time)"
[[ -x $venv/bin/python ]] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check uv
uv() { "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" "$@"; }
uv --requirement scripts/sglang-requirements.txt
uv --no-deps "sglang==$sglang"
uv --constraint scripts/sglang-requirements.txt --editable . boto3 hypothesis "moto[s3,server]" \
  pytest pytest-asyncio pytest-timeout pyyaml setuptools
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
rm -rf "$site/sgl_kernel"
cp -r tests/support/sglang/sgl_kernel "$site/"
uv --no-deps --no-build-isolation ./tests/support/sglang/cpu_shim
echo "$wanted" >"$stamp"
