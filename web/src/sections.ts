// The parts below the picture that come from the report alone: all holders, the settings and the notes.

import { max } from "./math";
import type { App } from "./app";
import { css, kindColor } from "./colors";
import { eventText, kindName, whyNoStackOf } from "./describe";
import { fill, h, toTimeline } from "./dom";
import { bytes, count, counted, percent } from "./format";
import { explained, term } from "./glossary";
import { moduleIn } from "./modules";
import { moduleOf } from "./panel";
import { holderMatcher } from "./search";
import { names } from "./summary";
import type { Holder, Note } from "./report";

type Column = "rank" | "bytes" | "count" | "born" | "kind" | "label";

/** Holders of an interval that the table has. */
const OF_SPAN = 20;

export function holders(app: App): HTMLElement {
  const body = h("tbody");
  const caption = h("p.caption", null);
  const heading = h("h2", { id: "holders-title" });
  let sorted: { by: Column; down: boolean } = { by: "rank", down: false };
  const headRow = h("tr");
  const place = (holder: Holder) => {
    const first = holder.stack?.find((f) => f.file && f.file !== "??") ?? holder.stack?.[0];
    const module = moduleOf(holder);
    const notes = (holder.notes ?? []).filter((note) => moduleIn(note) === null);
    const why = holder.stack?.length || holder.has ? "" : whyNoStackOf(app, heldBy(app, holder));
    return h(
      "td.where",
      { "data-label": "Where" },
      h("span.name", { title: [holder.label, first?.file].filter(Boolean).join("\n") }, h("span.inner", null, ...names(holder.label || first?.name || "?"))),
      module ? h("span.file", { title: "module" }, module) : null,
      notes.length ? h("span.file", { title: "notes" }, notes.join(", ")) : null,
      why ? h("span.why", null, why) : null,
    );
  };
  const draw = () => {
    const d = app.deviceReport;
    const { span } = app;
    const list = span ? holdersOf(app, span).slice(0, OF_SPAN) : [...(d.holders ?? [])];
    const heads: [Column, string, string][] = [["rank", "#", "num"], ["bytes", span ? "Live in the interval" : "Bytes at the peak", ""], ["count", "Blocks", "num"], ["kind", "Kind", ""], ["label", "Where", ""]];
    if (span) heads.splice(3, 0, ["born", "Allocated in it", "num"]);
    heading.textContent = span ? "Largest holders of the interval" : "Largest holders at the peak";
    const value = (holder: Holder) => (sorted.by === "label" || sorted.by === "kind" ? (holder[sorted.by] ?? "") : (holder[sorted.by] ?? 0));
    list.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      return (x < y ? -1 : x > y ? 1 : 0) * (sorted.down ? -1 : 1);
    });
    fill(
      headRow,
      heads.map(([column, text, cls]) =>
        h(
          "th",
          { scope: "col", class: cls, "aria-sort": sorted.by === column ? (sorted.down ? "descending" : "ascending") : "none" },
          h("button", { ...explained(text.toLowerCase()), onclick: () => { sorted = { by: column, down: sorted.by === column ? !sorted.down : column === "bytes" || column === "count" || column === "born" }; draw(); headRow.querySelectorAll("button")[heads.findIndex((x) => x[0] === column)]?.focus(); } }, text, sorted.by === column ? (sorted.down ? " ↓" : " ↑") : ""),
        ),
      ),
    );
    const most = max(1, ...list.map((x) => x.bytes ?? 0));
    fill(
      body,
      list.map((holder) => {
        const pick = () => choose(app, holder);
        const kind = holder.kind ?? "";
        const color = css(kindColor(kind || "unexplained"));
        return h(
          "tr",
          { tabIndex: 0, "data-rank": String(holder.rank ?? ""), "aria-selected": String(isLit(app, holder)), onclick: pick, onkeydown: (event: KeyboardEvent) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(); } } },
          h("td.num.rank", { "data-label": "#" }, holder.rank ?? ""),
          h("td.bytes", { "data-label": "Bytes" }, h("span.share", null, h("i", { style: `width:${((holder.bytes ?? 0) / most) * 100}%;background:${color}` })), h("b", null, bytes(holder.bytes ?? 0)), h("span.percent", null, holder.share === undefined ? "" : percent(holder.share))),
          h("td.num", { "data-label": "Blocks" }, count(holder.count ?? 0)),
          span ? h("td.num", { "data-label": "Allocated in it" }, bytes(holder.born ?? 0)) : null,
          h("td.kind", { "data-label": "Kind" }, kind ? h("i.swatch", { style: `background:${color}` }) : null, kind.replaceAll("_", " ")),
          place(holder),
        );
      }),
    );
    const evidence = d["kinds"]?.evidence ?? "";
    const from = evidence.replace(/^(inferred )?from /, " from ");
    const inferred = !d["kinds"] || d["kinds"].inferred === false ? [] : evidence === "" || from !== evidence ? ["Kinds are ", term("inferred"), `${from}. `] : [`Kinds are guesses: ${evidence}. `];
    fill(caption, inferred, span ? `Blocks that were alive at some time between ${eventText(span[0])} and ${eventText(span[1] - 1)}.` : "");
  };
  app.on(["device", "detail", "theme", "span"], draw);
  app.on(["marks"], () => {
    for (const row of body.querySelectorAll<HTMLElement>("tr")) row.setAttribute("aria-selected", String(app.span ? app.branch?.text === row.querySelector(".inner")?.textContent : app.holder !== null && row.dataset.rank === String(app.holder.rank ?? "")));
  });
  draw();
  return h("section", { "aria-labelledby": "holders-title", id: "holders" }, heading, caption, h("table.holders.cards", null, h("thead", null, headRow), body));
}

