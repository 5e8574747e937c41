// The keyboard, and the overlay that lists it.

import type { App } from "./app";
import { h, life, toTimeline } from "./dom";
import { max, min } from "./math";
import type { Toolbar } from "./toolbar";

const KEYS: [string, string][] = [
  ["← → or A D", "pan along the run"],
  ["↑ ↓", "pan along the bytes"],
  ["+ − or W S", "zoom in and out in time"],
  ["Shift + W S", "zoom in and out in bytes"],
  ["0", "the whole run"],
  ["P", "zoom to the peak"],
  ["V", "stacked or packed"],
  ["Z", "zoom to the selection"],
  ["N", "next match, by birth; with Shift the previous one"],
  [", .", "move the instant by one event"],
  ["G", "the instant to the peak"],
  ["/", "search"],
  ["X", "time or events on the axis"],
  ["C", "next colouring"],
  ["T", "light or dark"],
  ["[ ]", "the interval begins, ends at the instant"],
  ["I", "the interval is what is in sight"],
  ["O", "open another report"],
  ["Esc", "close; clear the search, the interval, the selection"],
  ["wheel", "zoom; with Shift pan, with Alt zoom in bytes"],
  ["drag", "select an interval"],
  ["Shift-drag", "zoom into a box"],
  ["Alt-drag", "pan"],
  ["double click", "the whole run"],
];

export function help(): HTMLDialogElement {
  const dialog = h(
    "dialog",
    { class: "keys", "aria-labelledby": "help-title" },
    h("form", { method: "dialog" }, h("h2", { id: "help-title" }, "Keys"), h("button.quiet", { "aria-label": "Close" }, "×")),
    h("dl", null, KEYS.map(([keys, what]) => h("div", null, h("dt", null, keys.split(" ").map((k) => (k === "or" || k === "+" && keys !== "+ − or W S" ? h("span", null, ` ${k} `) : h("kbd", null, k)))), h("dd", null, what)))),
  );
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  return dialog;
}

export interface Actions {
  toggleTheme(): void;
  say(text: string): void;
  describe(i: number): string;
  open(): void;
}

export function bindKeys(app: App, toolbar: Toolbar, dialog: HTMLDialogElement, plot: HTMLElement, actions: Actions): void {
  const step = (by: number) => {
    const found = app.matches();
    if (found.length === 0) return actions.say("Nothing matches");
    const at = found.findIndex((i) => i >= app.selected);
    const exact = at >= 0 && found[at] === app.selected;
    let next = at < 0 ? (by > 0 ? 0 : found.length - 1) : exact ? at + by : by > 0 ? at : at - 1;
    next = (next + found.length) % found.length;
    app.select(found[next]);
    app.setCursor(app.device!.rects.start[found[next]]);
    app.reveal(found[next]);
    toTimeline();
    actions.say(`${next + 1} of ${found.length}: ${actions.describe(found[next])}`);
  };
  window.addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName);
    // A slider needs the arrows itself, and a field the letters; "?" and "/" work outside of fields.
    if (typing) return;
    const inPlot = plot.contains(target) || target === document.body || target.classList.contains("minimap");
    const arrow = event.key.startsWith("Arrow");
    if (arrow && !inPlot) return;
    const fine = event.shiftKey && arrow ? 0.02 : 0.12;
    const act: Record<string, () => void> = {
      ArrowLeft: () => app.pan(-fine, 0),
      ArrowRight: () => app.pan(fine, 0),
      ArrowUp: () => app.pan(0, fine),
      ArrowDown: () => app.pan(0, -fine),
      a: () => app.pan(-0.12, 0),
      d: () => app.pan(0.12, 0),
      w: () => (event.shiftKey ? app.zoom(1, 1 / 1.4) : app.zoom(1 / 1.4, 1)),
      s: () => (event.shiftKey ? app.zoom(1, 1.4) : app.zoom(1.4, 1)),
      "+": () => app.zoom(1 / 1.6, 1),
      "=": () => app.zoom(1 / 1.6, 1),
      "-": () => app.zoom(1.6, 1),
      "0": () => app.reset(),
      z: () => {
        if (app.selected < 0) return;
        app.zoomTo(app.selected);
        toTimeline();
      },
      n: () => step(event.shiftKey ? -1 : 1),
      p: () => {
        app.zoomToPeak();
        toTimeline();
        actions.say("The peak");
      },
      i: () => app.setSpan([app.tickAt(app.view.x0), app.tickAt(app.view.x1 - 1e-9) + 1]),
      "[": () => app.setSpan([app.cursor, max(app.cursor + 1, app.span?.[1] ?? Infinity)]),
      "]": () => app.setSpan([min(app.cursor, app.span?.[0] ?? 0), app.cursor + 1]),
      o: () => actions.open(),
      v: () => app.setMode(app.mode === "stacked" ? "packed" : "stacked"),
      ",": () => app.setCursor(app.cursor - 1),
      ".": () => app.setCursor(app.cursor + 1),
      g: () => {
        app.setCursor(app.peakTick);
        toTimeline();
      },
      "/": () => {
        toolbar.field.focus({ preventScroll: true });
        toTimeline();
      },
      x: () => document.querySelector<HTMLElement>('.choice[aria-label="Axis"] button[aria-pressed="false"]')?.click(),
      c: () => {
        const buttons = [...document.querySelectorAll<HTMLElement>('.choice[aria-label="Colour"] button')];
        const at = buttons.findIndex((b) => b.getAttribute("aria-pressed") === "true");
        buttons[(at + 1) % buttons.length]?.click();
      },
      t: () => actions.toggleTheme(),
      "?": () => dialog.showModal(),
      Escape: () => {
        if (app.searching) app.search("");
        else if (app.span) app.setSpan(null);
        else if (app.selected >= 0) app.select(-1);
      },
    };
    const run = act[event.key] ?? (event.key.length === 1 ? act[event.key.toLowerCase()] : undefined);
    if (!run || !app.device) return;
    event.preventDefault();
    run();
  }, { signal: life.of.signal });
}
