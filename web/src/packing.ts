// The place of each allocation in the packed picture: one rectangle [start, end) x [y, y + block) each, at a fixed y.
// The page finds the places when the reader asks for that picture; the file does not hold them.
//
// Promises: no two rectangles overlap; what lives to the end lies at the bottom, in order of birth, without holes; the
// top stays near the peak of the active bytes (1.00 to 1.08 times on recorded training runs, 1.25 on random lifetimes).
//
// How: (1) dust, the many smallest blocks that together need less than 1/256 of the peak, share slots by size in a band
// below everything else. (2) The run falls into parts at moments when nothing lives that ends: steps, mostly, and many
// of them alike. (3) Within a part what lives to the end is stacked by birth. (4) The rest comes by decreasing lifetime
// and size: a rectangle falls into the lowest cave that holds it, else onto the skyline. A cave is a valley of the
// skyline that a rectangle closed from above; it has a floor and a ceiling and is filled like the skyline itself.
//
// Time is counted in births: two lifetimes overlap if and only if the later birth lies in both. Each placement replaces
// the runs of floor below it by one run, so runs cost O(n log n) in all; caves looked at are bounded per tree node.

import { lowerBound, max, min } from "./math";

const CAVES_PER_NODE = 24;
/** Caves looked at for one allocation in all: of a few, of many. */
const CAVES_IN_ALL = [96, 32];
/** Dust takes at most this share of the peak, and a cave lower than the other is less than a pixel of most screens. */
const DUST_SHARE = 256;
const CAVE_SHARE = 4096;
/**
 * The factor of a lifetime against a size in the order of placing. Long lives first make a calm picture; even weights
 * make a lower one, which is tried if the calm one is a tenth too high.
 */
const CALM = 4;
const TIGHT = 1;
const SECOND_TRY = 100_000;
/** Fewer allocations than this are not worth a second look for parts, and no part is looked at more often than that. */
const MANY = 10_000;
const LOOKS = 3;

export interface Lifetimes {
  n: number;
  lastTick: number;
  start: Uint32Array;
  end: Uint32Array;
  block: Float64Array;
}

/** The lower edge of each allocation, in bytes. */
export function pack(given: Lifetimes): Float64Array {
  const forever = given.lastTick + 1;
  const items = { ...given, end: livesAsStacked(given, forever) };
  const y = new Float64Array(items.n);
  const band = dust(items, forever, y);
  const rest = new Uint32Array(items.n).map((_, i) => i).filter((i) => items.block[i] > band.largest);
  stackParts(items, rest, forever, LOOKS).forEach((above, at) => (y[rest[at]] = band.height + above));
  return y;
}

/**
 * The ends. An allocation that is freed after the last birth, and outlived all that were freed before, counts as alive
 * to the end: a program drops its model when it is done.
 */
function livesAsStacked({ n, start, end }: Lifetimes, forever: number): Uint32Array {
  const last = n > 0 ? start[n - 1] : 0;
  const ends = end.map((e, i) => max(e, start[i] + 1));
  let longest = 0;
  for (let i = 0; i < n; i++) if (ends[i] <= last) longest = max(longest, ends[i] - start[i]);
  return ends.map((e, i) => (e > last && (e - start[i]) / 3 > longest / 2 ? forever : e));
}

/** Slots of one size: those in use at once at most, and the free ones while going through time. */
interface Slots {
  count: number;
  base: number;
  free: number[];
}

/** Places every block up to `largest` bytes. */
function dust({ n, start, end, block }: Lifetimes, forever: number, y: Float64Array): { largest: number; height: number } {
  const firstEnd = new Int32Array(forever + 1).fill(-1);
  const nextEnd = new Int32Array(n);
  const slot = new Uint32Array(n);
  const classes = new Map<number, Slots>();
  let [tick, active, peak] = [0, 0, 0];
  for (let i = 0; i < n; i++) {
    for (; tick <= min(start[i], forever); tick++) {
      for (let ended = firstEnd[tick]; ended >= 0; ended = nextEnd[ended]) {
        active -= block[ended];
        classes.get(block[ended])!.free.push(slot[ended]);
      }
    }
    peak = max(peak, (active += block[i]));
    let slots = classes.get(block[i]);
    if (!slots) classes.set(block[i], (slots = { count: 0, base: -1, free: [] }));
    slot[i] = slots.free.pop() ?? slots.count++;
    const at = min(end[i], forever);
    nextEnd[i] = firstEnd[at];
    firstEnd[at] = i;
  }
  const band = { largest: -1, height: 0 };
  for (const [size, slots] of [...classes].sort((a, b) => a[0] - b[0])) {
    const height = band.height + slots.count * size;
    if (height > peak / DUST_SHARE) break;
    slots.base = band.height;
    band.largest = size;
    band.height = height;
  }
  for (let i = 0; i < n; i++) if (block[i] <= band.largest) y[i] = classes.get(block[i])!.base + slot[i] * block[i];
  return band;
}

