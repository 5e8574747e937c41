//! Emitted files compile, parse and carry the plan, and a target that cannot realise it refuses.

#[path = "common/models.rs"]
#[allow(dead_code)]
mod models;

use gapless_fit::emit::{EmitError, File, Recipe, ServeRecipe, Target, vllm};
use gapless_fit::formulas::sharding::Sharding;
use gapless_fit::formulas::weights::Format;
use gapless_fit::hardware::{self, Cluster};
use gapless_fit::search::cost::CostModel;
use gapless_fit::search::profile::Profile;
use gapless_fit::search::serve::Serving;
use gapless_fit::search::space::{Config, Offload, Space};
use gapless_fit::search::train::search;
use gapless_fit::settings::{Checkpointing, Optimizer, Precision};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;

fn tiny() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 512,
        "max_position_embeddings": 256, "tie_word_embeddings": false, "hidden_act": "silu", "name_with_quotes": "it's '''raw''' \\ \"q\"",
    })
}

fn network() -> Value {
    json!({"model_type": "torchvision_resnet", "name": "resnet18", "num_classes": 10})
}

fn config() -> Config {
    Config {
        precision: Precision::Bf16,
        optimizer: Optimizer::AdamW,
        checkpointing: Checkpointing::Optimal,
        sharding: Sharding::Ddp,
        data: 1,
        tensor: 1,
        pipeline: 1,
        context: 1,
        expert: 1,
        chunks: 1,
        micro_batch: 2,
        accumulation: 2,
        length: 32,
        offload: Offload::default(),
        lora: None,
        format: Format::Half,
        sequence_parallel: true,
    }
}

fn recipe(config: Config) -> Recipe {
    Recipe {
        name: "tiny \"\"\" @PLAN@ model".to_owned(),
        model: tiny(),
        weights: None,
        attention: gapless_fit::model::Attention::Sdpa,
        usual_targets: &["q_proj", "v_proj"],
        blocks: 4,
        config,
        recompute: vec![0, 2],
        selective: vec![],
        predicted_peak_allocated: Some(123_456_789),
        gpus_per_node: config.gpus(),
        nodes: 1,
        steps: 2,
    }
}

fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("emit").join(name);
    std::fs::create_dir_all(&folder).expect("a folder below target");
    folder
}

fn python(args: &[&str]) -> Option<bool> {
    match Command::new("python3").args(args).output() {
        Ok(output) => {
            if !output.status.success() {
                eprintln!("{}", String::from_utf8_lossy(&output.stderr));
            }
            Some(output.status.success())
        }
        Err(error) => {
            // A test that passes without having run would fool CI.
            assert!(std::env::var_os("CI").is_none(), "python3 cannot be run: {error}");
            eprintln!("SKIPPED: python3 cannot be run ({error}), so emitted Python was not compiled");
            None
        }
    }
}

/// Writes the files, compiles the Python and returns the plan that the script carries.
fn compile(name: &str, files: &[File]) -> Value {
    let folder = folder(name);
    let mut plan = Value::Null;
    for file in files {
        let path = folder.join(file.name);
        std::fs::write(&path, &file.text).expect("written");
        if file.name.ends_with(".py") {
            assert_ne!(
                python(&["-m", "py_compile", &path.display().to_string()]),
                Some(false),
                "{}",
                path.display()
            );
            let (_, rest) = file.text.split_once("PLAN = json.loads(r'''").expect("a plan");
            let (text, rest) = rest.split_once("''')").expect("its end");
            plan = serde_json::from_str(text).expect("the plan is JSON");
            let (_, rest) = rest.split_once("CONFIG = json.loads(r'''").expect("a configuration");
            let (text, _) = rest.split_once("''')").expect("its end");
            let config: Value = serde_json::from_str(text).expect("JSON");
            assert!(config == tiny() || config == network(), "{config}");
        }
        if file.name.ends_with(".json") {
            serde_json::from_str::<Value>(&file.text).expect("JSON");
        }
        if file.name.ends_with(".yaml") {
            yaml(&file.text);
        }
    }
    plan
}

/// Keys and plain values, two levels: all that the file uses. If Python has yaml, it has to parse the file too.
fn yaml(text: &str) -> Vec<(String, String)> {
    let check = "import sys\ntry:\n import yaml\nexcept ImportError:\n sys.exit(0)\nassert isinstance(yaml.safe_load(sys.argv[1]), dict)";
    assert_ne!(python(&["-c", check, text]), Some(false));
    text.lines()
        .map(|line| {
            let (key, value) = line.split_once(':').unwrap_or_else(|| panic!("{line:?} has no key"));
            assert!(value.is_empty() || value.starts_with(' '), "{line:?}");
            (key.trim().to_owned(), value.trim().to_owned())
        })
        .collect()
}

