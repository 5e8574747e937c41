// The first screen: how much, what holds the peak, and what to do.

import type { App } from "./app";
import { css, kindColor } from "./colors";
import { fill, h } from "./dom";
import { bytes, count, counted, duration, percent } from "./format";
import { term } from "./glossary";
import { moduleOf } from "./panel";
import { choose } from "./sections";
import { eventText } from "./describe";
import type { Finding, Holder } from "./report";

/** How many holders and findings the first screen has. */
const HOLDERS = 5;
const FINDINGS = 5;

export function summary(app: App): HTMLElement {
  return h("section", { id: "summary", "aria-label": "Summary" }, figures(app), h("div.answers", null, holds(app), advice(app)));
}

function figures(app: App): HTMLElement {
  const element = h("dl.figures", null);
  const draw = () => {
    const d = app.deviceReport;
    const at = d.at_peak_allocated?.losses ?? {};
    const atReserved = d.at_peak_reserved?.losses ?? at;
    const cell = (id: string, name: string, value: string | undefined, note: string, strong = false) =>
      value === undefined ? null : h("div", { class: strong ? "figure strong" : "figure" }, h("dt", null, term(name, name.toLowerCase().replace("peak ", ""))), h("dd", { id: `figure-${id}` }, value), h("dd.note", null, note));
    const known = (value: number | null | undefined) => (value === null || value === undefined ? undefined : bytes(value));
    const exact = (value: number | null | undefined) => (value ? `${count(value)} B` : "");
    const calls = d.churn?.device_allocs === undefined ? undefined : (d.churn.device_allocs ?? 0) + (d.churn.device_frees ?? 0);
    const flushes = [d.churn?.retries ? `${count(d.churn.retries)} cache flush${d.churn.retries === 1 ? "" : "es"}` : "", d.churn?.ooms?.length ? `${d.churn.ooms.length} out of memory` : ""];
    fill(
      element,
      cell("reserved", "Peak reserved", known(d.peak_reserved), exact(d.peak_reserved), true),
      cell("allocated", "Peak allocated", known(d.peak_allocated), exact(d.peak_allocated), true),
      cell("fragmentation", "Fragmentation", d.fragmentation === null || d.fragmentation === undefined ? undefined : percent(d.fragmentation), "1 − allocated / reserved", true),
      cell("stranded", "Stranded", known(atReserved.stranded), "free beside live blocks"),
      cell("internal", "Rounding", known(at.internal), "blocks beyond requests"),
      cell("pending", "Pending", at.pending ? bytes(at.pending) : undefined, "freed, still in use"),
      cell("allocations", "Allocations", d.allocations === undefined ? undefined : count(d.allocations), [d.steps?.count ? counted(d.steps.count, "step") : "", d.duration_us ? duration(d.duration_us) : ""].filter(Boolean).join(", ")),
      cell("calls", "Device calls", calls === undefined ? undefined : count(calls), flushes.filter(Boolean).join(", ") || "to take and return memory"),
    );
  };
  app.on(["device"], draw);
  draw();
  return element;
}

/** The kinds as one bar, and the largest holders by name. */
function holds(app: App): HTMLElement {
  const aside = h("span.aside", null);
  const bar = h("div.composition", null);
  const list = h("ol.top-holders", { "aria-label": "The largest holders" });
  const element = h("div.card", { id: "holds" }, h("h2", null, "What holds the peak", aside), bar, list);
  const draw = () => {
    const d = app.deviceReport;
    composition(bar, d["kinds"]?.at_peak ?? {});
    bar.title = d["kinds"]?.evidence ?? "";
    const inUse = d.at_peak_allocated?.figures?.["active"];
    aside.textContent = inUse === undefined ? "" : `${bytes(inUse)} in use at ${eventText(d.peak_at?.["allocated"]?.tick ?? 0)}${typeof d.peak_at?.["allocated"]?.step === "number" ? `, step ${d.peak_at["allocated"].step}` : ""}`;
    const all = d.holders ?? [];
    fill(list, all.slice(0, HOLDERS).map((holder) => row(app, holder)), all.length ? null : h("li.hint", null, "Nothing was allocated."));
  };
  app.on(["device", "theme"], draw);
  app.on(["marks"], () => list.querySelectorAll("button").forEach((button, k) => button.setAttribute("aria-pressed", String(app.holder !== null && app.holder === app.deviceReport.holders?.[k]))));
  draw();
  return element;
}

function row(app: App, holder: Holder): HTMLElement {
  const color = css(kindColor(holder.kind || "unexplained"));
  const module = moduleOf(holder);
  return h(
    "li",
    null,
    h(
      "button",
      { type: "button", "data-rank": String(holder.rank ?? ""), "aria-pressed": "false", title: `${holder.label ?? ""}\n${module ? `${module}\n` : ""}${(holder.kind ?? "").replaceAll("_", " ")}, ${counted(holder.count ?? 0, "block")}`, onclick: () => choose(app, holder) },
      h("i.swatch", { style: `background:${color}` }),
      h("span.name", null, h("span.inner", null, ...names(holder.label ?? "?"), module ? h("span.file", null, ` ${module}`) : null)),
      h("b", null, bytes(holder.bytes ?? 0)),
      h("span.percent", null, holder.share === undefined ? "" : percent(holder.share)),
      h("span.share", null, h("i", { style: `width:${(holder.share ?? 0) * 100}%;background:${color}` })),
    ),
  );
}

