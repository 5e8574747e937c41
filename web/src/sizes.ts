// How large blocks are: how many, and how many bytes, in each class of sizes. A click lights a class up.

import { max, min, floor } from "./math";
import type { App } from "./app";
import { choice, fill, h, press } from "./dom";
import { each, type Of } from "./flametree";
import { bytes, count, counted, percent } from "./format";

/** Classes are powers of two: class k has blocks of [2^k, 2^(k+1)) bytes. */
export const sizeClass = (block: number): number => min(50, max(0, floor(Math.log2(max(1, block)))));

/** `1 to 2 MiB`, `512 B to 1 KiB`. */
export function className(k: number): string {
  const [low, high] = [2 ** k, 2 ** (k + 1)].map((value) => bytes(value).replace(/\.0+(?= )/, ""));
  const [unit, last] = [low.split(" ")[1], high.split(" ")[1]];
  return unit === last ? `${low.split(" ")[0]} to ${high}` : `${low} to ${high}`;
}

export class Sizes {
  readonly element: HTMLElement;
  private of: Of = "peak";
  private ofChoice: HTMLElement = h("div");
  private readonly caption = h("p.caption", null);
  private readonly list = h("div.sizes", { role: "group", "aria-label": "Blocks by size" });

  constructor(private readonly app: App) {
    this.element = h("div", null, h("div.toolbar", null, this.ofChoice), this.caption, this.list);
    app.on(["device", "detail", "span"], () => {
      const isOfSpan = this.of === "lived" || this.of === "born";
      if (isOfSpan !== !!app.span) this.of = app.span ? "lived" : "peak";
      const next = choice("Sizes", [...(app.span ? ([["lived", "Live in the interval"], ["born", "Allocated in it"]] as [Of, string][]) : []), ["peak", "At the peak"], ["all", "Over the whole run"]], this.of, (value) => {
        this.of = value as Of;
        press(next, value);
        this.draw();
      });
      this.ofChoice.replaceWith(next);
      this.ofChoice = next;
      this.draw();
    });
    app.on(["theme"], () => this.draw());
    app.on(["marks"], () => this.mark());
  }

  private draw(): void {
    const { app, list } = this;
    const { device } = app;
    if (!device) return;
    const { block } = device.rects;
    const counts = new Float64Array(51);
    const sums = new Float64Array(51);
    each(app, this.of, (i) => {
      const k = sizeClass(block[i]);
      counts[k]++;
      sums[k] += block[i];
    });
    const used = [...counts.keys()].filter((k) => counts[k] > 0);
    const [allCount, allBytes] = [counts, sums].map((values) => values.reduce((a, b) => a + b, 0));
    const [mostCount, mostBytes] = [counts, sums].map((values) => max(1, ...values));
    this.caption.textContent = `${counted(allCount, "block")}, ${bytes(allBytes)}${this.of === "all" ? " in turn" : ""}. A click lights a size up in the timeline.`;
    const bar = (value: number, most: number, color: string, text: string, note: string) => h("span.size-bar", null, h("i", { style: `width:${(value / most) * 100}%;background:${color}` }), h("b", null, text), h("span.percent", null, note));
    // From the smallest to the largest in use, with the empty classes between: a histogram has no gaps.
    const classes = used.length ? Array.from({ length: used[used.length - 1] - used[0] + 1 }, (_, at) => used[0] + at).reverse() : [];
    fill(
      list,
      classes.length ? h("div.size-head", { "aria-hidden": "true" }, h("span", null, "size of a block"), h("span", null, "blocks"), h("span", null, "bytes")) : h("p.hint", null, "Nothing was allocated."),
      classes.map((k) =>
        h(
          "button",
          {
            type: "button",
            class: "size",
            "data-class": String(k),
            "aria-label": `${className(k)}: ${counted(counts[k], "block")}, ${bytes(sums[k])}`,
            onclick: () => {
              const isLit = app.branch?.text === this.text(k);
              app.light(isLit ? {} : { branch: { text: this.text(k), has: (i) => sizeClass(block[i]) === k } });
            },
          },
          h("span", null, className(k)),
          bar(counts[k], mostCount, app.sizeSwatch(k), count(counts[k]), percent(counts[k] / max(1, allCount))),
          bar(sums[k], mostBytes, app.sizeSwatch(k), bytes(sums[k]), percent(sums[k] / max(1, allBytes))),
        ),
      ),
    );
    this.mark();
  }

  private text(k: number): string {
    return `Blocks of ${className(k)}`;
  }

  private mark(): void {
    for (const button of this.list.querySelectorAll("button")) button.setAttribute("aria-pressed", String(this.app.branch?.text === this.text(Number(button.dataset["class"]))));
  }
}
