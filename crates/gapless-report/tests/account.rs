//! One account: phases, components, plans, text, JSON and files of an answer tell of the same run, over random
//! questions with every flag; and the least card that an answer names is the least.

#[path = "support/chance.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod chance;

use chance::Chance;
use gapless_fit::ask::{
    Adapters, Answer, Asked, Degrees, Emit, Estimate, Question, Wishes, ask, files, terms,
};
use gapless_fit::emit::Target;
use gapless_fit::formulas::sharding::Sharding;
use gapless_fit::formulas::weights::Format;
use gapless_fit::search::space::Offload;
use gapless_fit::settings::{Checkpointing, Engine, Lora, LoraTargets, Names, Optimizer, Precision};
use gapless_trace::Bytes;
use serde_json::Value;
use std::path::Path;

const QUESTIONS: u64 = 320;

const LLAMA: &str = r#""model_type":"llama","hidden_size":512,"intermediate_size":1408,"num_hidden_layers":4,"num_attention_heads":8,"num_key_value_heads":4,"vocab_size":8000"#;
const MODELS: &[&str] = &[
    r#""model_type":"gpt2","n_embd":384,"n_layer":3,"n_head":6,"vocab_size":6000"#,
    r#""model_type":"qwen3_moe","hidden_size":256,"intermediate_size":512,"moe_intermediate_size":128,"num_experts":8,"num_experts_per_tok":2,"num_hidden_layers":3,"num_attention_heads":8,"num_key_value_heads":4,"head_dim":32,"vocab_size":5000"#,
    r#""model_type":"deepseek_v3","hidden_size":256,"intermediate_size":512,"moe_intermediate_size":128,"n_routed_experts":8,"num_experts_per_tok":2,"n_group":2,"topk_group":1,"num_hidden_layers":3,"first_k_dense_replace":1,"num_attention_heads":8,"q_lora_rank":64,"kv_lora_rank":32,"qk_rope_head_dim":16,"qk_nope_head_dim":32,"v_head_dim":32,"vocab_size":4000"#,
    r#""model_type":"gpt_oss","hidden_size":256,"intermediate_size":256,"num_hidden_layers":3,"num_attention_heads":8,"num_key_value_heads":4,"head_dim":32,"num_local_experts":4,"num_experts_per_tok":2,"vocab_size":5000"#,
    r#""model_type":"bert","hidden_size":256,"num_hidden_layers":3,"num_attention_heads":4,"intermediate_size":1024,"vocab_size":5000"#,
];
const QUANTIZED: &[&str] = &[
    r#"{"quant_method":"gptq","bits":4,"group_size":128}"#,
    r#"{"quant_method":"awq","bits":4,"group_size":64,"version":"gemm"}"#,
    r#"{"quant_method":"bitsandbytes","load_in_4bit":true,"bnb_4bit_quant_type":"nf4","bnb_4bit_use_double_quant":true}"#,
    r#"{"quant_method":"bitsandbytes","load_in_8bit":true,"llm_int8_skip_modules":["lm_head"]}"#,
    r#"{"quant_method":"fp8","weight_block_size":[128,128],"activation_scheme":"dynamic"}"#,
    r#"{"quant_method":"mxfp4","modules_to_not_convert":["model.layers.*.self_attn"]}"#,
    r#"{"quant_method":"compressed-tensors","format":"pack-quantized","ignore":["lm_head"],"config_groups":{"group_0":{"targets":["Linear"],"weights":{"num_bits":4,"type":"int","strategy":"group","group_size":128,"symmetric":true}}}}"#,
    r#"{"quant_method":"modelopt","quant_algo":"NVFP4","ignore":["lm_head"]}"#,
];

