"""Recurrent layers, speech, text and signals."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def lengths_of(size, most):
    """Lengths from a third of the most on, the longest first."""
    return torch.linspace(most, most // 3, size).long()


class Packed(nn.Module):
    def __init__(self, kind, width=512, hidden=512, is_sorted=True, **more):
        super().__init__()
        self.embedding = nn.Embedding(10000, width)
        self.recurrent = kind(width, hidden, batch_first=True, **more)
        out = more.get("proj_size") or hidden
        self.head = nn.Linear(out * (2 if more.get("bidirectional") else 1), 10000)
        self.is_sorted = is_sorted

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.embedding(tokens), lengths, batch_first=True, enforce_sorted=self.is_sorted)
        out, _ = pad_packed_sequence(self.recurrent(packed)[0], batch_first=True)
        return self.head(out)


def packed_batch(steps):
    def batch(device, dtype, size):
        return torch.randint(0, 10000, (size, steps), device=device), lengths_of(size, steps)

    return batch


def token_loss(model, batch):
    out = model(*batch) if isinstance(batch, tuple) else model(batch)
    tokens = batch[0] if isinstance(batch, tuple) else batch
    return F.cross_entropy(out.float().flatten(0, 1), tokens[:, : out.shape[1]].flatten())


def tokens_batch(steps, vocabulary=10000):
    return lambda device, dtype, size: torch.randint(0, vocabulary, (size, steps), device=device)


class Plain(nn.Module):
    def __init__(self, kind, width, hidden, **more):
        super().__init__()
        self.embedding = nn.Embedding(10000, width)
        self.recurrent = kind(width, hidden, batch_first=True, **more)
        self.head = nn.Linear((more.get("proj_size") or hidden) * (2 if more.get("bidirectional") else 1), 10000)

    def forward(self, tokens):
        return self.head(self.recurrent(self.embedding(tokens))[0])


class Speech(nn.Module):
    """Frames to characters: convolutions over time, a GRU of both directions."""

    def __init__(self, labels=64):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(80, 512, 5, stride=2, padding=2), nn.BatchNorm1d(512), nn.GELU(), nn.Conv1d(512, 512, 5, padding=2), nn.BatchNorm1d(512), nn.GELU()
        )
        self.recurrent = nn.GRU(512, 512, num_layers=3, bidirectional=True, dropout=0.1)
        self.head = nn.Linear(1024, labels)

    def forward(self, frames):
        return self.head(self.recurrent(self.front(frames).permute(2, 0, 1).contiguous())[0])


def speech_batch(device, dtype, size):
    return torch.randn(size, 80, 1200, device=device, dtype=dtype), torch.randint(1, 64, (size, 80), device=device)


def ctc_loss(model, batch):
    scores = model(batch[0]).float().log_softmax(-1)
    size = scores.shape[1]
    return F.ctc_loss(scores, batch[1], torch.full((size,), scores.shape[0]), torch.full((size,), 80), zero_infinity=True)


def ctc_loss_cudnn(model, batch):
    scores = model(batch[0]).float().log_softmax(-1)
    size = scores.shape[1]
    targets = torch.randint(1, 64, (size * 80,), dtype=torch.int32)
    return torch.ctc_loss(scores, targets, [scores.shape[0]] * size, [80] * size).mean()


class Transducer(nn.Module):
    """An encoder, a predictor, and a joint network over every pair of frame and label."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.LSTM(80, 320, num_layers=2, batch_first=True)
        self.embedding = nn.Embedding(256, 320)
        self.predictor = nn.LSTM(320, 320, batch_first=True)
        self.joint = nn.Sequential(nn.Tanh(), nn.Linear(320, 256))

    def forward(self, frames, labels):
        encoded, predicted = self.encoder(frames)[0], self.predictor(self.embedding(labels))[0]
        return self.joint(encoded[:, :, None] + predicted[:, None])


def transducer_batch(device, dtype, size):
    return torch.randn(size, 150, 80, device=device, dtype=dtype), torch.randint(0, 256, (size, 40), device=device)


def transducer_loss(model, batch):
    scores = model(*batch).float().log_softmax(-1)
    blank = scores[..., 0]
    label = scores[:, :, :-1].gather(-1, batch[1][:, None, 1:, None].expand(-1, scores.shape[1], -1, -1)).squeeze(-1)
    row = torch.cat([torch.zeros_like(blank[:, 0, :1]), label[:, 0].cumsum(-1)], -1)
    for step in range(1, scores.shape[1]):
        up = row + blank[:, step - 1]
        sums = torch.cat([torch.zeros_like(up[:, :1]), label[:, step].cumsum(-1)], -1)
        row = torch.logcumsumexp(up - sums, -1) + sums
    return -(row[:, -1] + blank[:, -1, -1]).mean()