/** A label with its last part strong: the first part is often the same for many. */
export function names(label: string): (HTMLElement | string)[] {
  const parts = label.split(" › ");
  const last = parts.pop()!;
  return [...parts.map((part) => h("span.outer", null, `${part} › `)), last];
}

export function composition(bar: HTMLElement, parts: Record<string, number>): void {
  const entries = Object.entries(parts).filter(([, value]) => value > 0).sort((a, b) => Number(a[0] === "cached_free") - Number(b[0] === "cached_free") || b[1] - a[1]);
  const total = entries.reduce((sum, [, value]) => sum + value, 0);
  const shown = (name: string) => name.replaceAll("_", " ");
  const free = (name: string) => name === "cached_free";
  const paint = (name: string) => (free(name) ? "" : `background:${css(kindColor(name))}`);
  bar.hidden = total === 0;
  fill(
    bar,
    h("div.bar", { role: "img", "aria-label": entries.map(([name, value]) => `${shown(name)} ${bytes(value)}`).join(", ") }, entries.map(([name, value]) => h("i", { class: free(name) ? "free" : undefined, "data-kind": name, style: `flex:${value / total} 0 0;${paint(name)}`, title: `${shown(name)} ${bytes(value)}, ${percent(value / total)}` }))),
    h("ul", null, entries.map(([name, value]) => h("li", null, h("i", { class: free(name) ? "swatch free" : "swatch", style: paint(name) }), term(shown(name)), " ", h("b", null, bytes(value)), h("span", null, percent(value / total))))),
  );
}

const SEVERITY = { error: ["!", "Error"], warning: ["▲", "Warning"], info: ["i", "Note"] } as const;

/** Findings in one line each, with what to copy; a click opens the details. */
export function advice(app: App): HTMLElement {
  const list = h("div.findings", null);
  const element = h("div.card", { id: "findings" }, h("h2", null, "What to do"), list);
  let all = false;
  const draw = () => {
    // The report has them by the bytes that can be won back; what failed comes before all of them.
    const failed = (f: Finding) => Number(f.severity === "error");
    const own = (app.report.findings ?? [])
      .filter((f) => f["device"] === undefined || f["device"] === null || f["device"] === (app.deviceReport["device"] ?? app.deviceIndex))
      .sort((a, b) => failed(b) - failed(a));
    element.hidden = app.report.findings === undefined;
    const told = new Set<string>();
    const hidden = all ? 0 : own.length - FINDINGS;
    fill(
      list,
      own.length
        ? own.map((f, k) => {
            // One setting often answers several findings: it is shown with the first.
            const card = finding(f, f.suggestion && !told.has(f.suggestion) ? f.suggestion : undefined);
            if (f.suggestion) told.add(f.suggestion);
            if (!all && k >= FINDINGS) card.classList.add("more");
            return card;
          })
        : h("p.hint", null, "Nothing noticed: no losses, leaks or failures worth a word."),
      hidden > 0 ? h("button", { class: "quiet", onclick: () => { all = true; draw(); } }, `${counted(hidden, "more note")}`) : null,
    );
  };
  app.on(["device"], draw);
  draw();
  return element;
}

function finding(f: Finding, suggestion: string | undefined): HTMLElement {
  const severity = f.severity && f.severity in SEVERITY ? f.severity : "info";
  const [sign, word] = SEVERITY[severity];
  return h(
    "div",
    { class: `finding ${severity}` },
    h(
      "details",
      null,
      h("summary", { title: f.headline ?? "" }, h("span.sign", { title: word, "aria-label": word }, sign), h("span.headline", null, f.headline ?? "Finding"), h("span.open", { "aria-hidden": "true" })),
      f.evidence?.length ? h("ul", null, f.evidence.map((line) => h("li", null, line))) : null,
      f.help ? h("p.help", null, f.help, " ", f.code ? h("code", null, f.code) : null) : null,
    ),
    suggestion ? copyBox(suggestion) : f.help ? h("p.next", { title: f.help }, f.help) : null,
  );
}

export function copyBox(text: string): HTMLElement {
  const button = h("button", { type: "button", "aria-label": `Copy ${text}` }, "Copy");
  button.addEventListener("click", async () => {
    button.textContent = (await copied(text)) ? "Copied" : "Select and copy";
  });
  return h("div.copy", null, h("code", null, text), button);
}

/** The clipboard of a file may be closed to scripts: then the older way, by a selection. */
async function copied(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = h("textarea.unseen", { value: text, readOnly: true });
    document.body.append(field);
    HTMLTextAreaElement.prototype["select"].call(field);
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
