// The page: builds the parts of a report, draws the timeline from the first section, then reads the rest. Another
// report that the reader opens takes the place of the first one.

import { max, min, floor } from "./math";
import { answer } from "./answer";
import { App } from "./app";
import { Curves } from "./curves";
import { title } from "./describe";
import { h, isPainting, life } from "./dom";
import { EventList } from "./events";
import { bytes } from "./format";
import { Glossary } from "./glossary";
import { bindKeys, help } from "./keys";
import { keepLink, readLink, type Link } from "./link";
import { Flame } from "./flame";
import { PeakInset } from "./inset";
import { Minimap } from "./minimap";
import { Opener } from "./opener";
import { Panel } from "./panel";
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
import { followTheme } from "./theme";
import { Toolbar } from "./toolbar";
import { Views } from "./views";

performance.mark("gapless-start");
const root = document.getElementById("app")!;
const ownName = root.dataset.title ?? "";

/** A report on the screen. */
interface Shown {
  app: App;
  plot: Plot;
  flame: Flame;
  isLinkOld: () => boolean;
}

/** The parts of the page that draw. */
interface Parts {
  app: App;
  plot: Plot;
  minimap: Minimap;
  toolbar: Toolbar;
  panel: Panel;
  flame: Flame;
  curves: Curves;
  events: EventList;
  segments: SegmentMap;
}

let shown: Shown | null = null;

function show(source: Source, link: Link): Shown {
  life.of.abort();
  life.of = new AbortController();
  const { views, name } = source;
  const app = new App(views[0]?.report ?? source.report);

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
  picker.addEventListener("change", () => void opened.open(Number(picker.value)));
  const ranks = h("div", { id: "all-ranks", hidden: true });
  const themeButton = h("button", { class: "quiet", id: "theme", onclick: () => theme.toggle() });
  const opener = new Opener(source.file, ownName, openFile);

  document.title = `${name} · Gapless`;
  root.className = "";
  root.replaceChildren(
    header(source, picker, opener.element, themeButton, dialog),
    failed,
    opener.failed,
    sections(ranks, { app, plot, minimap, toolbar, panel, flame, curves, events, segments }),
    live,
    dialog,
    new Glossary().element,
  );

  const theme = followTheme(app, themeButton, life.of.signal);
  const opened = new Views(app, source, link, plot, failed);
  app.on(["select"], () => {
    if (app.selected >= 0) say(`Selected ${bytes(app.device!.rects.block[app.selected])}, ${title(app, app.selected)}`);
  });
  bindKeys(app, toolbar, dialog, plot.element, { toggleTheme: theme.toggle, say, describe: (i) => `${bytes(app.device!.rects.block[i])}, ${title(app, i)}`, open: () => opener.ask() });
  let onScreen = "light";
  bindPrint({
    light: (isPaper) => {
      if (isPaper) onScreen = app.theme.dark ? "dark" : "light";
      theme.apply(isPaper ? "light" : onScreen);
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
  if (views.length === 0 && (app.report.headline || source.ranks)) document.documentElement.dataset.ready = root.className = "bare";
  else void opened.open(wanted);
  if (source.ranks) {
    const places = new Map(views.map((view, i) => [view.rank, i] as const).reverse());
    const strip = new RankStrip(app, source.ranks, places, (index) => {
      picker.value = String(index);
      void opened.open(index);
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
  return { app, plot, flame, isLinkOld };
}

function header({ name, file }: Source, picker: HTMLElement, opener: HTMLElement, theme: HTMLElement, keys: HTMLDialogElement): HTMLElement {
  return h(
    "header",
    { class: "top" },
    h("span.brand", { "aria-label": "Gapless" }, mark(), "Gapless"),
    h("h1", { title: file ? `${name}, from ${file}` : name }, name),
    picker,
    h("span.spacer", null),
    opener,
    theme,
    h("button", { class: "quiet", id: "keys", onclick: () => keys.showModal() }, "Keys ", h("kbd", null, "?")),
  );
}

/** Sections in the order of the page: the one that a reader wants first stands first. */
function sections(ranks: HTMLElement, parts: Parts): HTMLElement {
  const { app, plot, minimap, toolbar, panel, flame, curves, events, segments } = parts;
  /** The answer that a page of `plan` or `fit` shows. */
  const { headline } = app.report;
  return h(
    "main",
    null,
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
  );
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
