#!/usr/bin/env python3
"""Reads a Tandem artifact with nothing but Python's standard library, as docs/artifact.md describes it.

  read_artifact.py FOLDER                      check the structure, list the objects
  read_artifact.py FOLDER dump NAME            an object's bytes as they are, to standard output
  read_artifact.py FOLDER tensor NAME...       tensors' bytes as the checkpoint had them; NAME is an object's, or an
                                               expert's, MODULE.E.gate_proj.weight, or an n-gram row's, MODULE.row.N
  read_artifact.py FOLDER values NAME [COUNT]  the first weights of such a tensor (FP8: its codes' values) as numbers
"""
import json, math, os, struct, sys  # noqa: E401

SIZES = {"bf16": 2, "f16": 2, "f32": 4, "i64": 8, "f8_e4m3": 1, "u8": 1, "text": 1, "ngram_f8_e4m3": 1, "ngram_bf16": 2}
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]


def e4m3(byte):
    exponent, mantissa = byte >> 3 & 15, byte & 7
    return (-1) ** (byte >> 7) * (mantissa + 8 * (exponent > 0)) * 2.0 ** (max(exponent, 1) - 10)


def unit_codes(unit):
    bits, low = len(unit) // 16, len(unit) // 32 * 2  # bytes of a word side by side; with 3 bits one more stands apart
    words = [int.from_bytes(unit[low * i :][:low] + unit[32 + i :][: bits % 2], "little") for i in range(16)]
    return [words[k % 16] >> bits * (k // 16) & (1 << bits) - 1 for k in range(128)]


class Artifact:
    def __init__(self, folder):
        self.folder = folder
        with open(os.path.join(folder, "tandem.json"), "rb") as file:
            header, body = json.loads(file.readline(4096)), file.read()
        assert (header["format"], header["version"], header["directory_bytes"]) == ("tandem", 1, len(body)), header
        self.directory = json.loads(body)
        self.objects = {o["name"]: o for o in self.directory["objects"]}
        parts = self.directory["parts"]
        assert len(self.objects) == len(self.directory["objects"]), "a name stands twice"
        for number, part in enumerate(parts):
            name, path = "part-%05d.bin" % number, os.path.join(self.folder, part["file"])
            assert part["file"] == name and os.path.getsize(path) == part["bytes"], part
        ends = [0] * len(parts)
        for o in sorted(self.objects.values(), key=lambda o: (o["part"], o["offset"], o["bytes"])):
            assert o["offset"] % 4096 == 0 and o["offset"] >= ends[o["part"]] and o["bytes"] == self.size(o), o
            ends[o["part"]] = o["offset"] + o["bytes"]
            assert ends[o["part"]] <= parts[o["part"]]["bytes"], o

    @staticmethod
    def size(o):
        encoding, shape = o["encoding"], o["shape"]
        if encoding.startswith("int"):
            return shape[0] * -(-shape[1] // 128) * 16 * int(encoding[3:])
        if encoding.startswith("ngram"):
            return -(-shape[0] // (4096 // (shape[1] * SIZES[encoding]))) * 4096
        if not encoding.startswith("experts"):
            return math.prod(shape) * SIZES[encoding]
        experts, inner, hidden = shape
        matrix, grid = inner * hidden, 2 * -(-inner // 128) * -(-hidden // 128)
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
        if o and o["encoding"].startswith("int"):
            return o["encoding"], o["shape"][1], self.packed(o)
        module, row = name.split(".row.") if ".row." in name else (name, None)
        if row is not None:
            o = self.objects[module]
            size, width = o["shape"][1] * SIZES[o["encoding"]], o["shape"][1]
            block, place = divmod(int(row), 4096 // size)
            return o["encoding"][6:], width, self.read(o, block * 4096 + place * size, size)
        module, expert, p, suffix = name.rsplit(".", 3)
        return self.expert(self.objects[module], int(expert), ["gate_proj", "up_proj", "down_proj"].index(p), suffix)

    def codes(self, o):
        bits, (rows, inputs), data = int(o["encoding"][3:]), o["shape"], self.read(o)
        cut = list if bits == 8 else unit_codes
        units = [cut(data[at : at + 16 * bits]) for at in range(0, len(data), 16 * bits)]
        width = len(units) // rows
        return [sum(units[row * width : row * width + width], [])[:inputs] for row in range(rows)]

    def packed(self, o):
        bits, words = int(o["encoding"][3:]), o["packed_words"]
        fit = 32 // bits  # whole codes to a word, in one of the packings; the other is one stream of bits
        stream = words != -(-o["shape"][1] // fit)
        places = [k * bits if stream else k // fit * 32 + k % fit * bits for k in range(o["shape"][1])]
        return b"".join(sum(c << p for c, p in zip(row, places)).to_bytes(4 * words, "little") for row in self.codes(o))

    def expert(self, o, expert, p, suffix):
        rows, inputs = o["shape"][2:0:-1] if p == 2 else o["shape"][1:]
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
            at = expert * scalars["shape"][1] + p + 3 * (suffix == "input_scale")
            return "f32", 1, self.read(scalars, 4 * at, 4)
        units = self.read(o, start + p * matrix * 9 // 16, matrix * 9 // 16)
        codes, scales = bytearray(matrix // 2), bytearray(matrix // 16)
        for number in range(len(units) // 576):
            unit = units[number * 576 : number * 576 + 576]
            for r in range(16):
                at = (number // (inputs // 64) * 16 + r) * inputs + number % (inputs // 64) * 64
                codes[at // 2 : at // 2 + 32] = b"".join(unit[(w * 16 + r) * 4 :][:4] for w in range(8))
                scales[at // 16 : at // 16 + 4] = unit[512 + r * 4 : 512 + r * 4 + 4]
        return ("e2m1", inputs, bytes(codes)) if suffix == "weight" else ("f8_e4m3", inputs // 16, bytes(scales))

    def values(self, name):
        encoding, inputs, data = self.tensor(name)
        if encoding.startswith("int"):
            scales, half = self.values(name[: -len("packed")] + "scale"), 1 << int(encoding[3:]) - 1
            codes = [code - half for row in self.codes(self.objects[name]) for code in row]
            return [code * scales[k * len(scales) // len(codes)] for k, code in enumerate(codes)]
        if encoding == "e2m1":
            scales, scale_2 = self.values(name + "_scale"), self.values(name + "_scale_2")[0]
            codes = (E2M1[nibble] for byte in data for nibble in (byte & 15, byte >> 4))
            return [code * scales[i // 16] * scale_2 for i, code in enumerate(codes)]
        if encoding == "f8_e4m3":
            return [e4m3(byte) for byte in data]
        if encoding == "bf16":
            data, encoding = b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2)), "f32"
        form = {"f16": "e", "f32": "f", "i64": "q", "u8": "B"}[encoding]
        return [value[0] for value in struct.iter_unpack("<" + form, data)]


def main(folder, command="list", *names):
    artifact, out = Artifact(folder), sys.stdout.buffer
    if command == "list":
        print("\n".join("{name} {encoding} {shape} {bytes}".format(**o) for o in artifact.directory["objects"]))
    elif command in ("dump", "tensor"):
        for name in names:
            out.write(artifact.read(artifact.objects[name]) if command == "dump" else artifact.tensor(name)[2])
    elif command == "values":
        print(json.dumps(artifact.values(names[0])[: int(names[1]) if len(names) > 1 else 8]))


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) > 1 else sys.exit(__doc__)
