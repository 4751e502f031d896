#include <array>
#include <fmt/format.h>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "artifact/artifact.h"
#include "artifact/directory.h"
#include "base/json.h"
#include "base/units.h"
#include "commands.h"
#include "inspect_gguf.h"

namespace tandem::app {

namespace {

using artifact::Artifact;
using artifact::Group;
using artifact::Object;

struct GroupSummary {
  size_t objects = 0;
  uint64_t bytes = 0;
  std::set<std::string> encodings;
};

using Summary = std::array<GroupSummary, artifact::kGroups>;

Summary summarise(const Artifact& artifact) {
  Summary summary;
  for (const Object& object : artifact.objects()) {
    GroupSummary& group = summary[static_cast<size_t>(artifact::object_group(object))];
    ++group.objects;
    group.bytes += object.bytes;
    group.encodings.insert(artifact::describe_encoding(object));
  }
  return summary;
}

std::string model_type(const Artifact& artifact) {
  const base::Json& type = base::json_member(artifact.config(), "model_type");
  return type.is_string() ? type.get<std::string>() : "unknown";
}

void print_json(const Artifact& artifact, bool with_objects) {
  base::Json answer;
  answer["artifact"] = artifact.folder().string();
  answer["format_version"] = artifact.format_version();
  answer["model_type"] = model_type(artifact);
  answer["parts"] = artifact.parts();
  uint64_t bytes = 0;
  base::Json groups = base::Json::object();
  const Summary summary = summarise(artifact);
  for (size_t i = 0; i < summary.size(); ++i) {
    if (summary[i].objects == 0) continue;
    base::Json group;
    group["objects"] = summary[i].objects;
    group["bytes"] = summary[i].bytes;
    group["encodings"] = summary[i].encodings;
    groups[std::string(artifact::group_name(static_cast<Group>(i)))] = std::move(group);
    bytes += summary[i].bytes;
  }
  answer["bytes"] = bytes;
  answer["groups"] = std::move(groups);
  answer["provenance"] = artifact.provenance();
  if (with_objects) {
    answer["objects"] = base::Json::array();
    for (const Object& object : artifact.objects()) answer["objects"].push_back(artifact::object_json(object));
  }
  fmt::print("{}\n", answer.dump(-1, ' ', false, base::Json::error_handler_t::replace));
}

std::string text_of(const base::Json& json, const char* fallback) {
  return json.is_string() ? json.get<std::string>() : fallback;
}

void print_provenance(const base::Json& provenance) {
  const base::Json& source = base::json_member(provenance, "source");
  fmt::print("source      {}, revision {}\n", text_of(base::json_member(source, "repository"), "unknown repository"),
             text_of(base::json_member(source, "revision"), "unknown"));
  fmt::print("made by     {}, recipe {}, {}\n", text_of(base::json_member(provenance, "tool"), "unknown"),
             text_of(base::json_member(provenance, "recipe"), "unknown"),
             text_of(base::json_member(provenance, "date"), "no date"));
  std::string licences;
  for (const base::Json& licence : base::json_member(provenance, "licences")) {
    licences += (licences.empty() ? "" : ", ") + text_of(licence, "?");
  }
  fmt::print("licences    {}\n", licences.empty() ? "none found in the source" : licences);
}

void print_text(const Artifact& artifact, bool with_objects) {
  fmt::print("{}: Tandem artifact, format version {}\n", artifact.folder().string(), artifact.format_version());
  fmt::print("model       {}\n", model_type(artifact));
  print_provenance(artifact.provenance());
  uint64_t total = 0;
  const Summary summary = summarise(artifact);
  for (size_t i = 0; i < summary.size(); ++i) {
    const GroupSummary& group = summary[i];
    if (group.objects == 0) continue;
    total += group.bytes;
    fmt::print("{:<11} {:>12}  {:>5} object{}  {}\n", artifact::group_name(static_cast<Group>(i)),
               base::format_bytes(group.bytes), group.objects, group.objects == 1 ? " " : "s",
               fmt::join(group.encodings, ", "));
  }
  fmt::print("{:<11} {:>12}  {:>5} object{}  in {} part{}\n", "all", base::format_bytes(total),
             artifact.objects().size(), artifact.objects().size() == 1 ? " " : "s", artifact.parts(),
             artifact.parts() == 1 ? "" : "s");
  if (!with_objects) return;
  for (const Object& object : artifact.objects()) {
    fmt::print("{} {} [{}] {} bytes at {}+{}\n", object.name, artifact::describe_encoding(object),
               fmt::join(object.shape, ", "), object.bytes, artifact::part_name(object.part), object.offset);
  }
}

struct InspectArguments {
  std::string artifact;
  bool json = false, objects = false;
};

void run_inspect(const InspectArguments& arguments) {
  if (arguments.artifact.ends_with(".gguf")) {
    return inspect_gguf(arguments.artifact, arguments.json, arguments.objects);
  }
  const Artifact artifact = Artifact::open(arguments.artifact);
  if (arguments.json) {
    print_json(artifact, arguments.objects);
  } else {
    print_text(artifact, arguments.objects);
  }
}

}  // namespace

void add_inspect(CLI::App& app) {
  CLI::App& command =
      *app.add_subcommand("inspect", "Tell what an artifact holds and where it came from, or what is in a GGUF file");
  const auto arguments = std::make_shared<InspectArguments>();
  command.add_option("artifact", arguments->artifact, "Folder of the artifact, or a .gguf file")->required();
  command.add_flag("--json", arguments->json, "Print the answer as JSON");
  command.add_flag("--objects", arguments->objects, "Also list every object or tensor");
  command.callback([arguments] { run_inspect(*arguments); });
}

}  // namespace tandem::app
