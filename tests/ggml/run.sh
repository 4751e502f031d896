#!/usr/bin/env bash
# Builds ggml's block decoders and GGUF functions from the source that an npm package carries, as a shared library, and
# runs a program that compares them with Tandem's.
#
#   run.sh SOURCE_DIR WORK_DIR COMPILER COMPARE_PROGRAM
#
# Exit code 77, which ctest shows as skipped, where npm is missing or the package can't be fetched.
set -eu
source_dir=$1 work_dir=$2 compiler=$3 compare=$4

skip() {
  echo "SKIPPED: the comparison with ggml needs $1"
  exit 77
}

command -v npm >/dev/null || skip "npm (it was not found)"

mkdir -p "$work_dir"
# Installed and built once, and again where the pinned version changes.
if ! cmp -s "$source_dir/tests/ggml/package.json" "$work_dir/package.json" || [ ! -f "$work_dir/ggml.so" ]; then
  rm -rf "$work_dir/node_modules" "$work_dir/package.json" "$work_dir/ggml.so"
  mkdir -p "$work_dir/fetch" && cp "$source_dir/tests/ggml/package.json" "$work_dir/fetch/"
  (cd "$work_dir/fetch" &&
    npm install --no-audit --no-fund --no-package-lock --ignore-scripts --omit=peer --loglevel=error) ||
    skip "the npm package llama.rn (npm could not fetch it)"
  # Only the C and C++ sources are needed.
  ggml=$work_dir/fetch/node_modules/llama.rn/cpp
  flags=(-O2 -fPIC -ffp-contract=off -w -I "$ggml" -I "$ggml/ggml-cpu")
  for file in ggml-quants.c ggml.c; do
    "$compiler" -x c "${flags[@]}" -c "$ggml/$file" -o "$work_dir/$file.o"
  done
  for file in gguf.cpp ggml-threading.cpp; do
    "$compiler" -std=c++17 "${flags[@]}" -c "$ggml/$file" -o "$work_dir/$file.o"
  done
  # Bound lazily: ggml's back ends, which nothing here calls, stay out.
  "$compiler" -shared -Wl,-z,lazy "$work_dir"/*.o -o "$work_dir/ggml.so.new"
  rm -rf "$work_dir"/*.o "$work_dir/fetch"
  mv "$work_dir/ggml.so.new" "$work_dir/ggml.so"
  cp "$source_dir/tests/ggml/package.json" "$work_dir/package.json"
fi

cd "$work_dir"
"$compare" "$work_dir/ggml.so"
