// Compares the GGUF reader with ggml's: files that ggml wrote are read back to the same keys, tensors and bytes, and of
// files with random faults those that are accepted are accepted by ggml too, with the same tensors.
#include "checkpoint/gguf.h"

#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "library.h"
#include "tests/checkpoint/gguf_files.h"

namespace tandem::ggml_compare {
namespace {

using checkpoint::Gguf;
using checkpoint::GgufHeader;
using checkpoint::GgufTensor;
using checkpoint::GgufType;
using numeric::GgmlTraits;

struct GgmlInitParams {
  size_t mem_size;
  void* mem_buffer;
  bool no_alloc;
};
struct GgufInitParams {
  bool no_alloc;
  void** context;
};

// The functions of ggml that are used; contexts and tensors are opaque.
struct Functions {
  explicit Functions(const Library& ggml)
      : log_set(ggml.function<void(void (*)(int, const char*, void*), void*)>("lm_ggml_log_set")),
        init(ggml.function<void*(GgmlInitParams)>("lm_ggml_init")),
        free(ggml.function<void(void*)>("lm_ggml_free")),
        new_tensor(ggml.function<void*(void*, int, int, const int64_t*)>("lm_ggml_new_tensor")),
        set_name(ggml.function<void*(void*, const char*)>("lm_ggml_set_name")),
        get_data(ggml.function<void*(const void*)>("lm_ggml_get_data")),
        gguf_init_empty(ggml.function<void*()>("lm_gguf_init_empty")),
        gguf_init_from_buffer(ggml.function<void*(const void*, size_t, GgufInitParams)>("lm_gguf_init_from_buffer")),
        gguf_free(ggml.function<void(void*)>("lm_gguf_free")),
        set_arr_data(ggml.function<void(void*, const char*, int, const void*, size_t)>("lm_gguf_set_arr_data")),
        set_arr_str(ggml.function<void(void*, const char*, const char**, size_t)>("lm_gguf_set_arr_str")),
        set_val_u32(ggml.function<void(void*, const char*, uint32_t)>("lm_gguf_set_val_u32")),
        set_val_i64(ggml.function<void(void*, const char*, int64_t)>("lm_gguf_set_val_i64")),
        set_val_f32(ggml.function<void(void*, const char*, float)>("lm_gguf_set_val_f32")),
        set_val_bool(ggml.function<void(void*, const char*, bool)>("lm_gguf_set_val_bool")),
        set_val_str(ggml.function<void(void*, const char*, const char*)>("lm_gguf_set_val_str")),
        add_tensor(ggml.function<void(void*, const void*)>("lm_gguf_add_tensor")),
        write_to_file(ggml.function<bool(const void*, const char*, bool)>("lm_gguf_write_to_file")),
        data_offset(ggml.function<size_t(const void*)>("lm_gguf_get_data_offset")),
        n_kv(ggml.function<int64_t(const void*)>("lm_gguf_get_n_kv")),
        n_tensors(ggml.function<int64_t(const void*)>("lm_gguf_get_n_tensors")),
        tensor_offset(ggml.function<size_t(const void*, int64_t)>("lm_gguf_get_tensor_offset")),
        tensor_size(ggml.function<size_t(const void*, int64_t)>("lm_gguf_get_tensor_size")),
        tensor_type(ggml.function<int(const void*, int64_t)>("lm_gguf_get_tensor_type")),
        tensor_name(ggml.function<const char*(const void*, int64_t)>("lm_gguf_get_tensor_name")) {}

