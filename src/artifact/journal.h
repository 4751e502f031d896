// The journal of a conversion in progress: one JSON object a line, in the folder that becomes the artifact. It is what
// an interrupted conversion continues from.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace tandem::artifact {

inline constexpr const char* kJournalFile = "journal.jsonl";

// Not thread-safe. Held by one process at a time: a second one is refused.
class Journal {
 public:
  // Opens the journal of `folder`, creating it where absent. A last line that was cut off by a crash is dropped.
  // Throws base::Error{kUnavailable} where another process holds it.
  static Journal open(const std::filesystem::path& folder);

  const std::vector<base::Json>& entries() const { return entries_; }
  // Appends one object; `durable` also waits until the disk has it and everything before it.
  void append(base::Json entry, bool durable);
  // Back to an empty journal.
  void clear();

 private:
  base::File file_;
  uint64_t end_ = 0;
  std::vector<base::Json> entries_;
};

}  // namespace tandem::artifact
