// An allocation in words: the tooltip and the rows of the side panel.

import { max } from "./math";
import type { App } from "./app";
import { hex } from "./device";
import { h } from "./dom";
import { bytes, count, counted, duration, shortPath } from "./format";
import { term } from "./glossary";
import { moduleIn } from "./modules";
import { Origin } from "./payload";

export function kindName(app: App, i: number): string {
  const kind = app.device!.rects.kind[i];
  return kind > 0 ? app.kinds[kind - 1].replaceAll("_", " ") : "";
}

/** The label of the stack, as the text and the JSON have it, or a phrase if no stack was recorded. */
export function title(app: App, i: number): string {
  return app.stacks?.label(app.device!.rects.stack[i]) || kindName(app, i) || "allocation without a stack";
}

/** Why no line of Python names allocation `i`, and what to do about it; "" if one does. */
export function whyNoStack(app: App, i: number): string {
  const { rects } = app.device!;
  const frames = app.stacks?.frames(rects.stack[i]) ?? [];
  if (frames.some((f) => f.origin <= Origin.Internal)) return "";
  if (frames.length > 0) return "no Python frame: C++ code allocated it, such as a backward pass or a library. Its C++ frames name it";
  // The buffers of a plan have no stacks that a recording could add.
  if (!app.stacks?.any) return app.report.headline ? "" : 'recorded without stacks: record with context="all" and stacks="python", and lines of code stand here';
  if (rects.start[i] === 0) return "allocated before the recording began: start the history before the first allocation";
  return 'no Python frame when it was allocated: most often a backward pass, which runs in C++ threads. Record with stacks="all" to see the C++ frames';
}

/** The same for most of a holder's bytes. */
export function whyNoStackOf(app: App, all: number[]): string {
  const reasons = new Map<string, number>();
  for (const i of all) {
    const why = whyNoStack(app, i);
    reasons.set(why, (reasons.get(why) ?? 0) + app.device!.rects.block[i]);
  }
  return [...reasons].sort((a, b) => b[1] - a[1])[0]?.[0] ?? "";
}

/** The highlight in words: first what was held at the peak, then how much came and went over the whole run. */
export function foundText(app: App): string {
  const { count: all, bytes: sum, peakCount, peakBytes } = app.found;
  if (all === 0) return "nothing found";
  const held = peakCount ? `${bytes(peakBytes)} at the peak in ${counted(peakCount, "block")}` : "nothing at the peak";
  const steps = app.deviceReport.steps?.count ?? 0;
  if (peakCount === all) return held;
  return `${held}; over ${steps > 1 ? `all ${steps} steps` : "the whole run"} ${counted(all, "allocation")}, ${bytes(sum)} in turn`;
}

/** The event that led to a tick, numbered as in the text. */
export const eventText = (tick: number): string => (tick === 0 ? "the start" : `event ${count(tick - 1)}`);

/** Label and value of everything known of allocation `i`. */
export function facts(app: App, i: number): [string, string][] {
  const device = app.device!;
  const { rects, detail } = device;
  const { start, end, requested, block } = rects;
  const rows: [string, string][] = [];
  const forever = end[i] === device.forever;
  rows.push(["requested", `${bytes(requested[i])} (${count(requested[i])} B)`]);
  if (block[i] !== requested[i]) rows.push(["block", `${bytes(block[i])}, ${bytes(block[i] - requested[i])} over`]);
  const ticks = `${count(end[i] - start[i])} events`;
  const [from, to] = [device.timeAt(start[i]), device.timeAt(end[i])];
  const lasting = from !== null && to !== null ? `${duration(to - from)}, ${ticks}` : ticks;
  rows.push(["lifetime", forever ? `${lasting}, to the end` : lasting]);
  rows.push(["born", start[i] === 0 ? "before the recording" : from !== null ? `${duration(from)}, ${eventText(start[i])}` : eventText(start[i])]);
  const scope = device.scopes.paths[device.scopes.of(i)];
  if (scope.length) rows.push(["scope", scope.join("/")]);
  const module = device.modules.of(i);
  if (module !== null) rows.push(["module", module]);
  for (const note of new Set(detail?.notes.get(i))) if (moduleIn(detail!.noteTexts[note]) === null) rows.push(["note", detail!.noteTexts[note]]);
  if (detail && detail.freed[i] < end[i]) {
    const pending = end[i] - detail.freed[i];
    if (pending > 1) rows.push(["pending", `${count(pending)} events after its free`]);
  }
  const kind = kindName(app, i);
  if (kind) rows.push(["kind", app.deviceReport["kinds"]?.inferred === false ? kind : `${kind} (inferred)`]);
  if (detail) {
    rows.push(["stream", detail.streams[detail.stream[i]] ?? "?"]);
    rows.push(["pool", `${detail.pools[detail.pool[i]] ?? "?"}, ${detail.small[i] ? "small" : "large"}`]);
    const segment = device.segmentOf(i);
    if (segment >= 0) rows.push(["segment", `${bytes(detail.segments.size[segment])} at ${hex(detail.base, detail.segments.addr[segment])}`]);
    rows.push(["address", device.address(i)]);
  }
  return rows;
}

/** `plain`: for a tooltip, in which the reader cannot point at a word. */
export function factList(rows: [string, string][], plain = false): HTMLElement {
  return h("dl.facts", null, rows.map(([k, v]) => [h("dt", null, plain ? k : term(k)), h("dd", null, v)]).flat());
}

/** The values of the curves at a tick. */
export function instant(app: App, tick: number): [string, string][] {
  const device = app.device!;
  const rows: [string, string][] = [];
  const reserved = device.reserved?.at[tick];
  const active = device.active.at[tick];
  if (reserved !== undefined) rows.push(["reserved", bytes(reserved)]);
  rows.push(["active", bytes(active)]);
  if (device.allocated) rows.push(["allocated", bytes(device.allocated.at[tick])]);
  if (reserved !== undefined) rows.push(["free in reserved", bytes(max(0, reserved - active))]);
  return rows;
}

export function when(app: App, tick: number): string {
  const time = app.device!.timeAt(tick);
  const step = app.device!.stepAt(tick);
  return [time !== null ? duration(time) : "", eventText(tick), step >= 0 ? `step ${step}` : ""].filter(Boolean).join(" · ");
}

export function tooltip(app: App, i: number, tick: number): HTMLElement[] {
  const foot = h("div.tip-foot", null, when(app, tick), h("span", null, instant(app, tick).slice(0, 2).map(([k, v]) => `${k} ${v}`).join(" · ")));
  if (i < 0) return [foot];
  const stack = app.device!.rects.stack[i];
  const frames = (app.stacks?.frames(stack) ?? []).filter((f) => f.file !== "" && f.file !== "??");
  const named = app.stacks?.name(stack);
  const from = max(0, frames.findIndex((f) => f === named));
  return [
    h("div.tip-head", null, h("i.swatch", { style: `background:${app.colorOf(i)}` }), h("b", null, bytes(app.device!.rects.block[i])), h("span", null, title(app, i))),
    factList(facts(app, i), true),
    frames.length > 0
      ? h("ol.tip-stack", null, frames.slice(from, from + 5).map((f) => h("li", null, f.name || "?", h("span", null, `${shortPath(f.file)}:${f.line}`))))
      : h("span"),
    foot,
  ];
}
