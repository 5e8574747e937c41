// Where a report comes from: the page's own elements, or another report that the reader opened. A file that was opened
// may hold anything: its text is never parsed as markup, its JSON keeps only what has the right type, and its numbers
// are checked before anything of it is shown.

import { inflate, readDetail, readRects, readTables, verify } from "./payload";
import { shapeRanks, shapeReport, type Json } from "./shape";
import type { Report } from "./report";

/** The parts that the reader can choose: each device of the run, or of each rank that is in the page. */
export interface PageView {
  report: Report;
  /** The device's position in that report. */
  device: number;
  /** How the names of its sections begin. */
  prefix: string;
  rank: number | null;
}

export interface Source {
  /** The name of the run. */
  name: string;
  /** The file that was opened; empty for the page's own report. */
  file: string;
  report: Report;
  views: PageView[];
  ranks: Json | null;
  /** The bytes of a section, null if there is none. */
  section(name: string): Promise<Uint8Array | null>;
}

/** The text of an element of the report, "" if there is none. */
type Texts = (id: string) => string;

const RANKED = /^report\.(\d+)$/;

async function sourceOf(texts: Texts, ids: string[], name: string, file: string): Promise<Source> {
  const report = shapeReport(parse(texts("report")));
  const of = (own: Report, prefix: string, rank: number | null) => (own.devices ?? []).map((_, device) => ({ report: own, device, prefix, rank }));
  const ranked = ids.flatMap((id) => {
    const rank = RANKED.exec(id)?.[1];
    return rank === undefined ? [] : of(shapeReport(parse(texts(id))), `${rank}.`, Number(rank));
  });
  const section = async (id: string) => (ids.includes(id) ? inflate(texts(id)) : null);
  const ranks = await section("ranks");
  return {
    name: name || report.source?.path || "run",
    file,
    report,
    views: [...of(report, "", null), ...ranked],
    ranks: ranks && shapeRanks(parse(new TextDecoder().decode(ranks))),
    section,
  };
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text || "{}");
  } catch {
    return {};
  }
}

/** The report that the page was written with. */
export function ownSource(name: string): Promise<Source> {
  const elements = [...document.querySelectorAll<HTMLScriptElement>("script[type][id]")];
  const texts = (id: string) => {
    const element = document.getElementById(id);
    const text = element?.textContent ?? "";
    // Decoded once: the text is not needed again, and a million allocations are megabytes of it.
    if (element && !id.startsWith("report")) element.textContent = "";
    return text;
  };
  return sourceOf(texts, elements.map(({ id }) => id), name, "");
}

const ELEMENT = /[<]script type="application\/(?:json|octet-stream\+base64)" id="([\w.]{1,40})">([^<]*)<\/script>/g;
const WRITE = "write a page with `gapless report FILE -o report.html`, and open that";
const MOST_TEXT = 2 ** 29;

/** The report in `file`, whole and checked. If it is none, rejects with words for the reader. */
export async function openSource(file: File): Promise<Source> {
  if (file.size === 0) throw new Error(`${file.name} is empty`);
  if (file.size > MOST_TEXT) throw new Error(`${file.name} has ${file.size} bytes, more than a browser can open`);
  const head = new TextDecoder().decode(await file.slice(0, 4096).arrayBuffer());
  if (!/^\s*<!doctype html>/i.test(head)) throw new Error(`${file.name} is ${kindOf(head)}: ${WRITE}`);
  const text = await file.text();
  if (!/<\/html>\s*$/.test(text.slice(-100))) throw new Error(`${file.name} ends too early: it was not written or copied to its end`);
  const found = new Map<string, string>();
  for (const [, id, content] of text.matchAll(ELEMENT)) if (!found.has(id)) found.set(id, content);
  const isOurs = text.includes('<meta name="generator" content="Gapless">');
  if (!found.has("report")) {
    throw new Error(isOurs ? `${file.name} is another page of Gapless, of a replay or a comparison: open it by itself` : `${file.name} is a web page, but no report of Gapless: ${WRITE}`);
  }
  const title = /<div id="app" data-title="([^"]*)">/.exec(text)?.[1] ?? "";
  try {
    const source = await sourceOf((id) => found.get(id) ?? "", [...found.keys()], unescape(title), file.name);
    await check(source);
    return source;
  } catch (error) {
    throw new Error(`${file.name} cannot be shown: ${error instanceof Error ? error.message : String(error)}. Write it again with this version: \`gapless report FILE --format html\``);
  }
}

async function check(source: Source): Promise<void> {
  if (source.views.length === 0 && !source.report.headline && !source.ranks) throw new Error("it has no device");
  const tables = new Map<string, ReturnType<typeof readTables>>();
  for (const { prefix, device } of source.views) {
    const [table, rect, detail] = await Promise.all(["tables", `rects.${device}`, `detail.${device}`].map((id) => source.section(prefix + id)));
    if (!rect || !table || !detail) throw new Error(`the data of device ${device} is missing`);
    if (!tables.has(prefix)) tables.set(prefix, readTables(table));
    const rects = readRects(rect);
    verify(tables.get(prefix)!, rects, readDetail(detail, rects));
  }
}

/** The kind of a file that has no page in it, in words. */
function kindOf(head: string): string {
  if (/^\s*\{/.test(head)) return /"schema"\s*:\s*"gapless\./.test(head) ? "a report as JSON, which has no allocations" : "JSON, but no report of Gapless";
  if (head.startsWith("\x80") || head.startsWith("\x1f") || /^[\ufffd\x80]/.test(head) || head.startsWith("PK")) return "a snapshot or an archive, not a page";
  if (head.startsWith("gtrace") || /^.{0,8}gtrace/.test(head)) return "a recording, not a page";
  return "no report of Gapless";
}

/** The five escapes that Gapless writes in a title. */
function unescape(text: string): string {
  const known: Record<string, string> = { "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'", "&amp;": "&" };
  return text.replace(/&(?:lt|gt|quot|#39|amp);/g, (escape) => known[escape]);
}
