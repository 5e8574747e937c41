// Colours. Kinds have fixed ones, chosen to stay apart for colour-blind readers, by lightness too. A module's colour
// follows from its path alone, so that two reports of the same code can be compared by eye.

import { max, min, round } from "./math";

export type Rgb = [number, number, number];

const KINDS: Record<string, string> = {
  weights: "#2f6db3",
  gradients: "#d4622f",
  optimizer_state: "#b072ab",
  activations: "#2a9c82",
  temporaries: "#e3ab3c",
  cached_free: "#c9ced6",
  unexplained: "#8b919b",
};
const SPARE = ["#5fb0e0", "#7a6a4f", "#d98aa0", "#5a5fae"];
const STREAMS = ["#2f6db3", "#e3ab3c", "#2a9c82", "#b072ab", "#d4622f", "#5fb0e0", "#7a6a4f", "#8b919b"];

export function parse(hex: string): Rgb {
  const value = parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

export const css = ([r, g, b]: Rgb): string => `rgb(${round(r)} ${round(g)} ${round(b)})`;

export function mix(a: Rgb, b: Rgb, share: number): Rgb {
  return [0, 1, 2].map((k) => a[k] + (b[k] - a[k]) * share) as Rgb;
}

export function kindColor(name: string, index: number): Rgb {
  return parse(KINDS[name.replaceAll(" ", "_")] ?? SPARE[index % SPARE.length]);
}

export const streamColor = (index: number): Rgb => parse(STREAMS[index % STREAMS.length]);

/** From pale to deep as sizes grow by factors of four: order is seen without hue. */
export function sizeColor(log2: number, dark: boolean): Rgb {
  const t = min(1, max(0, (log2 - 9) / 23));
  const lightness = dark ? 0.42 + 0.4 * t : 0.86 - 0.46 * t;
  return oklch(lightness, 0.045 + 0.09 * t, 235 - 45 * (1 - t));
}

/** FNV-1a: the same text has the same number in every report. */
export function hash(text: string): number {
  let value = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) value = Math.imul(value ^ text.charCodeAt(i), 0x01000193) >>> 0;
  return value;
}

/** Sixteen hues in three lightnesses: close hues that meet still differ in lightness most of the time. */
export function moduleColor(path: string, dark: boolean): Rgb {
  if (path === "") return parse(KINDS.unexplained);
  const value = hash(path);
  const step = (value >>> 4) % 3;
  const lightness = (dark ? [0.56, 0.68, 0.8] : [0.5, 0.63, 0.76])[step];
  return oklch(lightness, 0.115, ((value & 15) * 360) / 16 + 12);
}

function oklch(lightness: number, chroma: number, hue: number): Rgb {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const gamma = (v: number) => {
    const c = min(1, max(0, v));
    return 255 * (c <= 0.0031308 ? 12.92 * c : 1.055 * c ** (1 / 2.4) - 0.055);
  };
  return [
    gamma(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
    gamma(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
    gamma(-0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s),
  ];
}

/** What the canvases take from the style sheet. */
export interface Theme {
  dark: boolean;
  back: Rgb;
  ink: string;
  muted: string;
  line: string;
  grid: string;
  accent: string;
  reserved: string;
  allocated: string;
  active: string;
  surface: string;
  font: string;
}

export function readTheme(): Theme {
  const style = getComputedStyle(document.documentElement);
  const get = (name: string) => style.getPropertyValue(name).trim();
  return {
    dark: get("--dark") === "1",
    back: parse(get("--plot")),
    ink: get("--ink"),
    muted: get("--muted"),
    line: get("--line"),
    grid: get("--grid"),
    accent: get("--accent"),
    reserved: get("--reserved"),
    allocated: get("--allocated"),
    active: get("--active"),
    surface: get("--surface"),
    font: get("--font"),
  };
}
