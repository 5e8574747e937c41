//! `gapless fit` as a user runs it: accounts, plans, written files, and refusals.

mod support;

use serde_json::Value;
use std::fs;
use std::io::Write;
use support::{Run, run, run_in, schema, shown};

fn json(args: &[&str]) -> (i32, Value) {
    let mut all = vec!["fit"];
    all.extend_from_slice(args);
    all.extend_from_slice(&["--format", "json"]);
    let done = run(&all);
    assert!(done.code < 2, "{args:?}: {}", done.err);
    (done.code, serde_json::from_str(&done.out).expect("JSON"))
}

fn refused(args: &[&str]) -> Run {
    let mut all = vec!["fit"];
    all.extend_from_slice(args);
    let done = run(&all);
    assert_eq!((done.code, done.out.as_str()), (2, ""), "{args:?}: {}", done.err);
    assert!(done.err.contains("error: ") && done.err.contains("help: "), "{args:?}: {}", done.err);
    done
}

#[test]
fn an_account_says_the_verdict_first_and_then_where_every_byte_goes() {
    insta::assert_snapshot!(shown(&run(&["fit", "gpt2", "--batch", "4", "--seq", "512", "--gpu", "4090"])));
}

#[test]
fn json_keeps_its_contract() {
    for args in [
        &["gpt2", "--batch", "2", "--seq", "512"][..],
        &["gpt2", "--infer", "--kv-tokens", "4096", "--quantize", "int8"],
        &["llama-3.2-1b", "--batch", "8", "--memory", "24GiB"],
        &["llama-3.2-1b", "--gpus", "8", "--gpu", "4090", "--why"],
        &["llama-3-8b", "--gpus", "4", "--tp", "2", "--zero", "1"],
        &["resnet18", "--image", "64", "--max-batch", "--memory", "2GiB"],
        &["llama-3-70b", "--infer", "--gpus", "2", "--gpu", "h100"],
        &["llama-3-8b", "--lora", "r=16,base=nf4", "--gpu", "t4"],
        &["vit_b_16", "--optimize"],
        &["llama-3.1-405b", "--gpus", "8", "--gpu", "h100"],
        &["gpt-oss-20b", "--infer", "--engine", "vllm", "--gpu", "h100"],
        &["llama-3-8b", "--infer", "--engine", "sglang", "--gpu", "h100", "--batch", "8"],
        &["gpt2", "--infer", "--engine", "transformers"],
        &["llama-3-8b", "--offload", "optimizer", "--gpu", "h100", "--host-memory", "1GiB"],
    ] {
        let (code, value) = json(args);
        let wrong = schema::against("fit", &value);
        assert!(wrong.is_empty(), "{args:?}: {wrong:#?}");
        assert_eq!(code == 0, value["fits"] == true, "{args:?}");
        if let (Some(sum), Some(parts)) = (value["peak_allocated"].as_u64(), value["components"].as_object())
        {
            assert_eq!(
                parts.values().filter_map(Value::as_u64).sum::<u64>(),
                sum,
                "{args:?}: components add up"
            );
            assert!(value["peak_reserved"].as_u64() >= Some(sum), "{args:?}");
            assert!(value["process_total"].as_u64() > value["peak_reserved"].as_u64(), "{args:?}");
        }
    }
}

#[test]
fn what_does_not_fit_gets_plans_that_do_cheapest_first() {
    let (code, value) = json(&["llama-3.2-1b", "--batch", "8", "--seq", "2048", "--memory", "24GiB"]);
    assert_eq!((code, &value["fits"]), (1, &Value::Bool(false)));
    let plans = value["plans"].as_array().expect("plans");
    assert!(!plans.is_empty());
    let costs: Vec<f64> = plans.iter().map(|p| p["seconds"].as_f64().expect("a cost")).collect();
    assert!(costs.is_sorted(), "{costs:?}");
    for plan in plans {
        assert!(plan["process_total"].as_u64() <= Some(24 << 30), "{plan:#}");
    }
    let search = &value["search"];
    assert!(search["simulated"].as_u64() > Some(0), "one GPU is simulated exactly");
}

