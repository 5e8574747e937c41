//! `config.json` and names: defaults of transformers, and errors that name the fault and its place.

use gapless_fit::model::{Activation, Architecture, Attention, Decoder, DecoderStyle, Dtype, Vision};
use gapless_fit::{parameters, read};

fn decoder(text: &str) -> Decoder {
    match read::config("config.json", text.as_bytes()).unwrap_or_else(|error| panic!("{error}")).architecture
    {
        Some(Architecture::Decoder(decoder)) => decoder,
        other => panic!("{other:?}"),
    }
}

fn refused(text: &str) -> String {
    read::config("config.json", text.as_bytes()).expect_err("it is refused").to_string()
}

#[test]
fn counts_equal_those_that_the_measured_models_reported() {
    for (text, count) in [
        (
            r#"{"model_type":"llama","hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,"num_key_value_heads":12,
                "intermediate_size":3072,"vocab_size":32000}"#,
            162_417_408,
        ),
        (
            r#"{"model_type":"llama","hidden_size":2048,"num_hidden_layers":16,"num_attention_heads":32,"num_key_value_heads":8,
                "intermediate_size":8192,"vocab_size":128256,"tie_word_embeddings":true,"head_dim":64}"#,
            1_235_814_400,
        ),
        (
            r#"{"model_type":"mixtral","hidden_size":1024,"num_hidden_layers":8,"num_attention_heads":16,"num_key_value_heads":4,
                "intermediate_size":2816,"vocab_size":32000,"num_local_experts":8,"num_experts_per_tok":2}"#,
            640_238_592,
        ),
    ] {
        assert_eq!(parameters::count(&Architecture::Decoder(decoder(text))), Some(count), "{text}");
    }
}

