// The flame graph: an icicle of bytes. A click zooms into a branch and lights its allocations up in the timeline.

import { max } from "./math";
import type { App } from "./app";
import { css, kindColor, mix, parse } from "./colors";
import { choice, fill, h, onceAFrame, press } from "./dom";
import { bytes, counted, percent } from "./format";
import { flameTree, inBranch, type By, type FlameNode, type Look, type Of } from "./flametree";

const ROW = 21;
/** Branches narrower than this share of the whole are not drawn: a pixel or two. */
const LEAST = 0.0012;

export class Flame {
  readonly element: HTMLElement;
  private readonly rows = h("div.flame", { role: "tree", "aria-label": "Flame graph: bytes by branch" });
  private readonly crumbs = h("nav.crumbs", { "aria-label": "Branch in sight" });
  private readonly said = h("p.hint", { hidden: true });
  private readonly tip = h("div.tip.flame-tip", { role: "tooltip", hidden: true });
  private readonly field = h("input", { type: "search", placeholder: "Search the branches", "aria-label": "Search the flame graph", spellcheck: false, autocomplete: "off" });
  private readonly next = onceAFrame(() => this.draw());
  private byChoice: HTMLElement = h("div");
  private ofChoice: HTMLElement = h("div");
  private orderChoice: HTMLElement;
  private look: Look = { by: "stack", of: "peak", inverted: false };
  /** The way to the branch in sight is shown whole. */
  private wholeWay = false;
  private root: FlameNode | null = null;
  private zoomed: FlameNode | null = null;
  private nodes = new Map<HTMLElement, FlameNode>();

  constructor(private readonly app: App) {
    this.orderChoice = choice("Order", [["root", "Caller first"], ["leaf", "Callee first"]], "root", (value) => {
      this.look.inverted = value === "leaf";
      press(this.orderChoice, value);
      this.zoomed = null;
      this.rebuild();
    });
    this.element = h("div", null, h("div.toolbar", null, h("div.search", null, this.field), h("span.spacer", null), this.byChoice, this.orderChoice, this.ofChoice), this.said, this.crumbs, this.rows, this.tip);
    let timer = 0;
    this.field.addEventListener("input", () => {
      clearTimeout(timer);
      timer = window.setTimeout(() => app.search(this.field.value.trim()), 90);
    });
    app.on(["detail"], () => {
      this.choices();
      this.rebuild();
    });
    app.on(["cursor"], () => this.look.of === "instant" && this.rebuild());
    app.on(["detail", "span"], () => {
      const isOfSpan = this.look.of === "lived" || this.look.of === "born";
      if (isOfSpan !== !!app.span) this.look.of = app.span ? "lived" : "peak";
      const next = choice("Bytes", [...(app.span ? ([["lived", "Live in the interval"], ["born", "Allocated in it"]] as [Of, string][]) : []), ["peak", "At the peak"], ["instant", "At the instant"], ["all", "Allocated in all"]], this.look.of, (value) => {
        this.look.of = value as Of;
        press(next, value);
        this.rebuild();
      });
      this.ofChoice.replaceWith(next);
      this.ofChoice = next;
      this.rebuild();
    });
    app.on(["marks", "theme"], () => {
      if (document.activeElement !== this.field) this.field.value = app.query;
      this.next();
    });
    this.listen();
  }

  /** The tree in sight, for tests. */
  get total(): number {
    return this.root?.bytes ?? 0;
  }

  private choices(): void {
    const { app } = this;
    const options: [By, string][] = [["stack", app.stacks?.any ? "Stack" : "Kind and size"]];
    if (app.device?.modules.any || app.device?.scopes.any) options.push(["module", "Module path"]);
    if (app.device?.detail?.steps.length) options.push(["step", "Step"]);
    if (!options.some(([value]) => value === this.look.by)) this.look.by = "stack";
    const next = choice("By", options, this.look.by, (value) => {
      this.look.by = value as By;
      press(next, value);
      this.rebuild();
    });
    this.byChoice.replaceWith(next);
    this.byChoice = next;
    const none = !app.stacks?.any;
    this.said.hidden = !none;
    if (none) fill(this.said, "No stacks were recorded, so branches are kinds (inferred) and block sizes.", this.app.report.headline ? null : [" Record with ", h("code", null, 'stacks="python"'), " to see lines of code here."]);
  }

