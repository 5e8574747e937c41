// Search: a query finds an allocation if anything that the page shows of it contains the query.

import type { App } from "./app";
import { bytes, count } from "./format";
import type { Holder } from "./report";

const SIZE = /^[\d.,]+\s*(b|[kmgt]ib)$/;

/** Which allocations the query finds. */
export function matcher(app: App, typed: string): (i: number) => boolean {
  const query = typed.toLowerCase().trim();
  const device = app.device!;
  const { rects, detail } = device;
  if (SIZE.test(query)) {
    const shown = query.replace(/\s*([a-z]+)$/, " $1");
    const known = new Map<number, boolean>();
    const same = (value: number) => {
      let found = known.get(value);
      if (found === undefined) known.set(value, (found = bytes(value).toLowerCase() === shown || `${count(value)} b` === shown || `${value} b` === shown));
      return found;
    };
    return (i) => same(rects.block[i]) || same(rects.requested[i]);
  }
  if (/^0x[0-9a-f]+$/.test(query)) {
    const streams = detail?.streams.map((s) => s.toLowerCase() === query);
    const exact = query.length > 11;
    return (i) => streams?.[detail!.stream[i]] === true || (exact ? device.address(i) === query : device.address(i).startsWith(query));
  }
  const step = /^step (\d+)$/.exec(query);
  if (step) {
    const [from, to] = detail?.steps[Number(step[1])] ?? [0, 0];
    return (i) => rects.start[i] >= from && rects.start[i] < to;
  }
  const has = (text: string) => text.toLowerCase().includes(query);
  const stacks = app.stacks?.containing(query);
  const kinds = app.kinds.map((k) => has(k.replaceAll("_", " ")) || has(k));
  const streams = detail?.streams.map((s) => has(`stream ${s}`));
  const pools = detail?.pools.map((p) => has(`pool ${p}`) || has(`${p} pool`));
  const notes = detail?.noteTexts.map(has);
  const scopes = device.scopes.paths.map((p) => has(p.join("/")));
  // Holders that are named by their size have their own words.
  const named = (app.deviceReport.holders ?? []).filter((holder) => !holder["stack"]?.length && has(holder.label ?? "")).map((holder) => holderMatcher(app, holder));
  return (i) =>
    stacks?.[rects.stack[i]] === 1 ||
    (rects.kind[i] > 0 && kinds[rects.kind[i] - 1]) ||
    streams?.[detail!.stream[i]] === true ||
    pools?.[detail!.pool[i]] === true ||
    scopes[device.scopes.of(i)] === true ||
    detail?.notes.get(i)?.some((note) => notes![note]) === true ||
    named.some((of) => of(i));
}

/** Which allocations a holder of the report has. */
export function holderMatcher(app: App, holder: Holder): (i: number) => boolean {
  const { rects } = app.device!;
  const kind = holder.kind ? app.kinds.indexOf(holder.kind.replaceAll(" ", "_")) + 1 : 0;
  const right = (i: number) => kind === 0 || rects.kind[i] === kind || rects.kind[i] === 0;
  if (holder["stack"]?.length && app.stacks) {
    const stack = app.stacks.find(holder["stack"]);
    // All that the stack holds: the holder's kind is that of the most bytes.
    return (i) => rects.stack[i] === stack;
  }
  // Named by size only where there is no stack to name them by.
  const size = holder.size_class;
  if (Array.isArray(size)) return (i) => rects.stack[i] === 0 && rects.block[i] >= size[0] && rects.block[i] < size[1] && right(i);
  if (typeof size === "number") return (i) => rects.stack[i] === 0 && rects.block[i] === size && right(i);
  const each = holder.bytes && holder.count ? holder.bytes / holder.count : -1;
  return (i) => rects.block[i] === each && right(i);
}
