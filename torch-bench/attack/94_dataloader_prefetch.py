"""A DataLoader with workers and pinned memory, and a prefetcher that copies the next batches on side streams while the
present ones are used and dropped: every batch arrives whole."""
import threading

from common import *

from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    """Row i is i, i + 1, i + 2 ...; lengths repeat."""

    def __len__(self):
        return 1600

    def __getitem__(self, at):
        return torch.arange(at, at + 3000 + 500 * (at % 5), dtype=torch.int32), at


def together(rows):
    n = min(len(x) for x, _ in rows)
    return {"data": torch.stack([x[:n] for x, _ in rows]), "at": torch.tensor([at for _, at in rows]), "rest": [x[n:] for x, _ in rows]}


class Prefetcher:
    """One batch ahead, by record_stream, as examples of mixed precision do; or many ahead, by events."""

    def __init__(self, loader, ahead):
        self.batches, self.stream, self.queue, self.ahead = iter(loader), torch.cuda.Stream(), [], ahead

    def load(self):
        batch = next(self.batches, None)
        if batch is None:
            return
        with torch.cuda.stream(self.stream):
            data = batch["data"].to("cuda", non_blocking=True)
            rest = [x.to("cuda", non_blocking=True) for x in batch["rest"]]
            scaled = data * 1  # a temporary of this stream
            event = self.stream.record_event()
        self.queue.append((scaled, rest, batch["at"], event))

    def __iter__(self):
        for _ in range(self.ahead):
            self.load()
        while self.queue:
            data, rest, at, event = self.queue.pop(0)
            torch.cuda.current_stream().wait_event(event)
            for x in [data, *rest]:
                x.record_stream(torch.cuda.current_stream())
            self.load()
            yield data, rest, at


if __name__ == "__main__":
    g = start(limit=2 * GIB)
    bad, seen, errors = [], [], []

    def prefetcher(ahead):
        """Its workers are forked here, in the main thread."""
        loader = DataLoader(
            Rows(), batch_size=16 + 5 * ahead, shuffle=True, num_workers=2, pin_memory=True, collate_fn=together,
            generator=torch.Generator().manual_seed(ahead),
        )
        return Prefetcher(loader, ahead)

    def consume(source):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for data, rest, at in source:
                    first = torch.arange(data.shape[1], dtype=torch.int32, device="cuda")
                    want = first[None, :] + at.to("cuda", non_blocking=True)[:, None].int()
                    bad.append((data != want).sum())
                    n = data.shape[1]
                    for x, i in zip(rest, at.tolist()):
                        bad.append((x != torch.arange(i + n, i + n + len(x), device="cuda")).sum())
                    seen.extend(at.tolist())
                    del data, rest, x, want, first
                torch.cuda.current_stream().synchronize()
        except BaseException as error:
            errors.append(repr(error)[:160])

    consume(prefetcher(1))
    threads = [threading.Thread(target=consume, args=(source,)) for source in (prefetcher(2), prefetcher(5))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    hang = any(t.is_alive() for t in threads)
    torch.cuda.synchronize()
    mistakes = sum(int(b) for b in bad)
    whole = sorted(seen) == sorted(list(range(1600)) * 3)
    problems = adds_up()
    ok = mistakes == 0 and whole and not errors and not hang and not problems
    done(ok, f"{len(seen)} rows, {mistakes} wrong elements{'' if whole else ', rows are missing'} {errors[:1]} {problems[:1]}")
