"""Two models and two optimizers that take turns: a generator of transposed convolutions, and its critic.

`gapless estimate` runs it without a card; on a card it prints what torch measured.
"""

import torch
from torch import nn


def generator(width=64):
    layers = [nn.ConvTranspose2d(128, 8 * width, 4, 1, 0, bias=False), nn.BatchNorm2d(8 * width), nn.ReLU(True)]
    for step in (8, 4, 2):
        layers += [nn.ConvTranspose2d(step * width, step * width // 2, 4, 2, 1, bias=False), nn.BatchNorm2d(step * width // 2), nn.ReLU(True)]
    return nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh())


def critic(width=64):
    layers = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True)]
    for step in (1, 2, 4):
        layers += [nn.Conv2d(step * width, 2 * step * width, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * step * width), nn.LeakyReLU(0.2, True)]
    return nn.Sequential(*layers, nn.Conv2d(8 * width, 1, 4, 1, 0, bias=False), nn.Flatten(0))


def main():
    make, judge = generator().cuda(), critic().cuda()
    optimizers = [torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.999)) for model in (make, judge)]
    loss = nn.BCEWithLogitsLoss()
    for _ in range(3):
        real = torch.randn(256, 3, 64, 64, device="cuda")
        noise = torch.randn(256, 128, 1, 1, device="cuda")
        fake = make(noise)
        ones, zeros = torch.ones(256, device="cuda"), torch.zeros(256, device="cuda")
        optimizers[1].zero_grad()
        (loss(judge(real), ones) + loss(judge(fake.detach()), zeros)).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        loss(judge(fake), ones).backward()
        optimizers[0].step()


if __name__ == "__main__":
    main()
    print("peak", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
