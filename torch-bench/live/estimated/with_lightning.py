"""Lightning as people use it: a vision transformer and a classifier, mixed precision, validation, clipping.

`gapless estimate` runs it without a card; on a card it prints what torch measured.
"""

import pytorch_lightning as lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    """Made-up pictures of ten classes."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 128, 128, generator=generator), index % 10


class Classifier(lightning.LightningModule):
    def __init__(self, width=512, layers=8):
        super().__init__()
        self.patches = nn.Conv2d(3, width, kernel_size=8, stride=8)
        self.places = nn.Parameter(torch.zeros(1, 256, width))
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.1, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, pictures):
        tokens = self.patches(pictures).flatten(2).transpose(1, 2) + self.places
        return self.head(self.encoder(tokens).mean(1))

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("validation", nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


def main():
    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        max_steps=3, precision="bf16-mixed", gradient_clip_val=1.0, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=1,
    )  # fmt: skip
    trainer.fit(Classifier(), DataLoader(Pictures(), batch_size=64), DataLoader(Pictures(), batch_size=32))


if __name__ == "__main__":
    main()
    print("peak", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
