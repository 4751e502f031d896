#!/usr/bin/env bash
# Checks that every folder of src includes headers only of the folders that it may know (docs/architecture.md, "Layers").
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# A folder, and the folders whose headers it may include.
readonly layers='
base
numeric base
checkpoint base numeric
artifact base numeric checkpoint
convert base numeric checkpoint artifact model text
text base
grammar base text
synth base numeric checkpoint text
device base
ops base numeric device
experts base numeric device ops artifact
model base numeric device ops artifact experts
context base numeric device ops artifact experts model
selftest base numeric device ops artifact experts model context convert synth checkpoint
engine base numeric device ops artifact experts model context selftest text grammar
serve base text grammar engine
'

# shellcheck disable=SC2016 # the dollars are awk's
grep -rnE '#include "[a-z_]+/' src | awk -F '[:/"]' -v layers="$layers" '
  BEGIN {
    count = split(layers, rows, "\n")
    for (row = 1; row <= count; row++) {
      fields = split(rows[row], names, " ")
      for (field = 1; field <= fields; field++) may[names[1], names[field]] = 1
    }
  }
  {
    layer = $2
    match($0, /#include "[a-z_]+/)
    included = substr($0, RSTART + 10, RLENGTH - 10)
    if (!((layer, layer) in may)) { unknown[layer] = 1 }
    else if (!((layer, included) in may)) { print $0 ": " layer " may not know " included; faults++ }
  }
  END {
    for (layer in unknown) { print "src/" layer " has no place among the layers"; faults++ }
    if (!faults) print "the layers hold"
    exit faults > 0
  }'