class WaveNet(nn.Module):
    def __init__(self, width=96, layers=20):
        super().__init__()
        self.first = nn.Conv1d(256, width, 1)
        self.dilated = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2 ** (i % 10)) for i in range(layers))
        self.mix = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(layers))
        self.last = nn.Sequential(nn.ReLU(), nn.Conv1d(width, 256, 1), nn.ReLU(), nn.Conv1d(256, 256, 1))

    def forward(self, samples):
        x = self.first(F.one_hot(samples, 256).transpose(1, 2).to(self.first.weight.dtype))
        total = 0
        for index, (dilated, mix) in enumerate(zip(self.dilated, self.mix)):
            left, right = dilated(F.pad(x, (2 ** (index % 10), 0))).chunk(2, 1)
            more, skip = mix(left.tanh() * right.sigmoid()).chunk(2, 1)
            x, total = x + more, total + skip
        return self.last(total)


class Temporal(nn.Module):
    """Causal convolutions with normalised weights, and residuals."""

    def __init__(self, width=256):
        super().__init__()
        self.first = nn.Conv1d(64, width, 1)
        self.blocks = nn.ModuleList(weight_norm(nn.Conv1d(width, width, 3, dilation=2**i)) for i in range(8))
        self.last = nn.Conv1d(width, 64, 1)

    def forward(self, x):
        x = self.first(x)
        for index, block in enumerate(self.blocks):
            x = x + F.dropout(F.relu(block(F.pad(x, (2 * 2**index, 0)))), 0.1, self.training)
        return self.last(x)


class ConvLSTM(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.gates, self.out, self.width = nn.Conv2d(3 + width, 4 * width, 3, padding=1), nn.Conv2d(width, 3, 1), width

    def forward(self, video):
        size, steps, _, height, breadth = video.shape
        hidden = cell = video.new_zeros(size, self.width, height, breadth)
        frames = []
        for step in range(steps):
            i, f, o, g = self.gates(torch.cat([video[:, step], hidden], 1)).chunk(4, 1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            hidden = o.sigmoid() * cell.tanh()
            frames.append(self.out(hidden))
        return torch.stack(frames, 1)


class Cells(nn.Module):
    """A translator by hand: an LSTM as encoder, cells with additive attention as decoder."""

    def __init__(self, width=384):
        super().__init__()
        self.embedding, self.encoder = nn.Embedding(8000, width), nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.keys, self.query, self.score = nn.Linear(2 * width, width), nn.Linear(width, width), nn.Linear(width, 1)
        self.cell, self.head = nn.LSTMCell(3 * width, width), nn.Linear(width, 8000)

    def forward(self, tokens):
        embedded = self.embedding(tokens)
        memory = self.encoder(embedded)[0]
        keys = self.keys(memory)
        hidden = torch.zeros_like(keys[:, 0])
        cell = torch.zeros_like(hidden)
        out = []
        for step in range(tokens.shape[1]):
            weights = self.score(torch.tanh(keys + self.query(hidden)[:, None])).softmax(1)
            hidden, cell = self.cell(torch.cat([embedded[:, step], (weights * memory).sum(1)], -1), (hidden, cell))
            out.append(hidden)
        return self.head(torch.stack(out, 1))


class Tagger(nn.Module):
    """A bidirectional LSTM below a conditional random field."""

    def __init__(self, tags=48):
        super().__init__()
        self.embedding, self.recurrent = nn.Embedding(20000, 300), nn.LSTM(300, 512, num_layers=2, bidirectional=True, batch_first=True, dropout=0.3)
        self.head, self.moves = nn.Linear(1024, tags), nn.Parameter(torch.randn(tags, tags))

    def forward(self, tokens, tags):
        scores = self.head(self.recurrent(self.embedding(tokens))[0]).float()
        alpha = scores[:, 0]
        for step in range(1, tokens.shape[1]):
            alpha = torch.logsumexp(alpha[:, :, None] + self.moves + scores[:, step, None], 1)
        gold = scores.gather(2, tags[..., None]).sum((1, 2)) + self.moves[tags[:, :-1], tags[:, 1:]].sum(1)
        return (torch.logsumexp(alpha, 1) - gold).mean()


class LongConvolution(nn.Module):
    """State-space layers as long convolutions through Fourier space."""

    def __init__(self, width=256, length=4096, layers=4):
        super().__init__()
        self.first = nn.Linear(16, width)
        self.kernels = nn.ParameterList(nn.Parameter(torch.randn(width, length) / length) for _ in range(layers))
        self.mix = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GLU()) for _ in range(layers))
        self.last = nn.Linear(width, 16)

    def forward(self, x):
        x = self.first(x)
        length = x.shape[1]
        for kernel, mix in zip(self.kernels, self.mix):
            spectrum = torch.fft.rfft(x.float().transpose(1, 2), n=2 * length) * torch.fft.rfft(kernel.float(), n=2 * length)
            x = x + mix(torch.fft.irfft(spectrum, n=2 * length)[..., :length].transpose(1, 2).to(x.dtype))
        return self.last(x)


