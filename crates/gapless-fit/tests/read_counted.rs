//! Configurations whose parameters are counted, held against transformers: name by name, shape by shape, in order; and
//! the count of every built-in name.

use flate2::read::GzDecoder;
use gapless_fit::ask::{Asked, Question, Wishes, ask};
use gapless_fit::model::Architecture;
use gapless_fit::settings::Engine;
use gapless_fit::{parameters, read};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};

fn data(name: &str) -> String {
    format!("{}/../../testdata/fit/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn rows() -> Vec<Value> {
    let file = File::open(data("counted.jsonl.gz")).expect("test data");
    let lines = BufReader::new(GzDecoder::new(file)).lines();
    lines.map(|line| serde_json::from_str(&line.expect("a line")).expect("JSON")).collect()
}

#[test]
fn lists_equal_those_of_transformers() {
    let mut seen = BTreeSet::new();
    for row in rows() {
        let text = row["config"].to_string();
        let model = read::config("config.json", text.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
        let architecture = model.architecture.expect("known");
        let kind = row["config"]["model_type"].as_str().expect("a type");
        // These two register their head before RoBERTa's encoder, so that the shared matrix has the head's name.
        let other_order = matches!(kind, "xlm-roberta" | "camembert");
        let mut ours: Vec<Value> = parameters::parameters(&architecture)
            .into_iter()
            .map(|one| if other_order { json!(one.shape) } else { json!([one.name, one.shape]) })
            .collect();
        let mut theirs = row["parameters"].as_array().expect("parameters").clone();
        if other_order {
            theirs = theirs.into_iter().map(|one| one[1].clone()).collect();
            ours.sort_by_key(Value::to_string);
            theirs.sort_by_key(Value::to_string);
        }
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_eq!(ours, theirs, "{text}");
        }
        assert_eq!(ours.len(), theirs.len(), "{text}");
        seen.insert(kind.to_owned());
    }
    assert!(seen.len() >= 33, "{seen:?}");
}

#[test]
fn every_built_in_name_has_the_count_of_transformers() {
    let text = fs::read_to_string(data("counts.jsonl")).expect("test data");
    let mut names = BTreeSet::new();
    for line in text.lines() {
        let row: Value = serde_json::from_str(line).expect("JSON");
        let name = row["name"].as_str().expect("a name");
        let model = read::open(name).unwrap_or_else(|error| panic!("{error}"));
        let count = model.architecture.as_ref().and_then(parameters::count);
        assert_eq!(count, row["count"].as_u64(), "{name}");
        names.insert(name.to_owned());
    }
    let missing: Vec<&str> = read::names()
        .into_iter()
        .filter(|name| !names.contains(*name))
        .filter(|name| !read::preset_config(name).expect("its own").contains("\"torchvision_"))
        .collect();
    assert!(missing.is_empty(), "no count of transformers for {missing:?}");
}

#[test]
fn every_type_that_is_listed_is_read() {
    for kind in read::model_types() {
        let text = match kind {
            "clip" => r#"{"model_type":"clip","text_config":{},"vision_config":{}}"#.to_owned(),
            "deepseek_v2" => r#"{"model_type":"deepseek_v2","num_experts_per_tok":6}"#.to_owned(),
            _ => format!(r#"{{"model_type":"{kind}"}}"#),
        };
        let model = read::config("config.json", text.as_bytes());
        assert!(model.is_ok_and(|model| model.architecture.is_some()), "{kind}");
    }
}

#[test]
fn what_needs_activations_is_refused_with_what_is_exact() {
    let error = Question::read("gpt-oss-20b", &Asked::default()).expect_err("activations are not known");
    assert!(error.what.contains("20914757184 parameters"), "{}", error.what);
    assert!(
        error.help.contains("gapless.estimate") && error.help.contains("--engine vllm"),
        "{}",
        error.help
    );
    let plain = Asked { infer: true, ..Asked::default() };
    assert!(Question::read("whisper-tiny", &plain).is_err());
    let served = Asked { engine: Some(Engine::Vllm), ..plain };
    assert!(
        Question::read("whisper-tiny", &served).is_err(),
        "no engine with a paged cache is modelled for it"
    );
}

#[test]
fn a_counted_model_that_generates_text_is_served() {
    for engine in [Engine::Vllm, Engine::Sglang] {
        let asked = Asked {
            infer: true,
            engine: Some(engine),
            batch: Some(8),
            seq: Some(8192),
            gpu: Some("h100".to_owned()),
            ..Asked::default()
        };
        for (name, fits) in [("gpt-oss-20b", true), ("falcon-7b", true), ("bloom-176b", false)] {
            let q = Question::read(name, &asked).expect("a question");
            let answer = ask(&q, &Wishes::default()).expect("an answer");
            assert_eq!(answer.fits, fits, "{name}");
            if !fits {
                continue;
            }
            let plan =
                answer.plans.as_ref().and_then(|plans| plans.rows[0].serve).expect("a way to serve it");
            let Some(count) = parameters::count(&q.architecture) else { panic!("{name}") };
            // As published: gpt-oss with experts in MXFP4, Falcon in 16 bits.
            let published = match name {
                "gpt-oss-20b" => 13_761_264_768,
                _ => 2 * count,
            };
            assert_eq!(plan.weights, published, "{name}");
            assert!(plan.tokens >= 8 * 8192, "{name}");
        }
    }
}

#[test]
fn sliding_layers_and_states_take_less_cache_than_all_tokens() {
    let cache = |name: &str| {
        let model = read::open(name).expect("built in");
        let Some(Architecture::Counted(counted)) = model.architecture else { panic!("{name}") };
        counted.text.expect("it generates text").cache
    };
    let oss = cache("gpt-oss-20b");
    assert_eq!((oss.len(), oss[0].window, oss[1].window, oss[0].token), (24, Some(128), None, 1024));
    let next = cache("qwen3-next-80b-a3b");
    assert_eq!(next.iter().filter(|layer| layer.token > 0).count(), 12);
    assert!(next[0].state > 0 && next[3].state == 0);
}
