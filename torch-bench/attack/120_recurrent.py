"""Recurrent networks of cuDNN with its search for fast ways on, packed sequences of changing lengths, weights in one
buffer that are swapped for others, states carried over streams, and a graph of one: values and gradients are the
host's."""
from common import *

g = start(limit=2 * GIB)
if not torch.backends.cudnn.is_available():
    skip("no cuDNN")
torch.manual_seed(120)
torch.backends.cudnn.benchmark = True
torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
r, worst, steps, problems = rng(120), 0.0, 0, []
side = torch.cuda.Stream()
kinds = {
    "lstm": torch.nn.LSTM(48, 64, 2, batch_first=True, bidirectional=True),
    "gru": torch.nn.GRU(48, 64, 2, batch_first=True),
    "rnn": torch.nn.RNN(48, 64, 1, batch_first=True),
}
cards = {}
try:
    for name, net in kinds.items():
        twin = type(net)(48, 64, net.num_layers, batch_first=True, bidirectional=net.bidirectional)
        twin.load_state_dict(net.state_dict())
        cards[name] = twin.cuda()
except RuntimeError as error:
    if isinstance(error, torch.OutOfMemoryError):
        raise
    skip(f"cuDNN does not start: {str(error).splitlines()[0][:80]}")


def apart(a, b):
    a = a.detach().cpu().double()
    b = b.detach().double()
    return float((a - b).abs().max()) if bool(torch.isfinite(a).all()) else float("inf")


end = time.monotonic() + 7
while time.monotonic() < end:
    steps += 1
    name = r.choice(list(kinds))
    net, card = kinds[name], cards[name]
    batch, longest = r.randrange(1, 9), r.randrange(2, 40)
    lengths = sorted((r.randrange(1, longest + 1) for _ in range(batch)), reverse=True)
    x = torch.randn(batch, lengths[0], 48)
    stream = side if steps % 2 else torch.cuda.current_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        if steps % 6 == 0:  # other weights in one buffer: the old buffer is free
            state = {key: torch.randn_like(value) * 0.1 for key, value in net.state_dict().items()}
            net.load_state_dict(state)
            card.load_state_dict(state)
            card.float()._apply(lambda t: t.clone())
            card.flatten_parameters()
        there = x.cuda(non_blocking=True).requires_grad_()
        here = x.clone().requires_grad_()
        pack = torch.nn.utils.rnn.pack_padded_sequence
        out, last = card(pack(there, lengths, batch_first=True))
        junk = [torch.full((log_uniform(r, 128, 2 << 20),), float("nan"), device="cuda") for _ in range(6)]
        del junk
        want, want_last = net(pack(here, lengths, batch_first=True))
        out.data.square().sum().backward()
        want.data.square().sum().backward()
        off = [apart(out.data, want.data), apart(there.grad, here.grad) / 10]
        first = last[0] if isinstance(last, tuple) else last
        want_first = want_last[0] if isinstance(want_last, tuple) else want_last
        off.append(apart(first, want_first))
        off += [apart(a.grad, b.grad) / (1 + float(b.grad.abs().max())) for a, b in zip(card.parameters(), net.parameters())]
        net.zero_grad()
        card.zero_grad()
        del out, last, first, there
    worst = max(worst, *off)
    if worst > 5e-3:
        problems.append(f"step {steps}, {name}: off by {worst}")
        break
    if steps % 5 == 0:
        torch.cuda.empty_cache()
# One in a graph, replayed while others come and go.
torch.cuda.synchronize()
card = cards["gru"].eval()
fixed = torch.zeros(4, 20, 48, device="cuda")
with torch.no_grad():
    for _ in range(2):
        card(fixed)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _ = card(fixed)
    for step in range(20):
        x = torch.randn(4, 20, 48)
        fixed.copy_(x)
        graph.replay()
        junk = [ints(log_uniform(r, 512, 30 * MIB)).fill_(-1) for _ in range(4)]
        del junk
        worst = max(worst, apart(out, kinds["gru"].eval()(x)[0]))
        if step % 6 == 5:
            torch.cuda.empty_cache()
problems += adds_up()
done(not problems and worst < 5e-3, f"{steps} steps, off by {worst:.1e} at most {problems[:2]}")
