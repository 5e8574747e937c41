// One device: its columns, and the questions that the page asks of them.

import { max, min, round, floor, ceil, lowerBound } from "./math";
import { pack } from "./packing";
import { Origin, type Detail, type Frame, type Rects, type Tables } from "./payload";
import { Modules } from "./modules";
import { Scopes } from "./scopes";
import { Curve } from "./curve";
import { modulePath, shortPath } from "./format";

/**
 * Rows of the tree that finds the allocations alive at a tick: the greatest end of each 16 rows, of each 16 of those,
 * and so on.
 */
const FAN = 16;

export class Device {
  readonly n: number;
  readonly lastTick: number;
  readonly forever: number;
  readonly active: Curve;
  detail: Detail | null = null;
  allocated: Curve | null = null;
  reserved: Curve | null = null;
  /** Microseconds at each tick, and one past the end; null without a clock. */
  timeX: Float64Array | null = null;
  /** Read once it is asked for, after the second section is there. */
  private scoped: Scopes | null = null;
  private named: Modules | null = null;
  private places: { y: Float64Array; height: number } | null = null;
  private readonly latestEnds: Uint32Array[] = [];
  private byAddress: Uint32Array | null = null;

  constructor(readonly rects: Rects) {
    this.n = rects.n;
    this.lastTick = rects.lastTick;
    this.forever = rects.lastTick + 1;
    this.active = Curve.of(this.forever, (add) => {
      for (let i = 0; i < this.n; i++) {
        add(rects.start[i], rects.block[i]);
        add(rects.end[i], -rects.block[i]);
      }
    });
    let below: Uint32Array = rects.end;
    while (below.length > FAN) {
      const level = new Uint32Array(ceil(below.length / FAN));
      for (let i = 0; i < below.length; i++) {
        const at = (i / FAN) | 0;
        if (below[i] > level[at]) level[at] = below[i];
      }
      this.latestEnds.push(level);
      below = level;
    }
  }

  /**
   * The packed picture: the lower edge of each allocation, and the upper edge of the highest. A plan gives the edges;
   * else they are found when they are first asked for, which takes a second or two for half a million allocations.
   */
  get packed(): { y: Float64Array; height: number } {
    if (this.places) return this.places;
    const y = this.rects.y ?? pack(this.rects);
    let height = 0;
    for (let i = 0; i < this.n; i++) height = max(height, y[i] + this.rects.block[i]);
    return (this.places = { y, height });
  }

  /** Takes in the second section; curves and the clock are there afterwards. */
  complete(detail: Detail): void {
    const { rects } = this;
    this.detail = detail;
    this.allocated = Curve.of(this.forever, (add) => {
      for (let i = 0; i < this.n; i++) {
        add(rects.start[i], rects.block[i]);
        add(detail.freed[i], -rects.block[i]);
      }
    });
    const spans = detail.segments;
    if (spans.n > 0) {
      this.reserved = Curve.of(this.forever, (add) => {
        for (let i = 0; i < spans.n; i++) {
          add(spans.start[i], spans.size[i]);
          add(spans.end[i], -spans.size[i]);
        }
      });
    }
    if (detail.time) {
      const x = new Float64Array(this.forever + 1);
      x.set(detail.time);
      const last = detail.time[this.lastTick];
      // The last state has no end; a sliver of width keeps it visible.
      x[this.forever] = last + max(1, last * 0.004);
      this.timeX = last > 0 ? x : null;
    }
  }

  /** Calls `see` for every allocation alive at some tick of [from, to), in order of birth. */
  alive(from: number, to: number, see: (i: number) => void): void {
    const { start, end } = this.rects;
    const born = lowerBound(start, to, this.n);
    const levels = this.latestEnds;
    const walk = (level: number, at: number): void => {
      if (level < 0) {
        const last = min(born, (at + 1) * FAN);
        for (let i = at * FAN; i < last; i++) if (end[i] > from) see(i);
        return;
      }
      const rows = levels[level];
      const last = min(rows.length, (at + 1) * FAN);
      const size = FAN ** (level + 1);
      for (let i = at * FAN; i < last && i * size < born; i++) if (rows[i] > from) walk(level - 1, i);
    };
    walk(levels.length - 1, 0);
  }

  aliveAt(tick: number): number[] {
    const found: number[] = [];
    this.alive(tick, tick + 1, (i) => found.push(i));
    return found;
  }

  /** The allocation drawn at (tick, y), or one within `reach` ticks of it; -1 if there is none. */
  pick(tick: number, y: number, reach: number, shown: (i: number) => boolean): number {
    const { start, end, block } = this.rects;
    const low = this.packed.y;
    let best = -1;
    let distance = Infinity;
    this.alive(max(0, floor(tick - reach)), floor(tick + reach) + 1, (i) => {
      if (low[i] > y || low[i] + block[i] <= y || !shown(i)) return;
      const away = tick < start[i] ? start[i] - tick : tick >= end[i] ? tick - end[i] + 1 : 0;
      if (away < distance) {
        distance = away;
        best = i;
      }
    });
    return best;
  }

