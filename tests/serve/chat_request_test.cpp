#include "serve/openai/chat_request.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "serve/fields.h"
#include "serve/media.h"

namespace tandem::serve {
namespace {

using base::Json;
using text::ReasoningEffort;
using text::Role;

// A request with a user's "hi" and these members beside.
ChatRequest with(const std::string& members) {
  const std::string comma = members.empty() ? "" : ",";
  return chat_request(parse_object(R"({"messages":[{"role":"user","content":"hi"}])" + comma + members + "}"));
}

// The field at fault; "" where the request is taken.
std::string refused(const std::string& members) {
  try {
    (void)with(members);
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::kBadInput);
    return error.source();
  }
  return "";
}

TEST(ChatRequest, LeavesToTheModelWhatIsNotAskedFor) {
  const ChatRequest chat = with("");
  EXPECT_FALSE(chat.stream);
  EXPECT_EQ(chat.choices, 1);
  EXPECT_FALSE(forces_something(chat.tools, chat.format));
  EXPECT_FALSE(chat.request.top_logprobs);
  EXPECT_FALSE(chat.request.max_tokens);
  EXPECT_FALSE(chat.request.sampling.temperature);
  EXPECT_FALSE(chat.request.sampling.seed);
  EXPECT_TRUE(chat.request.tools.is_null());
  EXPECT_TRUE(chat.request.template_options.thinking);
  EXPECT_TRUE(chat.request.template_options.preserve_thinking);
  EXPECT_EQ(chat.request.template_options.effort, ReasoningEffort::kHigh);
}

TEST(ChatRequest, ReadsSampling) {
  const auto sampling = with(R"("temperature":0,"top_p":0.9,"top_k":20,"min_p":0.05,"presence_penalty":1.5,
                               "frequency_penalty":-1,"seed":7)")
                            .request.sampling;
  EXPECT_EQ(sampling.temperature, 0);
  EXPECT_EQ(sampling.top_p, 0.9);
  EXPECT_EQ(sampling.top_k, 20);
  EXPECT_EQ(sampling.min_p, 0.05);
  EXPECT_EQ(sampling.presence_penalty, 1.5);
  EXPECT_EQ(sampling.frequency_penalty, -1);
  EXPECT_EQ(sampling.seed, 7u);
  EXPECT_EQ(with(R"("top_k":-1)").request.sampling.top_k, 0);
  EXPECT_FALSE(with(R"("seed":-1)").request.sampling.seed);
  EXPECT_EQ(refused(R"("seed":-2)"), "seed");
  EXPECT_EQ(refused(R"("seed":1.5)"), "seed");
  EXPECT_EQ(refused(R"("temperature":"hot")"), "temperature");
  EXPECT_EQ(refused(R"("top_k":18446744073709551615)"), "top_k");
}

TEST(ChatRequest, TheSmallerLimitOfTokensHolds) {
  EXPECT_EQ(with(R"("max_tokens":100)").request.max_tokens, 100);
  EXPECT_EQ(with(R"("max_completion_tokens":50,"max_tokens":100)").request.max_tokens, 50);
  EXPECT_EQ(with(R"("max_completion_tokens":50.0)").request.max_tokens, 50);
  EXPECT_FALSE(with(R"("max_tokens":-1)").request.max_tokens);
  EXPECT_EQ(refused(R"("max_tokens":-5)"), "max_tokens");
  EXPECT_EQ(refused(R"("max_tokens":1e300)"), "max_tokens");
  EXPECT_EQ(refused(R"("max_completion_tokens":[1])"), "max_completion_tokens");
}

TEST(ChatRequest, StopIsAStringOrSeveral) {
  EXPECT_THAT(with(R"("stop":"END")").request.stop, testing::ElementsAre("END"));
  EXPECT_THAT(with(R"("stop":["a","b"])").request.stop, testing::ElementsAre("a", "b"));
  EXPECT_THAT(with(R"("stop":null)").request.stop, testing::IsEmpty());
  EXPECT_EQ(refused(R"("stop":[1])"), "stop");
  EXPECT_EQ(refused(R"("stop":{"a":1})"), "stop");
}

TEST(ChatRequest, ReasoningEffortMapsToTheTemplatesThree) {
  const auto options = [](const std::string& word) {
    return with(R"("reasoning_effort":")" + word + "\"").request.template_options;
  };
  EXPECT_FALSE(options("none").thinking);
  for (const char* word : {"minimal", "low"}) EXPECT_EQ(options(word).effort, ReasoningEffort::kLow) << word;
  EXPECT_EQ(options("medium").effort, ReasoningEffort::kMedium);
  for (const char* word : {"high", "xhigh", "max"}) {
    EXPECT_EQ(options(word).effort, ReasoningEffort::kHigh) << word;
    EXPECT_TRUE(options(word).thinking);
  }
  EXPECT_EQ(refused(R"("reasoning_effort":"extreme")"), "reasoning_effort");
  EXPECT_EQ(refused(R"("reasoning_effort":3)"), "reasoning_effort");
}

