#include "terminal.h"

#include <fmt/format.h>
#include <unistd.h>

namespace tandem::app {

AnswerPrinter::AnswerPrinter() : dim_(isatty(STDERR_FILENO) != 0) {}

AnswerPrinter::~AnswerPrinter() {
  end_reasoning();  // never leave a terminal dimmed
}

void AnswerPrinter::end_reasoning() {
  if (!in_reasoning_) return;
  fmt::print(stderr, "{}\n", dim_ ? "\033[0m" : "");
  in_reasoning_ = false;
}

void AnswerPrinter::print(const text::OutputEvent& event) {
  using Kind = text::OutputEvent::Kind;
  if (event.kind == Kind::kReasoning) {
    if (!in_reasoning_ && dim_) fmt::print(stderr, "\033[2m");
    in_reasoning_ = true;
    fmt::print(stderr, "{}", event.text);
    std::fflush(stderr);
    return;
  }
  end_reasoning();
  switch (event.kind) {
    case Kind::kToolCallBegin:
      fmt::print("{}tool call {} ", line_open_ ? "\n" : "", event.text);
      break;
    case Kind::kToolCallEnd:
      fmt::print("\n");
      break;
    default:
      fmt::print("{}", event.text);
  }
  line_open_ = event.kind != Kind::kToolCallEnd && !event.text.ends_with('\n');
  std::fflush(stdout);
}

void AnswerPrinter::finish() {
  end_reasoning();
  if (line_open_) fmt::print("\n");
  line_open_ = false;
  std::fflush(stdout);
}

}  // namespace tandem::app
