"""While one stream stands still with a block that it uses, blocks that other streams used are free again at the next
request after these streams are done, as torch's allocator looks at every request: in the statistics, and for the next
who asks."""
from common import *

g = start(limit=2 * GIB)
stalled, reader, problems, mistakes, r = torch.cuda.Stream(), torch.cuda.Stream(), [], 0, rng(139)
for s in (stalled, reader):
    with torch.cuda.stream(s):
        busy(0.1)
int(wrong(fill(ints(MIB), 1), 1))
torch.cuda.synchronize()
tiny = [torch.empty(8, device="cuda")]


def beyond():
    stats = torch.cuda.memory_stats()
    return stats["active_bytes.all.current"] - stats["allocated_bytes.all.current"]


for turn in range(3):
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    tiny.append(torch.empty(8, device="cuda"))
    x = ints(16 * MIB)
    with torch.cuda.stream(stalled):
        busy(1500)
        ended = stalled.record_event()
    x.record_stream(stalled)
    del x
    for step in range(40):
        mark = r.randrange(1 << 18)
        y = fill(ints(log_uniform(r, 512, 8 * MIB)), mark)
        reader.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(reader):
            bad = wrong(y, mark)
        y.record_stream(reader)
        del y
        reader.synchronize()
        mistakes += int(bad)
        tiny[-1] = torch.empty(8, device="cuda")  # the request that looks
        held = beyond()
        if ended.query():
            break  # a card that is faster than thought, or a host that is slower
        if held != 16 * MIB:
            problems.append(f"turn {turn}, step {step}: {held - 16 * MIB} bytes beside the stalled block are active for nobody")
            break
torch.cuda.synchronize()
torch.cuda.empty_cache()
if beyond() != 0:
    problems.append(f"{beyond()} bytes are active for nobody in the end")
problems += adds_up()
done(not problems and mistakes == 0, "; ".join(problems[:3]) or f"120 steps, {mistakes} wrong elements")
