"""Writes the published Qwen3.8-Flash-Next NVFP4 checkpoint without its data: config.json, the index and eleven shards
whose headers and sizes are real and whose data are holes (132 GB in name, a few tens of megabytes on disk).

Names and shapes are written down here a second time, from the model's description, so that the recogniser is tested
against something else than its own list.

Usage: flash_next_headers.py FOLDER
"""

import json
import os
import struct
import sys

HIDDEN, STREAMS, LOW_RANK, VOCAB = 2560, 4, 320, 248320
WIDTH = STREAMS * HIDDEN
EXPERTS, INNER, LAYERS = 512, 640, 48
TABLE_PARTS, TABLE_ROWS, TABLE_WIDTH = 128, 2500012, 160
SIZES = {"U8": 1, "F8_E4M3": 1, "BF16": 2, "F32": 4, "I64": 8}

TEXT_CONFIG = {
    "model_type": "qwen4_exp_text", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "full_attention_interval": 4,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12, "vocab_size": VOCAB,
    "num_attention_heads": 24, "num_key_value_heads": 2, "head_dim": 256, "attention_bias": False,
    "attn_output_gate": True, "partial_rotary_factor": 0.25, "max_position_embeddings": 262144,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "mrope_interleaved": True,
                        "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25},
    "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "output_gate_type": "sigmoid",
    "mamba_ssm_dtype": "float32", "num_experts": EXPERTS, "num_experts_per_tok": 10,
    "moe_intermediate_size": INNER, "shared_expert_intermediate_size": INNER, "hidden_act": "silu",
    "hc_count": STREAMS, "hc_lowrank": LOW_RANK, "indexer_n_heads": 4, "indexer_kv_heads": 1,
    "indexer_head_dim": 128, "indexer_budget": 2048, "indexer_compress_ratio": 4, "ple_layer_ids": [2],
    "ple_embed_dim": 2560, "ple_conv_kernel_size": 4, "ngram_size": 3, "heads_per_ngram": 8,
    "ngram_vocab_size_base": 20000000, "make_ngram_vocab_size_divisible_by": 128, "split_ngram_parts": TABLE_PARTS,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "eos_token_id": 248044, "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "mtp": {"hybrid": True, "layer_types": ["full_attention"], "num_hidden_layers": 1, "rope_theta": 10000000,
            "mtp_use_hidden_state_from_layer": None},
}
VISION_CONFIG = {
    "model_type": "qwen4_exp", "depth": 27, "hidden_size": 1152, "num_heads": 16, "intermediate_size": 4304,
    "in_channels": 3, "patch_size": 16, "temporal_patch_size": 2, "spatial_merge_size": 2,
    "num_position_embeddings": 2304, "out_hidden_size": HIDDEN, "hidden_act": "gelu_pytorch_tanh",
    "deepstack_visual_indexes": [],
}


def config():
    layers = {f"model.language_model.layers.{n}.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16}
              for n in range(LAYERS)}
    layers["model.language_model.layers.1.ple.ple_embedding.ngram_embedding"] = {"quant_algo": "FP8"}
    layers["mtp.layers.0.mlp.experts"] = {"quant_algo": "FP8_PB_WO", "group_size": 128}
    return {
        "architectures": ["Qwen4ExpForConditionalGeneration"], "model_type": "qwen4_exp", "dtype": "bfloat16",
        "language_model_only": False, "image_token_id": 248056, "video_token_id": 248057,
        "vision_start_token_id": 248053, "vision_end_token_id": 248054, "tie_word_embeddings": False,
        "text_config": TEXT_CONFIG, "vision_config": VISION_CONFIG,
        "quantization_config": {
            "quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
            "producer": {"name": "modelopt", "version": "0.46.0"}, "kv_cache_scheme": None,
            "quantized_layers": layers, "ignore": ["lm_head", "model.visual*", "mtp.fc*"],
        },
    }


def mixer(prefix, injects):
    yield prefix + "hc_norm.weight", "BF16", [WIDTH]
    yield prefix + "input_mix_weight_down.weight", "BF16", [LOW_RANK, WIDTH]
    yield prefix + "input_mix_weight_up.weight", "BF16", [WIDTH, LOW_RANK]
    if injects:
        yield prefix + "block_inject_weight.weight", "BF16", [STREAMS, WIDTH]


