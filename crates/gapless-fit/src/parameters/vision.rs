//! Image models, as torchvision registers their parameters, and Hugging Face's ViT.

use super::{Buffer, List, Role};
use crate::model::{Dtype, Inverted, InvertedFamily, Vision};

pub(super) fn list(vision: &Vision, list: &mut List) {
    match vision {
        Vision::ResNet { blocks, bottleneck, groups, base_width, classes } => {
            resnet(blocks, *bottleneck, *groups, *base_width, *classes, list);
        }
        Vision::Vit { hugging_face: true, .. } => hugging_face_vit(vision, list),
        Vision::Vit { .. } => torchvision_vit(vision, list),
        Vision::ConvNext { channels, blocks, classes } => convnext(channels, blocks, *classes, list),
        Vision::Vgg { layers, batch_norm, classes } => vgg(layers, *batch_norm, *classes, list),
        Vision::Inverted(network) => inverted(network, list),
        Vision::DenseNet { blocks, growth, stem, classes } => {
            densenet(blocks, *growth, *stem, *classes, list);
        }
    }
}

/// Batch norms keep mean, variance and a count beside their weights.
pub(super) fn buffers(vision: &Vision) -> Vec<Buffer> {
    let norms: &dyn Fn(&str) -> bool = match vision {
        Vision::ResNet { .. } => &|name| name.contains("bn") || name.contains("downsample.1"),
        Vision::Vgg { batch_norm: true, .. } => &|name| name.starts_with("features."),
        Vision::Inverted(_) | Vision::DenseNet { .. } => &|_| true,
        _ => return Vec::new(),
    };
    let mut parameters = List::default();
    list(vision, &mut parameters);
    let mut buffers = Vec::new();
    for parameter in parameters.parameters {
        let Some(name) = parameter.name.strip_suffix(".weight") else { continue };
        if parameter.role == Role::Norm && norms(name) {
            for (part, shape, dtype) in [
                ("running_mean", parameter.shape.clone(), Dtype::F32),
                ("running_var", parameter.shape.clone(), Dtype::F32),
                ("num_batches_tracked", Vec::new(), Dtype::I64),
            ] {
                buffers.push(Buffer { name: format!("{name}.{part}"), shape, dtype });
            }
        }
    }
    buffers
}

fn classifier(name: &str, from: u64, classes: u64, list: &mut List) {
    list.push(format!("{name}.weight"), &[classes, from], Role::Head);
    list.push(format!("{name}.bias"), &[classes], Role::Bias);
}

fn resnet(blocks: &[u64], bottleneck: bool, groups: u64, base_width: u64, classes: u64, list: &mut List) {
    list.convolution("conv1", 3, 64, 7, false);
    list.norm("bn1", 64);
    let mut from = 64;
    for (stage, count) in blocks.iter().enumerate() {
        let planes = 64 << stage;
        let width = if bottleneck { planes * base_width / 64 * groups } else { planes };
        let out = if bottleneck { 4 * planes } else { planes };
        for block in 0..*count {
            let name = format!("layer{}.{block}", stage + 1);
            if bottleneck {
                list.convolution(&format!("{name}.conv1"), from, width, 1, false);
                list.norm(&format!("{name}.bn1"), width);
                list.convolution(&format!("{name}.conv2"), width / groups, width, 3, false);
                list.norm(&format!("{name}.bn2"), width);
                list.convolution(&format!("{name}.conv3"), width, out, 1, false);
                list.norm(&format!("{name}.bn3"), out);
            } else {
                list.convolution(&format!("{name}.conv1"), from, width, 3, false);
                list.norm(&format!("{name}.bn1"), width);
                list.convolution(&format!("{name}.conv2"), width, out, 3, false);
                list.norm(&format!("{name}.bn2"), out);
            }
            if block == 0 && (stage > 0 || from != out) {
                list.convolution(&format!("{name}.downsample.0"), from, out, 1, false);
                list.norm(&format!("{name}.downsample.1"), out);
            }
            from = out;
        }
    }
    classifier("fc", from, classes, list);
}

fn torchvision_vit(vision: &Vision, list: &mut List) {
    let Vision::Vit { layers, hidden, intermediate, patch, image, classes, .. } = *vision else { return };
    let tokens = (image / patch) * (image / patch) + 1;
    list.push("class_token", &[1, 1, hidden], Role::Positions);
    list.convolution("conv_proj", 3, hidden, patch, true);
    list.push("encoder.pos_embedding", &[1, tokens, hidden], Role::Positions);
    for layer in 0..layers {
        let block = format!("encoder.layers.encoder_layer_{layer}");
        list.norm(&format!("{block}.ln_1"), hidden);
        list.push(format!("{block}.self_attention.in_proj_weight"), &[3 * hidden, hidden], Role::Matrix);
        list.push(format!("{block}.self_attention.in_proj_bias"), &[3 * hidden], Role::Bias);
        list.linear(&format!("{block}.self_attention.out_proj"), hidden, hidden, true);
        list.norm(&format!("{block}.ln_2"), hidden);
        list.linear(&format!("{block}.mlp.0"), hidden, intermediate, true);
        list.linear(&format!("{block}.mlp.3"), intermediate, hidden, true);
    }
    list.norm("encoder.ln", hidden);
    classifier("heads.head", hidden, classes, list);
}