TEST(ChatRequest, ThinkingIsSetAtTheTopOrInTheTemplatesArguments) {
  EXPECT_FALSE(with(R"("enable_thinking":false)").request.template_options.thinking);
  EXPECT_FALSE(with(R"("chat_template_kwargs":{"enable_thinking":false})").request.template_options.thinking);
  EXPECT_FALSE(
      with(R"("chat_template_kwargs":{"preserve_thinking":false})").request.template_options.preserve_thinking);
  EXPECT_EQ(with(R"("chat_template_kwargs":{"reasoning_effort":"low","other":1})").request.template_options.effort,
            ReasoningEffort::kLow);
  EXPECT_FALSE(with(R"("enable_thinking":false,"reasoning_effort":"high")").request.template_options.thinking);
  EXPECT_EQ(refused(R"("enable_thinking":true,"chat_template_kwargs":{"enable_thinking":false})"), "enable_thinking");
  EXPECT_EQ(refused(R"("enable_thinking":true,"reasoning_effort":"none")"), "enable_thinking");
  EXPECT_EQ(refused(R"("chat_template_kwargs":{"enable_thinking":1})"), "chat_template_kwargs.enable_thinking");
  EXPECT_EQ(refused(R"("chat_template_kwargs":[])"), "chat_template_kwargs");
}

TEST(ChatRequest, TakesToolsAsAgentsSendThem) {
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"get_time"}},
      {"type":"function","function":{"name":"mcp.read:file","description":"d","parameters":{"$ref":"#/$defs/x"}}}])";
  const ChatRequest chat = with(tools);
  EXPECT_EQ(chat.tools.choice.mode, ToolChoice::Mode::kAuto);
  EXPECT_FALSE(forces_something(chat.tools, chat.format));
  EXPECT_EQ(chat.request.tools.size(), 2u);
  const ChatRequest none = with(tools + R"(,"tool_choice":"none")");
  EXPECT_TRUE(none.request.tools.is_null()) << "what may not be called is not shown to the model";
  EXPECT_TRUE(with(R"("tools":[],"tool_choice":"auto")").request.tools.is_null());
  EXPECT_FALSE(with(R"("parallel_tool_calls":false)").tools.parallel);
  const ChatRequest any = with(tools + R"(,"tool_choice":"required")");
  EXPECT_EQ(any.tools.choice.mode, ToolChoice::Mode::kRequired);
  EXPECT_TRUE(forces_something(any.tools, any.format));
  const ChatRequest named = with(tools + R"(,"tool_choice":{"type":"function","function":{"name":"get_time"}})");
  EXPECT_EQ(named.tools.choice.name, "get_time");
  const ChatRequest strict = with(R"("tools":[{"function":{"name":"a","strict":true}}])");
  EXPECT_TRUE(forces_something(strict.tools, strict.format));
}

TEST(ChatRequest, RefusesToolsByTheirPlace) {
  EXPECT_EQ(refused(R"("tools":{})"), "tools");
  EXPECT_EQ(refused(R"("tools":[1])"), "tools[0]");
  EXPECT_EQ(refused(R"("tools":[{"type":"custom","custom":{"name":"x"}}])"), "tools[0].type");
  EXPECT_EQ(refused(R"("tools":[{"type":"function"}])"), "tools[0].function");
  EXPECT_EQ(refused(R"("tools":[{"function":{}}])"), "tools[0].function.name");
  EXPECT_EQ(refused(R"("tools":[{"function":{"name":"a>b"}}])"), "tools[0].function.name");
  EXPECT_EQ(refused(R"("tools":[{"function":{"name":"a\nb"}}])"), "tools[0].function.name");
  EXPECT_EQ(refused(R"("tools":[{"function":{"name":"a","parameters":[]}}])"), "tools[0].function.parameters");
  EXPECT_EQ(refused(R"("tools":[{"function":{"name":"a","strict":1}}])"), "tools[0].function.strict");
  EXPECT_EQ(refused(R"("tool_choice":"required")"), "tool_choice") << "there are no tools";
  EXPECT_EQ(refused(R"("tools":[{"function":{"name":"a"}}],"tool_choice":{"function":{"name":"b"}})"), "tool_choice");
  EXPECT_EQ(refused(R"("tool_choice":"sometimes")"), "tool_choice");
}

