// The command line as a whole: parses it, runs the command and turns every way to end into an exit code.
#pragma once

namespace tandem::app {

// 0 where the command did what was asked, 1 for a negative answer, 2 for bad input or a machine that lacks something,
// 3 for a fault of Tandem. Errors are one line on standard error.
int run_command_line(int argc, const char* const* argv);

}  // namespace tandem::app
