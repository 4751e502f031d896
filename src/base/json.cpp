#include "base/json.h"

#include <unordered_set>
#include <vector>

#include "base/error.h"

namespace tandem::base {

namespace {

// Builds the value through nlohmann's SAX interface, which is where depth and duplicate keys can still be seen: its own
// parser keeps the last of two equal keys and nests without a bound.
class StrictBuilder : public nlohmann::json_sax<Json> {
 public:
  StrictBuilder(Json& root, const std::string& source, const JsonLimits& limits)
      : root_(root), source_(source), limits_(limits) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& value) override {
    repeats_ = !keys_.back().insert(value).second;
    if (repeats_ && !limits_.repeated_keys) bad_input(source_, "has the key \"{}\" twice in one object", value);
    key_ = std::move(value);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    // The library's text quotes the last bytes read; they may be any bytes, so only its reason is kept.
    std::string reason = error.what();
    if (const auto colon = reason.find("syntax error"); colon != std::string::npos) reason = reason.substr(colon);
    for (char& c : reason) {
      if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
    }
    bad_input(source_, "is not valid JSON at byte {}: {}", position, reason.substr(0, 200));
  }

 private:
  Json* add(Json value, bool) {
    if (stack_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *stack_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    if (repeats_) return &(parent[key_] = std::move(value));
    // What repeats no key is appended without a search; ordered_json's operator[] would be quadratic.
    auto& object = parent.get_ref<Json::object_t&>();
    object.push_back({std::move(key_), std::move(value)});
    return &object.back().second;
  }
  bool add(Json value) {
    add(std::move(value), true);
    return true;
  }
  bool open(Json value) {
    if (static_cast<int>(stack_.size()) >= limits_.max_depth) {
      bad_input(source_, "nests deeper than {} levels", limits_.max_depth);
    }
    stack_.push_back(add(std::move(value), true));
    keys_.emplace_back();
    return true;
  }
  bool close() {
    stack_.pop_back();
    keys_.pop_back();
    return true;
  }

  Json& root_;
  const std::string& source_;
  const JsonLimits limits_;
  std::vector<Json*> stack_;
  std::vector<std::unordered_set<std::string>> keys_;
  std::string key_;       // of the value that comes next
  bool repeats_ = false;  // that key
};

[[noreturn]] void wrong_type(const Json& value, const char* key, const char* expected, const std::string& source) {
  if (value.is_null()) bad_input(source, "lacks \"{}\" ({} expected)", key, expected);
  bad_input(source, "\"{}\" must be {}, not {}", key, expected, value.type_name());
}

int64_t to_int(const Json& value, const char* key, const std::string& source) {
  if (value.is_number_unsigned()) {
    if (value.get<uint64_t>() > INT64_MAX) bad_input(source, "\"{}\" is too large: {}", key, value.get<uint64_t>());
    return static_cast<int64_t>(value.get<uint64_t>());
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (number > -9e15 && number < 9e15 && number == static_cast<double>(static_cast<int64_t>(number))) {
      return static_cast<int64_t>(number);
    }
  }
  wrong_type(value, key, "a whole number", source);
}

}  // namespace

Json parse_json(std::string_view text, const std::string& source, const JsonLimits& limits) {
  Json root;
  StrictBuilder builder(root, source, limits);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) bad_input(source, "is not valid JSON");
  return root;
}

const Json& json_member(const Json& object, const char* key) {
  static const Json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

int64_t json_int(const Json& object, const char* key, const std::string& source) {
  return to_int(json_member(object, key), key, source);
}

int64_t json_int(const Json& object, const char* key, int64_t fallback, const std::string& source) {
  const Json& value = json_member(object, key);
  return value.is_null() ? fallback : to_int(value, key, source);
}

double json_number(const Json& object, const char* key, const std::string& source) {
  const Json& value = json_member(object, key);
  if (!value.is_number()) wrong_type(value, key, "a number", source);
  return value.get<double>();
}

double json_number(const Json& object, const char* key, double fallback, const std::string& source) {
  return json_member(object, key).is_null() ? fallback : json_number(object, key, source);
}

bool json_bool(const Json& object, const char* key, bool fallback, const std::string& source) {
  const Json& value = json_member(object, key);
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) wrong_type(value, key, "true or false", source);
  return value.get<bool>();
}

std::string json_string(const Json& object, const char* key, const std::string& source) {
  const Json& value = json_member(object, key);
  if (!value.is_string()) wrong_type(value, key, "a string", source);
  return value.get<std::string>();
}

std::string json_string(const Json& object, const char* key, const std::string& fallback, const std::string& source) {
  return json_member(object, key).is_null() ? fallback : json_string(object, key, source);
}

}  // namespace tandem::base