TEST(ChatRequest, RefusesByNameWhatItCannotHonour) {
  for (const char* member :
       {R"("n":0)", R"("n":33)", R"("top_logprobs":3)", R"("logit_bias":[])", R"("functions":[{"name":"f"}])",
        R"("audio":{"voice":"x"})", R"("modalities":["audio"])", R"("guided_regex":"a+")", R"("bad_words":["x"])",
        R"("grammar":5)", R"("guided_choice":[])", R"("response_format":"json")"}) {
    const std::string text = member;
    EXPECT_EQ(refused(text), text.substr(1, text.find('"', 1) - 1)) << text;
  }
}

TEST(ChatRequest, ReadsWhatShapesTheAnswer) {
  const ChatRequest chat = with(R"("n":3,"logprobs":true,"top_logprobs":5,"logit_bias":{"5":-100,"7":2.5},
                                   "repetition_penalty":1.1,"min_tokens":4,"return_progress":true)");
  EXPECT_EQ(chat.choices, 3);
  EXPECT_EQ(chat.request.top_logprobs, 5);
  ASSERT_EQ(chat.request.sampling.logit_bias.size(), 2u);
  EXPECT_EQ(chat.request.sampling.logit_bias[0].token, 5);
  EXPECT_EQ(chat.request.sampling.logit_bias[0].bias, -100);
  EXPECT_EQ(chat.request.sampling.repetition_penalty, 1.1);
  EXPECT_EQ(chat.request.min_tokens, 4);
  EXPECT_TRUE(chat.return_progress);
  EXPECT_EQ(with(R"("logprobs":true)").request.top_logprobs, 0);
  EXPECT_EQ(with(R"("repeat_penalty":1.2)").request.sampling.repetition_penalty, 1.2);
  EXPECT_EQ(refused(R"("logit_bias":{"five":1})"), "logit_bias");
  EXPECT_EQ(refused(R"("logit_bias":{"5":"x"})"), "logit_bias");
  EXPECT_EQ(refused(R"("logprobs":true,"top_logprobs":21)"), "top_logprobs");
  EXPECT_EQ(refused(R"("repeat_penalty":1.2,"repetition_penalty":1.1)"), "repeat_penalty");
}

