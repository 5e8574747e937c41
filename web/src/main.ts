// The page: builds the parts of a report, draws the timeline from the first section, then reads the rest. Another
// report that the reader opens takes the place of the first one.

import { max, min, floor } from "./math";
import { answer } from "./answer";
import { App } from "./app";
import { readTheme } from "./colors";
import { Curves } from "./curves";
import { title } from "./describe";
import { Device, StackBook } from "./device";
import { h, isPainting, life } from "./dom";
import { EventList } from "./events";
import { bytes } from "./format";
import { Glossary } from "./glossary";
import { bindKeys, help } from "./keys";
import { applyLink, keepLink, readLink, type Link } from "./link";
import { Flame } from "./flame";
import { PeakInset } from "./inset";
import { Minimap } from "./minimap";
import { Opener } from "./opener";
import { Panel } from "./panel";
import { readDetail, readRects, readTables } from "./payload";
import { Plot } from "./plot";
import { RankStrip } from "./ranks";
import { bindPrint } from "./print";
import { about, holders } from "./sections";
import { SegmentMap } from "./segments";
import { Sizes } from "./sizes";
import { openSource, ownSource, type PageView, type Source } from "./source";
import { SpanBar } from "./span";
import { stackAt } from "./stacked";
import { advice, summary } from "./summary";
import { storedTheme, storeTheme } from "./theme";
import { Toolbar } from "./toolbar";

performance.mark("gapless-start");
const root = document.getElementById("app")!;
const ownName = root.dataset.title ?? "";

/** A report on the screen. */
interface Shown {
  app: App;
  plot: Plot;
  flame: Flame;
  isLinkOld: () => boolean;
  toggleTheme: () => void;
}

let shown: Shown | null = null;

