// The page's words with their meanings: shown on hover, by keyboard focus, and by a tap.

import { max, min } from "./math";
import { h, life } from "./dom";

const WORDS: Record<string, string> = {
  "reserved": "Memory that the allocator holds from the device: what nvidia-smi counts, without the context.",
  "allocated": "Bytes of blocks that are in the program's hands: live tensors.",
  "active": "Allocated, and blocks that the program freed while other streams still use them.",
  "fragmentation": "The share of peak reserved that the program never had in its hands at once: 1 − peak allocated / peak reserved.",
  "stranded": "Free memory in segments that also hold live blocks. The allocator cannot give it back to the device, and only requests that fit a gap can use it.",
  "rounding": "Bytes of blocks beyond what was asked for: the allocator rounds sizes up.",
  "pending": "Freed by the program, but work on another stream may still use it: it cannot be handed out yet.",
  "allocations": "Blocks that the program asked for over the whole run.",
  "device calls": "Calls that took memory from the device or gave it back, such as cudaMalloc and cudaFree. Each may wait for the GPU.",
  "unexplained": "Allocations whose kind could not be inferred from their stacks and lifetimes.",
  "not known": "Allocations whose kind could not be inferred from their stacks and lifetimes.",
  "weights": "Parameters of the model, which stay for the whole run.",
  "gradients": "Derivatives of the parameters: made in backward, used by the optimizer.",
  "optimizer state": "What the optimizer keeps for each parameter, such as Adam's two moments.",
  "activations": "Results of forward that backward needs. Gradient checkpointing, a smaller batch or shorter sequences lower them.",
  "temporaries": "Blocks that live for a moment within a step, such as logits and workspaces.",
  "cached free": "Free memory that the allocator keeps to serve later requests.",
  "inferred": "Worked out from lifetimes, sizes and stacks. The allocator does not record kinds.",
  "scopes": "Named parts of the program that a profiler or gapless.name_modules recorded, such as modules.",
  "steps": "Iterations of training: from the Optimizer.step annotations, or from allocations that repeat.",
  "segments": "Pieces of memory that the allocator took from the device. It cuts them into blocks.",
  "live": "A block in the program's hands.",
  "free": "A gap that the allocator can hand out.",
  "largest free": "The largest gap of this pool: a larger request needs new memory from the device.",
  "stream": "A queue of GPU work. A block belongs to the stream that it was allocated on, and only that stream can use its memory again.",
  "pool": "A separate set of segments: the default one, or one of a CUDA graph. Small blocks, up to 1 MiB, have segments of their own.",
  "scope": "The named parts of the program, such as modules, that were open when it was allocated.",
  "module": "The module of the model that allocated it.",
  "notes": "What the program wrote about its blocks.",
  "note": "What the program wrote about this block.",
  "block": "What the allocator handed out: the request, rounded up.",
  "kind": "What the memory is for. Inferred, unless the program said so.",
  "peak": "The instant with the most allocated bytes.",
  "instant": "The moment that the dashed line marks. A click in the timeline moves it.",
  "interval": "A part of the run that you select: drag over the timeline, or press [ and ] at its ends. Flame graph and holders then show it.",
  "free in reserved": "Reserved memory that no block uses at the instant.",
  "live in the interval": "Blocks that were alive at some time in the interval. Not all of them at once.",
  "allocated in it": "Blocks that were allocated in the interval.",
  "imbalance": "How far the highest peak of all ranks is above their mean: highest / mean − 1.",
  "odd ranks": "Ranks that differ from their replicas by more than the replicas differ among themselves.",
  "median rank": "The rank in the middle when ranks are sorted by their peaks.",
  "worst rank": "The rank with the highest peak: the one that runs out of memory first.",
  "first divergence": "The first step at which a rank holds clearly more or less than its replicas.",
  "replicas": "Ranks that do the same work on other data, so their memory should be the same.",
};

/** A word that explains itself. `key` is its name in the list, if it is written otherwise. */
export function term(text: string, key = text.toLowerCase()): HTMLElement | string {
  return key in WORDS ? h("button.term", { type: "button", "data-term": key }, text) : text;
}

/** Marks an element that does something else on a click: its word is explained on hover and focus. */
export const explained = (key: string): Record<string, string | undefined> => ({ "data-term": key in WORDS ? key : undefined });

export class Glossary {
  readonly element = h("div.tip", { id: "explanation", role: "tooltip", hidden: true });
  private of: HTMLElement | null = null;

  constructor() {
    const { signal } = life.of;
    const at = (event: Event) => (event.target as Element).closest?.<HTMLElement>("[data-term]") ?? null;
    document.addEventListener("pointerover", (event) => {
      if (event.pointerType !== "touch") this.show(at(event));
    }, { signal });
    document.addEventListener("focusin", (event) => this.show(at(event)), { signal });
    document.addEventListener("focusout", () => this.show(null), { signal });
    document.addEventListener("click", (event) => this.show(at(event)), { signal });
    document.addEventListener("scroll", () => this.place(), { signal, passive: true });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.of) return;
      this.show(null);
      event.stopPropagation();
    }, { signal, capture: true });
  }

  private show(word: HTMLElement | null): void {
    if (word === this.of) return;
    this.of?.removeAttribute("aria-describedby");
    this.of = word;
    const { element } = this;
    element.hidden = !word;
    if (!word) return;
    element.textContent = WORDS[word.dataset["term"]!] ?? "";
    word.setAttribute("aria-describedby", "explanation");
    this.place();
  }

  private place(): void {
    const { element, of: word } = this;
    if (!word) return;
    const box = word.getBoundingClientRect();
    const below = box.bottom + element.offsetHeight + 14 < innerHeight;
    element.style.left = `${max(8, min(box.left, innerWidth - element.offsetWidth - 12))}px`;
    element.style.top = `${below ? box.bottom + 6 : box.top - element.offsetHeight - 6}px`;
  }
}
