// The timeline: rectangles below, axes, ruler, curves and marks above, and all that a pointer or a key does to them.

import { max, min, round, floor, lowerBound } from "./math";
import type { App, View } from "./app";
import { css, type Rgb } from "./colors";
import type { Curve } from "./curve";
import { h, life, onceAFrame, Surface, upright } from "./dom";
import { axisBytes, axisTicks, axisTime, bytes, count } from "./format";
import { tracePath } from "./line";
import { CanvasRenderer, GlRenderer, type Renderer } from "./render";
import { lowerEdge, peakSpan, pickStacked, StackedPicture } from "./stacked";
import { tooltip } from "./describe";

/** Room for the labels around the rectangles, in CSS pixels. */
export const LEFT = 70;
const BOTTOM = 24;
const LANE = 20;

export class Plot {
  readonly element: HTMLElement;
  renderer: Renderer | null = null;
  private rects: Surface | null = null;
  private readonly over: Surface;
  private readonly tip = h("div.tip", { role: "tooltip", hidden: true });
  private canvas: HTMLCanvasElement;
  private readonly stack: Surface;
  private readonly stacked: StackedPicture;
  private top = 0;
  private dirty = { boxes: false, colors: false, rects: false };
  private readonly next = onceAFrame(() => this.frame());
  private pointer: { x: number; y: number } | null = null;
  private drag: { x: number; y: number; view: View; what: "span" | "box" | "pan"; moved: boolean } | null = null;
  private lastWheelElsewhere = 0;
  firstPicture: (() => void) | null = null;

  constructor(private readonly app: App, private readonly wanted: string | undefined) {
    const canvas = h("canvas.rects", { "aria-hidden": "true", hidden: true });
    const stack = h("canvas.rects.stacked", { "aria-hidden": "true" });
    const over = h("canvas.over", { "aria-hidden": "true" });
    this.element = h(
      "div",
      { class: "plot", tabIndex: 0, role: "application", "aria-label": "Timeline of allocations. Arrow keys pan, plus and minus zoom, 0 resets, brackets select an interval, P zooms to the peak, N goes to the next match, question mark lists all keys." },
      canvas,
      stack,
      over,
      this.tip,
    );
    this.canvas = canvas;
    this.stacked = new StackedPicture(app, stack);
    this.stack = new Surface(stack, () => this.schedule({ rects: true }));
    this.over = new Surface(over, () => this.schedule({ rects: true }));
    app.on(["device"], () => this.schedule({ boxes: true, colors: true }));
    app.on(["detail"], () => this.schedule({ boxes: true, colors: true }));
    app.on(["mode"], () => this.schedule({ boxes: true, colors: true }));
    app.on(["marks"], () => this.schedule({ colors: true }));
    app.on(["view", "theme"], () => this.schedule({ rects: true }));
    app.on(["hover", "select", "cursor", "span"], () => this.schedule({}));
    this.listen();
  }

  private schedule(what: { boxes?: boolean; colors?: boolean; rects?: boolean }): void {
    this.dirty.boxes ||= !!what.boxes;
    this.dirty.colors ||= !!what.colors;
    this.dirty.rects ||= !!(what.boxes || what.colors || what.rects);
    this.next();
  }

  private frame(): void {
    const { app, dirty } = this;
    if (!app.device) return;
    const packed = app.mode === "packed";
    const switched = this.canvas.hidden === packed;
    this.canvas.hidden = !packed;
    this.stack.canvas.hidden = packed;
    if (switched) (packed ? this.rects : this.stack)?.measure();
    this.layout();
    if (packed) {
      this.renderer ??= this.prepare();
      if (dirty.boxes) this.renderer.load(app.device, (tick) => app.xAt(tick));
      if (dirty.colors || dirty.boxes) this.renderer.recolor(app.colors);
      if (dirty.rects) this.renderer.draw(app.view, app.theme.back, app.moving, (x) => app.tickAt(x));
      this.dirty = { boxes: false, colors: false, rects: false };
    } else {
      if (dirty.rects) this.stacked.draw(app.moving);
      // The packed picture learns of new boxes and colours once it is shown.
      dirty.rects = false;
    }
    this.overlay();
    this.firstPicture?.();
    this.firstPicture = null;
  }

