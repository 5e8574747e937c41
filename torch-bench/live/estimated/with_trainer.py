"""Hugging Face's Trainer as people use it: a Llama of 160 M parameters, bf16 autocast, accumulation, warm-up, clipping.

`gapless estimate` runs it without a card; on a card it prints what torch measured.
"""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Tokens(Dataset):
    """Made-up text: tokens are their own labels."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, 32000, (512,), generator=generator)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}


def main():
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12, vocab_size=32000)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=8, gradient_accumulation_steps=2, max_steps=3, bf16=True, learning_rate=1e-4, warmup_steps=2,
            logging_steps=1, report_to=[], save_strategy="no", dataloader_num_workers=0, disable_tqdm=True,
        )  # fmt: skip
        Trainer(LlamaForCausalLM(config), arguments, train_dataset=Tokens()).train()


if __name__ == "__main__":
    main()
    print("peak", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
