// Building elements. Text is always set as text: nothing of a trace is ever parsed as markup.

import { max, round } from "./math";

/** Ends the listeners of the report that is shown, once another one takes its place. */
export const life = { of: new AbortController() };

type Child = Node | string | number | null | undefined | false;
type Props = Record<string, unknown>;

type Tag<T extends string> = T extends `${infer Name}.${string}` ? Name : T;
type ElementOf<T extends string> = Tag<T> extends keyof HTMLElementTagNameMap ? HTMLElementTagNameMap[Tag<T>] : HTMLElement;

/** `h("div.panel", { id: "x" }, "text")`: an element with classes, properties, listeners (`onclick`) and children. */
export function h<T extends string>(tag: T, props?: Props | null, ...children: (Child | Child[])[]): ElementOf<T> {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name) as ElementOf<T>;
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value as EventListener);
    else if (key === "style") element.style.cssText = String(value);
    else if (key in element && !key.startsWith("aria") && key !== "list") (element as unknown as Props)[key] = value;
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

export function add(element: Element, children: (Child | Child[])[]): void {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    element.append(typeof child === "number" ? String(child) : child);
  }
}

export function fill(element: Element, ...children: (Child | Child[])[]): void {
  element.replaceChildren();
  add(element, children);
}

/** Scrolls to the timeline if it is not in sight, as whole as the screen is high. */
export function toTimeline(): void {
  const section = document.getElementById("timeline");
  const plot = section?.querySelector(".plot")?.getBoundingClientRect();
  if (!section || !plot || (plot.top >= 40 && plot.bottom <= innerHeight)) return;
  section.scrollIntoView({ "block": "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
}

/** A row of buttons of which one is pressed. */
export function choice(label: string, options: [value: string, text: string][], current: string, pick: (value: string) => void): HTMLElement {
  const buttons = options.map(([value, text]) =>
    h("button", { "data-value": value, "aria-pressed": String(value === current), onclick: () => pick(value) }, text),
  );
  return h("div.choice", { role: "group", "aria-label": label }, h("span.choice-label", null, label), buttons);
}

export function press(group: HTMLElement, value: string): void {
  for (const button of group.querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.value === value));
}

/** A canvas kept at the device's resolution; `width` and `height` in CSS pixels. */
export class Surface {
  width = 0;
  height = 0;
  ratio = 1;
  constructor(readonly canvas: HTMLCanvasElement, readonly resized: () => void) {
    new ResizeObserver(() => this.measure()).observe(canvas);
    this.measure();
  }

  measure(): void {
    const ratio = window.devicePixelRatio || 1;
    const width = this.canvas.clientWidth;
    const height = this.canvas.clientHeight;
    if (width === this.width && height === this.height && ratio === this.ratio) return;
    [this.width, this.height, this.ratio] = [width, height, ratio];
    this.canvas.width = max(1, round(width * ratio));
    this.canvas.height = max(1, round(height * ratio));
    this.resized();
  }

  /** Cleared, and scaled so that one unit is a CSS pixel. */
  begin(): CanvasRenderingContext2D {
    // Kept in memory: long paths are quicker drawn there than on a GPU, and far quicker than on one done in software.
    const context = this.canvas.getContext("2d", { willReadFrequently: true })!;
    // A browser prints what was drawn, operation by operation, and a cleared rectangle is white on paper: it would
    // cover what lies below this canvas.
    const isPaper = document.documentElement.dataset["print"] !== undefined;
    if (isPaper) this.canvas.width = max(1, round(this.width * this.ratio));
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    if (!isPaper) context.clearRect(0, 0, this.width, this.height);
    return context;
  }
}

let unpainted = 0;

/** True if something that was asked for is not yet in the picture. */
export const isPainting = (): boolean => unpainted > 0;

/** A function that runs `draw` once before the next picture, however often it is called. */
export function onceAFrame(draw: () => void): () => void {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    unpainted++;
    requestAnimationFrame(() => {
      waiting = false;
      unpainted--;
      draw();
    });
  };
}

/** A dashed upright line: the pinned instant. */
export function upright(c: CanvasRenderingContext2D, x: number, top: number, bottom: number, color: string): void {
  c.strokeStyle = color;
  c.lineWidth = 1;
  c.setLineDash([4, 3]);
  c.beginPath();
  c.moveTo(x, top);
  c.lineTo(x, bottom);
  c.stroke();
  c.setLineDash([]);
}
