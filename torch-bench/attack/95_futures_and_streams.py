"""Futures whose callbacks run on streams of torch's pool, and more streams than that pool has, so that two objects are
one stream: values that are dropped early arrive whole."""
import threading

from common import *

g = start(limit=2 * GIB)
r, bad, card, errors = rng(95), [], torch.device("cuda", 0), []
streams = [torch.cuda.Stream(priority=-(k % 2)) for k in range(140)]
handles = len({s.cuda_stream for s in streams})
main = torch.cuda.current_stream()


def add(k):
    def then(future):
        x = future.value()
        junk = torch.full_like(x, -1)  # of this callback's stream
        del junk
        return x + k

    return then


for step in range(160):
    first, last = streams[r.randrange(140)], streams[r.randrange(140)]
    future = torch.futures.Future(devices=[card])
    chained = future.then(add(1)).then(add(2))
    both = torch.futures.collect_all([chained, chained.then(add(4))])
    with torch.cuda.stream(first):
        busy(0.3)
        x = fill(ints(log_uniform(r, 4096, 12 * MIB)), step)
        if step % 2:
            future.set_result(x)
            del x
        else:  # a thread of its own sets it, on the same stream

            def set_it(x=x, s=first, future=future):
                try:
                    with torch.cuda.stream(s):
                        future.set_result(x)
                except BaseException as error:
                    errors.append(repr(error)[:120])

            thread = threading.Thread(target=set_it)
            thread.start()
            thread.join()
            del x, set_it
    del future
    with torch.cuda.stream(last):
        one, two = both.wait()
        a = one.wait()
        b = two.wait()
        del one, two, both, chained
        bad.append(wrong(a, step + 3) + wrong(b, step + 7))
        del a, b
    junk = ints(log_uniform(r, 4096, 12 * MIB)).fill_(-1)
    del junk
torch.cuda.synchronize()
# The same handle behind two objects: announcing one for a block of the other says nothing new.
for k in range(300):
    s, t = streams[r.randrange(140)], streams[r.randrange(140)]
    with torch.cuda.stream(s):
        x = fill(ints(log_uniform(r, 512, 6 * MIB) | 3), k)
        odd = x[1 : x.numel() // 2 + 1]
    t.wait_stream(s)
    with torch.cuda.stream(t):
        y = odd.clone()
        bad.append(wrong(y, k + 1))
        del y
    x.record_stream(t)
    del x, odd
    if k % 100 == 99:
        torch.cuda.empty_cache()
torch.cuda.synchronize()
mistakes = sum(int(b) for b in bad)
problems = adds_up()
ok = mistakes == 0 and not errors and not problems
done(ok, f"160 chains of futures, 140 streams of {handles} handles, {mistakes} wrong {errors[:1]} {problems[:1]}")
