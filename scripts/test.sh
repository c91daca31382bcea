#!/usr/bin/env bash
# Runs the tests: scripts/test.sh [pytest arguments]. As root it first installs through apt what
# tests need; elsewhere tests whose tools are missing are left out by name, and that is said.
set -euo pipefail
cd "$(dirname "$0")/.."

need=()
for pair in nginx:nginx-light chromium:chromium jq:jq softhsm2-util:softhsm2 gcc:gcc g++:g++ git:git openssl:openssl promtool:prometheus curl:curl; do
  command -v "${pair%%:*}" >/dev/null || [[ -x /usr/sbin/${pair%%:*} ]] || need+=("${pair##*:}")
done
compgen -G "/usr/lib/postgresql/*/bin/postgres" >/dev/null || need+=(postgresql)
names=
markers="not long"
if ((${#need[@]})) && [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
  echo "installing ${need[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -qq -y --no-install-recommends "${need[@]}" >/dev/null
  need=()
fi
for package in "${need[@]}"; do
  case $package in
    nginx-light)
      names="${names:+$names and }not nginx"
      echo "left out: tests with nginx in their name (install nginx-light to run them)"
      ;;
    chromium)
      names="${names:+$names and }not chromium"
      echo "left out: tests of pages, with chromium in their name (install chromium to run them)"
      ;;
    softhsm2)
      names="${names:+$names and }not pkcs11"
      echo "left out: tests with pkcs11 in their name (install softhsm2 to run them)"
      ;;
    git | openssl)
      names="${names:+$names and }not witness"
      echo "left out: tests with witness in their name (install $package to run them)"
      ;;
    postgresql)
      names="${names:+$names and }not postgresql"
      echo "left out: tests with postgresql in their name (install postgresql to run them)"
      ;;
    prometheus)
      names="${names:+$names and }not promtool"
      echo "left out: tests with promtool in their name (install prometheus to run them)"
      ;;
    curl)
      names="${names:+$names and }not demo_keeps"
      echo "left out: tests/cli/test_demo_keeps.py (install curl to run it)"
      ;;
    jq)
      names="${names:+$names and }not jq"
      echo "left out: tests with jq in their name (install jq to run them)"
      ;;
    *)
      markers="$markers and not engine and not e2e"
      echo "left out: tests of the engine, which compiles at run time (install $package)"
      ;;
  esac
done
if ! nvidia-smi -L 2>/dev/null | grep -q GPU; then
  markers="$markers and not cuda"
  echo "left out: tests marked cuda (they need an NVIDIA GPU)"
fi
if [[ $(id -u) != 0 ]]; then
  markers="$markers and not root"
  echo "left out: tests marked root (they read raw memory and mount loop devices)"
fi

# Tests of engines and of whole process trees come last, each worker on a core of its own. Each part
# says what it ran; one part without a test is no failure, both are (pytest's status 5). A few tests
# that failed beside others are run once more by themselves: what passes then is named, not hidden.
# Not those of what one tenant sees of another, or of what is left of a plain text: once is enough.
RETRIED=3
DECISIVE='isolat|stranger|tenant|another|plain|leak|core_dump|forge|tamper'
pytest() {
  local status=0 cache failed
  cache=$(mktemp -d)
  "${VENV:-.venv}/bin/python" -m pytest -o cache_dir="$cache" -n "${WORKERS:-2}" --dist loadfile "$@" || status=$?
  failed=$(grep -c '": true' "$cache/v/cache/lastfailed" 2>/dev/null) || failed=0
  if ((status == 1 && failed > 0 && failed <= RETRIED)) && ! grep -qE "$DECISIVE" "$cache/v/cache/lastfailed"; then
    echo "once more, alone: $failed that failed beside others"
    status=0
    "${VENV:-.venv}/bin/python" -m pytest -o cache_dir="$cache" --last-failed -rA --show-capture=no "$@" || status=$?
  fi
  rm -rf "$cache"
  ran+=("$status")
}
ran=()
whole="engine or e2e"
pytest -m "$markers and not ($whole)" ${names:+-k "$names"} "$@"
export PINNED=1
pytest -m "$markers and ($whole)" ${names:+-k "$names"} "$@"
for status in "${ran[@]}"; do
  ((status == 0 || status == 5)) || exit "$status"
done
[[ ${ran[*]} != "5 5" ]] || exit 5
