#!/usr/bin/env bash
# Renders 600 random conversations with each template in Jinja (JavaScript) and natively, and compares them.
#
#   run.sh SOURCE_DIR WORK_DIR COMPARE_PROGRAM
#
# Exit code 77, which ctest shows as skipped, where Node.js 18 or npm is missing or the package can't be fetched.
set -eu
source_dir=$1 work_dir=$2 compare=$3

skip() {
  echo "SKIPPED: the comparison with the checkpoint's Jinja template needs $1"
  exit 77
}

command -v node >/dev/null || skip "Node.js 18 or newer (node was not found)"
command -v npm >/dev/null || skip "npm (it was not found)"
major=$(node -p 'process.versions.node.split(".")[0]')
[ "$major" -ge 18 ] || skip "Node.js 18 or newer (found $(node --version))"

mkdir -p "$work_dir"
cp "$source_dir/tests/text/jinja/generate.mjs" "$work_dir/"
# Installed once, and again where the pinned version changes.
if ! cmp -s "$source_dir/tests/text/jinja/package.json" "$work_dir/package.json" || [ ! -d "$work_dir/node_modules" ]; then
  rm -rf "$work_dir/node_modules" "$work_dir/package.json"
  cp "$source_dir/tests/text/jinja/package.json" "$work_dir/package.json.new"
  mkdir -p "$work_dir/fetch" && cp "$work_dir/package.json.new" "$work_dir/fetch/package.json"
  (cd "$work_dir/fetch" && npm install --no-audit --no-fund --no-package-lock --ignore-scripts --loglevel=error) ||
    skip "the npm package @huggingface/jinja (npm could not fetch it)"
  mv "$work_dir/fetch/node_modules" "$work_dir/node_modules"
  mv "$work_dir/package.json.new" "$work_dir/package.json"
fi

compare_with() { # TEMPLATE SEED STRICT
  node "$work_dir/generate.mjs" "$source_dir/$1" 600 "$2" "$3" >"$work_dir/cases.json"
  "$compare" "$source_dir/$1" "$work_dir/cases.json"
}
compare_with models/demo-flash/chat_template.jinja 1 0
compare_with tests/text/jinja/printed_tools.jinja 2 1