class Denoiser(nn.Module):
    """Speech enhancement: a spectrogram, a mask by convolutions, and back to samples."""

    def __init__(self):
        super().__init__()
        widths = [2, 32, 64, 128, 64, 32]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, (5, 3), padding=(2, 1)), nn.InstanceNorm2d(b, affine=True), nn.PReLU(b)) for a, b in zip(widths, widths[1:])
        )
        self.last = nn.Conv2d(32, 2, 1)
        self.register_buffer("window", torch.hann_window(512))

    def forward(self, samples):
        window = self.window.float()
        spectrum = torch.stft(samples.float(), 512, 128, window=window, return_complex=True)
        x = torch.view_as_real(spectrum).permute(0, 3, 1, 2).to(self.last.weight.dtype)
        for layer in self.layers:
            x = layer(x)
        mask = self.last(x).float().permute(0, 2, 3, 1).contiguous()
        return torch.istft(spectrum * torch.view_as_complex(mask), 512, 128, window=window, length=samples.shape[1])


class Autoregressive(nn.Module):
    """A stack of GRU cells of one layer each, with layer normalisation between."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10000, 400)
        self.layers = nn.ModuleList(nn.GRU(400, 400, batch_first=True) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(400) for _ in range(3))
        self.head = nn.AdaptiveLogSoftmaxWithLoss(400, 10000, [1000, 4000])

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer, norm in zip(self.layers, self.norms):
            x = x + norm(layer(x)[0])
        return self.head(x.flatten(0, 1), tokens.flatten()).loss


def itself(model, batch):
    return model(*batch) if isinstance(batch, tuple) else model(batch)


def square(model, batch):
    return (model(batch).float() - batch.float()).square().mean()


def normal(*shape):
    return lambda device, dtype, size: torch.randn(size, *shape, device=device, dtype=dtype)


CASES = {
    "gru_packed": (lambda: Packed(nn.GRU, num_layers=2, dropout=0.1, is_sorted=False), packed_batch(160), token_loss, 64),
    "lstm_packed_both": (lambda: Packed(nn.LSTM, num_layers=2, bidirectional=True), packed_batch(128), token_loss, 48),
    "gru_packed_long": (lambda: Packed(nn.GRU, 256, 768), packed_batch(300), token_loss, 32),
    "lstm_projected": (lambda: Plain(nn.LSTM, 512, 1024, num_layers=2, proj_size=320), tokens_batch(160), token_loss, 48),
    "rnn_relu": (lambda: Plain(nn.RNN, 512, 768, num_layers=2, nonlinearity="relu", bidirectional=True), tokens_batch(160), token_loss, 48),
    "gru_plain": (lambda: Plain(nn.GRU, 512, 1024, num_layers=3, dropout=0.2), tokens_batch(200), token_loss, 32),
    "ctc_speech": (Speech, speech_batch, ctc_loss, 32),
    "ctc_speech_cudnn": (Speech, speech_batch, ctc_loss_cudnn, 32),
    "transducer": (Transducer, transducer_batch, transducer_loss, 24),
    "wavenet": (WaveNet, lambda d, t, b: torch.randint(0, 256, (b, 8192), device=d), lambda m, x: F.cross_entropy(m(x).float(), x), 4),
    "temporal": (Temporal, normal(64, 4000), square, 32),
    "conv_lstm": (ConvLSTM, normal(12, 3, 64, 64), square, 8),
    "attention_cells": (Cells, tokens_batch(60, 8000), token_loss, 64),
    "tagger": (Tagger, lambda d, t, b: (torch.randint(0, 20000, (b, 120), device=d), torch.randint(0, 48, (b, 120), device=d)), itself, 96),
    "long_convolution": (LongConvolution, normal(4096, 16), square, 16),
    "denoiser": (Denoiser, normal(48000), square, 16),
    "adaptive_softmax": (Autoregressive, tokens_batch(150), itself, 64),
}
