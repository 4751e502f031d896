#!/usr/bin/env python3
"""Reads a Tandem artifact with nothing but Python's standard library, as docs/artifact.md describes it.

  read_artifact.py FOLDER                      check the structure, list the objects
  read_artifact.py FOLDER dump NAME            an object's bytes as they are, to standard output
  read_artifact.py FOLDER tensor NAME...       tensors' bytes as the checkpoint had them; NAME is an object's, or an
                                               expert's, MODULE.E.gate_proj.weight, or an n-gram row's, MODULE.row.N
  read_artifact.py FOLDER values NAME [COUNT]  the first weights of such a tensor (FP8: its codes' values) as numbers
"""

import json
import math
import os
import struct
import sys

SIZES = {"bf16": 2, "f16": 2, "f32": 4, "i64": 8, "f8_e4m3": 1, "u8": 1, "text": 1, "ngram_f8_e4m3": 1, "ngram_bf16": 2}
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]
PROJECTIONS = ["gate_proj", "up_proj", "down_proj"]


def e4m3(byte):
    exponent, mantissa = byte >> 3 & 15, byte & 7
    value = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -value if byte & 128 else value


def bf16(data):
    return [struct.unpack("<f", b"\0\0" + data[i : i + 2])[0] for i in range(0, len(data), 2)]


class Artifact:
    def __init__(self, folder):
        self.folder = folder
        with open(os.path.join(folder, "tandem.json"), "rb") as file:
            header = json.loads(file.readline(4096))
            body = file.read()
        assert header["format"] == "tandem" and header["version"] == 1, header
        assert header["directory_bytes"] == len(body), "the directory has another length"
        self.directory = json.loads(body)
        self.objects = {o["name"]: o for o in self.directory["objects"]}
        self.check()

    def check(self):
        parts = self.directory["parts"]
        assert len(self.objects) == len(self.directory["objects"]), "a name stands twice"
        for number, part in enumerate(parts):
            assert part["file"] == "part-%05d.bin" % number
            assert os.path.getsize(os.path.join(self.folder, part["file"])) == part["bytes"], part
        ends = [0] * len(parts)
        for o in sorted(self.objects.values(), key=lambda o: (o["part"], o["offset"], o["bytes"])):
            assert o["offset"] % 4096 == 0 and o["offset"] >= ends[o["part"]], o
            assert o["bytes"] == self.size(o), o
            ends[o["part"]] = o["offset"] + o["bytes"]
            assert ends[o["part"]] <= parts[o["part"]]["bytes"], o

    @staticmethod
    def size(o):
        encoding, shape = o["encoding"], o["shape"]
        if encoding.startswith("ngram"):
            return -(-shape[0] // (4096 // (shape[1] * SIZES[encoding]))) * 4096
        if not encoding.startswith("experts"):
            return math.prod(shape) * SIZES[encoding]
        experts, inner, hidden = shape
        matrix = inner * hidden
        grid = 2 * -(-inner // 128) * -(-hidden // 128)
        record = {"experts_bf16": 2 * matrix, "experts_nvfp4": matrix * 9 // 16, "experts_fp8_block": matrix + grid}
        assert o["record_bytes"] == -(-3 * record[encoding] // 4096) * 4096, o
        return experts * o["record_bytes"]

    def read(self, o, offset=0, count=None):
        with open(os.path.join(self.folder, "part-%05d.bin" % o["part"]), "rb") as file:
            file.seek(o["offset"] + offset)
            return file.read(o["bytes"] - offset if count is None else count)

    def tensor(self, name):
        """(encoding, inputs to a row, bytes) of a tensor as the checkpoint had it."""
        o = self.objects.get(name)
        if o and o["encoding"] in ("bf16", "f16", "f32", "i64", "f8_e4m3", "u8"):
            return o["encoding"], o["shape"][-1] if o["shape"] else 1, self.read(o)
        module, row = name.split(".row.") if ".row." in name else (name, None)
        if row is not None:
            o = self.objects[module]
            bytes_, width = o["shape"][1] * SIZES[o["encoding"]], o["shape"][1]
            rows = 4096 // bytes_
            return o["encoding"][6:], width, self.read(o, int(row) // rows * 4096 + int(row) % rows * bytes_, bytes_)
        module, expert, projection, suffix = name.rsplit(".", 3)
        return self.expert(self.objects[module], int(expert), PROJECTIONS.index(projection), suffix)

    def expert(self, o, expert, p, suffix):
        _, inner, hidden = o["shape"]
        rows, inputs = (hidden, inner) if p == 2 else (inner, hidden)
        start, matrix = expert * o["record_bytes"], rows * inputs
        if o["encoding"] == "experts_bf16":
            return "bf16", inputs, self.read(o, start + p * 2 * matrix, 2 * matrix)
        if o["encoding"] == "experts_fp8_block":
            if suffix == "weight":
                return "f8_e4m3", inputs, self.read(o, start + p * matrix, matrix)
            grid = 2 * -(-rows // 128) * -(-inputs // 128)
            return "bf16", -(-inputs // 128), self.read(o, start + 3 * matrix + p * grid, grid)
        if suffix in ("weight_scale_2", "input_scale"):
            scalars = self.objects[o["name"] + ".scalars"]
            columns = scalars["shape"][1]
            at = (expert * columns + p + (3 if suffix == "input_scale" else 0)) * 4
            return "f32", 1, self.read(scalars, at, 4)
        units = self.read(o, start + p * matrix * 9 // 16, matrix * 9 // 16)
        codes, scales = bytearray(matrix // 2), bytearray(matrix // 16)
        for number in range(len(units) // 576):
            row0, input0 = number // (inputs // 64) * 16, number % (inputs // 64) * 64
            unit = units[number * 576 : number * 576 + 576]
            for r in range(16):
                for w in range(8):
                    to = ((row0 + r) * inputs + input0 + 8 * w) // 2
                    codes[to : to + 4] = unit[(w * 16 + r) * 4 : (w * 16 + r) * 4 + 4]
                to = ((row0 + r) * inputs + input0) // 16
                scales[to : to + 4] = unit[512 + r * 4 : 512 + r * 4 + 4]
        return ("e2m1", inputs, bytes(codes)) if suffix == "weight" else ("f8_e4m3", inputs // 16, bytes(scales))

    def values(self, name):
        encoding, inputs, data = self.tensor(name)
        if encoding == "e2m1":
            scales, scale_2 = self.values(name + "_scale"), self.values(name + "_scale_2")[0]
            codes = [E2M1[nibble] for byte in data for nibble in (byte & 15, byte >> 4)]
            return [code * scales[i // 16] * scale_2 for i, code in enumerate(codes)]
        if encoding == "f8_e4m3":
            return [e4m3(byte) for byte in data]
        if encoding == "bf16":
            return bf16(data)
        form = {"f16": "e", "f32": "f", "i64": "q", "u8": "B"}[encoding]
        return list(struct.unpack("<%d%s" % (len(data) // SIZES[encoding], form), data))


def main(folder, command="list", *names):
    artifact = Artifact(folder)
    if command == "list":
        for o in artifact.directory["objects"]:
            print(o["name"], o["encoding"], o["shape"], o["bytes"])
    elif command == "dump":
        sys.stdout.buffer.write(artifact.read(artifact.objects[names[0]]))
    elif command == "tensor":
        for name in names:
            sys.stdout.buffer.write(artifact.tensor(name)[2])
    elif command == "values":
        print(json.dumps(artifact.values(names[0])[: int(names[1]) if len(names) > 1 else 8]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) > 1 else sys.exit(__doc__)
