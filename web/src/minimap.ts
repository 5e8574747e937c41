// The whole run in a strip: the view is a window that can be dragged, stretched at its edges, or moved by keys.

import { max, min, round } from "./math";
import type { App } from "./app";
import { h, onceAFrame, Surface, upright } from "./dom";
import { tracePath } from "./line";
import { LEFT } from "./plot";
import { percent } from "./format";

const EDGE = 7;

export class Minimap {
  readonly element: HTMLElement;
  private readonly surface: Surface;
  private readonly schedule = onceAFrame(() => this.draw());
  private drag: { part: "left" | "right" | "window"; at: number; x0: number; x1: number } | null = null;

  constructor(private readonly app: App) {
    const canvas = h("canvas.minimap", { tabIndex: 0, role: "slider", "aria-label": "Part of the run in sight", "aria-valuemin": "0", "aria-valuemax": "100" });
    this.element = canvas;
    this.surface = new Surface(canvas, () => this.schedule());
    app.on(["device", "detail", "view", "theme", "cursor", "span"], () => this.schedule());
    const x = (event: PointerEvent) => event.clientX - canvas.getBoundingClientRect().left;
    canvas.addEventListener("pointerdown", (event) => {
      const [a, b] = this.window();
      const at = x(event);
      const { x0, x1 } = app.view;
      if (at < a - EDGE || at > b + EDGE) {
        const centre = this.value(at);
        app.setView({ ...app.view, x0: centre - (x1 - x0) / 2, x1: centre + (x1 - x0) / 2 });
      }
      const wide = b - a > 4 * EDGE;
      const part = wide && Math.abs(at - a) < EDGE ? "left" : wide && Math.abs(at - b) < EDGE ? "right" : "window";
      this.drag = { part, at: this.value(at), x0: app.view.x0, x1: app.view.x1 };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const drag = this.drag;
      const at = x(event);
      const [a, b] = this.window();
      const edge = b - a > 4 * EDGE && (Math.abs(at - a) < EDGE || Math.abs(at - b) < EDGE);
      canvas.style["cursor"] = drag ? (drag.part === "window" ? "grabbing" : "ew-resize") : edge ? "ew-resize" : "grab";
      if (!drag) return;
      const by = this.value(at) - drag.at;
      const [x0, x1] = [drag.x0 + (drag.part === "right" ? 0 : by), drag.x1 + (drag.part === "left" ? 0 : by)];
      if (x1 > x0) app.setView({ ...app.view, x0, x1 });
    });
    canvas.addEventListener("pointerup", () => (this.drag = null));
    canvas.addEventListener("dblclick", () => app.reset());
  }

  private window(): [number, number] {
    const { view, whole } = this.app;
    const scale = (this.surface.width - LEFT) / (whole.x1 - whole.x0);
    return [LEFT + (view.x0 - whole.x0) * scale, LEFT + (view.x1 - whole.x0) * scale];
  }

  private value(px: number): number {
    const { whole } = this.app;
    return whole.x0 + ((px - LEFT) / (this.surface.width - LEFT)) * (whole.x1 - whole.x0);
  }

  draw(): void {
    this.surface.measure();
    const { app, surface } = this;
    const { device, theme, whole, view } = app;
    if (!device || surface.width === 0) return;
    const c = surface.begin();
    const { width, height } = surface;
    const wide = width - LEFT;
    const top = max(device.active.peak, device.reserved?.peak ?? 0, 1) * 1.05;
    const px = (x: number) => LEFT + ((x - whole.x0) / (whole.x1 - whole.x0)) * wide;
    const py = (y: number) => height - 1 - (y / top) * (height - 3);
    const path = tracePath(app, device.active, LEFT, wide, (p) => this.value(p), px, py);
    const area = new Path2D(path);
    area.lineTo(LEFT + wide, height);
    area.lineTo(LEFT, height);
    c.fillStyle = theme.active;
    c.globalAlpha = 0.18;
    c.fill(area);
    c.globalAlpha = 1;
    c.lineWidth = 1;
    c.strokeStyle = theme.active;
    c.stroke(path);
    if (device.reserved) {
      c.strokeStyle = theme.reserved;
      c.stroke(tracePath(app, device.reserved, LEFT, wide, (p) => this.value(p), px, py));
    }
    if (app.span) {
      const [from, to] = app.span.map((tick) => px(app.xAt(tick)));
      c.fillStyle = theme.accent;
      c.globalAlpha = 0.25;
      c.fillRect(from, 0, max(2, to - from), height);
      c.globalAlpha = 1;
    }
    const [a, b] = this.window();
    c.fillStyle = theme.surface;
    c.globalAlpha = 0.7;
    c.fillRect(LEFT, 0, a - LEFT, height);
    c.fillRect(b, 0, LEFT + wide - b, height);
    c.globalAlpha = 1;
    c.strokeStyle = theme.accent;
    c.lineWidth = 1.5;
    c.beginPath();
    c.roundRect(max(LEFT, a) + 0.75, 0.75, max(3, min(b, width) - max(a, LEFT) - 1.5), height - 1.5, 4);
    c.stroke();
    upright(c, px(app.xAt(app.cursor)), 0, height, theme.accent);
    const share = (view.x1 - view.x0) / (whole.x1 - whole.x0);
    const at = (view.x0 - whole.x0) / (whole.x1 - whole.x0);
    this.element.setAttribute("aria-valuenow", String(round((at + share / 2) * 100)));
    this.element.setAttribute("aria-valuetext", `${percent(share)} of the run, from ${percent(at)}`);
  }
}
