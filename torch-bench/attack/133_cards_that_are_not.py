"""Questions about cards that the process does not have, before and after the first tensor, are refused as torch refuses
them, and never answered with an empty card. Those about the card that it has are answered all the while."""
from common import *

problems = []


def refused(name, ask):
    try:
        answer = ask()
    except (RuntimeError, AssertionError, ValueError):
        return
    problems.append(f"{name} was answered with {answer!r}")


g = start(limit=1 * GIB)
count = torch.cuda.device_count()
held = ints(5 * MIB)
for turn in range(3):
    for card in (count, count + 3, 63, 64, 100):
        refused(f"memory_allocated({card})", lambda card=card: torch.cuda.memory_allocated(card))
        refused(f"memory_reserved({card})", lambda card=card: torch.cuda.memory_reserved(card))
        refused(f"max_memory_allocated({card})", lambda card=card: torch.cuda.max_memory_allocated(card))
        refused(f"memory_stats({card})", lambda card=card: len(torch.cuda.memory_stats(card)))
        refused(f"reset_peak_memory_stats({card})", lambda card=card: torch.cuda.reset_peak_memory_stats(card))
        refused(f"reset_accumulated_memory_stats({card})",
                lambda card=card: torch.cuda.reset_accumulated_memory_stats(card))
        refused(f"set_per_process_memory_fraction(0.5, {card})",
                lambda card=card: torch.cuda.set_per_process_memory_fraction(0.5, card))
        refused(f"get_per_process_memory_fraction({card})",
                lambda card=card: torch.cuda.get_per_process_memory_fraction(card))
        refused(f"caching_allocator_alloc(512, {card})", lambda card=card: torch.cuda.caching_allocator_alloc(512, card))
        refused(f"a tensor on cuda:{card}", lambda card=card: torch.empty(8, device=f"cuda:{card}"))
        refused(f"torch.accelerator.memory_allocated({card})",
                lambda card=card: torch.accelerator.memory_allocated(card))
    if torch.cuda.memory_allocated() < 5 * MIB or torch.cuda.memory_allocated(0) != torch.accelerator.memory_allocated(0):
        problems.append("the card that is there is not answered for")
    held = fill(ints(5 * MIB), turn)
problems += adds_up()
done(not problems, f"{len(problems)}: " + "; ".join(problems[:3]) if problems else "all were refused")
