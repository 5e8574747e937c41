// The parts below the picture that come from the report alone: all holders, the settings and the notes.

import { max } from "./math";
import type { App } from "./app";
import { css, kindColor } from "./colors";
import { fill, h } from "./dom";
import { bytes, count, counted, percent } from "./format";
import { names } from "./summary";
import type { Holder, Note } from "./report";

type Column = "rank" | "bytes" | "count" | "kind" | "label";

export function holders(app: App): HTMLElement {
  const body = h("tbody");
  const caption = h("p.caption", null);
  let sorted: { by: Column; down: boolean } = { by: "rank", down: false };
  const heads: [Column, string, string][] = [["rank", "#", "num"], ["bytes", "Bytes at the peak", ""], ["count", "Blocks", "num"], ["kind", "Kind", ""], ["label", "Where", ""]];
  const headRow = h("tr");
  const place = (holder: Holder) => {
    const first = holder.stack?.find((f) => f.file && f.file !== "??") ?? holder.stack?.[0];
    return h("td.where", null, h("span.name", { title: first?.file ?? "" }, ...names(holder.label || first?.name || "?")), holder.stack?.length && holder.scope?.length ? h("span.file", null, holder.scope.join("/")) : null);
  };
  const draw = () => {
    const d = app.deviceReport;
    const list = [...(d.holders ?? [])];
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
          h("button", { onclick: () => { sorted = { by: column, down: sorted.by === column ? !sorted.down : column === "bytes" || column === "count" }; draw(); headRow.querySelectorAll("button")[heads.findIndex((x) => x[0] === column)]?.focus(); } }, text, sorted.by === column ? (sorted.down ? " ↓" : " ↑") : ""),
        ),
      ),
    );
    const most = max(1, ...list.map((x) => x.bytes ?? 0));
    fill(
      body,
      list.map((holder) => {
        const pick = () => choose(app, holder);
        const kind = holder.kind ?? "";
        const color = css(kindColor(kind || "unexplained", 0));
        return h(
          "tr",
          { tabIndex: 0, "data-rank": String(holder.rank ?? ""), "aria-selected": String(app.holder === holder), onclick: pick, onkeydown: (event: KeyboardEvent) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(); } } },
          h("td.num.rank", null, holder.rank ?? ""),
          h("td.bytes", null, h("span.share", null, h("i", { style: `width:${((holder.bytes ?? 0) / most) * 100}%;background:${color}` })), h("b", null, bytes(holder.bytes ?? 0)), h("span.percent", null, holder.share === undefined ? "" : percent(holder.share))),
          h("td.num", null, count(holder.count ?? 0)),
          h("td.kind", null, kind ? h("i.swatch", { style: `background:${color}` }) : null, kind.replaceAll("_", " ")),
          place(holder),
        );
      }),
    );
    const inferred = d["kinds"] ? (d["kinds"].inferred === false ? "" : `Kinds are inferred${d["kinds"].evidence ? ` from ${d["kinds"].evidence.replace(/^(inferred )?from /, "")}` : ""}.`) : "";
    fill(caption, inferred);
  };
  app.on(["device", "theme"], draw);
  app.on(["marks"], () => {
    for (const row of body.querySelectorAll<HTMLElement>("tr")) row.setAttribute("aria-selected", String(app.holder !== null && row.dataset.rank === String(app.holder.rank ?? "")));
  });
  draw();
  return h(
    "section",
    { "aria-labelledby": "holders-title", id: "holders" },
    h("h2", { id: "holders-title" }, "Largest holders at the peak"),
    caption,
    h("div.scroll", null, h("table.holders", null, h("thead", null, headRow), body)),
  );
}

/** Lights a holder up in the timeline, at the peak. */
export function choose(app: App, holder: Holder): void {
  if (app.holder === holder) return app.light({});
  app.light({ holder });
  const peak = app.deviceReport.peak_at?.["allocated"]?.tick;
  if (peak !== undefined) app.setCursor(peak);
  const found = app.matches();
  const { rects } = app.device!;
  const held = found.filter((i) => rects.start[i] <= app.cursor && app.cursor < rects.end[i]);
  const largest = (held.length ? held : found).reduce((best, i) => (best < 0 || rects.block[i] > rects.block[best] ? i : best), -1);
  app.select(largest);
  document.getElementById("timeline")?.scrollIntoView({ "block": "nearest", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
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
