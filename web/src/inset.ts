// The neighbourhood of the peak, magnified: shown if the peak is too narrow to be seen in the timeline.

import { max, min } from "./math";
import type { App, View } from "./app";
import { h, onceAFrame, Surface, upright } from "./dom";
import { bytes, counted } from "./format";
import type { Plot } from "./plot";
import { columnTicks, drawStacked, peakSpan } from "./stacked";

/** A peak that is wider on the screen needs no magnifier. */
const NARROW = 24;

export class PeakInset {
  readonly element: HTMLElement;
  private readonly surface: Surface;
  private readonly caption = h("span.inset-caption", null);
  private readonly schedule = onceAFrame(() => this.draw());

  constructor(private readonly app: App, private readonly plot: Plot) {
    const canvas = h("canvas.inset-picture", { "aria-hidden": "true" });
    this.surface = new Surface(canvas, () => this.schedule());
    this.element = h("button", { class: "inset", hidden: true, title: "Zoom to the peak (P)", onclick: () => app.zoomToPeak() }, h("span.inset-head", null, h("b", null, "The peak, magnified"), h("kbd", null, "P")), canvas, this.caption);
    app.on(["device", "detail", "view", "marks", "theme", "mode"], () => this.schedule());
  }

  draw(): void {
    const { app, surface } = this;
    const { device } = app;
    if (!device || app.moving) return;
    const narrow = !device.rects.y && device.active.peak > 0 && this.plot.peakWidth < NARROW;
    if (this.element.hidden === narrow) {
      this.element.hidden = !narrow;
      surface.measure();
    }
    if (!narrow || surface.width === 0) return;
    const [from, to, at] = peakSpan(device, 0.9);
    const pad = max(8, to - from);
    const [first, past] = [max(0, from - pad), min(device.forever, to + pad)];
    const top = max(device.active.range(first, past)[1], 1);
    const view: View = { x0: app.xAt(first), x1: app.xAt(past), y0: 0, y1: top * 1.1 };
    const c = surface.canvas.getContext("2d", { alpha: false, willReadFrequently: true })!;
    const ticks = columnTicks(app, view, surface.canvas.width);
    drawStacked(app, c, view, ticks);
    c.setTransform(surface.ratio, 0, 0, surface.ratio, 0, 0);
    upright(c, ((app.xAt(at) + app.xAt(at + 1)) / 2 - view.x0) / (view.x1 - view.x0) * surface.width, 0, surface.height, app.theme.accent);
    this.caption.textContent = `${bytes((device.allocated ?? device.active).peak)}; within 10 % of it for ${counted(to - from, "event")}`;
  }
}
