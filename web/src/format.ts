// Numbers as people read them: the same rules as the terminal report, so that both show the same text.

import { max, min, round, floor, ceil } from "./math";

const UNITS = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

function three(value: number): string {
  return value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

/** `512 B`, `1.50 KiB`, `13.6 GiB`: three digits from KiB on. */
export function bytes(value: number): string {
  if (value < 1024) return `${round(value)} B`;
  let scaled = value / 1024;
  let unit = 0;
  while (scaled >= 999.5 && unit + 1 < UNITS.length) {
    scaled /= 1024;
    unit += 1;
  }
  return `${three(scaled)} ${UNITS[unit]}`;
}

/** `950 µs`, `62.1 ms`, `9.79 s`, `3 min 04 s`, `2 h 05 min`. */
export function duration(us: number): string {
  if (us < 999.5) return `${round(us)} µs`;
  if (us < 999_500) return `${three(us / 1e3)} ms`;
  if (us < 99_950_000) return `${three(us / 1e6)} s`;
  const seconds = round(us / 1e6);
  const pad = (n: number) => String(n).padStart(2, "0");
  return seconds < 3600
    ? `${floor(seconds / 60)} min ${pad(seconds % 60)} s`
    : `${floor(seconds / 3600)} h ${pad(floor((seconds % 3600) / 60))} min`;
}

const grouped = new Intl.NumberFormat("en-US");

export const count = (value: number): string => grouped.format(value);

export const percent = (share: number): string => `${(share * 100).toFixed(share < 0.0995 ? 1 : 0)} %`;

/** `1 allocation`, `12,345 allocations`. */
export const counted = (value: number, noun: string): string => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

/** The last parts of a path: what tells files apart in a column. */
export function shortPath(path: string): string {
  const parts = path.split(/[\\/]/);
  return parts.length > 2 ? parts.slice(-2).join("/") : path;
}

/** A file's name that does not depend on where a machine keeps its packages. */
export function modulePath(path: string): string {
  const inside = /(?:site|dist)-packages[\\/](.*)$/.exec(path);
  return (inside ? inside[1] : path.split(/[\\/]/).slice(-3).join("/")).replaceAll("\\", "/");
}

/** Steps of an axis: at most `most` round values in [from, to]; binary steps for bytes. */
export function axisTicks(from: number, to: number, most: number, binary: boolean): number[] {
  const span = to - from;
  if (!(span > 0)) return [];
  const raw = span / max(1, most);
  let step: number;
  if (binary) {
    step = 2 ** ceil(Math.log2(raw));
  } else {
    const power = 10 ** floor(Math.log10(raw));
    step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw) ?? raw;
  }
  const ticks: number[] = [];
  for (let at = ceil(from / step) * step; at <= to; at += step) ticks.push(at);
  return ticks;
}

/** An axis label: exact if the step is finer than three digits show. */
export function axisBytes(value: number, step: number): string {
  if (value === 0) return "0";
  for (let unit = 5; unit >= 0; unit--) {
    const size = 1024 ** (unit + 1);
    if (value >= size) {
      // Steps are powers of two: each halving needs a digit to be exact.
      const digits = max(0, min(4, round(Math.log2(size / step))));
      return `${(value / size).toFixed(digits)} ${UNITS[unit]}`;
    }
  }
  return `${value} B`;
}

export function axisTime(us: number, step: number): string {
  const [unit, name] = step >= 60e6 ? [60e6, "min"] : step >= 1e5 ? [1e6, "s"] : step >= 100 ? [1e3, "ms"] : [1, "µs"];
  const digits = max(0, min(6, ceil(Math.log10((unit as number) / step) - 0.001)));
  return `${(us / (unit as number)).toFixed(digits)} ${name}`;
}
