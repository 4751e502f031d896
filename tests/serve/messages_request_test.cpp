#include "serve/anthropic/messages_request.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "serve/fields.h"

namespace tandem::serve {
namespace {

using base::Json;
using ::testing::HasSubstr;
using text::ContentPart;
using text::Message;

MessagesRequest with_members(const std::string& members) {
  const std::string comma = members.empty() ? "" : ",";
  return messages_request(parse_object(R"({"messages":[{"role":"user","content":"hi"}])" + comma + members + "}"));
}

std::vector<Message> conversation(const std::string& messages, const std::string& members = "") {
  return messages_request(parse_object("{\"messages\":[" + messages + "]" + members + "}")).request.messages;
}

// The conversation in short: "user: hi|assistant: (thought) hello [call]". Pictures stand as #.
std::string outline(const std::vector<Message>& messages) {
  std::string out;
  for (const Message& message : messages) {
    static constexpr const char* kRoles[] = {"system", "user", "assistant", "tool"};
    if (!out.empty()) out += "|";
    out += std::string(kRoles[static_cast<int>(message.role)]) + ":";
    if (!message.reasoning.empty()) out += " (" + message.reasoning + ")";
    std::string text;
    for (const ContentPart& part : message.content) text += part.kind == ContentPart::Kind::kImage ? "#" : part.text;
    if (!text.empty()) out += " " + text;
    for (const text::ToolCall& call : message.tool_calls) out += " [" + call.name + call.arguments.dump() + "]";
  }
  return out;
}

template <typename Read>
std::string field_at_fault(const Read& read) {
  try {
    (void)read();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::kBadInput);
    return error.source();
  }
  return "";
}

std::string refused_members(const std::string& members) {
  return field_at_fault([&] { return with_members(members); });
}

std::string refused_messages(const std::string& messages) {
  return field_at_fault([&] { return conversation(messages); });
}

TEST(MessagesRequest, ReadsWhatShapesTheAnswer) {
  const MessagesRequest read = with_members(R"("model":"claude-x","max_tokens":100,"stream":true,"temperature":0.5,
      "top_p":0.9,"top_k":40,"stop_sequences":["a","b"],"stop":"c")");
  EXPECT_EQ(read.model, "claude-x");
  EXPECT_TRUE(read.stream);
  EXPECT_EQ(read.request.max_tokens, 100);
  EXPECT_EQ(read.request.sampling.temperature, 0.5);
  EXPECT_EQ(read.request.sampling.top_p, 0.9);
  EXPECT_EQ(read.request.sampling.top_k, 40);
  EXPECT_EQ(read.request.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_FALSE(with_members("").request.max_tokens);
  EXPECT_EQ(refused_members(R"("stop_sequences":[5])"), "stop_sequences");
  EXPECT_EQ(refused_members(R"("max_tokens":"many")"), "max_tokens");
  EXPECT_EQ(refused_members(R"("model":5)"), "model");
  EXPECT_EQ(refused_members(R"("system":5)"), "system");
}

TEST(MessagesRequest, ThinksOnlyWhereItIsAsked) {
  const auto thinks = [](const std::string& members) {
    return with_members(members).request.template_options.thinking;
  };
  EXPECT_FALSE(thinks(""));
  EXPECT_FALSE(thinks(R"("output_config":{"effort":"high"})")) << "an effort alone does not switch it on";
  EXPECT_FALSE(thinks(R"("thinking":{"type":"disabled"})"));
  EXPECT_TRUE(thinks(R"("thinking":{"type":"adaptive","display":"omitted"})"));
  EXPECT_TRUE(thinks(R"("thinking":{"type":"enabled","budget_tokens":2000})"));
  EXPECT_EQ(with_members(R"("thinking":{"type":"enabled","budget_tokens":2000})").request.max_reasoning_tokens, 2000);
  const auto low = with_members(R"("thinking":{"type":"adaptive"},"output_config":{"effort":"low"})");
  EXPECT_TRUE(low.request.template_options.thinking);
  EXPECT_EQ(low.request.template_options.effort, text::ReasoningEffort::kLow);
  EXPECT_EQ(refused_members(R"("output_config":{"effort":"odd"})"), "output_config.effort");
  EXPECT_EQ(refused_members(R"("output_config":5)"), "output_config");
}

TEST(MessagesRequest, TakesTheFormOfTheAnswerUnderBothNames) {
  const std::string format = R"({"type":"json_schema","schema":{"type":"object"}})";
  for (const std::string& members :
       {"\"output_config\":{\"effort\":\"high\",\"format\":" + format + "}", "\"output_format\":" + format}) {
    const MessagesRequest read = with_members(members);
    EXPECT_EQ(read.format.kind, OutputFormat::Kind::kJsonSchema) << members;
    EXPECT_EQ(read.format.schema, Json({{"type", "object"}}));
    EXPECT_TRUE(forces_something(read.tools, read.format));
  }
  EXPECT_EQ(with_members(R"("output_config":{"format":null})").format.kind, OutputFormat::Kind::kText);
  EXPECT_THAT(refused_members(R"("output_config":{"format":{"type":"yaml"}})"), HasSubstr("output_config.format"));
}

TEST(MessagesRequest, ReadsToolsAndTheirChoice) {
  const std::string tools = R"("tools":[{"name":"a","description":"d","input_schema":{"x":1},"strict":true,
      "cache_control":{"type":"ephemeral"}},{"type":"custom","name":"b"},
      {"type":"web_search_20250305","name":"web_search","max_uses":5},{"type":"bash_20250124","name":"bash"}])";
  const MessagesRequest read = with_members(tools);
  EXPECT_EQ(read.tools.tools, Json::parse(R"([{"type":"function","function":{"name":"a","description":"d",
      "parameters":{"x":1},"strict":true}},{"type":"function","function":{"name":"b"}}])"));
  EXPECT_EQ(read.request.tools, read.tools.tools);
  EXPECT_EQ(read.tools.choice.mode, ToolChoice::Mode::kAuto);
  const auto choice = [&](const std::string& json) { return with_members(tools + ",\"tool_choice\":" + json).tools; };
  EXPECT_EQ(choice(R"({"type":"any"})").choice.mode, ToolChoice::Mode::kRequired);
  EXPECT_EQ(choice(R"({"type":"tool","name":"b"})").choice.name, "b");
  EXPECT_FALSE(choice(R"({"type":"auto","disable_parallel_tool_use":true})").parallel);
  EXPECT_TRUE(with_members(tools + R"(,"tool_choice":{"type":"none"})").request.tools.is_null());
  EXPECT_TRUE(with_members(R"("tools":[])").request.tools.is_null());
  for (const char* bad : {R"({"type":"tool","name":"bash"})", R"({"type":"tool","name":"zzz"})"}) {
    EXPECT_EQ(refused_members(tools + ",\"tool_choice\":" + bad), "tool_choice") << bad;
  }
  EXPECT_EQ(refused_members(R"("tool_choice":{"type":"any"})"), "tool_choice");
  EXPECT_EQ(refused_members(R"("tool_choice":{"type":"tool"})"), "tool_choice.name");
  EXPECT_EQ(refused_members(R"("tool_choice":{"type":"some"})"), "tool_choice.type");
  EXPECT_EQ(refused_members(R"("tool_choice":"auto")"), "tool_choice");
  EXPECT_EQ(refused_members(R"("tools":{})"), "tools");
  EXPECT_EQ(refused_members(R"("tools":[{}])"), "tools[0].name");
  EXPECT_EQ(refused_members(R"("tools":[{"name":"a b"}])"), "tools[0].name");
  EXPECT_EQ(refused_members(R"("tools":[{"name":"a","input_schema":[]}])"), "tools[0].input_schema");
  EXPECT_EQ(refused_members(R"("tools":[{"name":"a","defer_loading":1}])"), "tools[0].defer_loading");
}

