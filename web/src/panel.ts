// The side panel: the instant of the pin, the lit holder, and the selected allocation with its whole stack.

import { max } from "./math";
import type { App } from "./app";
import { factList, facts, foundText, instant, title, when, whyNoStack } from "./describe";
import { fill, h } from "./dom";
import { bytes, counted, shortPath } from "./format";
import { term } from "./glossary";
import { moduleIn } from "./modules";
import { Origin, type Frame } from "./payload";
import type { Holder } from "./report";

/** Runs of more frames of torch and C++ than this fold. */
const FOLD = 3;

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
    fill(this.now, h("h3", null, term("Instant")), h("p.when", null, when(this.app, this.app.cursor)), factList(instant(this.app, this.app.cursor)));
  }

  private drawChosen(): void {
    const { app } = this;
    const i = app.selected;
    const lit = this.lit();
    if (!app.device || i < 0 || i >= app.device.n) {
      fill(
        this.chosen,
        lit,
        h("h3", null, "Selection"),
        h("p.hint", null, "Click a rectangle to keep it here. Drag selects an interval, the wheel zooms, shift-drag zooms into a box; ", h("kbd", null, "?"), " lists all keys."),
      );
      return;
    }
    const { rects } = app.device;
    const stack = rects.stack[i];
    const frames = app.stacks?.frames(stack) ?? [];
    const why = whyNoStack(app, i);
    fill(
      this.chosen,
      lit,
      h("div.chosen-head", null, h("h3", null, lit ? "The largest of them" : "Selection"), h("button", { class: "quiet", "aria-label": "Clear the selection", onclick: () => app.select(-1) }, "×")),
      h("p.chosen-title", null, h("i.swatch", { style: `background:${app.colorOf(i)}` }), h("b", { id: "chosen-bytes" }, bytes(rects.block[i])), " ", title(app, i)),
      h(
        "div",
        { class: "actions" },
        h("button", { onclick: () => app.zoomTo(i) }, "Zoom to it"),
        h("button", { onclick: () => app.setCursor(rects.start[i]) }, "Go to its birth"),
      ),
      factList(facts(app, i)),
      frames.length > 0 ? this.siblings(stack) : null,
      why ? h("p.hint", { id: "no-stack" }, `${frames.length ? "" : "No stack: "}${why}.`) : null,
      frames.length > 0 ? h("div", null, h("h4", null, "Stack, innermost first"), this.stack(frames, app.stacks?.name(stack) ?? null)) : null,
    );
  }

  /** The lit holder as a part of the report: the figure that was clicked comes first. */
  private lit(): HTMLElement | null {
    const { holder } = this.app;
    if (!holder) return null;
    const module = moduleOf(holder);
    return h("div.lit", null, h("h3", null, `Holder ${holder.rank ?? ""}`), h("p.chosen-title", null, h("b", { id: "lit-bytes" }, bytes(holder.bytes ?? 0)), " ", holder.label ?? ""), module ? h("p", null, term("module"), ` ${module}`) : null, h("p.hint", { id: "lit-found" }, foundText(this.app)));
  }

  private stack(frames: Frame[], named: Frame | null): HTMLElement {
    const row = (f: Frame) => h("li", { class: f === named ? "named" : undefined }, h("b", null, f.name || "?"), " ", h("span", { title: f.file }, `${shortPath(f.file)}${f.line ? `:${f.line}` : ""}`));
    const rows: HTMLElement[] = [];
    for (let from = 0; from < frames.length; ) {
      let past = from;
      while (past < frames.length && frames[past].origin >= Origin.Internal && frames[past] !== named) past++;
      if (past - from > FOLD) rows.push(h("li", null, h("details", null, h("summary", null, `${past - from} frames of torch and C++`), h("ol.stack", null, frames.slice(from, past).map(row)))));
      else rows.push(...frames.slice(from, (past = max(past, from + 1))).map(row));
      from = past;
    }
    return h("ol.stack", null, rows);
  }

  private siblings(stack: number): HTMLElement {
    const { app } = this;
    const { rects } = app.device!;
    const peak = app.peakTick;
    let [all, sum, now, held, most, mostBytes] = [0, 0, 0, 0, 0, 0];
    for (let k = 0; k < rects.n; k++) {
      if (rects.stack[k] !== stack) continue;
      all++;
      sum += rects.block[k];
      if (rects.start[k] <= app.cursor && app.cursor < rects.end[k]) {
        now++;
        held += rects.block[k];
      }
      if (rects.start[k] <= peak && peak < rects.end[k]) {
        most++;
        mostBytes += rects.block[k];
      }
    }
    const lit = app.litStack === stack;
    return h(
      "div",
      { class: "siblings" },
      h("h4", null, "Same stack"),
      h("p", { id: "siblings" }, `${bytes(mostBytes)} at the peak in ${counted(most, "block")}; ${bytes(held)} at the instant in ${counted(now, "block")}; over the whole run ${counted(all, "allocation")}, ${bytes(sum)} in turn`),
      h("div.actions", null, h("button", { "aria-pressed": String(lit), onclick: () => app.light(lit ? {} : { stack }) }, lit ? "Show everything" : "Light them up")),
    );
  }
}

/** The module paths of a holder, if the report has them: notes that are paths, or named scopes. */
export function moduleOf(holder: Holder): string {
  const named = (holder.notes ?? []).map(moduleIn).filter((path) => path !== null);
  return named.length ? named.join(", ") : (holder.scope ?? []).join("/");
}