def delta_net(p):
    yield p + "in_proj_qkv.weight", "BF16", [10240, HIDDEN]
    yield p + "in_proj_z.weight", "BF16", [6144, HIDDEN]
    yield p + "in_proj_b.weight", "BF16", [48, HIDDEN]
    yield p + "in_proj_a.weight", "BF16", [48, HIDDEN]
    yield p + "conv1d.weight", "BF16", [10240, 1, 4]
    yield p + "A_log", "BF16", [48]
    yield p + "dt_bias", "BF16", [48]
    yield p + "norm.weight", "BF16", [128]
    yield p + "out_proj.weight", "BF16", [HIDDEN, 6144]


def attention(p):
    yield p + "q_proj.weight", "BF16", [12288, HIDDEN]
    yield p + "k_proj.weight", "BF16", [512, HIDDEN]
    yield p + "v_proj.weight", "BF16", [512, HIDDEN]
    yield p + "o_proj.weight", "BF16", [HIDDEN, 6144]
    yield p + "q_norm.weight", "BF16", [256]
    yield p + "k_norm.weight", "BF16", [256]
    yield p + "indexer.index_qk_proj.weight", "BF16", [640, HIDDEN]
    yield p + "indexer.q_layernorm.weight", "BF16", [128]
    yield p + "indexer.k_layernorm.weight", "BF16", [128]


def mlp_without_experts(p):
    yield p + "gate.weight", "BF16", [EXPERTS, HIDDEN]
    yield p + "shared_expert.gate_proj.weight", "BF16", [INNER, HIDDEN]
    yield p + "shared_expert.up_proj.weight", "BF16", [INNER, HIDDEN]
    yield p + "shared_expert.down_proj.weight", "BF16", [HIDDEN, INNER]
    yield p + "shared_expert_gate.weight", "BF16", [1, HIDDEN]


def projections(p):
    for e in range(EXPERTS):
        yield f"{p}{e}.down_proj.", HIDDEN, INNER
        yield f"{p}{e}.gate_proj.", INNER, HIDDEN
        yield f"{p}{e}.up_proj.", INNER, HIDDEN


