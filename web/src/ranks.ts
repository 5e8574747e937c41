// Many ranks: figures of all of them, a strip of heat for each over time, and the ranks that are odd, with the reason.

import { max, min, floor, round } from "./math";
import type { App } from "./app";
import { css, mix, parse, type Rgb } from "./colors";
import { choice, fill, h, onceAFrame, press, Surface } from "./dom";
import { bytes, count, counted, duration, percent } from "./format";
import { term } from "./glossary";
import type { Json } from "./shape";
import { copyBox } from "./summary";


/** When ranks first differ. */
function placeOf(divergence: Json): string {
  if (divergence["step"] !== null) return `step ${divergence["step"]}`;
  if (divergence["tick"] <= 1) return "the beginning";
  return divergence["time_us"] === null ? `event ${count(divergence["tick"] - 1)}` : duration(divergence["time_us"]);
}

/** One row of the strip: a device of a rank. */
interface Row {
  rank: number;
  device: number;
  name: string;
  times: number[];
  values: Record<"reserved" | "allocated", number[]>;
  error: string;
}

/** On a screen of 900 pixels a strip of this height leaves room for the advice about the rank below. */
const TALLEST = 232;
const LEFT = 74;

export class RankStrip {
  readonly element: HTMLElement;
  private readonly rows: Row[];
  private readonly canvas = h("canvas.strip", { tabIndex: 0, role: "img" });
  private readonly tip = h("div.tip", { role: "tooltip", hidden: true });
  /** Which rank the rest of the page is about. */
  private readonly below = h("h2", { id: "shown-rank" });
  private readonly command = h("div", { "aria-live": "polite" });
  private readonly surfaceOf: Surface;
  private readonly next = onceAFrame(() => this.draw());
  private of: "reserved" | "allocated";
  private ofChoice: HTMLElement;
  /** The part in sight, as shares of the whole: time from and to, rows from and to. */
  private sight = { x0: 0, x1: 1, y0: 0, y1: 1 };
  private readonly longest: number;
  private readonly timedByClock: boolean;

  constructor(private readonly app: App, private readonly all: Json, private readonly shown: Map<number | null, number>, private readonly open: (index: number) => void) {
    const lines: Json[] = all["timelines"] ?? [];
    this.timedByClock = lines.length > 0 && lines.every((line) => line["time_us"].length === line["ticks"].length);
    const lineOf = new Map(lines.map((line) => [`${line["rank"]}:${line["device"]}`, line]));
    const several = new Set((all["ranks"] as Json[]).map((row) => row["rank"])).size < all["ranks"].length;
    this.rows = (all["ranks"] as Json[]).map((row) => {
      const line = lineOf.get(`${row["rank"]}:${row["device"]}`);
      return {
        rank: row["rank"],
        device: row["device"] ?? 0,
        name: several && row["device"] !== null ? `${row["rank"]}, GPU ${row["device"]}` : String(row["rank"]),
        times: line ? (this.timedByClock ? line["time_us"] : line["ticks"]) : [],
        values: { "reserved": line?.["reserved"] ?? [], "allocated": line?.["allocated"] ?? [] },
        error: row["error"] ?? "",
      };
    });
    this.longest = max(1, ...lines.map((line) => (this.timedByClock ? line["time_us"] : line["ticks"]).at(-1) ?? 0));
    this.of = all["imbalance_of"] === "allocated" ? "allocated" : "reserved";
    this.ofChoice = choice("Bytes", [["reserved", "Reserved"], ["allocated", "Allocated"]], this.of, (value) => {
      this.of = value as "reserved" | "allocated";
      press(this.ofChoice, value);
      this.next();
    });
    this.canvas.setAttribute("aria-label", `${count(this.rows.length)} ranks over time: the darker, the more bytes`);
    const reset = h("button", { class: "quiet", type: "button", onclick: () => this.look({ x0: 0, x1: 1, y0: 0, y1: 1 }) }, "Reset");
    const box = h("div.strip-box", null, this.canvas, this.tip);
    const heading = h("h2", null, `${counted(all["files"], "rank")} of one run `, h("span.aside", null, all["numbering"] ?? ""));
    this.element = h(
      "section",
      { "aria-label": "All ranks" },
      heading,
      this.figures(),
      h("div.answers", null, h("div.card", { id: "strip" }, h("h2", null, "Every rank over time", h("span.spacer", null), this.ofChoice, reset), box, this.command), this.odd()),
      this.table(),
      this.below,
    );
    const height = min(TALLEST, max(60, this.rows.length * 16));
    this.canvas.style.height = `${height + 18}px`;
    this.surfaceOf = new Surface(this.canvas, () => this.next());
    app.on(["theme", "device"], () => this.next());
    app.on(["device"], () => this.tell());
    this.tell();
    this.listen();
  }

