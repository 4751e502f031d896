#!/usr/bin/env python3
"""Says what CUDA kernels take: registers, what the compiler spilled of them, instructions.

    tools/kernel_usage.py FILE ...      sources of src/ops/cuda, by their names: hyper_few.cu
    --build FOLDER                      a configured build (default: build/release)
    --json                              one JSON object

Needs nvcc and no card. A kernel that spills is worth a look: what is spilled has left the caches when it is needed
again (docs/performance.md). Exit code: 0, or 2 where a file is not of the build or can't be compiled.
"""
import argparse
import json
import pathlib
import re
import shlex
import struct
import subprocess
import sys
import tempfile


def fail(text):
    print(f'kernel_usage: {text}', file=sys.stderr)
    sys.exit(2)


def command_of(build, name):
    """How the build compiles the source: its folder, and the words but for those of the output."""
    known = json.loads((build / 'compile_commands.json').read_text())
    for entry in known:
        file = pathlib.Path(entry['file'])
        if file.suffix == '.cu' and file.name == pathlib.Path(name).name:
            words = shlex.split(entry['command'])
            out = words.index('-o')
            return entry['directory'], words[:out] + words[out + 2:]
    fail(f'{name}: no such CUDA source in {build}')


def instructions_of(cubin):
    """By card (90 of sm_90a) and the kernels' names in the object: 16 bytes an instruction, of their sections."""
    data = cubin.read_bytes()
    table, flags = struct.unpack_from('<QI', data, 40)
    card = flags >> 8 & 0xFF
    count, names_at = struct.unpack_from('<HH', data, 60)
    sections = [struct.unpack_from('<IIQQQQ', data, table + 64 * i) for i in range(count)]
    names = sections[names_at][4]
    out = {}
    for section in sections:
        begin = names + section[0]
        name = data[begin:data.index(b'\0', begin)].decode()
        if name.startswith('.text.'):
            out[card, name[len('.text.'):]] = section[5] // 16
    return out


def short_names(names):
    """Without namespaces and parameters."""
    plain = subprocess.run(['c++filt', '-p'], input='\n'.join(names), capture_output=True, text=True, check=True).stdout
    return [re.sub(r'(?:\(anonymous namespace\)|[A-Za-z_]\w*)::', '', line) for line in plain.splitlines()]


def usage_of(build, name):
    folder, command = command_of(build, name)
    with tempfile.TemporaryDirectory() as kept:
        ran = subprocess.run(command + ['-Xptxas', '-v', '--keep', '--keep-dir', kept, '-o', f'{kept}/out.o'],
                             cwd=folder, capture_output=True, text=True)
        if ran.returncode != 0:
            said = ran.stderr.splitlines() or ['']
            fail(f'{name}: nvcc ended with {ran.returncode}: {said[-1]}')
        instructions = {}
        for cubin in pathlib.Path(kept).glob('*.cubin'):
            instructions.update(instructions_of(cubin))
    kernels = []
    found = re.findall(r"Compiling entry function '(\w+)' for '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores,"
                       r' (\d+) bytes spill loads.*?Used (\d+) registers', ran.stderr, re.S)
    for short, (mangled, card, stack, stores, loads, registers) in zip(short_names([f[0] for f in found]), found):
        kernels.append({'kernel': short, 'card': card, 'registers': int(registers), 'stack_bytes': int(stack),
                        'spill_store_bytes': int(stores), 'spill_load_bytes': int(loads),
                        'instructions': instructions[int(re.sub(r'[^0-9]', '', card)), mangled]})
    return kernels


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('files', nargs='+', metavar='FILE')
    parser.add_argument('--build', type=pathlib.Path, default=pathlib.Path('build/release'))
    parser.add_argument('--json', action='store_true')
    words = parser.parse_args()
    if not (words.build / 'compile_commands.json').is_file():
        fail(f'{words.build}: not configured')
    usage = {name: usage_of(words.build, name) for name in words.files}
    if words.json:
        print(json.dumps(usage))
        return
    for name, kernels in usage.items():
        print(name)
        for k in sorted(kernels, key=lambda k: (k['card'], k['kernel'])):
            spilled = f"{k['spill_store_bytes']} + {k['spill_load_bytes']} B spilled" if k['spill_store_bytes'] else ''
            counts = f"{k['registers']:4} registers {k['instructions']:7} instructions"
            print(f"  {k['card']:<8} {counts}  {k['kernel']:<40} {spilled}".rstrip())


if __name__ == '__main__':
    main()
