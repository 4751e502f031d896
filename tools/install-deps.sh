#!/usr/bin/env bash
# Installs the distribution's packages that Tandem needs; only those that are missing, nothing from elsewhere.
#
#   tools/install-deps.sh           what ./demo needs: compiler, build tools, libraries, curl and jq
#   tools/install-deps.sh --check   and what ./check needs: the formatter, Python, ccache
#   tools/install-deps.sh --clients and what ./check e2e needs: Chromium, Node.js, npm and ip, where the distribution
#                                   has them
#   tools/install-deps.sh --all     and what ./check all needs: clang with clang-tidy and its runtimes, ShellCheck
#   --list                          print the missing packages and install nothing (exit code 1 if there are any)
#
# For Debian 12 and Ubuntu 24.04. docs/dependencies.md says what each library is for.
set -euo pipefail
# shellcheck source=tools/progress.sh
source "$(dirname "${BASH_SOURCE[0]}")/progress.sh"

readonly build_packages=(
  g++ cmake ninja-build pkg-config
  nlohmann-json3-dev libcli11-dev libfmt-dev libspdlog-dev libssl-dev libpcre2-dev libutf8proc-dev libxxhash-dev
  libhwloc-dev liburing-dev libgtest-dev libgmock-dev
  curl jq ca-certificates
)
readonly check_packages=(clang-format-19 python3 ccache)
# The tests of the web page and of real clients skip themselves without them. Ubuntu has Chromium as a snap alone.
readonly optional_packages=(chromium nodejs npm iproute2)
readonly all_packages=(clang-tidy-19 shellcheck clang-19 libclang-rt-19-dev)
readonly boost_minimum=1.81

fail() {
  printf 'install-deps: %s\n' "$1" >&2
  exit 2
}

usage() {
  sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
}

# The wanted packages that are not installed, one a line.
missing_of() {
  local package
  declare -A installed=()
  while read -r package; do
    installed[${package%%:*}]=1
  done < <(dpkg-query -W -f '${db:Status-Status} ${binary:Package}\n' "$@" 2>/dev/null | sed -n 's/^installed //p')
  for package in "$@"; do
    [[ -n ${installed[$package]:-} ]] || printf '%s\n' "$package"
  done
}

# Whether the package lists have it. They are empty on a fresh system.
available() {
  apt-cache policy "$1" | grep -E '^ *Candidate: [^(]' >/dev/null
}

is_optional() {
  [[ " ${optional_packages[*]} " == *" $1 "* ]]
}

at_least_boost_minimum() {
  dpkg --compare-versions "${1:-0}" ge "$boost_minimum"
}

boost_installed() {
  local status package version
  while read -r status package version; do
    if [[ $status == installed && $package =~ ^libboost(1\.[0-9]+)?-dev$ ]] && at_least_boost_minimum "$version"; then
      return 0
    fi
  done < <(dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\n' 'libboost*-dev' 2>/dev/null)
  return 1
}

# The Boost headers to install: the distribution's default where it is new enough, else its newest versioned package.
boost_package() {
  local name
  if at_least_boost_minimum "$(apt-cache policy libboost-dev | sed -n 's/^ *Candidate: *//p' | grep -v none || true)"; then
    printf 'libboost-dev\n'
    return
  fi
  name=$(apt-cache pkgnames libboost1 | grep -xE 'libboost1\.[0-9]+-dev' | sort -V | tail -n 1 || true)
  if [[ -z $name ]] || ! at_least_boost_minimum "$(sed -E 's/libboost([0-9.]+)-dev/\1/' <<<"$name")"; then
    fail "no Boost of version $boost_minimum or later among this distribution's packages (newest: ${name:-none})"
  fi
  printf '%s\n' "$name"
}

main() {
  local list_only=0 wanted=("${build_packages[@]}")
  local argument
  for argument in "$@"; do
    case $argument in
      --check) wanted+=("${check_packages[@]}") ;;
      --clients) wanted+=("${check_packages[@]}" "${optional_packages[@]}") ;;
      --all) wanted+=("${check_packages[@]}" "${optional_packages[@]}" "${all_packages[@]}") ;;
      --list) list_only=1 ;;
      -h | --help) usage && return ;;
      *) fail "unknown option $argument (see --help)" ;;
    esac
  done
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    fail "neither Debian nor Ubuntu: install the counterparts of these packages by hand: libboost-dev (>= $boost_minimum) ${wanted[*]}"
  fi

  # A compiler or tool that came from elsewhere than a package counts as installed.
  local missing=() package command
  while read -r package; do
    case $package in
      ninja-build) command=ninja ;;
      nodejs) command=node ;;
      iproute2) command=ip ;;
      g++ | cmake | pkg-config | curl | jq | python3 | ccache | shellcheck | clang-*-19 | clang-19) command=$package ;;
      chromium | npm) command=$package ;;
      *) command= ;;
    esac
    [[ -n $command ]] && command -v "$command" >/dev/null && continue
    # Every distribution has libc6-dev: without it the lists are empty.
    is_optional "$package" && ! available "$package" && available libc6-dev && continue
    missing+=("$package")
  done < <(missing_of "${wanted[@]}")
  local need_boost=0
  boost_installed || need_boost=1
  if ((${#missing[@]} == 0 && need_boost == 0)); then
    return 0
  fi
  if ((list_only)); then
    ((need_boost)) && printf 'libboost-dev (>= %s)\n' "$boost_minimum"
    ((${#missing[@]})) && printf '%s\n' "${missing[@]}"
    return 1
  fi

  local as_root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null ||
      fail "missing: ${missing[*]}$( ((need_boost)) && printf ' libboost-dev (>= %s)' "$boost_minimum"). Run it as root, or install sudo"
    as_root=(sudo)
  fi
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -q)
  printf 'Reading the package lists ...\n'
  "${apt[@]}" -qq update </dev/null || fail "apt-get update failed: is the package archive reachable?"
  if ((need_boost)); then
    package=$(boost_package)
    missing+=("$package")
  fi
  local index
  for index in "${!missing[@]}"; do
    if is_optional "${missing[index]}" && ! available "${missing[index]}"; then
      unset "missing[index]"
    fi
  done
  ((${#missing[@]})) || return 0
  printf 'Installing %d packages and what they need: %s\n' "${#missing[@]}" "${missing[*]}"
  # --no-remove: an older Boost that something else needs is never taken away silently.
  "${apt[@]}" install -y --no-install-recommends --no-remove -o Dpkg::Use-Pty=0 "${missing[@]}" </dev/null 2>&1 |
    apt_steps | progress 'Installing' steps || fail "apt-get install failed (see above)"
}

# Turns what apt-get prints into counts: a package is fetched, unpacked and set up.
apt_steps() {
  local line total=0 steps=0
  while IFS= read -r line; do
    case $line in
      *' newly installed, '*) total=$(sed -E 's/.* ([0-9]+) newly installed.*/\1/' <<<"$line") ;;
      Get:* | Unpacking\ * | Setting\ up\ *) steps=$((steps < 3 * total ? steps + 1 : steps)) && printf '%d %d\n' "$steps" $((3 * total)) ;;
      E:* | W:* | dpkg:* | *' errors '*) printf '%s\n' "$line" ;;
    esac
  done
}

main "$@"
