#!/usr/bin/env python3
"""Decodes tensors of a Tandem artifact with nothing but Python's standard library: plain ones, packed integers, NVFP4.

  artifact_values.py FOLDER NAME [COUNT]  the first weights of a tensor as read_artifact.py names it (FP8: its codes'
                                          values) as numbers
"""
import json, os, struct, sys  # noqa: E401

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from read_artifact import Artifact  # noqa: E402

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]


def e4m3(byte):
    exponent, mantissa = byte >> 3 & 15, byte & 7
    return (-1) ** (byte >> 7) * (mantissa + 8 * (exponent > 0)) * 2.0 ** (max(exponent, 1) - 10)


def values(artifact, name):
    encoding, inputs, data = artifact.tensor(name)
    if encoding.startswith("int"):
        scales, half = values(artifact, name[: -len("packed")] + "scale"), 1 << int(encoding[3:]) - 1
        codes = [code - half for row in artifact.codes(artifact.objects[name]) for code in row]
        return [code * scales[k * len(scales) // len(codes)] for k, code in enumerate(codes)]
    if encoding == "e2m1":
        scales, scale_2 = values(artifact, name + "_scale"), values(artifact, name + "_scale_2")[0]
        codes = (E2M1[nibble] for byte in data for nibble in (byte & 15, byte >> 4))
        return [code * scales[i // 16] * scale_2 for i, code in enumerate(codes)]
    if encoding == "f8_e4m3":
        return [e4m3(byte) for byte in data]
    if encoding == "bf16":
        data, encoding = b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2)), "f32"
    form = {"f16": "e", "f32": "f", "i64": "q", "u8": "B"}[encoding]
    return [value[0] for value in struct.iter_unpack("<" + form, data)]


def main(folder, name, count="8"):
    print(json.dumps(values(Artifact(folder), name)[: int(count)]))


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) > 2 else sys.exit(__doc__)
