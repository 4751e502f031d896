// What real clients send to /v1/chat/completions is understood.
#include <filesystem>
#include <gtest/gtest.h>

#include "base/file.h"
#include "serve/openai/chat_request.h"

namespace tandem::serve {
namespace {

std::vector<base::Json> chat_bodies() {
  const std::filesystem::path folder = TANDEM_CAPTURES;
  const auto read = [&](const std::string& name) {
    return base::parse_json(base::read_text(folder / name, 1 << 24), name);
  };
  std::vector<base::Json> bodies;
  for (const base::Json& entry : read("index.json")) {
    const std::string name = base::json_string(entry, "file", "index.json");
    if (base::json_string(entry, "url", name) != "/v1/chat/completions") continue;
    bodies.push_back(base::json_member(read(name), "body"));
  }
  return bodies;
}

TEST(Captures, EveryChatRequestIsRead) {
  const auto bodies = chat_bodies();
  ASSERT_EQ(bodies.size(), 16u);
  for (const base::Json& body : bodies) {
    const ChatRequest chat = chat_request(body);
    EXPECT_EQ(chat.model, body["model"].get<std::string>());
    EXPECT_EQ(chat.stream, body.value("stream", false));
    EXPECT_FALSE(chat.request.messages.empty());
    EXPECT_EQ(chat.request.messages.back().role,
              body["messages"].back()["role"] == "tool" ? text::Role::kTool : text::Role::kUser);
    if (!chat.request.tools.is_null()) {
      EXPECT_EQ(chat.request.tools, body["tools"]);
    }
  }
}

}  // namespace
}  // namespace tandem::serve
