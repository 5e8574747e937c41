// The stacked view: at every instant the allocations that are alive stand on each other in order of birth, so the top
// of the stack is what is active then, exactly.
//
// Each column of pixels shows one tick: the one of the most active bytes within the column, so that no spike is lost.
// Blocks born later lie above, hence a block only ever moves down, when one below it ends. This gives its outline
// without a walk over the columns.

import { max, min, round, floor, ceil, lowerBound } from "./math";
import type { App, View } from "./app";
import type { Device } from "./device";
import { seamColor } from "./render";

/** The tick that each of `width` columns shows. */
export function columnTicks(app: App, view: View, width: number): Uint32Array {
  const device = app.device!;
  const ticks = new Uint32Array(width);
  const scale = (view.x1 - view.x0) / width;
  let from = app.tickAt(view.x0);
  for (let x = 0; x < width; x++) {
    const to = app.tickAt(view.x0 + (x + 1) * scale - 1e-9);
    ticks[x] = to > from ? device.active.highest(from, to + 1) : to;
    // The tick in which the next column begins may be shared: it belongs to both.
    from = max(from, to);
  }
  return ticks;
}

/**
 * Walks the columns in order of time with the list of what is alive and shown: `see(column, past, alive, n)` for each
 * run of columns that show one tick.
 */
function walk(app: App, ticks: Uint32Array, see: (column: number, past: number, alive: Uint32Array, n: number) => void): void {
  const device = app.device!;
  const { start, end } = device.rects;
  const { marks } = app;
  let alive = new Uint32Array(1024);
  let n = 0;
  const add = (i: number) => {
    if (marks[i] === 0) return;
    if (n === alive.length) {
      const larger = new Uint32Array(n * 2);
      larger.set(alive);
      alive = larger;
    }
    alive[n++] = i;
  };
  if (ticks.length === 0) return;
  device.alive(ticks[0], ticks[0] + 1, add);
  let born = lowerBound(start, ticks[0] + 1, device.n);
  for (let x = 0; x < ticks.length; ) {
    const tick = ticks[x];
    let past = x + 1;
    while (past < ticks.length && ticks[past] === tick) past++;
    if (x > 0) {
      let kept = 0;
      for (let k = 0; k < n; k++) if (end[alive[k]] > tick) alive[kept++] = alive[k];
      n = kept;
      for (; born < device.n && start[born] <= tick; born++) if (end[born] > tick) add(born);
    }
    see(x, past, alive, n);
    x = past;
  }
}

/** Draws the stack of `view` into the canvas, one device pixel a column. */
export function drawStacked(app: App, context: CanvasRenderingContext2D, view: View, ticks: Uint32Array): void {
  const { width, height } = context.canvas;
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const [br, bg, bb] = app.theme.back;
  pixels.fill(((255 << 24) | (bb << 16) | (bg << 8) | br) >>> 0);
  const { block, start } = app.device!.rects;
  const { colors } = app;
  const scale = height / (view.y1 - view.y0);
  const hair = max(1, round(window.devicePixelRatio || 1));
  if (colors.length === app.device!.n) {
    walk(app, ticks, (x, past, alive, n) => {
      const wide = past - x;
      let low = 0;
      for (let k = 0; k < n && low < view.y1; k++) {
        const i = alive[k];
        const bottom = (low - view.y0) * scale;
        low += block[i];
        let top = (low - view.y0) * scale;
        if (top < 0) continue;
        // A match of a search is at least a pixel high: it must be seen.
        if (colors[i] >>> 24 === 254) top = max(top, bottom + 1);
        // Rows from the top: row r has its centre at height - r - 0.5.
        const first = max(0, ceil(height - top - 0.5));
        const last = min(height, ceil(height - bottom - 0.5));
        if (first >= last) continue;
        const color = (colors[i] | 0xff000000) >>> 0;
        const tall = top - bottom >= 3 * hair;
        const seam = tall ? seamColor(color, br, bg, bb) : color;
        // If a tick is wide enough, a visible edge marks a birth.
        const edge = tall && wide > 5 * hair && start[i] === ticks[x] ? hair : 0;
        for (let row = first; row < last; row++) {
          const at = row * width;
          const top = tall && row < first + hair && first > 0;
          if (wide === 1) pixels[at + x] = top ? seam : color;
          else {
            pixels.fill(top ? seam : color, at + x, at + past);
            if (edge) pixels.fill(seam, at + x, at + x + edge);
          }
        }
      }
    });
  }
  context.putImageData(image, 0, 0);
}

