#!/usr/bin/env python3
"""Writes docs/performance.md from the benchmarks' JSON in docs/performance.

    tools/performance.py           writes the page
    tools/performance.py --check   exit code 1 where the page is not what the files say

Each file there is what one `tandem bench gpu --json` printed; later dates come first.
"""
import json
import pathlib
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "performance"
PAGE = ROOT / "docs" / "performance.md"

HEAD_TEXT = """# Performance on cards

Written by `tools/performance.py` from the JSON files in `docs/performance/`, each of them printed by one
`tandem bench gpu --json`. [bench.md](bench.md) has the processor's figures.

What the names mean: `gpu.read_gb_s` is a plain kernel that reads 4 GiB, `gpu.copy_gb_s` the driver's copy within the
card (bytes read and written), `gpu.matmul_tflops` a BF16 product of [8192, 8192] on random values.
`dense.…`, `experts.…` and `attention.…` are operations of themselves, at 1, 4 and 8 columns (`cN`) over more data than
the card's cache holds; `read_fraction` is the bytes that must be read over the time, as a part of `gpu.read_gb_s`, and
`matmul_fraction` two operations for each weight and column over the time, as a part of `gpu.matmul_tflops`.
`start.copy_fraction` is the time from the page cache to the card over that of copying as many bytes from page-locked
memory.

`decode.MODEL.ctxN.cW` decodes W sequences of N tokens each, one token a step, from the call to the likeliest next
tokens in the host's memory; `read_fraction` is the bytes that such a step must read (dense weights once, the experts
that W tokens choose where all are chosen alike, recurrent state, keys and values) over the time, as a part of
`gpu.read_gb_s`. `recording_us` is the step's recording alone, where nothing keeps it waiting;
`operations_over_recording` the sum of its operations, timed one by one with points in time between them, over that:
above 1 by as much as kernels overlap.
`c4_over_bytes` is the time of four columns over that of one, divided by the ratio of their bytes.
`prefill.MODEL.nN.matmul_fraction` is two operations for each weight that a token is multiplied with, over the time, as
a part of `gpu.matmul_tflops`; attention over the context is not counted; `kC` are steps of C tokens, of which the
fastest counts. Models have synthetic weights of the published sizes, which repeat after 64 MiB; contexts are filled
with random keys and values. `27b-nvfp4` has the MLP and the head in NVFP4 and the other large matrices in FP8, as it is
published; `27b-nvfp4-mlp` has NVFP4 in the MLP and BF16 in all else, as Flash-Next has NVFP4 in its experts and BF16 in
all else.

`host.MODEL.….gap_us` is what the host adds to a step of one request: the time from the end of one step on the card to
the end of the next, less what its recordings take where nothing keeps them waiting. `greedy` chooses the likeliest token
on the card, `masked` does so under a grammar; `sampled` and `sampled_masked` draw on the host from the best logits,
which the card selects (temperature 0.7, top-p 0.8, top-k 20, presence penalty 1.5), `from_all` from all of them (a bias
raises one). What n-gram rows `greedy` needs were never read before; `masked` finds those of the same answer in memory.

## Steps of a prompt

Tokens a second of a prompt of 8,192 tokens on the H200, 2026-11-30, `tandem bench gpu --no-operations --models MODEL
--prefill-chunk 512,1024,2048,4096 --prompts 8192` (Flash-Next with 12 of its 48 layers, `--layers 12`):

| tokens in a step | 512 | 1,024 | 2,048 | 4,096 |
|---|---|---|---|---|
| 27B, NVFP4 | 6,144 | | 8,636 | 9,091 |
| Flash-Next, 12 layers | 15,490 | 20,930 | 24,620 | 26,140 |
| the same, `--expert-arithmetic bf16` | 25,810 | 33,420 | 39,360 | 41,870 |

(Flash-Next before its mixes of streams took 62 instead of 103 ms of a prompt.) The memory of a step grows with it,
which counts on a card of 16 GB: `--prefill-chunk` is 512 unless it is set, and `tandem plan` tells what a larger one
takes. Canonical experts bound Flash-Next's prompts (two thirds of the time at 0.075 of the product's rate, below); with
BF16 products they are 37 %, then come the attention (15 %), the delta net (12 %) and the mixes (11 %).

## What bounds a step of one sequence

Points in time taken by kernels on the H200, 2026-11-30 and 12-01 (builds for that purpose alone; the sequences without them:
`cuda_dense_layer_bench`, `cuda_hyper_bench`, `cuda_experts_bench`, `cuda_attention_bench between`):

- A product behind another kernel waits 0.6 to 1.3 us from that one's end until it may read, 0.9 us for its inputs (2.5
  at eight columns) and 1.1 us for its sums at the end; what its blocks ask for before the wait, 92 KB a multiprocessor,
  hides 2.7 us of that. Large ones come close to the card's rate: NVFP4 [248320, 5120] reads at 0.94 of it.
- Inputs wait behind weights that are under way: where blocks asked for one slot of their ring at a time and not for two,
  inputs came 0.6 us earlier (1 us at eight columns; there were three slots instead of four, too), and products of weights
  in lanes' order took 0.1 to 1 us less. So these are asked for one slot at a time (`dense_few_tiles.cu`).
- Eight columns of NVFP4 are bound by instructions: 0.6 of all issue slots busy, 0.44 of the logic unit's.
- Multiprocessors read at rates that differ by up to a tenth, and so blocks of equal shares end up to 3 us apart. Blocks
  that claim tiles one by one end together, but what they need for it takes longer than it gains.
- DeltaNet between its projections (`delta_few.cu`): blocks that find room beside the projections' as soon as these have
  begun (128 threads, 72 registers, the same division of shared memory) have state and gates 8 us before the projections
  end, under whose reads each answer of memory takes 2 us and not 1. Then, from the projections' end: 0.6 us until the
  wait ends, 0.5 for the inputs, 1.1 for convolution and recurrence, 0.5 for norm and state; 0.6 until the next product
  may read. Running the code twice for its instructions' sake gained nothing.
- Clusters are placed where there is room (`follow.cuh`): with the driver's own choice a layer of 27B took 98 us, not 85.
- Multiprocessors with three blocks of a product beside others with four: a group of products left clusters unused where
  their tiles did not come out even. All of them used, 8 layers of Flash-Next take 952 us for 970.
- A layer of Flash-Next has ten kernels or meetings one behind the other, and 44.5 us of bytes. Its experts for one column
  (`experts_alone.cu`), from the end of the mix before: 0.5 us until the wait ends, 2.7 to the router's sums, 4.6 until
  all blocks have the logits, 6.3 to the choice, 7.8 to the quantised columns, 13.8 to gate and up (the last block 16),
  16.9 until down's inputs are there, 20.3 to down, 22 to the end; memory alone would take 8.7.
- Code that runs once comes slowly: the choice of experts, 360 instructions straight on, takes 0.8 us behind the last
  logit. What is to be early, as asking for weights, stands among a kernel's first instructions.
- The memory serves in any order what it has been asked for, and blocks read at the full rate with 40 KB each under way:
  what is needed first is asked for first, and the rest a while later.
- A scheduler takes a `prmt`, `lop3`, shift, `dp4a` or `imad` every 2 cycles, an `imad.hi` or `imad.wide` every 4 and an
  int8 `m16n8k32` every 6, with hardly anything beside these. For one column of NVFP4 `dp4a` takes no more cycles
  than tensor cores, whose products are mostly with zeros, and the clock is 1.94 GHz and not 1.77.
- A multiprocessor's memory is divided between cache and shared memory, and anew only while no block is on it. The mixes'
  kernels, their weights in shared memory, took 12 layers of Flash-Next 1,385 us a step with the driver's division, and
  1,314 with a common one (`prefer_shared`). Products and the delta net ask for all of it, so that the next kernel's
  blocks find room beside theirs: 8 layers of Flash-Next 959 -> 944 us, of 27B 842 -> 832, four columns as before.
  Mixes with all of it, too, find room beside a product that has not ended, and their weights take from its rate what
  they save: 8 layers 944 -> 967 us or more. `up` starts only when `down` may go on: 945 -> 939.
- Experts of four columns (`experts_few.cu`), from the end of the router's logits: 5.0 us to the choice, 7.9 until weights
  are asked for, 9.8 to the quantised columns, 29.7 to gate and up (the last block 34), 34.5 with the shared expert's
  down; 37.7 until down's inputs are there, 51 to down, 53 to the end; memory alone would take 23. Without reading
  weights, the whole feed-forward took 61 us and not 69, without multiplying 53.
- What the compiler spills has left the caches when it is needed, and what is spilled behind a load waits for it. Loops for
  four columns of one expert, which are rare, took registers from those for one and two, and shared memory from the
  first-level cache: without them 8 layers with four sequences take 1,293 us for 1,348, with eight 1,766 for 1,830.
  Nothing spilled while inputs are on their way, two stages of weights a warp and not three, gate and up interleaved:
  1,273 and 1,731. The first kernel of a mix with one column, which spilled ten registers to be small: 926 -> 913, and
  5 less where its warps take a piece each and not two in turns.
- Tried there and not taken, for 67.9 us of four columns' feed-forward: one warp that asks for all weights by bulk copies
  of 1,152 bytes (73 us: 54 ns a copy) or 2,304 (67.5), a lane of each warp that does (70.2); the choice by a team of
  warps a token (2 us sooner, the whole 1 us later); every column by itself, so that no block has other tiles than the
  rest (1,311 for 1,293 in layers); a cost for each run's columns beside that of tiles (1,286 for 1,281); the shared
  expert's down asked for before SwiGLU (as long); four blocks of logits on a multiprocessor and not three (spills:
  1,284 for 1,268). Before these, tiles were shared out by their number: 11 us between blocks of one and two columns.
- The choice of blocks at 65,536 tokens (`attention_choose.cu`), 8 us by a cluster of eight blocks: 1.9 to the scores, 1.6
  to the bound, 0.4 to the bins, 1.1 to the last bin, 1.5 to the last of the best, 1.4 to the list. One block with all
  scores in registers, clusters of two or four, a rehearsal: as long, or longer. Then attention to what was chosen: 2.1
  until its tokens are found, 0.8 for the queries, 2.1 until keys are asked for, 2.4 for keys and values, 1.2 to the end.
- What such a chain takes at best: ten kernels that read what a layer of Flash-Next with a delta net reads (188 MB, 41 us),
  each behind the last by a dependent launch, with one multiply-add a weight and a sum over each block, took 58 to 63 us a
  layer; one kernel that stays, with 176 KB of weights ahead in each block and meetings by a counter in memory, 58 to 65.
  That is 0.65 to 0.68 of a whole step's reading, with nothing that the model computes in between.

The figures below were measured at 05:19 on 2026-12-01 (27B, Flash-Next) and 18:59 on 2026-11-30 (start, BF16 experts).

## Not yet run on hardware

All of `src/ops/cuda` is compiled for `sm_90a` and `sm_120a` from the same source, and was run on `sm_90` alone: no kernel of
it has been run on `sm_120`. There is no code for one architecture only
but where the table says so, and no block takes more than 99 KiB of shared
memory but where a card has more. What is chosen by the card, and is another choice on `sm_120` than on `sm_90`:

| file | on sm_90 | on sm_120 | run so far |
|---|---|---|---|
| `experts_few.cu` (`plan_of`) | larger blocks, up to 227 KiB | smaller ones, up to 99 KiB; what does not fit takes `experts_units.cu` | on `sm_90`, by `smaller_card_test` |
| `experts_alone.cu` (`plan_of`) | one column's experts and what is around them, 226 KiB a block | not taken: `experts_few.cu` | on `sm_90` alone |
| `attention_prefill.cu` (`launch_type`) | 128 rows a block | 64 rows a block | on `sm_90`, by `smaller_card_test` |
| `attention_choose.cu` (`choose_blocks`) | clusters for long rows | one block a row | on `sm_90`, by `attention_inputs_test` |
| `delta_advance.cu` (`advance_chunks`) | two buffers of keys, 150 KiB | one, 98 KiB | on `sm_90`, by `smaller_card_test` |
| `dense_library.cu` (`choose`) | what cuBLASLt's heuristic gives | another algorithm, or none: then `dense_tiles.cu` | no |
| `experts_few.cu`, `lanes.cuh`, `dense_measure.cu` | grids for 132 multiprocessors | for the card's own number | on `sm_90` with 70, the first by `smaller_card_test` |
| `follow.cuh` | programmatic dependent launches | the same, in the driver of another card | no |

The same code on both, its machine code for `sm_120` never run: `src/device/cuda`, and of `src/ops/cuda` (KERNELS)
Nothing was compiled for cards before `sm_90`. `tandem selftest`, which runs by itself at the first start on a card, is how the first owner of another one finds out.
"""