TEST(Conversation, SystemPromptLosesTheBillingHeader) {
  const std::string hi = R"({"role":"user","content":"hi"})";
  EXPECT_EQ(outline(conversation(hi, R"(,"system":"Be.")")), "system: Be.|user: hi");
  for (const char* version : {"1", "2"}) {
    EXPECT_EQ(outline(conversation(hi, R"(,"system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=)" +
                                           std::string(version) + R"(;"},{"type":"text","text":"One."},
        {"type":"text","text":"Two.","cache_control":{"type":"ephemeral"}}])")),
              "system: One.\nTwo.|user: hi");
  }
  EXPECT_EQ(outline(conversation(hi, R"(,"system":"x-anthropic-billing-header: a\nBe.")")), "system: Be.|user: hi");
  EXPECT_EQ(outline(conversation(hi, R"(,"system":[])")), "user: hi");
}

// cache_control moves from message to message, and with it a content flips between a string and blocks.
TEST(Conversation, RendersStringsAndBlocksAlike) {
  const auto with_content = [](const std::string& content) {
    return outline(conversation(R"({"role":"user","content":)" + content + R"(},{"role":"system","content":)" +
                                content + R"(},{"role":"assistant","content":)" + content +
                                R"(},{"role":"user","content":[
          {"type":"tool_result","tool_use_id":"a","content":)" +
                                content + "}]}"));
  };
  const std::string expected = "user: x|user: <system-reminder>\nx\n</system-reminder>|assistant: x|tool: x";
  EXPECT_EQ(with_content("\"x\""), expected);
  EXPECT_EQ(with_content(R"([{"type":"text","text":"x"}])"), expected);
  EXPECT_EQ(with_content(R"([{"type":"text","text":"x","cache_control":{"type":"ephemeral","ttl":"1h"}}])"), expected);
}

