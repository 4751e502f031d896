#!/usr/bin/env bash
# Runs clang-tidy over the sources of the release build, two files at a time (TANDEM_JOBS). A file that passed is looked
# at again only when it, a header it includes, its compile command or .clang-tidy changed.
#
#   tools/tidy.sh            all sources
#   tools/tidy.sh FILE ...   these sources only
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/progress.sh
source tools/progress.sh

readonly database=build/release/compile_commands.json
readonly stamps=build/tidy

# What the verdict on a source depends on, as one checksum. The dependencies are those that ninja recorded; a file that
# has not been compiled yet has none and gets no checksum.
fingerprint() {
  local source=$1 object=$2 dependencies
  dependencies=$(ninja -C build/release -t deps "$object" | sed -n 's/^    //p' | grep -F "$PWD/" || true)
  [[ -n $dependencies ]] || return 0
  { cat .clang-tidy "$source" && xargs cat <<<"$dependencies"; } | sha256sum | cut -d ' ' -f 1
}

# tidy_one SOURCE OBJECT: silent where the source passes or passed before.
tidy_one() {
  local source=$1 stamp print
  stamp=$stamps/${source//\//__}
  print=$(fingerprint "$source" "$2")
  if [[ -n $print && -f $stamp && $(<"$stamp") == "$print" ]]; then
    return 0
  fi
  if clang-tidy-19 -p build/release --quiet "$source" 2>"$stamp.log" >"$stamp.out"; then
    printf '%s' "$print" >"$stamp"
  else
    cat "$stamp.out"
    grep 'error:' "$stamp.log" || true
    return 1
  fi
}

main() {
  [[ -f $database ]] || { cmake --preset release >/dev/null && cmake --build --preset release; }
  mkdir -p "$stamps"
  local sources
  sources=$(jq -r --arg root "$PWD/" '.[] | [(.file | ltrimstr($root)), (.command | capture(" -o (?<object>[^ ]+) ").object)] | @tsv' "$database" | sort -u)
  if (($# > 0)); then
    sources=$(grep -F "$(printf '%s\t\n' "$@")" <<<"$sources")
  fi
  export -f tidy_one fingerprint
  export stamps
  local total count=0 status=0
  total=$(wc -l <<<"$sources")
  {
    # shellcheck disable=SC2016 # expanded by the inner shell
    tr '\t\n' '\0\0' <<<"$sources" |
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