#[test]
fn the_torch_script_carries_the_plan() {
    let files = recipe(config()).emit(Target::Torch).expect("plain");
    let plan = compile("torch", &files);
    assert_eq!(plan["recompute"], json!([0, 2]));
    assert_eq!((&plan["weight_type"], &plan["autocast"]), (&json!("bfloat16"), &json!(false)));
    assert_eq!(plan["predicted_peak_allocated"], json!(123_456_789));
    let amp = recipe(Config { precision: Precision::AmpBf16, optimizer: Optimizer::Muon, ..config() });
    let plan = compile("torch-amp", &amp.emit(Target::Torch).expect("plain"));
    assert_eq!((&plan["weight_type"], &plan["autocast"]), (&json!("float32"), &json!(true)));
    let again = recipe(config()).emit(Target::Torch).expect("plain");
    assert_eq!(files, again, "the same plan gives the same bytes");
}

#[test]
fn the_script_of_a_network_of_torchvision_wraps_its_blocks() {
    let of = |model: Value| Recipe { model, blocks: 8, ..recipe(config()) };
    let files = of(network()).emit(Target::Torch).expect("plain");
    let plan = compile("torchvision", &files);
    assert_eq!((&plan["recompute"], &plan["blocks"]), (&json!([0, 2]), &json!(8)));
    let [script] = &files[..] else { panic!("one file") };
    for (words, there) in [
        ("torchvision.models, CONFIG[\"name\"]", true),
        ("partial(checkpoint, blocks[number].forward, use_reentrant=False)", true),
        ("cross_entropy(run(images).float(), labels())", true),
        ("found[\"measured_peak_allocated\"] = measured", true),
        ("transformers", false),
        ("@MODEL@", false),
    ] {
        assert_eq!(script.text.contains(words), there, "{words}");
    }
    for target in [Target::Fsdp, Target::DeepSpeed, Target::Accelerate] {
        let refused = of(network()).emit(target).expect_err("refused").to_string();
        assert!(refused.ends_with("a network of torchvision: emit it for torch"), "{refused}");
    }
    let muon = Recipe { config: Config { optimizer: Optimizer::Muon, ..config() }, ..of(network()) };
    assert!(muon.emit(Target::Torch).expect_err("refused").to_string().contains("no matrices"));
    let nameless = of(json!({"model_type": "torchvision_resnet", "num_classes": 10}));
    assert_eq!(nameless.emit(Target::Torch), Err(EmitError::NoNetwork("name")));
}

#[test]
fn the_fsdp_script_computes_in_sixteen_bits_over_fp32_shards() {
    let sharded = Config { precision: Precision::Mixed, sharding: Sharding::Fsdp, data: 2, ..config() };
    let files = recipe(sharded).emit(Target::Fsdp).expect("sharded");
    let plan = compile("fsdp", &files);
    assert_eq!((&plan["weight_type"], &plan["compute_type"]), (&json!("float32"), &json!("bfloat16")));
    assert_eq!(plan["reshard_after_forward"], json!(true));
    assert!(files[0].text.contains("--nproc-per-node 2"));
    let away = Offload { optimizer: true, parameters: true, activations: true };
    let plan = compile(
        "fsdp-offload",
        &recipe(Config { offload: away, ..sharded }).emit(Target::Fsdp).expect("offloaded"),
    );
    assert_eq!((&plan["offload_parameters"], &plan["offload_activations"]), (&json!(true), &json!(true)));
}

#[test]
fn deepspeeds_file_has_its_keys() {
    let offload = Offload { optimizer: true, parameters: true, activations: false };
    let zero3 =
        Config { precision: Precision::Mixed, sharding: Sharding::Zero3, data: 8, offload, ..config() };
    let files = recipe(zero3).emit(Target::DeepSpeed).expect("zero 3");
    compile("deepspeed", &files);
    let settings: Value = serde_json::from_str(&files[1].text).expect("JSON");
    assert_eq!(files[1].name, "ds_config.json");
    assert_eq!(settings["train_batch_size"], json!(32));
    let product = settings["train_micro_batch_size_per_gpu"].as_u64().unwrap_or(0)
        * settings["gradient_accumulation_steps"].as_u64().unwrap_or(0)
        * 8;
    assert_eq!(product, 32, "DeepSpeed refuses a batch that is not the product");
    assert_eq!(settings["zero_optimization"]["stage"], json!(3));
    assert_eq!(settings["zero_optimization"]["offload_param"]["device"], json!("cpu"));
    assert_eq!(settings["optimizer"]["type"], json!("AdamW"));
    assert_eq!(settings["bf16"]["enabled"], json!(true));
    let zero1 = Config { sharding: Sharding::Zero1, offload: Offload::default(), ..zero3 };
    let files = recipe(zero1).emit(Target::DeepSpeed).expect("zero 1");
    let settings: Value = serde_json::from_str(&files[1].text).expect("JSON");
    assert!(
        settings.get("optimizer").is_none()
            && settings["zero_optimization"].get("stage3_max_live_parameters").is_none()
    );
}