/**
 * Stacks `rest` from 0 up, in stretches that share nothing but what lives to the end: the steps of a training run. One
 * that repeats an earlier one to the tick and byte is stacked as that was.
 */
function stackParts(items: Lifetimes, rest: Uint32Array, forever: number, looks: number): Float64Array {
  const { start, end, block } = items;
  const y = new Float64Array(rest.length);
  const known = new Map<number, number[][]>();
  const life = (at: number, from: number): number => (end[rest[at]] >= forever ? -1 : end[rest[at]] - start[rest[from]]);
  const stack = (from: number, to: number, ground: number): void => {
    let hash = to - from;
    for (let at = from; at < to; at++) hash = Math.imul(hash ^ life(at, from), 0x9e3779b1) ^ block[rest[at]];
    const same = known.get(hash) ?? [];
    const like = same.find(([first, past]) => {
      if (past - first !== to - from) return false;
      for (let at = from, k = first; at < to; at++, k++) {
        const [i, j] = [rest[at], rest[k]];
        if (block[i] !== block[j] || life(at, from) !== life(k, first) || start[i] - start[rest[from]] !== start[j] - start[rest[first]]) return false;
      }
      return true;
    });
    if (like) {
      for (let at = from; at < to; at++) y[at] = y[like[0] + at - from] - like[2] + ground;
      return;
    }
    known.set(hash, [...same, [from, to, ground]]);
    stackBest(items, rest.subarray(from, to), forever, looks).forEach((above, k) => (y[from + k] = ground + above));
  };
  let [from, until, stays, ground] = [0, 0, 0, 0];
  for (let at = 0; at <= rest.length; at++) {
    if (at > from && (at === rest.length || start[rest[at]] >= until)) {
      stack(from, at, ground);
      ground += stays;
      [stays, from] = [0, at];
    }
    if (at === rest.length) break;
    if (end[rest[at]] >= forever) stays += block[rest[at]];
    else until = max(until, end[rest[at]]);
  }
  return y;
}

/** Stacks one part from 0 up: calm, or tight if that is clearly lower. */
function stackBest(items: Lifetimes, rest: Uint32Array, forever: number, looks: number): Float64Array {
  const { start, end, block } = items;
  // A part may fall apart further once what lives to its own end is set aside: a recording of several runs. Not if
  // something of it stays for good: later parts stand upon that, so it has to be at the bottom.
  if (rest.length > MANY && looks > 0 && rest.every((i) => end[i] < forever)) {
    const past = start[rest[rest.length - 1]] + 1;
    let until = 0;
    const apart = rest.some((i) => {
      const cut = until > 0 && start[i] >= until;
      if (end[i] < past) until = max(until, end[i]);
      return cut;
    });
    if (apart) return stackParts(items, rest, past, looks - 1);
  }
  const calm = stack(items, rest, forever, CALM);
  if (rest.length > SECOND_TRY) return calm;
  const top = (y: Float64Array): number => y.reduce((most, low, at) => max(most, low + block[rest[at]]), 0);
  const height = top(calm);
  if (height <= peakOf(items, rest) * 1.1) return calm;
  const tight = stack(items, rest, forever, TIGHT);
  return top(tight) < height ? tight : calm;
}

/** The most bytes that allocations of `some` hold at once. */
function peakOf({ start, end, block }: Lifetimes, some: Uint32Array): number {
  const ends = some.slice().sort((a, b) => end[a] - end[b]);
  let [now, peak, ended] = [0, 0, 0];
  for (const i of some) {
    for (; end[ends[ended]] <= start[i]; ended++) now -= block[ends[ended]];
    peak = max(peak, (now += block[i]));
  }
  return peak;
}

/** 256 times the binary logarithm, straight lines between the powers of two: the same on every machine. */
function log2(value: number): number {
  const whole = value < 2 ** 32 ? 31 - Math.clz32(value | 0 || 1) : 63 - Math.clz32(value / 2 ** 32);
  return whole * 256 + Math.floor((max(1, value) / 2 ** whole - 1) * 256);
}