  get modules(): Modules {
    return this.detail ? (this.named ??= new Modules(this.detail)) : new Modules(null);
  }

  get scopes(): Scopes {
    return this.detail ? (this.scoped ??= new Scopes(this)) : new Scopes(this);
  }

  timeAt(tick: number): number | null {
    return this.timeX ? this.timeX[min(tick, this.lastTick)] : null;
  }

  address(i: number): string {
    return this.detail ? this.hex(this.detail.addr[i]) : "";
  }

  hex(offset: number): string {
    return hex(this.detail?.base ?? 0n, offset);
  }

  /** The segment that allocation `i` lay in when it was born, -1 if none is known. */
  segmentOf(i: number): number {
    const { detail, rects } = this;
    if (!detail) return -1;
    const { n, addr, size, start, end } = detail.segments;
    this.byAddress ??= Uint32Array.from({ length: n }, (_, s) => s).sort((a, b) => addr[a] - addr[b]);
    const order = this.byAddress;
    let [low, high] = [0, n];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (addr[order[middle]] <= detail.addr[i]) low = middle + 1;
      else high = middle;
    }
    // Segments of one place follow each other in time: the one that was there then is near.
    for (let at = low - 1, looks = 0; at >= 0 && looks < 64; at--, looks++) {
      const s = order[at];
      if (detail.addr[i] < addr[s] + size[s] && start[s] <= rects.start[i] && rects.start[i] < end[s]) return s;
    }
    return -1;
  }

  stepAt(tick: number): number {
    return this.detail?.steps.findIndex(([from, to]) => from <= tick && tick < to) ?? -1;
  }
}

export const hex = (base: bigint, offset: number): string => "0x" + (base + BigInt(round(offset))).toString(16);

/** Answers about stacks: how one is called, its module, and which of them a search finds. */
export class StackBook {
  /** For each stack the innermost frame of the user or of a library, -1 for none. */
  readonly namedBy: Int32Array;
  readonly modules: string[];
  /** For each stack its module's number. */
  readonly moduleOf: Uint32Array;

  constructor(readonly tables: Tables) {
    const { stacks, frames } = tables;
    this.namedBy = new Int32Array(stacks.length).fill(-1);
    this.moduleOf = new Uint32Array(stacks.length);
    const numbers = new Map<string, number>([["", 0]]);
    stacks.forEach((stack, s) => {
      if (stack.length === 0) return;
      const named = stack.find((f) => frames[f].origin <= Origin.Library) ?? stack.find((f) => frames[f].origin === Origin.Internal) ?? stack[0];
      this.namedBy[s] = named;
      const module = modulePath(frames[named].file);
      if (!numbers.has(module)) numbers.set(module, numbers.size);
      this.moduleOf[s] = numbers.get(module)!;
    });
    this.modules = [...numbers.keys()];
  }

  get any(): boolean {
    return this.tables.stacks.length > 1;
  }

  frames(stack: number): Frame[] {
    return Array.from(this.tables.stacks[stack] ?? [], (f) => this.tables.frames[f]);
  }

  name(stack: number): Frame | null {
    const named = this.namedBy[stack] ?? -1;
    return named < 0 ? null : this.tables.frames[named];
  }

  label(stack: number): string {
    return this.tables.labels[stack] ?? "";
  }

  /** Which stacks have `text` in their label or in a frame, as the page writes frames or in full. */
  containing(text: string): Uint8Array {
    const wanted = text.toLowerCase();
    const has = (where: string) => where.toLowerCase().includes(wanted);
    // As the panel, the flame graph and the tooltip write a frame.
    const frame = this.tables.frames.map((f) => has(`${f.file}:${f.line} ${f.name}`) || has(`${f.name} ${shortPath(f.file)}:${f.line}`));
    const modules = this.modules.map((module) => module !== "" && has(module));
    return Uint8Array.from(this.tables.stacks, (stack, s) => ((has(this.label(s)) && s > 0) || modules[this.moduleOf[s]] || stack.some((f) => frame[f]) ? 1 : 0));
  }

  /** The stack with exactly these frames, -1 if there is none. */
  find(frames: { name?: string; file?: string; line?: number }[]): number {
    return this.tables.stacks.findIndex(
      (stack) =>
        stack.length === frames.length &&
        stack.length > 0 &&
        stack.every((f, k) => {
          const own = this.tables.frames[f];
          return own.name === (frames[k].name ?? "") && own.file === (frames[k].file ?? "") && own.line === (frames[k].line ?? 0);
        }),
    );
  }
}
