#include "bench_api.h"

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "bench_grammar.h"
#include "bench_report.h"
#include "capture_replay.h"
#include "commands.h"
#include "options.h"
#include "scripted_server.h"
#include "serve/fields.h"
#include "serve/openai/chat_request.h"
#include "stream_load.h"
#include "tool_call_trials.h"

namespace tandem::app {
namespace {

using base::Json;

constexpr int64_t kCaptureContext = 131'072;
constexpr int64_t kAgentBytes = 90'000;

struct ApiBenchOptions {
  std::string model;
  std::string captures;
  int64_t calls = 10'000;
  int64_t mutilated = 1'000;
  int64_t disconnects = 10'000;
  int64_t connections = 64;
  int64_t tokens = 200;
  int rounds = kLeastRounds;
  uint64_t seed = 1;
  bool json = false;
};

engine::EngineOptions scripted_limits(int64_t context, int concurrency) {
  engine::EngineOptions limits;
  limits.max_context = context;
  limits.max_concurrency = concurrency;
  return limits;
}

std::string many_words(int64_t words) {
  std::string out;
  for (int64_t i = 0; i < words; ++i) out += i % 9 == 8 ? "so. " : "and then ";
  return out;
}

// Prints what was found wrong; figures alone would not tell it.
void say_fault(const std::string& fault) {
  fmt::print(stderr, "{}\n", fault);
}

void add_captures(BenchReport& report, const ApiBenchOptions& options) {
  const auto limits = scripted_limits(kCaptureContext, 2);
  ScriptedServer server(scripted_parts(options.model, "It is done.", limits), limits);
  const CaptureReplay replay = replay_captures(options.captures, server.port());
  for (const std::string& fault : replay.faults) say_fault(fault);
  report.raw["captures"] = {{"total", replay.total}, {"faults", replay.faults}};
  report.figures["api.captures_ok"] = replay.total - static_cast<int64_t>(replay.faults.size());
  report.figures["api.captures_total"] = replay.total;
}

void add_tool_calls(BenchReport& report, const ApiBenchOptions& options) {
  const ToolCallTrials trials = run_tool_call_trials(options.seed, options.calls, options.mutilated);
  if (!trials.first_fault.empty()) say_fault(trials.first_fault);
  report.raw["tools"] = {{"seed", options.seed},
                         {"calls", trials.calls},
                         {"splits", trials.splits},
                         {"mutilated", trials.mutilated},
                         {"malformed", trials.malformed}};
  report.figures["tools.calls"] = trials.calls;
  report.figures["tools.malformed"] = trials.malformed;
}

// A turn of an agent: a long system text, two dozen tools, a history of calls and their results.
std::string agent_request() {
  Json tools = Json::array();
  for (int i = 0; i < 24; ++i) {
    Json properties = Json::object();
    for (const char* name : {"file_path", "old_text", "new_text", "limit"}) {
      properties[name] = {{"type", name == std::string("limit") ? "integer" : "string"},
                          {"description", fmt::format("The {} that tool {} works on; absolute paths only.", name, i)}};
    }
    tools.push_back(
        {{"type", "function"},
         {"function",
          {{"name", fmt::format("tool_{}", i)},
           {"description", many_words(120)},
           {"parameters", {{"type", "object"}, {"properties", properties}, {"required", {"file_path"}}}}}}});
  }
  Json messages = Json::array({{{"role", "system"}, {"content", many_words(1500)}},
                               {{"role", "user"}, {"content", "Find what fails, and mend it."}}});
  const Json stream_options = {{"include_usage", true}};
  for (int turn = 0;; ++turn) {
    const Json body = {{"model", "m"},         {"messages", messages},
                       {"tools", tools},       {"tool_choice", "auto"},
                       {"stream", true},       {"stream_options", stream_options},
                       {"max_tokens", 32'000}, {"reasoning_effort", "high"}};
    std::string text = body.dump();
    if (static_cast<int64_t>(text.size()) >= kAgentBytes) return text;
    const std::string id = fmt::format("call_{}", turn);
    const Json arguments = {{"file_path", fmt::format("/src/part_{}.cpp", turn)}, {"limit", 40 + turn}};
    messages.push_back(
        {{"role", "assistant"},
         {"content", fmt::format("Part {} is next.", turn)},
         {"reasoning_content", many_words(40)},
         {"tool_calls",
          {{{"id", id}, {"type", "function"}, {"function", {{"name", "tool_3"}, {"arguments", arguments.dump()}}}}}}});
    std::string source;
    for (int line = 0; line < 30; ++line) {
      source += fmt::format("{:>5}\t  if (values[{}] != 0x{:x}) return \"na\\u00efve\"; // \xE6\x9D\xB1 {}\n", line,
                            line * turn, line * 77773, line % 7);
    }
    messages.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", source}});
  }
}

void add_request(BenchReport& report, const ApiBenchOptions& options) {
  const auto limits = scripted_limits(kCaptureContext, 2);
  const engine::Engine engine(scripted_parts(options.model, "Yes.", limits), limits);
  const std::string body = agent_request();
  std::vector<double> parse;
  std::vector<double> render;
  std::vector<double> whole;
  size_t tokens = 0;
  for (int round = -1; round < 4 * options.rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    const serve::ChatRequest chat = serve::chat_request(serve::parse_object(body));
    const double parsed = seconds_since(begin);
    tokens = engine.render(chat.request).size();
    if (round < 0) continue;
    whole.push_back(seconds_since(begin));
    parse.push_back(parsed);
    render.push_back(whole.back() - parsed);
  }
  report.raw["request"] = {
      {"bytes", body.size()}, {"tokens", tokens}, {"parse_s", parse}, {"render_s", render}, {"whole_s", whole}};
  report.figures["request.overhead_ms"] = median(whole) * 1e3;
}

void add_load(BenchReport& report, const ApiBenchOptions& options) {
  const auto connections = static_cast<int>(options.connections);
  const auto limits = scripted_limits(4096, connections);
  ScriptedServer server(scripted_parts(options.model, many_words(options.tokens), limits), limits);
  std::vector<double> rates;
  std::vector<double> gaps;
  Json rounds = Json::array();
  for (int round = -1; round < options.rounds; ++round) {
    const StreamLoad load = measure_streams(server.port(), connections, options.tokens);
    if (load.unfinished > 0 || load.tokens == 0) {
      base::internal_error("load", "{} of {} streams did not end well", load.unfinished, connections);
    }
    if (round < 0) continue;
    rates.push_back(static_cast<double>(load.tokens) / load.seconds);
    gaps.push_back(load.gaps_s.empty() ? 0 : percentile(load.gaps_s, 0.99));
    rounds.push_back({{"tokens", load.tokens}, {"seconds", load.seconds}, {"p99_gap_s", gaps.back()}});
  }
  report.raw["load"] = {{"connections", connections}, {"rounds", rounds}};
  report.figures["load.tokens_per_s"] = median(rates);
  report.figures["load.p99_gap_ms"] = median(gaps) * 1e3;
}

// False where something was left behind that can be counted exactly.
bool add_disconnects(BenchReport& report, const ApiBenchOptions& options) {
  const auto limits = scripted_limits(32'768, 4);
  ScriptedServer server(scripted_parts(options.model, many_words(2000), limits), limits);
  const DisconnectTrial trial = run_disconnects(server, options.seed, options.disconnects);
  const auto before = static_cast<double>(trial.rss_before);
  report.raw["disconnect"] = {{"seed", options.seed},
                              {"disconnects", trial.disconnects},
                              {"rss_before_bytes", trial.rss_before},
                              {"rss_after_bytes", trial.rss_after},
                              {"heap_before_bytes", trial.heap_before},
                              {"heap_after_bytes", trial.heap_after},
                              {"descriptors_before", trial.descriptors_before},
                              {"descriptors_after", trial.descriptors_after},
                              {"slots_held", trial.slots},
                              {"answers_after", trial.answers}};
  report.figures["disconnect.rss_growth_fraction"] = (static_cast<double>(trial.rss_after) - before) / before;
  const int64_t descriptors = trial.descriptors_after - trial.descriptors_before;
  report.figures["disconnect.descriptors_left"] = std::max<int64_t>(descriptors, 0);
  report.figures["disconnect.slots_left"] = trial.slots;
  if (descriptors > 0) say_fault(fmt::format("{} descriptors are left", descriptors));
  if (trial.slots > 0) say_fault(fmt::format("{} requests are left in the engine", trial.slots));
  if (!trial.answers) say_fault("the server does not answer any more");
  return descriptors <= 0 && trial.slots == 0 && trial.answers;
}

void check_options(const ApiBenchOptions& options) {
  const auto require = [](const char* name, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most) base::bad_input(name, "{} is outside [{}, {}]", value, least, most);
  };
  require("--rounds", options.rounds, kLeastRounds, 1000);
  require("--calls", options.calls, 1, 10'000'000);
  require("--mutilated", options.mutilated, 0, 10'000'000);
  require("--disconnects", options.disconnects, 1, 10'000'000);
  require("--connections", options.connections, 1, 64);
  require("--tokens", options.tokens, 2, 2000);
}

void bench_api(const ApiBenchOptions& options) {
  check_options(options);
  spdlog::set_level(spdlog::level::off);  // a line a request would be measured too
  BenchReport report;
  report.bench = "api";
  report.threads = 1;
  if (!options.captures.empty()) add_captures(report, options);
  add_tool_calls(report, options);
  add_request(report, options);
  add_load(report, options);
  const bool clean = add_disconnects(report, options);
  measure_grammar(options.rounds, report.raw, report.figures);
  report.print(options.json);
  if (!clean) throw NegativeAnswer{};
}

}  // namespace

void add_bench_api(CLI::App& bench) {
  const auto options = std::make_shared<ApiBenchOptions>();
  CLI::App* command = bench.add_subcommand("api", "The server around a model that plays a script");
  per_call(command->add_option("model", options->model, "The model whose tokenizer and template are used: NAME.tandem"))
      ->required()
      ->type_name("MODEL");
  per_call(command->add_option("--captures", options->captures, "Captured requests to send: a folder with index.json"))
      ->type_name("DIR");
  per_call(command->add_option("--calls", options->calls, "Tool calls that are written and read back"))
      ->capture_default_str();
  per_call(command->add_option("--mutilated", options->mutilated, "Damaged tool calls that are read"))
      ->capture_default_str();
  per_call(command->add_option("--connections", options->connections, "Streams at once"))->capture_default_str();
  per_call(command->add_option("--tokens", options->tokens, "Tokens of each stream"))->capture_default_str();
  per_call(command->add_option("--disconnects", options->disconnects, "Clients that leave at random"))
      ->capture_default_str();
  per_call(command->add_option("--seed", options->seed, "Seed of what is drawn at random"))->capture_default_str();
  per_call(command->add_option("--rounds", options->rounds, "Rounds of each measurement, at least 5"))
      ->capture_default_str();
  per_call(command->add_flag("--json", options->json, "Print one JSON object"));
  command->footer("Example:\n  tandem bench api demo-flash.tandem --json");
  command->callback([options] { bench_api(*options); });
}

}  // namespace tandem::app
