// One program for machines with a card and nothing else (tools/device-check.sh): `device_check tandem …` is the command
// line, anything else runs the tests of operations and of whole models. They share the libraries, which are most of it.
#include <gmock/gmock.h>
#include <string_view>

#include "command_line.h"

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "tandem") return tandem::app::run_command_line(argc - 1, argv + 1);
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
