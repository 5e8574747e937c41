// The events around a failed request, the peak or the instant: allocations and frees, with the code that made them.

import { max, min, lowerBound } from "./math";
import type { App } from "./app";
import { title } from "./describe";
import { hex } from "./device";
import { choice, fill, h } from "./dom";
import { bytes, count, duration } from "./format";
import { term } from "./glossary";

type Around = "oom" | "peak" | "instant";

/** Events that are shown before and after, at first, and how many more come at once. */
const BEFORE = 12;
const AFTER = 8;
const MORE = 20;

interface Row {
  tick: number;
  what: string;
  sign: string;
  size: number;
  who: string;
  /** The allocation, -1 for none. */
  i: number;
  failed: boolean;
}

export class EventList {
  readonly element: HTMLElement;
  private around: Around = "peak";
  /** Which of the failed requests. */
  private failure = 0;
  private before = BEFORE;
  private after = AFTER;
  private choices: HTMLElement = h("div");
  private readonly caption = h("p.caption", null);
  private readonly body = h("tbody");
  private readonly steps = h("span.steps", null);
  private visible = false;

  constructor(private readonly app: App) {
    const more = (text: string, go: () => void) => h("button", { class: "quiet", onclick: () => { go(); this.draw(); } }, text);
    this.element = h(
      "div",
      null,
      h("div.toolbar", null, this.choices, this.steps, h("span.spacer", null), more(`${MORE} earlier`, () => (this.before += MORE)), more(`${MORE} later`, () => (this.after += MORE))),
      this.caption,
      h("table.cards.events", null, h("thead", null, h("tr", null, ["Event", "Time", "What", "Size", "Who", "In use after"].map((name) => h("th", { scope: "col", class: name === "Size" || name === "In use after" ? "num" : undefined }, name)))), this.body),
    );
    app.on(["detail"], () => this.build());
    app.on(["cursor"], () => this.around === "instant" ? this.draw() : this.mark());
    new IntersectionObserver((entries) => {
      this.visible = entries.some((entry) => entry.isIntersecting);
      if (this.visible && this.body.childElementCount === 0) this.draw();
    }, { rootMargin: "300px" }).observe(this.element);
  }

