#include "text/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <algorithm>
#include <cstdint>
#include <pcre2.h>

#include "base/error.h"
#include "text/utf8.h"

namespace tandem::text {

namespace {

// A pattern in the files of this family has about 150 characters and needs a handful of steps per character; these
// limits stop one that was made to run for ever.
constexpr size_t kMaxPatternBytes = 64 * 1024;
constexpr uint32_t kDepthLimit = 1'000'000;
constexpr uint32_t kHeapLimitKib = 64 * 1024;
constexpr uint64_t kBaseSteps = 1'000'000;
constexpr uint64_t kStepsPerByte = 64;

using CompileContext = std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)>;
using MatchContext = std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)>;
using MatchData = std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)>;

std::string pcre_message(int code) {
  PCRE2_UCHAR text[256];
  if (pcre2_get_error_message(code, text, sizeof(text)) < 0) return fmt::format("PCRE2 error {}", code);
  return reinterpret_cast<const char*>(text);
}

// One match at or after `start`; PCRE2_ERROR_NOMATCH or the number of groups, otherwise an error code.
int match_once(const pcre2_code* code, std::string_view text, size_t start, pcre2_match_data* data,
               pcre2_match_context* context) {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const int found = pcre2_match(code, subject, text.size(), start, PCRE2_NO_UTF_CHECK, data, context);
  if (found != PCRE2_ERROR_JIT_STACKLIMIT) return found;
  // Compiled code has 32 KiB of stack; the interpreter takes its memory from the heap, up to the limit set.
  return pcre2_match(code, subject, text.size(), start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, context);
}

}  // namespace

struct SplitPattern::Compiled {
  pcre2_code* code = nullptr;
  ~Compiled() { pcre2_code_free(code); }
};

SplitPattern::SplitPattern(std::string pattern, std::string source)
    : compiled_(std::make_unique<Compiled>()), source_(std::move(source)) {
  if (pattern.size() > kMaxPatternBytes) {
    base::bad_input(source_, "the split pattern has {} bytes; {} are allowed", pattern.size(), kMaxPatternBytes);
  }
  const CompileContext context(pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (!context) throw std::bad_alloc();
  int error = 0;
  PCRE2_SIZE offset = 0;
  compiled_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context.get());
  if (compiled_->code == nullptr) {
    base::bad_input(source_, "the split pattern does not compile: {} at character {}", pcre_message(error), offset);
  }
  // Where the machine has no compiler back end, or forbids writable code, the same pattern is interpreted.
  pcre2_jit_compile(compiled_->code, PCRE2_JIT_COMPLETE);
}

SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&&) noexcept = default;
SplitPattern::~SplitPattern() = default;

void SplitPattern::split(std::string_view text, const std::function<void(std::string_view)>& piece) const {
  const MatchContext context(pcre2_match_context_create(nullptr), pcre2_match_context_free);
  const MatchData data(pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  if (!context || !data) throw std::bad_alloc();
  const uint64_t steps = std::min<uint64_t>(kBaseSteps + kStepsPerByte * text.size(), UINT32_MAX);
  pcre2_set_match_limit(context.get(), static_cast<uint32_t>(steps));
  pcre2_set_depth_limit(context.get(), kDepthLimit);
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);

  size_t done = 0;   // what has been given out
  size_t start = 0;  // where the next match may begin
  while (start < text.size()) {
    const int found = match_once(compiled_->code, text, start, data.get(), context.get());
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      base::bad_input(source_, "the split pattern gave up at byte {} of a text of {}: {}", start, text.size(),
                      pcre_message(found));
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
    // \K can move the beginning of a match behind its end or before what was given out.
    if (range[0] > range[1] || range[0] < done) base::bad_input(source_, "the split pattern moves its match with \\K");
    if (range[0] > done) piece(text.substr(done, range[0] - done));
    if (range[1] > range[0]) piece(text.substr(range[0], range[1] - range[0]));
    done = range[1];
    start = done;
    if (range[1] == range[0] && start < text.size()) start += static_cast<size_t>(utf8_at(text, start).bytes);
  }
  if (done < text.size()) piece(text.substr(done));
}

}  // namespace tandem::text
