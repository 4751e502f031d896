#!/usr/bin/env bash
# Drives the web page in a headless Chromium.
#
#   run.sh SOURCE_DIR WORK_DIR TANDEM_PROGRAM ECHO_SERVER_PROGRAM
#
# Screenshots are written to WORK_DIR/screenshots. TANDEM_CHROMIUM names another browser of Chromium's kind. Exit code
# 77, which ctest shows as skipped, where Node.js 18, npm or the browser is missing or the packages can't be fetched.
set -eu
source_dir=$1 work_dir=$2 tandem=$3 echo_server=$4

skip() {
  echo "SKIPPED: the test of the web page needs $1"
  exit 77
}

command -v node >/dev/null || skip "Node.js 18 or newer (node was not found)"
command -v npm >/dev/null || skip "npm (it was not found)"
major=$(node -p 'process.versions.node.split(".")[0]')
[ "$major" -ge 18 ] || skip "Node.js 18 or newer (found $(node --version))"
browser=${TANDEM_CHROMIUM:-}
for name in chromium google-chrome-stable google-chrome; do
  browser=${browser:-$(command -v "$name" || true)}
done
[ -n "$browser" ] || skip "Chromium (it was not found)"

mkdir -p "$work_dir"
# Installed once, and again where a pinned version changes.
lock=$source_dir/tests/web/package-lock.json
if ! cmp -s "$lock" "$work_dir/installed-lock.json"; then
  cp "$source_dir/tests/web/package.json" "$lock" "$work_dir/"
  (cd "$work_dir" && npm ci --no-audit --no-fund --ignore-scripts --loglevel=error) ||
    skip "the npm packages playwright-core and axe-core (npm could not fetch them)"
  cp "$lock" "$work_dir/installed-lock.json"
fi

# Node.js looks for packages in the folders above a script: the scripts run beside them.
rm -rf "$work_dir/scripts" "$work_dir/demo.tandem"
mkdir -p "$work_dir/scripts" "$work_dir/screenshots"
cp "$source_dir"/tests/web/*.mjs "$work_dir/scripts/"
"$tandem" convert "$source_dir/models/demo-flash" -o "$work_dir/demo.tandem" >"$work_dir/convert.log" 2>&1 ||
  { cat "$work_dir/convert.log" && exit 1; }
exec node "$work_dir/scripts/main.mjs" "$browser" "$tandem" "$work_dir/demo.tandem" "$echo_server" \
  "$work_dir/screenshots"
