// The view as a link: what the reader sees, in the address, so that it can be sent along.

import { max, round, floor } from "./math";
import type { App, Axis, ColorBy } from "./app";
import { life } from "./dom";

export interface Link {
  device?: number;
  renderer?: string;
  axis?: string;
  color?: string;
  mode?: string;
  view?: number[];
  cursor?: number;
  selected?: number;
  query?: string;
  least?: number;
  stream?: number;
  span?: number[];
}

export function readLink(): Link {
  const has = new URLSearchParams(location.hash.slice(1));
  const number = (key: string) => {
    const text = has.get(key);
    const value = text === null || text === "" ? NaN : Number(text);
    return Number.isFinite(value) ? value : undefined;
  };
  const list = (key: string, length: number) => {
    const values = has.get(key)?.split(",").map(Number);
    return values?.length === length && values.every(Number.isFinite) ? values : undefined;
  };
  return {
    device: number("d"),
    renderer: has.get("renderer") ?? undefined,
    axis: has.get("x") ?? undefined,
    color: has.get("c") ?? undefined,
    mode: has.get("m") ?? undefined,
    view: list("v", 4),
    span: list("i", 2),
    cursor: number("t"),
    selected: number("s"),
    query: has.get("q") ?? undefined,
    least: number("min"),
    stream: number("stream"),
  };
}

/** Applies the link, once the device's data is there. */
export function applyLink(app: App, link: Link): void {
  if (link.axis === "time" || link.axis === "event") app.axis = link.axis as Axis;
  if (link.color && ["kind", "module", "size", "stream"].includes(link.color)) app.colorBy = link.color as ColorBy;
  if (link.mode === "stacked" || link.mode === "packed") app.setMode(link.mode);
  if (link.least) app.filter.least = link.least;
  if (link.stream !== undefined && link.stream < (app.device?.detail?.streams.length ?? 0)) app.filter.stream = max(-1, floor(link.stream));
  if (link.query) app.query = link.query;
  app.view = app.whole;
  if (link.view) {
    const [x0, x1, y0, y1] = link.view;
    app.setView({ x0, x1, y0, y1 });
  }
  if (link.span) app.setSpan([link.span[0], link.span[1]]);
  if (link.cursor !== undefined) app.setCursor(link.cursor);
  if (link.selected !== undefined && link.selected >= 0 && link.selected < (app.device?.n ?? 0)) app.select(floor(link.selected));
}

/** Keeps the address up to date. Returns whether a change is still on its way there. */
export function keepLink(app: App, renderer: string | undefined): () => boolean {
  let timer = 0;
  life.of.signal.addEventListener("abort", () => clearTimeout(timer));
  app.on(["view", "select", "cursor", "marks", "mode", "device", "span"], () => {
    clearTimeout(timer);
    timer = window.setTimeout(() => {
      timer = 0;
      const { view, whole } = app;
      const said = new URLSearchParams();
      if (renderer) said.set("renderer", renderer);
      if (app.viewIndex) said.set("d", String(app.viewIndex));
      said.set("x", app.axis);
      said.set("c", app.colorBy);
      if (app.mode === "packed" && !app.device?.rects.y) said.set("m", app.mode);
      const tenth = (value: number) => String(round(value * 10) / 10);
      if (view.x0 !== whole.x0 || view.x1 !== whole.x1 || view.y0 !== whole.y0 || view.y1 !== whole.y1) said.set("v", [view.x0, view.x1, view.y0, view.y1].map(tenth).join(","));
      said.set("t", String(app.cursor));
      if (app.selected >= 0) said.set("s", String(app.selected));
      if (app.span) said.set("i", app.span.join(","));
      if (app.query) said.set("q", app.query);
      if (app.filter.least) said.set("min", String(app.filter.least));
      if (app.filter.stream >= 0) said.set("stream", String(app.filter.stream));
      try {
        history.replaceState(null, "", "#" + said.toString().replaceAll("%2C", ","));
      } catch {
        // Some browsers limit these calls, or forbid them for files: the page works without.
      }
    }, 250);
  });
  return () => timer !== 0;
}
