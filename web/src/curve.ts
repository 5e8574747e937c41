// A quantity at every tick, exact, with minima and maxima of ever longer stretches so that a line of any zoom costs one
// look a pixel.

import { max, min, ceil } from "./math";

const FAN = 16;

export class Curve {
  readonly peak: number;
  readonly peakAt: number;
  private readonly low: Float64Array[];
  private readonly high: Float64Array[];

  private constructor(readonly at: Float64Array) {
    let peak = 0;
    let peakAt = 0;
    for (let k = 0; k < at.length; k++) {
      if (at[k] > peak) {
        peak = at[k];
        peakAt = k;
      }
    }
    this.peak = peak;
    this.peakAt = peakAt;
    this.low = [at];
    this.high = [at];
    while (this.low[this.low.length - 1].length > FAN) {
      const low = this.low[this.low.length - 1];
      const high = this.high[this.high.length - 1];
      const size = ceil(low.length / FAN);
      const nextLow = new Float64Array(size).fill(Infinity);
      const nextHigh = new Float64Array(size).fill(-Infinity);
      for (let i = 0; i < low.length; i++) {
        const group = (i / FAN) | 0;
        if (low[i] < nextLow[group]) nextLow[group] = low[i];
        if (high[i] > nextHigh[group]) nextHigh[group] = high[i];
      }
      this.low.push(nextLow);
      this.high.push(nextHigh);
    }
  }

  /** The running sum of what `changes` adds, over ticks [0, ticks). */
  static of(ticks: number, changes: (add: (tick: number, bytes: number) => void) => void): Curve {
    const at = new Float64Array(ticks + 1);
    changes((tick, bytes) => {
      at[min(tick, ticks)] += bytes;
    });
    for (let k = 1; k <= ticks; k++) at[k] += at[k - 1];
    return new Curve(at.subarray(0, ticks));
  }

  /** The first tick of [from, to) with the greatest value there. */
  highest(from: number, to: number): number {
    const greatest = this.range(from, to)[1];
    const last = min(this.at.length, to);
    for (let k = max(0, from); k < last; ) {
      // Stretches whose greatest value is lower are passed over, the longest first.
      let level = this.high.length - 1;
      while (level > 0 && (k % FAN ** level !== 0 || this.high[level][k / FAN ** level] >= greatest)) level--;
      if (level === 0 && this.at[k] >= greatest) return k;
      k += FAN ** level;
    }
    return max(0, from);
  }

  /** The least and the greatest value over ticks [from, to). */
  range(from: number, to: number): [number, number] {
    let least = Infinity;
    let greatest = -Infinity;
    let level = 0;
    let a = max(0, from);
    let b = min(this.at.length, to);
    while (a < b) {
      const low = this.low[level];
      const high = this.high[level];
      const see = (i: number) => {
        if (low[i] < least) least = low[i];
        if (high[i] > greatest) greatest = high[i];
      };
      if (level + 1 === this.low.length || b - a < 2 * FAN) {
        for (let i = a; i < b; i++) see(i);
        break;
      }
      while (a % FAN !== 0) see(a++);
      while (b % FAN !== 0) see(--b);
      a /= FAN;
      b /= FAN;
      level++;
    }
    return [least, greatest];
  }
}