def nvfp4_experts(p):
    for name, rows, inputs in projections(p):
        yield name + "input_scale", "F32", []
        yield name + "weight", "U8", [rows, inputs // 2]
        yield name + "weight_scale", "F8_E4M3", [rows, inputs // 16]
        yield name + "weight_scale_2", "F32", []


def fp8_experts(p):
    for name, rows, inputs in projections(p):
        yield name + "weight", "F8_E4M3", [rows, inputs]
        yield name + "weight_scale_inv", "BF16", [rows // 128, inputs // 128]


def ngram_memory(p):
    yield p + "key_proj.weight", "BF16", [WIDTH, HIDDEN]
    yield p + "value_proj.weight", "BF16", [HIDDEN, HIDDEN]
    for name in ("norm_key", "norm_query", "norm_conv"):
        yield f"{p}{name}.weight", "BF16", [WIDTH]
    yield p + "conv1d.weight", "BF16", [WIDTH, 1, 4]
    yield p + "ple_embedding.layer_multipliers", "I64", [3]
    yield p + "ple_embedding.ngram_heads_vocab_sizes", "I64", [16]
    yield p + "ple_embedding.ngram_heads_offsets", "I64", [16]


def vision():
    p = "model.visual."
    yield p + "patch_embed.proj.weight", "BF16", [1152, 3, 2, 16, 16]
    yield p + "patch_embed.proj.bias", "BF16", [1152]
    yield p + "pos_embed.weight", "BF16", [2304, 1152]
    for i in range(27):
        b = f"{p}blocks.{i}."
        for norm in ("norm1", "norm2"):
            yield f"{b}{norm}.weight", "BF16", [1152]
            yield f"{b}{norm}.bias", "BF16", [1152]
        for name, rows, inputs in (("attn.qkv", 3456, 1152), ("attn.proj", 1152, 1152),
                                   ("mlp.linear_fc1", 4304, 1152), ("mlp.linear_fc2", 1152, 4304)):
            yield f"{b}{name}.weight", "BF16", [rows, inputs]
            yield f"{b}{name}.bias", "BF16", [rows]
    yield p + "merger.norm.weight", "BF16", [1152]
    yield p + "merger.norm.bias", "BF16", [1152]
    for name, rows in (("linear_fc1", 4608), ("linear_fc2", HIDDEN)):
        yield f"{p}merger.{name}.weight", "BF16", [rows, 4608]
        yield f"{p}merger.{name}.bias", "BF16", [rows]


def draft_head_without_experts():
    for name in ("fc_embedding", "fc_hidden"):
        yield f"mtp.{name}.weight", "BF16", [HIDDEN, HIDDEN]
    yield "mtp.pre_fc_norm_embedding.weight", "BF16", [HIDDEN]
    yield "mtp.pre_fc_norm_hidden.weight", "BF16", [WIDTH]
    yield from mixer("mtp.hyper_connection_mixer.", False)
    yield from mixer("mtp.layers.0.attn_hyper_connection.", True)
    yield from mixer("mtp.layers.0.mlp_hyper_connection.", True)
    yield from attention("mtp.layers.0.self_attn.")
    yield from mlp_without_experts("mtp.layers.0.mlp.")


def main_tensors():
    p = "model.language_model."
    yield "lm_head.weight", "BF16", [VOCAB, HIDDEN]
    yield p + "embed_tokens.weight", "BF16", [VOCAB, HIDDEN]
    yield from mixer(p + "hyper_connection_mixer.", False)
    for n in range(LAYERS):
        layer = f"{p}layers.{n}."
        yield from mixer(layer + "attn_hyper_connection.", True)
        yield from mixer(layer + "mlp_hyper_connection.", True)
        if n % 4 == 3:
            yield from attention(layer + "self_attn.")
        else:
            yield from delta_net(layer + "linear_attn.")
        yield from mlp_without_experts(layer + "mlp.")
        yield from nvfp4_experts(layer + "mlp.experts.")
        if n == 1:
            yield from ngram_memory(layer + "ple.")
    yield from vision()
    yield from draft_head_without_experts()


def fp8_tensors():
    table = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding."
    for part in range(TABLE_PARTS):
        yield f"{table}shard_{part}.weight", "F8_E4M3", [TABLE_ROWS, TABLE_WIDTH]
    yield table + "weight_scale", "BF16", []
    yield from fp8_experts("mtp.layers.0.mlp.experts.")


def size_of(dtype, shape):
    size = SIZES[dtype]
    for extent in shape:
        size *= extent
    return size


def write_shard(path, tensors):
    """The header, then a hole as long as the data. Returns the length of the file."""
    entries = ['"__metadata__":{"format":"pt"}']
    end = 0
    for name, dtype, shape in tensors:
        begin, end = end, end + size_of(dtype, shape)
        extents = ",".join(map(str, shape))
        entries.append(f'"{name}":{{"dtype":"{dtype}","shape":[{extents}],"data_offsets":[{begin},{end}]}}')
    header = ("{" + ",".join(entries) + "}").encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)))
        file.write(header)
        file.truncate(8 + len(header) + end)
    return 8 + len(header) + end


def main(folder):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config(), file, indent=2)
    tensors = list(main_tensors())
    share = sum(size_of(dtype, shape) for _, dtype, shape in tensors) // 10 + 1
    shards = {f"model-{i + 1:05}-of-00010.safetensors": [] for i in range(10)}
    names = list(shards)
    position = 0
    for name, dtype, shape in tensors:
        shards[names[position // share]].append((name, dtype, shape))
        position += size_of(dtype, shape)
    shards["model-fp8-mtp-ple.safetensors"] = list(fp8_tensors())
    total = sum(write_shard(os.path.join(folder, name), held) for name, held in shards.items())
    weight_map = {tensor[0]: name for name, held in shards.items() for tensor in held}
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, file, indent=2)
    print(f"{len(weight_map)} tensors, {total} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
