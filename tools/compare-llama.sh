#!/usr/bin/env bash
# Compares Tandem's expert kernels with those of llama.cpp on this processor: the same formats and sizes, all cores.
# Prints a table, and leaves both measurements as JSON in build/compare-llama.
#
#   tools/compare-llama.sh [TANDEM_BINARY]      by default build/release/apps/tandem/tandem
#
# ggml is built for this processor (-O3 -march=native) from the source that the npm package llama.rn carries, in the
# version that tests/ggml/package.json names. What can be set: THREADS, FORMATS, COLUMNS, MEGABYTES, ROUNDS, CXX; and
# BUILD_ONLY=1 to stop once the program is built. Exit code 77 with a line "SKIPPED: reason" where npm is missing or
# cannot fetch the package.
set -euo pipefail
cd "$(dirname "$0")/.."
tandem=${1:-build/release/apps/tandem/tandem}
threads=${THREADS:-$(nproc)} formats=${FORMATS:-iq2_s,iq3_xxs,iq3_s,iq4_xs,iq4_nl,q2_0,nvfp4} columns=${COLUMNS:-1,2,4,8}
megabytes=${MEGABYTES:-1200} rounds=${ROUNDS:-5} compiler=${CXX:-g++}
work=build/compare-llama

skip() {
  echo "SKIPPED: the comparison with llama.cpp needs $1"
  exit 77
}

build() {
  command -v npm >/dev/null || skip "npm (it was not found)"
  rm -rf "$work/objects"
  mkdir -p "$work/objects"
  cp tests/ggml/package.json "$work/package.json"
  (cd "$work" && npm install --no-audit --no-fund --no-package-lock --ignore-scripts --omit=peer --loglevel=error) ||
    skip "the npm package llama.rn (npm could not fetch it)"
  local ggml=$PWD/$work/node_modules/llama.rn/cpp
  local flags=(-O3 -march=native -DNDEBUG -D_GNU_SOURCE -DLM_GGML_USE_CPU -DLM_GGML_USE_CPU_REPACK -w
    -I "$ggml" -I "$ggml/ggml-cpu")
  local file object
  for file in ggml.c ggml-alloc.c ggml-quants.c ggml-backend.cpp ggml-backend-dl.cpp ggml-backend-meta.cpp \
    ggml-backend-reg.cpp ggml-threading.cpp ggml-cpu/{ggml-cpu,quants}.c ggml-cpu/arch/x86/quants.c \
    ggml-cpu/{ggml-cpu,binary-ops,ops,repack,traits,unary-ops,vec}.cpp ggml-cpu/arch/x86/repack.cpp \
    ggml-cpu/amx/{amx,mmq}.cpp; do
    object=$work/objects/${file//\//_}.o
    case $file in
    *.c) "$compiler" -x c "${flags[@]}" -c "$ggml/$file" -o "$object" ;;
    *) "$compiler" -std=c++17 "${flags[@]}" -c "$ggml/$file" -o "$object" ;;
    esac
  done
  "$compiler" -std=c++20 "${flags[@]}" tools/compare_llama.cpp "$work"/objects/*.o -o "$work/compare_llama.new" \
    -pthread -ldl
  mv "$work/compare_llama.new" "$work/compare_llama"
  cp tests/ggml/package.json "$work/built.json"
}

if [[ ! -x $work/compare_llama || tools/compare_llama.cpp -nt $work/compare_llama ]] ||
  ! cmp -s tests/ggml/package.json "$work/built.json"; then
  build
fi
if [[ -n ${BUILD_ONLY:-} ]]; then exit 0; fi
command -v node >/dev/null || skip "Node.js (it was not found)"

"$work/compare_llama" "$threads" "$megabytes" 2560 640 "$rounds" "$formats" "$columns" >"$work/ggml.json"
"$tandem" bench experts --json --threads "$threads" --megabytes "$megabytes" --rounds "$rounds" --formats "$formats" \
  --columns "$columns" --isa avx512,avx2 >"$work/tandem.json"
node tools/compare_llama.mjs "$work/ggml.json" "$work/tandem.json"
