"""cuDNN's search for the fastest way tries ways whose workspaces do not fit, and torch catches these failures. With
little memory left convolutions still give the host's values and gradients, and all memory comes back."""
from common import *

g = start(limit=512 * MIB)
if not torch.backends.cudnn.is_available():
    skip("no cuDNN here")
torch.backends.cudnn.benchmark = True
torch.backends.cudnn.benchmark_limit = 0
torch.backends.cudnn.allow_tf32 = False
torch.backends.cuda.matmul.allow_tf32 = False
torch.manual_seed(142)
problems = []
shapes = [(8, 32, 56, 64, 3, 1), (4, 64, 40, 64, 5, 2), (2, 16, 96, 32, 7, 3), (8, 24, 33, 48, 1, 0)]
layers = []
for n, c, side, out, kernel, pad in shapes:
    layer = torch.nn.Conv2d(c, out, kernel, padding=pad)
    x = torch.randn(n, c, side, side)
    layers.append((layer, x))
for left in (300, 160, 110):
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.benchmark = True
    torch.cuda.empty_cache()
    ballast = fill(ints(512 * MIB - torch.cuda.memory_reserved() - left * MIB), 3)
    held = torch.cuda.memory_allocated()
    for at, (layer, x) in enumerate(layers):
        host_x = x.clone().requires_grad_()
        layer.zero_grad(set_to_none=True)
        layer(host_x).square().sum().backward()
        card = torch.nn.Conv2d(layer.in_channels, layer.out_channels, layer.kernel_size, padding=layer.padding)
        card.load_state_dict(layer.state_dict())
        card.cuda()
        card_x = x.cuda().requires_grad_()
        try:
            out = card(card_x)
            out.square().sum().backward()
            pairs = [(out, layer(x)), (card_x.grad, host_x.grad), (card.weight.grad, layer.weight.grad)]
            for mine, theirs in pairs:
                theirs = theirs.detach()
                error = (mine.detach().cpu() - theirs).abs().max() / theirs.abs().max()
                if not error < 1e-2:
                    problems.append(f"layer {at} with {left} MiB: an error of {float(error):.1e}")
        except torch.OutOfMemoryError as error:
            problems.append(f"layer {at} with {left} MiB: {str(error).splitlines()[0][:80]}")
        out = card = card_x = pairs = mine = theirs = None
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    if torch.cuda.memory_allocated() > held:
        problems.append(f"{torch.cuda.memory_allocated() - held} bytes stay with {left} MiB")
    if int(wrong(ballast, 3)):
        problems.append("the ballast has changed")
    del ballast
problems += adds_up()
ooms = torch.cuda.memory_stats()["num_ooms"]
done(not problems, "; ".join(problems[:3]) or f"four layers, three times, {ooms} failures inside")
