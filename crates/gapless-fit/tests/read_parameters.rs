//! Parameter lists against the implementations' own: name by name, shape by shape, in order; and against published
//! counts.

use flate2::read::GzDecoder;
use gapless_fit::model::{Architecture, Dtype};
use gapless_fit::{parameters, read};
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader};

fn rows(name: &str) -> Vec<Value> {
    let path = format!("{}/../../testdata/fit/{name}", env!("CARGO_MANIFEST_DIR"));
    let lines = BufReader::new(GzDecoder::new(File::open(path).expect("test data"))).lines();
    lines.map(|line| serde_json::from_str(&line.expect("a line")).expect("JSON")).collect()
}

fn architecture(name: &str) -> Architecture {
    read::open(name).unwrap_or_else(|error| panic!("{error}")).architecture.expect("an architecture")
}

fn shape(value: &Value) -> Vec<u64> {
    value.as_array().expect("a shape").iter().map(|size| size.as_u64().expect("a size")).collect()
}

#[test]
fn lists_equal_those_of_transformers_and_torchvision() {
    let rows = rows("parameters.jsonl.gz");
    assert!(rows.len() > 60);
    for row in rows {
        let what = row.get("config").or(row.get("preset")).expect("config or preset").to_string();
        let architecture = match row.get("preset") {
            Some(name) => architecture(name.as_str().expect("a name")),
            None => read::config("config.json", what.as_bytes()).expect("reads").architecture.expect("known"),
        };
        let ours: Vec<(String, Vec<u64>)> =
            parameters::parameters(&architecture).into_iter().map(|one| (one.name, one.shape)).collect();
        let theirs: Vec<(String, Vec<u64>)> = row["parameters"]
            .as_array()
            .expect("parameters")
            .iter()
            .map(|one| (one[0].as_str().expect("a name").to_owned(), shape(&one[1])))
            .collect();
        assert_eq!(ours, theirs, "{what}");
        let Some(buffers) = row.get("buffers") else { continue };
        let mut ours: Vec<(String, Dtype, Vec<u64>)> = parameters::buffers(&architecture)
            .into_iter()
            .map(|one| (one.name, one.dtype, one.shape))
            .collect();
        let mut theirs: Vec<(String, Dtype, Vec<u64>)> = buffers
            .as_array()
            .expect("buffers")
            .iter()
            .map(|one| {
                let dtype = match one[1].as_str().expect("a dtype") {
                    "float32" => Dtype::F32,
                    "int64" => Dtype::I64,
                    other => panic!("{other}"),
                };
                (one[0].as_str().expect("a name").to_owned(), dtype, shape(&one[2]))
            })
            .collect();
        // Gemma 3 registers them in the order of a set of strings, which is another in each process.
        ours.sort_by(|one, other| one.0.cmp(&other.0));
        theirs.sort_by(|one, other| one.0.cmp(&other.0));
        assert_eq!(ours, theirs, "buffers of {what}");
    }
}

