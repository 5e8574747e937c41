// Search: a query finds an allocation if anything that the page shows of it contains the query. If nothing contains the
// whole query, each of its words may be found in another place.

import type { App } from "./app";
import { bytes, count } from "./format";
import type { Holder } from "./report";
import { className, sizeClass } from "./sizes";

type Test = (i: number) => boolean;

const SIZE = /^[\d.,]+\s*(b|[kmgt]ib)$/;
const NOTHING: Test = () => false;

/** Which allocations the query finds. */
export function matcher(app: App, typed: string): Test {
  const query = typed.toLowerCase().replace(/\s+/g, " ").trim();
  const numbered = exact(app, query);
  if (numbered) return numbered;
  const whole = containing(app, query);
  const words = query.split(" ");
  if (words.length === 1) return whole;
  for (let i = 0; i < app.device!.n; i++) if (whole(i)) return whole;
  const tests = words.map((word) => exact(app, word) ?? containing(app, word));
  return (i) => tests.every((test) => test(i));
}

/** Sizes, addresses, steps, streams and events by number: `step 1` is not step 10. */
function exact(app: App, query: string): Test | null {
  const device = app.device!;
  const { rects, detail } = device;
  const size = query.replace(/^(blocks )?of /, "");
  if (SIZE.test(size)) {
    const shown = size.replace(/\s*([a-z]+)$/, " $1");
    const same = once((value: number) => bytes(value).toLowerCase() === shown || `${count(value)} b` === shown || `${value} b` === shown);
    const inSegment = detail && [...detail.segments.size].map(same);
    return (i) => same(rects.block[i]) || same(rects.requested[i]) || (!!inSegment?.length && inSegment[device.segmentOf(i)] === true);
  }
  const address = /^(?:(?:segment )?at )?(0x[0-9a-f]+)$/.exec(query)?.[1];
  if (address) {
    const streams = detail?.streams.map((s) => s.toLowerCase() === address);
    const is = (text: string) => (address.length > 11 ? text === address : text.startsWith(address));
    const segments = detail && [...detail.segments.addr].map((addr) => is(device.hex(addr)));
    return (i) => streams?.[detail!.stream[i]] === true || is(device.address(i)) || (!!segments?.length && segments[device.segmentOf(i)] === true);
  }
  const [, what, digits] = /^(step|stream|event) ([\d,]+)$/.exec(query) ?? [];
  const number = Number(digits?.replaceAll(",", ""));
  if (what === "step") {
    const [from, to] = detail?.steps[number] ?? [0, 0];
    return (i) => rects.start[i] >= from && rects.start[i] < to;
  }
  if (what === "stream") {
    const named = detail?.streams.findIndex((s) => s === digits) ?? -1;
    const stream = named >= 0 ? named : number;
    return (i) => detail?.stream[i] === stream;
  }
  if (what === "event") return (i) => rects.start[i] === number + 1 || rects.end[i] === number + 1 || detail?.freed[i] === number + 1;
  return null;
}

function containing(app: App, query: string): Test {
  const device = app.device!;
  const { rects, detail } = device;
  const has = (text: string) => text.toLowerCase().includes(query);
  const stacks = app.stacks?.containing(query);
  const kinds = ["kind not known", ...app.kinds.map((kind) => `kind ${kind} ${kind.replaceAll("_", " ")}`)].map(has);
  const scopes = device.scopes.paths.map((path) => (path.length ? has(path.join("/")) || has(path.join(".")) : device.scopes.any && has("outside all scopes")));
  const classes = Array.from({ length: 51 }, (_, k) => has(`blocks of ${className(k)}`));
  const steps = stepTests(app, has);
  const places = placeTest(app, has);
  const notes = detail?.noteTexts.map((text) => has(text));
  const isBare = app.stacks?.any && (has("no stack recorded") || has("allocation without a stack"));
  const toTheEnd = has("to the end") ? device.forever : -1;
  const isPending = query === "pending" && detail ? (i: number) => rects.end[i] - detail.freed[i] > 1 : NOTHING;
  // Holders have words of their own: by size, or what tells stacks of one name apart.
  const named = (app.deviceReport.holders ?? []).filter((holder) => has(holder.label ?? "")).map((holder) => holderMatcher(app, holder));
  const isOutside = device.modules.any && has("outside all modules");
  return (i) =>
    stacks?.[rects.stack[i]] === 1 ||
    kinds[rects.kind[i]] ||
    scopes[device.scopes.of(i)] === true ||
    classes[sizeClass(rects.block[i])] ||
    steps(i) ||
    places(i) ||
    detail?.notes.get(i)?.some((note) => notes![note]) === true ||
    (isBare === true && rects.stack[i] === 0) ||
    rects.end[i] === toTheEnd ||
    isPending(i) ||
    named.some((of) => of(i)) ||
    (isOutside && device.modules.of(i) === null);
}