/** Stacks `rest` from 0 up; a lifetime counts `weight` times as much as a size. */
function stack({ start, end, block }: Lifetimes, rest: Uint32Array, forever: number, weight: number): Float64Array {
  const n = rest.length;
  const y = new Float64Array(n);
  const starts = Uint32Array.from(rest, (i) => start[i]);
  const sky = new Sky(n);
  // Key and position of birth in one number, the greatest key first: it stays below 2^53.
  const order = new Float64Array(n);
  let [ordered, base, largest] = [0, 0, 0];
  for (let at = 0; at < n; at++) {
    const i = rest[at];
    if (end[i] >= forever) {
      y[at] = base;
      sky.set(at, (base += block[i]));
    } else {
      order[ordered++] = (0xffff - weight * log2(end[i] - start[i]) - log2(block[i])) * 2 ** 32 + at;
      largest = max(largest, block[i]);
    }
  }
  const caves = new Caves(n, max(base, largest) / CAVE_SHARE);
  const closed: Cave[] = [];
  for (const key of order.subarray(0, ordered).sort()) {
    const at = key % 2 ** 32;
    const i = rest[at];
    const to = lowerBound(starts, end[i]);
    const found = caves.lowest(at, to, block[i]);
    if (found) fill(found, at, to, (y[at] = caves.low), block[i], closed);
    else sky.place(at, to, (y[at] = sky.highest(at, to)), block[i], closed);
    for (const cave of closed.splice(0)) caves.add(cave);
  }
  return y;
}

/**
 * Room between a floor and a ceiling, over the births [start, end). The floor is runs of constant height: the first
 * birth, the height, and so on for each run.
 */
interface Cave {
  start: number;
  end: number;
  ceiling: number;
  floor: number[];
  /** From the lowest floor to the ceiling. */
  room: number;
  /** The cave before it at the same node. */
  next: Cave | null;
}

/** The position in `floor` of the run that contains the birth `at`. */
function runOf(floor: number[], at: number): number {
  let [low, high] = [0, floor.length / 2];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (floor[2 * middle] <= at) low = middle;
    else high = middle;
  }
  return 2 * low;
}

/** Puts a rectangle into a cave; the valleys that it closes from above become caves in `closed`. */
function fill(cave: Cave, from: number, to: number, low: number, block: number, closed: Cave[]): void {
  const { floor } = cave;
  const first = runOf(floor, from);
  let past = first;
  while (past < floor.length && floor[past] < to) past += 2;
  const under = floor.slice(first, past);
  const own = [from, low + block];
  if (to < cave.end && floor[past] !== to) own.push(to, under[under.length - 1]);
  floor.splice(first + (under[0] < from ? 2 : 0), past - first - (under[0] < from ? 2 : 0), ...own);
  under[0] = from;
  close(under, to, low, closed);
  if (floor.length <= 16) cave.room = cave.ceiling - lowestOf(floor);
}

function close(under: number[], to: number, low: number, closed: Cave[]): void {
  for (let at = 0; at < under.length; ) {
    let past = at;
    while (past < under.length && under[past + 1] < low) past += 2;
    if (past > at) {
      const floor = under.slice(at, past);
      closed.push({ start: floor[0], end: under[past] ?? to, ceiling: low, floor, room: low - lowestOf(floor), next: null });
    }
    at = max(past, at + 2);
  }
}

function lowestOf(floor: number[]): number {
  let least = Infinity;
  for (let at = 1; at < floor.length; at += 2) least = min(least, floor[at]);
  return least;
}

/** The top of all that stands so far: runs of constant height, found by a set of their first births. */
class Sky {
  /** A bit for each birth that begins a run, a bit for each word with any of them, and so on. */
  private readonly levels: Uint32Array[] = [];
  private readonly heights: Float64Array;

  constructor(private readonly n: number) {
    this.heights = new Float64Array(n + 1);
    let words = n;
    do this.levels.push(new Uint32Array((words = (words >>> 5) + 1)));
    while (words > 1);
    this.set(0, 0);
  }

  /** A run begins at `at`. */
  set(at: number, height: number): void {
    this.heights[at] = height;
    for (const level of this.levels) {
      level[at >>> 5] |= 1 << (at & 31);
      at >>>= 5;
    }
  }

