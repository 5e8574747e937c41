// The named scopes that were open when an allocation was born: its module path, if a profiler marked modules.

import { lowerBound } from "./math";
import type { Device } from "./device";

/** Scopes below this depth do not lengthen a path, as in the report. */
const DEEPEST = 16;

export class Scopes {
  /** All paths in use, the outermost name first; path 0 is the empty one. */
  readonly paths: string[][] = [[]];
  private readonly times: number[] = [];
  private readonly numbers: number[] = [];

  constructor(private readonly device: Device) {
    const scopes = device.detail?.scopes ?? [];
    const ends = scopes.map((_, k) => k).sort((a, b) => scopes[a].end - scopes[b].end);
    const known = new Map<string, number>([["", 0]]);
    let open: number[] = [];
    for (let next = 0, over = 0; over < ends.length; ) {
      const starts = scopes[next]?.start ?? Infinity;
      const stops = scopes[ends[over]].end;
      if (starts <= stops) open.push(next++);
      else {
        const gone = ends[over++];
        open = open.filter((k) => k !== gone);
      }
      const path = open.slice(0, DEEPEST).map((k) => scopes[k].name);
      const key = path.join("\n");
      let number = known.get(key);
      if (number === undefined) {
        known.set(key, (number = this.paths.length));
        this.paths.push(path);
      }
      this.times.push(starts <= stops ? starts : stops);
      this.numbers.push(number);
    }
  }

  get any(): boolean {
    return this.paths.length > 1;
  }

  /** The path of allocation `i`. */
  of(i: number): number {
    if (!this.any) return 0;
    const time = this.device.timeAt(this.device.rects.start[i]);
    const at = time === null ? 0 : lowerBound(this.times, time + 1e-9);
    return at > 0 ? this.numbers[at - 1] : 0;
  }
}