TEST(Conversation, LateSystemMessagesLeaveWhatComesBeforeThemAsItWas) {
  EXPECT_EQ(
      outline(conversation(R"({"role":"system","content":"B"},{"role":"user","content":"hi"})", R"(,"system":"A")")),
      "system: A\n\nB|user: hi");
  EXPECT_EQ(outline(conversation(R"({"role":"user","content":"hi"},{"role":"assistant","content":"ho"},
                                    {"role":"user","content":"go"},{"role":"system","content":"B"})",
                                 R"(,"system":"A")")),
            "system: A|user: hi|assistant: ho|user: go|user: <system-reminder>\nB\n</system-reminder>");
}

TEST(Conversation, ToolResultsBecomeMessagesInTheOrderOfTheirCalls) {
  EXPECT_EQ(outline(conversation(R"({"role":"user","content":"go"},{"role":"assistant","content":[
      {"type":"thinking","thinking":"Hm.","signature":"s"},{"type":"redacted_thinking","data":"x"},
      {"type":"text","text":"Look"},{"type":"text","text":"ing."},
      {"type":"tool_use","id":"a","name":"ls","input":{"p":1}},{"type":"tool_use","id":"b","name":"now","input":{}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"b","content":"12:00"},
        {"type":"tool_result","tool_use_id":"a","is_error":true,"content":[{"type":"text","text":"none"}]},
        {"type":"text","text":"Go on."},{"type":"text","text":"Now."}]})")),
            "user: go|assistant: (Hm.) Looking. [ls{\"p\":1}] [now{}]|tool: [error] none|tool: 12:00|"
            "user: Go on.\nNow.");
  EXPECT_EQ(outline(conversation(R"({"role":"user","content":[{"type":"text","text":"before"},
      {"type":"tool_result","tool_use_id":"z"},{"type":"text","text":"after"}]})")),
            "user: before|tool:|user: after");
}

