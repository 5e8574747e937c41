"""Sequences of many lengths through a GRU and an LSTM, packed, with checkpointing of the rest.

`gapless estimate` runs it without a card; on a card it prints what torch measured.
"""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10000, 512)
        self.first = nn.GRU(512, 512, num_layers=2, batch_first=True, dropout=0.1)
        self.second = nn.LSTM(512, 512, batch_first=True, bidirectional=True)
        self.mix = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024), nn.LayerNorm(1024))
        self.head = nn.Linear(1024, 10000)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False)
        x, _ = pad_packed_sequence(self.first(packed)[0], batch_first=True)
        x, _ = self.second(x)
        x = x + checkpoint(self.mix, x, use_reentrant=False)
        return self.head(x)


def main():
    model = Model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        lengths = torch.arange(20, 20 + 64) + step
        tokens = torch.randint(0, 10000, (64, int(lengths.max())), device="cuda")
        scores = model(tokens, lengths)
        nn.functional.cross_entropy(scores.flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
    print("peak", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
