// A curve as a line of pixels.

import { max } from "./math";
import type { App } from "./app";
import type { Curve } from "./curve";

/**
 * The line of a curve over the pixels [left, left + width): exact steps if they are wide, else extremes of each
 * pixel.
 */
export function tracePath(app: App, curve: Curve, left: number, width: number, xOf: (px: number) => number, px: (x: number) => number, py: (y: number) => number, highest = false): Path2D {
  const path = new Path2D();
  const first = app.tickAt(xOf(left));
  const last = app.tickAt(xOf(left + width));
  if (last - first < width * 1.5) {
    for (let k = first; k <= last; k++) {
      const y = py(curve.at[k]);
      const x = px(app.xAt(k));
      if (k === first) path.moveTo(x, y);
      else path.lineTo(x, y);
      path.lineTo(px(app.xAt(k + 1)), y);
    }
    return path;
  }
  let from = first;
  let before = curve.at[first];
  path.moveTo(left, py(before));
  for (let x = 0; x < width; x++) {
    const to = max(from, app.tickAt(xOf(left + x + 1)));
    const [low, high] = curve.range(from, to + 1);
    if (highest) {
      path.lineTo(left + x, py(high));
      path.lineTo(left + x + 1, py(high));
      from = to;
      continue;
    }
    const upFirst = Math.abs(before - low) < Math.abs(before - high);
    path.lineTo(left + x + 0.3, py(upFirst ? low : high));
    path.lineTo(left + x + 0.7, py(upFirst ? high : low));
    before = curve.at[to];
    path.lineTo(left + x + 1, py(before));
    from = to;
  }
  return path;
}
