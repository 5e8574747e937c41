// The five functions that everything here uses, by short names: a bundle cannot shorten `Math.max` by itself.

export const { max, min, round, floor, ceil } = Math;
