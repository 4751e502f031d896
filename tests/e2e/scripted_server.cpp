// The server as `tandem serve` puts it together, over a model that plays a script:
//
//   scripted_server SCRIPT.json REQUEST_LOG PROMPTS
//
// The script is {"rules": [...], "fallback": TEXT, "key", "context", "concurrency", "queue"}; all but `rules` may be
// left out. The first rule that fits a prompt answers it:
//
//   name           what the rule is called in PROMPTS
//   when, unless   strings that the prompt as rendered must hold, and must not hold
//   last           strings that must stand behind the model's last answer
//   times          how often the rule may answer; absent: always
//   think, say     reasoning and answer as the model writes them, tool calls as <tool_call> blocks
//   copied         [before, after]: {copied} in `say` is what stands between these in the prompt, at their last place
//   token_ms       milliseconds that each token takes
//   fail_after     the step after so many tokens fails
//
// Each prompt that is answered becomes a line {"rule", "prompt"} of PROMPTS: the rule's name, the prompt as rendered.
// Prints "listening on http://127.0.0.1:PORT"; ends on SIGTERM.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fmt/format.h>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "scripted_engine.h"
#include "serve/endpoints.h"
#include "serve/http/auth.h"
#include "serve/http/http_server.h"

namespace tandem {
namespace {

constexpr int64_t kContext = 131072;
constexpr uint64_t kMostScriptBytes = 16 << 20;
constexpr const char* kNoRule = "No rule of the script fits this prompt.";

struct Rule {
  std::string name{};
  std::vector<std::string> when{}, unless{}, last{}, copied{};
  int64_t times = -1;  // below zero: always
  std::string think{}, say{};
  std::chrono::milliseconds token_time{0};
  int64_t fail_after = -1;  // tokens; below zero: never
};

struct Play {
  std::vector<Rule> rules;
  std::string fallback, key, prompts;
  engine::EngineOptions limits;
};

std::vector<std::string> strings(const base::Json& rule, const char* key) {
  const base::Json& list = base::json_member(rule, key);
  return list.is_null() ? std::vector<std::string>{} : list.get<std::vector<std::string>>();
}

// A misspelt condition would make a rule that always fits.
void check_members(const base::Json& object, const std::vector<std::string>& known, const std::string& source) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) base::bad_input(source, "unknown member {}", key);
  }
}

Rule read_rule(const base::Json& json, const std::string& source) {
  check_members(json, {"name", "when", "unless", "last", "copied", "times", "think", "say", "token_ms", "fail_after"},
                source);
  return {.name = base::json_string(json, "name", "", source),
          .when = strings(json, "when"),
          .unless = strings(json, "unless"),
          .last = strings(json, "last"),
          .copied = strings(json, "copied"),
          .times = base::json_int(json, "times", -1, source),
          .think = base::json_string(json, "think", "", source),
          .say = base::json_string(json, "say", "", source),
          .token_time = std::chrono::milliseconds(base::json_int(json, "token_ms", 0, source)),
          .fail_after = base::json_int(json, "fail_after", -1, source)};
}

Play read_play(const std::string& file) {
  const base::Json json = base::parse_json(base::read_text(file, kMostScriptBytes), file);
  check_members(json, {"rules", "fallback", "key", "context", "concurrency", "queue"}, file);
  Play play;
  for (const base::Json& rule : json.at("rules")) {
    play.rules.push_back(read_rule(rule, fmt::format("{}: rule {}", file, play.rules.size())));
  }
  play.fallback = base::json_string(json, "fallback", kNoRule, file);
  play.key = base::json_string(json, "key", "", file);
  play.limits.max_context = base::json_int(json, "context", kContext, file);
  play.limits.max_concurrency = static_cast<int>(base::json_int(json, "concurrency", 2, file));
  play.limits.max_queue = static_cast<int>(base::json_int(json, "queue", 64, file));
  play.limits.prefill_chunk = 2048;
  return play;
}

bool holds_all(const std::string& text, const std::vector<std::string>& parts) {
  return std::all_of(parts.begin(), parts.end(), [&](const auto& part) { return text.find(part) != text.npos; });
}

bool holds_any(const std::string& text, const std::vector<std::string>& parts) {
  return std::any_of(parts.begin(), parts.end(), [&](const auto& part) { return text.find(part) != text.npos; });
}

// Chooses the rules and times the steps. The step thread alone uses it.
class Player {
 public:
  explicit Player(Play play)
      : rules_(std::move(play.rules)),
        fallback_{.name = "fallback", .say = std::move(play.fallback)},
        prompts_(play.prompts) {
    if (!prompts_) base::bad_input(play.prompts, "cannot be written");
  }

