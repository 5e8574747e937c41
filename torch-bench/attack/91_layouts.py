"""Nested, sparse, quantised, 8-bit, complex, boolean and empty tensors, views with strides that outlive their base and
storages that shrink to nothing hold on the card what they hold on the host."""
from common import *

g = start(limit=2 * GIB)
r, problems, acts = rng(91), [], {}
other = torch.cuda.Stream()


def same(name, a, b):
    acts[name] = acts.get(name, 0) + 1
    a = a.cpu()
    if a.shape != b.shape or not torch.equal(a, b):
        problems.append(f"{name} {tuple(b.shape)}")


def whole(*shape):
    return torch.randint(-100, 100, shape, generator=source)


source = torch.Generator().manual_seed(91)
for step in range(120):
    n = log_uniform(r, 3, 3000)
    junk = [ints(log_uniform(r, 512, 8 * MIB)).fill_(-1) for _ in range(4)]
    del junk
    # Rows of unlike lengths.
    parts = [whole(r.randrange(1, 40), 64).float() for _ in range(12)]
    if step % 4 == 0:
        jagged = torch.nested.nested_tensor([p.cuda() for p in parts], layout=torch.jagged)
        twice = jagged * 2 + 1
        del jagged
        for p, q in zip(parts, twice.unbind()):
            same("jagged", q, p * 2 + 1)
        padded = torch.nested.to_padded_tensor(twice, -7.0)
        same("padded", padded[3, : len(parts[3])], parts[3] * 2 + 1)
        del twice, padded
    # Sparse, with whole numbers: any order of sums is right.
    dense = whole(n % 300 + 2, 77).double()
    dense[dense.abs() < 60] = 0
    card = dense.cuda()
    same("coo", card.to_sparse().coalesce().values(), dense.to_sparse().coalesce().values())
    same("csr", card.to_sparse_csr().to_dense(), dense)
    same("csc", card.to_sparse_csc().to_dense(), dense)
    # Types of other widths.
    half = whole(n, 5).float()
    for kind in (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.bool):
        same(str(kind), half.cuda().to(kind).to(torch.float32), half.to(kind).to(torch.float32))
    same("uint8", half.abs().cuda().to(torch.uint8), half.abs().to(torch.uint8))
    same("complex", torch.view_as_real(torch.complex(half.cuda(), 2 * half.cuda()).conj() * 1), torch.view_as_real(torch.complex(half, 2 * half).conj() * 1))
    ten = torch.quantize_per_tensor(half, 1.0, 0, torch.qint8)
    same("quantised", torch.quantize_per_tensor(half.cuda(), 1.0, 0, torch.qint8).int_repr(), ten.int_repr())
    # Nothing at all.
    for shape in ((0,), (0, 5), (3, 0, 2)):
        none = torch.empty(shape, device="cuda")
        none.record_stream(other)
        same("empty", none.clone() + 1, torch.empty(shape) + 1)
        none.untyped_storage().resize_(0)
        none = torch.cat([none.flatten(), torch.ones(2, device="cuda")])
        same("grown from nothing", none, torch.ones(2))
    # A view keeps the whole storage, whatever becomes of the base.
    rows = whole(n, 64)
    card = rows.cuda()
    view, strided = card.T[3:9], torch.as_strided(card, (n, 7), (64, 9), 1)
    del card
    junk = [ints(log_uniform(r, 512, 4 * MIB)).fill_(-1) for _ in range(6)]
    del junk
    same("view", view, rows.T[3:9])
    same("strided", strided, torch.as_strided(rows, (n, 7), (64, 9), 1))
    # As sharded training does: memory goes and comes behind one tensor, whose copies on another stream are kept.
    card = rows.cuda()
    alias = card.view(-1)
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        taken = card + 1
    card.record_stream(other)
    size = card.untyped_storage().size()
    card.untyped_storage().resize_(0)
    junk = ints(size).fill_(-1)
    del junk
    card.untyped_storage().resize_(size)
    card.copy_(rows)
    same("resized", alias, rows.view(-1))
    torch.cuda.current_stream().wait_stream(other)
    same("taken before", taken, rows + 1)
    del view, strided, alias, card, taken, none
    if step % 30 == 29:
        torch.cuda.empty_cache()
problems += adds_up()
done(not problems, "; ".join(problems[:4]) or f"{sum(acts.values())} comparisons of {len(acts)} kinds")