#[test]
fn automatic_checkpointing_recomputes_as_few_blocks_as_fit() {
    let ask = |memory: &str| {
        json(&["gpt2", "--batch", "8", "--seq", "1024", "--checkpointing", "auto", "--memory", memory]).1
    };
    let (wide, narrow) = (ask("40GiB"), ask("9GiB"));
    assert_eq!(wide["recomputed"].as_array().map(Vec::len), Some(0));
    let again = narrow["recomputed"].as_array().map_or(0, Vec::len);
    assert!((1..=12).contains(&again) && narrow["fits"] == true, "{narrow:#}");
    assert!(narrow["process_total"].as_u64() <= Some(9 << 30));
}

#[test]
fn the_largest_batch_fits_and_one_more_does_not() {
    let at = |batch: &str| {
        json(&["gpt2", "--batch", batch, "--seq", "512", "--memory", "12GiB"]).1["fits"].clone()
    };
    let (_, value) = json(&["gpt2", "--seq", "512", "--memory", "12GiB", "--max-batch"]);
    let most = value["max_batch"].as_u64().expect("a batch");
    assert!(most > 1);
    assert_eq!(at(&most.to_string()), true);
    assert_eq!(at(&(most + 1).to_string()), false);
}

#[test]
fn an_emitted_script_carries_the_peak_that_was_simulated_for_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("plan");
    let name = out.to_str().expect("UTF-8");
    let args = [
        "fit", "gpt2", "--batch", "16", "--seq", "1024", "--memory", "12GiB", "--emit", "torch", "--out",
        name, "--format", "json",
    ];
    let done = run(&args);
    assert_eq!(done.code, 1, "what was asked for does not fit: {}", done.err);
    let value: Value = serde_json::from_str(&done.out).expect("JSON");
    let script = fs::read_to_string(out.join("train.py")).expect("a script");
    let peak = value["plans"][0]["peak_allocated"].as_u64().expect("simulated");
    assert!(script.contains(&format!("\"predicted_peak_allocated\": {peak}")));
    let config = folder.path().join("config.json");
    fs::write(&config, r#"{"model_type":"resnet"}"#).expect("written");
    let done = run(&["fit", &config.display().to_string(), "--emit", "torch"]);
    assert_eq!(done.code, 2);
    assert!(done.err.contains("followed as torchvision runs it"), "{}", done.err);
}

#[test]
fn a_script_for_torchvision_names_the_network_and_the_blocks_that_were_simulated() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, memory, blocks) in
        [("resnet50", "5GiB", 16), ("vit_b_16", "9GiB", 12), ("convnext_base", "12GiB", 36)]
    {
        let out = folder.path().join(name).display().to_string();
        let given = ["fit", name, "--batch", "128", "--precision", "amp-bf16", "--memory", memory];
        let emitted = [
            &given[..],
            &["--grad-accum", "1", "--optimize", "--emit", "torch", "--out", &out, "--format", "json"],
        ]
        .concat();
        let done = run(&emitted);
        assert!(done.code < 2, "{}", done.err);
        let script = fs::read_to_string(folder.path().join(name).join("train.py")).expect("written");
        let value = |before: &str| -> Value {
            let (_, rest) = script.split_once(before).expect(before);
            serde_json::from_str(rest.split_once("''')").expect("its end").0).expect("JSON")
        };
        let (plan, config) = (value("PLAN = json.loads(r'''"), value("CONFIG = json.loads(r'''"));
        assert_eq!((&config["name"], &config["num_classes"]), (&name.into(), &1000.into()));
        assert_eq!(
            (&plan["blocks"], &plan["length"], &plan["autocast"]),
            (&blocks.into(), &224.into(), &true.into())
        );
        let recomputed = plan["recompute"].as_array().map_or(0, Vec::len);
        assert!((1..blocks).contains(&recomputed), "{name}: {recomputed} of {blocks}");
        // The script compares its measurement with the simulation of its own configuration.
        let answer: Value = serde_json::from_str(&done.out).expect("JSON");
        assert_eq!(plan["predicted_peak_allocated"], answer["plans"][0]["peak_allocated"], "{name}");
        assert!(plan["predicted_peak_allocated"].as_u64() < answer["peak_allocated"].as_u64(), "{name}");
    }
    // A configuration describes the network, but does not name torchvision's function for it.
    let config = folder.path().join("config.json");
    fs::write(&config, gapless_fit::read::preset_config("resnet18").expect("built in")).expect("written");
    let done = run(&["fit", &config.display().to_string(), "--emit", "torch"]);
    assert!(done.code == 2 && done.err.contains("which function of torchvision.models"), "{}", done.err);
    let done = run(&["fit", "resnet50", "--emit", "fsdp"]);
    assert!(done.code == 2 && done.err.contains("emit it for torch"), "{}", done.err);
    assert!(refused(&["vgg16", "--checkpointing", "full"]).err.contains("no blocks"));
}

