// The state of the page. Parts read it, change it through its methods, and listen for what changed.

import { max, min, round, floor, lowerBound } from "./math";
import { css, hash, kindColor, moduleColors, readTheme, sizeColor, streamColor, mix, type Rgb, type Theme } from "./colors";
import type { Device, StackBook } from "./device";
import type { DeviceReport, Holder, Report } from "./report";
import { holderMatcher, matcher } from "./search";
import { lowerEdge, peakSpan } from "./stacked";

export type Axis = "time" | "event";
/** Blocks on each other at every instant, or each at its place in a packing. */
export type Mode = "stacked" | "packed";
export type ColorBy = "kind" | "module" | "size" | "stream";
export type Change = "device" | "detail" | "view" | "mode" | "marks" | "cursor" | "select" | "hover" | "theme" | "span";

/** The part in sight: x in microseconds or ticks, y in bytes. */
export interface View {
  x0: number;
  x1: number;
  y0: number;
  y1: number;
}

/** How an allocation is drawn. */
export const enum Mark {
  Hidden,
  Dim,
  Normal,
  Match,
}

export interface Filter {
  least: number;
  stream: number;
  hiddenKinds: Set<number>;
}

/** A branch of the flame graph. */
export interface Branch {
  text: string;
  has: (i: number) => boolean;
}

export class App {
  device: Device | null = null;
  /** The position among the devices that the page can show; `deviceIndex` is that in the report. */
  viewIndex = 0;
  deviceIndex = 0;
  stacks: StackBook | null = null;
  kinds: string[] = [];
  theme: Theme = readTheme();
  /** Events by default: during most of a run's time memory does not change. */
  axis: Axis = "event";
  mode: Mode = "stacked";
  colorBy: ColorBy = "size";
  view: View = { x0: 0, x1: 1, y0: 0, y1: 1 };
  cursor = 0;
  selected = -1;
  hovered = -1;
  query = "";
  holder: Holder | null = null;
  /** The branch of the flame graph whose allocations are lit up. */
  branch: Branch | null = null;
  /** True: allocations that a search does not find are left out instead of dimmed. */
  only = false;
  /** The selected interval of the run, [from, to) in ticks. */
  span: [number, number] | null = null;
  /** The stack whose allocations are lit up, -1 for none. */
  litStack = -1;
  filter: Filter = { least: 0, stream: -1, hiddenKinds: new Set() };
  marks = new Uint8Array(0);
  colors = new Uint32Array(0);
  /** The highlighted allocations: over the whole run, and those of them that were active at the peak. */
  found = { count: 0, bytes: 0, shown: 0, peakCount: 0, peakBytes: 0 };
  moving = false;
  private readonly listeners: { changes: Change[]; tell: () => void }[] = [];
  private restTimer = 0;

  constructor(public report: Report) {}

  on(changes: Change[], tell: () => void): void {
    this.listeners.push({ changes, tell });
  }

  emit(...changes: Change[]): void {
    for (const l of this.listeners) if (changes.some((c) => l.changes.includes(c))) l.tell();
  }

  get deviceReport(): DeviceReport {
    return this.report.devices?.[this.deviceIndex] ?? {};
  }

  // ---- the axes ----

  get timed(): boolean {
    return this.axis === "time" && !!this.device?.timeX;
  }

  xAt(tick: number): number {
    const x = this.timed ? this.device!.timeX! : null;
    return x ? x[min(tick, x.length - 1)] : tick;
  }

  /** The tick whose state is shown at `x`. */
  tickAt(x: number): number {
    const device = this.device;
    if (!device) return 0;
    const tick = this.timed ? lowerBound(device.timeX!, x + 1e-9) - 1 : floor(x);
    return min(device.lastTick, max(0, tick));
  }

  get whole(): View {
    const device = this.device;
    if (!device) return { x0: 0, x1: 1, y0: 0, y1: 1 };
    const stack = this.mode === "stacked" ? device.active.peak : device.packed.height;
    const top = max(stack, device.reserved?.peak ?? 0, this.deviceReport.peak_reserved ?? 0, 1);
    return { x0: this.xAt(0), x1: this.xAt(device.forever), y0: 0, y1: top * 1.06 };
  }

  // ---- the view ----

