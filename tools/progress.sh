# Sourced by the scripts: progress of long work on standard error. On a terminal a bar with rate and time left, otherwise
# a plain line every ten seconds and one at the end.
# shellcheck shell=bash

# progress LABEL UNIT: reads lines "DONE TOTAL" and shows them; any other line is printed as it is.
progress() {
  local label=$1 unit=$2 line done=0 total=0 started=$EPOCHREALTIME drawn=0 now
  started=${started/[.,]/}
  while IFS= read -r line; do
    if [[ ! $line =~ ^([0-9]+)\ ([0-9]+)$ ]]; then
      [[ -t 2 && $drawn != 0 ]] && printf '\r\e[K' >&2
      printf '%s\n' "$line" >&2
      continue
    fi
    done=${BASH_REMATCH[1]} total=${BASH_REMATCH[2]}
    now=${EPOCHREALTIME/[.,]/}
    if [[ -t 2 ]]; then
      ((now - drawn < 200000)) || { drawn=$now && progress_bar "$label" "$unit" "$done" "$total" $((now - started)); }
    elif ((drawn == 0)); then
      drawn=$now
    elif ((now - drawn >= 10000000)); then
      drawn=$now
      printf '%s: %d of %d %s, %s\n' "$label" "$done" "$total" "$unit" \
        "$(progress_left "$done" "$total" $((now - started)))" >&2
    fi
  done
  ((total == 0)) && return 0
  now=${EPOCHREALTIME/[.,]/}
  [[ -t 2 ]] && printf '\r\e[K' >&2
  printf '%s: %d of %d %s in %d s\n' "$label" "$done" "$total" "$unit" $(((now - started + 500000) / 1000000)) >&2
}

# progress_left DONE TOTAL MICROSECONDS: "about 20 s left", judged by the rate so far.
progress_left() {
  (($1 == 0)) && printf 'just begun' && return
  printf 'about %d s left' $((($3 * ($2 - $1) / $1 + 500000) / 1000000))
}

progress_bar() {
  local label=$1 unit=$2 done=$3 total=$4 elapsed=$5 width=30 filled bar rate
  ((total > 0)) || return 0
  filled=$((width * done / total))
  printf -v bar '%*s' "$filled" ''
  printf -v bar '%s%*s' "${bar// /#}" $((width - filled)) ''
  rate=$((done * 10000000 / (elapsed + 1)))
  printf '\r\e[K%s [%s] %3d %%  %d/%d %s  %d.%d/s  %s' "$label" "$bar" $((100 * done / total)) "$done" "$total" \
    "$unit" $((rate / 10)) $((rate % 10)) "$(progress_left "$done" "$total" "$elapsed")" >&2
}

# build_with_progress LABEL PRESET [TARGET ...]: builds targets of a configured preset; what the compiler says and the
# failing commands are printed, the rest is shown as progress.
build_with_progress() {
  local label=$1 preset=$2
  shift 2
  NINJA_STATUS='@%f %t@' cmake --build --preset "$preset" ${1:+--target "$@"} 2>&1 |
    sed -u -E -e 's/^@([0-9]+ [0-9]+)@.*/\1/' -e '/^ninja: (no work to do|Entering directory)/d' |
    progress "$label" steps
}
