"""Words of IQ2_S and IQ3_S in units of blocks, as docs/artifact.md describes them; for read_artifact.py."""
import functools, os, re  # noqa: E401


@functools.cache
def entries(form):
    """The entry of the codebook that each code stands for: a table of the format, in src/numeric/iquant_codes.cpp."""
    with open(os.path.join(os.path.dirname(__file__), "../src/numeric/iquant_codes.cpp")) as file:
        table = re.search("kIq%ssEntries = {([^}]*)}" % form[2], file.read())[1]
    return [int(number) for number in re.findall("[0-9]+", table)]


def file_words(form, unit, row, words):
    """Some words of row 0 to 15 of a unit (all of a row in IQ2_S and IQ3_S), in the file's order."""
    unit = b"".join(unit[(w * 16 + row) * 4 :][:4] for w in words)
    if form not in ("iq2_s", "iq3_s"):
        return unit
    eights, out = form == "iq2_s", bytearray(unit)  # inputs of an entry: eight or four
    signs, scales = (32, 72) if eights else (72, 104)  # where they begin
    out[:scales] = bytes(scales)
    for g in range(32 if eights else 64):
        b, h, j = (g // 4, 0, g % 4) if eights else (g // 8, g // 4 % 2, g % 4)
        upper = unit[64 + b // 4 * 4 + j] >> b % 4 * 2 + h & (3 if eights else 1)
        entry = entries(form)[unit[g] | upper << 8]
        out[g] = entry & 255
        out[64 + b] |= entry >> 8 << (2 * j if eights else g % 8)
        for i in range(8 if eights else 4):
            byte, bit, to, at = j, (3, 1, 7, 5)[i % 4] - h, g // 2, g % 2 * 4 + i
            if eights:
                half, second = i // 4, j // 2
                byte, bit, to, at = (half ^ second) * 2 + j % 2, ((2, 3, 6, 7), (0, 1, 4, 5))[second][i % 4], g, i
            out[signs + to] |= (unit[signs + 4 * b + byte] >> bit & 1) << at
    return bytes(out)