#[test]
fn published_counts() {
    for (name, count) in [
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-13b", 13_015_864_320),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("llama-3.1-405b", 405_853_388_800),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.2-3b", 3_212_749_824),
        ("tinyllama-1.1b", 1_100_048_384),
        ("smollm2-135m", 134_515_008),
        ("smollm2-360m", 361_821_120),
        ("smollm2-1.7b", 1_711_376_384),
        ("mistral-7b", 7_241_732_096),
        ("mistral-7b-v0.3", 7_248_023_552),
        ("mistral-nemo-12b", 12_247_782_400),
        ("mistral-small-24b", 23_572_403_200),
        ("mixtral-8x7b", 46_702_792_704),
        ("mixtral-8x22b", 140_620_634_112),
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("qwen2.5-3b", 3_085_938_688),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen2.5-14b", 14_770_033_664),
        ("qwen2.5-32b", 32_763_876_352),
        ("qwen2.5-72b", 72_706_203_648),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-1.7b", 1_720_574_976),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-14b", 14_768_307_200),
        ("qwen3-32b", 32_762_123_264),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3-235b-a22b", 235_093_634_560),
        ("gemma-2b", 2_506_172_416),
        ("gemma-7b", 8_537_680_896),
        ("gemma-2-2b", 2_614_341_888),
        ("gemma-2-9b", 9_241_705_984),
        ("gemma-2-27b", 27_227_128_320),
        ("gemma-3-270m", 268_098_176),
        ("gemma-3-1b", 999_885_952),
        ("phi-3-mini", 3_821_079_552),
        ("phi-3-medium", 13_960_238_080),
        ("phi-4", 14_659_507_200),
        ("phi-4-mini", 3_836_021_760),
        ("opt-125m", 125_239_296),
        ("opt-350m", 331_196_416),
        ("opt-1.3b", 1_315_758_080),
        ("opt-2.7b", 2_651_596_800),
        ("opt-6.7b", 6_658_473_984),
        ("opt-13b", 12_853_473_280),
        ("opt-30b", 29_974_540_288),
        ("pythia-70m", 70_426_624),
        ("pythia-160m", 162_322_944),
        ("pythia-410m", 405_334_016),
        ("pythia-1b", 1_011_781_632),
        ("pythia-1.4b", 1_414_647_808),
        ("pythia-2.8b", 2_775_208_960),
        ("pythia-6.9b", 6_857_302_016),
        ("pythia-12b", 11_846_072_320),
        ("gpt-neox-20b", 20_554_567_680),
        ("deepseek-v2", 235_741_434_880),
        ("deepseek-v2-lite", 15_706_484_224),
        ("bert-base-uncased", 109_514_298),
        ("bert-large-uncased", 335_174_458),
        ("roberta-base", 124_697_433),
        ("roberta-large", 355_412_057),
        ("t5-small", 60_506_624),
        ("t5-base", 222_903_552),
        ("t5-large", 737_668_096),
        ("t5-3b", 2_851_598_336),
        ("t5-11b", 11_307_321_344),
        // With their heads tied, as transformers 5 has them: published 76,961,152 and 247,577,856 with a head of its
        // own.
        ("flan-t5-small", 76_961_152 - 32128 * 512),
        ("flan-t5-base", 247_577_856 - 32128 * 768),
        ("flan-t5-xxl", 11_135_332_352 - 32128 * 4096),
        ("resnet18", 11_689_512),
        ("resnet50", 25_557_032),
        ("resnet152", 60_192_808),
        ("wide_resnet101_2", 126_886_696),
        ("resnext101_64x4d", 83_455_272),
        ("vit_b_16", 86_567_656),
        ("vit_h_14", 632_045_800),
        ("convnext_base", 88_591_464),
        ("vgg16", 138_357_544),
        ("mobilenet_v2", 3_504_872),
        ("mobilenet_v3_small", 2_542_856),
        ("efficientnet_b7", 66_347_960),
        ("densenet161", 28_681_000),
    ] {
        assert_eq!(parameters::count(&architecture(name)), Some(count), "{name}");
    }
}

#[test]
fn deepseek_v3_has_its_published_671_billion_with_the_routing_biases() {
    let architecture = architecture("deepseek-v3");
    let biases: u64 = parameters::buffers(&architecture)
        .iter()
        .filter(|buffer| buffer.name.ends_with("e_score_correction_bias"))
        .map(|buffer| buffer.shape[0])
        .sum();
    assert_eq!(biases, 58 * 256);
    assert_eq!(parameters::count(&architecture), Some(671_026_404_352));
    assert_eq!(parameters::count(&architecture).map(|count| count + biases), Some(671_026_419_200));
}

#[test]
fn every_preset_reads_and_its_count_is_in_its_name() {
    for name in read::names() {
        let count = parameters::count(&architecture(name)).expect("countable") as f64;
        let size = name.split('-').find_map(|word| {
            let (number, unit) = word.split_at(word.len() - 1);
            let number: f64 = number.parse().ok()?;
            match unit {
                "b" => Some(number * 1e9),
                "m" => Some(number * 1e6),
                _ => None,
            }
        });
        // Names round, and some leave the embeddings out; the first number of OLMoE's is of its active parameters.
        if let Some(size) = size.filter(|_| !matches!(name, "pythia-14m" | "olmo-2-1b" | "olmoe-1b-7b")) {
            assert!((0.75..1.35).contains(&(count / size)), "{name} has {count} parameters");
        }
    }
}
