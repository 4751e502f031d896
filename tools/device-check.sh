#!/usr/bin/env bash
# Checks and measures a card with a build that was made elsewhere: no compiler and no packages are needed there.
#
#   tools/device-check.sh pack FOLDER [BUILD]   puts the stripped programs and the libraries they need into FOLDER
#                                               (BUILD: build/release); copy FOLDER and the repository to the machine
#   tools/device-check.sh run FOLDER [PART ...] runs there, from the repository's root: the self-test, the tests of
#                                               operations and of whole models on the card, the benchmarks
#
# Parts of `run`, all but sanitize unless named: selftest tests goldens bench; sanitize runs the operations' tests under
# compute-sanitizer (memcheck, and short ones under racecheck and synccheck), which the machine needs then. Environment:
#   TANDEM_CHECK_OUT=FOLDER   where the logs and the benchmarks' JSON go (default: FOLDER/out)
#   TANDEM_BENCH_ARGS=...     arguments of `tandem bench gpu` beside --json
#   TANDEM_SANITIZE_FILTER=…  cases of `sanitize`
# A short table comes last. Exit code: 0 where everything passed.
set -euo pipefail

fail() {
  printf 'device-check: %s\n' "$1" >&2
  exit 2
}

pack() {
  local folder=$1 program=${2:-build/release}/tests/device_check/device_check library bytes
  mkdir -p "$folder/lib"
  [[ -x $program ]] || fail "$program is missing: build it first (target device_check)"
  strip -o "$folder/device_check" "$program"
  while read -r library; do
    cp -n "$library" "$folder/lib/"
  done < <(ldd "$program" | awk '/=> \//{print $3}' | grep -vE '/(libc|libm|ld-linux[^/]*|libpthread|libdl|librt)\.so')
  cp "${BASH_SOURCE[0]}" "$folder/"
  bytes=$(stat -c %s "$folder/device_check")
  printf 'program %d.%d MiB, 16 are allowed; with its libraries %s\n' $((bytes >> 20)) $(((bytes >> 10) % 1024 * 10 / 1024)) \
    "$(du -sh "$folder" | cut -f1)"
  ((bytes <= 16 << 20)) || fail 'the program is too large'
}

rows=()
failures=0

# part NAME LOG COMMAND ...: runs a command into a log and remembers how it ended.
part() {
  local name=$1 log=$out/$2 begin=$SECONDS status=0
  shift 2
  "$@" >"$log" 2>&1 || status=$?
  ((status == 0)) || failures=$((failures + 1))
  rows+=("$(printf '%-24s %-8s %4d s' "$name" "$([[ $status == 0 ]] && printf passed || printf 'FAILED')" $((SECONDS - begin)))")
}

# Races and barriers are looked for in fewer cases: these tools take far longer over a case.
sanitize() {
  local program=$1 sanitizer tool filter
  sanitizer=$(command -v compute-sanitizer || printf /usr/local/cuda/bin/compute-sanitizer)
  [[ -x $sanitizer ]] || fail 'compute-sanitizer is missing: it comes with the CUDA toolkit'
  for tool in memcheck racecheck synccheck; do
    filter='*Cuda*'
    [[ $tool == memcheck ]] || filter='CudaMixing.*:CudaSmallerCard.*'
    part "$tool" "$tool.log" "$sanitizer" --tool "$tool" --error-exitcode 9 "$program" --gtest_brief=1 \
      --gtest_filter="${TANDEM_SANITIZE_FILTER:-$filter}"
  done
}

run() {
  local folder program
  folder=$(cd "$1" && pwd)
  program=$folder/device_check
  shift
  local parts=${*:-selftest tests goldens bench}
  out=${TANDEM_CHECK_OUT:-$folder/out}
  mkdir -p "$out"
  export LD_LIBRARY_PATH=$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  if [[ $parts == *selftest* ]]; then
    part selftest selftest.log "$program" tandem selftest
  fi
  if [[ $parts == *tests* ]]; then
    part operations operations.log "$program" --gtest_brief=1 --gtest_filter='*Cuda*'
  fi
  if [[ $parts == *sanitize* ]]; then
    sanitize "$program"
  fi
  if [[ $parts == *goldens* ]]; then
    [[ -d models && -f tests/golden/references.tar.xz ]] || fail 'run it in the root of the repository'
    TANDEM_TEST_DATA=$(mktemp -d)
    export TANDEM_TEST_DATA
    mkdir "$TANDEM_TEST_DATA/golden"
    ln -s "$PWD/models" "$TANDEM_TEST_DATA/models"
    tar xJf tests/golden/references.tar.xz -C "$TANDEM_TEST_DATA/golden"
    part goldens goldens.log env TANDEM_TEST_DEVICE=cuda:0 "$program" --gtest_brief=1 --gtest_filter='-*Cuda*'
    rm -rf "$TANDEM_TEST_DATA"
  fi
  if [[ $parts == *bench* ]]; then
    # shellcheck disable=SC2086 # several arguments
    part 'bench gpu' bench_gpu.json "$program" tandem bench gpu --json ${TANDEM_BENCH_ARGS:-}
    if command -v python3 >/dev/null; then
      python3 -c 'import json, sys
for name, value in json.loads(open(sys.argv[1]).read().splitlines()[-1])["figures"].items():
    print(f"{name:<44} {value:.4g}")' "$out/bench_gpu.json" || true
    fi
  fi
  printf '\n%s\n' "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || printf 'no nvidia-smi')"
  printf '%s\n' "${rows[@]}"
  ((failures == 0))
}

case ${1:-} in
  pack) [[ $# -ge 2 ]] || fail 'pack FOLDER [BUILD]' && shift && pack "$@" ;;
  run) [[ $# -ge 2 ]] || fail 'run FOLDER [PART ...]' && shift && run "$@" ;;
  *) sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" ;;
esac
