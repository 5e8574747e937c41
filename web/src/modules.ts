// The module that each allocation belongs to, if the program named its modules: the newest note that is a path.

import type { Detail } from "./payload";

/** Notes of gapless.name_modules(), and notes that are paths of modules by themselves. */
const PATH = /^module: *(.+)$|^((?:\d+\.)*[A-Za-z_]\w*(?:\.\d+)*\.[A-Za-z_]\w*(?:\.\w+)*)$(?<!\.py)/;

/** The path in a note; null if it has none. */
export function moduleIn(note: string): string | null {
  const found = PATH.exec(note.trim());
  return found ? (found[1] ?? found[2]) : null;
}

export class Modules {
  private readonly ofNote: (string | null)[];
  readonly any: boolean;

  constructor(private readonly detail: Detail | null) {
    this.ofNote = detail?.noteTexts.map(moduleIn) ?? [];
    this.any = this.ofNote.some((path) => path);
  }

  /** The path of allocation `i`; null if none is known. */
  of(i: number): string | null {
    return this.detail?.notes.get(i)?.reduce((path: string | null, note) => this.ofNote[note] ?? path, null) ?? null;
  }
}
