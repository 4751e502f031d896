// A strict reader of a Responses stream: every event must be where it may be, and the final object must be the sum of
// the deltas.
#pragma once

#include <gtest/gtest.h>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/utf8.h"

namespace tandem::test {

struct ResponseEvents {
  std::vector<base::Json> events;
  base::Json final;  // the response of the last event

  std::vector<base::Json> of_type(std::string_view type) const {
    std::vector<base::Json> out;
    for (const base::Json& event : events) {
      if (event.at("type") == type) out.push_back(event);
    }
    return out;
  }
};

class ResponseStreamChecker {
 public:
  ResponseEvents read(std::string_view stream) {
    size_t at = 0;
    while (at < stream.size()) {
      const size_t end = stream.find("\n\n", at);
      if (end == std::string_view::npos) {
        ADD_FAILURE() << "the last event is not complete";
        break;
      }
      const std::string_view block = stream.substr(at, end - at);
      at = end + 2;
      if (!block.starts_with(':')) take_block(block);
    }
    EXPECT_TRUE(ended_) << "no last event";
    return std::move(out_);
  }

 private:
  using Json = base::Json;

  void take_block(std::string_view block) {
    constexpr std::string_view kEvent = "event: ";
    constexpr std::string_view kData = "\ndata: ";
    const size_t data = block.find(kData);
    ASSERT_TRUE(block.starts_with(kEvent) && data != std::string_view::npos) << block;
    const Json event = base::parse_json(block.substr(data + kData.size()), "event");
    ASSERT_EQ(event.at("type"), std::string(block.substr(kEvent.size(), data - kEvent.size())));
    ASSERT_EQ(event.at("sequence_number"), out_.events.size());
    ASSERT_FALSE(ended_) << "after the last event: " << block;
    take(event);
    out_.events.push_back(event);
  }

  void take(const Json& event) {
    const auto type = event.at("type").get<std::string>();
    const size_t number = out_.events.size();
    ASSERT_EQ(type == "response.created", number == 0);
    ASSERT_EQ(type == "response.in_progress", number == 1);
    if (number < 2) {
      ASSERT_EQ(event.at("response").at("status"), "in_progress");
      ASSERT_EQ(event.at("response").at("output"), Json::array());
      id_ = event.at("response").at("id");
    } else if (type == "response.output_item.added") {
      open_item(event);
    } else if (type == "response.output_item.done") {
      close_item(event);
    } else if (type == "error") {
      ASSERT_TRUE(item_.is_null());
    } else if (type == "response.completed" || type == "response.incomplete" || type == "response.failed") {
      end(type.substr(std::string_view("response.").size()), event.at("response"));
    } else {
      in_item(type, event);
    }
  }

  void open_item(const Json& event) {
    ASSERT_TRUE(item_.is_null()) << "an item is open";
    ASSERT_EQ(event.at("output_index"), items_.size());
    item_ = event.at("item");
    ASSERT_EQ(item_.at("status"), "in_progress");
    part_open_ = part_done_ = text_done_ = false;
    text_.clear();
    logprobs_ = Json::array();
  }

  bool has_part() const { return item_.at("type") == "message" || item_.at("type") == "reasoning"; }

  void in_item(const std::string& type, const Json& event) {
    ASSERT_FALSE(item_.is_null()) << type << " outside an item";
    ASSERT_EQ(event.at("item_id"), item_.at("id"));
    ASSERT_EQ(event.at("output_index"), items_.size());
    if (type.ends_with("part.added")) {
      ASSERT_FALSE(part_open_ || part_done_);
      ASSERT_EQ(event.at("part").at("text"), "");
      part_open_ = true;
    } else if (type.ends_with("part.done")) {
      ASSERT_TRUE(part_open_ && text_done_);
      ASSERT_EQ(event.at("part").at("text"), text_);
      part_open_ = false;
      part_done_ = true;
    } else {
      ASSERT_TRUE(part_open_ || !has_part());
      ASSERT_FALSE(text_done_);
      take_text(type, event);
    }
  }

  void take_text(const std::string& type, const Json& event) {
    if (type.ends_with(".delta")) {
      const auto delta = event.at("delta").get<std::string>();
      ASSERT_NE(delta, "");
      ASSERT_EQ(text::utf8_repaired(delta), delta);
      text_ += delta;
      if (type == "response.output_text.delta") {
        logprobs_.insert(logprobs_.end(), event.at("logprobs").begin(), event.at("logprobs").end());
      }
      return;
    }
    ASSERT_TRUE(type.ends_with(".done")) << type;
    text_done_ = true;
    for (const char* key : {"text", "arguments", "input"}) {
      if (event.contains(key)) {
        ASSERT_EQ(event.at(key), text_) << type;
      }
    }
    if (type == "response.output_text.done") {
      ASSERT_EQ(event.at("logprobs"), logprobs_);
    }
  }

  // What the item says.
  static Json text_of(const Json& item) {
    const Json& type = item.at("type");
    if (type == "message") return item.at("content").at(0).at("text");
    if (type == "function_call") return item.at("arguments");
    if (type == "custom_tool_call") return item.at("input");
    return item.at("summary").empty() ? item.at("content").at(0).at("text") : item.at("summary").at(0).at("text");
  }

  void close_item(const Json& event) {
    const Json& item = event.at("item");
    ASSERT_EQ(event.at("output_index"), items_.size());
    ASSERT_TRUE(text_done_ && !part_open_ && part_done_ == has_part());
    for (const char* key : {"id", "type", "call_id", "name", "role", "namespace"}) {
      ASSERT_EQ(item.value(key, Json()), item_.value(key, Json())) << key;
    }
    ASSERT_EQ(text_of(item), text_);
    if (item.at("type") == "message") {
      ASSERT_EQ(item.at("content").at(0).at("logprobs"), logprobs_);
    }
    ASSERT_TRUE(item.at("status") == "completed" || item.at("status") == "incomplete");
    items_.push_back(item);
    item_ = nullptr;
  }

  void end(const std::string& status, const Json& response) {
    ASSERT_TRUE(item_.is_null()) << "an item is open";
    ASSERT_EQ(response.at("status"), status);
    ASSERT_EQ(response.at("id"), id_);
    ASSERT_EQ(response.at("output"), items_);
    ASSERT_EQ(response.at("error").is_null(), status != "failed");
    ASSERT_EQ(response.at("incomplete_details").is_null(), status != "incomplete");
    ASSERT_EQ(response.at("usage").is_null(), status == "failed");
    out_.final = response;
    ended_ = true;
  }

  ResponseEvents out_;
  bool ended_ = false;
  Json id_;
  Json items_ = Json::array();
  Json item_;  // the open one
  bool part_open_ = false, part_done_ = false, text_done_ = false;
  std::string text_;
  Json logprobs_;
};

}  // namespace tandem::test
