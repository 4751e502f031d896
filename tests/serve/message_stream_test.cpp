// The reader of streams that other tests rely on sees what is wrong with one.
#include "message_stream.h"

#include <gtest/gtest.h>

namespace tandem::test {
namespace {

std::string event(const std::string& name, const std::string& members = "") {
  return "event: " + name + "\ndata: {\"type\":\"" + name + "\"" + (members.empty() ? "" : "," + members) + "}\n\n";
}

const std::string kUsage = R"("usage":{"input_tokens":5,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,
"output_tokens":1})";

std::string start() {
  std::string members = R"("message":{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[],)"
                        R"("stop_reason":null,"stop_sequence":null,)" +
                        kUsage + "}";
  std::erase(members, '\n');
  return event("message_start", members);
}
std::string open(int index, const std::string& block) {
  return event("content_block_start", "\"index\":" + std::to_string(index) + ",\"content_block\":" + block);
}
std::string delta(int index, const std::string& members) {
  return event("content_block_delta", "\"index\":" + std::to_string(index) + ",\"delta\":" + members);
}
std::string close(int index) {
  return event("content_block_stop", "\"index\":" + std::to_string(index));
}
std::string end(const std::string& reason = "end_turn") {
  std::string members = "\"delta\":{\"stop_reason\":\"" + reason + "\",\"stop_sequence\":null}," + kUsage;
  std::erase(members, '\n');
  return event("message_delta", members);
}
const std::string kStop = event("message_stop");
const std::string kText = R"({"type":"text","text":""})";
const std::string kTool = R"({"type":"tool_use","id":"toolu_1","name":"f","input":{}})";
const std::string kThinkingBlock = R"({"type":"thinking","thinking":"","signature":""})";
const std::string kWord = R"({"type":"text_delta","text":"a"})";
const std::string kThought = R"({"type":"thinking_delta","thinking":"t"})";
const std::string kSignature = R"({"type":"signature_delta","signature":"s"})";

std::string input(const std::string& json) {
  return R"({"type":"input_json_delta","partial_json":")" + json + "\"}";
}

std::string joined(std::initializer_list<std::string> parts) {
  std::string out;
  for (const std::string& part : parts) out += part;
  return out;
}

TEST(MessageStream, TakesWholeStreams) {
  const std::string stream = start() + ": keep-alive\n\n" + event("ping") + open(0, kThinkingBlock) +
                             delta(0, kThought) + delta(0, kSignature) + close(0) + open(1, kText) + delta(1, kWord) +
                             delta(1, kWord) + close(1) + open(2, kTool) + delta(2, input("{\\\"a\\\":")) +
                             delta(2, input("1}")) + close(2) + end("tool_use") + kStop;
  const auto report = read_message_stream(stream);
  EXPECT_TRUE(report.faults.empty()) << report.faults.at(0);
  EXPECT_EQ(report.message.at("content").at(0).at("thinking"), "t");
  EXPECT_EQ(report.message.at("content").at(1).at("text"), "aa");
  EXPECT_EQ(report.message.at("content").at(2).at("input"), base::Json({{"a", 1}}));
  EXPECT_EQ(report.message.at("stop_reason"), "tool_use");
  EXPECT_EQ(report.events.size(), 16u);
  const auto failed =
      read_message_stream(start() + open(0, kText) + event("error", R"("error":{"type":"api_error","message":"m"})"));
  EXPECT_TRUE(failed.faults.empty());
  EXPECT_EQ(failed.error.at("message"), "m");
}

TEST(MessageStream, SeesWhatIsWrong) {
  const std::string error = event("error", R"("error":{"type":"api_error","message":"m"})");
  for (const std::string& stream : std::vector<std::string>{
           "",
           start(),
           start() + end(),
           start() + kStop,
           end() + kStop,
           start() + start() + end() + kStop,
           start() + end() + end() + kStop,
           joined({start(), end(), kStop, kStop}),
           start() + end() + kStop + event("ping"),
           joined({start(), error, end(), kStop}),
           start() + event("surprise") + end() + kStop,
           start() + "event: ping\ndata: {\"type\":\"pong\"}\n\n" + end() + kStop,
           start() + "data: {\"type\":\"ping\"}\n\n" + end() + kStop,
           start() + end() + kStop.substr(0, kStop.size() - 1),
           start() + end("because") + kStop,
           start() + end("tool_use") + kStop,
           start() + end("stop_sequence") + kStop,
           start() + open(1, kText) + close(1) + end() + kStop,
           start() + open(0, kText) + end() + kStop,
           start() + open(0, kText) + open(1, kText) + close(1) + close(0) + end() + kStop,
           start() + open(0, kText) + close(1) + end() + kStop,
           start() + open(0, kText) + close(0) + close(0) + end() + kStop,
           start() + open(0, kText) + close(0) + delta(0, kWord) + end() + kStop,
           start() + open(0, kText) + delta(1, kWord) + close(0) + end() + kStop,
           start() + open(0, kText) + delta(0, kThought) + close(0) + end() + kStop,
           start() + open(0, kText) + delta(0, input("{}")) + close(0) + end() + kStop,
           start() + end() + open(0, kText) + close(0) + kStop,
           start() + open(0, kThinkingBlock) + delta(0, kThought) + close(0) + end() + kStop,
           start() + open(0, kThinkingBlock) + delta(0, kSignature) + delta(0, kThought) + close(0) + end() + kStop,
           start() + open(0, kTool) + close(0) + end("tool_use") + kStop,
           start() + open(0, kTool) + delta(0, input("{")) + close(0) + end("tool_use") + kStop,
           start() + open(0, kTool) + delta(0, input("5")) + close(0) + end("tool_use") + kStop,
           start() + open(0, R"({"type":"image"})") + close(0) + end() + kStop,
       }) {
    EXPECT_FALSE(read_message_stream(stream).faults.empty()) << stream;
  }
}

}  // namespace
}  // namespace tandem::test
