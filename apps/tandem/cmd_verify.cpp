#include <fmt/format.h>
#include <memory>
#include <optional>
#include <string>

#include "artifact/artifact.h"
#include "base/json.h"
#include "base/units.h"
#include "commands.h"
#include "convert/verify.h"

namespace tandem::app {

namespace {

constexpr size_t kMostFaults = 20;  // printed; --json has all

struct VerifyArguments {
  std::string artifact, against, mtp_from, vision_from, experts_from, texts_from;
  bool json = false, quiet = false;
};

void print_json(const VerifyArguments& arguments, const convert::Verification& found) {
  base::Json answer;
  answer["artifact"] = arguments.artifact;
  answer["holds"] = found.holds();
  answer["objects"] = found.objects;
  answer["bytes"] = found.bytes;
  if (!arguments.against.empty()) {
    base::Json& against = answer["against"];
    against["source"] = arguments.against;
    against["tensors"] = found.tensors;
    against["tensor_bytes"] = found.tensor_bytes;
    against["reencoded"] = found.reencoded;
    against["texts"] = found.texts;
    against["differing"] = found.differing;
    if (const auto& difference = found.first_difference) {
      against["first_difference"] = {{"name", difference->name},
                                     {"byte", difference->byte},
                                     {"expected", difference->expected},
                                     {"found", difference->found}};
    }
  }
  answer["faults"] = found.faults;
  fmt::print("{}\n", answer.dump(-1, ' ', false, base::Json::error_handler_t::replace));
}

void print_text(const VerifyArguments& arguments, const convert::Verification& found) {
  for (size_t i = 0; i < std::min(found.faults.size(), kMostFaults); ++i) fmt::print("{}\n", found.faults[i]);
  if (found.faults.size() > kMostFaults) fmt::print("... and {} more\n", found.faults.size() - kMostFaults);
  fmt::print("{}: {} objects, {}: {}\n", arguments.artifact, found.objects, base::format_bytes(found.bytes),
             found.holds() ? "all checksums hold" : fmt::format("{} faults", found.faults.size()));
  if (arguments.against.empty()) return;
  fmt::print("against {}: {} tensors ({}) and {} texts compared, {}\n", arguments.against, found.tensors,
             base::format_bytes(found.tensor_bytes), found.texts,
             found.differing == 0 ? "none differs" : fmt::format("{} differ", found.differing));
  if (found.reencoded > 0) {
    fmt::print("{} more tensors were re-encoded in the conversion; made again and compared\n", found.reencoded);
  }
}

void run_verify(const VerifyArguments& arguments) {
  const artifact::Artifact artifact = artifact::Artifact::open(arguments.artifact);
  std::optional<convert::SourceFolders> source;
  if (!arguments.against.empty()) {
    source.emplace(std::filesystem::path(arguments.against));
    source->mtp_from = arguments.mtp_from;
    source->vision_from = arguments.vision_from;
    source->experts_from = arguments.experts_from;
    source->texts_from = arguments.texts_from;
  }
  const convert::Verification found = convert::verify(artifact, source, arguments.quiet || arguments.json);
  if (arguments.json) {
    print_json(arguments, found);
  } else {
    print_text(arguments, found);
  }
  if (!found.holds()) throw NegativeAnswer{};
}

}  // namespace

void add_verify(CLI::App& app) {
  CLI::App& command = *app.add_subcommand("verify", "Check an artifact's checksums, or compare it with its checkpoint");
  const auto arguments = std::make_shared<VerifyArguments>();
  command.add_option("artifact", arguments->artifact, "Folder of the artifact")->required();
  command.add_option("--against", arguments->against,
                     "Folder of the checkpoint that it was made from: compare every tensor bit for bit");
  command.add_option("--mtp-from", arguments->mtp_from,
                     "With --against: the folder that convert took the draft head from");
  command.add_option("--vision-from", arguments->vision_from,
                     "With --against: the folder that convert took the vision tower from");
  command.add_option("--experts-from", arguments->experts_from,
                     "With --against: the GGUF file that convert took the routed experts from");
  command.add_option("--texts-from", arguments->texts_from,
                     "With --against a GGUF file: the folder that convert took config and tokenizer from");
  command.add_flag("--json", arguments->json, "Print the result as JSON, and no progress");
  command.add_flag("--quiet", arguments->quiet, "Show no progress");
  command.callback([arguments] { run_verify(*arguments); });
}

}  // namespace tandem::app