  /** Made only now, at its final size: a WebGL canvas that changes its size waits for the GPU each time. */
  private prepare(): Renderer {
    const surface = (canvas: HTMLCanvasElement) => new Surface(canvas, () => this.schedule({ rects: true }));
    this.rects = surface(this.canvas);
    const plain = this.wanted === "canvas";
    const gl = plain ? null : GlRenderer.create(this.canvas, this.wanted === "webgl2");
    if (gl) return gl;
    if (!plain) {
      // A canvas that was asked for WebGL cannot be asked for another context.
      const other = h("canvas.rects", { "aria-hidden": "true" });
      this.canvas.replaceWith(other);
      this.canvas = other;
      this.rects = surface(other);
    }
    return new CanvasRenderer(this.canvas);
  }

  private lanes(): { steps: boolean; depths: number } {
    const lanes = this.app.device?.rects.lanes ?? 0;
    return { steps: lanes % 2 === 1, depths: lanes >> 1 };
  }

  private layout(): void {
    const lanes = this.lanes();
    const top = (lanes.steps ? LANE : 0) + lanes.depths * LANE + 6;
    if (top !== this.top) {
      this.top = top;
      this.element.style.setProperty("--top", `${top}px`);
      this.rects?.measure();
      this.stack.measure();
      this.dirty.rects = true;
    }
  }

  /** Draws all of it now, at the size that it has now: for print. */
  drawNow(): void {
    this.over.measure();
    this.stack.measure();
    this.rects?.measure();
    this.dirty.rects = true;
    this.frame();
  }

  // ---- geometry ----

  /** The width of the ticks around the peak on the screen; 0 if the peak is out of sight. */
  get peakWidth(): number {
    const { app } = this;
    if (!app.device) return 0;
    const [from, to, at] = peakSpan(app.device, 0.9);
    const x = app.xAt(at);
    return x < app.view.x0 || x > app.view.x1 ? 0 : this.px(app.xAt(to)) - this.px(app.xAt(from));
  }

  private get width(): number {
    return max(1, this.over.width - LEFT);
  }
  private get height(): number {
    return max(1, this.over.height - this.top - BOTTOM);
  }
  private px(x: number): number {
    const { x0, x1 } = this.app.view;
    return LEFT + ((x - x0) / (x1 - x0)) * this.width;
  }
  private py(y: number): number {
    const { y0, y1 } = this.app.view;
    return this.top + this.height - ((y - y0) / (y1 - y0)) * this.height;
  }
  private xOf(px: number): number {
    const { x0, x1 } = this.app.view;
    return x0 + ((px - LEFT) / this.width) * (x1 - x0);
  }
  private yOf(py: number): number {
    const { y0, y1 } = this.app.view;
    return y0 + ((this.top + this.height - py) / this.height) * (y1 - y0);
  }

  // ---- what lies above the rectangles ----

  private overlay(): void {
    const { app, top, width, height } = this;
    const { theme, device } = app;
    const c = this.over.begin();
    if (!device) return;
    c.font = `11px ${theme.font}`;
    c.textBaseline = "middle";
    this.axes(c);
    this.ruler(c);
    c.save();
    c.beginPath();
    c.rect(LEFT, top, width, height);
    c.clip();
    if (device.reserved) this.curve(c, device.reserved, theme.reserved, 1.5, []);
    if (device.allocated && device.detail && device.allocated.peak !== device.active.peak) this.curve(c, device.allocated, theme.allocated, 1.25, [3, 2]);
    this.curve(c, device.active, theme.active, 1.5, []);
    this.span(c);
    this.peak(c);
    this.pin(c);
    this.outline(c, app.hovered, theme.ink, 1.25);
    this.outline(c, app.selected, theme.accent, 2.5);
    this.boxOrCross(c);
    c.restore();
  }

