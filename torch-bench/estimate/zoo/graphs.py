"""Graph networks: scatter, segments, sparse matrices."""

import torch
import torch.nn.functional as F
from torch import nn

NODES, EDGES = 40000, 400000


def graph(device, dtype, size):
    edges = torch.randint(0, NODES, (2, EDGES), device=device)
    return torch.randn(NODES, 128, device=device, dtype=dtype), edges, torch.randint(0, 40, (NODES,), device=device)


def node_loss(model, batch):
    return F.cross_entropy(model(batch[0], batch[1]).float(), batch[2])


class Convolution(nn.Module):
    """Neighbours are summed with index_add and divided by their count."""

    def __init__(self, width=256):
        super().__init__()
        self.layers, self.head = nn.ModuleList([nn.Linear(128, width), nn.Linear(width, width), nn.Linear(width, width)]), nn.Linear(width, 40)

    def forward(self, x, edges):
        degree = torch.bincount(edges[1], minlength=len(x)).clamp(min=1).to(x.dtype)
        weight = (degree[edges[0]] * degree[edges[1]]).rsqrt()[:, None]
        for layer in self.layers:
            y = layer(x)
            x = F.relu(torch.zeros_like(y).index_add(0, edges[1], (y[edges[0]] * weight).to(y.dtype)))
        return self.head(x)


class Attention(nn.Module):
    """A softmax over each node's edges, by scatter."""

    def __init__(self, width=128, heads=4):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(128, width), nn.Linear(width, width)])
        self.source, self.target = (
            nn.ParameterList(nn.Parameter(torch.randn(heads, width // heads)) for _ in range(2)),
            nn.ParameterList(nn.Parameter(torch.randn(heads, width // heads)) for _ in range(2)),
        )
        self.head, self.heads = nn.Linear(width, 40), heads

    def forward(self, x, edges):
        for layer, source, target in zip(self.layers, self.source, self.target):
            y = layer(x).unflatten(-1, (self.heads, -1))
            scores = F.leaky_relu((y * source).sum(-1)[edges[0]] + (y * target).sum(-1)[edges[1]], 0.2).float()
            wide = edges[1][:, None].expand_as(scores)
            most = torch.full((len(x), self.heads), -1e9, device=x.device).scatter_reduce(0, wide, scores, "amax")
            weights = (scores - most[edges[1]]).exp()
            total = torch.zeros_like(most).scatter_add(0, wide, weights)
            weights = (weights / (total[edges[1]] + 1e-9)).to(y.dtype)
            x = F.elu(torch.zeros_like(y).index_add(0, edges[1], y[edges[0]] * weights[..., None]).flatten(1))
        return self.head(x)


class Sparse(nn.Module):
    """A product with the sparse matrix of the graph."""

    def __init__(self, width=256):
        super().__init__()
        self.layers, self.head = nn.ModuleList([nn.Linear(128, width), nn.Linear(width, width)]), nn.Linear(width, 40)

    def forward(self, x, edges):
        matrix = torch.sparse_coo_tensor(edges, torch.ones(edges.shape[1], device=x.device), (len(x), len(x))).coalesce()
        for layer in self.layers:
            with torch.autocast("cuda", enabled=False):
                x = F.relu(torch.sparse.mm(matrix, layer(x.float()) if layer.weight.dtype == torch.float32 else layer(x).float()).to(layer.weight.dtype))
        return self.head(x)


class Segments(nn.Module):
    """Many small graphs: messages along sorted edges, and one vector for each graph."""

    def __init__(self, width=128):
        super().__init__()
        self.first, self.message, self.update, self.head = (
            nn.Linear(16, width),
            nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width)),
            nn.GRUCell(width, width),
            nn.Linear(width, 1),
        )

    def forward(self, x, edges, lengths):
        x = self.first(x)
        order = edges[1].argsort()
        source, target = edges[0][order], edges[1][order]
        count = torch.bincount(target, minlength=len(x))
        for _ in range(4):
            sent = self.message(torch.cat([x[source], x[target]], -1))
            gathered = torch.segment_reduce(sent.float(), "sum", lengths=count, axis=0, initial=0)
            x = self.update(gathered.to(x.dtype), x)
        return self.head(torch.segment_reduce(x.float(), "mean", lengths=lengths, axis=0).to(self.head.weight.dtype))


def molecules(device, dtype, size):
    lengths = torch.arange(size, device=device) % 20 + 10
    count = sum(index % 20 + 10 for index in range(size))
    return torch.randn(count, 16, device=device, dtype=dtype), torch.randint(0, count, (2, 4 * count), device=device), lengths


class Factors(nn.Module):
    """Matrix factorisation: unique users of a batch, and sparse gradients turned dense."""

    def __init__(self):
        super().__init__()
        self.users, self.items, self.bias = nn.Embedding(300000, 128), nn.Embedding(50000, 128), nn.Embedding(50000, 1)

    def forward(self, users, items):
        found, back = torch.unique(users, return_inverse=True)
        rows = self.users(found)[back]
        scores = (rows * self.items(items)).sum(-1) + self.bias(items).squeeze(-1)
        return F.mse_loss(scores.float(), torch.ones_like(scores).float()) + 1e-3 * rows.float().square().mean()


CASES = {
    "graph_convolution": (Convolution, graph, node_loss, 1),
    "graph_attention": (Attention, graph, node_loss, 1),
    "graph_sparse": (Sparse, graph, node_loss, 1),
    "graph_segments": (Segments, molecules, lambda m, x: m(*x).float().square().mean(), 4000),
    "factors": (Factors, lambda d, t, b: (torch.randint(0, 300000, (b,), device=d), torch.randint(0, 50000, (b,), device=d)), lambda m, x: m(*x), 65536),
}
