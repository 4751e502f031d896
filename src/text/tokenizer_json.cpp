#include "text/tokenizer_json.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "text/byte_level.h"
#include "text/printable.h"

namespace tandem::text {

namespace {

using base::Json;

// The largest published file of the family has 12 MB, 248,077 ids and tokens of up to 256 bytes.
constexpr size_t kMaxFileBytes = size_t{64} << 20;
constexpr int64_t kMaxIds = 1 << 20;
constexpr size_t kMaxTokenBytes = 4096;
constexpr size_t kMaxAddedTokens = 8192;

// What a component calls itself, for messages: its type, or that it has none.
std::string type_of(const Json& component) {
  if (component.is_null()) return "none";
  const Json& type = base::json_member(component, "type");
  return type.is_string() ? printable(type.get<std::string>()) : "one without a type";
}

void require_type(const Json& component, const char* what, const char* expected, const std::string& source) {
  const Json& type = base::json_member(component, "type");
  if (type.is_string() && type.get<std::string>() == expected) return;
  base::bad_input(source, "the {} must be {}, found {}", what, expected, type_of(component));
}

void require_flag(const Json& object, const char* key, bool expected, const char* what, const std::string& source) {
  if (base::json_bool(object, key, expected, source) == expected) return;
  base::bad_input(source, "the {} has \"{}\": {}, which is not supported", what, key, !expected);
}

void require_byte_level(const Json& component, const char* what, const std::string& source) {
  require_type(component, what, "ByteLevel", source);
  require_flag(component, "add_prefix_space", false, what, source);
}

std::string read_split_pattern(const Json& pre_tokenizer, const std::string& source) {
  require_type(pre_tokenizer, "pre-tokenizer", "Sequence", source);
  const Json& steps = base::json_member(pre_tokenizer, "pretokenizers");
  if (!steps.is_array() || steps.size() != 2) {
    base::bad_input(source, "the pre-tokenizer must have 2 steps (Split, ByteLevel), found {}", steps.size());
  }
  const Json& split = steps[0];
  require_type(split, "first step of the pre-tokenizer", "Split", source);
  require_byte_level(steps[1], "second step of the pre-tokenizer", source);
  require_flag(steps[1], "use_regex", false, "second step of the pre-tokenizer", source);
  require_flag(split, "invert", false, "Split step", source);
  const std::string behavior = base::json_string(split, "behavior", source);
  if (behavior != "Isolated") base::bad_input(source, "the Split step must be Isolated, found {}", printable(behavior));
  const Json& pattern = base::json_member(base::json_member(split, "pattern"), "Regex");
  if (!pattern.is_string()) base::bad_input(source, "the Split step must have a pattern of the kind Regex");
  return pattern.get<std::string>();
}

void check_components(const Json& root, const std::string& source) {
  require_type(base::json_member(root, "normalizer"), "normalizer", "NFC", source);
  require_byte_level(base::json_member(root, "decoder"), "decoder", source);
  // A template here would add tokens around each text.
  const Json& post = base::json_member(root, "post_processor");
  if (!post.is_null()) require_byte_level(post, "post-processor", source);
}

void check_model(const Json& model, const std::string& source) {
  require_type(model, "model", "BPE", source);
  require_flag(model, "byte_fallback", false, "model", source);
  const Json& dropout = base::json_member(model, "dropout");
  if (!dropout.is_null() && dropout != 0) base::bad_input(source, "the model has a dropout, which is not supported");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const std::string affix = base::json_string(model, key, "", source);
    if (!affix.empty())
      base::bad_input(source, "the model has \"{}\": {}, which is not supported", key, printable(affix));
  }
}

int32_t checked_id(const Json& value, std::string_view token, const std::string& source) {
  const bool whole = value.is_number_integer();
  if (!whole || (value.is_number_unsigned() ? value.get<uint64_t>() >= kMaxIds : true)) {
    base::bad_input(source, "the token {} has the id {}; a whole number from 0 to {} is expected", printable(token),
                    value.is_number() ? value.dump() : value.type_name(), kMaxIds - 1);
  }
  return static_cast<int32_t>(value.get<uint64_t>());
}

void check_spelling(std::string_view token, const std::string& source) {
  if (token.empty()) base::bad_input(source, "has a token without characters");
  if (token.size() > kMaxTokenBytes) {
    base::bad_input(source, "the token {} has {} bytes; {} are allowed", printable(token), token.size(),
                    kMaxTokenBytes);
  }
}

// Spelling to id, as the file writes both.
class Vocabulary {
 public:
  Vocabulary(const Json& vocab, const std::string& source) : source_(source) {
    if (!vocab.is_object() || vocab.empty()) base::bad_input(source, "the model has no vocabulary");
    ids_.reserve(vocab.size());
    for (const auto& [token, value] : vocab.get_ref<const Json::object_t&>()) {
      check_spelling(token, source);
      const int32_t id = checked_id(value, token, source);
      const auto at = static_cast<size_t>(id);
      if (at >= by_id_.size()) by_id_.resize(at + 1);
      if (!by_id_[at].empty()) {
        base::bad_input(source, "the tokens {} and {} have the same id {}", printable(by_id_[at]), printable(token),
                        id);
      }
      by_id_[at] = token;
      ids_.emplace(token, id);
    }
  }