def head():
    """The head with the kernels' files that choose nothing by the card."""
    choosing = {"experts_few", "attention_choose", "attention_prefill", "delta_advance", "dense_library", "dense_measure"}
    names = sorted(file.stem for file in (ROOT / "src/ops/cuda").glob("*.cu"))
    lines = textwrap.fill(", ".join(f"`{name}.cu`" for name in names if name not in choosing), 112)
    return HEAD_TEXT.replace(" (KERNELS)", f":\n{lines}.\n")


def whole(part):
    """What a step takes, or a prompt."""
    if "recording_us" in part:
        return f"The recording takes {part['recording_us']:.0f} µs"
    return f"The prompt takes {sorted(part['s'])[len(part['s']) // 2] * 1e6:.0f} µs in steps of {part['chunk']} tokens"


def breakdown(name, part):
    """The operations of one step, or of a prompt, the longest first."""
    total = part["operations_us"]
    lines = [
        f"\n### `{name}` by operation\n",
        whole(part) + f", its operations one by one {total:.0f} µs.\n",
        "| operation | calls | µs | of the sum | MB | of reading | of multiplying |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in sorted(part["by_operation"], key=lambda row: -row["us"]):
        lines.append(
            f"| {row['operation']} | {row['calls']} | {row['us']:.1f} | {row['us'] / total:.1%} | {row['bytes'] / 1e6:.1f} "
            f"| {row['read_fraction']:.2f} | {row['matmul_fraction']:.3f} |")
    return lines


def table(run):
    raw = run["raw"]
    card = raw["card"]
    lines = [
        f"\n## {card['name']}, {run['date'][:10]}\n",
        f"`{run['command']}`, build {run['build']}, driver {card.get('driver', 'R580')}, "
        f"compute capability {card['capability']}, {card['multiprocessors']} multiprocessors.\n",
        "| figure | value |",
        "|---|---|",
    ]
    for name, value in run["figures"].items():
        lines.append(f"| `{name}` | {value:.4g} |")
    for name, part in raw.items():
        if isinstance(part, dict) and "by_operation" in part:
            lines += breakdown(name, part)
    loads = [(name, part) for name, part in raw.items() if isinstance(part, dict) and "weight_bytes" in part]
    for name, part in loads:
        lines.append(f"\n{name}: {part['weight_bytes'] / 1e9:.1f} GB of weights, made and loaded in {part['load_s']:.0f} s.")
    return "\n".join(lines) + "\n"


def main():
    runs = [json.loads(file.read_text().splitlines()[-1]) for file in sorted(FOLDER.glob("*.json"))]
    runs.sort(key=lambda run: run["date"], reverse=True)
    page = head() + "".join(table(run) for run in runs)
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text() != page:
            print("docs/performance.md is not what docs/performance/*.json say: run tools/performance.py")
            return 1
        return 0
    PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
