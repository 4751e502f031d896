// How a streamed answer looks on a terminal and in a pipe.
#pragma once

#include <cstdio>

#include "text/output_parser.h"

namespace tandem::app {

// Prints the answer to standard output as it comes, and what is not part of it, the reasoning, to standard error
// (dimmed where that is a terminal). A tool call is printed as one line `tool call NAME {arguments}`.
class AnswerPrinter {
 public:
  AnswerPrinter();
  ~AnswerPrinter();
  AnswerPrinter(const AnswerPrinter&) = delete;
  AnswerPrinter& operator=(const AnswerPrinter&) = delete;

  void print(const text::OutputEvent& event);
  // Ends the last line, of both streams.
  void finish();

 private:
  void end_reasoning();

  bool dim_;
  bool in_reasoning_ = false;
  bool line_open_ = false;
};

}  // namespace tandem::app
