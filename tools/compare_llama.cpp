// Routed experts as llama.cpp computes them on the processor, for tools/compare-llama.sh, which builds this with ggml's
// source from the npm package llama.rn (whose functions bear the prefix lm_).
//
//   compare_llama THREADS MEGABYTES HIDDEN INNER ROUNDS FORMATS COLUMNS      (the last two with commas between)
//
// A pass computes every expert of one layer once, ten a call, in llama.cpp's graph: gate and up by mul_mat_id, SwiGLU,
// down by mul_mat_id, the weights, the sum over the experts. Weights lie where llama.cpp would put them: in a buffer of
// a layout of its own where the processor's back end has one for the operation. Prints one JSON object:
// {FORMAT: {"bytes": of a pass, "buffer": its type's name, "cN": [seconds of each round]}}.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

namespace {

constexpr int64_t kTopK = 10;
constexpr int64_t kSamples = 8;  // different random experts, repeated in memory

struct Options {
  int threads;
  int64_t megabytes, hidden, inner;
  int rounds;
  std::vector<std::string> formats, columns;
};

struct Format {
  const char* name;
  lm_ggml_type type;
};
constexpr Format kFormats[] = {{"iq2_s", LM_GGML_TYPE_IQ2_S},   {"iq3_xxs", LM_GGML_TYPE_IQ3_XXS},
                               {"iq3_s", LM_GGML_TYPE_IQ3_S},   {"iq4_xs", LM_GGML_TYPE_IQ4_XS},
                               {"iq4_nl", LM_GGML_TYPE_IQ4_NL}, {"q2_0", LM_GGML_TYPE_Q2_0},
                               {"nvfp4", LM_GGML_TYPE_NVFP4}};

[[noreturn]] void fail(const std::string& message) {
  std::fprintf(stderr, "compare_llama: %s\n", message.c_str());
  std::exit(1);
}

std::vector<std::string> words(const char* list) {
  std::vector<std::string> out;
  std::stringstream stream(list);
  for (std::string word; std::getline(stream, word, ',');) out.push_back(word);
  return out;
}

lm_ggml_context* new_context() {
  return lm_ggml_init({.mem_size = 4 << 20, .mem_buffer = nullptr, .no_alloc = true});
}

// The first of the back end's own buffer types that takes these weights for mul_mat_id, or the ordinary one: what
// llama.cpp's loader chooses.
lm_ggml_backend_buffer_type_t buffer_type_for(lm_ggml_type type, const Options& options) {
  lm_ggml_backend_dev_t device = lm_ggml_backend_reg_dev_get(lm_ggml_backend_cpu_reg(), 0);
  const auto get_extra = reinterpret_cast<lm_ggml_backend_dev_get_extra_bufts_t>(
      lm_ggml_backend_reg_get_proc_address(lm_ggml_backend_cpu_reg(), "lm_ggml_backend_dev_get_extra_bufts"));
  lm_ggml_backend_buffer_type_t chosen = lm_ggml_backend_cpu_buffer_type();
  for (auto* extra = get_extra == nullptr ? nullptr : get_extra(device); extra != nullptr && *extra != nullptr;
       ++extra) {
    lm_ggml_context* context = new_context();
    lm_ggml_tensor* weights = lm_ggml_new_tensor_3d(context, type, options.hidden, options.inner, 2 * kTopK);
    lm_ggml_tensor* x = lm_ggml_new_tensor_3d(context, LM_GGML_TYPE_F32, options.hidden, 1, 1);
    lm_ggml_tensor* ids = lm_ggml_new_tensor_2d(context, LM_GGML_TYPE_I32, kTopK, 1);
    weights->buffer = lm_ggml_backend_buft_alloc_buffer(*extra, 0);
    const bool takes = weights->buffer != nullptr &&
                       lm_ggml_backend_dev_supports_op(device, lm_ggml_mul_mat_id(context, weights, x, ids));
    lm_ggml_backend_buffer_free(weights->buffer);
    lm_ggml_free(context);
    if (!takes) continue;
    chosen = *extra;
    break;
  }
  return chosen;
}

// Random codes, with scales of moderate size.
std::vector<uint8_t> random_blocks(std::mt19937_64& random, lm_ggml_type type, int64_t weights) {
  std::vector<uint8_t> bytes(lm_ggml_row_size(type, weights));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  for (size_t at = 0; at < bytes.size(); at += lm_ggml_type_size(type)) {
    if (type == LM_GGML_TYPE_NVFP4) {
      for (size_t i = 0; i < 4; ++i) bytes[at + i] = static_cast<uint8_t>(0x08 + random() % 0x20);  // 2^-6 to 2^-2
    } else {
      const auto scale = static_cast<uint16_t>(0x0800 + random() % 0x800);  // 2^-13 to 2^-11
      std::memcpy(bytes.data() + at, &scale, sizeof scale);
    }
  }
  return bytes;
}

struct Layer {
  lm_ggml_context* context;
  lm_ggml_backend_buffer_t buffer;
  lm_ggml_tensor *gate, *up, *down;
  int64_t experts, inner;
};

Layer make_layer(const Options& options, lm_ggml_type type) {
  const int64_t block = lm_ggml_blck_size(type);
  Layer layer{};
  layer.inner = (options.inner + block - 1) / block * block;
  const int64_t record = 3 * static_cast<int64_t>(lm_ggml_row_size(type, options.hidden)) * layer.inner;
  layer.experts = std::max(2 * kTopK, (options.megabytes << 20) / record / kTopK * kTopK);
  layer.context = new_context();
  layer.gate = lm_ggml_new_tensor_3d(layer.context, type, options.hidden, layer.inner, layer.experts);
  layer.up = lm_ggml_new_tensor_3d(layer.context, type, options.hidden, layer.inner, layer.experts);
  layer.down = lm_ggml_new_tensor_3d(layer.context, type, layer.inner, options.hidden, layer.experts);
  layer.buffer = lm_ggml_backend_alloc_ctx_tensors_from_buft(layer.context, buffer_type_for(type, options));
  if (layer.buffer == nullptr) fail("out of memory");
  std::mt19937_64 random(1);
  const int64_t weights = options.hidden * layer.inner;
  std::vector<uint8_t> samples = random_blocks(random, type, kSamples * weights);
  const size_t matrix = samples.size() / kSamples;
  std::vector<uint8_t> all(matrix * static_cast<size_t>(layer.experts));
  for (size_t e = 0; e < static_cast<size_t>(layer.experts); ++e) {
    std::memcpy(all.data() + e * matrix, samples.data() + e % kSamples * matrix, matrix);
  }
  for (lm_ggml_tensor* tensor : {layer.gate, layer.up, layer.down}) {
    lm_ggml_backend_tensor_set(tensor, all.data(), 0, all.size());
  }
  return layer;
}

struct Graph {
  lm_ggml_context* context;
  lm_ggml_gallocr_t memory;
  lm_ggml_cgraph* graph;
  lm_ggml_tensor *x, *ids, *weights, *y;
};

Graph make_graph(const Options& options, const Layer& layer, int64_t tokens) {
  Graph g{};
  g.context = new_context();
  g.x = lm_ggml_new_tensor_3d(g.context, LM_GGML_TYPE_F32, options.hidden, 1, tokens);
  g.ids = lm_ggml_new_tensor_2d(g.context, LM_GGML_TYPE_I32, kTopK, tokens);
  g.weights = lm_ggml_new_tensor_3d(g.context, LM_GGML_TYPE_F32, 1, kTopK, tokens);
  for (lm_ggml_tensor* input : {g.x, g.ids, g.weights}) {
    lm_ggml_set_input(input);
    lm_ggml_set_output(input);  // keeps its memory from being used again, as the graph is computed many times
  }
  lm_ggml_tensor* gate = lm_ggml_mul_mat_id(g.context, layer.gate, g.x, g.ids);
  lm_ggml_tensor* up = lm_ggml_mul_mat_id(g.context, layer.up, g.x, g.ids);
  lm_ggml_tensor* h = lm_ggml_swiglu_split(g.context, gate, up);
  lm_ggml_tensor* each = lm_ggml_mul(g.context, lm_ggml_mul_mat_id(g.context, layer.down, h, g.ids), g.weights);
  for (int64_t k = 0; k < kTopK; ++k) {
    lm_ggml_tensor* one =
        lm_ggml_view_2d(g.context, each, options.hidden, tokens, each->nb[2], static_cast<size_t>(k) * each->nb[1]);
    g.y = k == 0 ? one : lm_ggml_add(g.context, g.y, one);
  }
  lm_ggml_set_output(g.y);
  g.graph = lm_ggml_new_graph(g.context);
  lm_ggml_build_forward_expand(g.graph, g.y);
  g.memory = lm_ggml_gallocr_new(lm_ggml_backend_cpu_buffer_type());
  if (!lm_ggml_gallocr_alloc_graph(g.memory, g.graph)) fail("out of memory");
  return g;
}

double run_pass(lm_ggml_backend_t backend, const Graph& g, int64_t experts, int64_t tokens) {
  auto* ids = static_cast<int32_t*>(g.ids->data);
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t first = 0; first < experts; first += kTopK) {
    for (int64_t i = 0; i < kTopK * tokens; ++i) ids[i] = static_cast<int32_t>(first + i % kTopK);
    if (lm_ggml_backend_graph_compute(backend, g.graph) != LM_GGML_STATUS_SUCCESS) fail("ggml could not compute");
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void measure(const Options& options, const Format& format, lm_ggml_backend_t backend) {
  const Layer layer = make_layer(options, format.type);
  const size_t bytes = lm_ggml_nbytes(layer.gate) + lm_ggml_nbytes(layer.up) + lm_ggml_nbytes(layer.down);
  std::printf("\"%s\": {\"bytes\": %zu, \"buffer\": \"%s\"", format.name, bytes,
              lm_ggml_backend_buft_name(lm_ggml_backend_buffer_get_type(layer.buffer)));
  std::mt19937_64 random(2);
  std::normal_distribution<float> normal;
  for (const std::string& columns : options.columns) {
    const int64_t tokens = std::stoll(columns);
    const Graph g = make_graph(options, layer, tokens);
    auto* x = static_cast<float*>(g.x->data);
    for (int64_t i = 0; i < tokens * options.hidden; ++i) x[i] = normal(random);
    std::fill_n(static_cast<float*>(g.weights->data), kTopK * tokens, 0.1F);
    std::printf(", \"c%s\": [", columns.c_str());
    for (int round = -1; round < options.rounds; ++round) {  // round -1 warms up
      const double seconds = run_pass(backend, g, layer.experts, tokens);
      if (round >= 0) std::printf("%s%.6f", round > 0 ? ", " : "", seconds);
    }
    std::printf("]");
    const float first = *static_cast<const float*>(g.y->data);
    if (!std::isfinite(first) || first == 0.0F) fail(std::string(format.name) + ": the sum is not a number");
    lm_ggml_gallocr_free(g.memory);
    lm_ggml_free(g.context);
  }
  std::printf("}");
  lm_ggml_backend_buffer_free(layer.buffer);
  lm_ggml_free(layer.context);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) fail("takes seven arguments; its source says which");
  const Options options{.threads = std::atoi(argv[1]),
                        .megabytes = std::atoll(argv[2]),
                        .hidden = std::atoll(argv[3]),
                        .inner = std::atoll(argv[4]),
                        .rounds = std::atoi(argv[5]),
                        .formats = words(argv[6]),
                        .columns = words(argv[7])};
  lm_ggml_log_set([](lm_ggml_log_level, const char*, void*) {}, nullptr);
  lm_ggml_backend_t backend = lm_ggml_backend_cpu_init();
  lm_ggml_backend_cpu_set_n_threads(backend, options.threads);
  std::printf("{");
  const char* between = "";
  for (const std::string& name : options.formats) {
    for (const Format& format : kFormats) {
      if (name != format.name) continue;
      std::printf("%s", between);
      measure(options, format, backend);
      std::fflush(stdout);
      between = ",\n ";
    }
  }
  std::printf("}\n");
  lm_ggml_backend_free(backend);
  return 0;
}
