// The config file: lines `name = value` for any setting of any command, and sections `[serve]` for one command alone.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "options.h"

namespace tandem::app {
namespace {

bool is_setting(const CLI::Option& option) {
  return option.get_configurable() && !option.get_envname().empty();
}

CLI::Option* find_setting(CLI::App& command, const std::string& name) {
  CLI::Option* option = command.get_option_no_throw("--" + name);
  return option != nullptr && is_setting(*option) ? option : nullptr;
}

bool in_environment(const CLI::Option& option) {
  const char* value = std::getenv(option.get_envname().c_str());
  return value != nullptr && *value != '\0';
}

CLI::App* find_command(CLI::App& parent, const std::string& name) {
  for (CLI::App* command : parent.get_subcommands(nullptr)) {
    if (command->get_name() == name) return command;
  }
  return nullptr;
}

bool any_command_has(CLI::App& command, const std::string& name) {
  if (find_setting(command, name) != nullptr) return true;
  for (CLI::App* sub : command.get_subcommands(nullptr)) {
    if (any_command_has(*sub, name)) return true;
  }
  return false;
}

// Sends every line of the file to the commands that were called and leaves out what the environment overrides.
class SettingsFile : public CLI::ConfigBase {
 public:
  explicit SettingsFile(CLI::App& root) : root_(root) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    std::vector<CLI::ConfigItem> placed;
    for (CLI::ConfigItem& item : CLI::ConfigBase::from_config(input)) {
      if (item.name == "++" || item.name == "--") continue;  // begin and end of a section
      if (place(item)) placed.push_back(item);
    }
    return placed;
  }

 private:
  std::string source() const { return root_.get_config_ptr()->as<std::string>(); }

  // Sets the item's command; false where no called command takes it. Throws for names that no command knows.
  bool place(CLI::ConfigItem& item) const {
    CLI::App* section = &root_;
    for (const auto& name : item.parents) {
      section = find_command(*section, name);
      if (section == nullptr) base::bad_input(source(), "there is no command '{}'", name);
    }
    if (!any_command_has(*section, item.name)) base::bad_input(source(), "there is no setting '{}'", item.name);

    std::vector<std::string> path;
    for (CLI::App* command = &root_; command != nullptr; command = called(*command, path)) {
      const bool below_section =
          path.size() >= item.parents.size() && std::equal(item.parents.begin(), item.parents.end(), path.begin());
      const CLI::Option* option = below_section ? find_setting(*command, item.name) : nullptr;
      if (option == nullptr) continue;
      item.parents = path;
      return !in_environment(*option);
    }
    return false;
  }

  // The subcommand of `command` that was called, added to the path; null where none was.
  static CLI::App* called(const CLI::App& command, std::vector<std::string>& path) {
    const auto subs = command.get_subcommands();
    if (subs.empty()) return nullptr;
    path.push_back(subs.front()->get_name());
    return subs.front();
  }

  CLI::App& root_;
};

}  // namespace

void add_config_file(CLI::App& root) {
  root.config_formatter(std::make_shared<SettingsFile>(root));
  const char* given = std::getenv("TANDEM_CONFIG");
  const std::string file = given == nullptr ? "" : given;
  root.set_config("--config", file, "A file of settings, `name = value`, with [command] sections (TANDEM_CONFIG)",
                  !file.empty())
      ->type_name("FILE");
}

}  // namespace tandem::app
