// Functions of numbers that everything here uses. The first five have short names of their own: a bundle cannot shorten
// `Math.max` by itself.

export const { max, min, round, floor, ceil } = Math;

/** The first position in the sorted `values[0..n)` that is not below `value`. */
export function lowerBound(values: ArrayLike<number>, value: number, n = values.length): number {
  let low = 0;
  let high = n;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