TEST(Conversation, TakesPicturesDocumentsAndWhatItDoesNotKnow) {
  EXPECT_EQ(outline(conversation(R"({"role":"user","content":[{"type":"text","text":"see"},
      {"type":"image","source":{"type":"url","url":"file:///etc/passwd"}},{"type":"text","text":"this"},
      {"type":"document","title":"T","source":{"type":"text","media_type":"text/plain","data":"D"}},
      {"type":"document","source":{"type":"content","content":[{"type":"text","text":"E"},{"type":"image"}]}},
      {"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"AAAA"}},
      {"type":"search_result","title":"S","source":"u","content":[{"type":"text","text":"F"}]},
      {"type":"container_upload","file_id":"f"}]})")),
            "user: see\n#\nthis\nT\nD\nE\n#\n[document omitted: this server reads documents of plain text only]\n"
            "S\nu\nF\n[block \"container_upload\" omitted]");
  EXPECT_EQ(outline(conversation(R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[
      {"type":"image","source":{"type":"base64","media_type":"image/png","data":"%%"}}]}]})")),
            "tool: #");
  EXPECT_EQ(outline(conversation(R"({"role":"user","content":"q"},{"role":"assistant","content":[
      {"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{"query":"x"}},
      {"type":"web_search_tool_result","tool_use_id":"srvtoolu_1","content":[{"type":"web_search_result"}]},
      {"type":"text","text":"Found."},{"type":"mcp_tool_use"},{"type":"compaction","content":"c"}]})")),
            "user: q|assistant: Found.");
}

TEST(Conversation, EndsWithWhatIsToGoOn) {
  const auto goes_on = [](const std::string& last) {
    const auto read = messages_request(parse_object(R"({"messages":[{"role":"user","content":"hi"},)" + last + "]}"));
    return read.request.template_options.continue_last_message;
  };
  EXPECT_TRUE(goes_on(R"({"role":"assistant","content":"Once"})"));
  EXPECT_TRUE(goes_on(R"({"role":"assistant","content":[{"type":"thinking","thinking":"Let me"}]})"));
  EXPECT_FALSE(goes_on(R"({"role":"assistant","content":" "})"));
  EXPECT_FALSE(goes_on(R"({"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]})"));
  EXPECT_FALSE(goes_on(R"({"role":"user","content":"there"})"));
}

TEST(Conversation, RefusesByPlaceWhatMakesNoSense) {
  EXPECT_EQ(refused_messages("5"), "messages[0]");
  EXPECT_EQ(refused_messages(R"({"content":"x"})"), "messages[0].role");
  EXPECT_EQ(refused_messages(R"({"role":"king","content":"x"})"), "messages[0].role");
  EXPECT_EQ(refused_messages(R"({"role":"user","content":5})"), "messages[0].content");
  EXPECT_EQ(refused_messages(R"({"role":"user","content":["x"]})"), "messages[0].content[0]");
  EXPECT_EQ(refused_messages(R"({"role":"user","content":[{}]})"), "messages[0].content[0].type");
  EXPECT_EQ(refused_messages(R"({"role":"user","content":[{"type":"text"}]})"), "messages[0].content[0].text");
  EXPECT_EQ(refused_messages(R"({"role":"user","content":[{"type":"tool_use","name":"f"}]})"),
            "messages[0].content[0].type");
  EXPECT_EQ(refused_messages(R"({"role":"assistant","content":[{"type":"tool_result"}]})"),
            "messages[0].content[0].type");
  EXPECT_EQ(refused_messages(R"({"role":"assistant","content":[{"type":"tool_use"}]})"), "messages[0].content[0].name");
  EXPECT_EQ(refused_messages(R"({"role":"assistant","content":[{"type":"tool_use","name":"f","input":[1]}]})"),
            "messages[0].content[0].input");
  EXPECT_EQ(refused_messages(R"({"role":"user","content":[{"type":"tool_result","content":{"a":1}}]})"),
            "messages[0].content[0].content");
}

