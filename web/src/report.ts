// The report's JSON, schema gapless.report/1. Every member may be missing: the page shows what is there.

export interface Report {
  schema?: string;
  tool?: { name?: string; version?: string };
  source?: { path?: string; format?: string; producer?: string; notes?: Note[] };
  settings?: Settings | null;
  devices?: DeviceReport[];
  findings?: Finding[];
  headline?: Headline;
}

/** The first words of a page that shows an answer, and no recorded run. */
export interface Headline {
  title: string;
  tone: "good" | "care" | "bad" | "plain";
  tiles: { name: string; value: string; note: string; strong: boolean }[];
  bar?: Bar;
  lists: { title: string; columns: string[]; rows: string[][] }[];
  notes: string[];
}

export interface Part {
  name: string;
  bytes: number;
}

export interface Bar {
  parts: Part[];
  limit: number;
  of: string;
}

export interface Note {
  code?: string;
  text?: string;
}

export interface Settings {
  conf?: string;
  max_split_size?: number | null;
  garbage_collection_threshold?: number;
  expandable_segments?: boolean;
  roundup_power2_divisions?: number[];
  other?: Record<string, unknown>;
}

export interface Losses {
  internal?: number;
  external?: number;
  stranded?: number;
  pending?: number;
  largest_gap?: number;
  gaps?: number;
}

export interface Holder {
  rank?: number;
  bytes?: number;
  requested?: number;
  count?: number;
  share?: number;
  kind?: string;
  label?: string;
  /** The named scopes that all its blocks were allocated in. */
  scope?: string[];
  stack?: { name?: string; file?: string; line?: number }[];
  /** Blocks of this size if there are no stacks: a size, or [from, to). */
  size_class?: number | [number, number] | null;
  /** Notes of the program about its blocks, such as the path of their module. */
  notes?: string[];
  /** Of an interval: bytes that were allocated in it, and which allocations the holder has. */
  born?: number;
  has?: (i: number) => boolean;
}

export interface Instant {
  tick?: number;
  figures?: Record<string, number | undefined>;
  losses?: Losses;
}

export interface DeviceReport {
  device?: number;
  events?: number;
  allocations?: number;
  preexisting?: number;
  duration_us?: number | null;
  peak_live?: number;
  peak_allocated?: number;
  peak_requested?: number;
  peak_active?: number;
  peak_reserved?: number | null;
  fragmentation?: number | null;
  segments_peak?: number;
  peak_at?: Record<string, { tick?: number; time_us?: number | null; step?: number | null } | undefined>;
  at_peak_allocated?: Instant;
  at_peak_reserved?: Instant;
  kinds?: { inferred?: boolean; evidence?: string; at_peak?: Record<string, number> };
  holders?: Holder[];
  steps?: { count?: number; evidence?: string };
  churn?: { allocations_per_second?: number | null; device_allocs?: number; device_frees?: number; retries?: number; ooms?: { asked: number }[] };
  notes?: Note[];
}

export interface Finding {
  code?: string;
  severity?: "info" | "warning" | "error";
  headline?: string;
  evidence?: string[];
  help?: string;
  suggestion?: string;
  device?: number | null;
}
