// The side panel: the instant of the pin, and the selected allocation with its whole stack.

import type { App } from "./app";
import { factList, facts, instant, title, when } from "./describe";
import { fill, h } from "./dom";
import { bytes, counted, shortPath } from "./format";

export class Panel {
  readonly element = h("aside.panel", { "aria-label": "Selection" });
  private readonly now = h("div.now", null);
  private readonly chosen = h("div.chosen", null);

  constructor(private readonly app: App) {
    this.element.append(this.now, this.chosen);
    app.on(["device", "detail", "cursor"], () => this.drawNow());
    app.on(["device", "detail", "select", "theme", "marks"], () => this.drawChosen());
  }

  private drawNow(): void {
    if (!this.app.device) return;
    fill(this.now, h("h3", null, "Instant"), h("p.when", null, when(this.app, this.app.cursor)), factList(instant(this.app, this.app.cursor)));
  }

  private drawChosen(): void {
    const { app } = this;
    const i = app.selected;
    if (!app.device || i < 0 || i >= app.device.n) {
      fill(
        this.chosen,
        h("h3", null, "Selection"),
        h("p.hint", null, "Click a rectangle to keep it here. Drag pans, the wheel zooms, shift-drag zooms into a box; ", h("kbd", null, "?"), " lists all keys."),
      );
      return;
    }
    const { rects } = app.device;
    const stack = rects.stack[i];
    const frames = app.stacks?.frames(stack) ?? [];
    const named = app.stacks?.name(stack);
    fill(
      this.chosen,
      h("div.chosen-head", null, h("h3", null, "Selection"), h("button", { class: "quiet", "aria-label": "Clear the selection", onclick: () => app.select(-1) }, "×")),
      h("p.chosen-title", null, h("i.swatch", { style: `background:${app.colorOf(i)}` }), h("b", { id: "chosen-bytes" }, bytes(rects.block[i])), " ", title(app, i)),
      h(
        "div",
        { class: "actions" },
        h("button", { onclick: () => app.zoomTo(i) }, "Zoom to it"),
        h("button", { onclick: () => app.setCursor(rects.start[i]) }, "Go to its birth"),
      ),
      factList(facts(app, i)),
      frames.length > 0 ? this.siblings(stack) : null,
      frames.length > 0
        ? h("div", null, h("h4", null, "Stack, innermost first"), h("ol.stack", null, frames.map((f) => h("li", { class: f === named ? "named" : undefined }, h("b", null, f.name || "?"), h("span", { title: f.file }, `${shortPath(f.file)}${f.line ? `:${f.line}` : ""}`)))))
        : h("p.hint", null, "No stack was recorded for it. Record with ", h("code", null, 'stacks="python"'), " to see where it comes from."),
    );
  }

  private siblings(stack: number): HTMLElement {
    const { app } = this;
    const { rects } = app.device!;
    let [all, sum, now, held] = [0, 0, 0, 0];
    for (let k = 0; k < rects.n; k++) {
      if (rects.stack[k] !== stack) continue;
      all++;
      sum += rects.block[k];
      if (rects.start[k] <= app.cursor && app.cursor < rects.end[k]) {
        now++;
        held += rects.block[k];
      }
    }
    const lit = app.litStack === stack;
    return h(
      "div",
      { class: "siblings" },
      h("h4", null, "Same stack"),
      h("p", { id: "siblings" }, `${counted(all, "allocation")}, ${bytes(sum)} in all; ${counted(now, "allocation")}, ${bytes(held)} at the instant`),
      h("div.actions", null, h("button", { "aria-pressed": String(lit), onclick: () => app.light(lit ? {} : { stack }) }, lit ? "Show everything" : "Light them up")),
    );
  }
}
