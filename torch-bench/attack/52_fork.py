"""A child forked after CUDA began that uses no CUDA may drop inherited tensors and end, and its parent goes on
unharmed."""
import gc

from common import *

g = start(limit=2 * GIB)
torch.set_num_threads(1)
r, kept, codes, mistakes = rng(52), [], [], 0
side = torch.cuda.Stream()
for turn in range(12):
    for k in range(6):
        kept.append((fill(ints(log_uniform(r, 512, 40 * MIB)), turn * 6 + k), turn * 6 + k))
    used = ints(8 * MIB)
    side.wait_stream(torch.cuda.current_stream())
    used.record_stream(side)
    child = os.fork()
    if child == 0:
        # No CUDA here: host work, inherited tensors go, an exception, the usual end.
        code = 1
        try:
            kept.clear()
            gc.collect()
            x = torch.arange(1000).sum()
            code = 0 if int(x) == 499500 else 2
            try:
                torch.zeros(1, device="cuda")
                code = 3
            except RuntimeError as error:
                code = code if "fork" in str(error) else 4
        finally:
            os._exit(code)
    pid, status = 0, 0
    give_up = time.monotonic() + 20
    while pid == 0 and time.monotonic() < give_up:
        pid, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.005)
    if pid == 0:
        os.kill(child, 9)
        os.waitpid(child, 0)
        codes.append("hang")
    else:
        codes.append(os.waitstatus_to_exitcode(status))
    del used
    mistakes += sum(int(wrong(x, mark)) for x, mark in kept)
    if len(kept) > 14:
        del kept[::2]
ok = set(codes) == {0} and mistakes == 0 and not adds_up()
done(ok, f"children ended with {sorted(set(codes), key=str)}, {mistakes} wrong elements in the parent")
