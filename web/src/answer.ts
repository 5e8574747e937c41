// The answer of the planner or of `fit`: its tiles, bar and tables take the place of an allocator's figures.

import { css, kindColor } from "./colors";
import { h } from "./dom";
import { term } from "./glossary";
import { bytes } from "./format";
import type { Bar, Headline, Part } from "./report";

export function answer({ title, tone, tiles, bar, lists, notes }: Headline): HTMLElement {
  return h(
    "div",
    { id: "answer" },
    h("h2", { class: tone }, title),
    h("dl.figures", null, tiles.map((t) => h("div", { class: t.strong ? "figure strong" : "figure" }, h("dt", null, t.name), h("dd", null, t.value), h("dd.note", null, t.note)))),
    bar && memory(bar),
    lists.map((l) => [
      h("h3", null, l.title),
      h("table.holders.cards", null, h("thead", null, h("tr", null, l.columns.map((c) => h("th", { scope: "col" }, c)))), h("tbody", null, l.rows.map((r) => h("tr", null, r.map((c, k) => h("td", { "data-label": l.columns[k] }, c)))))),
    ]).flat(),
    notes.map((n) => h("p.caption", null, n)),
  );
}

const isFree = (name: string): boolean => name.startsWith("reserved");

/** The parts, the rest of the limit, and a mark at its end if the parts are larger. */
function memory({ parts, limit, of }: Bar): HTMLElement {
  const used = parts.reduce((sum, p) => sum + p.bytes, 0);
  const all = used < limit ? [...parts, { name: `free of ${of}`, bytes: limit - used }] : parts;
  const look = (p: Part, i: number, name: string) => {
    // Parts that hold nothing look as cached free memory does elsewhere.
    const held = i < parts.length && !isFree(p.name);
    return h("i", { class: held ? name : name + " free", style: `flex:${p.bytes};background:${held ? css(kindColor(p.name)) : ""}`, title: p.name });
  };
  return h(
    "div.composition",
    null,
    h("div.bar", null, all.map((p, i) => look(p, i, ""))),
    used > limit && h("p.caption", { style: `margin-left:${(limit / used) * 100}%` }, `▲ ${of} ends here`),
    h("ul", null, all.map((p, i) => h("li", null, look(p, i, "swatch"), term(p.name), h("b", null, bytes(p.bytes))))),
  );
}
