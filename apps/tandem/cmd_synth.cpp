#include <atomic>
#include <csignal>
#include <fmt/format.h>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/units.h"
#include "commands.h"
#include "options.h"
#include "synth/model.h"
#include "synth/write.h"

namespace tandem::app {
namespace {

struct SynthArguments {
  synth::Settings settings;
  std::string scale = "tiny";
  std::string config;
  std::string out;
  synth::WriteOptions write;
  bool list = false;
  bool json = false;
};

std::atomic<bool> g_synth_interrupted = false;
void on_synth_signal(int) {
  g_synth_interrupted = true;
}

synth::Scale scale_named(const std::string& name) {
  if (name == "tiny") return synth::Scale::kTiny;
  if (name == "small") return synth::Scale::kSmall;
  if (name == "full") return synth::Scale::kFull;
  base::bad_input("--scale", "\"{}\" is none of tiny, small, full", name);
}

void list_forms() {
  for (const synth::NamedForm& form : synth::forms()) fmt::print("{:<16}  {}\n", form.name, form.meaning);
}

void run_synth(SynthArguments& arguments) {
  if (arguments.list) return list_forms();
  if (arguments.settings.form.empty()) base::bad_input("FORM", "is missing (tandem synth --list names them)");
  if (arguments.out.empty()) base::bad_input("--out", "is missing: the folder of the checkpoint to make");
  constexpr uint64_t kLargestConfig = uint64_t{16} << 20;
  arguments.settings.scale = scale_named(arguments.scale);
  if (!arguments.config.empty()) {
    arguments.settings.config = base::parse_json(base::read_text(arguments.config, kLargestConfig), arguments.config);
  }
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes is then an error of the write
  std::signal(SIGINT, on_synth_signal);
  std::signal(SIGTERM, on_synth_signal);
  arguments.write.stop = [] { return g_synth_interrupted.load(); };
  arguments.write.quiet = arguments.write.quiet || arguments.json;
  const synth::Model model(arguments.settings);
  const auto result = synth::write_checkpoint(model, arguments.out, arguments.write);
  if (arguments.json) {
    const base::Json answer = {
        {"folder", result.folder.string()}, {"form", arguments.settings.form}, {"tensors", result.tensors},
        {"shards", result.shards},          {"bytes", result.bytes},           {"seconds", result.seconds}};
    fmt::print("{}\n", answer.dump());
  } else {
    fmt::print("{}: {} tensors, {} in {} shards, {:.1f} s\n", result.folder.string(), result.tensors,
               base::format_bytes(result.bytes), result.shards, result.seconds);
  }
}

void add_sizes(CLI::App& command, synth::Sizes& sizes) {
  const auto add = [&command](const char* name, std::optional<int64_t>& value, const char* help) {
    command.add_option(name, value, help)->group("Sizes (what is not given is the scale's or the config's)");
  };
  add("--layers", sizes.layers, "Layers; every fourth one is attention");
  add("--hidden", sizes.hidden, "Width of the hidden state, a multiple of 128");
  add("--inner", sizes.inner, "Inner width of an expert, or of the MLP of a 27B");
  add("--experts", sizes.experts, "Experts of a layer");
  add("--top-k", sizes.top_k, "Experts that a token uses");
  add("--vocab", sizes.vocab, "Ids of the vocabulary");
  add("--ngram-rows", sizes.ngram_rows, "Rows of the n-gram table, about");
}

}  // namespace

void add_synth(CLI::App& app) {
  CLI::App& command = *app.add_subcommand(
      "synth", "Make a checkpoint of random weights in a published form, of any size, to try things with");
  const auto arguments = std::make_shared<SynthArguments>();
  arguments->settings.form.clear();
  command.add_option("form", arguments->settings.form, "The published form, one of --list")->type_name("FORM");
  command.add_option("-o,--out", arguments->out, "Folder of the checkpoint to make")->type_name("FOLDER");
  command.add_flag("--list", arguments->list, "Print the forms and do nothing");
  command.add_option("--scale", arguments->scale, "tiny (some MiB), small (about 1 GiB) or full (as published)")
      ->capture_default_str();
  command.add_option("--config-json", arguments->config, "A config.json to take the sizes from instead")
      ->type_name("FILE");
  add_sizes(command, arguments->settings.sizes);
  command.add_option("--seed", arguments->settings.seed, "The same seed makes the same bytes")->capture_default_str();
  command
      .add_option("--router-skew", arguments->settings.router_skew,
                  "How unevenly experts are chosen, 0 to 4: router rows are scaled by exp(skew * normal)")
      ->capture_default_str();
  command
      .add_option(
          "--locality", arguments->settings.locality,
          "How alike neighbouring tokens are, 0 to below 1: the part of embedding and head that 64 topics share")
      ->capture_default_str();
  add_size(command, "--shard-size", arguments->write.shard_bytes, "About the size of a shard");
  command.add_flag("--force", arguments->write.force, "Replace a checkpoint that is already there");
  command.add_flag("--quiet", arguments->write.quiet, "Show no progress");
  command.add_flag("--json", arguments->json, "Print the result as JSON, and no progress");
  for (CLI::Option* option : command.get_options()) per_call(option);
  command.footer(
      "Examples:\n"
      "  tandem synth flash-nvfp4 -o tiny-flash && tandem convert tiny-flash -o tiny-flash.tandem\n"
      "  tandem synth flash-nvfp4 -o big --scale full --layers 4 --router-skew 0.5\n"
      "The weights are noise: such a model computes as the real one does, and answers nonsense.");
  command.callback([arguments] { run_synth(*arguments); });
}

}  // namespace tandem::app