fn hugging_face_vit(vision: &Vision, list: &mut List) {
    let Vision::Vit { layers, hidden, intermediate, patch, image, classes, .. } = *vision else { return };
    let tokens = (image / patch) * (image / patch) + 1;
    list.push("vit.embeddings.cls_token", &[1, 1, hidden], Role::Positions);
    list.push("vit.embeddings.position_embeddings", &[1, tokens, hidden], Role::Positions);
    list.convolution("vit.embeddings.patch_embeddings.projection", 3, hidden, patch, true);
    for layer in 0..layers {
        let block = format!("vit.layers.{layer}");
        for name in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            list.linear(&format!("{block}.attention.{name}"), hidden, hidden, true);
        }
        list.norm(&format!("{block}.layernorm_before"), hidden);
        list.norm(&format!("{block}.layernorm_after"), hidden);
        list.linear(&format!("{block}.mlp.fc1"), hidden, intermediate, true);
        list.linear(&format!("{block}.mlp.fc2"), intermediate, hidden, true);
    }
    list.norm("vit.layernorm", hidden);
    classifier("classifier", hidden, classes, list);
}

fn convnext(channels: &[u64], blocks: &[u64], classes: u64, list: &mut List) {
    let mut from = channels.first().copied().unwrap_or(0);
    list.convolution("features.0.0", 3, from, 4, true);
    list.norm("features.0.1", from);
    for (stage, (&width, &count)) in channels.iter().zip(blocks).enumerate() {
        if stage > 0 {
            list.norm(&format!("features.{}.0", 2 * stage), from);
            list.convolution(&format!("features.{}.1", 2 * stage), from, width, 2, true);
        }
        for block in 0..count {
            let name = format!("features.{}.{block}", 2 * stage + 1);
            list.push(format!("{name}.layer_scale"), &[width, 1, 1], Role::Norm);
            list.convolution(&format!("{name}.block.0"), 1, width, 7, true);
            list.norm(&format!("{name}.block.2"), width);
            list.linear(&format!("{name}.block.3"), width, 4 * width, true);
            list.linear(&format!("{name}.block.5"), 4 * width, width, true);
        }
        from = width;
    }
    list.norm("classifier.0", from);
    classifier("classifier.2", from, classes, list);
}

fn vgg(layers: &[u64], batch_norm: bool, classes: u64, list: &mut List) {
    let (mut from, mut at) = (3, 0);
    for &channels in layers {
        if channels == 0 {
            at += 1;
            continue;
        }
        list.convolution(&format!("features.{at}"), from, channels, 3, true);
        at += 1;
        if batch_norm {
            list.norm(&format!("features.{at}"), channels);
            at += 1;
        }
        at += 1;
        from = channels;
    }
    list.linear("classifier.0", from * 49, 4096, true);
    list.linear("classifier.3", 4096, 4096, true);
    classifier("classifier.6", 4096, classes, list);
}

fn inverted(network: &Inverted, list: &mut List) {
    use InvertedFamily::{EfficientNet, MobileNetV2};
    let unit = |list: &mut List, name: &str, from: u64, to: u64, kernel: u64| {
        list.convolution(&format!("{name}.0"), from, to, kernel, false);
        list.norm(&format!("{name}.1"), to);
    };
    unit(list, "features.0", 3, network.stem, 3);
    let mut stages = 0;
    for block in &network.blocks {
        stages = stages.max(block.stage + 1);
        let name = match network.family {
            EfficientNet => format!("features.{}.{}.block", block.stage + 1, block.place),
            MobileNetV2 => format!("features.{}.conv", block.stage + 1),
            InvertedFamily::MobileNetV3 => format!("features.{}.block", block.stage + 1),
        };
        let mut at = 0;
        let mut next = || {
            at += 1;
            format!("{name}.{}", at - 1)
        };
        if block.expanded != block.inputs {
            unit(list, &next(), block.inputs, block.expanded, 1);
        }
        unit(list, &next(), 1, block.expanded, block.kernel);
        if block.squeeze > 0 {
            let name = next();
            list.convolution(&format!("{name}.fc1"), block.expanded, block.squeeze, 1, true);
            list.convolution(&format!("{name}.fc2"), block.squeeze, block.expanded, 1, true);
        }
        if network.family == MobileNetV2 {
            list.convolution(&next(), block.expanded, block.outputs, 1, false);
            list.norm(&next(), block.outputs);
        } else {
            unit(list, &next(), block.expanded, block.outputs, 1);
        }
    }
    let from = network.blocks.last().map_or(network.stem, |block| block.outputs);
    unit(list, &format!("features.{}", stages + 1), from, network.last, 1);
    if network.family == InvertedFamily::MobileNetV3 {
        list.linear("classifier.0", network.last, network.inner, true);
        classifier("classifier.3", network.inner, network.classes, list);
    } else {
        classifier("classifier.1", network.last, network.classes, list);
    }
}

fn densenet(blocks: &[u64], growth: u64, stem: u64, classes: u64, list: &mut List) {
    list.convolution("features.conv0", 3, stem, 7, false);
    list.norm("features.norm0", stem);
    let mut channels = stem;
    for (block, &layers) in (1..).zip(blocks) {
        for layer in 1..=layers {
            let name = format!("features.denseblock{block}.denselayer{layer}");
            list.norm(&format!("{name}.norm1"), channels);
            list.convolution(&format!("{name}.conv1"), channels, 4 * growth, 1, false);
            list.norm(&format!("{name}.norm2"), 4 * growth);
            list.convolution(&format!("{name}.conv2"), 4 * growth, growth, 3, false);
            channels += growth;
        }
        if block < blocks.len() {
            list.norm(&format!("features.transition{block}.norm"), channels);
            list.convolution(&format!("features.transition{block}.conv"), channels, channels / 2, 1, false);
            channels /= 2;
        }
    }
    list.norm("features.norm5", channels);
    classifier("classifier", channels, classes, list);
}
