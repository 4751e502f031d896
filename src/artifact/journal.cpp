#include "artifact/journal.h"

#include <cerrno>
#include <sys/file.h>

#include "base/error.h"
#include "base/units.h"

namespace tandem::artifact {

namespace {

// A conversion of the largest published checkpoint writes under 1 MiB.
constexpr uint64_t kLargestJournal = uint64_t{64} << 20;

}  // namespace

Journal Journal::open(const std::filesystem::path& folder) {
  Journal journal;
  journal.file_ = base::File::open_write(folder / kJournalFile);
  // A file system without locks is used without them.
  if (::flock(journal.file_.descriptor(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    base::unavailable(folder.string(), "another conversion is writing here");
  }
  const uint64_t bytes = journal.file_.size();
  if (bytes > kLargestJournal) {
    base::bad_input(journal.file_.path().string(), "holds {}, more than the {} that a journal can have",
                    base::format_bytes(bytes), base::format_bytes(kLargestJournal));
  }
  std::string text(bytes, '\0');
  journal.file_.read_at(0, std::as_writable_bytes(std::span(text)));
  while (journal.end_ < text.size()) {
    const size_t line_end = text.find('\n', journal.end_);
    if (line_end == std::string::npos) break;
    base::Json entry = base::Json::parse(text.begin() + static_cast<ptrdiff_t>(journal.end_),
                                         text.begin() + static_cast<ptrdiff_t>(line_end), nullptr, false);
    if (!entry.is_object()) break;
    journal.entries_.push_back(std::move(entry));
    journal.end_ = line_end + 1;
  }
  if (journal.end_ != bytes) journal.file_.truncate(journal.end_);
  return journal;
}

void Journal::append(base::Json entry, bool durable) {
  const std::string line = entry.dump() + "\n";
  file_.write_at(end_, std::as_bytes(std::span(line)));
  end_ += line.size();
  if (durable) file_.sync();
  entries_.push_back(std::move(entry));
}

void Journal::clear() {
  file_.truncate(0);
  end_ = 0;
  entries_.clear();
}

}  // namespace tandem::artifact
