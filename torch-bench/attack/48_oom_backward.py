"""Running out of memory inside backward, in autograd's own thread, raises OutOfMemoryError, and the same step
succeeds afterwards."""
import gc

from common import *

g = start(limit=2 * GIB)
hungry = True


class Eats(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        if hungry:
            torch.empty(4 * GIB, dtype=torch.uint8, device="cuda")
        return grad * 2 + x * 0


n, raised, kinds, mistakes, leaks = 4 << 20, 0, set(), 0, set()
w = torch.ones(n, device="cuda", requires_grad=True)
for step in range(30):
    for hungry in (True, False):
        w.grad = None
        try:
            x = w * (step + 1)
            y = Eats.apply(x)
            z = Eats.apply(y + 1) if step % 2 else y
            del x, y
            z.sum().backward()
            del z
            if hungry:
                kinds.add("no error")
            mistakes += int((w.grad != (step + 1) * (4.0 if step % 2 else 2.0)).sum())
        except torch.OutOfMemoryError as error:
            raised += 1
            if "CUDA out of memory" not in str(error):
                kinds.add(str(error).splitlines()[0][:80])
            z = None
        except BaseException as error:
            kinds.add(f"{type(error).__name__}: {str(error)[:80]}")
            z = None
    # The same from C++: the gradient of one element needs as much as all of them.
    # Nothing that is kept may lie in the segment of the large block: torch's own allocator would not find it whole.
    w.grad = None
    gc.collect()
    torch.cuda.empty_cache()
    big = torch.zeros(320 << 20, device="cuda", requires_grad=True)
    try:
        (big[3] * 2).backward()
        kinds.add("no error in C++")
    except torch.OutOfMemoryError:
        raised += 1
    big = None
    w.grad = None
    gc.collect()
    torch.cuda.synchronize()
    leaks.add(torch.cuda.memory_allocated())
ok = raised == 60 and not kinds and mistakes == 0 and len(leaks) == 1
text = f"raised {raised} of 60 times, {mistakes} wrong gradients, {len(leaks)} levels of memory between steps"
done(ok, f"{text}; {kinds or ''}")