  private axes(c: CanvasRenderingContext2D): void {
    const { app, top, width, height } = this;
    const { theme, view } = app;
    const ys = axisTicks(view.y0, view.y1, max(2, height / 56), true);
    const stepY = ys.length > 1 ? ys[1] - ys[0] : view.y1 - view.y0;
    c.textAlign = "right";
    for (const y of ys) {
      const at = round(this.py(y)) + 0.5;
      c.strokeStyle = theme.grid;
      c.lineWidth = 1;
      c.beginPath();
      c.moveTo(LEFT, at);
      c.lineTo(LEFT + width, at);
      c.stroke();
      c.fillStyle = theme.muted;
      if (at > top + 4) c.fillText(axisBytes(y, stepY), LEFT - 10, min(at, top + height - 5));
    }
    if (app.mode === "packed") {
      c.save();
      c.translate(10, top + height / 2);
      c.rotate(-Math.PI / 2);
      c.textAlign = "center";
      c.fillStyle = theme.muted;
      c.fillText(app.device!.rects.y ? "offset in the plan" : "address in the packing, not bytes in use", 0, 0);
      c.restore();
    }
    c.textAlign = "center";
    const xs = axisTicks(view.x0, view.x1, max(2, width / 110), false);
    const stepX = xs.length > 1 ? xs[1] - xs[0] : view.x1 - view.x0;
    for (const x of xs) {
      const at = this.px(x);
      const text = app.timed ? axisTime(x, stepX) : count(round(x));
      const half = c.measureText(text).width / 2;
      c.fillStyle = theme.line;
      c.fillRect(round(at), top + height, 1, 4);
      c.fillStyle = theme.muted;
      if (at - half > LEFT - 24 && at + half < LEFT + width) c.fillText(text, at, top + height + 14);
    }
    c.fillStyle = theme.line;
    c.fillRect(LEFT, top + height, width, 1);
  }

  private ruler(c: CanvasRenderingContext2D): void {
    const { app, width } = this;
    const detail = app.device?.detail;
    if (!detail) return;
    const lanes = this.lanes();
    c.save();
    c.beginPath();
    c.rect(LEFT, 0, width, this.top);
    c.clip();
    c.textAlign = "left";
    let lane = 0;
    const cell = (from: number, to: number, text: string, strong: boolean, row: number) => {
      const a = max(LEFT - 2, this.px(from));
      const b = min(LEFT + width + 2, this.px(to));
      if (b < LEFT || a > LEFT + width || b - a < 0.5) return;
      c.fillStyle = strong ? app.theme.grid : "transparent";
      c.strokeStyle = app.theme.line;
      c.lineWidth = 1;
      const box: [number, number, number, number] = [round(a) + 0.5, row * LANE + 1.5, max(1, round(b - a) - 1), LANE - 3];
      c.beginPath();
      c.roundRect(...box, min(3, box[2] / 2));
      c.fill();
      c.stroke();
      const room = b - max(a, LEFT) - 10;
      if (room > 8) {
        c.fillStyle = strong ? app.theme.ink : app.theme.muted;
        const short = clip(c, text, room);
        if (short) c.fillText(short, max(a, LEFT) + 6, row * LANE + LANE / 2 + 0.5);
      }
    };
    if (lanes.steps) {
      detail.steps.forEach(([from, to], i) => cell(app.xAt(from), app.xAt(to), this.px(app.xAt(to)) - this.px(app.xAt(from)) > 60 ? `step ${i}` : `${i}`, true, 0));
      lane = 1;
    }
    for (const scope of lanes.depths ? detail.scopes : []) {
      if (scope.depth >= lanes.depths) continue;
      const [from, to] = app.timed ? [scope.start, scope.end] : [this.tickOfTime(scope.start), this.tickOfTime(scope.end)];
      cell(from, to, scope.name, false, lane + scope.depth);
    }
    c.restore();
    c.textAlign = "right";
    c.fillStyle = app.theme.muted;
    if (lanes.steps) c.fillText("steps", LEFT - 10, LANE / 2);
    if (lanes.depths) c.fillText("scopes", LEFT - 10, lane * LANE + LANE / 2);
  }

  private tickOfTime(us: number): number {
    const x = this.app.device!.timeX;
    return x ? max(0, lowerBound(x, us)) : 0;
  }

  private curve(c: CanvasRenderingContext2D, curve: Curve, color: string, weight: number, dash: number[]): void {
    // Of each pixel the highest value: the rectangles below show the rest.
    const path = tracePath(this.app, curve, LEFT, this.width, (x) => this.xOf(x), (x) => this.px(x), (y) => this.py(y), true);
    // If it swings from pixel to pixel, a bold line would be a band over the rectangles that it measures.
    const dense = this.app.tickAt(this.xOf(LEFT + this.width)) - this.app.tickAt(this.xOf(LEFT)) > this.width * 4;
    c.setLineDash([]);
    c.lineJoin = "round";
    if (!dense) {
      c.strokeStyle = css(this.app.theme.back as Rgb);
      c.globalAlpha = 0.75;
      c.lineWidth = weight + 2;
      c.stroke(path);
    }
    c.globalAlpha = 1;
    c.setLineDash(dash);
    c.strokeStyle = color;
    c.lineWidth = dense ? 0.75 : weight;
    c.stroke(path);
    c.setLineDash([]);
  }