/** The place of an allocation in the run: a step, or beside all of them. */
function stepTests(app: App, has: (text: string) => boolean): Test {
  const { rects, detail } = app.device!;
  const isBefore = has("before the recording");
  if (!detail?.steps.length) return isBefore ? (i) => rects.start[i] === 0 : NOTHING;
  const inStep = has("steps");
  const outside = has("outside all steps");
  if (!isBefore && !inStep && !outside) return NOTHING;
  const steps = new Uint8Array(app.device!.forever + 1);
  for (const [from, to] of detail.steps) steps.fill(1, from, to);
  return (i) => (steps[rects.start[i]] ? inStep : rects.start[i] === 0 ? isBefore : outside);
}

/** Pools, classes, streams and segments, in the words of the panel and of the map of segments. */
function placeTest(app: App, has: (text: string) => boolean): Test {
  const device = app.device!;
  const { detail } = device;
  if (!detail) return NOTHING;
  const { streams, pools, small, stream, pool, segments } = detail;
  const wide = pools.length * 2;
  const groups = streams.flatMap((s, at) =>
    pools.flatMap((p) =>
      ["large", "small"].map((size) => has(`${size} pool ${p}, ${size} stream ${s}`) || has(`stream ${at}`) || has(`${p} pool · ${size} · stream ${s} · expandable`) || has(`pool ${p} · ${size} · stream ${s} · expandable`)),
    ),
  );
  const titled = (i: number) => groups[stream[i] * wide + pool[i] * 2 + small[i]];
  const isExpandable = has("expandable segment");
  if (isExpandable) return (i) => segments.expandable[device.segmentOf(i)] === 1 || (has("segment") && device.segmentOf(i) >= 0);
  const inSegment = has("segments");
  return (i) => titled(i) || (inSegment && device.segmentOf(i) >= 0);
}

/** A test of numbers that come back often. */
function once(test: (value: number) => boolean): (value: number) => boolean {
  const known = new Map<number, boolean>();
  return (value) => {
    let found = known.get(value);
    if (found === undefined) known.set(value, (found = test(value)));
    return found;
  };
}

/** Which allocations a holder of the report has. */
export function holderMatcher(app: App, holder: Holder): Test {
  const { rects } = app.device!;
  const kind = holder.kind ? app.kinds.indexOf(holder.kind.replaceAll(" ", "_")) + 1 : 0;
  const right = (i: number) => kind === 0 || rects.kind[i] === kind || rects.kind[i] === 0;
  if (holder["stack"]?.length && app.stacks) {
    const stack = app.stacks.find(holder["stack"]);
    // All that the stack holds: the holder's kind is that of the most bytes.
    return (i) => rects.stack[i] === stack;
  }
  // Named by size only if there is no stack to name them by.
  const size = holder.size_class;
  if (Array.isArray(size)) return (i) => rects.stack[i] === 0 && rects.block[i] >= size[0] && rects.block[i] < size[1] && right(i);
  if (typeof size === "number") return (i) => rects.stack[i] === 0 && rects.block[i] === size && right(i);
  const each = holder.bytes && holder.count ? holder.bytes / holder.count : -1;
  return (i) => rects.block[i] === each && right(i);
}
