// Reads the sections that crates/gapless-page/src/payload.rs writes; the layout is drawn there.

import { max, min, ceil } from "./math";

export interface Tables {
  strings: string[];
  frames: Frame[];
  /** Innermost frame first; stack 0 is "none recorded". */
  stacks: Uint32Array[];
  /** The name of each stack in the text and in the JSON. */
  labels: string[];
  kinds: string[];
}

export const enum Origin {
  User,
  Library,
  Internal,
  Native,
}

export interface Frame {
  name: string;
  file: string;
  line: number;
  origin: Origin;
}

export interface Rects {
  n: number;
  lastTick: number;
  unit: number;
  /** Rows of the ruler: 1 for steps, and twice the number of lanes of scopes, two at most. */
  lanes: number;
  start: Uint32Array;
  end: Uint32Array;
  requested: Float64Array;
  block: Float64Array;
  /** Offsets of a plan, which are the only true picture then; null if there is no plan. */
  y: Float64Array | null;
  stack: Uint32Array;
  /** 0: not known. */
  kind: Uint8Array;
}

export interface Segments {
  n: number;
  start: Uint32Array;
  end: Uint32Array;
  addr: Float64Array;
  size: Float64Array;
  stream: Uint16Array;
  pool: Uint16Array;
  small: Uint8Array;
  expandable: Uint8Array;
}

export interface Scope {
  start: number;
  end: number;
  depth: number;
  name: string;
}

export interface Detail {
  streams: string[];
  pools: string[];
  base: bigint;
  freed: Uint32Array;
  addr: Float64Array;
  stream: Uint16Array;
  pool: Uint16Array;
  small: Uint8Array;
  segments: Segments;
  /** Microseconds from the first event to each tick; null without a clock. */
  time: Float64Array | null;
  origin: number;
  steps: [number, number][];
  scopes: Scope[];
  /** Notes of the program about its blocks: each text once, and which of them an allocation has. */
  noteTexts: string[];
  notes: Map<number, number[]>;
  /** Requests that failed. */
  ooms: Oom[];
}

export interface Oom {
  tick: number;
  asked: number;
  /** The bytes that the device had free then. */
  deviceFree: number;
  stack: number;
}

const VERSION = 5;

/** The most bytes that a section may inflate to, so that a small file cannot fill the memory. */
const MOST_BYTES = 2 ** 30;
/** Events of a device that a page can draw: each costs some 40 bytes. */
const MOST_TICKS = 2 ** 26;