function show(source: Source, link: Link): Shown {
  life.of.abort();
  life.of = new AbortController();
  const { signal } = life.of;
  const { views } = source;
  const app = new App(views[0]?.report ?? source.report);
  /** The answer that a page of `plan` or `fit` shows. */
  const headline = app.report.headline;
  const { name } = source;

  const live = h("div.unseen", { "aria-live": "polite", id: "live" });
  const failed = h("div.failed", { role: "alert", hidden: true });
  const say = (text: string) => {
    live.textContent = text;
  };
  const dialog = help();
  const plot = new Plot(app, link.renderer);
  const minimap = new Minimap(app);
  const toolbar = new Toolbar(app);
  const panel = new Panel(app);
  const curves = new Curves(app);
  const segments = new SegmentMap(app);
  const flame = new Flame(app);
  const events = new EventList(app);
  const inset = new PeakInset(app, plot);
  panel.element.prepend(inset.element);

  const picker = h("select", { "aria-label": "Device" }, views.map((view, i) => h("option", { value: String(i) }, viewName(view))));
  picker.hidden = views.length < 2;
  picker.addEventListener("change", () => void open(Number(picker.value)));
  const ranks = h("div", { id: "all-ranks", hidden: true });
  const themeButton = h("button", { class: "quiet", id: "theme", onclick: toggleTheme });
  const opener = new Opener(source.file, ownName, openFile);

  document.title = `${name} · Gapless`;
  root.className = "";
  root.replaceChildren(
    h(
      "header",
      { class: "top" },
      h("span.brand", { "aria-label": "Gapless" }, mark(), "Gapless"),
      h("h1", { title: source.file ? `${name}, from ${source.file}` : name }, name),
      picker,
      h("span.spacer", null),
      opener.element,
      themeButton,
      h("button", { class: "quiet", id: "keys", onclick: () => dialog.showModal() }, "Keys ", h("kbd", null, "?")),
    ),
    failed,
    opener.failed,
    h(
      "main",
      null,
      // Sections in the order of the page: the one that a reader wants first stands first.
      ranks,
      headline ? answer(headline) : summary(app),
      headline && app.report.findings?.length ? advice(app) : "",
      h(
        "section",
        { id: "timeline", "aria-labelledby": "timeline-title" },
        h("h2", { id: "timeline-title" }, "Allocations over time"),
        toolbar.element,
        toolbar.legend,
        h("div.stage", null, h("div.stage-main", null, plot.element, minimap.element, new SpanBar(app).element), panel.element),
      ),
      part("flame", "Flame graph", flame.element),
      holders(app),
      part("sizes", "Sizes of blocks", new Sizes(app).element),
      part("curves", "Reserved and in use", curves.element),
      part("events", "Events", events.element),
      part("segments", "Segments at the instant", segments.element),
      about(app),
    ),
    live,
    dialog,
    new Glossary().element,
  );

  // ---- light and dark ----

  const system = matchMedia("(prefers-color-scheme: dark)");

  function applyTheme(chosen: string | null): void {
    document.documentElement.dataset["theme"] = chosen ?? (system.matches ? "dark" : "light");
    app.theme = readTheme();
    themeButton.textContent = app.theme.dark ? "Light" : "Dark";
    themeButton.setAttribute("aria-label", app.theme.dark ? "Switch to light" : "Switch to dark");
    if (app.device) app.recolor();
    app.emit("theme");
  }

  function toggleTheme(): void {
    const next = app.theme.dark ? "light" : "dark";
    storeTheme(next);
    applyTheme(next);
  }

  system.addEventListener("change", () => applyTheme(storedTheme()), { signal });
  applyTheme(storedTheme());

  // ---- the data ----

  const loaded = new Map<number, Promise<Device | null>>();
  const books = new Map<string, Promise<StackBook | null>>();

  /** The device with the columns of its first section. */
  function load(index: number): Promise<Device | null> {
    let device = loaded.get(index);
    const view = views[index];
    if (!device) {
      device = source.section(`${view.prefix}rects.${view.device}`).then((data) => (data ? new Device(readRects(data)) : null));
      loaded.set(index, device);
    }
    return device;
  }

  async function open(index: number): Promise<void> {
    try {
      const view = views[index];
      const device = view ? await load(index) : null;
      if (!view || !device) throw new Error(`the report has no data of device ${index}`);
      app.report = view.report;
      app.viewIndex = index;
      app.deviceIndex = view.device;
      app.device = device;
      app.selected = app.hovered = -1;
      app.holder = app.branch = app.span = null;
      app.litStack = -1;
      app.mode = device.rects.y ? "packed" : "stacked";
      app.filter = { least: 0, stream: -1, hiddenKinds: new Set() };
      app.cursor = app.peakTick;
      let book = books.get(view.prefix);
      if (!book) books.set(view.prefix, (book = source.section(`${view.prefix}tables`).then((data) => (data ? new StackBook(readTables(data)) : null))));
      app.stacks = await book;
      // The report's JSON writes `optimizer_state`, people write `optimizer state`: one spelling here.
      app.kinds = app.stacks?.tables.kinds.map((kind) => kind.replaceAll(" ", "_")) ?? [];
      app.colorBy = app.kinds.length && device.rects.kind.some((k) => k > 0) ? "kind" : app.stacks?.any ? "module" : "size";
      app.view = app.whole;
      app.remark();
      const first = new Promise<void>((done) => {
        plot.firstPicture = () => {
          performance.mark("gapless-first-picture");
          done();
        };
      });
      app.emit("device", "mode", "view");
      await first;
      if (!device.detail) {
        const data = await source.section(`${view.prefix}detail.${view.device}`);
        if (data) device.complete(readDetail(data, device.rects));
      }
      if (signal.aborted) return;
      if (index === (link.device ?? 0)) applyLink(app, link);
      else app.view = app.whole;
      app.remark();
      app.emit("device", "detail", "view", "cursor", "select", "span");
      performance.mark("gapless-complete");
      document.documentElement.dataset.ready = String(index);
    } catch (error) {
      failed.hidden = false;
      failed.textContent = `This report cannot be shown: ${error instanceof Error ? error.message : String(error)}. Write it again with \`gapless report FILE --format html\`; a browser older than 2023 may lack what it needs.`;
    }
  }

  app.on(["select"], () => {
    if (app.selected >= 0) say(`Selected ${bytes(app.device!.rects.block[app.selected])}, ${title(app, app.selected)}`);
  });
  bindKeys(app, toolbar, dialog, plot.element, { toggleTheme, say, describe: (i) => `${bytes(app.device!.rects.block[i])}, ${title(app, i)}`, open: () => opener.ask() });
  let onScreen = "light";
  bindPrint({
    light: (isPaper) => {
      if (isPaper) onScreen = app.theme.dark ? "dark" : "light";
      applyTheme(isPaper ? "light" : onScreen);
    },
    drawAll: () => {
      if (!app.device) return;
      plot.drawNow();
      for (const drawn of [minimap, curves, segments, flame, inset]) drawn.draw();
      rankStrip?.draw();
    },
  });
  let rankStrip: RankStrip | null = null;
  const isLinkOld = keepLink(app, link.renderer);
  const wanted = min(max(0, floor(link.device ?? 0)), max(0, views.length - 1));
  picker.value = String(wanted);
  delete document.documentElement.dataset.ready;
  delete document.documentElement.dataset["ranks"];
  if (views.length === 0 && (headline || source.ranks)) document.documentElement.dataset.ready = root.className = "bare";
  else void open(wanted);
  if (source.ranks) {
    const places = new Map(views.map((view, i) => [view.rank, i] as const).reverse());
    const strip = new RankStrip(app, source.ranks, places, (index) => {
      picker.value = String(index);
      void open(index);
    });
    ranks.append(strip.element);
    ranks.hidden = false;
    rankStrip = strip;
    strip.draw();
    document.documentElement.dataset["ranks"] = "1";
  }

  /** Shows the report in `file`, or says why there is none, and stays. */
  async function openFile(file: File): Promise<void> {
    try {
      const next = await openSource(file);
      try {
        // The address belongs to the report before.
        history.replaceState(null, "", "#");
      } catch {
        // Some browsers forbid it for files: the page works without.
      }
      scrollTo(0, 0);
      shown = show(next, { renderer: link.renderer });
    } catch (error) {
      opener.fail(error instanceof Error ? error.message : String(error));
    }
  }
  return { app, plot, flame, isLinkOld, toggleTheme };
}

