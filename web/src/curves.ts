// Reserved, active and allocated as lines on one axis, in step with the timeline. The shaded part is reserved and not
// in use.

import { max, min, round } from "./math";
import type { App } from "./app";
import { h, onceAFrame, Surface, upright } from "./dom";
import { term } from "./glossary";
import { axisBytes, axisTicks, bytes } from "./format";
import { tracePath } from "./line";
import { LEFT } from "./plot";

export class Curves {
  readonly element: HTMLElement;
  private readonly surface: Surface;
  private readonly said = h("output.curve-values", { "aria-live": "off" });
  private readonly schedule = onceAFrame(() => this.draw());
  private hover = -1;

  constructor(private readonly app: App) {
    const canvas = h("canvas.curves", { role: "img", "aria-label": "Reserved, active and allocated bytes over the part of the run in sight" });
    this.surface = new Surface(canvas, () => this.schedule());
    this.element = h("div", null, this.said, canvas);
    app.on(["device", "detail", "view", "theme", "cursor"], () => this.schedule());
    canvas.addEventListener("pointermove", (event) => {
      this.hover = event.clientX - canvas.getBoundingClientRect().left;
      this.schedule();
    });
    canvas.addEventListener("pointerleave", () => {
      this.hover = -1;
      this.schedule();
    });
    canvas.addEventListener("click", () => {
      if (this.hover >= LEFT) app.setCursor(app.tickAt(this.value(this.hover)));
    });
  }

  private value(px: number): number {
    const { x0, x1 } = this.app.view;
    return x0 + ((px - LEFT) / (this.surface.width - LEFT)) * (x1 - x0);
  }

  draw(): void {
    this.surface.measure();
    const { app, surface } = this;
    const { device, theme, view } = app;
    if (!device || surface.width === 0) return;
    const c = surface.begin();
    const { width, height } = surface;
    const wide = width - LEFT;
    const [first, last] = [app.tickAt(view.x0), app.tickAt(view.x1) + 1];
    const top = max((device.reserved ?? device.active).range(first, last)[1], 1) * 1.08;
    const px = (x: number) => LEFT + ((x - view.x0) / (view.x1 - view.x0)) * wide;
    const py = (y: number) => height - 1 - (y / top) * (height - 4);
    c.font = `11px ${theme.font}`;
    c.textAlign = "right";
    c.textBaseline = "middle";
    const ticks = axisTicks(0, top, height / 40, true);
    for (const y of ticks) {
      const at = round(py(y)) + 0.5;
      c.fillStyle = theme.grid;
      c.fillRect(LEFT, at, wide, 1);
      c.fillStyle = theme.muted;
      c.fillText(axisBytes(y, ticks[1] ?? top), LEFT - 10, min(at, height - 6));
    }
    c.save();
    c.beginPath();
    c.rect(LEFT, 0, wide, height);
    c.clip();
    const line = (curve: typeof device.active) => tracePath(app, curve, LEFT, wide, (p) => this.value(p), px, py);
    const active = line(device.active);
    const under = (path: Path2D) => {
      const area = new Path2D(path);
      area.lineTo(LEFT + wide, height);
      area.lineTo(LEFT, height);
      return area;
    };
    if (device.reserved) {
      const reserved = line(device.reserved);
      c.fillStyle = theme.reserved;
      c.globalAlpha = 0.14;
      c.fill(under(reserved));
      c.globalAlpha = 1;
      c.strokeStyle = theme.reserved;
      c.lineWidth = 1.5;
      c.stroke(reserved);
    }
    c.fillStyle = theme.surface;
    c.fill(under(active));
    c.fillStyle = theme.active;
    c.globalAlpha = 0.12;
    c.fill(under(active));
    c.globalAlpha = 1;
    c.strokeStyle = theme.active;
    c.lineWidth = 1.5;
    c.stroke(active);
    if (device.allocated) {
      c.strokeStyle = theme.allocated;
      c.lineWidth = 1;
      c.setLineDash([3, 2]);
      c.stroke(line(device.allocated));
      c.setLineDash([]);
    }
    const shown = this.hover >= LEFT ? app.tickAt(this.value(this.hover)) : app.cursor;
    upright(c, this.hover >= LEFT ? this.hover : px(app.xAt(app.cursor)), 0, height, theme.accent);
    c.restore();
    const part = (name: string, color: string, value: number | undefined) =>
      value === undefined ? null : h("span", null, h("i.swatch.line", { style: `background:${color}` }), term(name), " ", h("b", null, bytes(value)));
    this.said.replaceChildren(
      ...[
        part("reserved", theme.reserved, device.reserved?.at[shown]),
        part("active", theme.active, device.active.at[shown]),
        part("allocated", theme.allocated, device.allocated?.at[shown]),
      ].filter((x) => x !== null),
    );
  }
}