  private build(): void {
    const { app } = this;
    const ooms = app.device?.detail?.ooms ?? [];
    this.around = ooms.length ? "oom" : "peak";
    this.failure = ooms.length - 1;
    this.before = BEFORE;
    this.after = AFTER;
    const options: [Around, string][] = [["peak", "The peak"], ["instant", "The instant"]];
    if (ooms.length) options.unshift(["oom", ooms.length > 1 ? "Failed requests" : "The failed request"]);
    const next = choice("Around", options, this.around, (value) => {
      this.around = value as Around;
      for (const button of next.querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.value === value));
      this.draw();
    });
    this.choices.replaceWith(next);
    this.choices = next;
    // Readers ask about a failed request first: then the list stands right below the timeline.
    const section = this.element.closest("section");
    const behind = document.getElementById(ooms.length ? "timeline" : "curves");
    if (section && behind && behind.nextElementSibling !== section) behind.after(section);
    this.draw();
  }

  private get centre(): number {
    const { app } = this;
    const oom = app.device!.detail!.ooms[this.failure];
    return this.around === "oom" && oom ? oom.tick : this.around === "instant" ? app.cursor : app.peakTick;
  }

  /** The rows of the ticks [from, past), by tick. */
  private collect(from: number, past: number): Row[] {
    const { app } = this;
    const device = app.device!;
    const { rects, detail } = device;
    const { start, end, block, requested } = rects;
    const { freed, segments: spans, ooms, base } = detail!;
    const rows: Row[] = [];
    const inside = (tick: number) => tick >= from && tick < past && tick > 0;
    const add = (tick: number, what: string, sign: string, size: number, who: string, i = -1, failed = false) => rows.push({ tick, what, sign, size, who, i, failed });
    for (let i = lowerBound(start, from); i < rects.n && start[i] < past; i++) if (inside(start[i])) add(start[i], "allocated", "+", requested[i], title(app, i), i);
    for (let i = 0; i < rects.n; i++) {
      if (inside(freed[i]) && freed[i] < end[i]) add(freed[i], "free requested", "−", block[i], title(app, i), i);
      if (inside(end[i]) && end[i] < device.forever) add(end[i], "freed", "−", block[i], title(app, i), i);
    }
    for (let s = 0; s < spans.n; s++) {
      const place = `${spans.expandable[s] ? "expandable segment" : "segment"} at ${hex(base, spans.addr[s])}`;
      if (inside(spans.start[s])) add(spans.start[s], spans.expandable[s] ? "memory mapped" : "segment taken", "↑", spans.size[s], place);
      if (inside(spans.end[s]) && spans.end[s] < device.forever) add(spans.end[s], spans.expandable[s] ? "memory unmapped" : "segment given back", "↓", spans.size[s], place);
    }
    for (const oom of ooms) if (inside(oom.tick)) add(oom.tick, "failed: out of memory", "✗", oom.asked, app.stacks?.label(oom.stack) || "a request without a stack", -1, true);
    return rows.sort((a, b) => a.tick - b.tick);
  }

  draw(): void {
    const { app } = this;
    const { device } = app;
    if (!device?.detail) return;
    // A list that follows the instant waits until it is in sight.
    if (!this.visible && this.around === "instant") return fill(this.body);
    const { ooms } = device.detail;
    const centre = this.centre;
    const from = max(1, centre - this.before);
    const past = min(device.forever, centre + this.after + 1);
    const shown = this.collect(from, past);
    const oom = this.around === "oom" ? ooms[this.failure] : undefined;
    fill(
      this.caption,
      oom ? `${bytes(oom.asked)} were asked for with ${bytes(device.active.at[oom.tick])} in use${device.reserved ? ` and ${bytes(device.reserved.at[oom.tick])} reserved` : ""}; the device had ${bytes(oom.deviceFree)} free. ` : "",
      `Events ${count(from - 1)} to ${count(past - 2)} of ${count(device.lastTick)}. A click on a row shows it in the timeline.`,
    );
    const jump = (text: string, label: string, to: number) => h("button", { class: "quiet", "aria-label": label, disabled: to < 0 || to >= ooms.length, onclick: () => { this.failure = to; this.draw(); } }, text);
    fill(this.steps, this.around === "oom" && ooms.length > 1 ? [jump("‹", "The failed request before", this.failure - 1), `${this.failure + 1} of ${ooms.length}`, jump("›", "The next failed request", this.failure + 1)] : []);
    fill(this.body, shown.map((row) => this.row(row, centre)));
    this.mark();
  }

  private row({ tick, what, sign, size, who, i, failed }: Row, centre: number): HTMLElement {
    const { app } = this;
    const device = app.device!;
    const [time, own] = [device.timeAt(tick), device.timeAt(centre)];
    // Near each other, instants are told apart by how far they are from the one in the middle.
    const apart = (time ?? 0) - (own ?? 0);
    const pick = () => {
      app.setCursor(tick);
      if (i >= 0) app.select(i);
    };
    const cell = (label: string, content: (HTMLElement | string | null)[], cls?: string) => h("td", { "data-label": label, class: cls }, content);
    return h(
      "tr",
      { tabIndex: 0, class: failed ? "failed-request" : tick === centre ? "centre" : undefined, "data-tick": String(tick), onclick: pick, onkeydown: (event: KeyboardEvent) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(); } } },
      cell("Event", [count(tick - 1)]),
      cell("Time", [time === null ? "" : apart === 0 ? duration(time) : `${apart < 0 ? "−" : "+"}${duration(Math.abs(apart))}`]),
      cell("What", [h("span.sign", { "aria-hidden": "true" }, sign), what === "free requested" ? term(what, "pending") : what]),
      cell("Size", [h("b", null, bytes(size))], "num"),
      cell("Who", [h("span.name", { title: who }, h("span.inner", null, who))], "where"),
      cell("In use after", [bytes(device.active.at[tick])], "num"),
    );
  }

  private mark(): void {
    for (const row of this.body.querySelectorAll<HTMLElement>("tr")) row.setAttribute("aria-selected", String(Number(row.dataset["tick"]) === this.app.cursor));
  }
}