  private peak(c: CanvasRenderingContext2D): void {
    const { app, top } = this;
    const curve = app.device!.allocated ?? app.device!.active;
    const x = round(this.px(app.xAt(curve.peakAt))) + 0.5;
    if (x < LEFT || x > LEFT + this.width) return;
    const y = this.py(curve.peak);
    c.fillStyle = app.theme.ink;
    c.beginPath();
    c.arc(x, y, 3.5, 0, 7);
    c.fill();
    this.tag(c, `peak ${bytes(curve.peak)}`, x, max(top + 10, y - 14));
  }

  private tag(c: CanvasRenderingContext2D, text: string, x: number, y: number): void {
    const wide = c.measureText(text).width + 12;
    const left = min(LEFT + this.width - wide - 2, max(LEFT + 2, x - wide / 2));
    c.fillStyle = this.app.theme.ink;
    c.beginPath();
    c.roundRect(left, y - 9, wide, 18, 4);
    c.fill();
    c.fillStyle = css(this.app.theme.back as Rgb);
    c.textAlign = "left";
    c.fillText(text, left + 6, y + 0.5);
  }

  private pin(c: CanvasRenderingContext2D): void {
    const { app, top, height } = this;
    upright(c, round(this.px(app.xAt(app.cursor))) + 0.5, top, top + height, app.theme.accent);
  }

  /** The interval: all beside it is paler. */
  private span(c: CanvasRenderingContext2D): void {
    const { app, top, height, width, drag, pointer } = this;
    const drawn = drag?.what === "span" && drag.moved && pointer ? this.spanOf(drag.x, pointer.x) : app.span;
    if (!drawn) return;
    const [a, b] = drawn.map((tick) => min(LEFT + width + 2, max(LEFT - 2, this.px(app.xAt(tick)))));
    c.fillStyle = css(app.theme.back as Rgb);
    c.globalAlpha = 0.6;
    c.fillRect(LEFT, top, a - LEFT, height);
    c.fillRect(b, top, LEFT + width - b, height);
    c.globalAlpha = 1;
    c.fillStyle = app.theme.accent;
    c.fillRect(round(a) - 1, top, 2, height);
    c.fillRect(round(b) - 1, top, 2, height);
  }

  /** The ticks between two places of the pointer. */
  private spanOf(xa: number, xb: number): [number, number] {
    const { app } = this;
    const [a, b] = [min(xa, xb), max(xa, xb)].map((px) => app.tickAt(this.xOf(min(LEFT + this.width, max(LEFT, px)))));
    return [a, b + 1];
  }

  private outline(c: CanvasRenderingContext2D, i: number, color: string, weight: number): void {
    if (i < 0) return;
    const { app } = this;
    const { rects } = app.device!;
    const path = new Path2D();
    if (app.mode === "packed") {
      const x = this.px(app.xAt(rects.start[i]));
      const low = app.device!.packed.y[i];
      const y = this.py(low + rects.block[i]);
      path.rect(x, y, max(2, this.px(app.xAt(rects.end[i])) - x), max(2, this.py(low) - y));
    } else this.outlineStacked(path, i);
    c.lineJoin = "round";
    c.strokeStyle = css(app.theme.back as Rgb);
    c.lineWidth = weight + 2;
    c.stroke(path);
    c.strokeStyle = color;
    c.lineWidth = weight;
    c.stroke(path);
  }