#[test]
fn serving_plans_become_a_command_line() {
    let done = run(&["fit", "llama-3-70b", "--infer", "--gpus", "4", "--gpu", "h100", "--emit", "vllm"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(
        done.out.contains("vllm serve 'llama-3-70b'") && done.out.contains("--max-model-len 2048"),
        "{}",
        done.out
    );
}

#[test]
fn only_another_recipe_is_no_yes() {
    let (code, value) = json(&["llama-3.1-405b", "--gpus", "8", "--gpu", "h100"]);
    assert_eq!((code, &value["fits"]), (1, &Value::Bool(false)));
    assert_eq!(value["fits_with"]["keeps_recipe"], false, "{value:#}");
    let text = run(&["fit", "llama-3.1-405b", "--gpus", "8", "--gpu", "h100"]);
    assert!(text.code == 1 && text.out.contains("does not fit on h100"), "{}", text.out);
    assert!(text.out.contains("only another recipe fits, plan 1"), "{}", text.out);
    let (_, value) = json(&["llama-3-70b", "--gpus", "4", "--gpu", "h100"]);
    for plan in value["plans"].as_array().expect("plans") {
        let total =
            plan["process_total"].as_f64().expect("bytes") * (1.0 + plan["error"].as_f64().expect("a bar"));
        assert!(total <= value["device"]["memory"].as_f64().expect("bytes"), "{plan:#}");
    }
}

#[test]
fn a_host_that_is_too_small_is_told() {
    let args = ["llama-3-8b", "--offload", "optimizer", "--gpu", "h100", "--host-memory", "1GiB"];
    let (code, value) = json(&args);
    assert_eq!((code, &value["fits"]), (1, &Value::Bool(false)));
    assert!(value["host"].as_u64() > Some(1 << 30));
    let text = run(&[&["fit"], &args[..]].concat());
    assert!(text.out.contains("--host-memory"), "{}", text.out);
}

#[test]
fn an_engine_says_how_it_divides_the_card() {
    let ask = |engine: &str| {
        json(&["llama-3-8b", "--infer", "--engine", engine, "--gpu", "h100", "--batch", "8", "--seq", "8192"])
    };
    let (code, value) = ask("vllm");
    let serve = &value["plans"][0]["serve"];
    let number = |key: &str| serve[key].as_u64().expect(key);
    assert_eq!((code, number("block_size"), number("cache_per_token")), (0, 16, 131_072));
    assert_eq!(number("weight_bytes"), 2 * 8_030_261_248);
    assert_eq!(number("blocks") * 16, number("tokens"));
    assert!((400_000..480_000).contains(&number("tokens")), "{serve:#}");
    let (_, value) = ask("sglang");
    assert_eq!(value["plans"][0]["serve"]["block_size"], 1);
    // The head of generate() sees one token, that of a plain forward pass 8192.
    let plain = json(&["llama-3-8b", "--infer", "--batch", "8", "--seq", "8192"]).1;
    let (_, last) = ask("transformers");
    let less =
        plain["peak_allocated"].as_u64().expect("bytes") - last["peak_allocated"].as_u64().expect("bytes");
    assert!(less > 8 << 30, "{less} bytes");
}

#[test]
fn what_can_be_asked_by_name_is_listed_with_sizes() {
    let done = run(&["fit", "--list", "QWEN3-8b"]);
    assert_eq!((done.code, done.out.lines().count()), (0, 1), "{}", done.out);
    assert!(done.out.starts_with("qwen3-8b ") && done.out.contains("8,190,735,360"), "{}", done.out);
    assert!(run(&["fit", "--list"]).out.lines().count() > 200);
    assert_eq!(run(&["fit", "--list", "no-such-model"]).code, 2);
    let gpus = run(&["fit", "--gpus-list"]);
    assert!(gpus.code == 0 && gpus.out.lines().any(|line| line.starts_with("h200 ")), "{}", gpus.out);
}

#[test]
fn an_id_of_the_hub_gets_the_line_that_downloads_it() {
    let done = refused(&["someone/Some-Model-7B"]);
    assert!(
        done.err.contains("hf download someone/Some-Model-7B config.json --local-dir Some-Model-7B"),
        "{}",
        done.err
    );
    assert_eq!(
        run(&["fit", "meta-llama/Llama-3.2-1B", "--seq", "128"]).code,
        0,
        "a built-in one needs no download"
    );
}

#[test]
fn deepspeed_is_written_down_at_the_default_precision() {
    let done = run(&["fit", "gpt2", "--gpus", "2", "--gpu", "4090", "--emit", "deepspeed"]);
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.out.contains("zero_optimization") && done.out.contains("bf16"), "{}", done.out);
}

#[test]
fn two_settings_are_told_apart() {
    insta::assert_snapshot!(shown(&run(&[
        "fit",
        "gpt2",
        "--batch",
        "4",
        "--seq",
        "512",
        "--compare",
        "optimizer=adamw",
        "optimizer=sgd,batch=8"
    ])));
    let models = run(&["fit", "--seq", "128", "--compare", "gpt2", "opt-125m"]);
    assert_eq!(models.code, 0, "{}", models.err);
    assert!(models.out.contains("opt-125m"));
    assert_eq!(run(&["fit", "gpt2", "--compare", "batch=x", "batch=2"]).code, 2);
}

#[test]
fn why_names_equation_inputs_and_source() {
    let (_, value) = json(&["llama-3.2-1b", "--why"]);
    let why = value["why"].as_array().expect("terms");
    for name in ["weights", "optimizer_state", "loss_head", "peak allocated", "peak reserved", "context"] {
        let term = why.iter().find(|t| t["name"] == name).unwrap_or_else(|| panic!("{name} is explained"));
        assert!(
            term["equation"].as_str().is_some_and(|e| !e.is_empty())
                && term["source"].as_str().is_some_and(|s| !s.is_empty())
        );
    }
    let text = run(&["fit", "llama-3.2-1b", "--why"]).out;
    assert!(text.contains("Where the numbers come from"), "{text}");
}

#[test]
fn the_page_is_the_report_of_the_simulated_step() {
    let folder = tempfile::tempdir().expect("a folder");
    let done =
        run_in(folder.path(), &["fit", "gpt2", "--batch", "1", "--seq", "128", "--html", "step.html"], None);
    assert_eq!(done.code, 0, "{}", done.err);
    let page = fs::read_to_string(folder.path().join("step.html")).expect("a page");
    assert!(page.contains("<html") && page.contains("gpt2"));
}

#[test]
fn wrong_questions_get_an_error_that_says_what_to_do() {
    let mut all = String::new();
    for args in [
        &["gpt2", "--batch", "0"][..],
        &["gpt2", "--seq", "4096"],
        &["gtp2"],
        &["gpt2", "--gpu", "h2000"],
        &["gpt2", "--infer", "--optimizer", "sgd"],
        &["gpt2", "--quantize", "int4"],
        &["gpt2", "--kv-tokens", "100"],
        &["gpt2", "--image", "224"],
        &["resnet50", "--seq", "128"],
        &["vit_b_16", "--image", "225"],
        &["gpt2", "--gpus", "8", "--tp", "3"],
        &["llama-3-8b", "--gpus", "8", "--tp", "5", "--dp", "1"],
        &["gpt2", "--gpus", "5", "--tp", "5"],
        &["gpt2", "--gpus", "4", "--ep", "4"],
        &["gpt2", "--zero", "3"],
        &["gpt2", "--lora", "r=0"],
        &["gpt2", "--memory", "lots"],
        &["gpt2", "--precision", "fp8"],
        &["--seq", "128"],
    ] {
        let done = refused(args);
        all += &format!("gapless fit {}\n{}\n", args.join(" "), done.err);
    }
    insta::assert_snapshot!(all);
}

#[test]
fn broken_files_are_refused_with_what_and_where() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    };
    let unknown = write("config.json", br#"{"model_type": "martian", "hidden_size": 64}"#);
    let done = refused(&[&unknown]);
    for word in ["\"martian\" is not known", "nearest known type", "gapless.estimate", ".pt2"] {
        assert!(done.err.contains(word), "{word}: {}", done.err);
    }
    let cut = write("cut.safetensors", &[0, 16, 0, 0, 0, 0, 0, 0, b'{', b'"']);
    assert!(refused(&[&cut]).err.contains("ends at byte"));
    let cut = write("cut.gguf", b"GGUF\x03\x00\x00\x00\x10\x00");
    assert!(refused(&[&cut]).err.contains("ends at byte"));
    let bomb = write("bomb.pt2", &bomb());
    let done = refused(&[&bomb]);
    assert!(done.err.contains("bomb.pt2"), "{}", done.err);
}

