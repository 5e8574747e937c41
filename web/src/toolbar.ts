// Search, filters, colours and axes above the timeline, and the legend that doubles as a filter of kinds.

import type { App, Axis, ColorBy, Mode } from "./app";
import { foundText } from "./describe";
import { choice, fill, h, press, toTimeline } from "./dom";
import { bytes, counted } from "./format";
import { explained, term } from "./glossary";

const SIZES: [number, string][] = [
  [0, "All sizes"],
  [64 * 1024, "≥ 64 KiB"],
  [1024 ** 2, "≥ 1 MiB"],
  [16 * 1024 ** 2, "≥ 16 MiB"],
  [128 * 1024 ** 2, "≥ 128 MiB"],
  [1024 ** 3, "≥ 1 GiB"],
];

export class Toolbar {
  readonly element: HTMLElement;
  readonly legend = h("div.legend", { role: "group", "aria-label": "Legend" });
  readonly field = h("input", { type: "search", placeholder: "Search line, kind, size …", title: "Finds whatever the page shows: lines, functions, modules, notes, kinds, sizes, steps, streams, pools, segments, addresses", "aria-label": "Search by line, function, module, note, kind, size, step, stream, pool, segment or address", spellcheck: false, autocomplete: "off" });
  private readonly found = h("output.found", { "aria-live": "polite" });
  private readonly clear = h("button", { class: "quiet", hidden: true }, "Clear");
  private readonly stream = h("select", { "aria-label": "Filter by stream", hidden: true });
  private readonly size = h("select", { "aria-label": "Filter by size" }, SIZES.map(([value, text]) => h("option", { value: String(value) }, text)));
  private readonly only = h("button", { class: "quiet", hidden: true, "aria-pressed": "false", title: "Leave out what does not match" }, "Only these");
  private modes: HTMLElement = h("div");
  private colors: HTMLElement = h("div");
  private axes: HTMLElement = h("div");
  private timer = 0;