  /** Around all columns that show the allocation; it moves down when a block below it ends. */
  private outlineStacked(path: Path2D, i: number): void {
    const { app } = this;
    const { start, end, block } = app.device!.rects;
    const low = lowerEdge(app, i);
    const ratio = this.stack.ratio;
    const { ticks } = this.stacked;
    const first = lowerBound(ticks, start[i]);
    const past = lowerBound(ticks, end[i]);
    if (first >= past) {
      // No column shows a tick of its life, so a line marks its birth.
      const x = this.px(app.xAt(start[i]));
      path.moveTo(x, this.py(low(start[i])));
      path.lineTo(x, this.py(low(start[i]) + block[i]));
      return;
    }
    const edge: [number, number, number][] = [];
    for (let x = first; x < past; ) {
      const y = low(ticks[x]);
      let next = x + 1;
      while (next < past && low(ticks[next]) === y) next++;
      edge.push([LEFT + x / ratio, LEFT + max(x + 2 * ratio, next) / ratio, y]);
      x = next;
    }
    edge.forEach(([a, b, y], k) => {
      if (k === 0) path.moveTo(a, this.py(y));
      path.lineTo(a, this.py(y + block[i]) - 0.5);
      path.lineTo(b, this.py(y + block[i]) - 0.5);
    });
    for (const [a, b, y] of edge.reverse()) {
      path.lineTo(b, this.py(y) + 0.5);
      path.lineTo(a, this.py(y) + 0.5);
    }
    path.closePath();
  }

  private boxOrCross(c: CanvasRenderingContext2D): void {
    const { app, pointer, drag, top, height, width } = this;
    if (!pointer) return;
    if (drag?.what === "box") {
      c.fillStyle = app.theme.accent;
      c.globalAlpha = 0.15;
      c.fillRect(drag.x, drag.y, pointer.x - drag.x, pointer.y - drag.y);
      c.globalAlpha = 1;
      c.strokeStyle = app.theme.accent;
      c.lineWidth = 1;
      c.strokeRect(drag.x, drag.y, pointer.x - drag.x, pointer.y - drag.y);
      return;
    }
    if (drag || pointer.x < LEFT || pointer.y < top || pointer.y > top + height) return;
    c.strokeStyle = app.theme.muted;
    c.globalAlpha = 0.6;
    c.lineWidth = 1;
    c.beginPath();
    c.moveTo(round(pointer.x) + 0.5, top);
    c.lineTo(round(pointer.x) + 0.5, top + height);
    c.moveTo(LEFT, round(pointer.y) + 0.5);
    c.lineTo(LEFT + width, round(pointer.y) + 0.5);
    c.stroke();
    c.globalAlpha = 1;
    const tick = this.tickShown(pointer.x);
    const device = app.device!;
    for (const [curve, color] of [[device.reserved, app.theme.reserved], [device.active, app.theme.active]] as const) {
      if (!curve) continue;
      c.fillStyle = color;
      c.strokeStyle = css(app.theme.back as Rgb);
      c.lineWidth = 1.5;
      c.beginPath();
      c.arc(pointer.x, this.py(curve.at[tick]), 3.5, 0, 7);
      c.fill();
      c.stroke();
    }
  }

  // ---- input ----

  private listen(): void {
    const { app, element } = this;
    const at = (event: MouseEvent) => {
      const box = element.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    window.addEventListener("wheel", (event) => {
      if (!element.contains(event.target as Node)) this.lastWheelElsewhere = event.timeStamp;
    }, { passive: true, signal: life.of.signal });
    element.addEventListener("wheel", (event) => {
      // A page scroll that began elsewhere runs on over the timeline instead of turning into a zoom.
      if (event.timeStamp - this.lastWheelElsewhere < 300) {
        this.lastWheelElsewhere = event.timeStamp;
        return;
      }
      event.preventDefault();
      const p = at(event);
      const unit = event.deltaMode === 1 ? 16 : 1;
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        app.pan(((event.deltaX || event.deltaY) * unit) / this.width, 0);
      } else {
        const factor = Math.exp(max(-200, min(200, event.deltaY * unit)) * 0.0022);
        if (event.altKey) app.zoom(1, factor, undefined, this.yOf(p.y));
        else app.zoom(factor, 1, this.xOf(p.x));
      }
      this.move(p);
    }, { passive: false });
    element.addEventListener("pointerdown", (event) => {
      if (event.button > 1) return;
      const p = at(event);
      this.drag = { ...p, view: { ...app.view }, what: event.shiftKey ? "box" : event.altKey || event.button === 1 ? "pan" : "span", moved: false };
      element.setPointerCapture(event.pointerId);
    });
    element.addEventListener("pointermove", (event) => {
      const p = at(event);
      this.pointer = p;
      const drag = this.drag;
      if (!drag) return this.move(p);
      if (Math.hypot(p.x - drag.x, p.y - drag.y) > 3) drag.moved = true;
      if (drag.moved) {
        this.hideTip();
        if (drag.what === "pan") {
          const dx = ((p.x - drag.x) / this.width) * (drag.view.x1 - drag.view.x0);
          const dy = ((p.y - drag.y) / this.height) * (drag.view.y1 - drag.view.y0);
          app.setView({ x0: drag.view.x0 - dx, x1: drag.view.x1 - dx, y0: drag.view.y0 + dy, y1: drag.view.y1 + dy });
        }
      }
      this.schedule({});
    });
    element.addEventListener("pointerup", (event) => {
      const p = at(event);
      const drag = this.drag;
      this.drag = null;
      if (!drag) return;
      if (drag.moved && drag.what === "span") app.setSpan(this.spanOf(drag.x, p.x));
      else if (drag.moved && drag.what === "box") {
        const [xa, xb] = [this.xOf(drag.x), this.xOf(p.x)];
        const [ya, yb] = [this.yOf(drag.y), this.yOf(p.y)];
        app.setView({ x0: min(xa, xb), x1: max(xa, xb), y0: min(ya, yb), y1: max(ya, yb) });
      } else if (!drag.moved) this.click(p);
      this.schedule({});
    });
    // A swipe that scrolls the page.
    element.addEventListener("pointercancel", () => {
      this.drag = null;
      this.schedule({});
    });
    element.addEventListener("pointerleave", () => {
      this.pointer = null;
      this.hideTip();
      if (app.hovered >= 0) app.hover(-1);
      this.schedule({});
    });
    element.addEventListener("dblclick", () => app.reset());
  }