/** The bytes of a section, inflated, from its text. */
export async function inflate(text: string): Promise<Uint8Array> {
  const stream = new Blob([fromBase64(text) as BlobPart]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const reader = stream.getReader();
  const parts: Uint8Array[] = [];
  let size = 0;
  for (let next = await reader.read(); !next.done; next = await reader.read()) {
    parts.push(next.value);
    if ((size += next.value.length) > MOST_BYTES) throw new Error(`a section is larger than ${MOST_BYTES} bytes`);
  }
  return new Uint8Array(await new Blob(parts as BlobPart[]).arrayBuffer());
}

function fromBase64(text: string): Uint8Array {
  const native = (Uint8Array as unknown as { fromBase64?: (text: string) => Uint8Array }).fromBase64;
  if (native) return native.call(Uint8Array, text);
  const raw = atob(text.trim());
  const out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
  return out;
}

class Reader {
  private at = 0;
  private readonly decoder = new TextDecoder();
  constructor(private readonly data: Uint8Array) {}

  number(): number {
    const data = this.data;
    let byte = data[this.at++];
    if (byte < 128) return byte;
    let value = byte & 127;
    let scale = 128;
    do {
      byte = data[this.at++];
      if (byte === undefined) throw new Error("the report's data is cut short");
      value += (byte & 127) * scale;
      scale *= 128;
    } while (byte >= 128);
    return value;
  }

  signed(): number {
    const value = this.number();
    return value % 2 === 0 ? value / 2 : -(value + 1) / 2;
  }

  /** A number of rows that follow, each of a byte at least. */
  count(): number {
    const rows = this.number();
    if (rows > this.data.length) throw new Error("the report's data is cut short");
    return rows;
  }

  string(): string {
    const length = this.count();
    this.at += length;
    return this.decoder.decode(this.data.subarray(this.at - length, this.at));
  }

  list<T>(read: () => T): T[] {
    return Array.from({ length: this.count() }, read);
  }

  recency<T extends Float64Array | Uint32Array>(into: T): T {
    for (let i = 0; i < into.length; i++) {
      const back = this.number();
      if (back > i) throw new Error("the report's data is damaged");
      into[i] = back === 0 ? this.number() : into[i - back];
    }
    return into;
  }

  runs<T extends Uint8Array | Uint16Array>(into: T): T {
    for (let i = 0; i < into.length; ) {
      const value = this.number();
      const end = i + this.number();
      into.fill(value, i, end);
      i = end > i ? end : into.length;
    }
    return into;
  }
}

export function readTables(data: Uint8Array): Tables {
  const reader = new Reader(data);
  const version = reader.number();
  if (version !== VERSION) throw new Error(`the report's data has layout ${version}, this page reads ${VERSION}`);
  const strings = reader.list(() => reader.string());
  const frames = reader.list(() => ({
    name: strings[reader.number()] ?? "",
    file: strings[reader.number()] ?? "",
    line: reader.number(),
    origin: reader.number(),
  }));
  const stacks: Uint32Array[] = [new Uint32Array(0)];
  const written = reader.count();
  for (let i = 0; i < written; i++) {
    const before = stacks[i];
    const shared = min(reader.number(), before.length);
    const own = reader.count();
    const stack = new Uint32Array(own + shared);
    for (let k = 0; k < own; k++) stack[k] = reader.number();
    stack.set(before.subarray(before.length - shared), own);
    stacks.push(stack);
  }
  const labels = stacks.map((_, i) => (i === 0 ? "" : reader.string()));
  return { strings, frames, stacks, labels, kinds: reader.list(() => reader.string()) };
}

export function readRects(data: Uint8Array): Rects {
  const reader = new Reader(data);
  const n = reader.count();
  const lastTick = reader.number();
  if (lastTick > MOST_TICKS) throw new Error(`it has ${lastTick} events, and a page can draw ${MOST_TICKS}`);
  const unit = reader.number();
  const given = reader.number() === 1;
  const lanes = min(5, reader.number());
  const start = new Uint32Array(n);
  for (let i = 0, at = 0; i < n; i++) start[i] = at += reader.number();
  const end = new Uint32Array(n);
  for (let i = 0; i < n; i++) end[i] = start[i] + reader.number();
  for (let i = 0; i < n; i++) if (end[i] === start[i]) end[i] = lastTick + 1;
  const requested = reader.recency(new Float64Array(n));
  const block = new Float64Array(n);
  for (let i = 0; i < n; i++) block[i] = (ceil(requested[i] / unit) + reader.signed()) * unit;
  const y = given ? reader.recency(new Float64Array(n)) : null;
  if (y && unit !== 1) for (let i = 0; i < n; i++) y[i] *= unit;
  const stack = reader.recency(new Uint32Array(n));
  const kind = reader.runs(new Uint8Array(n));
  return { n, lastTick, unit, lanes, start, end, requested, block, y, stack, kind };
}

export function readDetail(data: Uint8Array, rects: Rects): Detail {
  const { n, lastTick, unit, end } = rects;
  const reader = new Reader(data);
  const streams = reader.list(() => reader.string());
  const pools = reader.list(() => reader.string());
  const base = BigInt("0x" + (reader.string() || "0"));
  const freed = new Uint32Array(n);
  for (let i = 0; i < n; i++) freed[i] = end[i] - reader.number();
  const addr = reader.recency(new Float64Array(n));
  if (unit !== 1) for (let i = 0; i < n; i++) addr[i] *= unit;
  const stream = reader.runs(new Uint16Array(n));
  const pool = reader.runs(new Uint16Array(n));
  const small = reader.runs(new Uint8Array(n));
  const segments = readSegments(reader, lastTick);
  let time: Float64Array | null = null;
  let origin = 0;
  if (reader.number() === 1) {
    origin = Number(reader.string());
    time = new Float64Array(lastTick + 1);
    // Clocks of several threads may step back: a tick is never before the one before it.
    for (let k = 1, at = 0, latest = 0; k <= lastTick; k++) {
      at += reader.signed();
      time[k] = latest = max(latest, at);
    }
  }
  const steps = reader.list((): [number, number] => [reader.number(), reader.number()]);
  let at = 0;
  const scopes = reader.list(() => {
    at += reader.signed();
    return { start: at, end: at + reader.number(), depth: reader.number(), name: reader.string() };
  });
  const noteTexts = reader.list(() => reader.string());
  const notes = new Map<number, number[]>();
  let of = 0;
  reader.list(() => {
    of += reader.number();
    const text = reader.number();
    const known = notes.get(of);
    if (known) known.push(text);
    else notes.set(of, [text]);
  });
  const ooms = reader.list(() => ({ tick: reader.number(), asked: reader.number(), deviceFree: reader.number(), stack: reader.number() }));
  return { streams, pools, base, freed, addr, stream, pool, small, segments, time, origin, steps, scopes, noteTexts, notes, ooms };
}

function readSegments(reader: Reader, lastTick: number): Segments {
  const n = reader.count();
  const all: Segments = {
    n,
    start: new Uint32Array(n),
    end: new Uint32Array(n),
    addr: new Float64Array(n),
    size: new Float64Array(n),
    stream: new Uint16Array(n),
    pool: new Uint16Array(n),
    small: new Uint8Array(n),
    expandable: new Uint8Array(n),
  };
  for (let i = 0, at = 0; i < n; i++) {
    all.start[i] = at += reader.number();
    const life = reader.number();
    all.end[i] = life === 0 ? lastTick + 1 : at + life;
    all.addr[i] = reader.number();
    all.size[i] = reader.number();
    all.stream[i] = reader.number();
    all.pool[i] = reader.number();
    const flags = reader.number();
    all.small[i] = flags & 1;
    all.expandable[i] = (flags >> 1) & 1;
  }
  return all;
}

/** Throws if numbers of the sections do not belong together: a file that was opened may hold anything. */
export function verify(tables: Tables, rects: Rects, detail: Detail): void {
  const { strings, frames, stacks, kinds } = tables;
  const damaged = (what: string): never => {
    throw new Error(`the report's data is damaged: ${what}`);
  };
  if (strings.length === 0 && frames.length > 0) damaged("a frame without a name");
  for (const stack of stacks) for (const frame of stack) if (frame >= frames.length) damaged("a stack of an unknown frame");
  for (let i = 0; i < rects.n; i++) {
    if (rects.stack[i] >= stacks.length) damaged("an allocation of an unknown stack");
    if (rects.kind[i] > kinds.length) damaged("an allocation of an unknown kind");
    if (!(rects.block[i] >= 0 && rects.block[i] <= 2 ** 52 && rects.requested[i] <= 2 ** 52)) damaged("a size that cannot be");
    if (rects.end[i] <= rects.start[i] || rects.end[i] > rects.lastTick + 1) damaged("an allocation that ends before it begins");
  }
  const { stream, pool, streams, pools, noteTexts, segments: spans } = detail;
  for (let i = 0; i < rects.n; i++) if (stream[i] >= streams.length || pool[i] >= pools.length) damaged("an allocation of an unknown stream or pool");
  for (let s = 0; s < spans.n; s++) if (spans.stream[s] >= streams.length || spans.pool[s] >= pools.length || !(spans.size[s] <= 2 ** 52)) damaged("a segment of an unknown stream or pool");
  for (const [i, texts] of detail.notes) if (i >= rects.n || texts.some((text) => text >= noteTexts.length)) damaged("a note of an unknown allocation");
  for (const oom of detail.ooms) if (oom.stack >= stacks.length || oom.tick > rects.lastTick) damaged("a failed request of an unknown stack");
}
