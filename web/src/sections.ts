// The parts that come from the report alone: the key figures, the findings, the holders, the settings and the notes.

import { max } from "./math";
import type { App } from "./app";
import { css, kindColor } from "./colors";
import { fill, h } from "./dom";
import { bytes, count, counted, duration, percent, shortPath } from "./format";
import type { Finding, Holder, Note } from "./report";

export function figures(app: App): HTMLElement {
  const element = h("dl.figures", null);
  const draw = () => {
    const d = app.deviceReport;
    const at = d.at_peak_allocated?.losses ?? {};
    const atReserved = d.at_peak_reserved?.losses ?? at;
    const cell = (id: string, name: string, value: string | undefined, note: string, strong = false) =>
      value === undefined ? null : h("div", { class: strong ? "figure strong" : "figure" }, h("dt", null, name), h("dd", { id: `figure-${id}` }, value), h("dd.note", null, note));
    const known = (value: number | null | undefined) => (value === null || value === undefined ? undefined : bytes(value));
    const exact = (value: number | null | undefined) => (value ? `${count(value)} B` : "");
    fill(
      element,
      cell("allocated", "Peak allocated", known(d.peak_allocated), exact(d.peak_allocated), true),
      cell("reserved", "Peak reserved", known(d.peak_reserved), exact(d.peak_reserved), true),
      cell("fragmentation", "Fragmentation", d.fragmentation === null || d.fragmentation === undefined ? undefined : percent(d.fragmentation), "1 − allocated / reserved, at their peaks", true),
      cell("stranded", "Stranded", known(atReserved.stranded), "free beside live blocks, at the reserved peak"),
      cell("internal", "Rounding", known(at.internal), "in blocks beyond the request, at the peak"),
      cell("pending", "Pending", at.pending ? bytes(at.pending) : undefined, "freed, still used by a stream"),
      cell("allocations", "Allocations", d.allocations === undefined ? undefined : count(d.allocations), [d.events ? counted(d.events, "event") : "", d.duration_us ? duration(d.duration_us) : ""].filter(Boolean).join(" in ")),
      cell("calls", "Device calls", d.churn?.device_allocs === undefined ? undefined : count((d.churn.device_allocs ?? 0) + (d.churn.device_frees ?? 0)), [d.churn?.retries ? `${count(d.churn.retries)} cache flush${d.churn.retries === 1 ? "" : "es"}` : "", d.churn?.ooms?.length ? `${d.churn.ooms.length} out of memory` : ""].filter(Boolean).join(", ") || "to take and give back memory"),
    );
  };
  app.on(["device"], draw);
  draw();
  return element;
}

const SEVERITY = { error: ["!", "Error"], warning: ["▲", "Warning"], info: ["i", "Note"] } as const;

export function findings(app: App): HTMLElement {
  const list = h("div.findings", null);
  const section = h("section", { "aria-labelledby": "findings-title", id: "findings" }, h("h2", { id: "findings-title" }, "Findings"), list);
  const card = (finding: Finding, open: boolean) => {
    const severity = finding.severity && finding.severity in SEVERITY ? finding.severity : "info";
    const [sign, word] = SEVERITY[severity];
    return h(
      "details",
      { class: `finding ${severity}`, open },
      h("summary", null, h("span.sign", { title: word, "aria-label": word }, sign), h("span.headline", null, finding.headline ?? "Finding"), h("code.code", null, finding.code ?? "")),
      finding.evidence?.length ? h("ul", null, finding.evidence.map((line) => h("li", null, line))) : null,
      finding.help ? h("p.help", null, finding.help) : null,
    );
  };
  const draw = () => {
    const rank = { error: 0, warning: 1, info: 2 };
    const own = (app.report.findings ?? [])
      .filter((f) => f["device"] === undefined || f["device"] === null || f["device"] === (app.deviceReport["device"] ?? app.deviceIndex))
      .sort((a, b) => rank[a.severity ?? "info"] - rank[b.severity ?? "info"]);
    section.hidden = app.report.findings === undefined;
    fill(list, own.length ? own.map((f, i) => card(f, i < 3)) : h("p.hint", null, "Nothing noticed: no losses, leaks or failures worth a word."));
  };
  app.on(["device"], draw);
  draw();
  return section;
}

type Column = "rank" | "bytes" | "count" | "kind" | "label";

export function holders(app: App): HTMLElement {
  const body = h("tbody");
  const bar = h("div.composition", null);
  const caption = h("p.caption", null);
  let sorted: { by: Column; down: boolean } = { by: "rank", down: false };
  const heads: [Column, string, string][] = [["rank", "#", "num"], ["bytes", "Bytes at the peak", ""], ["count", "Blocks", "num"], ["kind", "Kind", ""], ["label", "Where", ""]];
  const headRow = h("tr");
  const place = (holder: Holder) => {
    // The innermost frame is what the report ranks by; the label says it in short.
    const first = holder.stack?.find((f) => f.file && f.file !== "??") ?? holder.stack?.[0];
    return h("td.where", null, h("span.name", null, holder.label || first?.name || "?"), first?.file ? h("span.file", { title: first.file }, `${shortPath(first.file)}:${first.line ?? 0}`) : null);
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
    composition(bar, d["kinds"]?.at_peak ?? {});
    const inferred = d["kinds"] ? (d["kinds"].inferred === false ? "" : `Kinds are inferred${d["kinds"].evidence ? ` from ${d["kinds"].evidence.replace(/^(inferred )?from /, "")}` : ""}.`) : "";
    fill(caption, inferred);
    bar.hidden = !d["kinds"]?.at_peak;
  };
  app.on(["device", "theme"], draw);
  app.on(["marks"], () => {
    for (const row of body.querySelectorAll<HTMLElement>("tr")) row.setAttribute("aria-selected", String(app.holder !== null && row.dataset.rank === String(app.holder.rank ?? "")));
  });
  draw();
  return h(
    "section",
    { "aria-labelledby": "holders-title", id: "holders" },
    h("h2", { id: "holders-title" }, "What holds the peak"),
    bar,
    caption,
    h("div.scroll", null, h("table.holders", null, h("thead", null, headRow), body)),
  );
}

function composition(bar: HTMLElement, parts: Record<string, number>): void {
  const entries = Object.entries(parts).filter(([, value]) => value > 0);
  const total = entries.reduce((sum, [, value]) => sum + value, 0);
  const shown = (name: string) => name.replaceAll("_", " ");
  fill(
    bar,
    h("div.bar", { role: "img", "aria-label": entries.map(([name, value]) => `${shown(name)} ${bytes(value)}`).join(", ") }, entries.map(([name, value]) => h("i", { class: name === "cached_free" ? "free" : undefined, style: `flex:${value / total} 0 0;${name === "cached_free" ? "" : `background:${css(kindColor(name, 0))}`}`, title: `${shown(name)} ${bytes(value)}` }))),
    h("ul", null, entries.map(([name, value]) => h("li", null, h("i", { class: name === "cached_free" ? "swatch free" : "swatch", style: name === "cached_free" ? "" : `background:${css(kindColor(name, 0))}` }), shown(name), " ", h("b", null, bytes(value)), h("span", null, percent(value / total))))),
  );
}

function choose(app: App, holder: Holder): void {
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
