// Pages that the real binary wrote: of a run, of a run that ran out of memory, of `fit`, of a replay, of a plan, of two
// runs, of equal ranks.

import { execFileSync } from "node:child_process";
import { copyFileSync, existsSync, mkdirSync, mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../..", import.meta.url));
const folder = process.env.PAGES ?? mkdtempSync(join(tmpdir(), "gapless-pages-"));
const RUN = "testdata/traces/gpt2_train_stacks.pickle.gz";

const ARGUMENTS = {
  report: ["report", RUN],
  /** Recorded without stacks. */
  bare: ["report", "testdata/traces/gpt2_train.pickle.gz"],
  oom: ["report", "testdata/cases/oom.pickle.gz"],
  streams: ["report", "testdata/traces/multistream.pickle.gz"],
  fit: ["fit", "llama-3.2-1b", "--batch", "8", "--memory", "24GiB"],
  replay: ["replay", RUN, "--with", "torch", "--with", "torch:expandable_segments:True", "--with", "gapless"],
  diff: ["diff", "testdata/cases/leak.pickle.gz", RUN],
  plan: ["plan", "testdata/planner/challenging/A.1048576.csv.gz", "--capacity", "1MiB"],
  equal: ["report", ...["rank0", "rank1", "rank2"].map((rank) => join(folder, "run", `${rank}.pickle.gz`))],
};

function gapless(args) {
  const binary = process.env.GAPLESS;
  const words = binary ? args : ["run", "--quiet", "--package", "gapless", "--", ...args];
  try {
    execFileSync(binary ?? "cargo", words, { cwd: root, stdio: ["ignore", "ignore", "inherit"] });
  } catch (error) {
    // `fit` says no by its exit code.
    if (error.status !== 1) throw error;
  }
}

/** The path of a page, written once. */
export function pageOf(name, format = "html") {
  const path = join(folder, `${name}.${format}`);
  if (name === "equal") {
    mkdirSync(join(folder, "run"), { recursive: true });
    for (const rank of ["rank0", "rank1", "rank2"]) copyFileSync(join(root, RUN), join(folder, "run", `${rank}.pickle.gz`));
  }
  if (!existsSync(path)) gapless([...ARGUMENTS[name], "--format", format, "-o", path]);
  return path;
}
