"""Makes moe-random: a tiny qwen3_5_moe checkpoint with random weights, and its reference tensors.

Needs torch and transformers 5.17 (qwen3_5_moe). Usage: make_moe_random.py OUT
Writes OUT/moe-random/{config.json,model.safetensors} and OUT/moe-random.safetensors. All values come from one seed.
"""
import json
import math
import os
import sys

import torch
from safetensors.torch import save_file
from transformers.models.qwen3_5_moe import configuration_qwen3_5_moe as configuration
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as modeling

SEED, TOKENS, VOCAB, END = 78, 200, 256, 255
DIMS = dict(
    vocab_size=VOCAB, hidden_size=64, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1, head_dim=64,
    hidden_act="silu", max_position_embeddings=4096, rms_norm_eps=1e-6, tie_word_embeddings=False, attention_bias=False,
    linear_conv_kernel_dim=4, linear_key_head_dim=32, linear_value_head_dim=32, linear_num_key_heads=2,
    linear_num_value_heads=4, moe_intermediate_size=32, shared_expert_intermediate_size=32, num_experts=8,
    num_experts_per_tok=3,
    layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"])
ROPE = {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25, "mrope_interleaved": True,
        "mrope_section": [3, 3, 2]}


def randomise(model, generator):
    for name, p in model.named_parameters():
        normal = torch.randn(p.shape, generator=generator)
        if name.endswith("linear_attn.norm.weight"):
            value = 1.0 + 0.1 * normal
        elif name.endswith("norm.weight"):
            value = 0.1 * normal
        elif name.endswith("A_log"):
            value = torch.log(torch.rand(p.shape, generator=generator) * 1.5 + 0.02)
        elif name.endswith("dt_bias"):
            value = 0.5 * normal
        elif "conv1d" in name:
            value = 0.35 * normal
        elif "embed_tokens" in name:
            value = normal
        elif name.endswith("mlp.gate.weight"):
            value = 2.0 * normal / math.sqrt(p.shape[-1])
        else:
            value = (4.0 if "lm_head" in name or "o_proj" in name else 1.0) * normal / math.sqrt(p.shape[-1])
        p.copy_(value.to(torch.bfloat16).float())


@torch.no_grad()
def main(out):
    config = configuration.Qwen3_5MoeTextConfig(rope_parameters=ROPE, eos_token_id=END, bos_token_id=END, **DIMS)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    torch.manual_seed(SEED)
    model = modeling.Qwen3_5MoeForCausalLM(config).float().eval()
    generator = torch.Generator().manual_seed(SEED)
    randomise(model, generator)

    folder = os.path.join(out, "moe-random")
    os.makedirs(folder, exist_ok=True)
    tensors = {}
    for name, value in model.state_dict().items():
        name = "model.language_model." + name[6:] if name.startswith("model.") else name
        tensors[name] = value.to(torch.bfloat16).contiguous()
    save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    text = {"model_type": "qwen3_5_moe_text", "eos_token_id": END, "bos_token_id": END, "norm_topk_prob": True,
            "rope_parameters": ROPE, "mtp_num_hidden_layers": 0, **DIMS}
    root = {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe", "dtype": "bfloat16",
            "tie_word_embeddings": False, "language_model_only": True, "text_config": text}
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(root, f, indent=2)
        f.write("\n")

    hidden, routes = [], []
    for layer in model.model.layers:
        layer.register_forward_hook(lambda m, i, o: hidden.append((o[0] if isinstance(o, tuple) else o).detach()[0]))
        layer.mlp.gate.register_forward_hook(lambda m, i, o: routes.append([x.detach() for x in o]))
    ids = torch.randint(0, VOCAB - 1, (TOKENS,), generator=generator)
    logits = model(input_ids=ids[None], use_cache=False).logits[0]
    print("router output shapes", [tuple(x.shape) for x in routes[0]])
    golden = {
        "input_ids": ids.to(torch.int32),
        "logits": logits[-16:],
        "hidden": torch.stack([h[-4:] for h in hidden]),
        "router_ids": torch.stack([r[2][-4:] for r in routes]).to(torch.int32),
        "router_weights": torch.stack([r[1][-4:] for r in routes]),
    }
    gap = logits[-16:].topk(2).values
    print("logits std %.3f, smallest top-2 gap %.4f" % (logits.std(), (gap[:, 0] - gap[:, 1]).min()))
    save_file({k: v.contiguous().clone() for k, v in golden.items()}, os.path.join(out, "moe-random.safetensors"),
              metadata={"format": "pt"})


main(sys.argv[1])
