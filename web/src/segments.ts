// The allocator's memory at one instant: every segment with its blocks, live, pending or free, in step with the
// timeline's instant.

import { max, min, ceil } from "./math";
import type { App } from "./app";
import { css, mix, parse, type Rgb } from "./colors";
import { hex } from "./device";
import { h, onceAFrame, Surface } from "./dom";
import { bytes, counted, count, percent } from "./format";
import { when } from "./describe";
import { term } from "./glossary";

const ROW = 20;
const GAP = 5;
const HEAD = 30;
const MOST_ROWS = 9;

interface Piece {
  addr: number;
  size: number;
  /** The allocation, or -1 for a free block. */
  i: number;
}

interface Segment {
  addr: number;
  size: number;
  active: number;
  pieces: Piece[];
}

interface Group {
  title: string;
  segments: Segment[];
  reserved: number;
  active: number;
  pending: number;
  largest: Piece | null;
}

interface Hit {
  x: number;
  y: number;
  w: number;
  piece: Piece;
  segment: Segment;
  group: Group;
}

export class SegmentMap {
  readonly element: HTMLElement;
  private readonly slider = h("input", { type: "range", min: "0", max: "0", step: "1", "aria-label": "Instant, in events" });
  private readonly label = h("output.instant", null);
  private readonly canvas = h("canvas.segments", { role: "img" });
  private readonly info = h("div.segment-info", { "aria-live": "polite" });
  private readonly surface: Surface;
  private hits: Hit[] = [];
  private hovered: Hit | null = null;
  private groups: Group[] = [];
  private groupsAt = -1;
  private readonly next = onceAFrame(() => this.draw());
  private visible = false;
  private fresh = false;

