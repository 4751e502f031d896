#include "text/tokenizer.h"

#include <unordered_map>

#include "base/error.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/nfc.h"
#include "text/split_pattern.h"
#include "text/tokenizer_json.h"
#include "text/utf8.h"

namespace tandem::text {

namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;

enum Flags : uint8_t { kAdded = 1, kSpecial = 2 };

}  // namespace

struct Tokenizer::Impl {
  Impl(TokenizerData data, const std::string& source)
      : pattern(std::move(data.split_pattern), source),
        bpe(data.merges, data.byte_tokens),
        byte_tokens(std::move(data.byte_tokens)),
        token_bytes(std::move(data.token_bytes)),
        flags(token_bytes.size()),
        whole_words(std::move(data.whole_words)) {
    for (AddedTokenEntry& entry : data.added) {
      flags[static_cast<size_t>(entry.id)] = static_cast<uint8_t>(kAdded | (entry.special ? kSpecial : 0));
      added_ids.emplace(entry.content, entry.id);
      if (entry.normalized) {
        normalized_tokens.add(to_nfc(entry.content), entry.id);
      } else {
        verbatim_tokens.add(std::move(entry.content), entry.id);
      }
    }
  }

  SplitPattern pattern;
  Bpe bpe;
  std::vector<int32_t> byte_tokens;
  std::vector<std::string> token_bytes;
  std::vector<uint8_t> flags;  // by id
  std::unordered_map<std::string, int32_t> whole_words;
  std::unordered_map<std::string, int32_t> added_ids;
  AddedTokenMatcher verbatim_tokens;    // looked for in the text as it is
  AddedTokenMatcher normalized_tokens;  // looked for in what is left, after NFC
};

namespace {

// Encodes pieces one after another; text between two added tokens is gathered and encoded as one.
class Encoder {
 public:
  explicit Encoder(const Tokenizer::Impl& tokenizer) : tokenizer_(tokenizer) {}

  void plain(std::string_view text) { gathered_.append(text); }

  void parse(std::string_view text) {
    split_at(tokenizer_.verbatim_tokens, text, [this](std::string_view between) {
      if (tokenizer_.normalized_tokens.empty()) return plain(between);
      split_at(tokenizer_.normalized_tokens, to_nfc(between), [this](std::string_view rest) { plain(rest); });
    });
  }

  std::vector<int32_t> finish() {
    flush();
    return std::move(ids_);
  }

 private:
  template <typename Between>
  void split_at(const AddedTokenMatcher& tokens, std::string_view text, Between between) {
    for (size_t at = 0; at < text.size();) {
      const auto match = tokens.find(text, at);
      if (match.begin > at) between(text.substr(at, match.begin - at));
      if (match.id >= 0) {
        flush();
        ids_.push_back(match.id);
      }
      at = match.end;
    }
  }

  void flush() {
    if (gathered_.empty()) return;
    if (is_trivially_nfc(gathered_)) {
      encode_normalized(gathered_);
    } else {
      encode_normalized(to_nfc(gathered_));
    }
    gathered_.clear();
  }

  void encode_normalized(std::string_view text) {
    for (size_t at = 0; at < text.size();) {
      const size_t valid = utf8_valid_prefix(text, at);
      if (valid != 0) {
        tokenizer_.pattern.split(text.substr(at, valid), [this](std::string_view word) { encode_word(word); });
      }
      at += valid;
      if (at == text.size()) break;
      ids_.push_back(tokenizer_.byte_tokens[static_cast<uint8_t>(text[at])]);
      ++at;
    }
  }

  void encode_word(std::string_view word) {
    if (!tokenizer_.whole_words.empty()) {
      const auto found = tokenizer_.whole_words.find(std::string(word));
      if (found != tokenizer_.whole_words.end()) return ids_.push_back(found->second);
    }
    tokenizer_.bpe.encode(word, scratch_, ids_);
  }

  const Tokenizer::Impl& tokenizer_;
  Bpe::Scratch scratch_;
  std::string gathered_;
  std::vector<int32_t> ids_;
};

}  // namespace

Tokenizer Tokenizer::from_json(std::string_view tokenizer_json, const std::string& source) {
  return Tokenizer(std::make_unique<Impl>(read_tokenizer_json(tokenizer_json, source), source));
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text, AddedTokens added) const {
  const TextPiece piece{text, added};
  return encode(std::span(&piece, 1));
}

std::vector<int32_t> Tokenizer::encode(std::span<const TextPiece> pieces) const {
  size_t bytes = 0;
  for (const TextPiece& piece : pieces) bytes += piece.text.size();
  if (bytes >= kMaxTextBytes) base::bad_input("text", "has {} bytes; less than {} are allowed", bytes, kMaxTextBytes);
  Encoder encoder(*impl_);
  for (const TextPiece& piece : pieces) {
    if (piece.added == AddedTokens::kPlain) {
      encoder.plain(piece.text);
    } else {
      encoder.parse(piece.text);
    }
  }
  return encoder.finish();
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (!(skip_special && is_special(id))) bytes.append(token_bytes(id));
  }
  return bytes;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  return id >= 0 && id < size() ? std::string_view(impl_->token_bytes[static_cast<size_t>(id)]) : std::string_view();
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < size() && (impl_->flags[static_cast<size_t>(id)] & kSpecial) != 0;
}

bool Tokenizer::is_added(int32_t id) const {
  return id >= 0 && id < size() && (impl_->flags[static_cast<size_t>(id)] & kAdded) != 0;
}

std::optional<int32_t> Tokenizer::added_token(std::string_view content) const {
  const auto found = impl_->added_ids.find(std::string(content));
  return found == impl_->added_ids.end() ? std::nullopt : std::optional(found->second);
}

int32_t Tokenizer::size() const {
  return static_cast<int32_t>(impl_->token_bytes.size());
}

}  // namespace tandem::text