fn question(chance: &mut Chance, folder: &Path, number: u64) -> (String, Asked) {
    let keys = if chance.once_in(2) { LLAMA } else { chance.pick(MODELS) };
    let quantized = chance.once_in(3).then(|| chance.pick(QUANTIZED));
    let more = quantized.map_or_else(String::new, |text| format!(",\"quantization_config\":{text}"));
    let path = folder.join(format!("{number}.json"));
    std::fs::write(&path, format!("{{{keys}{more}}}")).expect("written");
    let infer = chance.once_in(3);
    let mut asked = Asked {
        infer,
        batch: Some(chance.pick(&[1, 2, 4, 8])),
        seq: Some(chance.pick(&[64, 128, 512])),
        gpu: Some(chance.pick(&["h200", "a100-80", "4090", "t4", "b200", "mi300x"]).to_owned()),
        memory: chance.pick(&[None, Some(Bytes(1 << 30)), Some(Bytes(2 << 30)), Some(Bytes(1500 << 20))]),
        attention: None,
        ..Asked::default()
    };
    if infer {
        asked.engine =
            chance.pick(&[None, Some(Engine::Vllm), Some(Engine::Sglang), Some(Engine::Transformers)]);
        if chance.once_in(3) {
            let formats =
                [Format::Int8, Format::Int4(128), Format::Nf4, Format::Fp8, Format::Mxfp4, Format::Half];
            asked.quantize = Some(chance.pick(&formats));
        }
        if chance.once_in(3) {
            asked.kv_tokens = Some(chance.pick(&[1024, 65_536]));
        }
        asked.sparse = chance.once_in(8);
    } else {
        asked.precision = chance.pick(&[
            None,
            None,
            Some(Precision::Fp32),
            Some(Precision::AmpBf16),
            Some(Precision::Mixed),
        ]);
        if chance.once_in(2) {
            asked.optimizer = Some(chance.pick(&Optimizer::ALL));
        }
        asked.checkpointing = chance.pick(&[None, Some(Checkpointing::Full), Some(Checkpointing::Optimal)]);
        if chance.once_in(2) {
            let names = Names::of("q_proj").unwrap_or_default().with(Names::of("c_attn").unwrap_or_default());
            let lora = Lora {
                rank: chance.pick(&[4, 16]),
                targets: chance.pick(&[LoraTargets::All, LoraTargets::QueryValue, LoraTargets::Only(names)]),
                narrow: chance.once_in(2),
                dora: chance.once_in(4),
                dropout: chance.once_in(4),
                save_head: chance.once_in(6),
                save_embedding: false,
            };
            let bases = [Format::Half, Format::Half, Format::Nf4, Format::Nf4Double, Format::Int8];
            asked.adapters = Some(Adapters { lora, base: chance.pick(&bases) });
        }
        if chance.once_in(4) {
            asked.grad_accum = Some(chance.pick(&[2, 4]));
        }
        if chance.once_in(6) {
            asked.offload = Some(Offload { optimizer: true, ..Offload::default() });
        }
    }
    if chance.once_in(3) {
        asked.gpus = Some(chance.pick(&[2, 4]));
        if chance.once_in(2) {
            asked.degrees = Degrees { tensor: chance.pick(&[None, Some(1), Some(2)]), ..Degrees::default() };
        }
        if !infer && chance.once_in(3) {
            asked.zero = Some(chance.pick(&[Sharding::Zero2, Sharding::Zero3, Sharding::Fsdp]));
        }
    }
    (path.display().to_string(), asked)
}

fn one_account(e: &Estimate, what: &str) {
    let sum: u64 = e.components.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(sum, e.peak_allocated.0, "{what}: components");
    for (phase, _, peak) in e.shape.iter().flat_map(|shape| &shape.phases) {
        assert!(*peak <= e.peak_allocated.0, "{what}: {phase} {peak} of {}", e.peak_allocated);
    }
    if let Some(shape) = &e.shape {
        let most = shape.phases.iter().map(|(_, _, peak)| *peak).max().unwrap_or(0);
        assert!(shape.most.iter().all(|bytes| *bytes <= most), "{what}: the chart is above its phases");
    }
}

fn check(q: &Question, answer: &Answer, what: &str) {
    let e = answer.estimate.as_ref();
    if let Some(e) = e {
        one_account(e, what);
    }
    for row in answer.plans.iter().flat_map(|plans| &plans.rows) {
        let own = row.estimate.as_ref().unwrap_or_else(|| panic!("{what}: a plan without an account"));
        one_account(own, what);
        assert_eq!(own.process_total(), row.process_total, "{what}");
    }
    let terms = terms(q, answer).unwrap_or_else(|error| panic!("{what}: {}", error.what));
    let json: Value =
        serde_json::from_str(&gapless_report::fit::json(q, answer, Some(&terms)).expect("JSON"))
            .expect("JSON");
    let text = gapless_report::fit::text(q, answer, None, false);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some(e) = e {
        assert_eq!(json["peak_allocated"], e.peak_allocated.0, "{what}");
        assert_eq!(json["process_total"], e.process_total().0, "{what}");
        for bytes in [e.peak_allocated, e.peak_reserved, e.process_total()] {
            assert!(text.contains(&bytes.to_string()), "{what}: {bytes} is not in the text\n{text}");
        }
        let phases = json["phases"].as_array().expect("a list");
        assert!(phases.iter().all(|p| p["peak"].as_u64() <= json["peak_allocated"].as_u64()), "{what}");
        // A term named after a component has its value.
        for (name, bytes) in &e.components {
            let term = terms.iter().find(|term| term.name == *name);
            if let Some(term) = term.filter(|_| e.simulated.is_some()) {
                assert_eq!(term.value, *bytes, "{what}: {name}");
            }
        }
        states(q, e, &terms, what);
    }
    if let Some(least) = answer.plans.as_ref().and_then(|plans| plans.least_needed) {
        assert_eq!(json["search"]["least_needed"], least, "{what}");
        if answer.plans.as_ref().is_some_and(|plans| plans.rows.is_empty()) {
            assert!(text.contains(&Bytes(least).to_string()), "{what}: the least is not in the text");
            let plans = answer.plans.as_ref().expect("plans");
            let refused = answer.estimate.is_none() && least <= q.memory().0;
            assert_eq!(
                plans.share.is_some(),
                refused && !q.trains(),
                "{what}: {} would be enough",
                Bytes(least)
            );
        }
    }
}

