// A ChatServer that is asked by Anthropic's API.
#pragma once

#include <string>

#include "chat_server.h"
#include "message_stream.h"

namespace tandem::test {

inline constexpr const char* kMessages = "/v1/messages?beta=true";
inline constexpr const char* kCountTokens = "/v1/messages/count_tokens?beta=true";

// One user's message.
inline base::Json say(const std::string& text, const base::Json& members = base::Json::object()) {
  base::Json body = {{"model", "claude-any"},
                     {"max_tokens", 2000},
                     {"messages", base::Json::array({{{"role", "user"}, {"content", text}}})}};
  for (const auto& [key, value] : members.items()) body[key] = value;
  return body;
}

class MessagesServer : public ChatServer {
 public:
  using ChatServer::ChatServer;

  ClientResponse send(const base::Json& body, const char* path = kMessages) {
    return fetch(port(), post(path, body.dump(), "anthropic-version: 2023-06-01\r\n"));
  }
  // The message that answers; fails the test where the answer is not 200.
  base::Json message(const base::Json& body) {
    const ClientResponse response = send(body);
    EXPECT_EQ(response.status, 200) << response.body;
    return base::parse_json(response.body, "message");
  }
  // The same of a stream, which must be well-formed.
  base::Json streamed(base::Json body) { return stream_report(std::move(body)).message; }
  MessageStreamReport stream_report(base::Json body) {
    body["stream"] = true;
    const ClientResponse response = send(body);
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_TRUE(response.complete);
    EXPECT_EQ(response.headers.at("content-type"), "text/event-stream");
    MessageStreamReport report = read_message_stream(response.body);
    for (const std::string& fault : report.faults) ADD_FAILURE() << fault << "\n" << response.body;
    return report;
  }
  // The error of a request that is refused with this status.
  base::Json error(const base::Json& body, int status) {
    const ClientResponse response = send(body);
    EXPECT_EQ(response.status, status) << response.body;
    const base::Json out = base::parse_json(response.body, "error");
    EXPECT_EQ(out.at("type"), "error");
    EXPECT_EQ(out.at("request_id"), response.headers.at("request-id"));
    return out.at("error");
  }
  int64_t count(const base::Json& body) {
    const ClientResponse response = send(body, kCountTokens);
    EXPECT_EQ(response.status, 200) << response.body;
    return base::parse_json(response.body, "count").at("input_tokens").get<int64_t>();
  }
};

// An answer with only what does not change from one to the next.
inline base::Json without_ids(base::Json message) {
  message.erase("id");
  for (base::Json& block : message.at("content")) block.erase("id");
  return message;
}

}  // namespace tandem::test