  private click(p: { x: number; y: number }): void {
    const { app } = this;
    const x = this.xOf(p.x);
    if (p.y < this.top) {
      const step = app.device?.detail?.steps.find(([from, to]) => app.xAt(from) <= x && x < app.xAt(to));
      if (step) {
        const pad = (app.xAt(step[1]) - app.xAt(step[0])) * 0.03;
        app.setView({ ...app.view, x0: app.xAt(step[0]) - pad, x1: app.xAt(step[1]) + pad });
      }
      return;
    }
    app.setCursor(this.tickShown(p.x));
    app.select(this.pickAt(p));
  }

  /** The tick whose state the column at `px` shows. */
  private tickShown(px: number): number {
    const exact = this.app.mode === "stacked" && this.stacked.ticks.length > 0 && !this.app.moving;
    return exact ? this.stacked.tickAt((px - LEFT) * this.stack.ratio) : this.app.tickAt(this.xOf(px));
  }

  private pickAt(p: { x: number; y: number }): number {
    const { app, top, height } = this;
    if (!app.device || p.x < LEFT || p.y < top || p.y >= top + height) return -1;
    if (app.mode === "stacked") return pickStacked(app, this.tickShown(p.x), this.yOf(p.y));
    const tick = app.tickAt(this.xOf(p.x));
    const reach = min(5000, max(0, app.tickAt(this.xOf(p.x + 2)) - tick, tick - app.tickAt(this.xOf(p.x - 2))));
    return app.device.pick(tick, this.yOf(p.y), reach, (i) => app.marks[i] !== 0);
  }

  private move(p: { x: number; y: number }): void {
    this.pointer = p;
    const found = this.pickAt(p);
    if (found !== this.app.hovered) this.app.hover(found);
    this.showTip(p, found);
    this.schedule({});
  }

  private showTip(p: { x: number; y: number }, i: number): void {
    const { app, tip, top, height } = this;
    if (p.x < LEFT || p.y < top || p.y > top + height) return this.hideTip();
    tip.replaceChildren(...tooltip(app, i, this.tickShown(p.x)));
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const right = p.x + 18 + box.width < this.over.width;
    tip.style.left = `${max(4, right ? p.x + 18 : p.x - 18 - box.width)}px`;
    tip.style.top = `${max(4, min(this.over.height - box.height - 4, p.y + 16))}px`;
  }

  private hideTip(): void {
    this.tip.hidden = true;
  }
}

/** As much of `text` as fits, with an ellipsis; empty if not even three letters fit. */
function clip(c: CanvasRenderingContext2D, text: string, room: number): string {
  if (c.measureText(text).width <= room) return text;
  let keep = min(text.length, floor(room / 4));
  while (keep > 0 && c.measureText(text.slice(0, keep) + "…").width > room) keep--;
  return keep >= 3 ? text.slice(0, keep) + "…" : "";
}