  std::optional<int32_t> find(std::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  int32_t require(std::string_view token, size_t rank, const char* what) const {
    const auto id = find(token);
    if (!id) base::bad_input(source_, "merge {} {} {}, which is not in the vocabulary", rank, what, printable(token));
    return *id;
  }
  const std::vector<std::string_view>& by_id() const { return by_id_; }

 private:
  const std::string& source_;
  std::unordered_map<std::string_view, int32_t> ids_;
  std::vector<std::string_view> by_id_;
};

// A merge is written as ["a", "b"] or as "a b".
std::pair<std::string_view, std::string_view> merge_parts(const Json& merge, size_t rank, const std::string& source) {
  if (merge.is_string()) {
    const std::string_view text = merge.get_ref<const std::string&>();
    const size_t blank = text.find(' ');
    if (blank != std::string_view::npos && text.find(' ', blank + 1) == std::string_view::npos) {
      return {text.substr(0, blank), text.substr(blank + 1)};
    }
  } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()};
  }
  base::bad_input(source, "merge {} must be two tokens: [\"a\", \"b\"] or \"a b\"", rank);
}

std::vector<Merge> read_merges(const Json& merges, const Vocabulary& vocabulary, const std::string& source) {
  if (!merges.is_array()) base::bad_input(source, "the model lacks \"merges\" (an array expected)");
  std::vector<Merge> out;
  out.reserve(merges.size());
  std::string joined;
  for (const Json& merge : merges) {
    const size_t rank = out.size();
    const auto [left, right] = merge_parts(merge, rank, source);
    joined.assign(left).append(right);
    out.push_back({vocabulary.require(left, rank, "joins"), vocabulary.require(right, rank, "joins"),
                   vocabulary.require(joined, rank, "makes")});
  }
  return out;
}

// Flags that change where a token is found; those that are not implemented are refused rather than ignored.
AddedTokenEntry read_added_token(const Json& value, const std::string& source) {
  AddedTokenEntry entry;
  entry.content = base::json_string(value, "content", source + ": added token");
  check_spelling(entry.content, source);
  entry.id = checked_id(base::json_member(value, "id"), entry.content, source);
  const std::string what = "added token " + printable(entry.content);
  for (const char* flag : {"single_word", "lstrip", "rstrip"}) require_flag(value, flag, false, what.c_str(), source);
  entry.special = base::json_bool(value, "special", false, source);
  entry.normalized = base::json_bool(value, "normalized", !entry.special, source);
  return entry;
}

void read_added_tokens(const Json& list, const Vocabulary& vocabulary, TokenizerData& data, const std::string& source) {
  if (list.is_null()) return;
  if (!list.is_array()) base::bad_input(source, "\"added_tokens\" must be an array, not {}", list.type_name());
  if (list.size() > kMaxAddedTokens) {
    base::bad_input(source, "has {} added tokens; {} are allowed", list.size(), kMaxAddedTokens);
  }
  std::unordered_map<std::string_view, int32_t> seen;
  data.added.reserve(list.size());
  for (const Json& value : list) {
    AddedTokenEntry& entry = data.added.emplace_back(read_added_token(value, source));
    if (!seen.emplace(entry.content, entry.id).second) {
      base::bad_input(source, "has the added token {} twice", printable(entry.content));
    }
    const auto known = vocabulary.find(entry.content);
    if (known && *known != entry.id) {
      base::bad_input(source, "the added token {} has the id {}, but {} in the vocabulary", printable(entry.content),
                      entry.id, *known);
    }
    const auto at = static_cast<size_t>(entry.id);
    if (at >= data.token_bytes.size()) data.token_bytes.resize(at + 1);
    if (!known && !data.token_bytes[at].empty()) {
      base::bad_input(source, "the added token {} has the id {} of another token", printable(entry.content), entry.id);
    }
    data.token_bytes[at] = entry.content;
  }
}

}  // namespace

TokenizerData read_tokenizer_json(std::string_view json, const std::string& source) {
  if (json.size() > kMaxFileBytes) {
    base::bad_input(source, "has {} bytes; {} are allowed", json.size(), kMaxFileBytes);
  }
  const Json root = base::parse_json(json, source);
  if (!root.is_object()) base::bad_input(source, "must be a JSON object, not {}", root.type_name());
  const Json& model = base::json_member(root, "model");
  check_model(model, source);
  check_components(root, source);

  TokenizerData data;
  data.split_pattern = read_split_pattern(base::json_member(root, "pre_tokenizer"), source);
  const Vocabulary vocabulary(base::json_member(model, "vocab"), source);
  data.merges = read_merges(base::json_member(model, "merges"), vocabulary, source);
  const bool ignore_merges = base::json_bool(model, "ignore_merges", false, source);
  for (const std::string_view spelling : vocabulary.by_id()) {
    // A spelling outside the byte alphabet is never made by merges; it stands for its own bytes.
    const auto bytes = bytes_of_spelling(spelling);
    if (ignore_merges && bytes && !bytes->empty()) {
      data.whole_words.emplace(*bytes, static_cast<int32_t>(data.token_bytes.size()));
    }
    data.token_bytes.push_back(bytes ? *bytes : std::string(spelling));
  }
  for (int byte = 0; byte < 256; ++byte) {
    const auto id = vocabulary.find(byte_to_character(static_cast<uint8_t>(byte)));
    if (!id) base::bad_input(source, "the vocabulary has no token for the byte 0x{:02x}", byte);
    data.byte_tokens.push_back(*id);
  }
  read_added_tokens(base::json_member(root, "added_tokens"), vocabulary, data, source);
  return data;
}

}  // namespace tandem::text
