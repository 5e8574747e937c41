"""Models of torchvision and transformers, made from configurations."""

import torch
import torch.nn.functional as F


def vision(name, pixels=224, key=None, **more):
    """A classifier, or with a key a segmenter, of torchvision."""

    def make():
        import torchvision

        return torchvision.models.get_model(name, weights=None, **more)

    def batch(device, dtype, size):
        shape = (size, pixels, pixels) if key else (size,)
        return torch.randn(size, 3, pixels, pixels, device=device, dtype=dtype), torch.randint(0, 21 if key else 1000, shape, device=device)

    def loss(model, batch):
        out = model(batch[0])
        out = out[key] if key else getattr(out, "logits", out)
        return F.cross_entropy(out.float(), batch[1])

    return make, batch, loss


def detection(name):
    def make():
        import torchvision

        return torchvision.models.get_model(name, weights=None, weights_backbone=None, num_classes=21)

    def batch(device, dtype, size):
        boxes = torch.tensor([[10.0, 10.0, 200.0, 200.0], [50.0, 60.0, 150.0, 300.0], [100.0, 100.0, 180.0, 160.0]], device=device)
        targets = [{"boxes": boxes, "labels": torch.tensor([1, 2, 3], device=device)} for _ in range(size)]
        return [torch.rand(3, 480, 480, device=device, dtype=dtype) for _ in range(size)], targets

    def loss(model, batch):
        if model.training:
            return sum(model(*batch).values())
        return sum(row["scores"].sum() for row in model(batch[0]))

    return make, batch, loss


def configured(kind, auto, over):
    import transformers

    configuration, made = transformers.AutoConfig.for_model(kind, **over), getattr(transformers, auto)
    return made.from_config(configuration) if hasattr(made, "from_config") else made(configuration)


def text(kind, auto="AutoModelForCausalLM", steps=256, **over):
    def make():
        return configured(kind, auto, over)

    def batch(device, dtype, size):
        tokens = torch.randint(10, 8000, (size, steps), device=device)
        return {"input_ids": tokens, "labels": tokens}

    return make, batch, lambda model, batch: model(**batch).loss


def picture(kind, auto="AutoModelForImageClassification", pixels=224, maps=False, **over):
    def make():
        return configured(kind, auto, over)

    def batch(device, dtype, size):
        shape = (size, pixels, pixels) if maps else (size,)
        return {"pixel_values": torch.randn(size, 3, pixels, pixels, device=device, dtype=dtype), "labels": torch.randint(0, 2, shape, device=device)}

    return make, batch, lambda model, batch: model(**batch).loss


def sound(kind, **over):
    def make():
        return configured(kind, "AutoModelForAudioClassification", over)

    def batch(device, dtype, size):
        return {"input_values": torch.randn(size, 32000, device=device, dtype=dtype), "labels": torch.randint(0, 2, (size,), device=device)}

    return make, batch, lambda model, batch: model(**batch).loss


SMALL = {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 2048}

CASES = {
    "mnasnet": (*vision("mnasnet1_0"), 64),
    "mobilenet_v3": (*vision("mobilenet_v3_large"), 64),
    "efficientnet_b0": (*vision("efficientnet_b0"), 48),
    "densenet121": (*vision("densenet121"), 24),
    "googlenet": (*vision("googlenet", aux_logits=False, init_weights=False), 64),
    "squeezenet": (*vision("squeezenet1_1"), 64),
    "wide_resnet50": (*vision("wide_resnet50_2"), 24),
    "vgg16_bn": (*vision("vgg16_bn"), 24),
    "convnext_tiny": (*vision("convnext_tiny"), 24),
    "vit_b_16": (*vision("vit_b_16"), 24),
    "maxvit_t": (*vision("maxvit_t"), 12),
    "swin_v2_t": (*vision("swin_v2_t", 256), 16),
    "deeplabv3": (*vision("deeplabv3_resnet50", 320, "out", weights_backbone=None), 8),
    "lraspp": (*vision("lraspp_mobilenet_v3_large", 320, "out", weights_backbone=None), 16),
    "retinanet": (*detection("retinanet_resnet50_fpn"), 4),
    "faster_rcnn": (*detection("fasterrcnn_mobilenet_v3_large_fpn"), 6),
    "bert": (*text("bert", "AutoModelForMaskedLM", **SMALL), 24),
    "gpt2": (*text("gpt2", n_layer=6), 12),
    "llama": (*text("llama", hidden_size=768, num_hidden_layers=6, num_attention_heads=12, num_key_value_heads=4, intermediate_size=2048), 8),
    "mixtral": (*text("mixtral", **SMALL, num_key_value_heads=4, num_local_experts=4, vocab_size=10000), 8),
    "bloom": (*text("bloom", hidden_size=512, n_layer=6, n_head=8, vocab_size=20000), 12),
    "albert": (*text("albert", "AutoModelForMaskedLM", hidden_size=768, num_hidden_layers=6, num_attention_heads=12, intermediate_size=3072), 16),
    "bart": (
        *text(
            "bart",
            "AutoModelForSeq2SeqLM",
            d_model=512,
            encoder_layers=4,
            decoder_layers=4,
            encoder_attention_heads=8,
            decoder_attention_heads=8,
            encoder_ffn_dim=2048,
            decoder_ffn_dim=2048,
        ),
        16,
    ),
    "xlnet": (*text("xlnet", "XLNetLMHeadModel", d_model=512, n_layer=4, n_head=8, d_inner=2048), 8),
    "longformer": (*text("longformer", "AutoModelForMaskedLM", steps=512, **SMALL, attention_window=128, max_position_embeddings=1026), 6),
    "fnet": (*text("fnet", "AutoModelForMaskedLM", hidden_size=512, num_hidden_layers=6, intermediate_size=2048), 16),
    "modernbert": (*text("modernbert", "AutoModelForMaskedLM", hidden_size=512, num_hidden_layers=6, num_attention_heads=8, intermediate_size=1024), 16),
    "segformer": (*picture("segformer", "SegformerForSemanticSegmentation", 256, True), 16),
    "beit": (*picture("beit", **SMALL), 24),
    "dinov2": (*picture("dinov2", hidden_size=384, num_hidden_layers=8, num_attention_heads=6), 16),
    "convnextv2": (*picture("convnextv2"), 24),
    "poolformer": (*picture("poolformer"), 24),
    "hubert": (*sound("hubert", num_hidden_layers=4), 8),
    "unispeech": (*sound("unispeech-sat", num_hidden_layers=4), 8),
}