  private rebuild(): void {
    const { app } = this;
    if (!app.device?.detail) return;
    const path = this.zoomed?.path ?? [];
    this.root = flameTree(app, this.look);
    // The same branch again, as far as the new tree has it.
    let at: FlameNode = this.root;
    for (const text of path) at = at.children.get(text) ?? at;
    this.zoomed = at.path.length === path.length ? at : this.root;
    this.next();
  }

  private listen(): void {
    const { rows, tip } = this;
    const nodeOf = (event: Event) => {
      const element = (event.target as HTMLElement).closest<HTMLElement>(".flame > button");
      return element ? ([element, this.nodes.get(element)!] as const) : null;
    };
    rows.addEventListener("click", (event) => {
      const found = nodeOf(event);
      if (found) this.zoom(found[1], true);
    });
    rows.addEventListener("pointermove", (event) => {
      const found = nodeOf(event);
      tip.hidden = !found;
      if (!found) return;
      this.describe(found[1]);
      tip.style.left = `${max(8, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 12))}px`;
      tip.style.top = `${Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8)}px`;
    });
    rows.addEventListener("pointerleave", () => (tip.hidden = true));
    rows.addEventListener("keydown", (event) => {
      const found = nodeOf(event);
      if (!found) return;
      const [element, node] = found;
      if (event.key === "Escape" && this.zoomed !== this.root) {
        event.stopPropagation();
        this.zoom(this.zoomed!.parent ?? this.root!, true);
        return;
      }
      const drawn = [...this.nodes];
      const of = (wanted: FlameNode | null | undefined) => drawn.find(([, own]) => own === wanted)?.[0];
      const same = drawn.filter(([other]) => other.style.top === element.style.top).map(([other]) => other);
      const at = same.indexOf(element);
      const moves: Record<string, () => HTMLElement | undefined> = { ArrowUp: () => of(node.parent), ArrowDown: () => drawn.find(([, own]) => own.parent === node)?.[0], ArrowLeft: () => same[at - 1], ArrowRight: () => same[at + 1] };
      const target = moves[event.key]?.();
      if (!event.key.startsWith("Arrow")) return;
      event.preventDefault();
      event.stopPropagation();
      this.focus(target);
    });
  }

  private focus(target: HTMLElement | undefined): void {
    if (!target) return;
    for (const element of this.nodes.keys()) element.tabIndex = element === target ? 0 : -1;
    target.focus();
  }

  private zoom(node: FlameNode, keep: boolean): void {
    this.zoomed = node;
    this.wholeWay = false;
    const { app } = this;
    if (node === this.root) app.light({});
    else app.light({ branch: { text: node.text, has: inBranch(app, { ...this.look }, node.path) } });
    if (keep) {
      this.draw();
      this.focus([...this.nodes].find(([, own]) => own === node)?.[0]);
    }
  }

  private describe(node: FlameNode): void {
    const { app, tip, root } = this;
    const parts = [...node.byKind].map((value, k) => [k, value] as const).filter(([, value]) => value > 0).sort((a, b) => b[1] - a[1]);
    fill(
      tip,
      h("div.tip-head", null, h("b", null, bytes(node.bytes)), h("span", null, `${percent(node.bytes / max(1, root!.bytes))} of ${bytes(root!.bytes)}, ${counted(node.blocks, "block")}`)),
      h("p.flame-name", null, node.text),
      h("ul", null, parts.map(([k, value]) => h("li", null, h("i.swatch", { style: `background:${css(this.color(k))}` }), ` ${k > 0 ? app.kinds[k - 1].replaceAll("_", " ") : "kind not known"} ${bytes(value)}`))),
      h("div.tip-foot", null, "click zooms, and lights it up in the timeline"),
    );
  }