#[test]
fn accelerates_file_says_what_is_sharded() {
    let sharded = Config { precision: Precision::Mixed, sharding: Sharding::Fsdp, data: 8, ..config() };
    let files = recipe(sharded).emit(Target::Accelerate).expect("sharded");
    compile("accelerate", &files);
    let keys = yaml(&files[1].text);
    let value = |key: &str| keys.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str());
    assert_eq!(value("distributed_type"), Some("FSDP"));
    assert_eq!(value("fsdp_version"), Some("2"));
    assert_eq!((value("num_processes"), value("mixed_precision")), (Some("8"), Some("'bf16'")));
    let alone = recipe(config()).emit(Target::Accelerate).expect("alone");
    compile("accelerate-alone", &alone);
    assert!(alone[1].text.contains("distributed_type: 'NO'"));
}

#[test]
fn vllms_command_line_has_the_degrees() {
    let profile = Profile::from_decoder("70B", &models::llama3_70b());
    let cluster = Cluster::new(*hardware::find("h100").expect("known"), 8, 1);
    let serving = Serving {
        cache_bytes: vec![1],
        formats: vec![Format::Fp8],
        tensor: vec![4],
        pipeline: vec![1],
        ..Serving::open(&profile, &cluster, 4096, 64)
    };
    let plan = serving.search(&profile, &cluster).expect("sensible").plans[0];
    let file = vllm(&ServeRecipe { model: "it's a/model".to_owned(), plan, sequences: 32 }).expect("served");
    for words in [
        "vllm serve 'it'\\''s a/model'",
        "--tensor-parallel-size 4",
        "--data-parallel-size 2",
        "--kv-cache-dtype fp8",
        "--quantization fp8",
        "--max-model-len 4096",
        "--max-num-seqs 32",
    ] {
        assert!(file.text.contains(words), "{words}: {}", file.text);
    }
    let shell = Command::new("sh").args(["-n", "-c", &file.text]).status();
    assert!(shell.is_ok_and(|status| status.success()), "{}", file.text);
    let refused = vllm(&ServeRecipe {
        model: "m".to_owned(),
        plan: gapless_fit::search::serve::ServePlan { format: Format::Q4K, ..plan },
        sequences: 1,
    });
    assert!(refused.expect_err("a format of GGUF").to_string().contains("q4_k"));
}

#[test]
fn a_plan_that_a_target_cannot_realise_is_refused_with_the_way_out() {
    let refuse =
        |config: Config, target: Target| recipe(config).emit(target).expect_err("refused").to_string();
    let text = refuse(Config { sharding: Sharding::Zero1, data: 2, ..config() }, Target::Torch);
    assert_eq!(text, "torch cannot realise sharding by zero1: emit it for fsdp or deepspeed");
    assert!(refuse(Config { pipeline: 2, ..config() }, Target::Fsdp).contains("pipeline parallelism of 2"));
    assert!(refuse(Config { tensor: 2, ..config() }, Target::Accelerate).contains("tensor parallelism of 2"));
    assert!(refuse(config(), Target::DeepSpeed).contains("mixed or fp32"));
    let optimizer = Offload { optimizer: true, ..Offload::default() };
    assert!(refuse(Config { offload: optimizer, ..config() }, Target::Torch).contains("offloaded states"));
    let mut outside = recipe(config());
    outside.recompute = vec![4];
    assert_eq!(outside.emit(Target::Torch), Err(EmitError::NoSuchBlock { block: 4, blocks: 4 }));
    let nameless = Recipe { model: json!({}), ..recipe(config()) };
    assert_eq!(nameless.emit(Target::Torch), Err(EmitError::NoModelType));
}

