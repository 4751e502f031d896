#!/usr/bin/env python3
"""Writes docs/performance.md from the benchmarks' JSON in docs/performance.

    tools/performance.py           writes the page
    tools/performance.py --check   exit code 1 where the page is not what the files say

Each file there is what one `tandem bench gpu --json` printed; later dates come first.
"""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "performance"
PAGE = ROOT / "docs" / "performance.md"

HEAD = """# Performance on cards

Written by `tools/performance.py` from the JSON files in `docs/performance/`, each of them printed by one
`tandem bench gpu --json`. [bench.md](bench.md) has the processor's figures.

What the names mean: `gpu.read_gb_s` is a plain kernel that reads 4 GiB, `gpu.copy_gb_s` the driver's copy within the
card (bytes read and written), `gpu.matmul_tflops` a BF16 product of [8192, 8192] on random values.
`decode.MODEL.ctxN.cW` decodes W sequences of N tokens each, one token a step, from the call to the logits in the
host's memory; `read_fraction` is the bytes that such a step must read (dense weights once, the experts that W tokens
choose where all are chosen alike, recurrent state, keys and values) over the time, as a part of `gpu.read_gb_s`.
`c4_over_bytes` is the time of four columns over that of one, divided by the ratio of their bytes.
`prefill.MODEL.nN.matmul_fraction` is two operations for each weight that a token is multiplied with, over the time, as
a part of `gpu.matmul_tflops`; attention over the context is not counted. Models have synthetic weights of the
published sizes, which repeat after 64 MiB; contexts are filled with random keys and values.

## Not yet run on hardware

The CUDA part is compiled for `sm_90a` and `sm_120a` from the same source, and was run on `sm_90` alone. Where a block of
a card has less shared memory, smaller ones are taken; these sizes were never run: `ops/cuda/experts_few.cu`
(`FewPlan::small`) and `ops/cuda/attention_prefill.cu` (64 rows a block). `tandem selftest`, which runs by itself at the
first start on a card, is how the first owner of another one finds out.
"""


def table(run):
    raw = run["raw"]
    card = raw["card"]
    lines = [
        f"\n## {card['name']}, {run['date'][:10]}\n",
        f"`{run['command'].split('/')[-1]}`, build {run['build']}, driver {card.get('driver', 'R580')}, "
        f"compute capability {card['capability']}, {card['multiprocessors']} multiprocessors.\n",
        "| figure | value |",
        "|---|---|",
    ]
    for name, value in run["figures"].items():
        lines.append(f"| `{name}` | {value:.4g} |")
    loads = [(name, part) for name, part in raw.items() if isinstance(part, dict) and "load_s" in part]
    for name, part in loads:
        lines.append(f"\n{name}: {part['weight_bytes'] / 1e9:.1f} GB of weights, made and loaded in {part['load_s']:.0f} s.")
    return "\n".join(lines) + "\n"


def main():
    runs = [json.loads(file.read_text().splitlines()[-1]) for file in sorted(FOLDER.glob("*.json"))]
    runs.sort(key=lambda run: run["date"], reverse=True)
    page = HEAD + "".join(table(run) for run in runs)
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text() != page:
            print("docs/performance.md is not what docs/performance/*.json say: run tools/performance.py")
            return 1
        return 0
    PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
