#include <atomic>
#include <csignal>
#include <fmt/format.h>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/units.h"
#include "commands.h"
#include "convert/convert.h"

namespace tandem::app {

namespace {

std::atomic<bool> g_interrupted{false};

// An interrupted conversion ends between two blocks and says how to go on. A second signal ends the process at once,
// which loses nothing either.
void on_signal(int signal) {
  g_interrupted = true;
  std::signal(signal, SIG_DFL);
}

struct ConvertArguments {
  std::string source, out, mtp_from, vision_from, experts_from, texts_from, dense = "keep", mtp_experts = "keep";
  convert::Options options;
  bool json = false;
};

void print(const convert::Result& result, bool json) {
  if (json) {
    base::Json answer;
    answer["artifact"] = result.artifact.string();
    answer["model"] = result.model;
    answer["objects"] = result.objects;
    answer["parts"] = result.parts;
    answer["bytes"] = result.bytes;
    answer["resumed_objects"] = result.resumed_objects;
    answer["consumed_shards"] = result.consumed_shards;
    answer["seconds"] = result.seconds;
    answer["warnings"] = result.warnings;
    fmt::print("{}\n", answer.dump(-1, ' ', false, base::Json::error_handler_t::replace));
    return;
  }
  for (const std::string& warning : result.warnings) {
    fmt::print(stderr, "tandem: {}: {}\n", result.artifact.string(), warning);
  }
  if (result.objects == 0) return;
  fmt::print("{}\n", result.model);
  fmt::print(
      "{}: {} objects, {} in {} part{}, {:.1f} s{}\n", result.artifact.string(), result.objects,
      base::format_bytes(result.bytes), result.parts, result.parts == 1 ? "" : "s", result.seconds,
      result.resumed_objects == 0 ? "" : fmt::format(" ({} objects from an earlier run)", result.resumed_objects));
}

void run_convert(const ConvertArguments& arguments) {
  convert::Options options = arguments.options;
  options.quiet = options.quiet || arguments.json;
  const auto dense = convert::dense_policy_from_name(arguments.dense);
  if (!dense) base::bad_input("--dense", "\"{}\" is not known; known are keep and fp8-row", arguments.dense);
  const auto mtp_experts = convert::mtp_experts_from_name(arguments.mtp_experts);
  if (!mtp_experts) {
    base::bad_input("--mtp-experts", "\"{}\" is not known; known are keep and nvfp4", arguments.mtp_experts);
  }
  options.choices = {*dense, *mtp_experts};
  convert::SourceFolders source(arguments.source);
  source.mtp_from = arguments.mtp_from;
  source.vision_from = arguments.vision_from;
  source.experts_from = arguments.experts_from;
  source.texts_from = arguments.texts_from;
  options.stop = [](size_t) { return g_interrupted.load(); };
  // A limit on file sizes is then an error of the write, with its figures, and not the end of the process.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  print(convert::convert(source, arguments.out, options), arguments.json);
}

}  // namespace

void add_convert(CLI::App& app) {
  CLI::App& command = *app.add_subcommand("convert", "Turn a published checkpoint into a Tandem artifact");
  const auto arguments = std::make_shared<ConvertArguments>();
  convert::Options& options = arguments->options;
  command
      .add_option("source", arguments->source, "Folder of the checkpoint, or a GGUF file (of a split one: any part)")
      ->required();
  command.add_option("-o,--out", arguments->out, "Folder of the artifact to make, NAME.tandem")->required();
  command
      .add_option("--part-size", options.part_bytes,
                  "Largest part, as 500MiB or 4GiB; an object larger than this has a part of its own")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("4GiB");
  command.add_flag("--consume", options.consume,
                   "Delete each source shard as soon as the artifact has all of it (frees disk; cannot be undone)");
  command
      .add_option("--dense", arguments->dense,
                  "Matrices that are not quantised, but for embeddings and what steers: keep, or fp8-row to halve them")
      ->option_text("keep|fp8-row [keep]");
  command
      .add_option("--mtp-experts", arguments->mtp_experts,
                  "The draft head's routed experts in FP8 or BF16: keep, or nvfp4 to re-encode them to 4 bits")
      ->option_text("keep|nvfp4 [keep]");
  command.add_option("--mtp-from", arguments->mtp_from,
                     "Folder of another checkpoint of the model: take its draft head");
  command.add_option("--vision-from", arguments->vision_from,
                     "Folder of another checkpoint of the model: take its vision tower");
  command.add_option("--experts-from", arguments->experts_from,
                     "GGUF file of the model: take its routed experts as they are, in IQ2_S, IQ3_XXS, IQ3_S, IQ4_XS, "
                     "IQ4_NL or Q2_0");
  command.add_option("--texts-from", arguments->texts_from,
                     "Where the source is a GGUF file: folder of the published model's config and tokenizer");
  command.add_flag("--force", options.force, "Replace an artifact that is already there");
  command.add_option("--source-id", options.source_id, "Repository that the source came from, ORG/NAME");
  command.add_option("--source-revision", options.source_revision, "Revision of the source");
  command.add_flag("--quiet", options.quiet, "Show no progress");
  command.add_flag("--json", arguments->json, "Print the result as JSON, and no progress");
  command.footer(
      "Examples:\n"
      "  tandem convert models/demo-flash -o demo-flash.tandem\n"
      "  tandem convert FLASH-NEXT-NVFP4 --experts-from FLASH-NEXT-00001-of-00002.gguf -o flash-64gb.tandem\n"
      "  tandem convert MODEL.gguf --texts-from PUBLISHED-MODEL -o model.tandem");
  command.callback([arguments] { run_convert(*arguments); });
}

}  // namespace tandem::app