/// Equations of states and gradients give their values, up to rounding and the counters of single tensors.
fn states(q: &Question, e: &Estimate, terms: &[gapless_fit::formulas::Term], what: &str) {
    if e.simulated.is_none() || q.run.lora.is_none() {
        return;
    }
    let of = |name: &str, symbol: &str| {
        let term = terms.iter().find(|term| term.name == name)?;
        Some((term.value as f64, term.inputs.iter().find(|(known, _)| *known == symbol)?.1))
    };
    if let (Some((value, k)), Some((_, a))) = (of("optimizer_state", "k"), of("optimizer_state", "A")) {
        let input = |symbol| of("optimizer_state", symbol).map_or(0.0, |(_, input)| input);
        let whole = input("k_S") * input("S");
        let simple =
            matches!(q.run.optimizer, Optimizer::AdamW | Optimizer::AmsGrad | Optimizer::SgdMomentum);
        if simple {
            assert!(
                (value - k * a - whole).abs() <= 0.01 * value,
                "{what}: {value} is not {k} x {a} + {whole}"
            );
        }
    }
}

/// The least over open settings equals the least over these settings asked for one by one.
fn minimum(path: &str, asked: &Asked, what: &str) -> bool {
    let least = |asked: &Asked| -> Option<u64> {
        let q = Question::read(path, asked).ok()?;
        let answer = ask(&q, &Wishes::default()).ok()?;
        let plans = answer.plans?;
        plans.rows.is_empty().then_some(plans.least_needed)?
    };
    let gpus = asked.gpus.unwrap_or(1);
    let open = asked.degrees == Degrees::default() && asked.zero.is_none() && gpus > 1;
    let paged = matches!(asked.engine, Some(Engine::Vllm | Engine::Sglang));
    let Some(all) = least(asked).filter(|_| open && asked.infer && paged) else { return false };
    let single = [1, 2, 4, 8].into_iter().filter(|t| gpus.is_multiple_of(*t)).flat_map(|tensor| {
        let pipelines = [1, 2, 4].into_iter().filter(move |p| gpus.is_multiple_of(tensor * p));
        pipelines.map(move |pipeline| (tensor, pipeline))
    });
    let each: Vec<u64> = single
        .filter_map(|(tensor, pipeline)| {
            let degrees = Degrees { tensor: Some(tensor), pipeline: Some(pipeline), ..Degrees::default() };
            least(&Asked { degrees, ..asked.clone() })
        })
        .collect();
    assert_eq!(each.iter().min(), Some(&all), "{what}: {each:?}");
    true
}

/// The card that an answer names is enough if it is asked for, and one of less than the least is not.
fn named_card(path: &str, asked: &Asked, answer: &Answer, what: &str) -> bool {
    let Some(plans) = answer.plans.as_ref().filter(|plans| plans.rows.is_empty()) else { return false };
    let Some((card, least)) = plans.least_card.zip(plans.least_needed) else {
        assert_eq!(plans.least_needed, None, "{what}: no card is named");
        return false;
    };
    assert!(card > least, "{what}: {card} for {least}");
    let holds = |memory: u64| {
        let q = Question::read(path, &Asked { memory: Some(Bytes(memory)), ..asked.clone() })
            .expect("a question");
        let answer = ask(&q, &Wishes::default()).expect("an answer");
        answer.fits || answer.fits_with().is_some()
    };
    // A person asks for what the text shows.
    let shown: Bytes = Bytes(card).to_string().replace(' ', "").parse().expect("a size");
    assert!(holds(card) && holds(shown.0), "{what}: {} is not enough", Bytes(card));
    assert!(!holds(least - least / 50), "{what}: less than {} is enough", Bytes(least));
    true
}

