#include "serve/openai/completion_answer.h"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

#include "text/utf8.h"

namespace tandem::serve {

using base::Json;

namespace {

std::string spelling(std::string_view bytes) {
  if (text::utf8_valid_prefix(bytes, 0) == bytes.size()) return std::string(bytes);
  std::string out = "bytes:";
  for (const char c : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return out;
}

// Characters that begin in these bytes.
int64_t characters(std::string_view bytes) {
  return std::count_if(bytes.begin(), bytes.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

}  // namespace

Json CompletionLogprobs::add(const std::vector<engine::StepLogprobs>& steps) {
  Json tokens = Json::array();
  Json logprobs = Json::array();
  Json tops = Json::array();
  Json offsets = Json::array();
  for (const engine::StepLogprobs& step : steps) {
    const std::string_view bytes = tokenizer_->token_bytes(step.drawn.token);
    tokens.push_back(spelling(bytes));
    logprobs.push_back(step.drawn.logprob);
    offsets.push_back(offset_);
    offset_ += characters(bytes);
    Json top = Json::object();
    for (const engine::TokenLogprob& token : step.top) {
      top[spelling(tokenizer_->token_bytes(token.token))] = token.logprob;
    }
    top[spelling(bytes)] = step.drawn.logprob;
    tops.push_back(std::move(top));
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

void CompletionUsage::add(int choice, const engine::Outcome& outcome) {
  if (choice % choices_a_prompt_ == 0) {
    prompt_ += outcome.prompt_tokens;
    cached_ += outcome.cached_tokens;
  }
  completion_ += outcome.completion_tokens;
}

Json CompletionUsage::json() const {
  return {{"prompt_tokens", prompt_},
          {"completion_tokens", completion_},
          {"total_tokens", prompt_ + completion_},
          {"prompt_tokens_details", {{"cached_tokens", cached_}}}};
}

HttpResponse WholeCompletion::answer(const std::vector<CollectedAnswer>& choices) {
  Json list = Json::array();
  CompletionUsage usage(context_.choices_a_prompt);
  for (int i = 0; i < static_cast<int>(choices.size()); ++i) {
    const CollectedAnswer& choice = choices[static_cast<size_t>(i)];
    usage.add(i, choice.outcome);
    Json logprobs = nullptr;
    if (!choice.logprobs.empty()) logprobs = CompletionLogprobs(tokenizer_, 0).add(choice.logprobs);
    list.push_back({{"index", i},
                    {"text", context_.echo(i) + choice.content},
                    {"logprobs", std::move(logprobs)},
                    {"finish_reason", engine::finish_reason_name(choice.outcome.reason)}});
  }
  const Json body = {{"id", context_.identity.id},           {"object", "text_completion"},
                     {"created", context_.identity.created}, {"model", context_.identity.model},
                     {"choices", std::move(list)},           {"usage", usage.json()}};
  return {.body = dump(body)};
}

CompletionStream::CompletionStream(CompletionContext context, const text::Tokenizer& tokenizer)
    : context_(std::move(context)), usage_(context_.choices_a_prompt) {
  logprobs_.assign(static_cast<size_t>(context_.choices()), CompletionLogprobs(tokenizer, 0));
}

Json CompletionStream::body(Json choices) const {
  Json out = {{"id", context_.identity.id},
              {"object", "text_completion"},
              {"created", context_.identity.created},
              {"model", context_.identity.model},
              {"choices", std::move(choices)}};
  if (context_.include_usage) out["usage"] = nullptr;
  return out;
}

std::string CompletionStream::chunk(int choice, const std::string& text, const Json& logprobs,
                                    const Json& finish_reason) {
  return sse_event(dump(body(
      Json::array({{{"index", choice}, {"text", text}, {"logprobs", logprobs}, {"finish_reason", finish_reason}}}))));
}

std::string CompletionStream::begin(int64_t) {
  std::string out;
  for (int choice = 0; choice < context_.choices(); ++choice) {
    if (!context_.echo(choice).empty()) out += chunk(choice, context_.echo(choice), nullptr, nullptr);
  }
  return out;
}

// One chunk a step: its text, its log probabilities and, at the end, the reason.
std::string CompletionStream::add(int choice, const engine::Update& update) {
  std::string text;
  for (const text::OutputEvent& event : update.events) text += event.text;
  Json logprobs = nullptr;
  if (update.logprobs) logprobs = logprobs_[static_cast<size_t>(choice)].add({*update.logprobs});
  if (update.outcome) {
    usage_.add(choice, *update.outcome);
    return chunk(choice, text, logprobs, engine::finish_reason_name(update.outcome->reason));
  }
  if (text.empty() && logprobs.is_null()) return {};
  return chunk(choice, text, logprobs, nullptr);
}

std::string CompletionStream::end() {
  std::string out;
  if (context_.include_usage) {
    Json last = body(Json::array());
    last["usage"] = usage_.json();
    out = sse_event(dump(last));
  }
  return out + sse_event("[DONE]");
}

std::string CompletionStream::fail(const ApiError& error) {
  return sse_event(dump(openai_error_json(error))) + sse_event("[DONE]");
}

}  // namespace tandem::serve