  setView(next: View): void {
    const whole = this.whole;
    const fit = (a: number, b: number, low: number, high: number, least: number): [number, number] => {
      const span = min(high - low, max(least, b - a));
      const centre = (a + b) / 2;
      const from = min(high - span, max(low, b - a < span ? centre - span / 2 : a));
      return [from, from + span];
    };
    const [x0, x1] = fit(next.x0, next.x1, whole.x0, whole.x1, this.timed ? 2 : 4);
    const [y0, y1] = fit(next.y0, next.y1, whole.y0, whole.y1, 2048);
    this.view = { x0, x1, y0, y1 };
    this.moving = true;
    clearTimeout(this.restTimer);
    this.restTimer = window.setTimeout(() => {
      this.moving = false;
      this.emit("view");
    }, 140);
    this.emit("view");
  }

  zoom(factorX: number, factorY: number, atX?: number, atY?: number): void {
    const { x0, x1, y0, y1 } = this.view;
    const x = atX ?? (x0 + x1) / 2;
    const y = atY ?? (y0 + y1) / 2;
    this.setView({ x0: x - (x - x0) * factorX, x1: x + (x1 - x) * factorX, y0: y - (y - y0) * factorY, y1: y + (y1 - y) * factorY });
  }

  pan(shareX: number, shareY: number): void {
    const { x0, x1, y0, y1 } = this.view;
    const dx = (x1 - x0) * shareX;
    const dy = (y1 - y0) * shareY;
    this.setView({ x0: x0 + dx, x1: x1 + dx, y0: y0 + dy, y1: y1 + dy });
  }

  reset(): void {
    this.setView(this.whole);
  }

  setAxis(axis: Axis): void {
    const from = this.tickAt(this.view.x0);
    const whole = this.view.x1 >= this.whole.x1 - 1e-6 && this.view.x0 <= this.whole.x0 + 1e-6;
    const to = this.tickAt(this.view.x1) + 1;
    this.axis = axis;
    const x = whole ? this.whole : { x0: this.xAt(from), x1: this.xAt(to) };
    this.emit("detail");
    this.setView({ ...this.view, x0: x.x0, x1: x.x1 });
  }

  setMode(mode: Mode): void {
    if (!this.device || this.device.rects.y || mode === this.mode) return;
    const { y0, y1 } = this.whole;
    const isWhole = this.view.y0 === y0 && this.view.y1 === y1;
    this.mode = mode;
    this.emit("mode");
    // A part of the one picture's height says nothing about the other's.
    this.setView({ ...this.view, y0: this.whole.y0, y1: isWhole || this.view.y1 > this.whole.y1 ? this.whole.y1 : this.view.y1 });
  }

  /** The tick of peak allocated, as the report has it. */
  get peakTick(): number {
    const device = this.device;
    return min(device?.lastTick ?? 0, this.deviceReport.peak_at?.["allocated"]?.tick ?? device?.active.peakAt ?? 0);
  }

  zoomToPeak(): void {
    const device = this.device;
    if (!device) return;
    const [from, to] = peakSpan(device, 0.9);
    const [a, b] = [this.xAt(from), this.xAt(to)];
    const pad = max((b - a) * 1.2, this.timed ? (this.xAt(min(device.forever, to + 12)) - b) : 12);
    this.setCursor(this.peakTick);
    this.setView({ ...this.whole, x0: a - pad, x1: b + pad });
  }

  /** The lower edge of an allocation in the picture, at a tick of its life. */
  lowAt(i: number, tick: number): number {
    return this.mode === "stacked" ? lowerEdge(this, i)(tick) : this.device!.packed.y[i];
  }

  /** Brings an allocation into sight if it is not. */
  reveal(i: number): void {
    const { start, end, block } = this.device!.rects;
    const [a, b] = [this.xAt(start[i]), this.xAt(end[i])];
    const view = { ...this.view };
    const y = this.lowAt(i, start[i]);
    if (a >= view.x1 || b <= view.x0) {
      const span = view.x1 - view.x0;
      view.x0 = (a + b) / 2 - span / 2;
      view.x1 = view.x0 + span;
    }
    if (y >= view.y1 || y + block[i] <= view.y0) {
      const span = view.y1 - view.y0;
      view.y0 = y + block[i] / 2 - span / 2;
      view.y1 = view.y0 + span;
    }
    this.setView(view);
  }

