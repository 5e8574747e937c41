"""A graph of a region keeps the workspace that its products were captured with, as natively, if cuBLAS's workspaces are
thrown away after the capture as torch.compile does: products on the captured stream beside its replays change nothing.
(Gapless only)"""
from common import *

if NATIVE:
    skip("regions are Gapless'")
g = start(limit=2 * GIB)
torch.manual_seed(104)
side, main = torch.cuda.Stream(), torch.cuda.current_stream()
# Few rows and columns, and a long sum between them: parts of it are summed in a workspace.
shapes = [(64, 64, 1 << 17), (128, 64, 1 << 16), (32, 32, 1 << 18), (16, 256, 1 << 16)]
problems, differ, turns = [], 0, 0
with g.region("engine"):
    pairs = [(torch.randn(m, k, device="cuda", dtype=torch.bfloat16), torch.randn(k, n, device="cuda", dtype=torch.bfloat16)) for m, n, k in shapes]
    for stream in (main, side):  # cuBLAS is loaded, and its handles are made
        with torch.cuda.stream(stream):
            for a, b in pairs:
                a @ b
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        outs = [a @ b for a, b in pairs for _ in range(3)]
    torch._C._cuda_clearCublasWorkspaces()
    graph.replay()
    torch.cuda.synchronize()
    want = [o.clone() for o in outs]
    others = [(torch.randn(m, k, device="cuda", dtype=torch.bfloat16), torch.randn(k, n, device="cuda", dtype=torch.bfloat16)) for m, n, k in shapes]
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        beside = [a @ b for a, b in others]  # a workspace of this stream, made anew
    torch.cuda.synchronize()
    for turn in range(60):
        for o in outs:
            o.zero_()
        side.wait_stream(main)
        graph.replay()  # on the main stream
        with torch.cuda.stream(side):
            found = [a @ b for _ in range(4) for a, b in others]
        torch.cuda.synchronize()
        differ += sum(int((o != w).sum()) for o, w in zip(outs, want))
        differ += sum(int((f != beside[k % len(beside)]).sum()) for k, f in enumerate(found))
        turns += 1
        if turn == 30:
            torch._C._cuda_clearCublasWorkspaces()
            with torch.cuda.stream(side):
                others[0][0] @ others[0][1]
# The same around a sleep: workspaces stay awake, the graph's own memory comes back.
g.sleep("engine", guard=False)
a, b = torch.randn(64, 4096, device="cuda"), torch.randn(4096, 64, device="cuda")
with torch.cuda.stream(side):
    (a @ b).sum()
torch.cuda.synchronize()
g.wake("engine")
graph.replay()
torch.cuda.synchronize()
differ += sum(int((o != w).sum()) for o, w in zip(outs, want))
problems += adds_up()
done(differ == 0 and not problems, f"{turns} turns, {differ} elements differ {problems[:2]}")
