// Colours. Kinds have fixed ones, chosen to stay apart for colour-blind readers, by lightness too. A module's colour
// follows from its path alone, so that two reports of the same code can be compared by eye.

import { max, min, round } from "./math";

export type Rgb = [number, number, number];

const KINDS: Record<string, string> = {
  weights: "#2f6db3",
  gradients: "#d4622f",
  optimizer_state: "#a28acd",
  activations: "#2a9c82",
  temporaries: "#e3ab3c",
  unexplained: "#51555c",
};
/**
 * For every other name. These and the kinds stay apart in pairs for readers without one of the three kinds of cones:
 * more than 0.05 in Oklab, which web/test/colors.test.mjs computes.
 */
const SPARE = ["#a4dcea", "#954d05", "#c8dc6a", "#733281", "#d871a1", "#4fcc92", "#dca2ff", "#885e86", "#a1b3cb", "#68735b", "#f6c2be", "#b39c63", "#294c9f", "#7174d1"];
/** All colours, for parts that have a number. */
const ALL = [...Object.values(KINDS), ...SPARE];

export function parse(hex: string): Rgb {
  const value = parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

export const css = ([r, g, b]: Rgb): string => `rgb(${round(r)} ${round(g)} ${round(b)})`;

export function mix(a: Rgb, b: Rgb, share: number): Rgb {
  return [0, 1, 2].map((k) => a[k] + (b[k] - a[k]) * share) as Rgb;
}

/** Which spare colour a name has, so that no two names of one page share one while there are enough. */
const taken = new Map<string, number>();

/** The colour of a kind of memory, or of any other named part. */
export function kindColor(name: string): Rgb {
  const key = name.replaceAll(" ", "_");
  if (Object.hasOwn(KINDS, key)) return parse(KINDS[key]);
  if (!taken.has(key)) taken.set(key, taken.size);
  const at = taken.get(key)!;
  return at < SPARE.length ? parse(SPARE[at]) : further(at);
}

export const streamColor = (index: number): Rgb => (index < ALL.length ? parse(ALL[index]) : further(index));

/** Colours without end, all different: hues by the golden angle, in changing lightness. */
const further = (at: number): Rgb => oklch(0.48 + ((at * 0.27) % 0.36), 0.07 + (at % 3) * 0.03, (at * 137.508) % 360);

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

/**
 * Colours of modules, given the most important one first. A module has the colour that follows from its path, as in
 * every other report, unless a more important one has it already.
 */
export function moduleColors(paths: string[]): Map<string, Rgb> {
  const found = new Map<string, Rgb>([["", parse(KINDS.unexplained)]]);
  const free = ALL.filter((color) => color !== KINDS.unexplained);
  const slots: (string | undefined)[] = free.slice();
  let left = slots.length;
  paths.filter((path) => path !== "").forEach((path, rank) => {
    if (left === 0) return found.set(path, further(rank));
    let at = hash(path) % slots.length;
    while (slots[at] === undefined) at = (at + 1) % slots.length;
    found.set(path, parse(slots[at]!));
    slots[at] = undefined;
    left--;
    return found;
  });
  return found;
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

/** The colours that the canvases take from the style sheet. */
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
