#include "synth/tokenizer.h"

#include <array>
#include <cstddef>
#include <fmt/format.h>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "synth/forms.h"
#include "text/byte_level.h"

namespace tandem::synth {

namespace {

using base::Json;

// In the order of their ids; the second says whether the token is a control token.
constexpr std::array<std::pair<const char*, bool>, 33> kAdded = {
    {{"<|endoftext|>", true},      {"<|im_start|>", true},
     {"<|im_end|>", true},         {"<|object_ref_start|>", true},
     {"<|object_ref_end|>", true}, {"<|box_start|>", true},
     {"<|box_end|>", true},        {"<|quad_start|>", true},
     {"<|quad_end|>", true},       {"<|vision_start|>", true},
     {"<|vision_end|>", true},     {"<|vision_pad|>", true},
     {"<|image_pad|>", true},      {"<|video_pad|>", true},
     {"<tool_call>", false},       {"</tool_call>", false},
     {"<|fim_prefix|>", true},     {"<|fim_middle|>", true},
     {"<|fim_suffix|>", true},     {"<|fim_pad|>", true},
     {"<|repo_name|>", true},      {"<|file_sep|>", true},
     {"<tool_response>", false},   {"</tool_response>", false},
     {"<think>", false},           {"</think>", false},
     {"<|audio_start|>", true},    {"<|audio_end|>", true},
     {"<tts_pad>", true},          {"<tts_text_bos>", true},
     {"<tts_text_eod>", true},     {"<tts_text_bos_single>", true},
     {"<|audio_pad|>", true}}};

constexpr const char* kSplit =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::string quoted(const std::string& text) {
  return Json(text).dump();
}

// Vocabulary and merges as JSON text: an ordered object of 248,000 keys would be built for minutes.
struct Words {
  std::string vocabulary;  // {"!":0,…}
  std::string merges;      // [["a","b"],…]
};

Words make_words(int64_t count) {
  std::vector<std::string> tokens;
  Words words;
  const auto add = [&](const std::string& token) {
    words.vocabulary += fmt::format("{}{}:{}", tokens.empty() ? "" : ",", quoted(token), tokens.size());
    tokens.push_back(token);
  };
  for (int byte = 0; byte < 256; ++byte) add(text::byte_to_character(static_cast<uint8_t>(byte)));
  // Words of one letter more than those before them: first from a blank or a letter, then from all of the last length.
  std::vector<std::string> shorter = {text::byte_to_character(' ')};
  for (char letter = 'a'; letter <= 'z'; ++letter) shorter.emplace_back(1, letter);
  while (static_cast<int64_t>(tokens.size()) < count) {
    std::vector<std::string> longer;
    for (const std::string& word : shorter) {
      for (char letter = 'a'; letter <= 'z' && static_cast<int64_t>(tokens.size()) < count; ++letter) {
        words.merges += fmt::format("{}[{},\"{}\"]", words.merges.empty() ? "" : ",", quoted(word), letter);
        longer.push_back(word + letter);
        add(longer.back());
      }
    }
    shorter = std::move(longer);
  }
  return words;
}

}  // namespace

std::string tokenizer_json(int64_t vocab) {
  const int64_t first = first_added_token(vocab);
  if (first < 256) {
    base::bad_input("vocab_size", "{} is below the {} of 256 bytes and {} added tokens", vocab, 256 + kAdded.size(),
                    kAdded.size());
  }
  const Words words = make_words(first);
  Json added = Json::array();
  for (size_t i = 0; i < kAdded.size(); ++i) {
    added.push_back({{"id", first + static_cast<int64_t>(i)},
                     {"content", kAdded[i].first},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", kAdded[i].second}});
  }
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  const Json split = {{"type", "Split"}, {"pattern", {{"Regex", kSplit}}}, {"behavior", "Isolated"}, {"invert", false}};
  return fmt::format(
      R"({{"version":"1.0","truncation":null,"padding":null,"added_tokens":{},"normalizer":{{"type":"NFC"}},)"
      R"("pre_tokenizer":{{"type":"Sequence","pretokenizers":[{},{}]}},"post_processor":{},"decoder":{},)"
      R"("model":{{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":"",)"
      R"("end_of_word_suffix":"","fuse_unk":false,"byte_fallback":false,"ignore_merges":false,)"
      R"("vocab":{{{}}},"merges":[{}]}}}})",
      added.dump(), split.dump(), byte_level.dump(), byte_level.dump(), byte_level.dump(), words.vocabulary,
      words.merges);
}

std::string generation_config_json(int64_t vocab) {
  const int64_t first = first_added_token(vocab);
  const Json config = {{"bos_token_id", first}, {"do_sample", true},  {"eos_token_id", {first + 2, first}},
                       {"pad_token_id", first}, {"temperature", 1.0}, {"top_k", 20},
                       {"top_p", 0.95}};
  return config.dump(2) + "\n";
}

}  // namespace tandem::synth
