#include "serve/openai/completion_request.h"

#include <fmt/format.h>
#include <utility>

#include "base/error.h"
#include "serve/answer.h"
#include "serve/fields.h"
#include "serve/openai/token_ids.h"
#include "serve/sampling_fields.h"
#include "text/utf8.h"

namespace tandem::serve {

using base::Json;

namespace {

constexpr int64_t kDefaultMaxTokens = 16;

// Each would change the answer; none can be honoured.
void refuse_unknown_ways(const Json& body) {
  static constexpr const char* kFields[] = {"suffix",    "prompt_logprobs",   "prompt_embeds",     "guided_regex",
                                            "bad_words", "allowed_token_ids", "structured_outputs"};
  for (const char* field : kFields) {
    const Json& value = base::json_member(body, field);
    if (!is_blank(value)) base::bad_input(field, "is not supported");
  }
}

CompletionPrompt text_prompt(const std::string& text, text::AddedTokens added, const text::Tokenizer& tokenizer) {
  return {.text = text, .tokens = tokenizer.encode(text, added)};
}

CompletionPrompt id_prompt(const Json& ids, const std::string& field, const text::Tokenizer& tokenizer) {
  CompletionPrompt out{.text = {}, .tokens = read_token_ids(ids, field, tokenizer)};
  out.text = text::utf8_repaired(tokenizer.decode(out.tokens, false));
  return out;
}

// A text, token ids, or an array of these.
std::vector<CompletionPrompt> read_prompts(const Json& body, const text::Tokenizer& tokenizer) {
  const Json& prompt = base::json_member(body, "prompt");
  const text::AddedTokens added = read_added_tokens(body);
  if (prompt.is_string()) return {text_prompt(prompt.get<std::string>(), added, tokenizer)};
  if (!prompt.is_array()) {
    base::bad_input("prompt", "must be a string, token ids or an array of these, not {}",
                    prompt.is_null() ? "absent" : prompt.type_name());
  }
  if (prompt.empty()) base::bad_input("prompt", "is empty");
  if (prompt.front().is_number()) return {id_prompt(prompt, "prompt", tokenizer)};
  if (prompt.size() > kMostChoices) {
    base::bad_input("prompt", "holds {} prompts, at most {} are taken", prompt.size(), kMostChoices);
  }
  std::vector<CompletionPrompt> out;
  for (size_t i = 0; i < prompt.size(); ++i) {
    const std::string field = fmt::format("prompt[{}]", i);
    out.push_back(prompt[i].is_string() ? text_prompt(prompt[i].get<std::string>(), added, tokenizer)
                                        : id_prompt(prompt[i], field, tokenizer));
    if (out.back().tokens.empty()) base::bad_input(field, "is empty");
  }
  return out;
}

int read_choices_a_prompt(const Json& body, size_t prompts) {
  const auto choices = int_field(body, "n").value_or(1);
  const int64_t most = kMostChoices / static_cast<int64_t>(prompts);
  if (choices < 1 || choices > most) {
    base::bad_input("n", "{} is outside [1, {}] ({} choices for {} prompts)", choices, most, kMostChoices, prompts);
  }
  const auto best_of = int_field(body, "best_of");
  if (best_of && *best_of != choices) base::bad_input("best_of", "{} is not n, which is {}", *best_of, choices);
  return static_cast<int>(choices);
}

// The number of likeliest tokens; false is none at all.
void read_completion_logprobs(const Json& body, CompletionRequest& out) {
  if (base::json_member(body, "logprobs") == false) return;
  const auto logprobs = int_field(body, "logprobs");
  if (!logprobs) return;
  if (*logprobs < 0 || *logprobs > engine::kMostTopLogprobs) {
    base::bad_input("logprobs", "{} is outside [0, {}]", *logprobs, engine::kMostTopLogprobs);
  }
  if (out.echo) base::bad_input("logprobs", "is not supported with echo: a prompt's tokens have no log probabilities");
  out.request.top_logprobs = logprobs;
}

}  // namespace

CompletionRequest completion_request(const Json& body, const text::Tokenizer& tokenizer) {
  CompletionRequest out;
  out.model = string_field(body, "model").value_or("");
  out.stream = bool_field(body, "stream").value_or(false);
  out.include_usage =
      bool_field(object_field(body, "stream_options"), "include_usage", "stream_options.").value_or(false);
  refuse_unknown_ways(body);
  out.prompts = read_prompts(body, tokenizer);
  out.choices_a_prompt = read_choices_a_prompt(body, out.prompts.size());
  out.echo = bool_field(body, "echo").value_or(false);
  out.format = read_output_format(body);
  out.format.blank_lines = false;
  out.request.raw = true;
  read_sampling(body, out.request);
  const bool limited =
      !base::json_member(body, "max_tokens").is_null() || !base::json_member(body, "max_completion_tokens").is_null();
  if (!limited) out.request.max_tokens = kDefaultMaxTokens;
  read_completion_logprobs(body, out);
  return out;
}

}  // namespace tandem::serve
