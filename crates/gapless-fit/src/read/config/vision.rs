//! Image models: Hugging Face's ViT, ResNet and ConvNeXt, and rows of torchvision's numbers from the table of names.

use super::{Outcome, inverted};
use crate::model::Vision;
use crate::read::error::unsupported;
use crate::read::fields::Fields;

/// Classes of a Hugging Face classifier: as many as it has labels, which are 2 if it names none.
fn labels(fields: Fields<'_>) -> Outcome<u64> {
    if let Some(labels) = fields.get("id2label").and_then(|labels| labels.object()) {
        return Ok((labels.len() as u64).max(1));
    }
    fields.size("num_labels", 2)
}

pub(super) fn vit(fields: Fields<'_>, notes: &mut Vec<String>) -> Outcome<Vision> {
    if !fields.flag("qkv_bias", true)? {
        return fields.fault("qkv_bias", "projections without biases are not modelled");
    }
    if fields.size("num_channels", 3)? != 3 {
        return fields.fault("num_channels", "only images of 3 channels are modelled");
    }
    for key in ["hidden_dropout_prob", "attention_probs_dropout_prob"] {
        if fields.share(key, 0.0)? > 0.0 {
            notes.push(format!("{key} is not modelled: no dropout is assumed"));
        }
    }
    let (hidden, heads) = (fields.size("hidden_size", 768)?, fields.size("num_attention_heads", 12)?);
    let (image, patch) = (fields.side("image_size", 224)?, fields.side("patch_size", 16)?);
    if hidden % heads != 0 {
        return fields
            .fault("num_attention_heads", format!("{heads} heads do not divide the hidden size {hidden}"));
    }
    if image < patch {
        return fields.fault("patch_size", format!("a patch of {patch} is larger than the image of {image}"));
    }
    Ok(Vision::Vit {
        layers: fields.number_of(&["num_hidden_layers"], 12)?,
        hidden,
        heads,
        intermediate: fields.size("intermediate_size", 3072)?,
        patch,
        image,
        classes: labels(fields)?,
        hugging_face: true,
    })
}

pub(super) fn resnet(fields: Fields<'_>, notes: &mut Vec<String>) -> Outcome<Vision> {
    let bottleneck = match fields.text("layer_type")?.unwrap_or("bottleneck") {
        "bottleneck" => true,
        "basic" => false,
        _ => return fields.fault("layer_type", "must be basic or bottleneck"),
    };
    let channels = fields.sizes("hidden_sizes")?.unwrap_or_else(|| vec![256, 512, 1024, 2048]);
    let first = if bottleneck { 256 } else { 64 };
    let usual: Vec<u64> = (0..4).map(|stage| first << stage).collect();
    let unusual =
        fields.flag("downsample_in_first_stage", false)? || fields.flag("downsample_in_bottleneck", false)?;
    if channels != usual
        || fields.size("embedding_size", 64)? != 64
        || fields.size("num_channels", 3)? != 3
        || unusual
    {
        return unsupported(
            "this ResNet differs from the published ones in more than its depth",
            "export the model with torch.export.save and give the .pt2",
        );
    }
    let blocks = stages(fields, "depths", vec![3, 4, 6, 3])?;
    notes.push("read as torchvision's ResNet of the same depth: parameters have its names".into());
    Ok(Vision::ResNet { blocks, bottleneck, groups: 1, base_width: 64, classes: labels(fields)? })
}

pub(super) fn convnext(fields: Fields<'_>, notes: &mut Vec<String>) -> Outcome<Vision> {
    if fields.side("patch_size", 4)? != 4 || fields.size("num_channels", 3)? != 3 {
        return fields
            .fault("patch_size", "only ConvNeXt with patches of 4 and images of 3 channels is modelled");
    }
    let channels = stages(fields, "hidden_sizes", vec![96, 192, 384, 768])?;
    let blocks = stages(fields, "depths", vec![3, 3, 9, 3])?;
    if fields.optional("num_stages")?.is_some_and(|stages| stages != blocks.len() as u64) {
        return fields.fault("num_stages", "must be as many as hidden_sizes and depths have: 4");
    }
    notes.push("read as torchvision's ConvNeXt of the same sizes: parameters have its names".into());
    Ok(Vision::ConvNext { channels, blocks, classes: labels(fields)? })
}

/// Four stages, none of them empty nor absurd.
fn stages(fields: Fields<'_>, key: &str, default: Vec<u64>) -> Outcome<Vec<u64>> {
    let stages = fields.sizes(key)?.unwrap_or(default);
    if stages.len() != 4 || stages.iter().any(|stage| !(1..=10_000).contains(stage)) {
        return fields.fault(key, "must be four numbers between 1 and 10,000");
    }
    Ok(stages)
}

/// A row of the table of names.
pub(super) fn torchvision(kind: &str, fields: Fields<'_>) -> Outcome<Vision> {
    let classes = fields.size("num_classes", 1000)?;
    Ok(match kind {
        "torchvision_resnet" => Vision::ResNet {
            blocks: stages(fields, "blocks", vec![3, 4, 6, 3])?,
            bottleneck: fields.flag("bottleneck", true)?,
            groups: fields.size("groups", 1)?,
            base_width: fields.size("base_width", 64)?,
            classes,
        },
        "torchvision_vit" => Vision::Vit {
            layers: fields.number_of(&["layers"], 12)?,
            hidden: fields.size("hidden", 768)?,
            heads: fields.size("heads", 12)?,
            intermediate: fields.size("intermediate", 3072)?,
            patch: fields.size("patch", 16)?,
            image: fields.size("image", 224)?,
            classes,
            hugging_face: false,
        },
        "torchvision_convnext" => Vision::ConvNext {
            channels: stages(fields, "channels", vec![96, 192, 384, 768])?,
            blocks: stages(fields, "blocks", vec![3, 3, 9, 3])?,
            classes,
        },
        "torchvision_vgg" => Vision::Vgg {
            layers: fields.sizes("layers")?.unwrap_or_default(),
            batch_norm: fields.flag("batch_norm", false)?,
            classes,
        },
        "torchvision_densenet" => Vision::DenseNet {
            blocks: stages(fields, "blocks", vec![6, 12, 24, 16])?,
            growth: fields.size("growth", 32)?,
            stem: fields.size("stem", 64)?,
            classes,
        },
        "torchvision_mobilenet_v2" => Vision::Inverted(inverted::mobilenet_v2(classes)),
        "torchvision_mobilenet_v3" => {
            Vision::Inverted(inverted::mobilenet_v3(fields.flag("large", true)?, classes))
        }
        "torchvision_efficientnet" => {
            let tenths = |key| fields.size(key, 10).map(|tenths| tenths.clamp(1, 1000));
            Vision::Inverted(inverted::efficientnet(tenths("width")?, tenths("depth")?, classes))
        }
        _ => return fields.fault("model_type", "is not one of torchvision's families here"),
    })
}