/** The allocations alive and shown at a tick, each with its lower edge, in order of birth. */
export function stackAt(app: App, tick: number): [i: number, low: number][] {
  const out: [number, number][] = [];
  let low = 0;
  app.device!.alive(tick, tick + 1, (i) => {
    if (app.marks[i] === 0) return;
    out.push([i, low]);
    low += app.device!.rects.block[i];
  });
  return out;
}

/** The allocation at height `y` of the stack of a tick; -1 above it. */
export function pickStacked(app: App, tick: number, y: number): number {
  const { block } = app.device!.rects;
  for (const [i, low] of stackAt(app, tick)) if (y >= low && y < low + block[i]) return i;
  return -1;
}

/** The lower edge of allocation `i` at any tick of its life. */
export function lowerEdge(app: App, i: number): (tick: number) => number {
  const device = app.device!;
  const { start, end, block } = device.rects;
  const below: number[] = [];
  device.alive(start[i], start[i] + 1, (k) => {
    if (k < i && app.marks[k] !== 0) below.push(k);
  });
  below.sort((a, b) => end[a] - end[b]);
  const ends = below.map((k) => end[k]);
  // held[k]: the bytes of all but the first k to end.
  const held = new Float64Array(below.length + 1);
  for (let k = below.length - 1; k >= 0; k--) held[k] = held[k + 1] + block[below[k]];
  return (tick) => held[lowerBound(ends, tick + 1)];
}

/** The picture of the stack: exact at rest, and scaled from the last exact one while the view moves. */
export class StackedPicture {
  ticks: Uint32Array = new Uint32Array(0);
  private view: View | null = null;
  private cost = 0;
  private readonly kept = document.createElement("canvas");

  constructor(private readonly app: App, private readonly canvas: HTMLCanvasElement) {}

  draw(moving: boolean): void {
    const { app, canvas } = this;
    const context = canvas.getContext("2d", { alpha: false, willReadFrequently: true })!;
    const { width, height } = canvas;
    const quick = this.cost < 14;
    if (moving && !quick && this.view && this.kept.width === width && this.kept.height === height) {
      const [old, now] = [this.view, app.view];
      const [sx, sy] = [width / (now.x1 - now.x0), height / (now.y1 - now.y0)];
      const [r, g, b] = app.theme.back;
      context.fillStyle = `rgb(${r} ${g} ${b})`;
      context.fillRect(0, 0, width, height);
      context.imageSmoothingEnabled = false;
      context.drawImage(this.kept, (old.x0 - now.x0) * sx, (now.y1 - old.y1) * sy, (old.x1 - old.x0) * sx, (old.y1 - old.y0) * sy);
      return;
    }
    const began = performance.now();
    this.ticks = columnTicks(app, app.view, width);
    drawStacked(app, context, app.view, this.ticks);
    this.cost = performance.now() - began;
    if (!quick || this.cost >= 14) {
      this.kept.width = width;
      this.kept.height = height;
      this.kept.getContext("2d")!.drawImage(canvas, 0, 0);
      this.view = { ...app.view };
    }
  }

  /** The tick shown `px` device pixels from the left. */
  tickAt(px: number): number {
    return this.ticks[min(this.ticks.length - 1, max(0, floor(px)))] ?? 0;
  }
}

/** The ticks around the peak during which at least `share` of it is active. */
export function peakSpan(device: Device, share: number): [from: number, to: number, at: number] {
  const curve = device.allocated ?? device.active;
  const at = curve.peakAt;
  const least = curve.peak * share;
  let from = at;
  let to = at + 1;
  while (from > 0 && curve.at[from - 1] >= least) from--;
  while (to <= device.lastTick && curve.at[to] >= least) to++;
  return [from, to, at];
}
