#!/usr/bin/env python3
"""Reads a Tandem artifact with nothing but Python's standard library, as docs/artifact.md describes it.

  read_artifact.py FOLDER                      check the structure, list the objects
  read_artifact.py FOLDER dump NAME            an object's bytes as they are, to standard output
  read_artifact.py FOLDER tensor NAME...       tensors' bytes as the checkpoint had them; NAME is an object's, or an
                                               expert's, MODULE.E.gate_proj.weight, or an n-gram row's, MODULE.row.N
"""
import json, math, os, sys  # noqa: E401

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from iquant_words import file_words  # noqa: E402

SIZES = {"bf16": 2, "f16": 2, "f32": 4, "i64": 8, "f8_e4m3": 1, "u8": 1, "text": 1, "ngram_f8_e4m3": 1, "ngram_bf16": 2}
# Units of experts: inputs, words and 16-bit numbers of a row.
UNITS = {"iq2_s": (256, 20, 1), "iq3_xxs": (256, 24, 1), "iq3_s": (256, 27, 1), "iq4_xs": (256, 34, 0)}
UNITS.update({"iq4_nl": (64, 8, 2), "q2_0": (128, 8, 2), "bf16": (1, 0, 1), "fp8_block": (4, 1, 0), "nvfp4": (64, 9, 0)})


def unit_codes(unit):
    bits, low = len(unit) // 16, len(unit) // 32 * 2  # bytes of a word side by side; with 3 bits one more stands apart
    words = [int.from_bytes(unit[low * i :][:low] + unit[32 + i :][: bits % 2], "little") for i in range(16)]
    return [words[k % 16] >> bits * (k // 16) & (1 << bits) - 1 for k in range(128)]


def formats(o):
    return o.get("formats", [o["encoding"][len("experts_") :]] * 3)


def matrix_size(form, matrix):  # without FP8's scales
    inputs, words, scales = UNITS[form]
    return matrix // inputs * (4 * words + 2 * scales)


def block_row(units, form, row, inputs):
    """The blocks of a row as a GGUF file has them, the codes of one in FP8."""
    (width, words, scales), out = UNITS[form], b""
    size, per_row, count = 16 * (4 * words + 2 * scales), inputs // width, max(scales, 1)
    for number in range(row // 16 * per_row, (row // 16 + 1) * per_row):
        unit, r = units[number * size : (number + 1) * size], row % 16
        for b in range(count):
            out += unit[64 * words + 32 * b + 2 * r :][: 2 if scales else 0]
            out += file_words(form, unit, r, range(b * words // count, (b + 1) * words // count))
    return out


class Artifact:
    def __init__(self, folder):
        self.folder = folder
        with open(os.path.join(folder, "tandem.json"), "rb") as file:
            header, body = json.loads(file.readline(4096)), file.read()
        assert (header["format"], header["version"], header["directory_bytes"]) == ("tandem", 1, len(body)), header
        self.directory = json.loads(body)
        self.objects = {o["name"]: o for o in self.directory["objects"]}
        parts, ends = self.directory["parts"], [0] * len(self.directory["parts"])
        assert len(self.objects) == len(self.directory["objects"]), "a name stands twice"
        for number, part in enumerate(parts):
            name, path = "part-%05d.bin" % number, os.path.join(self.folder, part["file"])
            assert part["file"] == name and os.path.getsize(path) == part["bytes"], part
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
        grid = 2 * -(-inner // 128) * -(-hidden // 128)
        record = sum(matrix_size(form, inner * hidden) + (grid if form == "fp8_block" else 0) for form in formats(o))
        assert o["record_bytes"] == -(-record // 4096) * 4096, o
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
        units = [(list if bits == 8 else unit_codes)(data[k:][: 16 * bits]) for k in range(0, len(data), 16 * bits)]
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
        matrix, form, data = rows * inputs, formats(o)[p], self.read(o, expert * o["record_bytes"], o["record_bytes"])
        start = sum(matrix_size(form, matrix) for form in formats(o)[:p])
        units = data[start : start + matrix_size(form, matrix)]
        if form == "fp8_block" and suffix == "weight_scale_inv":
            grid = 2 * -(-rows // 128) * -(-inputs // 128)
            return "bf16", -(-inputs // 128), data[3 * matrix + p * grid :][:grid]
        if form == "bf16":
            return form, inputs, units
        if form != "nvfp4":
            blocks = b"".join(block_row(units, form, row, inputs) for row in range(rows))
            return {"fp8_block": "f8_e4m3"}.get(form, form), inputs, blocks
        if suffix in ("weight_scale_2", "input_scale"):
            scalars = self.objects[o["name"] + ".scalars"]
            return "f32", 1, self.read(scalars, 4 * (expert * scalars["shape"][1] + p + 3 * (suffix[0] == "i")), 4)
        codes, scales = bytearray(matrix // 2), bytearray(matrix // 16)
        for number in range(len(units) // 576):
            unit = units[number * 576 : number * 576 + 576]
            for r in range(16):
                at = (number // (inputs // 64) * 16 + r) * inputs + number % (inputs // 64) * 64
                codes[at // 2 : at // 2 + 32] = b"".join(unit[(w * 16 + r) * 4 :][:4] for w in range(8))
                scales[at // 16 : at // 16 + 4] = unit[512 + r * 4 : 512 + r * 4 + 4]
        return ("e2m1", inputs, bytes(codes)) if suffix == "weight" else ("f8_e4m3", inputs // 16, bytes(scales))


def main(folder, command="list", *names):
    artifact, out = Artifact(folder), sys.stdout.buffer
    if command == "list":
        print("\n".join("{name} {encoding} {shape} {bytes}".format(**o) for o in artifact.directory["objects"]))
    elif command in ("dump", "tensor"):
        for name in names:
            out.write(artifact.read(artifact.objects[name]) if command == "dump" else artifact.tensor(name)[2])


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) > 1 else sys.exit(__doc__)
