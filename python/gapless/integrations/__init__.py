"""Memory figures for trackers: TensorBoard, Weights & Biases and whatever else takes a dict of numbers.

    from gapless.integrations import figures

    wandb.log(figures())
    for name, value in figures().items():
        writer.add_scalar(name, value, step)        # TensorBoard's SummaryWriter

`gapless.integrations.transformers` and `gapless.integrations.lightning` have callbacks that log them by themselves.
Neither package is needed to import this one.
"""

from ._figures import figures

__all__ = ["figures"]
