// Tool calls with values chosen to confuse a parser, written as a model writes them and read back at every split of
// their bytes.
#pragma once

#include <cstdint>
#include <string>

namespace tandem::app {

struct ToolCallTrials {
  int64_t calls = 0;      // written and read back
  int64_t splits = 0;     // readings of a text that was cut in two
  int64_t mutilated = 0;  // texts that were damaged before they were read
  // Calls that did not come back as they were, and damaged texts that became something other than text and well-formed
  // calls.
  int64_t malformed = 0;
  std::string first_fault{};  // what was wrong, with the text
};

// The same trials for the same figures. Every text is read whole and byte by byte, a short one also cut at every place.
ToolCallTrials run_tool_call_trials(uint64_t seed, int64_t calls, int64_t mutilated);

}  // namespace tandem::app
