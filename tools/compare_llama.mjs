// The table of tools/compare-llama.sh: gigabytes of weights a second from ggml's and Tandem's measurements.
import { readFileSync } from 'node:fs';

const [ggml, tandem] = process.argv.slice(2).map((file) => JSON.parse(readFileSync(file, 'utf8')));
const median = (values) => {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
};
const cell = (text, width) => String(text).padEnd(width);
const number = (value, digits = 1) => value.toFixed(digits).padStart(8);

console.log(cell('format', 9) + cell('columns', 8) + ' llama.cpp   tandem    ratio  of read');
for (const [format, theirs] of Object.entries(ggml)) {
  const read = tandem.figures[`experts.${format}.read_gb_s`];
  for (const columns of Object.keys(theirs).filter((key) => /^c\d+$/.test(key))) {
    const isa = ['avx512', 'avx2'].find((name) => tandem.raw[`experts.${format}.${name}.${columns}`]);
    const ours = tandem.raw[`experts.${format}.${isa}.${columns}`];
    const ggmlRate = theirs.bytes / median(theirs[columns]) / 1e9;
    const rate = ours.bytes / median(ours.s) / 1e9;
    console.log(cell(format, 9) + cell(columns.slice(1), 8) + '  ' + number(ggmlRate) + ' ' + number(rate) + ' ' +
      number(rate / ggmlRate, 2) + ' ' + number(rate / read, 2));
  }
}
console.log(`GB/s of weights; ${tandem.machine.threads} threads, ${tandem.machine.cpu}, ${tandem.date}`);
