// What this process holds, for tests that must leave nothing behind.
#pragma once

#include <cstdint>
#include <dirent.h>
#include <fstream>
#include <malloc.h>
#include <unistd.h>

namespace tandem::test {

// With the entries of /proc/self/fd that are no descriptors, so only differences count; -1 where it is not readable.
inline int open_descriptors() {
  DIR* folder = opendir("/proc/self/fd");
  if (folder == nullptr) return -1;
  int count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

// Resident bytes, after the allocator has given back what lies free.
inline uint64_t resident_bytes() {
  malloc_trim(0);
  std::ifstream file("/proc/self/statm");
  uint64_t all = 0;
  uint64_t resident = 0;
  file >> all >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace tandem::test