  private color(kind: number) {
    return kindColor(kind > 0 ? this.app.kinds[kind - 1] : "unexplained");
  }

  draw(): void {
    const { app, rows } = this;
    const from = this.zoomed;
    if (!from || !this.root) return;
    const focused = this.nodes.get(document.activeElement as HTMLElement);
    this.nodes.clear();
    const query = app.query.toLowerCase();
    const whole = max(1, from.bytes);
    let deepest = 0;
    const drawn: HTMLElement[] = [];
    const place = (node: FlameNode, left: number, depth: number) => {
      const share = node.bytes / whole;
      if (share < LEAST) return;
      deepest = max(deepest, depth);
      const hit = query !== "" && node !== this.root && node.text.toLowerCase().includes(query);
      const element = h(
        "button",
        {
          type: "button",
          role: "treeitem",
          class: hit ? "hit" : query !== "" ? "miss" : undefined,
          "aria-level": String(depth + 1),
          "aria-label": `${node.text}: ${bytes(node.bytes)}, ${percent(node.bytes / max(1, this.root!.bytes))}`,
          style: `left:${left * 100}%;width:${share * 100}%;top:${depth * ROW}px;${this.paint(node)}`,
        },
        share > 0.025 ? h("span", null, node.text) : null,
        share > 0.14 ? h("em", null, bytes(node.bytes)) : null,
      );
      element.tabIndex = -1;
      this.nodes.set(element, node);
      drawn.push(element);
      let at = left;
      for (const child of [...node.children.values()].sort((a, b) => b.bytes - a.bytes)) {
        place(child, at, depth + 1);
        at += child.bytes / whole;
      }
    };
    place(from, 0, 0);
    fill(rows, drawn);
    rows.style.height = `${(deepest + 1) * ROW + 1}px`;
    const keep = [...this.nodes].find(([, node]) => node === focused)?.[0];
    if (keep) this.focus(keep);
    else if (drawn[0]) drawn[0].tabIndex = 0;
    this.drawCrumbs(from);
  }

  /** The body has the tint of the kind with the most bytes, a strip below it all kinds in proportion. */
  private paint(node: FlameNode): string {
    const surface = parse(getComputedStyle(document.documentElement).getPropertyValue("--surface").trim());
    let most = 0;
    let at = 0;
    const stops: string[] = [];
    node.byKind.forEach((value, k) => {
      if (value > node.byKind[most]) most = k;
      if (value === 0) return;
      const to = at + (value / max(1, node.bytes)) * 100;
      stops.push(`${css(this.color(k))} ${at.toFixed(2)}% ${to.toFixed(2)}%`);
      at = to;
    });
    const tint = css(mix(this.color(most), surface, this.app.theme.dark ? 0.62 : 0.66));
    return `background:linear-gradient(90deg,${stops.join(",")}) bottom/100% 4px no-repeat,${tint}`;
  }

  private drawCrumbs(node: FlameNode): void {
    const path: FlameNode[] = [];
    for (let at: FlameNode | null = node; at; at = at.parent) path.unshift(at);
    const name = (own: FlameNode) => (own === this.root ? "All" : own.text);
    // The middle of a long way folds into a button.
    const folded = !this.wholeWay && path.length > 8 ? path.splice(3, path.length - 7, node).length : 0;
    const crumb = (own: FlameNode, k: number) =>
      folded && k === 3
        ? h("button", { class: "quiet", "aria-label": "Show the whole way", onclick: () => { this.wholeWay = true; this.drawCrumbs(node); } }, `${folded} more`)
        : own === node
          ? h("b", { title: own.text, "aria-current": "true" }, name(own))
          : h("button", { class: "quiet", title: own.text, onclick: () => this.zoom(own, true) }, name(own));
    fill(
      this.crumbs,
      path.map(crumb),
      h("span.amount", { id: "flame-total" }, `${bytes(node.bytes)} · ${counted(node.blocks, "block")}`),
    );
  }
}
