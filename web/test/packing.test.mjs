// The packed picture: no two rectangles overlap, and the top is hardly higher than the peak.
import { test } from "node:test";
import assert from "node:assert/strict";
import { build } from "esbuild";
import { fileURLToPath } from "node:url";

const source = fileURLToPath(new URL("../src/packing.ts", import.meta.url));
const { outputFiles } = await build({ entryPoints: [source], bundle: true, format: "esm", write: false, logLevel: "warning" });
const { pack } = await import(`data:text/javascript;base64,${Buffer.from(outputFiles[0].contents).toString("base64")}`);

/** Numbers in [0, 1), the same on every machine. */
function random(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** A run from [start, end, block] rows by start; an end of 0 never comes. */
function run(rows, lastTick) {
  return {
    n: rows.length,
    lastTick,
    start: Uint32Array.from(rows, (row) => row[0]),
    end: Uint32Array.from(rows, (row) => row[1] || lastTick + 1),
    block: Float64Array.from(rows, (row) => row[2]),
  };
}

/** How many times as high as the peak the picture is. Sweeps over time with what is alive by its lower edge. */
function checkedHeight(lives) {
  const { n, start, end, block } = lives;
  const y = pack(lives);
  assert.equal(y.length, n);
  const changes = [];
  // Ends come before births at the same tick: lifetimes are half-open.
  for (let i = 0; i < n; i++) changes.push([start[i], 1, i], [end[i], 0, i]);
  changes.sort((a, b) => a[0] - b[0] || a[1] - b[1] || a[2] - b[2]);
  const alive = [];
  let [active, peak, top] = [0, 0, 0];
  for (const [, born, i] of changes) {
    let at = 0;
    for (let high = alive.length; at < high; ) {
      const middle = (at + high) >> 1;
      if (y[alive[middle]] < y[i]) at = middle + 1;
      else high = middle;
    }
    if (!born) {
      assert.equal(alive.splice(at, 1)[0], i);
      active -= block[i];
      continue;
    }
    if (at > 0) assert.ok(y[alive[at - 1]] + block[alive[at - 1]] <= y[i], `${i} overlaps ${alive[at - 1]} below it`);
    if (at < alive.length) assert.ok(y[i] + block[i] <= y[alive[at]], `${i} overlaps ${alive[at]} above it`);
    alive.splice(at, 0, i);
    peak = Math.max(peak, (active += block[i]));
    top = Math.max(top, y[i] + block[i]);
  }
  return top / peak;
}

/** Parameters that stay, and steps whose activations are freed in reverse, with short-lived ones between. */
function training(steps, seed) {
  const chance = random(seed);
  const rows = [];
  let tick = 0;
  for (let i = 0; i < 40; i++) rows.push([tick++, 0, 512 * (1 + Math.floor(chance() * 40_000))]);
  const layers = Array.from({ length: 24 }, () => 512 * (1 + Math.floor(chance() * 30_000)));
  for (let step = 0; step < steps; step++) {
    const open = [];
    for (const size of layers) {
      open.push(rows.length);
      rows.push([tick++, 0, size]);
      rows.push([tick, tick + 2, 512 * (1 + Math.floor(chance() * 9_000))]);
      tick += 2;
      for (let k = 0; k < 4; k++) rows.push([tick++, tick + 3, 512]);
    }
    for (const i of open.reverse()) {
      rows.push([tick, tick + 3, 2 * rows[i][2]]);
      tick += 2;
      rows[i][1] = tick++;
    }
  }
  rows.sort((a, b) => a[0] - b[0]);
  return run(rows, tick);
}

function lifetimesAtRandom(n, seed, open = 2_000) {
  const chance = random(seed);
  const rows = [];
  const alive = [];
  let tick = 0;
  while (rows.length < n) {
    tick++;
    if (alive.length > open || (alive.length > 0 && chance() < 0.5)) {
      const at = Math.floor(chance() * alive.length);
      rows[alive[at]][1] = tick;
      alive[at] = alive[alive.length - 1];
      alive.pop();
    } else {
      alive.push(rows.length);
      rows.push([tick, 0, 512 * Math.ceil(chance() * 2 ** Math.floor(chance() * 14))]);
    }
  }
  return run(rows, tick);
}

test("a training run is hardly higher than its peak", () => {
  assert.ok(checkedHeight(training(60, 1)) < 1.12);
});

test("lifetimes at random are packed too", () => {
  // Such a run falls into parts that are hardly smaller than the whole: looking for parts of parts must end.
  assert.ok(checkedHeight(lifetimesAtRandom(60_000, 2)) < 1.4);
  assert.ok(checkedHeight(lifetimesAtRandom(120_000, 3)) < 1.5);
});

test("small runs of every shape are packed without an overlap", () => {
  const chance = random(4);
  for (let round = 0; round < 2_000; round++) {
    const n = Math.floor(chance() * 30);
    const last = 1 + Math.floor(chance() * 40);
    const rows = Array.from({ length: n }, () => {
      const start = Math.floor(chance() * last);
      return [start, chance() < 0.2 ? 0 : start + 1 + Math.floor(chance() * (last - start)), 1 + Math.floor(chance() ** 4 * 1e6)];
    });
    rows.sort((a, b) => a[0] - b[0]);
    checkedHeight(run(rows, last));
  }
});

test("blocks of more than 4 GiB, and none at all", () => {
  checkedHeight(run([[0, 3, 2 ** 40], [1, 2, 2 ** 33 + 512], [1, 4, 2 ** 32], [3, 0, 2 ** 41]], 5));
  assert.equal(pack(run([], 0)).length, 0);
});

test("a step that repeats another to the byte stands as that one does", () => {
  const step = [[0, 4, 1024], [1, 3, 4096], [2, 5, 512], [3, 6, 2048]];
  const rows = [[0, 0, 8192], ...[1, 11, 21].flatMap((at) => step.map(([from, to, size]) => [at + from, at + to, size]))];
  const y = pack(run(rows, 30));
  assert.deepEqual([...y.subarray(1, 5)], [...y.subarray(5, 9)]);
  assert.deepEqual([...y.subarray(1, 5)], [...y.subarray(9, 13)]);
  assert.equal(y[0], 0, "what lives to the end lies at the bottom");
});
