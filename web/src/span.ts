// The selected interval of the run in words: the bytes that lived and were allocated in it. The flame graph and the
// holders are of the interval while there is one.

import type { App } from "./app";
import { eventText } from "./describe";
import { fill, h } from "./dom";
import { bytes, counted, duration } from "./format";
import { term } from "./glossary";

export class SpanBar {
  readonly element = h("div.span-bar", { id: "interval", "aria-live": "polite", hidden: true });

  constructor(private readonly app: App) {
    app.on(["device", "detail", "span"], () => this.draw());
  }

  private draw(): void {
    const { app, element } = this;
    const { device, span } = app;
    element.hidden = !device || !span;
    if (!device || !span) return;
    const [from, to] = span;
    let [lived, held, born, made] = [0, 0, 0, 0];
    device.alive(from, to, (i) => {
      lived++;
      held += device.rects.block[i];
      if (device.rects.start[i] < from) return;
      born++;
      made += device.rects.block[i];
    });
    const [a, b] = [device.timeAt(from), device.timeAt(to - 1)];
    const step = device.stepAt(from);
    const highest = device.active.range(from, to)[1];
    fill(
      element,
      h("span", null, term("Interval", "interval"), ` ${eventText(from)} to ${eventText(to - 1)}`, step >= 0 && step === device.stepAt(to - 1) ? ` of step ${step}` : "", a !== null && b !== null ? `, ${duration(b - a)}` : ""),
      h("span", null, "highest ", h("b", null, bytes(highest))),
      h("span", { id: "interval-lived" }, term("live in it", "live in the interval"), " ", h("b", null, bytes(held)), ` in ${counted(lived, "block")}`),
      h("span", { id: "interval-born" }, term("allocated in it"), " ", h("b", null, bytes(made)), ` in ${counted(born, "block")}`),
      h("span.spacer", null),
      h("button", { onclick: () => app.setView({ ...app.whole, x0: app.xAt(from), x1: app.xAt(to) }) }, "Zoom to it"),
      h("button", { "aria-label": "Clear the interval", onclick: () => app.setSpan(null) }, "Clear"),
    );
  }
}