#[test]
fn missing_keys_take_the_defaults_of_their_family() {
    let llama = decoder(r#"{"model_type":"llama"}"#);
    assert_eq!((llama.hidden, llama.kv_heads, llama.head_dim, llama.max_positions), (4096, 32, 128, 2048));
    assert_eq!((llama.attention, llama.dtype, llama.tied), (Attention::Sdpa, None, false));
    let gemma = decoder(
        r#"{"model_type":"gemma","hidden_size":2048,"num_attention_heads":8,"num_key_value_heads":1}"#,
    );
    assert_eq!((gemma.head_dim, gemma.tied, gemma.activation), (256, true, Activation::GeluTanh));
    let qwen3 = decoder(
        r#"{"model_type":"qwen3","hidden_size":1024,"num_attention_heads":16,"num_key_value_heads":8}"#,
    );
    assert_eq!((qwen3.head_dim, qwen3.sliding_window), (128, None));
    let gpt2 = decoder(r#"{"model_type":"gpt2"}"#);
    assert_eq!((gpt2.intermediate, gpt2.activation, gpt2.residual_dropout), (3072, Activation::GeluNew, 0.1));
    let neox = decoder(r#"{"model_type":"gpt_neox"}"#);
    assert_eq!((neox.head_dim, neox.rotary_dim, neox.parallel_residual), (96, 24, true));
}

#[test]
fn dtype_and_attention_are_those_that_the_file_names() {
    let text = r#"{"model_type":"llama","torch_dtype":"bfloat16","attn_implementation":"eager"}"#;
    assert_eq!((decoder(text).dtype, decoder(text).attention), (Some(Dtype::Bf16), Attention::Eager));
    let text = r#"{"model_type":"llama","dtype":"float16","_attn_implementation":"flash_attention_2"}"#;
    assert_eq!((decoder(text).dtype, decoder(text).attention), (Some(Dtype::F16), Attention::Flash));
}

#[test]
fn windows_slide_where_the_family_lets_them() {
    let slides = |text: &str| (decoder(text).sliding_window, decoder(text).sliding_pattern);
    assert_eq!(slides(r#"{"model_type":"mistral"}"#), (Some(4096), 1));
    assert_eq!(slides(r#"{"model_type":"mistral","sliding_window":null}"#), (None, 1));
    assert_eq!(slides(r#"{"model_type":"gemma2"}"#), (Some(4096), 2));
    assert_eq!(slides(r#"{"model_type":"gemma3_text","sliding_window":512}"#), (Some(512), 6));
    assert_eq!(slides(r#"{"model_type":"qwen2","sliding_window":4096}"#), (None, 1));
    assert_eq!(
        slides(r#"{"model_type":"qwen2","use_sliding_window":true,"max_window_layers":0}"#),
        (Some(4096), 1)
    );
    let text = r#"{"model_type":"gemma3_text","num_hidden_layers":4,
        "layer_types":["sliding_attention","full_attention","sliding_attention","full_attention"]}"#;
    assert_eq!(slides(text), (Some(4096), 2));
    let text = r#"{"model_type":"qwen2","use_sliding_window":true,"max_window_layers":28}"#;
    let model = read::config("config.json", text.as_bytes()).expect("reads");
    assert!(model.notes.iter().any(|note| note.contains("no regular pattern")), "{:?}", model.notes);
}

#[test]
fn gemma_3_without_a_vision_tower_is_its_text_part() {
    let text = r#"{"model_type":"gemma3","torch_dtype":"bfloat16","text_config":{"model_type":"gemma3_text","hidden_size":2560,
        "intermediate_size":10240,"num_hidden_layers":34,"sliding_window":1024}}"#;
    let model = read::config("config.json", text.as_bytes()).expect("reads");
    assert!(model.notes[0].contains("the text part of \"gemma3\" alone"));
    let gemma = decoder(text);
    assert_eq!((gemma.style, gemma.layers, gemma.dtype), (DecoderStyle::Gemma3, 34, Some(Dtype::Bf16)));
}

#[test]
fn a_language_model_within_another_is_found() {
    let text = r#"{"model_type":"llava","text_config":{"model_type":"llama","num_hidden_layers":3},"architectures":["LlavaForConditionalGeneration"]}"#;
    assert_eq!((decoder(text).style, decoder(text).layers), (DecoderStyle::Llama, 3));
}

#[test]
fn a_model_that_also_sees_or_hears_is_not_answered_as_its_text() {
    for (kind, part) in
        [("llava", "vision_config"), ("qwen2_audio", "audio_config"), ("gemma3", "vision_config")]
    {
        let text = format!(
            r#"{{"model_type":"{kind}","text_config":{{"model_type":"llama"}},"{part}":{{"model_type":"siglip"}}}}"#
        );
        let error = read::config("config.json", text.as_bytes()).expect_err("it is refused").to_string();
        assert!(
            error.contains(kind) && error.contains(part) && error.contains("more than its text"),
            "{error}"
        );
    }
    // Keys that describe no part of the model change nothing.
    let text = r#"{"model_type":"llava","text_config":{"model_type":"llama","num_hidden_layers":3},
        "quantization_config":{"quant_method":"awq"}}"#;
    assert_eq!(decoder(text).layers, 3);
}

#[test]
fn heads_that_do_not_divide_the_width_are_refused_by_every_family() {
    for text in [
        r#"{"model_type":"bart","decoder_attention_heads":31}"#,
        r#"{"model_type":"bart","d_model":8}"#,
        r#"{"model_type":"whisper","encoder_attention_heads":5}"#,
        r#"{"model_type":"gpt_bigcode","n_head":255}"#,
        r#"{"model_type":"codegen","n_embd":31}"#,
        r#"{"model_type":"distilbert","n_heads":7}"#,
    ] {
        let error = read::config("config.json", text.as_bytes()).expect_err(text).to_string();
        assert!(error.contains("heads"), "{text}: {error}");
    }
}

#[test]
fn another_head_is_noted_and_a_quantised_checkpoint_is_read() {
    let text = r#"{"model_type":"bert","architectures":["BertForSequenceClassification"],"quantization_config":{"quant_method":"gptq"}}"#;
    let model = read::config("config.json", text.as_bytes()).expect("reads");
    assert!(model.notes[0].contains("BertForSequenceClassification"), "{:?}", model.notes);
    assert_eq!(model.stored.map(|stored| stored.words).as_deref(), Some("GPTQ, 4 bits in groups of 128"));
}

#[test]
fn image_models_count_their_labels() {
    let vision = |text: &str| match read::config("config.json", text.as_bytes()).expect("reads").architecture
    {
        Some(Architecture::Vision(vision)) => vision,
        other => panic!("{other:?}"),
    };
    let vit = vision(r#"{"model_type":"vit","id2label":{"0":"a","1":"b","2":"c"},"image_size":[384,384]}"#);
    assert!(matches!(vit, Vision::Vit { classes: 3, image: 384, hugging_face: true, .. }), "{vit:?}");
    let resnet = vision(
        r#"{"model_type":"resnet","depths":[2,2,2,2],"layer_type":"basic","hidden_sizes":[64,128,256,512]}"#,
    );
    assert!(matches!(resnet, Vision::ResNet { bottleneck: false, classes: 2, .. }), "{resnet:?}");
}

#[test]
fn a_type_that_is_not_known_is_refused_whatever_keys_it_has() {
    let keys = r#""hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,"intermediate_size":128,"vocab_size":100"#;
    for (name, near) in
        [("newthing", ""), ("longformer", ""), ("rwkv", ""), ("llama5", "\"llama\""), ("big_bird", "")]
    {
        let error = refused(&format!(r#"{{"model_type":"{name}",{keys}}}"#));
        assert!(error.contains(&format!("the model_type \"{name}\" is not known")), "{error}");
        assert!(error.contains("the nearest known type is") && error.contains(near), "{error}");
        assert!(error.contains("gapless.estimate") && error.contains(".pt2"), "{error}");
    }
    assert!(refused("{}").contains("has no model_type"));
    assert!(refused(&format!("{{{keys}}}")).contains("has no model_type"));
}

#[test]
fn errors_name_the_key_and_the_byte() {
    for (text, want) in [
        (
            r#"{"model_type":"llama","hidden_size":"big"}"#,
            "key \"hidden_size\" at byte 36: must be an integer, but is a string",
        ),
        (r#"{"model_type":"llama","hidden_size":0}"#, "must be at least 1"),
        (r#"{"model_type":"llama","hidden_size":-4}"#, "must not be negative"),
        (
            r#"{"model_type":"llama","hidden_size":99999999999999999999}"#,
            "must not be negative or that large",
        ),
        (r#"{"model_type":"llama","vocab_size":4294967296}"#, "larger than any model's"),
        (r#"{"model_type":"llama","num_hidden_layers":1000000000}"#, "must be between 1 and 10000"),
        (r#"{"model_type":"llama","num_key_value_heads":5}"#, "32 heads cannot share 5"),
        (r#"{"model_type":"gpt2","n_head":7}"#, "7 heads do not divide the hidden size 768"),
        (r#"{"model_type":"gpt2","resid_pdrop":1.5}"#, "must be between 0 and 1"),
        (r#"{"model_type":"mixtral","num_experts_per_tok":9}"#, "9 of 8 experts"),
        (r#"{"model_type":"deepseek_v2"}"#, "key \"num_experts_per_tok\": is missing"),
        (r#"{"model_type":"llama","hidden_act":"wavy"}"#, "the activation \"wavy\" is not known"),
        (
            r#"{"model_type":"llama","hidden_size":2147483647,"num_hidden_layers":10000,"vocab_size":2147483647}"#,
            "2^60 parameters",
        ),
        (r#"{"model_type":"llama","model_type":"gpt2"}"#, "byte 22: the key \"model_type\" stands twice"),
        (r#"{"model_type":"llama""#, "the file ends at byte 21"),
        (r#"{"model_type":"llama",}"#, "byte 22: expected a key in quotes"),
        (r#"[1,2]"#, "a configuration is an object"),
        ("\u{feff}{}", "byte 0: this is not JSON"),
    ] {
        let error = refused(text);
        assert!(error.starts_with("config.json: ") && error.contains(want), "{text}: {error}");
    }
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(refused(&deep).contains("nested deeper than 64"));
}

#[test]
fn names_are_found_in_all_their_spellings() {
    for (text, name) in [
        ("meta-llama/Llama-3-8B", "llama-3-8b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("llama3_8b", "llama-3-8b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("google/gemma-2-9b-it", "gemma-2-9b"),
        ("google/gemma-2b", "gemma-2b"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("google-bert/bert-base-uncased", "bert-base"),
        ("GPT2-XL", "gpt2-xl"),
        ("ResNet50", "resnet50"),
        ("vit-b-16", "vit_b_16"),
        ("meta-llama/Llama-2-7b-hf", "llama-2-7b"),
    ] {
        assert_eq!(read::open(text).unwrap_or_else(|error| panic!("{error}")).name, name, "{text}");
    }
    let error = read::open("llama-3-9b").expect_err("unknown").to_string();
    assert!(error.contains("no model of that name is built in") && error.contains("llama-3-8b"), "{error}");
    let error = read::open("./nowhere/config.json").expect_err("missing").to_string();
    assert!(error.contains("there is no such file; check the path"), "{error}");
}

#[test]
fn no_two_presets_share_a_name() {
    let bare = |name: &str| name.to_lowercase().replace(['-', '_'], "");
    let mut names: Vec<String> = read::names().iter().map(|name| bare(name)).collect();
    let count = names.len();
    assert!(count > 110);
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
}
