"""More families of torchvision and transformers, made from configurations."""

import torch

from .library import configured, detection, picture, text, vision

SMALL = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 1536}


def video(name, frames=16, pixels=112):
    def make():
        import torchvision

        return torchvision.models.get_model(name, weights=None)

    def batch(device, dtype, size):
        return torch.randn(size, 3, frames, pixels, pixels, device=device, dtype=dtype)

    return make, batch, lambda model, x: model(x).float().square().mean()


def flow(name):
    def make():
        import torchvision

        return torchvision.models.get_model(name, weights=None)

    def batch(device, dtype, size):
        return torch.randn(2, size, 3, 192, 256, device=device, dtype=dtype)

    return make, batch, lambda model, x: sum(part.float().abs().mean() for part in model(x[0], x[1], num_flow_updates=4))


def keyed(kind, auto, fields, **over):
    """A model of transformers with fields of its own: name to shape and kind."""

    def make():
        return configured(kind, auto, over)

    def batch(device, dtype, size):
        made = {}
        for name, (shape, most) in fields.items():
            full = (size, *shape)
            made[name] = torch.randint(0, most, full, device=device) if most else torch.randn(full, device=device, dtype=dtype)
        return made

    def loss(model, batch):
        out = model(**batch)
        found = getattr(out, "loss", None)
        return (out[0] if found is None else found).float().mean()

    return make, batch, loss


CASES = {
    "inception_v3": (*vision("inception_v3", 299, aux_logits=False, init_weights=False), 24),
    "efficientnet_v2_s": (*vision("efficientnet_v2_s", 224), 16),
    "mvit_v1_b": (*video("mvit_v1_b", 16, 224), 2),
    "swin3d_t": (*video("swin3d_t", 8, 224), 4),
    "s3d": (*video("s3d", 16, 224), 6),
    "raft_small": (*flow("raft_small"), 4),
    "fcos": (*detection("fcos_resnet50_fpn"), 4),
    "ssdlite": (*detection("ssdlite320_mobilenet_v3_large"), 16),
    "opt": (*text("opt", **{key: SMALL[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")}, ffn_dim=2048, word_embed_proj_dim=512), 12),
    "gemma3": (*text("gemma3_text", **SMALL, num_key_value_heads=2, head_dim=64, vocab_size=20000, sliding_window=128), 12),
    "qwen3_moe": (*text("qwen3_moe", **SMALL, num_key_value_heads=2, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=512, vocab_size=16000), 12),
    "gpt_neox": (*text("gpt_neox", **SMALL, vocab_size=20000), 12),
    "rwkv": (*text("rwkv", steps=32, hidden_size=512, num_hidden_layers=2, vocab_size=10000), 4),
    "big_bird": (*text("big_bird", "AutoModelForMaskedLM", steps=512, **SMALL, block_size=16, num_random_blocks=2, vocab_size=10000), 4),
    "funnel": (*text("funnel", "AutoModelForMaskedLM", d_model=512, n_head=8, d_head=64, d_inner=2048, block_sizes=[2, 2], vocab_size=10000), 8),
    "patchtst": (
        *keyed(
            "patchtst",
            "PatchTSTForPrediction",
            {"past_values": ((512, 7), 0), "future_values": ((96, 7), 0)},
            context_length=512,
            prediction_length=96,
            num_input_channels=7,
            patch_length=16,
            patch_stride=8,
            d_model=128,
            num_hidden_layers=3,
            num_attention_heads=8,
            ffn_dim=256,
        ),
        64,
    ),
    "videomae": (
        *keyed("videomae", "VideoMAEForVideoClassification", {"pixel_values": ((16, 3, 224, 224), 0), "labels": ((), 2)}, **SMALL),
        2,
    ),
    "mobilevit": (*picture("mobilevit", pixels=256), 24),
}