TEST(ChatRequest, ReadsTheFormOfTheContent) {
  using Kind = OutputFormat::Kind;
  EXPECT_EQ(with(R"("response_format":{"type":"text"})").format.kind, Kind::kText);
  EXPECT_EQ(with(R"("response_format":{"type":"json_object"})").format.kind, Kind::kJsonObject);
  const auto schema = with(R"("response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"a":1}}})");
  EXPECT_EQ(schema.format.kind, Kind::kJsonSchema);
  EXPECT_EQ(schema.format.schema, Json({{"a", 1}}));
  EXPECT_EQ(schema.format.field, "response_format.json_schema.schema");
  EXPECT_EQ(with(R"("guided_json":"{\"a\":1}")").format.schema, Json({{"a", 1}}));
  EXPECT_EQ(with(R"("grammar":"root ::= \"x\"")").format.grammar, "root ::= \"x\"");
  EXPECT_EQ(with(R"("guided_choice":["yes","n\"o"])").format.grammar, R"(root ::= "yes" | "n\x22o")");
  EXPECT_EQ(refused(R"("response_format":{"type":"json_schema"})"), "response_format.schema");
  EXPECT_EQ(refused(R"("response_format":{"type":"yaml"})"), "response_format.type");
  EXPECT_EQ(refused(R"("response_format":{"type":"json_object"},"grammar":"root ::= \"x\"")"), "grammar");
}

TEST(ChatRequest, ReadsTheBudgetOfThinkingUnderItsNames) {
  const auto budget = [](const std::string& members) { return with(members).request.max_reasoning_tokens; };
  EXPECT_EQ(budget(R"("thinking_budget":100)"), 100);
  EXPECT_EQ(budget(R"("chat_template_kwargs":{"thinking_budget":100})"), 100);
  EXPECT_EQ(budget(R"("thinking":{"type":"enabled","budget_tokens":1024})"), 1024);
  EXPECT_EQ(budget(R"("reasoning":{"max_tokens":7,"effort":"low"})"), 7);
  EXPECT_FALSE(budget(R"("thinking_budget":-1)"));
  EXPECT_FALSE(with(R"("thinking_budget":0)").request.template_options.thinking);
  EXPECT_FALSE(with(R"("thinking":{"type":"disabled"})").request.template_options.thinking);
  EXPECT_TRUE(with(R"("thinking":{"type":"odd"})").request.template_options.thinking);
  EXPECT_EQ(refused(R"("thinking_budget":-2)"), "thinking_budget");
  EXPECT_EQ(refused(R"("thinking":5)"), "thinking");
}

TEST(ChatRequest, GoesOnFromTheAssistantsLastWords) {
  const auto continues = [](const std::string& last, const std::string& members) {
    const auto body = parse_object(R"({"messages":[{"role":"user","content":"hi"},)" + last + "]" + members + "}");
    return chat_request(body).request.template_options.continue_last_message;
  };
  const std::string words = R"({"role":"assistant","content":"Once"})";
  EXPECT_TRUE(continues(words, ""));
  EXPECT_TRUE(continues(words, R"(,"continue_final_message":true,"add_generation_prompt":false)"));
  EXPECT_FALSE(continues(words, R"(,"add_generation_prompt":true)"));
  EXPECT_FALSE(continues(R"({"role":"user","content":"there"})", ""));
  EXPECT_FALSE(continues(R"({"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f"}}]})", ""));
  EXPECT_EQ(refused(R"("add_generation_prompt":false)"), "add_generation_prompt");
}

TEST(ChatRequest, TakesNeutralValuesAndIgnoresUnknownFields) {
  EXPECT_EQ(refused(R"("n":1,"logprobs":false,"top_logprobs":0,"logit_bias":{},"response_format":{"type":"text"},
                       "modalities":["text"],"repetition_penalty":1.0,"functions":null,"user":"u","metadata":{"a":1},
                       "store":false,"service_tier":"auto","prediction":{},"no_such_field":[[1]])"),
            "");
}

TEST(ChatRequest, RefusesBodiesThatAreNoRequest) {
  for (const char* body : {"", "[]", "7", "null", "{", "{\"messages\":1}", "{\"messages\":[{\"role\":\"user\"},3]}",
                           "{\"messages\":[{\"role\":\"king\",\"content\":\"x\"}]}", "{\"a\":1,\"a\":2}", "{}"}) {
    EXPECT_THROW((void)chat_request(parse_object(body)), base::Error) << body;
  }
  EXPECT_THROW((void)parse_object(std::string(100'000, '[')), base::Error);
  EXPECT_EQ(refused(R"("stream":"yes")"), "stream");
  EXPECT_EQ(refused(R"("stream_options":5)"), "stream_options");
  EXPECT_EQ(refused(R"("model":5)"), "model");
}

TEST(OmitMedia, PicturesBecomeOneLineOfText) {
  auto messages = chat_request(parse_object(R"({"messages":[
      {"role":"system","content":[{"type":"image_url","image_url":{"url":"file:///etc/passwd"}}]},
      {"role":"user","content":[{"type":"text","text":"see "},
                                {"type":"image_url","image_url":{"url":"data:image/png;base64,%%broken"}}]}]})"))
                      .request.messages;
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_THROW((void)omit_media(messages, /*strict=*/true), base::Error);
  EXPECT_EQ(omit_media(messages, /*strict=*/false), 2);
  EXPECT_EQ(text::content_text(messages[0]), kOmittedMedia);
  EXPECT_EQ(text::content_text(messages[1]), std::string("see ") + kOmittedMedia);
}

TEST(ChatRequest, DeveloperAndLateSystemMessagesJoinTheSystemTurn) {
  const auto messages = chat_request(parse_object(R"({"messages":[{"role":"developer","content":"one"},
      {"role":"user","content":"hi"},{"role":"system","content":"two"}]})"))
                            .request.messages;
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].role, Role::kSystem);
  EXPECT_EQ(text::content_text(messages[0]), "one\n\ntwo");
}

TEST(ChatRequest, TakesAnAgentsHistory) {
  const auto messages = chat_request(parse_object(R"({"messages":[{"role":"user","content":"list"},
      {"role":"assistant","content":null,"reasoning_content":"think","tool_calls":[
          {"id":"call_1","type":"function","function":{"name":"ls","arguments":"{\"path\":\".\"}"}}]},
      {"role":"tool","tool_call_id":"call_1","content":[{"type":"text","text":"a.txt"}]},
      {"role":"assistant","content":[{"type":"text","text":"done"}]}]})"))
                            .request.messages;
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_EQ(messages[1].reasoning, "think");
  EXPECT_EQ(messages[1].tool_calls.at(0).arguments, Json({{"path", "."}}));
  EXPECT_EQ(text::content_text(messages[2]), "a.txt");
}

}  // namespace
}  // namespace tandem::serve