  private remove(at: number): void {
    for (const level of this.levels) {
      if ((level[at >>> 5] &= ~(1 << (at & 31))) !== 0) return;
      at >>>= 5;
    }
  }

  /** The first birth of the run over `at`. The first run begins at 0, so there is one. */
  private before(at: number): number {
    const { levels } = this;
    for (let l = 0; at >= 0; l++, at = (at >>> 5) - 1) {
      const word = levels[l][at >>> 5] & (-1 >>> (31 - (at & 31)));
      if (word === 0) continue;
      for (at = (at & ~31) | (31 - Math.clz32(word)); l-- > 0; ) at = (at << 5) | (31 - Math.clz32(levels[l][at]));
      return at;
    }
    return 0;
  }

  /** The first run that begins at `at` or later; past the end if there is none. */
  private after(at: number): number {
    const { levels } = this;
    for (let l = 0; l < levels.length && at >>> 5 < levels[l].length; l++, at = (at >>> 5) + 1) {
      let word = levels[l][at >>> 5] & (-1 << (at & 31));
      if (word === 0) continue;
      for (at = (at & ~31) | lowBit(word); l-- > 0; ) at = (at << 5) | lowBit((word = levels[l][at]));
      return at;
    }
    return Infinity;
  }

  highest(from: number, to: number): number {
    let most = this.heights[this.before(from)];
    for (let at = this.after(from + 1); at < to; at = this.after(at + 1)) most = max(most, this.heights[at]);
    return most;
  }

  place(from: number, to: number, low: number, block: number, closed: Cave[]): void {
    const { heights } = this;
    const under = [from, heights[this.before(from)]];
    let at = this.after(from + 1);
    for (; at < to; at = this.after(at + 1)) {
      under.push(at, heights[at]);
      this.remove(at);
    }
    this.set(from, low + block);
    if (to < this.n && at !== to) this.set(to, under[under.length - 1]);
    close(under, to, low, closed);
  }
}

const lowBit = (word: number): number => 31 - Math.clz32(word & -word);

/** All caves, found by births that they contain: a tree over births. A cave is kept at the smallest node over it. */
class Caves {
  /** The newest cave of each node. */
  private readonly heads: (Cave | null)[];
  private readonly size: number;
  private readonly worth: number;
  private readonly looks: number;
  /** The lowest place in the cave that was found last. */
  low = 0;

  constructor(births: number, worth: number) {
    this.size = 2 ** Math.ceil(Math.log2(max(1, births)));
    this.heads = new Array<Cave | null>(2 * this.size).fill(null);
    this.worth = max(1, worth);
    this.looks = CAVES_IN_ALL[births > SECOND_TRY ? 1 : 0];
  }

  /** The smallest node over [from, to): the births' numbers agree above their highest differing bit. */
  private node(from: number, to: number): number {
    const [first, last] = [from + this.size, to - 1 + this.size];
    return first >>> (32 - Math.clz32(first ^ last));
  }

  add(cave: Cave): void {
    if (cave.room < this.worth) return;
    const node = this.node(cave.start, cave.end);
    cave.next = this.heads[node];
    this.heads[node] = cave;
  }

  /** The cave with the lowest place for `block` over [from, to). Full caves on the way are forgotten. */
  lowest(from: number, to: number, block: number): Cave | null {
    let best: Cave | null = null;
    let low = Infinity;
    // A place for a thin one matters little.
    const most = block < this.worth * 4 ? CAVES_PER_NODE / 4 : CAVES_PER_NODE;
    let left = this.looks;
    for (let node = this.node(from, to); node > 0 && left > 0; node >>>= 1) {
      let before: Cave | null = null;
      let here = min(most, left);
      left -= here;
      for (let cave = this.heads[node]; cave && here > 0; cave = cave.next) {
        if (cave.room < this.worth) {
          if (before) before.next = cave.next;
          else this.heads[node] = cave.next;
          continue;
        }
        here--;
        before = cave;
        if (cave.start > from || to > cave.end || block > cave.room) continue;
        const { floor } = cave;
        const limit = min(cave.ceiling - block, low);
        let highest = 0;
        for (let at = runOf(floor, from); at < floor.length && floor[at] < to && highest <= limit; at += 2) highest = max(highest, floor[at + 1]);
        if (highest <= limit && highest < low) [best, low] = [cave, highest];
      }
      left += here;
    }
    this.low = low;
    return best;
  }
}