const isLit = (app: App, holder: Holder): boolean => (holder.has ? app.branch?.text === holder.label : app.holder === holder);

/** The allocations that a holder of the report held at the peak. */
function heldBy(app: App, holder: Holder): number[] {
  return app.device ? app.device.aliveAt(app.peakTick).filter(holderMatcher(app, holder)) : [];
}

/** The largest holders of an interval, by name: all bytes alive in it, and those of them that were allocated there. */
function holdersOf(app: App, [from, to]: [number, number]): Holder[] {
  const device = app.device!;
  const { rects } = device;
  const groups = new Map<string, Holder & { of: Float64Array }>();
  const name = (i: number) => app.stacks?.label(rects.stack[i]) || `${kindName(app, i) || "kind not known"}, blocks of ${bytes(rects.block[i])}`;
  let whole = 0;
  device.alive(from, to, (i) => {
    const label = name(i);
    let own = groups.get(label);
    if (!own) groups.set(label, (own = { label, bytes: 0, count: 0, born: 0, has: (k) => name(k) === label, of: new Float64Array(app.kinds.length + 1) }));
    own.bytes! += rects.block[i];
    own.count!++;
    if (rects.start[i] >= from) own.born! += rects.block[i];
    own.of[rects.kind[i]] += rects.block[i];
    whole += rects.block[i];
  });
  const all = [...groups.values()].sort((a, b) => b.bytes! - a.bytes!);
  all.forEach((own, k) => {
    const most = own.of.indexOf(max(...own.of));
    Object.assign(own, { rank: k + 1, "share": own.bytes! / max(1, whole), "kind": most > 0 ? app.kinds[most - 1] : "" });
  });
  return all;
}

/** Lights a holder up in the timeline, at the peak. */
export function choose(app: App, holder: Holder): void {
  if (isLit(app, holder)) return app.light({});
  if (holder.has) app.light({ branch: { text: holder.label ?? "", has: holder.has } });
  else {
    app.light({ holder });
    app.setCursor(app.peakTick);
  }
  const found = app.matches();
  const { rects } = app.device!;
  const held = found.filter((i) => rects.start[i] <= app.cursor && app.cursor < rects.end[i]);
  const largest = (held.length ? held : found).reduce((best, i) => (best < 0 || rects.block[i] > rects.block[best] ? i : best), -1);
  app.select(largest);
  toTimeline();
}

export function about(app: App): HTMLElement {
  const element = h("div", null);
  const draw = () => fill(element, aboutReport(app));
  app.on(["device"], draw);
  draw();
  return element;
}

function aboutReport(app: App): HTMLElement {
  const { report } = app;
  const rows: [string, string][] = [];
  const s = report.settings;
  if (s) {
    rows.push(["configuration", s.conf || "none given"]);
    rows.push(["expandable segments", s.expandable_segments ? "on" : "off"]);
    rows.push(["max split size", typeof s.max_split_size === "number" && s.max_split_size > 0 ? bytes(s.max_split_size) : "no limit"]);
    rows.push(["garbage collection threshold", s.garbage_collection_threshold ? String(s.garbage_collection_threshold) : "off"]);
    const divisions = s.roundup_power2_divisions ?? [];
    rows.push(["rounding", divisions.some((x) => x > 1) ? `power-of-two divisions ${divisions.join(", ")}` : "to 512 B"]);
    for (const [key, value] of Object.entries(s.other ?? {})) rows.push([key.replaceAll("_", " "), typeof value === "object" ? JSON.stringify(value) : String(value)]);
  }
  const source: [string, string][] = [];
  if (report.source?.path) source.push(["file", report.source.path]);
  if (report.source?.format) source.push(["format", report.source.format]);
  if (report.source?.producer) source.push(["written by", report.source.producer]);
  if (report.tool?.name || report.tool?.version) source.push(["report by", [report.tool?.name, report.tool?.version].filter(Boolean).join(" ")]);
  const list = (entries: [string, string][]) => h("dl.settings", null, entries.map(([k, v]) => h("div", null, h("dt", null, k), h("dd", null, v))));
  const notes: Note[] = [...(report.source?.notes ?? []), ...(report.devices ?? []).flatMap((d) => d.notes ?? [])];
  const steps = app.deviceReport.steps;
  if (app.deviceReport["kinds"] && app.deviceReport["kinds"].inferred !== false) notes.push({ code: "inferred", text: "kinds are inferred from lifetimes, stacks and annotations; the allocator does not record them" });
  if (steps?.count) notes.push({ code: "steps", text: `${counted(steps.count, "step")} found${steps.evidence ? `: ${steps.evidence}` : ""}` });
  return h(
    "section",
    { id: "about", "aria-labelledby": "about-title" },
    h("h2", { id: "about-title" }, "Settings and source"),
    h(
      "div",
      { class: "columns" },
      h("div", null, h("h3", null, "Allocator"), s ? list(rows) : h("p.hint", null, "The source does not record the allocator's settings.")),
      h("div", null, h("h3", null, "Source"), list(source)),
      h("div", null, h("h3", null, "Notes"), notes.length ? h("ul.notes", null, notes.map((note) => h("li", null, note.code ? h("code", null, note.code) : null, " ", note.text ?? ""))) : h("p.hint", null, "Complete: nothing had to be inferred or repaired.")),
    ),
  );
}
