"""Whole loops that are more than a model: optimizers, scalers, averages, graphs, loaders. PROGRAMS[name]() runs three
steps.

`python torch-bench/estimate/zoo/programs.py NAME` runs one, on a card or under `gapless estimate`.
"""

import sys

import torch
import torch.nn.functional as F
from torch import nn


def perceptron(width=2048, inputs=512, out=100):
    return nn.Sequential(nn.Linear(inputs, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, out)).cuda()


def data(size=8192):
    return torch.randn(size, 512, device="cuda"), torch.randint(0, 100, (size,), device="cuda")


def lbfgs():
    model = perceptron()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, history_size=4)
    x, y = data()

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)


def scaler():
    model = perceptron()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(3):
        x, y = data()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def averaged():
    model = perceptron()
    mean = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for _ in range(3):
        x, y = data()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        mean.update_parameters(model)
        schedule.step()
        optimizer.zero_grad()
    with torch.no_grad():
        mean(data()[0])


def sparse_gradients():
    table = nn.Embedding(400000, 128, sparse=True).cuda()
    head = perceptron(1024, 512)
    optimizers = [torch.optim.SparseAdam(table.parameters()), torch.optim.Adagrad(head.parameters())]
    for _ in range(3):
        words = torch.randint(0, 400000, (16384, 4), device="cuda")
        F.cross_entropy(head(table(words).flatten(1)), torch.randint(0, 100, (16384,), device="cuda")).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def graphed():
    model = perceptron()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=True)
    x, y = data()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    for _ in range(3):
        graph.replay()


def loaded():
    rows = torch.utils.data.TensorDataset(torch.randn(4096, 512), torch.randint(0, 100, (4096,)))
    loader = torch.utils.data.DataLoader(rows, batch_size=1024, shuffle=True, num_workers=2, pin_memory=True)
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    for x, y in loader:
        x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        print("loss", loss.item(), file=sys.stderr)
        optimizer.step()
        optimizer.zero_grad()


def accumulated():
    model = perceptron().bfloat16()
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-4)
    for _ in range(3):
        for _ in range(4):
            x, y = data(4096)
            (F.cross_entropy(model(x.bfloat16()).float(), y) / 4).backward()
        optimizer.step()
        optimizer.zero_grad()


def distilled():
    teacher, student = perceptron(4096).eval(), perceptron(1024)
    optimizer = torch.optim.AdamW([{"params": student[0].parameters()}, {"params": student[2:].parameters(), "lr": 1e-3}], amsgrad=True)
    for _ in range(3):
        x, _ = data()
        with torch.no_grad():
            wanted = teacher(x).softmax(-1)
        F.kl_div(student(x).log_softmax(-1), wanted, reduction="batchmean").backward()
        optimizer.step()
        optimizer.zero_grad()


def adversarial():
    makes, judges = perceptron(1024, 128, 784), perceptron(1024, 784, 1)
    first, second = torch.optim.Adam(makes.parameters(), lr=2e-4, betas=(0.5, 0.999)), torch.optim.Adam(judges.parameters(), lr=2e-4)
    for _ in range(3):
        real, noise = torch.randn(8192, 784, device="cuda"), torch.randn(8192, 128, device="cuda")
        made = makes(noise)
        (F.softplus(-judges(real)).mean() + F.softplus(judges(made.detach())).mean()).backward()
        second.step()
        second.zero_grad()
        F.softplus(-judges(made)).mean().backward()
        first.step()
        first.zero_grad()
        judges.zero_grad()


def generated():
    """Inference with a cache of keys and values that grows."""
    width, heads = 1024, 16
    qkv, out, head = nn.Linear(width, 3 * width).cuda().half(), nn.Linear(width, width).cuda().half(), nn.Linear(width, 20000).cuda().half()
    embedding = nn.Embedding(20000, width).cuda().half()
    with torch.inference_mode():
        tokens = torch.randint(0, 20000, (32, 256), device="cuda")
        keys = values = None
        for _ in range(16):
            x = embedding(tokens)
            q, k, v = qkv(x).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
            keys, values = (k, v) if keys is None else (torch.cat([keys, k], 2), torch.cat([values, v], 2))
            y = F.scaled_dot_product_attention(q, keys, values, is_causal=q.shape[2] > 1)
            scores = head(out(y.transpose(1, 2).flatten(2))[:, -1])
            tokens = torch.multinomial(scores.float().softmax(-1), 1)


def compiled():
    model = perceptron()
    step = torch.compile(lambda x, y: F.cross_entropy(model(x), y))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        x, y = data()
        step(x, y).backward()
        optimizer.step()
        optimizer.zero_grad()


PROGRAMS = {
    function.__name__: function
    for function in (lbfgs, scaler, averaged, sparse_gradients, graphed, loaded, accumulated, distilled, adversarial, generated, compiled)
}


def peaks():
    stats = torch.cuda.memory_stats()
    return {"peak_allocated": stats["allocated_bytes.all.peak"], "peak_reserved": stats["reserved_bytes.all.peak"]}


if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
    print(peaks())