  std::string answer(const std::string& prompt) {
    Rule& rule = choose(prompt);
    if (rule.times > 0) --rule.times;
    chosen_ = &rule;
    // Flushed: it can be read before the answer has begun.
    prompts_ << base::Json{{"rule", rule.name}, {"prompt", prompt}}.dump() << std::endl;
    const std::string say = with_copy(rule, prompt);
    return prompt.ends_with("<think>\n") ? rule.think + "\n</think>\n\n" + say : say;
  }

  void end_of_forward(const engine::ScriptedForward& forward) {
    if (forward.logits == nullptr) return;
    // The forward in which a script is asked for is the one that draws its first token.
    if (chosen_ != nullptr) turns_[forward.sequence] = {.rule = std::exchange(chosen_, nullptr)};
    Turn& turn = turns_.at(forward.sequence);
    std::this_thread::sleep_for(turn.rule->token_time);
    if (turn.tokens++ == turn.rule->fail_after) base::internal_error("layer 7", "the script says that this step fails");
  }

 private:
  struct Turn {
    const Rule* rule = nullptr;
    int64_t tokens = 0;
  };

  // What has come since the model's last answer: turns of the user, results of tools. The whole prompt ends with the
  // beginning of the answer to come.
  static std::string news(const std::string& prompt) {
    constexpr std::string_view kAnswer = "<|im_start|>assistant\n";
    const size_t to_come = prompt.rfind(kAnswer);
    if (to_come == prompt.npos || to_come == 0) return prompt;
    size_t begin = prompt.rfind(kAnswer, to_come - 1);
    begin = prompt.find("<|im_start|>user", begin == prompt.npos ? 0 : begin);
    return begin == prompt.npos ? "" : prompt.substr(begin);
  }

  static std::string with_copy(const Rule& rule, const std::string& prompt) {
    constexpr std::string_view kMark = "{copied}";
    if (rule.copied.empty()) return rule.say;
    size_t begin = prompt.rfind(rule.copied.at(0));
    if (begin == prompt.npos) return rule.say;
    begin += rule.copied[0].size();
    const std::string copy = prompt.substr(begin, prompt.find(rule.copied.at(1), begin) - begin);
    std::string say = rule.say;
    return say.replace(say.find(kMark), kMark.size(), copy);
  }

  Rule& choose(const std::string& prompt) {
    const std::string last = news(prompt);
    for (Rule& rule : rules_) {
      if (rule.times == 0 || holds_any(prompt, rule.unless)) continue;
      if (holds_all(prompt, rule.when) && holds_all(last, rule.last)) return rule;
    }
    return fallback_;
  }

  std::vector<Rule> rules_;
  Rule fallback_;
  std::ofstream prompts_;
  Rule* chosen_ = nullptr;
  std::map<int, Turn> turns_;
};

std::shared_ptr<engine::Engine> play_engine(Play play) {
  const engine::EngineOptions limits = play.limits;
  const auto player = std::make_shared<Player>(std::move(play));
  testing::ScriptedOptions options;
  options.script = testing::answer_by([player](const std::string& prompt) { return player->answer(prompt); });
  options.hook = [player](const testing::ScriptedForward& forward) { player->end_of_forward(forward); };
  options.capacity_tokens = limits.max_context * limits.max_concurrency;
  engine::EngineParts parts = testing::scripted_parts(std::move(options));
  parts.config.max_position_embeddings = limits.max_context;
  return std::make_shared<engine::Engine>(std::move(parts), limits);
}

void serve_play(const std::string& script, const std::string& request_log, const std::string& prompts) {
  Play play = read_play(script);
  play.prompts = prompts;
  serve::ApiKeys keys;
  if (!play.key.empty()) keys.add(play.key, script);
  serve::Service service({.model_id = "scripted"});
  service.set_engine(play_engine(std::move(play)));
  serve::Router router;
  const serve::AccessGuard guard(std::move(keys), {});
  router.set_guard([&guard](const serve::HttpRequest& head, bool open) { return guard.check(head, open); });
  serve::add_endpoints(router, service);
  serve::ServerOptions options;
  options.port = 0;
  options.stop_on_signals = true;
  options.request_log.file = request_log;
  serve::HttpServer server(options, router);
  fmt::print("listening on {}\n", server.url());
  std::fflush(stdout);
  server.run();
  service.drop_engine();
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  spdlog::set_level(spdlog::level::warn);
  if (argc != 4) {
    fmt::print(stderr, "usage: scripted_server SCRIPT.json REQUEST_LOG PROMPTS\n");
    return 2;
  }
  try {
    tandem::serve_play(argv[1], argv[2], argv[3]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "scripted_server: {}\n", error.what());
    return 1;
  }
  return 0;
}