// Tools that come late are shown where they come, so that the prompt in front of them stays as it was.
TEST(DeferredTools, AreShownWhereAResultNamesThem) {
  const std::string tools = R"(,"tools":[{"name":"ToolSearch","input_schema":{"type":"object"}},
      {"name":"DeferredToolPlaceholder","input_schema":{"type":"object"},"defer_loading":true},
      {"name":"WebFetch","description":"Fetches.","input_schema":{"type":"object"},"defer_loading":true}])";
  const auto read = [&](const std::string& result) {
    return messages_request(
        parse_object(R"({"messages":[{"role":"user","content":"find"},{"role":"assistant","content":[
        {"type":"tool_use","id":"a","name":"ToolSearch","input":{}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":)" +
                     result + "}]}]" + tools + "}"));
  };
  const auto names = [](const Json& list) {
    std::string out;
    for (const Json& tool : list) out += tool.at("function").at("name").get<std::string>() + " ";
    return out;
  };
  const MessagesRequest before = read("\"nothing\"");
  EXPECT_EQ(names(before.request.tools), "ToolSearch ");
  EXPECT_EQ(names(before.tools.tools), "ToolSearch ");

  const MessagesRequest after = read(R"([{"type":"tool_reference","tool_name":"WebFetch"},
      {"type":"tool_reference","tool_name":"WebFetch"},{"type":"tool_reference","tool_name":"Unheard"}])");
  EXPECT_EQ(after.request.tools, before.request.tools) << "what is shown in front does not change";
  EXPECT_EQ(names(after.tools.tools), "ToolSearch WebFetch ");
  const std::string shown = outline({after.request.messages.back()});
  EXPECT_THAT(shown, HasSubstr(R"({"type": "function", "function": {"name": "WebFetch", "description": "Fetches.")"));
  EXPECT_THAT(shown, HasSubstr("The tool \"WebFetch\" can be called.\nThere is no tool \"Unheard\"."))
      << "a definition is shown once";
}

TEST(DeferredTools, ComeAndGoWithSystemMessages) {
  const auto read = messages_request(parse_object(R"({"tools":[{"name":"a"},{"name":"b","defer_loading":true}],
      "messages":[{"role":"user","content":"hi"},{"role":"system","content":[
        {"type":"tool_addition","tool":{"type":"tool_reference","name":"b"}},
        {"type":"tool_addition","tool":{"type":"tool_definition","definition":{"name":"c","input_schema":{"y":2}}}},
        {"type":"tool_addition","tool":{"type":"mcp_toolset_reference","server_name":"s"}},
        {"type":"tool_removal","tool":{"type":"tool_reference","name":"a"}}]}]})"));
  EXPECT_EQ(read.tools.tools, Json::parse(R"([{"type":"function","function":{"name":"b"}},
      {"type":"function","function":{"name":"c","parameters":{"y":2}}}])"));
  EXPECT_EQ(read.request.tools, Json::parse(R"([{"type":"function","function":{"name":"a"}}])"));
  EXPECT_THAT(outline(read.request.messages), HasSubstr("The tool \"a\" can no longer be called."));
  EXPECT_EQ(refused_messages(R"({"role":"system","content":[{"type":"tool_addition"}]})"),
            "messages[0].content[0].tool");
}

TEST(DeferredTools, StandInFrontWhereNothingElseDoes) {
  const auto read = messages_request(parse_object(R"({"tools":[{"name":"b","defer_loading":true}],
      "messages":[{"role":"user","content":[{"type":"tool_reference","tool_name":"b"}]}]})"));
  EXPECT_EQ(read.request.tools, read.tools.tools);
  EXPECT_EQ(read.tools.tools.size(), 1u);
}

}  // namespace
}  // namespace tandem::serve
