// The types that the page relies on. A member of another type is left out, so that a report that was opened cannot
// break the page; every member may be missing anyway.

import type { Report } from "./report";

export type Json = Record<string, any>;

/** s: text, n: a number from 0, N: or null, b: yes or no, x: any value, as text later; a list; members; or a map. */
type Shape = "s" | "n" | "N" | "b" | "x" | Shape[] | { [name: string]: Shape };

const FRAME: Shape = { name: "s", file: "s", line: "n" };
const NOTES: Shape = [{ code: "s", text: "s" }];
const WHEN: Shape = { "tick": "n", "time_us": "N", "step": "N" };
const INSTANT: Shape = { "tick": "n", "figures": { "*": "n" }, "losses": { "*": "n" } };
const DEVICE: Shape = {
  "device": "n",
  "events": "n",
  "allocations": "n",
  "preexisting": "n",
  "duration_us": "N",
  "peak_allocated": "n",
  "peak_active": "n",
  "peak_reserved": "N",
  "fragmentation": "N",
  "peak_at": { "*": WHEN },
  "at_peak_allocated": INSTANT,
  "at_peak_reserved": INSTANT,
  "kinds": { "inferred": "b", "evidence": "s", "at_peak": { "*": "n" } },
  "holders": [{ "rank": "n", "bytes": "n", "count": "n", "share": "n", "kind": "s", "label": "s", "scope": ["s"], "notes": ["s"], "stack": [FRAME], "size_class": "x" }],
  "steps": { "count": "n", "evidence": "s" },
  "churn": { "device_allocs": "n", "device_frees": "n", "retries": "n", "ooms": [{ "tick": "n", "asked": "n" }] },
  "notes": NOTES,
};
const REPORT: Shape = {
  "tool": { "name": "s", "version": "s" },
  "source": { "path": "s", "format": "s", "producer": "s", "notes": NOTES },
  "settings": { "conf": "s", "max_split_size": "N", "garbage_collection_threshold": "n", "expandable_segments": "b", "roundup_power2_divisions": ["n"], "other": { "*": "x" } },
  "devices": [DEVICE],
  "findings": [{ "code": "s", "severity": "s", "headline": "s", "evidence": ["s"], "help": "s", "suggestion": "s", "device": "N" }],
  "headline": {
    "title": "s",
    "tone": "s",
    "tiles": [{ "name": "s", "value": "s", "note": "s", "strong": "b" }],
    "bar": { "parts": [{ "name": "s", "bytes": "n" }], "limit": "n", "of": "s" },
    "lists": [{ "title": "s", "columns": ["s"], "rows": [["s"]] }],
    "notes": ["s"],
  },
};
const RANK: Shape = { "rank": "n", "file": "s", "device": "N", "group": "N", "events": "N", "peak_allocated": "N", "peak_reserved": "N", "fragmentation": "N", "steps": "N", "step_us": "N", "error": "s" };
const RANKS: Shape = {
  "path": "s",
  "files": "n",
  "numbering": "s",
  "ranks": [RANK],
  "groups": ["x"],
  "imbalance": "N",
  "imbalance_of": "s",
  "worst_rank": "N",
  "median_rank": "N",
  "missing_ranks": ["n"],
  "not_compared": ["s"],
  "odd_ranks": [{ "rank": "n", "why": "s", "sentence": "s", "holders": [{ "label": "s", "kind": "s", "bytes": "n", "peer_bytes": "n" }] }],
  "differences": [{ "ranks": [{ "rank": "n" }], "peaks": ["n"] }],
  "waiting": [{ "ranks": "n", "for_rank": "n", "us_per_step": "n", "held_bytes": "n" }],
  "first_divergence": { "step": "N", "tick": "n", "time_us": "N", "sentence": "s" },
  "timelines": [{ "rank": "n", "device": "n", "ticks": ["n"], "time_us": ["n"], "reserved": ["n"], "allocated": ["n"] }],
};

function fit(value: any, shape: Shape): any {
  if (shape === "x") return value ?? undefined;
  if (shape === "s") return typeof value === "string" ? value : undefined;
  if (shape === "b") return typeof value === "boolean" ? value : undefined;
  if (shape === "N" && value === null) return null;
  if (shape === "n" || shape === "N") return Number.isFinite(value) && value >= 0 ? value : undefined;
  if (Array.isArray(shape)) return Array.isArray(value) ? value.map((item) => fit(item, shape[0])).filter((item) => item !== undefined) : undefined;
  if (typeof value !== "object" || value === null || Array.isArray(value)) return undefined;
  const own: Json = {};
  for (const [name, item] of Object.entries(value)) {
    const known = Object.hasOwn(shape, name) ? shape[name] : shape["*"];
    const fitting = known && name !== "__proto__" ? fit(item, known) : undefined;
    if (fitting !== undefined) own[name] = fitting;
  }
  return own;
}

export function shapeReport(value: unknown): Report {
  const report: Json = fit(value, REPORT) ?? {};
  // An answer is shown whole or not at all.
  const headline = report["headline"];
  if (headline) {
    for (const list of ["tiles", "lists", "notes"]) headline[list] ??= [];
    for (const list of headline["lists"]) for (const part of ["columns", "rows"]) list[part] ??= [];
    const bar = headline["bar"];
    if (bar && !(bar["parts"] && bar["limit"] > 0)) delete headline["bar"];
  }
  return report as Report;
}

export function shapeRanks(value: unknown): Json {
  const ranks: Json = fit(value, RANKS) ?? {};
  for (const list of ["ranks", "groups", "odd_ranks", "differences", "waiting", "not_compared", "timelines"]) ranks[list] ??= [];
  for (const name of ["imbalance", "worst_rank", "median_rank", "first_divergence"]) ranks[name] ??= null;
  for (const odd of ranks["odd_ranks"]) odd["holders"] ??= [];
  for (const one of ranks["odd_ranks"]) one["why"] ??= "";
  ranks["differences"] = ranks["differences"].filter((pair: Json) => pair["ranks"]?.length === 2 && pair["peaks"]?.length === 2);
  for (const line of ranks["timelines"]) for (const column of ["ticks", "time_us", "reserved", "allocated"]) line[column] ??= [];
  return ranks;
}
