// docs/options.md and `tandem options`: the settings of all commands, walked from the parser itself.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "options.h"

namespace tandem::app {
namespace {

struct Row {
  std::string name;
  std::string help;
  std::string type;
  std::string variable;
  std::string initial;
  std::vector<std::string> commands;
};

void collect(const CLI::App& command, const std::string& path, std::vector<Row>& rows) {
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_configurable() || option->get_envname().empty()) continue;
    Row row{.name = option->get_name(),
            .help = option->get_description(),
            .type = option->get_expected_max() == 0 ? "" : option->get_type_name(),
            .variable = option->get_envname(),
            .initial = option->get_default_str(),
            .commands = {}};
    const auto same = [&](const Row& other) { return other.name == row.name && other.help == row.help; };
    auto found = std::find_if(rows.begin(), rows.end(), same);
    if (found == rows.end()) found = rows.insert(rows.end(), std::move(row));
    found->commands.push_back(path.empty() ? "all" : path);
  }
  for (const CLI::App* sub : command.get_subcommands(nullptr)) {
    collect(*sub, path.empty() ? sub->get_name() : path + " " + sub->get_name(), rows);
  }
}

std::string cell(std::string text) {
  for (size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2)) text.insert(at, "\\");
  return text;
}

}  // namespace

std::string options_text(const CLI::App& root) {
  std::vector<Row> rows;
  collect(root, "", rows);
  std::string text;
  for (const auto& row : rows) {
    text += fmt::format("{:<21} {:<28} {:<9} {}\n", row.name, row.variable, row.initial, row.help);
  }
  return text;
}

std::string options_markdown(const CLI::App& root) {
  std::vector<Row> rows;
  collect(root, "", rows);
  std::string text =
      "# Settings\n\n"
      "Printed by `tandem options --markdown` from the table that also makes `--help`.\n\n"
      "Each setting can be given on the command line, in the environment, or in a file named by `--config FILE` or\n"
      "`TANDEM_CONFIG` as `name = value` (for every command that knows it, or below `[command]` for one). The command\n"
      "line comes first, then the environment, then the file.\n\n"
      "| option | environment | default | commands | meaning |\n|---|---|---|---|---|\n";
  for (const auto& row : rows) {
    std::string commands;
    for (const auto& command : row.commands) commands += (commands.empty() ? "" : ", ") + command;
    text += fmt::format("| `{}{}` | `{}` | {} | {} | {} |\n", row.name, row.type.empty() ? "" : " " + cell(row.type),
                        row.variable, row.initial.empty() ? "" : "`" + row.initial + "`", commands, cell(row.help));
  }
  return text;
}

}  // namespace tandem::app