  constructor(private readonly app: App) {
    this.surface = new Surface(this.canvas, () => {
      // A new size clears the canvas.
      this.fresh = false;
      this.schedule();
    });
    const jump = (text: string, label: string, go: () => void) => h("button", { class: "quiet", "aria-label": label, title: label, onclick: go }, text);
    this.element = h(
      "div",
      null,
      h(
        "div",
        { class: "scrub" },
        jump("‹", "One event back", () => app.setCursor(app.cursor - 1)),
        this.slider,
        jump("›", "One event on", () => app.setCursor(app.cursor + 1)),
        jump("Peak allocated", "To the peak of allocated bytes", () => app.setCursor(app.deviceReport.peak_at?.["allocated"]?.tick ?? app.device?.allocated?.peakAt ?? 0)),
        jump("Peak reserved", "To the peak of reserved bytes", () => app.setCursor(app.deviceReport.peak_at?.["reserved"]?.tick ?? app.device?.reserved?.peakAt ?? 0)),
        this.label,
      ),
      h("div.segment-legend", null, ["live", "pending", "free", "largest free"].map((name) => h("span", null, h("i", { class: `block ${name.replace(" ", "-")}` }), term(name)))),
      this.canvas,
      this.info,
    );
    this.slider.addEventListener("input", () => app.setCursor(Number(this.slider.value)));
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.hover(null));
    this.canvas.addEventListener("click", () => {
      if (this.hovered && this.hovered.piece.i >= 0) {
        app.select(this.hovered.piece.i);
        app.reveal(this.hovered.piece.i);
      }
    });
    app.on(["device"], () => (this.groupsAt = -1));
    app.on(["device", "detail", "cursor", "theme", "select", "marks"], () => this.schedule());
    new IntersectionObserver((entries) => {
      this.visible = entries.some((e) => e.isIntersecting);
      if (this.visible) this.schedule();
    }, { rootMargin: "200px" }).observe(this.element);
  }

  private schedule(): void {
    const { app } = this;
    this.slider.max = String(app.device?.lastTick ?? 0);
    this.slider.value = String(app.cursor);
    if (app.device) {
      this.label.textContent = when(app, app.cursor);
      this.slider.setAttribute("aria-valuetext", when(app, app.cursor));
    }
    // Draws once in any case, so that the canvas is never blank; later only in sight.
    if (this.visible || !this.fresh) this.next();
  }

  /** The allocator's segments at the instant, grouped by pool, size class and stream. */
  private collect(): Group[] {
    const device = this.app.device!;
    const detail = device.detail;
    if (!detail) return [];
    const tick = this.app.cursor;
    const { segments: spans } = detail;
    const held: number[] = [];
    for (let s = 0; s < spans.n && spans.start[s] <= tick; s++) if (spans.end[s] > tick) held.push(s);
    held.sort((a, b) => spans.addr[a] - spans.addr[b]);
    const alive = device.aliveAt(tick).sort((a, b) => detail.addr[a] - detail.addr[b]);
    const groups = new Map<string, Group>();
    let next = 0;
    let before: { segment: Segment; key: string; expandable: boolean } | null = null;
    const runs: { segment: Segment; key: string; title: string }[] = [];
    for (const s of held) {
      const key = `${spans.pool[s]}/${spans.small[s]}/${spans.stream[s]}`;
      // Mapped pieces of an expandable segment that touch are one stretch.
      if (before && before.expandable && spans.expandable[s] && before.key === key && before.segment.addr + before.segment.size === spans.addr[s]) {
        before.segment.size += spans.size[s];
        continue;
      }
      const segment: Segment = { addr: spans.addr[s], size: spans.size[s], active: 0, pieces: [] };
      before = { segment, key, expandable: spans.expandable[s] === 1 };
      const pool = detail.pools[spans.pool[s]] ?? "?";
      const name = `${pool === "default" ? "Default pool" : `Pool ${pool}`} · ${spans.small[s] ? "small" : "large"} · stream ${detail.streams[spans.stream[s]] ?? "?"}`;
      runs.push({ segment, key, title: spans.expandable[s] ? `${name} · expandable` : name });
    }
    for (const { segment, key, title } of runs) {
      let group = groups.get(key);
      if (!group) groups.set(key, (group = { title, segments: [], reserved: 0, active: 0, pending: 0, largest: null }));
      const end = segment.addr + segment.size;
      let at = segment.addr;
      const free = (to: number) => {
        if (to <= at) return;
        const piece = { addr: at, size: to - at, i: -1 };
        segment.pieces.push(piece);
        if (!group.largest || piece.size > group.largest.size) group.largest = piece;
      };
      while (next < alive.length && detail.addr[alive[next]] < segment.addr) next++;
      for (; next < alive.length && detail.addr[alive[next]] < end; next++) {
        const i = alive[next];
        free(detail.addr[i]);
        segment.pieces.push({ addr: detail.addr[i], size: device.rects.block[i], i });
        segment.active += device.rects.block[i];
        if (detail.freed[i] <= tick) group.pending += device.rects.block[i];
        at = detail.addr[i] + device.rects.block[i];
      }
      free(end);
      group.segments.push(segment);
      group.reserved += segment.size;
      group.active += segment.active;
    }
    return [...groups.values()].sort((a, b) => b.reserved - a.reserved);
  }

  draw(): void {
    const { app, surface } = this;
    const device = app.device;
    if (!device?.detail) return;
    this.fresh = true;
    if (this.groupsAt !== app.cursor) {
      this.groups = this.collect();
      this.groupsAt = app.cursor;
    }
    const width = max(50, this.canvas.clientWidth);
    // Places first: the height follows from them.
    const places: { group: Group; top: number; boxes: { x: number; y: number; w: number; from: number; segment: Segment; scale: number }[] }[] = [];
    let y = 0;
    for (const group of this.groups) {
      const top = y;
      y += HEAD;
      const gaps = GAP * group.segments.length;
      const rows = min(MOST_ROWS, max(1, ceil(group.segments.length / 12)));
      const widest = max(...group.segments.map((s) => s.size));
      const scale = min(max((rows * width * 0.94 - gaps) / group.reserved, (width * 0.3) / group.reserved), (width * MOST_ROWS) / widest);
      const boxes: (typeof places)[number]["boxes"] = [];
      let x = 0;
      for (const segment of group.segments) {
        const total = max(3, segment.size * scale);
        if (x > 0 && x + total > width) {
          x = 0;
          y += ROW + GAP;
        }
        // A segment wider than a row runs on in the next, as text does.
        for (let done = 0; done < total - 0.01; ) {
          const w = min(total - done, width - x);
          boxes.push({ x, y, w, from: done, segment, scale: total / segment.size });
          done += w;
          if (done < total - 0.01) {
            x = 0;
            y += ROW + GAP;
          } else x += w + GAP;
        }
      }
      y += ROW + GAP + 12;
      places.push({ group, top, boxes });
    }
    const height = max(40, y);
    if (this.canvas.style.height !== `${height}px`) {
      this.canvas.style.height = `${height}px`;
      surface.measure();
    }
    const c = surface.begin();
    this.hits = [];
    const { theme } = app;
    const hatch = pattern(c, theme.muted, theme.dark);
    for (const { group, top, boxes } of places) {
      c.textBaseline = "middle";
      c.font = `600 12px ${theme.font}`;
      c.fillStyle = theme.ink;
      c.textAlign = "left";
      c.fillText(group.title, 0, top + 12);
      const wide = c.measureText(group.title).width;
      c.font = `12px ${theme.font}`;
      c.fillStyle = theme.muted;
      const free = group.reserved - group.active;
      const said = `${bytes(group.reserved)} in ${counted(group.segments.length, "segment")}, ${percent(free / max(1, group.reserved))} free${group.largest ? `, largest free block ${bytes(group.largest.size)}` : ""}`;
      if (wide + 20 + c.measureText(said).width < width) c.fillText(said, wide + 14, top + 12);
      for (const box of boxes) this.segment(c, box, group, hatch);
    }
    if (this.groups.length === 0) {
      c.fillStyle = theme.muted;
      c.font = `13px ${theme.font}`;
      c.fillText(device.detail.segments.n ? "No segments at this instant." : "The source does not record segments.", 0, 20);
    }
    const total = this.groups.reduce((sum, g) => sum + g.segments.length, 0);
    this.canvas.setAttribute("aria-label", `${counted(total, "segment")} at ${when(app, app.cursor)}: ${this.groups.map((g) => `${g.title}, ${bytes(g.reserved)} reserved, ${bytes(g.active)} active`).join("; ")}`);
    this.describe();
  }

  private segment(c: CanvasRenderingContext2D, box: { x: number; y: number; w: number; from: number; segment: Segment; scale: number }, group: Group, hatch: CanvasPattern | string): void {
    const { app } = this;
    const { theme } = app;
    const { x, y, w, from, segment, scale } = box;
    c.save();
    c.beginPath();
    c.roundRect(x, y, w, ROW, 3);
    c.fillStyle = css(theme.back);
    c.fill();
    c.clip();
    c.fillStyle = hatch;
    c.fillRect(x, y, w, ROW);
    const outlines: [Hit, string, number][] = [];
    for (const piece of segment.pieces) {
      const a = (piece.addr - segment.addr) * scale - from;
      const b = a + piece.size * scale;
      if (b <= 0 || a >= w) continue;
      const left = x + max(0, a);
      const wide = min(w, b) - max(0, a);
      const hit: Hit = { x: left, y, w: wide, piece, segment, group };
      this.hits.push(hit);
      if (piece.i >= 0) {
        const color = parse("#" + swap(app.colors[piece.i] || 0x888888));
        const pending = app.device!.detail!.freed[piece.i] <= app.cursor;
        c.fillStyle = css(pending ? mix(color, theme.back, 0.45) : color);
        c.fillRect(left, y, max(0.5, wide), ROW);
        if (pending) {
          c.fillStyle = css(color);
          for (let k = left - ROW; k < left + wide; k += 6) {
            c.save();
            c.beginPath();
            c.rect(left, y, wide, ROW);
            c.clip();
            c.beginPath();
            c.moveTo(k, y + ROW);
            c.lineTo(k + ROW, y);
            c.lineTo(k + ROW + 2, y);
            c.lineTo(k + 2, y + ROW);
            c.fill();
            c.restore();
          }
        }
        if (wide > 3) {
          c.fillStyle = css(theme.back);
          c.fillRect(left + wide - 0.75, y, 0.75, ROW);
        }
        if (piece.i === app.selected) outlines.push([hit, theme.accent, 2.5]);
      } else if (piece === group.largest) outlines.push([hit, theme.reserved, 2]);
      if (this.hovered?.piece.addr === piece.addr && this.hovered.segment.addr === segment.addr) outlines.push([hit, theme.ink, 1.5]);
    }
    c.restore();
    c.strokeStyle = theme.line;
    c.lineWidth = 1;
    c.beginPath();
    c.roundRect(x + 0.5, y + 0.5, max(1, w - 1), ROW - 1, 3);
    c.stroke();
    for (const [hit, color, weight] of outlines) {
      c.strokeStyle = color;
      c.lineWidth = weight;
      c.strokeRect(hit.x + weight / 2, hit.y + weight / 2, max(1, hit.w - weight), ROW - weight);
    }
  }

  private point(event: PointerEvent): void {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    let found: Hit | null = null;
    for (const hit of this.hits) if (y >= hit.y && y < hit.y + ROW && x >= hit.x && x < hit.x + max(hit.w, 2)) found = hit;
    this.hover(found);
  }

  private hover(hit: Hit | null): void {
    if (hit?.piece.addr === this.hovered?.piece.addr) return;
    this.hovered = hit;
    this.canvas.style["cursor"] = hit && hit.piece.i >= 0 ? "pointer" : "default";
    this.app.hover(hit && hit.piece.i >= 0 ? hit.piece.i : -1);
    this.describe();
    this.schedule();
  }

  private describe(): void {
    const { app, hovered } = this;
    const detail = app.device?.detail;
    if (!detail) return;
    if (!hovered) {
      const sum = (f: (g: Group) => number) => this.groups.reduce((all, g) => all + f(g), 0);
      const [reserved, active, pending] = [sum((g) => g.reserved), sum((g) => g.active), sum((g) => g.pending)];
      this.info.textContent = reserved
        ? `${bytes(reserved)} reserved in ${counted(sum((g) => g.segments.length), "segment")}: ${bytes(active - pending)} live, ${bytes(pending)} pending, ${bytes(reserved - active)} free`
        : "";
      return;
    }
    const { piece, segment } = hovered;
    const what = piece.i < 0 ? "Free block" : detail.freed[piece.i] <= app.cursor ? "Pending block" : "Live block";
    this.info.textContent = `${what} of ${bytes(piece.size)} (${count(piece.size)} B) at ${hex(detail.base, piece.addr)}, in the segment of ${bytes(segment.size)} at ${hex(detail.base, segment.addr)}${piece.i >= 0 ? "; click selects it" : ""}`;
  }
}

/** Diagonal lines: free is told by pattern, not by colour alone. */
function pattern(c: CanvasRenderingContext2D, color: string, dark: boolean): CanvasPattern | string {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const t = tile.getContext("2d")!;
  t.strokeStyle = color;
  t.globalAlpha = dark ? 0.4 : 0.35;
  t.lineWidth = 1;
  t.beginPath();
  for (const k of [-6, 0, 6]) {
    t.moveTo(k, 6);
    t.lineTo(k + 6, 0);
  }
  t.stroke();
  return c.createPattern(tile, "repeat") ?? color;
}

/** Packed ABGR to RRGGBB digits. */
function swap(packed: number): string {
  const rgb: Rgb = [packed & 255, (packed >> 8) & 255, (packed >> 16) & 255];
  return rgb.map((v) => v.toString(16).padStart(2, "0")).join("");
}