  /** The bytes of a row at a part of the whole time, for tests and the tip. */
  at(row: Row, share: number): number | undefined {
    const wanted = share * this.longest;
    let low = 0;
    let high = row.times.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (row.times[middle] <= wanted) low = middle + 1;
      else high = middle;
    }
    // Behind its last point a shorter run is over.
    return low === 0 || (low === row.times.length && wanted > row.times[low - 1] * 1.02 + 1) ? undefined : row.values[this.of][low - 1];
  }

  private tell(): void {
    const rank = this.openRank;
    const peaks = new Set((this.all["ranks"] as Json[]).map((row) => row[`peak_${this.all["imbalance_of"]}`]));
    // If all peaks are equal, no rank is the worst.
    const is = (name: string) => rank !== null && peaks.size > 1 && String(this.all[name]) === rank;
    const odd = (this.all["odd_ranks"] as Json[]).find((one) => String(one["rank"]) === rank);
    const why = [is("worst_rank") ? "the highest peak" : "", is("median_rank") ? "the median peak" : "", odd ? `odd: ${odd["why"].replaceAll("-", " ")}` : ""];
    const said = why.filter(Boolean).join(", ");
    fill(this.below, rank === null ? "" : said ? `Rank ${rank} (${said})` : `Rank ${rank}`);
  }

  private figures(): HTMLElement {
    const { all } = this;
    const rows = all["ranks"] as Json[];
    const peak = (rank: number | null) => max(0, ...rows.filter((row) => row["rank"] === rank).map((row) => row[`peak_${all["imbalance_of"]}`] ?? 0));
    const failed = rows.filter((row) => row["error"]).length;
    const missing: number[] = all["missing_ranks"] ?? [];
    const cell = (id: string, name: string, value: string, note: string, strong = false) => h("div", { class: strong ? "figure strong" : "figure" }, h("dt", null, term(name)), h("dd", { id: `ranks-${id}` }, value), h("dd.note", null, note));
    const divergence = all["first_divergence"] as Json | null;
    const peaks = rows.filter((row) => !row["error"]).map((row) => row[`peak_${all["imbalance_of"]}`] as number);
    const areEqual = peaks.length > 1 && peaks.every((value) => value === peaks[0]);
    const of = `peak ${all["imbalance_of"]}`;
    return h(
      "dl.figures",
      null,
      areEqual
        ? cell("worst", "Worst rank", "all are equal", `${of} ${bytes(peaks[0])} on each of ${counted(peaks.length, rows.length > this.all["files"] ? "device" : "rank")}`, true)
        : [
            cell("worst", "Worst rank", all["worst_rank"] === null ? "unknown" : `rank ${all["worst_rank"]}`, `${of} ${bytes(peak(all["worst_rank"]))}`, true),
            cell("median", "Median rank", all["median_rank"] === null ? "unknown" : `rank ${all["median_rank"]}`, `${of} ${bytes(peak(all["median_rank"]))}`),
          ],
      cell("imbalance", "Imbalance", all["imbalance"] === null ? "unknown" : percent(all["imbalance"]), "highest peak / mean peak − 1", true),
      cell("odd", "Odd ranks", count((all["odd_ranks"] ?? []).length), `${counted((all["groups"] ?? []).length, "group")} of replicas`),
      cell("divergence", "First divergence", divergence ? placeOf(divergence) : "none", divergence ? divergence["sentence"] : "no step stands out"),
      failed ? cell("failed", "Not readable", count(failed), "see the table") : null,
      missing.length ? cell("missing", "Missing", count(missing.length), `rank ${missing.slice(0, 6).join(", ")}${missing.length > 6 ? " …" : ""}`) : null,
    );
  }

  /** Says what is odd about which rank, or between which. */
  private odd(): HTMLElement {
    const { all } = this;
    const list = h("div.findings", null);
    for (const odd of all["odd_ranks"] as Json[]) {
      list.append(
        h(
          "div.finding.warning",
          null,
          h(
            "details",
            { open: list.childElementCount === 0 },
            h("summary", { title: odd["sentence"] }, h("span.sign", { "aria-label": "Odd" }, "▲"), h("span.headline", null, `Rank ${odd["rank"]}: ${odd["sentence"]}`), h("span.open", { "aria-hidden": "true" })),
            odd["holders"].length ? h("ul", null, (odd["holders"] as Json[]).slice(0, 6).map((holder) => h("li", null, h("b", null, `+${bytes(holder["bytes"])}`), ` ${holder["label"]} (${String(holder["kind"]).replaceAll("_", " ")}; peers ${bytes(holder["peer_bytes"])})`))) : null,
          ),
          this.showButton(odd["rank"]),
        ),
      );
    }
    for (const pair of all["differences"] as Json[]) {
      const [a, b] = pair["ranks"] as Json[];
      list.append(h("div.finding.info", null, h("p", null, `Ranks ${a["rank"]} and ${b["rank"]} differ: ${bytes(pair["peaks"][0])} and ${bytes(pair["peaks"][1])}. Two replicas cannot tell which of them is odd.`), this.showButton(a["rank"])));
    }
    for (const wait of (all["waiting"] as Json[]).slice(0, 3)) list.append(h("div.finding.info", null, h("p", null, `${counted(wait["ranks"], "rank")} would wait ${duration(wait["us_per_step"])} a step for rank ${wait["for_rank"]}, with ${bytes(wait["held_bytes"])} held.`)));
    if (list.childElementCount === 0) list.append(h("p.hint", null, "No rank differs from its replicas."));
    for (const text of all["not_compared"] as string[]) list.append(h("p.hint", null, `Note: ${text}.`));
    return h("div.card", { id: "odd" }, h("h2", null, "Who is odd, and why"), list);
  }

  /** Shows a rank that is in the page, or says how to get it. */
  private showButton(rank: number): HTMLElement {
    const index = this.shown.get(rank);
    return index === undefined ? copyBox(this.commandFor(rank)) : h("button", { type: "button", onclick: () => this.open(index) }, `Show rank ${rank} below`);
  }

  private commandFor(rank: number): string {
    const { path } = this.all as { path?: string };
    // A path that stands for several files is no argument, so the command names the rank's own file.
    const own = (this.all["ranks"] as Json[]).find((row) => row["rank"] === rank)?.["file"];
    const quoted = (name: string) => (/^[\w.\/@%+=:,-]+$/.test(name) ? name : `'${name.replaceAll("'", `'\\''`)}'`);
    return / … .* \(\d+ arguments\)$/.test(path ?? "") && own ? `gapless report ${quoted(own)} --open` : `gapless report ${quoted(path ?? "")} --rank ${rank} --open`;
  }

  choose(row: Row): void {
    const index = this.shown.get(row.rank);
    if (index !== undefined) {
      fill(this.command);
      this.open(index);
    } else fill(this.command, row.error ? h("p.hint", null, `Rank ${row.rank}: ${row.error}`) : [h("p.hint", null, `The allocations of rank ${row.rank} are not in this page. This command shows them:`), copyBox(this.commandFor(row.rank))]);
  }

  private table(): HTMLElement {
    const rows = this.all["ranks"] as Json[];
    const odd = new Map((this.all["odd_ranks"] as Json[]).map((one) => [one["rank"], one["why"]]));
    const groups = (this.all["groups"] ?? []).length > 1;
    const heads = ["Rank", "File", groups ? "Group" : "", "Peak reserved", "Peak allocated", "Fragmentation", "Steps", "Step", "Remark"];
    const known = (value: number | null | undefined, show: (value: number) => string) => (value === null || value === undefined ? "" : show(value));
    return h(
      "details",
      { class: "rank-table" },
      h("summary", null, `All ${counted(rows.length, "rank")} as a table`),
      h(
        "table.cards",
        null,
        h("thead", null, h("tr", null, heads.map((name) => h("th", { scope: "col" }, name === "Remark" ? "" : name)))),
        h(
          "tbody",
          null,
          rows.map((row) => {
            const cells: (string | HTMLElement)[] = [
              String(row["rank"]),
              h("code", { title: row["file"] ?? "" }, String(row["file"]).split("/").pop() ?? ""),
              groups && typeof row["group"] === "number" ? String(row["group"]) : "",
              known(row["peak_reserved"], bytes),
              known(row["peak_allocated"], bytes),
              known(row["fragmentation"], percent),
              known(row["steps"], count),
              known(row["step_us"], duration),
              row["error"] ?? odd.get(row["rank"]) ?? "",
            ];
            return h("tr", { class: row["error"] ? "failed-row" : undefined }, cells.map((content, k) => h("td", { "data-label": heads[k] }, content)));
          }),
        ),
      ),
    );
  }

  private listen(): void {
    const { canvas, tip } = this;
    const place = (event: MouseEvent) => {
      const box = canvas.getBoundingClientRect();
      const x = (event.clientX - box.left - LEFT) / max(1, box.width - LEFT);
      const y = (event.clientY - box.top) / max(1, box.height - 18);
      const { x0, x1, y0, y1 } = this.sight;
      return { x: x0 + x * (x1 - x0), y: y0 + y * (y1 - y0), inside: y >= 0 && y < 1 };
    };
    const rowAt = (event: MouseEvent) => {
      const { y, inside } = place(event);
      return inside ? this.rows[floor(y * this.rows.length)] : undefined;
    };
    canvas.addEventListener("click", (event) => {
      const row = rowAt(event);
      if (row) this.choose(row);
    });
    canvas.addEventListener("pointermove", (event) => {
      const row = rowAt(event);
      tip.hidden = !row;
      if (!row) return;
      const { x } = place(event);
      const value = x >= 0 ? this.at(row, x) : undefined;
      const when = this.timedByClock ? duration(x * this.longest) : `event ${count(round(x * this.longest))}`;
      fill(tip, h("div.tip-head", null, h("b", null, `Rank ${row.name}`), h("span", null, row.error ? row.error : value === undefined ? "nothing recorded" : `${bytes(value)} ${this.of} at ${when}`)));
      const box = canvas.getBoundingClientRect();
      tip.style.left = `${max(0, min(event.clientX - box.left + 14, box.width - tip.offsetWidth - 8))}px`;
      tip.style.top = `${event.clientY - box.top + 16}px`;
    });
    canvas.addEventListener("pointerleave", () => (tip.hidden = true));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && document.activeElement !== canvas) return;
      event.preventDefault();
      const { x, y } = place(event);
      this.zoomBy(event.deltaY > 0 ? 1.25 : 0.8, x, y);
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const { x0, x1, y0, y1 } = this.sight;
      const [w, t] = [(x1 - x0) / 4, (y1 - y0) / 4];
      const moves: Record<string, () => void> = {
        "+": () => this.zoomBy(0.7, (x0 + x1) / 2, (y0 + y1) / 2),
        "-": () => this.zoomBy(1.4, (x0 + x1) / 2, (y0 + y1) / 2),
        ArrowLeft: () => this.look({ x0: x0 - w, x1: x1 - w, y0, y1 }),
        ArrowRight: () => this.look({ x0: x0 + w, x1: x1 + w, y0, y1 }),
        ArrowUp: () => this.look({ x0, x1, y0: y0 - t, y1: y1 - t }),
        ArrowDown: () => this.look({ x0, x1, y0: y0 + t, y1: y1 + t }),
        "0": () => this.look({ x0: 0, x1: 1, y0: 0, y1: 1 }),
      };
      const move = moves[event.key];
      if (!move) return;
      event.preventDefault();
      event.stopPropagation();
      move();
    });
  }

  private zoomBy(factor: number, x: number, y: number): void {
    const { x0, x1, y0, y1 } = this.sight;
    this.look({ x0: x - (x - x0) * factor, x1: x + (x1 - x) * factor, y0: y - (y - y0) * factor, y1: y + (y1 - y) * factor });
  }

  private look(next: typeof this.sight): void {
    const fit = (a: number, b: number, least: number): [number, number] => {
      const span = min(1, max(least, b - a));
      const from = min(1 - span, max(0, a));
      return [from, from + span];
    };
    const [x0, x1] = fit(next.x0, next.x1, 0.002);
    const [y0, y1] = fit(next.y0, next.y1, min(1, 4 / this.rows.length));
    this.sight = { x0, x1, y0, y1 };
    this.next();
  }

  draw(): void {
    const { rows, sight, surfaceOf, app } = this;
    surfaceOf.measure();
    const c = surfaceOf.begin();
    const { width, height } = surfaceOf;
    const plotHeight = height - 18;
    const style = getComputedStyle(document.documentElement);
    const color = (name: string) => style.getPropertyValue(name).trim();
    const [page, muted] = [parse(color("--surface")), color("--muted")];
    const deep: Rgb = app.theme.dark ? [134, 169, 255] : [24, 62, 168];
    const most = max(1, ...rows.map((row) => row.values[this.of].reduce((a, b) => max(a, b), 0)));
    // Differences among the largest matter most: from half of the largest on, colours deepen twice as fast.
    const shade = (value: number) => mix(page, deep, value === 0 ? 0.02 : 0.08 + 0.92 * (value / most) ** 2);
    const [first, last] = [floor(sight.y0 * rows.length), min(rows.length, Math.ceil(sight.y1 * rows.length))];
    const tall = plotHeight / (sight.y1 - sight.y0) / rows.length;
    const every = Math.ceil(13 / tall);
    const odd = new Set((this.all["odd_ranks"] as Json[]).map((one) => one["rank"]));
    const current = Number(/^\d+/.exec(this.openRank ?? "")?.[0] ?? NaN);
    c.font = `11px ${color("--font")}`;
    c.textBaseline = "middle";
    const columns = max(1, floor(width - LEFT));
    for (let r = first; r < last; r++) {
      const row = rows[r];
      const y = (r - sight.y0 * rows.length) * tall;
      const gap = tall >= 6 ? 1 : 0;
      const marked = odd.has(row.rank) || (row.rank === this.all["worst_rank"] && this.all["imbalance"] !== 0);
      if (r % every === 0 || (marked && tall >= 9)) {
        c.fillStyle = marked ? color("--ink") : muted;
        c.textAlign = "right";
        c.fillText(row.rank === current ? `▸ ${row.name}` : row.name, LEFT - 14, max(6, y + tall / 2));
      }
      if (marked) {
        c.fillStyle = odd.has(row.rank) ? color("--warning") : muted;
        c.fillRect(LEFT - 9, y, 4, max(1, tall - gap));
      }
      if (row.error) {
        c.fillStyle = color("--error");
        c.globalAlpha = 0.18;
        c.fillRect(LEFT, y, columns, max(1, tall - gap));
        c.globalAlpha = 1;
        continue;
      }
      // Stretches of one value are one rectangle.
      let from = 0;
      let value = this.at(row, sight.x0);
      for (let x = 1; x <= columns; x++) {
        const here = x < columns ? this.at(row, sight.x0 + (x / columns) * (sight.x1 - sight.x0)) : NaN;
        if (here === value) continue;
        if (value !== undefined) {
          c.fillStyle = css(shade(value));
          c.fillRect(LEFT + from, y, x - from, max(1, tall - gap));
        }
        [from, value] = [x, here];
      }
    }
    c.fillStyle = muted;
    c.textBaseline = "alphabetic";
    const when = (share: number) => (this.timedByClock ? duration(share * this.longest) : `event ${count(round(share * this.longest))}`);
    c.textAlign = "left";
    c.fillText(when(sight.x0), LEFT, height - 4);
    c.textAlign = "right";
    c.fillText(`${when(sight.x1)} · deepest ${bytes(most)}`, width, height - 4);
  }

  /** The rank that is shown below, as its name. */
  private get openRank(): string | null {
    for (const [rank, index] of this.shown) if (rank !== null && index === this.app.viewIndex) return String(rank);
    return null;
  }
}