/// Files of `--emit` agree with the answer.
fn written(q: &Question, path: &str, asked: &Asked, what: &str) -> u64 {
    if asked.infer {
        return 0;
    }
    let mut count = 0;
    for target in [Target::Torch, Target::Fsdp, Target::DeepSpeed, Target::Accelerate] {
        let emit = Emit::Train(target);
        let Ok(q) = Question::read(path, &Asked { emit: Some(emit), ..asked.clone() }) else { continue };
        let Ok(answer) = ask(&q, &Wishes { emit: Some(emit), ..Wishes::default() }) else { continue };
        let Ok(list) = files(&q, &answer, emit) else { continue };
        let script = list.iter().find(|file| file.name.ends_with(".py")).expect("a script");
        let (_, rest) = script.text.split_once("PLAN = json.loads(r'''").expect("a plan");
        let plan: Value = serde_json::from_str(rest.split_once("''')").expect("its end").0).expect("JSON");
        assert_eq!(plan["optimizer"], q.run.optimizer.name(), "{what}: {target:?}");
        let e = answer.estimate.as_ref();
        if let (Some(peak), Some(e), None) = (plan["predicted_peak_allocated"].as_u64(), e, &answer.plans) {
            assert_eq!(peak, e.peak_allocated.0, "{what}: {target:?}");
        }
        assert_eq!(plan["lora"].is_null(), q.run.lora.is_none(), "{what}: {target:?}");
        let settings = list.iter().find(|file| file.name == "ds_config.json");
        if let Some(kind) = settings
            .and_then(|file| serde_json::from_str::<Value>(&file.text).ok())
            .and_then(|json| json["optimizer"]["type"].as_str().map(str::to_lowercase))
        {
            assert!(q.run.optimizer.name().starts_with(&kind), "{what}: {kind}");
        }
        count += 1;
    }
    let _ = q;
    count
}

#[test]
fn random_questions_have_one_account() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("account");
    std::fs::create_dir_all(&folder).expect("a folder");
    // Other questions: ACCOUNT_SEED=18 cargo test -p gapless-report --test account
    let seed = std::env::var("ACCOUNT_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut chance = Chance(seed.unwrap_or(23));
    let (mut answered, mut refused, mut adapted, mut quantised, mut least, mut emitted) = (0, 0, 0, 0, 0, 0);
    let mut named = 0;
    while answered < QUESTIONS {
        let (path, asked) = question(&mut chance, &folder, answered + refused);
        let what = format!("{path} {asked:?}");
        let Ok(q) = Question::read(&path, &asked) else {
            refused += 1;
            continue;
        };
        let wishes = Wishes { top: 3, optimize: chance.once_in(6), ..Wishes::default() };
        let Ok(answer) = ask(&q, &wishes) else {
            refused += 1;
            continue;
        };
        check(&q, &answer, &what);
        answered += 1;
        adapted += u64::from(q.run.lora.is_some());
        quantised += u64::from(q.stored.is_some());
        least += u64::from(minimum(&path, &asked, &what));
        named += u64::from(named_card(&path, &asked, &answer, &what));
        if chance.once_in(3) {
            emitted += written(&q, &path, &asked, &what);
        }
    }
    assert!(
        adapted > 60 && quantised > 60,
        "{adapted} with adapters, {quantised} quantised, {refused} refused"
    );
    assert!(emitted > 40 && least > 3, "{emitted} written down, {least} minima");
    assert!(named > 10, "{named} cards named");
}

#[test]
fn the_least_of_405b_on_eight_cards_is_that_of_all_degrees() {
    let asked = |tensor| Asked {
        infer: true,
        engine: Some(Engine::Vllm),
        gpus: Some(8),
        gpu: Some("h100".to_owned()),
        degrees: Degrees { tensor, ..Degrees::default() },
        ..Asked::default()
    };
    let least = |tensor| {
        let q = Question::read("llama-3.1-405b", &asked(tensor)).expect("a question");
        let wishes = Wishes::default();
        ask(&q, &wishes)
            .expect("an answer")
            .plans
            .and_then(|plans| plans.least_needed)
            .expect("it does not fit")
            >> 30
    };
    assert!(least(None) <= least(Some(8)) && least(None) > 90, "{} and {}", least(None), least(Some(8)));
}

#[test]
fn a_share_that_is_enough_is_enough_and_a_hundredth_less_is_not() {
    let asked = |utilization| Asked {
        infer: true,
        engine: Some(Engine::Vllm),
        gpu: Some("h100".to_owned()),
        batch: Some(8),
        seq: Some(8192),
        utilization,
        ..Asked::default()
    };
    let plans = |utilization| {
        let q = Question::read("gpt-oss-120b", &asked(utilization)).expect("a question");
        ask(&q, &Wishes::default()).expect("an answer").plans.expect("plans")
    };
    let share = plans(None).share.expect("90 % of the card is too small");
    let enough = share.enough.expect("the card is large enough");
    assert!(share.taken < enough, "{share:?}");
    assert!(!plans(Some(enough)).rows.is_empty() && plans(Some(enough - 0.01)).rows.is_empty(), "{share:?}");
}