#[test]
fn weights_of_an_unknown_architecture_are_still_exact() {
    let folder = tempfile::tempdir().expect("a folder");
    let header = br#"{"w":{"dtype":"BF16","shape":[4,8],"data_offsets":[0,64]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header);
    bytes.extend_from_slice(&[0; 64]);
    fs::write(folder.path().join("model.safetensors"), bytes).expect("written");
    fs::write(folder.path().join("config.json"), br#"{"model_type": "martian"}"#).expect("written");
    let done = refused(&[folder.path().to_str().expect("UTF-8")]);
    assert!(done.err.contains("32 parameters") && done.err.contains("64 B"), "{}", done.err);
}

/// A zip whose one member claims to unpack to far more than its size: an archive of `models/model.json`.
fn bomb() -> Vec<u8> {
    let name = b"bomb/models/model.json";
    let mut body = Vec::new();
    // 4 GiB - 2 of zeros in a few bytes, as its header claims. The bytes are not a valid deflate stream of that size.
    body.extend_from_slice(&[0x4b, 0x4c, 0x04, 0x00]);
    let mut zip = Vec::new();
    let field = |zip: &mut Vec<u8>| {
        let _ = zip.write_all(&20u16.to_le_bytes());
        let _ = zip.write_all(&[0, 0]);
        let _ = zip.write_all(&8u16.to_le_bytes());
        let _ = zip.write_all(&[0; 8]);
        let _ = zip.write_all(&4u32.to_le_bytes());
        let _ = zip.write_all(&0xffff_fffeu32.to_le_bytes());
        let _ = zip.write_all(&(name.len() as u16).to_le_bytes());
        let _ = zip.write_all(&[0, 0]);
    };
    zip.extend_from_slice(b"PK\x03\x04");
    field(&mut zip);
    zip.extend_from_slice(name);
    zip.extend_from_slice(&body);
    let directory = zip.len() as u32;
    zip.extend_from_slice(b"PK\x01\x02");
    zip.extend_from_slice(&20u16.to_le_bytes());
    field(&mut zip);
    zip.extend_from_slice(&[0; 14]);
    zip.extend_from_slice(name);
    let size = zip.len() as u32 - directory;
    zip.extend_from_slice(b"PK\x05\x06\0\0\0\0\x01\0\x01\0");
    zip.extend_from_slice(&size.to_le_bytes());
    zip.extend_from_slice(&directory.to_le_bytes());
    zip.extend_from_slice(&[0, 0]);
    zip
}

#[test]
fn figures_stay_as_they_are() {
    for line in include_str!("fit_figures.txt").lines().filter(|line| !line.starts_with('#')) {
        let (question, _) = line.split_once(" | ").expect("a question and its figures");
        let (_, value) = json(&question.split(' ').collect::<Vec<_>>());
        let plans = value["plans"].as_array().expect("plans");
        let first = plans.first().map_or("-", |plan| plan["plan"].as_str().expect("in words"));
        let figure = |key: &str| value[key].to_string();
        let found = [
            question.to_owned(),
            figure("fits"),
            figure("peak_allocated"),
            figure("peak_reserved"),
            figure("process_total"),
            plans.len().to_string(),
            first.to_owned(),
        ];
        assert_eq!(found.join(" | "), line);
    }
}
