#!/usr/bin/env bash
# Runs clang-tidy over all sources, two files at a time (TANDEM_JOBS). A file that passed is looked
# at again only when it, a header it includes, its compile command or .clang-tidy changed.
#
#   tools/tidy.sh            all sources
#   tools/tidy.sh FILE ...   these sources only
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/progress.sh
source tools/progress.sh

readonly stamps=build/tidy
readonly database=$stamps/compile_commands.json

# What the verdict on a source depends on, as one checksum: its compile command, the files of the tree that it includes,
# and the configuration.
fingerprint() {
  local command=$1 dependencies configuration=.clang-tidy
  [[ ${command##* -c } != */tests/* ]] || configuration+=' tests/.clang-tidy'
  dependencies=$(cd build/dev && bash -c "${command%% -o *} -MM -MF - -c ${command##* -c }" | tr -d '\\\n' | cut -d : -f 2-)
  # shellcheck disable=SC2086 # a list of names
  { printf '%s' "$command" && cat $configuration $dependencies; } | sha256sum | cut -d ' ' -f 1
}

# tidy_one SOURCE COMMAND: silent where the source passes or passed before.
tidy_one() {
  local source=$1 stamp print
  stamp=$stamps/${source//\//__}
  print=$(fingerprint "$2")
  if [[ -f $stamp && $(<"$stamp") == "$print" ]]; then
    return 0
  fi
  if clang-tidy-19 -p "$stamps" --quiet "$source" 2>"$stamp.log" >"$stamp.out"; then
    printf '%s' "$print" >"$stamp"
  else
    cat "$stamp.out"
    grep 'error:' "$stamp.log" || true
    return 1
  fi
}

main() {
  cmake --preset dev >/dev/null
  mkdir -p "$stamps"
  # Without the options that only GCC knows.
  sed -E 's/ -fno-tree-(ter|reassoc)//g' build/dev/compile_commands.json >"$database"
  # A line with the source, a line with its compile command, and so on.
  local sources
  sources=$(jq -r --arg root "$PWD/" '.[] | (.file | ltrimstr($root)) as $file
    | select($file | startswith("build/") | not)  # what the build writes
    | select($ARGS.positional == [] or any($ARGS.positional[]; . == $file)) | $file, .command' \
    "$database" --args "$@")
  export -f tidy_one fingerprint
  export stamps
  local total count=0 status=0
  total=$(($(wc -l <<<"$sources") / 2))
  {
    # shellcheck disable=SC2016 # expanded by the inner shell
    tr '\n' '\0' <<<"$sources" |
      xargs -0 -n 2 -P "${TANDEM_JOBS:-$(nproc)}" bash -c 'tidy_one "$0" "$1" && echo "@ok" || { echo "@failed"; exit 1; }'
  } | while IFS= read -r line; do
    case $line in
      @ok | @failed) count=$((count + 1)) && printf '%d %d\n' "$count" "$total" ;;
      *) printf '%s\n' "$line" ;;
    esac
  done | progress 'clang-tidy' files || status=1
  ((status == 0)) && printf 'clang-tidy found nothing in %d files\n' "$total"
  return "$status"
}

main "$@"
