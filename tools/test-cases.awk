# Reads ctest's LastTest.log. Prints "skip<TAB>case: reason" for every skipped case and at the end
# "totals<TAB>passed failed skipped". A program that is not GoogleTest counts as one case; it says that it skips by a line
# "SKIPPED: reason" (ctest's log does not tell skipped from passed).

function close_program() {
  if (program == "") return
  if (ran == 0) {
    if (outcome == "Passed" && skip_line != "") { skipped++; print "skip\t" program ": " skip_line }
    else if (outcome == "Passed") passed++
    else failed++
  } else if (outcome != "Passed" && failed_here == 0) {
    failed++  # it died outside a case
  }
  program = ""
}

/^[0-9]+\/[0-9]+ Testing: / {
  close_program()
  program = $0
  sub(/^[0-9]+\/[0-9]+ Testing: /, "", program)
  outcome = ""; ran = 0; failed_here = 0; reason = ""; take = 0; skip_line = ""
  next
}
/^\[ RUN      \]/ { ran++; reason = ""; next }
/^\[       OK \]/ { passed++; next }
/^\[  SKIPPED \] .*\([0-9]+ ms\)/ {
  skipped++
  print "skip\t" $4 ": " (reason != "" ? reason : "no reason given")
  next
}
/^\[  FAILED  \] .*\([0-9]+ ms\)/ { failed++; failed_here++; next }
/: Skipped$/ { take = 1; next }
take { reason = $0; take = 0; next }
/^Test Passed\.$/ { outcome = "Passed"; next }
/^Test Failed\.$/ { outcome = "Failed"; next }
/^SKIPPED: / { skip_line = substr($0, 10); next }
END { close_program(); printf "totals\t%d %d %d\n", passed, failed, skipped }
