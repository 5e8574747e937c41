// The tree behind the flame graph: bytes by stack, by module path or by step, at an instant or over the whole run.

import type { App } from "./app";
import { lowerBound } from "./math";
import { bytes } from "./format";
import { Origin } from "./payload";

export type By = "stack" | "module" | "step";
/** Live at the peak, at the instant, at some time in the interval; allocated in the interval, in all. */
export type Of = "peak" | "instant" | "lived" | "born" | "all";

/** The subject of the tree. */
export interface Look {
  by: By;
  of: Of;
  /** The callee first: from the leaf to the root. */
  inverted: boolean;
}

export interface FlameNode {
  text: string;
  path: string[];
  parent: FlameNode | null;
  children: Map<string, FlameNode>;
  bytes: number;
  blocks: number;
  /** Bytes by kind, 0 for not known. */
  byKind: Float64Array;
}

/** Allocations that belong together: one number a group with one path, and that path, the outermost part first. */
interface Grouping {
  group(i: number): number | string;
  path(i: number): string[];
}

export function frameText(f: { name: string; file: string; line: number }): string {
  const file = f.file.split(/[\\/]/).pop() ?? "";
  return file === "" ? f.name : `${file}${f.line ? `:${f.line}` : ""} ${f.name}`;
}

function grouping(app: App, { by, inverted }: Look): Grouping {
  const found = forwards(app, by);
  return inverted ? { group: found.group, path: (i) => found.path(i).reverse() } : found;
}

function forwards(app: App, by: By): Grouping {
  const device = app.device!;
  const { rects, detail } = device;
  const kind = (i: number) => (rects.kind[i] > 0 ? app.kinds[rects.kind[i] - 1].replaceAll("_", " ") : "kind not known");
  const size = (i: number) => `blocks of ${bytes(rects.block[i])}`;
  const bare = (i: number) => `${rects.kind[i]}/${rects.block[i]}`;
  const what = (i: number) => (rects.stack[i] > 0 ? [app.stacks!.label(rects.stack[i])] : [kind(i), size(i)]);
  const group = (i: number) => (rects.stack[i] > 0 ? String(rects.stack[i]) : bare(i));
  if (by === "module") {
    const { modules, scopes } = device;
    const path = (i: number) => (modules.any ? (modules.of(i)?.split(".") ?? ["outside all modules"]) : scopes.of(i) ? scopes.paths[scopes.of(i)] : ["outside all scopes"]);
    return {
      group: (i) => `${modules.any ? modules.of(i) : scopes.of(i)}:${group(i)}`,
      path: (i) => [...path(i), ...what(i)],
    };
  }
  if (by === "step") {
    const stepOf = new Int32Array(device.lastTick + 2).fill(-1);
    detail?.steps.forEach(([from, to], k) => stepOf.fill(k, from, to));
    const step = (i: number) => stepOf[rects.start[i]];
    return {
      group: (i) => `${step(i)}:${rects.kind[i]}:${group(i)}`,
      path: (i) => [step(i) >= 0 ? `step ${step(i)}` : rects.start[i] === 0 ? "before the recording" : "outside all steps", kind(i), ...(rects.stack[i] > 0 ? [app.stacks!.label(rects.stack[i])] : [size(i)])],
    };
  }
  return {
    group: (i) => (rects.stack[i] > 0 ? rects.stack[i] : bare(i)),
    path: (i) => {
      const frames = app.stacks?.frames(rects.stack[i]) ?? [];
      if (frames.length === 0) return app.stacks?.any ? ["no stack recorded", kind(i), size(i)] : [kind(i), size(i)];
      // torch's own frames say little, except the innermost one.
      const innermost = frames.findIndex((f) => f.origin !== Origin.Native);
      return frames.filter((f, k) => f.origin <= Origin.Library || innermost < 0 || k === innermost).map(frameText).reverse();
    },
  };
}

/** Calls `see` for each allocation that `of` means. */
export function each(app: App, of: Of, see: (i: number) => void): void {
  const device = app.device!;
  const { start } = device.rects;
  const [from, to] = app.span ?? [0, device.forever];
  if (of === "all") for (let i = 0; i < device.n; i++) see(i);
  else if (of === "lived") device.alive(from, to, see);
  else if (of === "born") for (let i = lowerBound(start, from), last = lowerBound(start, to); i < last; i++) see(i);
  else device.aliveAt(of === "peak" ? app.peakTick : app.cursor).forEach(see);
}

export function flameTree(app: App, look: Look): FlameNode {
  const device = app.device!;
  const { rects } = device;
  const kinds = app.kinds.length + 1;
  const node = (text: string, parent: FlameNode | null): FlameNode => ({ text, path: parent ? [...parent.path, text] : [], parent, children: new Map(), bytes: 0, blocks: 0, byKind: new Float64Array(kinds) });
  const root = node("all", null);
  const { group, path } = grouping(app, look);
  const leaves = new Map<number | string, FlameNode>();
  const add = (i: number) => {
    const key = group(i);
    let leaf = leaves.get(key);
    if (!leaf) {
      leaf = root;
      for (const text of path(i)) {
        let child: FlameNode | undefined = leaf.children.get(text);
        if (!child) leaf.children.set(text, (child = node(text, leaf)));
        leaf = child;
      }
      leaves.set(key, leaf);
    }
    for (let at: FlameNode | null = leaf; at; at = at.parent) {
      at.bytes += rects.block[i];
      at.blocks++;
      at.byKind[rects.kind[i]] += rects.block[i];
    }
  };
  each(app, look.of, add);
  return root;
}

/** True if an allocation is in a branch, at any time. */
export function inBranch(app: App, look: Look, branch: string[]): (i: number) => boolean {
  const { group, path } = grouping(app, look);
  const known = new Map<number | string, boolean>();
  return (i) => {
    const key = group(i);
    let found = known.get(key);
    if (found === undefined) {
      const own = path(i);
      known.set(key, (found = branch.every((text, k) => own[k] === text)));
    }
    return found;
  };
}