  zoomTo(i: number): void {
    const { start, end, block } = this.device!.rects;
    const [a, b] = [this.xAt(start[i]), this.xAt(end[i])];
    const width = (b - a) * 0.6;
    const height = block[i] * 2;
    this.setView({ x0: a - width, x1: b + width, y0: this.lowAt(i, end[i] - 1) - height, y1: this.lowAt(i, start[i]) + block[i] + height });
  }

  // ---- the instant and the selection ----

  setCursor(tick: number): void {
    const next = min(this.device?.lastTick ?? 0, max(0, round(tick)));
    if (next === this.cursor) return;
    this.cursor = next;
    this.emit("cursor");
  }

  setSpan(span: [number, number] | null): void {
    const last = this.device?.lastTick ?? 0;
    const from = span && min(last, max(0, round(span[0])));
    this.span = span && [from!, min(last + 1, max(from! + 1, round(span[1])))];
    this.emit("span");
  }

  select(i: number): void {
    this.selected = i;
    this.emit("select");
  }

  hover(i: number): void {
    this.hovered = i;
    this.emit("hover");
  }

  // ---- search, filters and colours ----

  search(query: string): void {
    this.query = query;
    this.holder = null;
    this.branch = null;
    this.litStack = -1;
    this.remark();
  }

  light(what: { holder?: Holder | null; stack?: number; branch?: Branch | null }): void {
    this.query = "";
    this.branch = what.branch ?? null;
    this.holder = what.holder ?? null;
    this.litStack = what.stack ?? -1;
    this.remark();
  }

  get searching(): boolean {
    return this.query !== "" || this.holder !== null || this.branch !== null || this.litStack >= 0;
  }

  remark(): void {
    const device = this.device;
    if (!device) return;
    const { rects, detail } = device;
    const { least, stream, hiddenKinds } = this.filter;
    if (this.marks.length !== device.n) this.marks = new Uint8Array(device.n);
    const matches = this.searching ? this.matcher() : null;
    let [count, bytes, shown, peakCount, peakBytes] = [0, 0, 0, 0, 0];
    const peak = this.peakTick;
    for (let i = 0; i < device.n; i++) {
      let mark = Mark.Normal;
      if (rects.block[i] < least || (stream >= 0 && detail && detail.stream[i] !== stream) || hiddenKinds.has(rects.kind[i])) mark = Mark.Hidden;
      else {
        shown++;
        if (matches) {
          if (matches(i)) {
            mark = Mark.Match;
            count++;
            bytes += rects.block[i];
            if (rects.start[i] <= peak && peak < rects.end[i]) {
              peakCount++;
              peakBytes += rects.block[i];
            }
          } else mark = this.only ? Mark.Hidden : Mark.Dim;
        }
      }
      this.marks[i] = mark;
    }
    this.found = { count, bytes, shown, peakCount, peakBytes };
    this.recolor();
  }

  private matcher(): (i: number) => boolean {
    const { rects } = this.device!;
    if (this.branch) return this.branch.has;
    if (this.litStack >= 0) return (i) => rects.stack[i] === this.litStack;
    return this.holder ? holderMatcher(this, this.holder) : matcher(this, this.query);
  }

  /** The allocations that match, by birth; every shown one if nothing is searched. */
  matches(): number[] {
    const wanted = this.searching ? Mark.Match : Mark.Normal;
    const found: number[] = [];
    for (let i = 0; i < this.marks.length; i++) if (this.marks[i] === wanted) found.push(i);
    return found;
  }