  constructor(private readonly app: App) {
    this.field.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = window.setTimeout(() => app.search(this.field.value.trim()), 90);
    });
    this.field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        this.field.value = "";
        app.search("");
        this.field.blur();
        event.stopPropagation();
      }
    });
    this.clear.addEventListener("click", () => {
      this.field.value = "";
      app.search("");
    });
    this.field.addEventListener("focus", () => toTimeline());
    this.only.addEventListener("click", () => {
      app.only = !app.only;
      this.only.setAttribute("aria-pressed", String(app.only));
      app.remark();
    });
    this.size.addEventListener("change", () => {
      app.filter.least = Number(this.size.value);
      app.remark();
    });
    this.stream.addEventListener("change", () => {
      app.filter.stream = Number(this.stream.value);
      app.remark();
    });
    const zoom = (text: string, label: string, go: () => void) => h("button", { class: "quiet", "aria-label": label, title: label, onclick: go }, text);
    this.element = h(
      "div",
      { class: "toolbar" },
      h("div.search", null, this.field, h("kbd", { "aria-hidden": "true" }, "/")),
      h("span.spacer", null),
      this.size,
      this.stream,
      this.modes,
      this.colors,
      this.axes,
      h("div.zoom", { role: "group", "aria-label": "Zoom" }, zoom("−", "Zoom out (−)", () => app.zoom(1.6, 1)), zoom("+", "Zoom in (+)", () => app.zoom(1 / 1.6, 1)), zoom("Peak", "Zoom to the peak (P)", () => app.zoomToPeak()), zoom("Reset", "Whole run (0)", () => app.reset())),
      h("div.found-row", null, this.found, this.only, this.clear),
    );
    app.on(["device", "detail"], () => this.build());
    app.on(["mode"], () => press(this.modes, app.mode));
    app.on(["marks", "theme", "detail"], () => this.tell());
  }

  private build(): void {
    const { app } = this;
    const detail = app.device?.detail;
    const options: [ColorBy, string][] = [];
    if (app.kinds.length && app.device?.rects.kind.some((k) => k > 0)) options.push(["kind", "Kind"]);
    if (app.stacks?.any) options.push(["module", "Module"]);
    options.push(["size", "Size"]);
    if (detail && detail.streams.length > 1) options.push(["stream", "Stream"]);
    const colors = choice("Colour", options, app.colorBy, (value) => {
      app.colorBy = value as ColorBy;
      press(colors, value);
      app.recolor();
    });
    const modes = choice("View", [["stacked", "Stacked"], ["packed", "Packed"]], app.mode, (value) => app.setMode(value as Mode));
    modes.hidden = !app.device || !!app.device.rects.y;
    this.modes.replaceWith(modes);
    this.modes = modes;
    this.colors.replaceWith(colors);
    this.colors = colors;
    const axes = choice("Axis", [["time", "Time"], ["event", "Events"]], app.timed ? "time" : "event", (value) => {
      app.setAxis(value as Axis);
      press(axes, value);
    });
    axes.hidden = !app.device?.timeX;
    this.axes.replaceWith(axes);
    this.axes = axes;
    this.stream.hidden = !detail || detail.streams.length < 2;
    fill(this.stream, h("option", { value: "-1" }, "All streams"), (detail?.streams ?? []).map((s, i) => h("option", { value: String(i) }, `Stream ${s}`)));
    this.stream.value = String(app.filter.stream);
    this.size.value = String(app.filter.least);
    if (document.activeElement !== this.field) this.field.value = app.query;
  }

  private tell(): void {
    const { app } = this;
    const { shown } = app.found;
    const what = app.holder ? `Holder ${app.holder.rank ?? ""}: ` : app.litStack >= 0 ? "Same stack: " : app.branch ? `${app.branch.text}: ` : "";
    const filtered = app.device && shown < app.device.n;
    this.found.textContent = app.searching ? what + foundText(app) : filtered ? `${counted(shown, "allocation")} shown` : "Drag over the picture selects an interval. A click on a holder, a branch or a size lights up its blocks.";
    this.clear.hidden = this.only.hidden = !app.searching;
    if (!app.searching || app.holder || app.branch || app.litStack >= 0) if (document.activeElement !== this.field) this.field.value = app.query;
    const entries = app.colorBy === "size" ? [] : app.legend(app.colorBy === "module" ? 9 : 12);
    const theme = app.theme;
    const line = (name: string, color: string, dashed = false) =>
      h("span.key", null, h("i", { class: dashed ? "swatch line dashed" : "swatch line", style: dashed ? `border-color:${color}` : `background:${color}` }), term(name));
    const device = app.device;
    fill(
      this.legend,
      app.colorBy === "size" ? [h("span.key", null, "small", h("i.ramp", { style: this.ramp() }), "large")] : [],
      entries.map((entry) => this.entry(entry)),
      h("span.spacer", null),
      device && device.rects.lanes % 2 ? h("span.key", null, term("steps")) : null,
      device && device.rects.lanes > 1 ? h("span.key", null, term("scopes")) : null,
      device?.reserved ? line("reserved", theme.reserved) : null,
      line("active", theme.active),
      device?.allocated && device.allocated.peak !== device.active.peak ? line("allocated", theme.allocated, true) : null,
    );
  }

  private entry(entry: { key: number; text: string; color: string; bytes: number }): HTMLElement {
    const { app } = this;
    const inside = [h("i.swatch", { style: `background:${entry.color}` }), h("span", null, entry.text), h("span.amount", null, bytes(entry.bytes))];
    if (app.colorBy !== "kind") return h("span.key", { title: `${entry.text}: ${bytes(entry.bytes)} at the peak` }, inside);
    const hidden = app.filter.hiddenKinds;
    return h(
      "button",
      {
        type: "button",
        class: "key",
        ...explained(entry.text),
        "data-kind": entry.text,
        "aria-pressed": String(!hidden.has(entry.key)),
        "aria-label": `${entry.text}, ${bytes(entry.bytes)} at the peak: show or hide`,
        onclick: () => {
          if (!hidden.delete(entry.key)) hidden.add(entry.key);
          app.remark();
          this.legend.querySelector<HTMLElement>(`[data-kind="${CSS.escape(entry.text)}"]`)?.focus();
        },
      },
      inside,
    );
  }

  private ramp(): string {
    const stops = [9, 14, 20, 26, 32].map((log2) => this.app.sizeSwatch(log2));
    return `background:linear-gradient(90deg,${stops.join(",")})`;
  }
}