function part(id: string, heading: string, content: HTMLElement): HTMLElement {
  return h("section", { id, "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, heading), content);
}

function viewName({ report, device, rank }: PageView): string {
  const gpu = `GPU ${report.devices?.[device]?.["device"] ?? device}`;
  return rank === null ? gpu : (report.devices?.length ?? 0) > 1 ? `Rank ${rank}, ${gpu}` : `Rank ${rank}`;
}

function mark(): SVGSVGElement {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  for (const [x, y, w] of [[1, 11, 14], [1, 6, 8], [10, 6, 5], [1, 1, 5], [7, 1, 8]]) {
    const rect = document.createElementNS(space, "rect");
    for (const [key, value] of Object.entries({ x, y, width: w, height: 4, rx: 1 })) rect.setAttribute(key, String(value));
    svg.append(rect);
  }
  return svg;
}

void ownSource(ownName).then((source) => {
  shown = show(source, readLink());
});

const device = () => shown?.app.device ?? null;

/** The state of the page, for tests and for the console; nothing in it changes the page. */
const state = Object.freeze({
  get "view"() {
    return { ...shown!.app.view };
  },
  get "whole"() {
    return shown!.app.whole;
  },
  get "renderer"() {
    return shown?.plot.renderer?.kind ?? "";
  },
  get "mode"() {
    return shown!.app.mode;
  },
  /** Pixels that the neighbourhood of the peak takes. */
  get "peakWidth"() {
    return shown!.plot.peakWidth;
  },
  get "flame"() {
    return shown!.flame.total;
  },
  /** The stack at a tick: allocation, lower edge, upper edge. */
  stack: (tick: number) => stackAt(shown!.app, tick).map(([i, low]) => [i, low, low + device()!.rects.block[i]]),
  get allocations() {
    return device()?.n ?? 0;
  },
  get "found"() {
    return { ...shown!.app.found };
  },
  get "cursor"() {
    return shown!.app.cursor;
  },
  get "selected"() {
    return shown!.app.selected;
  },
  /** The selected interval, [from, to) in ticks. */
  get "interval"() {
    return shown!.app.span;
  },
  get "colorBy"() {
    return shown!.app.colorBy;
  },
  get "query"() {
    return shown!.app.query;
  },
  /** Nothing moves, and all that was asked for is in the picture. */
  get "resting"() {
    return !!shown && !shown.app.moving && !isPainting();
  },
  /** True if the address has the present view. */
  get "linked"() {
    return !shown!.isLinkOld();
  },
  get height() {
    return device()?.packed.height ?? 0;
  },
  get peaks() {
    const d = device();
    return { "active": d?.active.peak ?? 0, "allocated": d?.allocated?.peak ?? 0, "reserved": d?.reserved?.peak ?? 0 };
  },
  at: (tick: number) => ({ "active": device()?.active.at[tick], "allocated": device()?.allocated?.at[tick], "reserved": device()?.reserved?.at[tick] }),
  allocation: (i: number) => {
    const d = device();
    if (!d || !(i >= 0 && i < d.n)) return null;
    const { start, end, block, requested, kind, stack } = d.rects;
    const { app } = shown!;
    return { "start": start[i], "end": end[i], y: d.packed.y[i], "block": block[i], "requested": requested[i], kind: kind[i], stack: stack[i], x0: app.xAt(start[i]), x1: app.xAt(end[i]), color: app.colors[i], "address": d.address(i) };
  },
  title: (i: number) => title(shown!.app, i),
});
Object.defineProperty(window, "gapless", { value: state, writable: false });