#[test]
fn a_plan_of_the_search_becomes_a_script() {
    let profile = Profile::from_decoder("llama-3-8b", &models::llama3_8b());
    let cluster = Cluster::new(*hardware::find("h200").expect("known"), 1, 1);
    let mut space = Space::open(&profile, &cluster, 8, 8192, Precision::Bf16, Optimizer::AdamWFused);
    space.offloads = vec![Offload::default()];
    let found = search(&profile, &cluster, &space, &CostModel::default(), 1).expect("sensible");
    let plan = &found.plans[0];
    let recipe = Recipe::from_plan(&profile, plan, tiny(), 1, 1);
    assert_eq!(recipe.recompute.len() as u64, plan.counts[0][2]);
    assert!(recipe.recompute.iter().copied().eq(0..plan.counts[0][2]), "the first blocks");
    compile("searched", &recipe.emit(Target::Torch).expect("one device"));
}

#[test]
fn within_what_a_target_can_do_every_plan_is_emitted() {
    let profile = Profile::from_decoder("llama-3-8b", &models::llama3_8b());
    for gpus in [1, 8] {
        let cluster = Cluster::new(*hardware::find("h200").expect("known"), gpus, 1);
        for target in [Target::Torch, Target::Fsdp, Target::DeepSpeed, Target::Accelerate] {
            let mut space =
                Space::open(&profile, &cluster, 16, 4096, Precision::Mixed, Optimizer::AdamWFused);
            space.precisions = vec![Precision::Mixed, Precision::Bf16, Precision::AmpBf16, Precision::Fp32];
            target.restrict(&mut space);
            let found = search(&profile, &cluster, &space, &CostModel::default(), 30).expect("sensible");
            assert!(!found.plans.is_empty(), "{target:?} on {gpus}");
            for plan in &found.plans {
                let recipe = Recipe::from_plan(&profile, plan, tiny(), gpus, 1);
                let emitted = recipe.emit(target);
                assert!(emitted.is_ok(), "{:?}: {:?}", emitted, plan.config);
            }
        }
    }
}

#[test]
fn adapters_become_a_script_with_peft_and_what_cannot_exist_is_refused() {
    use gapless_fit::settings::{Lora, LoraTargets};
    let lora = Lora { targets: LoraTargets::QueryValue, save_head: true, ..Lora::all(16) };
    let of = |format, more: Config| recipe(Config { lora: Some(lora), format, ..more });
    let nf4 = Format::Stored { name: "nf4", bits: 5000 };
    for (name, format) in [("lora", Format::Half), ("qlora", nf4), ("qlora-int8", Format::Int8)] {
        let files = of(format, config()).emit(Target::Torch).expect("adapters");
        let plan = compile(name, &files);
        assert_eq!((&plan["lora"]["rank"], &plan["lora"]["base"]), (&json!(16), &json!(format.name())));
        assert_eq!(plan["lora"]["targets"], json!(["q_proj", "v_proj"]));
        assert_eq!((&plan["lora"]["save"], &plan["lora"]["narrow"]), (&json!(["lm_head"]), &json!(false)));
        assert!(files[0].text.contains("peft.get_peft_model"));
    }
    let zero = Config { precision: Precision::Mixed, sharding: Sharding::Zero3, data: 2, ..config() };
    compile(
        "lora-deepspeed",
        &of(Format::Half, zero).emit(Target::DeepSpeed).expect("adapters of DeepSpeed"),
    );
    compile("lora-accelerate", &of(nf4, config()).emit(Target::Accelerate).expect("adapters of Accelerate"));
    let refused =
        |format, more, target: Target| of(format, more).emit(target).expect_err("refused").to_string();
    assert!(refused(nf4, zero, Target::DeepSpeed).contains("cannot be sharded"));
    assert!(refused(Format::Fp8, config(), Target::Torch).contains("frozen weights in fp8"));
    let sharded = Config { sharding: Sharding::Fsdp, ..zero };
    assert!(refused(Format::Half, sharded, Target::Fsdp).contains("dtype=bf16"));
    let network = Recipe { model: network(), blocks: 8, ..of(Format::Half, config()) };
    assert!(network.emit(Target::Torch).expect_err("refused").to_string().contains("torchvision"));
    for optimizer in [Optimizer::PagedAdamW, Optimizer::PagedAdamW8bit] {
        let files = of(nf4, Config { optimizer, ..config() }).emit(Target::Torch).expect("paged");
        assert_eq!(compile("paged", &files)["optimizer"], json!(optimizer.name()));
        assert!(files[0].text.contains(&format!("\"{}\":", optimizer.name())), "make_optimizer knows it");
    }
}