  void (*log_set)(void (*)(int, const char*, void*), void*);
  void* (*init)(GgmlInitParams);
  void (*free)(void*);
  void* (*new_tensor)(void*, int, int, const int64_t*);
  void* (*set_name)(void*, const char*);
  void* (*get_data)(const void*);
  void* (*gguf_init_empty)();
  void* (*gguf_init_from_buffer)(const void*, size_t, GgufInitParams);
  void (*gguf_free)(void*);
  void (*set_arr_data)(void*, const char*, int, const void*, size_t);
  void (*set_arr_str)(void*, const char*, const char**, size_t);
  void (*set_val_u32)(void*, const char*, uint32_t);
  void (*set_val_i64)(void*, const char*, int64_t);
  void (*set_val_f32)(void*, const char*, float);
  void (*set_val_bool)(void*, const char*, bool);
  void (*set_val_str)(void*, const char*, const char*);
  void (*add_tensor)(void*, const void*);
  bool (*write_to_file)(const void*, const char*, bool);
  size_t (*data_offset)(const void*);
  int64_t (*n_kv)(const void*);
  int64_t (*n_tensors)(const void*);
  size_t (*tensor_offset)(const void*, int64_t);
  size_t (*tensor_size)(const void*, int64_t);
  int (*tensor_type)(const void*, int64_t);
  const char* (*tensor_name)(const void*, int64_t);
};

void require(bool condition, const std::string& what, uint64_t seed) {
  if (!condition) Library::fail(what + " (seed " + std::to_string(seed) + ")");
}

// What a tensor of a written file should be when read.
struct Written {
  std::string name;
  uint32_t type;
  std::vector<int64_t> shape;  // C order
  std::vector<std::byte> data;
};

// Adds tensors of all types and random shapes.
std::vector<Written> add_tensors(const Functions& ggml, void* context, void* gguf, std::mt19937_64& random) {
  std::vector<Written> written;
  for (const GgmlTraits& traits : numeric::ggml_types()) {
    std::array<int64_t, 4> dims{};
    const int rank = 1 + static_cast<int>(random() % 4);
    for (int64_t& dim : dims) dim = 1 + static_cast<int64_t>(random() % 3);
    dims[0] *= traits.block_elements;
    void* tensor = ggml.new_tensor(context, static_cast<int>(traits.type), rank, dims.data());
    Written& entry = written.emplace_back();
    entry.name = "blk." + std::to_string(random() % 1000) + "." + std::string(traits.name);
    entry.type = static_cast<uint32_t>(traits.type);
    int64_t elements = 1;
    for (int i = 0; i < rank; ++i) elements *= dims[static_cast<size_t>(i)];
    entry.data.resize(static_cast<size_t>(elements / traits.block_elements * traits.block_bytes));
    for (std::byte& byte : entry.data) byte = static_cast<std::byte>(random());
    // ggml drops trailing dimensions of 1 when it writes.
    int shown = rank;
    while (shown > 1 && dims[static_cast<size_t>(shown - 1)] == 1) --shown;
    entry.shape.assign(dims.rend() - shown, dims.rend());
    ggml.set_name(tensor, entry.name.c_str());
    std::memcpy(ggml.get_data(tensor), entry.data.data(), entry.data.size());
    ggml.add_tensor(gguf, tensor);
  }
  return written;
}

void compare_written(const Functions& ggml, uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::string path = "written.gguf";
  const std::string text = "text of " + std::to_string(random());
  std::vector<std::string> tokens(1 + random() % 1000);
  for (std::string& token : tokens) token = std::to_string(random());
  std::vector<const char*> pointers;
  for (const std::string& token : tokens) pointers.push_back(token.c_str());
  std::vector<int32_t> sections = {11, 11, 10, -static_cast<int32_t>(random() % 100)};
  void* gguf = ggml.gguf_init_empty();
  void* context = ggml.init({64 << 20, nullptr, false});
  ggml.set_val_u32(gguf, "a.u32", 4'000'000'000);
  ggml.set_val_str(gguf, "general.name", text.c_str());
  ggml.set_val_i64(gguf, "an.i64", -5'000'000'000);
  ggml.set_val_f32(gguf, "an.f32", 1e-6f);
  ggml.set_val_bool(gguf, "a.bool", true);
  ggml.set_arr_str(gguf, "tokenizer.ggml.tokens", pointers.data(), pointers.size());
  ggml.set_arr_data(gguf, "rope.sections", static_cast<int>(GgufType::kI32), sections.data(), sections.size());
  const std::vector<Written> written = add_tensors(ggml, context, gguf, random);
  require(ggml.write_to_file(gguf, path.c_str(), false), "ggml could not write", seed);
  const Gguf read = Gguf::open(path);
  const checkpoint::GgufMetadata& metadata = read.metadata();
  require(static_cast<int64_t>(metadata.pairs().size()) == ggml.n_kv(gguf), "another number of pairs", seed);
  require(metadata.unsigned_integer("a.u32") == 4'000'000'000 && metadata.string("general.name") == text &&
              metadata.number("an.i64") == -5e9 && metadata.number("an.f32") == double{1e-6f} &&
              metadata.boolean("a.bool") && metadata.strings("tokenizer.ggml.tokens") == tokens &&
              metadata.integers("rope.sections") == std::vector<int64_t>(sections.begin(), sections.end()),
          "another value of a key", seed);
  require(read.tensors().size() == written.size(), "another number of tensors", seed);
  for (size_t i = 0; i < written.size(); ++i) {
    const GgufTensor& tensor = read.tensors()[i];
    require(tensor.name == written[i].name && static_cast<uint32_t>(tensor.type) == written[i].type &&
                tensor.bytes == written[i].data.size(),
            "another tensor than " + written[i].name, seed);
    std::vector<int64_t> shape = tensor.shape;
    while (shape.size() > 1 && shape.front() == 1) shape.erase(shape.begin());
    require(shape == written[i].shape, "another shape of " + written[i].name, seed);
    require(read.read(tensor) == written[i].data, "other data of " + written[i].name, seed);
  }
  ggml.free(context);
  ggml.gguf_free(gguf);
}

checkpoint::GgufFileBytes random_file(std::mt19937_64& random) {
  checkpoint::GgufFileBytes file;
  if (random() % 2 == 0) {
    file.alignment = 8ull << random() % 6;
    file.pair_u32("general.alignment", static_cast<uint32_t>(file.alignment));
  }
  for (uint64_t i = random() % 6; i > 0; --i) {
    const std::string key = "k" + std::to_string(i);
    switch (random() % 4) {
      case 0:
        file.pair_u32(key, static_cast<uint32_t>(random()));
        break;
      case 1:
        file.pair_string(key, std::string(random() % 9, 'x'));
        break;
      case 2:
        file.pair(key, 7, std::string(1, static_cast<char>(random() % 2)));
        break;
      default:
        file.pair(key, 9, checkpoint::GgufBytes().u32(2).u64(3).text + "aabbcc");
    }
  }
  const auto types = numeric::ggml_types();
  for (uint64_t i = random() % 5; i > 0; --i) {
    const GgmlTraits& traits = types[random() % types.size()];
    const uint64_t blocks = 1 + random() % 3;
    const uint64_t rows = 1 + random() % 3;
    file.tensor("t" + std::to_string(i), {blocks * static_cast<uint64_t>(traits.block_elements), rows},
                static_cast<uint32_t>(traits.type), blocks * rows * static_cast<uint64_t>(traits.block_bytes), 'd');
  }
  return file;
}

// One to three bytes of the head become others: small numbers, neighbours, or anything.
void break_somewhere(std::string& bytes, size_t head, std::mt19937_64& random) {
  for (uint64_t i = 1 + random() % 3; i > 0; --i) {
    char& byte = bytes[random() % head];
    const auto value = static_cast<char>(random());
    byte = random() % 2 == 0 ? static_cast<char>(value & 3) : random() % 2 == 0 ? static_cast<char>(byte + 1) : value;
  }
}

// Whether the file is accepted; where it is, ggml must accept it and see the same.
bool compare_broken(const Functions& ggml, const std::string& bytes, uint64_t seed) {
  const auto read = [&](uint64_t offset, std::span<std::byte> out) {
    std::memcpy(out.data(), bytes.data() + offset, out.size());
  };
  GgufHeader header;
  try {
    header = checkpoint::parse_gguf_header(read, bytes.size(), 0, "file");
  } catch (const base::Error&) {
    return false;
  }
  void* gguf = ggml.gguf_init_from_buffer(bytes.data(), bytes.size(), {true, nullptr});
  require(gguf != nullptr, "ggml refuses a file that is accepted", seed);
  require(ggml.n_kv(gguf) == static_cast<int64_t>(header.metadata.pairs().size()) &&
              ggml.n_tensors(gguf) == static_cast<int64_t>(header.tensors.size()),
          "other counts than ggml's", seed);
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const GgufTensor& tensor = header.tensors[i];
    require(tensor.name == ggml.tensor_name(gguf, at) && tensor.bytes == ggml.tensor_size(gguf, at) &&
                tensor.offset == ggml.data_offset(gguf) + ggml.tensor_offset(gguf, at) &&
                static_cast<int>(tensor.type) == ggml.tensor_type(gguf, at),
            "another tensor than ggml's " + tensor.name, seed);
  }
  ggml.gguf_free(gguf);
  return true;
}

}  // namespace
}  // namespace tandem::ggml_compare

int main(int argc, char** argv) {
  using namespace tandem::ggml_compare;
  if (argc != 2) Library::fail("usage: ggml_gguf_compare LIBRARY");
  const Library library(argv[1]);
  const Functions ggml(library);
  ggml.log_set([](int, const char*, void*) {}, nullptr);
  const uint64_t seed = std::random_device{}();
  constexpr uint64_t kWrittenFiles = 50;
  constexpr uint64_t kBrokenFiles = 300'000;
  uint64_t accepted = 0;
  try {
    for (uint64_t i = 0; i < kWrittenFiles; ++i) compare_written(ggml, seed + i);
    for (uint64_t i = 0; i < kBrokenFiles; ++i) {
      std::mt19937_64 random(seed + i);
      const auto file = random_file(random);
      std::string bytes = file.file();
      const bool whole = i % 8 == 0;
      if (!whole) break_somewhere(bytes, file.head().size(), random);
      const bool good = compare_broken(ggml, bytes, seed + i);
      require(good || !whole, "a whole file is refused", seed + i);
      accepted += good ? 1 : 0;
    }
  } catch (const tandem::base::Error& error) {
    Library::fail(std::string(error.what()) + " (seed " + std::to_string(seed) + ")");
  }
  std::printf("%llu files that ggml wrote: the same; of %llu files with faults %llu accepted, by ggml too\n",
              static_cast<unsigned long long>(kWrittenFiles), static_cast<unsigned long long>(kBrokenFiles),
              static_cast<unsigned long long>(accepted));
  return 0;
}