  recolor(): void {
    const device = this.device;
    if (!device) return;
    const { rects } = device;
    const key = this.colorKey();
    if (this.colors.length !== device.n) this.colors = new Uint32Array(device.n);
    const palette = this.palette();
    // Neighbours of one colour are told apart by a shade that their birth decides.
    const shades = [0, 0.07, 0.14, 0.21];
    const toward: Rgb = this.theme.dark ? [0, 0, 0] : [255, 255, 255];
    const pack = ([r, g, b]: Rgb, alpha: number) => ((alpha << 24) | (round(b) << 16) | (round(g) << 8) | round(r)) >>> 0;
    const bright = palette.flatMap((c) => shades.map((s) => pack(mix(c, toward, s), 255)));
    const dim = palette.map((c) => pack(mix(c, this.theme.back, this.theme.dark ? 0.8 : 0.84), 255));
    for (let i = 0; i < device.n; i++) {
      const mark = this.marks[i];
      const k = key(i);
      if (mark === Mark.Hidden) this.colors[i] = 0;
      else if (mark === Mark.Dim) this.colors[i] = dim[k];
      else {
        const color = bright[k * 4 + ((Math.imul(i ^ rects.stack[i], 0x9e3779b1) >>> 28) & 3)];
        // Alpha 254 asks the renderer to keep it at least a pixel high: a match must be seen.
        this.colors[i] = mark === Mark.Match ? (color & 0x00ffffff) | (254 << 24) : color;
      }
    }
    this.emit("marks");
  }

  private colorKey(): (i: number) => number {
    const { rects, detail } = this.device!;
    switch (this.colorBy) {
      case "kind":
        return (i) => rects.kind[i];
      case "module": {
        const moduleOf = this.stacks?.moduleOf;
        return (i) => moduleOf?.[rects.stack[i]] ?? 0;
      }
      case "stream":
        return (i) => detail?.stream[i] ?? 0;
      default:
        return (i) => min(40, max(0, floor(Math.log2(rects.block[i] + 1))));
    }
  }

  private palette(): Rgb[] {
    const dark = this.theme.dark;
    switch (this.colorBy) {
      case "kind":
        return [kindColor("unexplained"), ...this.kinds.map(kindColor)];
      case "module":
        return this.moduleColors();
      case "stream":
        return (this.device?.detail?.streams ?? [""]).map((_, i) => streamColor(i));
      default:
        return Array.from({ length: 41 }, (_, log2) => sizeColor(log2, dark));
    }
  }

  private painted: { of: Device; colors: Rgb[] } | null = null;

  /** The modules with the most bytes at the peak choose first. */
  private moduleColors(): Rgb[] {
    const { device, stacks } = this;
    const modules = stacks?.modules ?? [""];
    if (!device || !stacks) return modules.map(() => kindColor("unexplained"));
    if (this.painted?.of !== device) {
      const { block, stack } = device.rects;
      const sums = new Float64Array(modules.length);
      for (const i of device.aliveAt(this.peakTick)) sums[stacks.moduleOf[stack[i]]] += block[i];
      const order = modules.map((_, m) => m).sort((a, b) => sums[b] - sums[a] || hash(modules[a]) - hash(modules[b]));
      const colors = moduleColors(order.map((m) => modules[m]));
      this.painted = { of: device, colors: modules.map((module) => colors.get(module)!) };
    }
    return this.painted.colors;
  }

  /** The colour of one allocation, without shade: for swatches. */
  colorOf(i: number): string {
    return css(this.palette()[this.colorKey()(i)] ?? [128, 128, 128]);
  }

  sizeSwatch(log2: number): string {
    return css(sizeColor(log2, this.theme.dark));
  }

  /** The meanings of the colours: at most `most` entries, the largest first. */
  legend(most: number): { key: number; text: string; color: string; bytes: number }[] {
    const device = this.device;
    if (!device) return [];
    const key = this.colorKey();
    const palette = this.palette();
    const sums = new Float64Array(palette.length);
    for (const i of device.aliveAt(this.peakTick)) sums[key(i)] += device.rects.block[i];
    const seen = new Uint8Array(palette.length);
    for (let i = 0; i < device.n; i++) seen[key(i)] = 1;
    const text = (k: number) => {
      if (this.colorBy === "kind") return k === 0 ? "not known" : this.kinds[k - 1].replaceAll("_", " ");
      if (this.colorBy === "module") return this.stacks?.modules[k] || "no stack";
      if (this.colorBy === "stream") return `stream ${device.detail?.streams[k] ?? k}`;
      return "";
    };
    return palette
      .map((color, k) => ({ key: k, text: text(k), color: css(color), bytes: sums[k] }))
      .filter((entry) => seen[entry.key] === 1)
      .sort((a, b) => b.bytes - a.bytes || hash(a.text) - hash(b.text))
      .slice(0, most);
  }
}
