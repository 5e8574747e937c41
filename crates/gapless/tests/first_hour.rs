//! Mistakes of a user's first hour: each message names the next step.

mod support;

use std::path::Path;
use std::process::{Command, Stdio};
use support::{Run, repo, run, run_in, trace};

/// Runs the binary with these variables, in `testdata`.
fn with(variables: &[(&str, &str)], args: &[&str]) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gapless"));
    command.args(args).current_dir(repo("testdata")).stdin(Stdio::null());
    for name in ["LC_ALL", "LC_CTYPE", "LANG", "COLUMNS", "TERM", "CLICOLOR_FORCE", "NO_COLOR"] {
        command.env_remove(name);
    }
    let done = command.envs(variables.iter().copied()).output().expect("the binary runs");
    Run {
        code: done.status.code().expect("an exit code"),
        out: String::from_utf8(done.stdout).expect("UTF-8"),
        err: String::from_utf8(done.stderr).expect("UTF-8"),
    }
}

/// A mistake: exit code 2, nothing on standard output, and these words on standard error.
fn told(args: &[&str], words: &[&str]) -> String {
    let done = run(args);
    assert_eq!((done.code, done.out.as_str()), (2, ""), "{args:?}: {}", done.err);
    for word in words {
        assert!(done.err.contains(word), "{args:?} lacks {word:?}: {}", done.err);
    }
    done.err
}

#[test]
fn the_name_of_the_output_chooses_the_format_of_every_verb() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("buffers.csv"), "id,lower,upper,size\na,0,4,16\nb,2,6,16\n")
        .expect("written");
    let (run_file, second, oom) = (trace("leak"), trace("gpt2_train"), trace("oom"));
    let weights = repo("testdata/weights/tiny.npz").display().to_string();
    let nodes = "sn,cpu_milli,memory_mib,gpu,model\nn,64000,262144,8,V100\n";
    let pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\np,1000,1024,1,500,\n";
    let peaks = "pod,group,gpus,requested_mib,peak_mib,status\np,g,1,1000,500,ok\n";
    for (name, text) in [("nodes.csv", nodes), ("pods.csv", pods), ("peaks.csv", peaks)] {
        std::fs::write(folder.path().join(name), text).expect("written");
    }
    let verbs: &[(&[&str], &[&str])] = &[
        (&["report", &run_file], &["html", "json", "md"]),
        (&["report", &run_file, &second], &["html", "json", "md"]),
        (&["diff", &run_file, &second], &["html", "json", "md"]),
        (&["check", &run_file, "--max-peak-reserved", "1TiB"], &["json", "md", "sarif", "xml"]),
        (&["replay", &run_file, "--with", "plan"], &["html", "json"]),
        (&["advise", &run_file], &["json"]),
        (&["oom", &oom], &["json"]),
        (&["plan", "buffers.csv"], &["html", "json", "csv", "svg"]),
        (&["fit", "gpt2"], &["html", "json"]),
        (&["weights", "info", &weights], &["json"]),
        (&["export", &run_file], &["csv", "parquet", "json", "gtrace"]),
        (&["fleet", "sim", "--nodes", "nodes.csv", "--pods", "pods.csv"], &["html", "json"]),
        (&["fleet", "advise", "peaks.csv"], &["json"]),
    ];
    for (verb, endings) in verbs {
        for ending in *endings {
            let name = format!("out.{ending}");
            let done = run_in(folder.path(), &[verb, &["-o", &name][..]].concat(), None);
            assert!(done.code < 2, "{verb:?} {ending}: {}", done.err);
            let bytes = std::fs::read(folder.path().join(&name)).expect("written");
            let text = String::from_utf8_lossy(&bytes);
            let is_right = match *ending {
                "html" => text.to_lowercase().starts_with("<!doctype html"),
                "json" | "sarif" => serde_json::from_str::<serde_json::Value>(&text).is_ok(),
                "svg" => text.starts_with("<svg") || text.starts_with("<?xml"),
                "xml" => text.starts_with("<?xml") || text.starts_with("<testsuite"),
                "md" => text.starts_with('#') || text.starts_with("**") || text.contains("| "),
                "csv" => text.lines().next().is_some_and(|line| line.contains(',')),
                "parquet" => bytes.starts_with(b"PAR1"),
                "gtrace" => bytes.starts_with(b"GTRACE"),
                other => panic!("{other}"),
            };
            assert!(is_right, "{verb:?} -o {name} begins with {:?}", &text[..text.len().min(40)]);
        }
        // Text goes into a file with the ending of text.
        if verb[0] != "export" {
            let done = run_in(folder.path(), &[verb, &["-o", "out.txt"][..]].concat(), None);
            assert!(done.code < 2, "{verb:?}: {}", done.err);
        }
    }
}

#[test]
fn an_explicit_format_wins_and_a_contradiction_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = trace("leak");
    let done = run_in(folder.path(), &["report", &file, "--format", "json", "-o", "x.html"], None);
    assert_eq!(done.code, 0);
    assert!(
        done.err.contains("x.html gets json, as --format says, and its name asks for html"),
        "{}",
        done.err
    );
    let text = std::fs::read_to_string(folder.path().join("x.html")).expect("written");
    assert!(text.starts_with('{'));
    let agree = run_in(folder.path(), &["report", &file, "--format", "json", "-o", "x.json"], None);
    assert_eq!((agree.code, agree.err.as_str()), (0, ""));
    let to = run_in(folder.path(), &["export", &file, "--to", "csv", "-o", "x.parquet"], None);
    assert!(to.code == 0 && to.err.contains("x.parquet gets csv, as --to says"), "{}", to.err);
    // An ending of a format that the verb does not have is an error, and no file of another format appears.
    for (verb, name) in [("advise", "y.html"), ("oom", "y.csv"), ("report", "y.svg"), ("check", "y.html")] {
        let done = run_in(folder.path(), &[verb, &file, "-o", name], None);
        assert!(done.code == 2 && done.err.contains("its name asks for"), "{verb}: {}", done.err);
        assert!(!folder.path().join(name).exists());
    }
    let demo = run_in(folder.path(), &["demo", "-o", "demo.json"], None);
    assert!(demo.code == 2 && demo.err.contains("HTML page"), "{}", demo.err);
    // `export` takes the flag that other verbs take.
    let format = run_in(folder.path(), &["export", &file, "--format", "csv"], None);
    assert!(format.code == 0 && format.out.contains(','), "{}", format.err);
}

/// Every flag that takes a size, each in a command line. `plan` is tested apart, because its bare numbers are valid.
const SIZES: &[&[&str]] = &[
    &["check", "cases/leak.pickle.gz", "--max-peak-reserved"],
    &["check", "cases/leak.pickle.gz", "--max-peak-allocated"],
    &["check", "cases/leak.pickle.gz", "--max-growth-per-step"],
    &["advise", "cases/leak.pickle.gz", "--capacity"],
    &["oom", "cases/oom.pickle.gz", "--capacity"],
    &["replay", "cases/leak.pickle.gz", "--capacity"],
    &["export", "cases/leak.pickle.gz", "--to", "perfetto", "--min-size"],
    &["fit", "gpt2", "--memory"],
    &["fit", "gpt2", "--host-memory"],
    &["fit", "gpt2", "--infer", "--stream"],
    &["fleet", "advise", "peaks.csv", "--gpu-memory"],
    &["weights", "verify", "weights/tiny.npz", "--limit-rate"],
    &["weights", "pack", "weights/tiny.npz", "-o", "/nonexistent/x", "--limit-rate"],
    &["weights", "unpack", "weights/tiny.npz", "-o", "/nonexistent/x", "--limit-rate"],
    &["weights", "quantize", "weights/tiny.npz", "-o", "/nonexistent/x", "--scheme", "fp8", "--limit-rate"],
    &["fit-into", "train/step.json", "--budget"],
    &["estimate", "train.py", "--train-in"],
    &["run", "--reserve"],
    &["run", "--limit"],
    &["run", "--process-limit"],
    &["run", "--budget"],
    &["run", "--stream-weights"],
    &["run", "--train-in"],
    &["run", "--record", "/tmp/x.gtrace", "--record-limit"],
    &["run", "--host", "--host-limit"],
];

#[test]
fn every_size_needs_its_unit_and_says_how_to_write_it() {
    for line in SIZES {
        let flag = line.last().expect("a flag");
        let of = |size: &str| {
            let mut args = line.to_vec();
            args.push(size);
            if line[0] == "run" {
                args.extend(["--", "true"]);
            }
            let done = run(&args);
            assert_eq!((done.code, done.out.as_str()), (2, ""), "{args:?}: {}", done.err);
            done.err
        };
        let bare = of("20");
        assert!(
            bare.contains(flag) && bare.contains("has no unit") && bare.contains("20B for bytes"),
            "{line:?}: {bare}"
        );
        let large = of("99999999TiB");
        assert!(large.contains(flag) && large.contains("too large"), "{line:?}: {large}");
        let below = of("-5GiB");
        assert!(below.contains(flag) && below.contains("below 0"), "{line:?}: {below}");
        let word = of("lots");
        assert!(word.contains(flag) && word.contains("use a number and a unit"), "{line:?}: {word}");
    }
    // A new flag for a size belongs into the list.
    let mut found = 0;
    for entry in std::fs::read_dir(repo("crates/gapless/src/cli")).expect("a folder") {
        let text = std::fs::read_to_string(entry.expect("an entry").path()).expect("text");
        found += text.matches("value_name = \"SIZE\"").count();
    }
    assert_eq!(found, SIZES.len() + ["--capacity", "--align", "--chunk"].len());
}

#[test]
fn one_grammar_of_sizes_at_every_door() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("buffers.csv"), "id,lower,upper,size\na,0,4,1\n").expect("written");
    let table = std::fs::read_to_string(repo("testdata/sizes.csv")).expect("the table");
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split('|').collect();
        let (text, bytes, unit) = (fields[0], fields[1].parse::<u64>(), fields[2]);
        // The size as a flag, and in the file of budgets.
        let capacity = format!("--capacity={text}");
        let flag = run_in(folder.path(), &["plan", "buffers.csv", &capacity, "--format", "json"], None);
        let accepted = bytes.is_ok();
        // A capacity of 0 is a valid size, but no plan fits.
        if bytes.as_ref().is_ok_and(|bytes| *bytes == 0) {
            assert!(flag.err.contains("the capacity 0 is below"), "{text:?}: {}", flag.err);
        } else {
            assert_eq!(flag.code != 2, accepted, "{text:?}: {}", flag.err);
        }
        if flag.code == 0 {
            let json: serde_json::Value = serde_json::from_str(&flag.out).expect("JSON");
            assert_eq!(json["capacity"].as_u64(), bytes.clone().ok(), "{text:?}");
        }
        std::fs::write(folder.path().join("gapless.toml"), format!("[check]\npeak_reserved = {text:?}\n"))
            .expect("written");
        let file = run_in(folder.path(), &["check", &trace("leak"), "--format", "json"], None);
        let has_unit = unit == "unit" || bytes.as_ref().is_ok_and(|bytes| *bytes == 0);
        assert_eq!(file.code != 2, accepted && has_unit, "gapless.toml {text:?}: {}", file.err);
    }
}

#[test]
fn unknown_words_lead_to_the_nearest() {
    told(&["help", "nosuch"], &["there is no command \"nosuch\"", "report, diff"]);
    told(&["help", "reprot"], &["did you mean report?"]);
    told(&["fleet", "smi"], &["`gapless fleet` has no command \"smi\"", "did you mean sim?"]);
    told(&["nosuch"], &["no such file, and no command of that name"]);
    told(
        &["fit", "gpt2", "--batch", "-1"],
        &["--batch: invalid value \"-1\": it is below 0", "use a whole number"],
    );
    told(&["fit", "gpt2", "--batch", "eight"], &["--batch: invalid number \"eight\""]);
    told(&["explain", "stradned"], &["did you mean stranded?"]);
    told(&["explain", "GPA101"], &["did you mean GAP101?"]);
    told(&["explain", "step"], &["findings have to do with \"step\"", "GAP201"]);
    told(&["explain", "xyzzy"], &["the codes are GAP101"]);
    for words in [&["explain", "fragmentation"][..], &["explain", "Fragmentation"], &["explain", "gap101"]] {
        let done = run(words);
        assert!(
            done.code == 0 && done.out.starts_with("# GAP101: fragmentation\n"),
            "{words:?}: {}",
            done.err
        );
    }
    assert!(run(&["explain", "out", "of", "memory"]).out.starts_with("# GAP301"));
}

#[test]
fn two_runs_are_led_to_diff_and_two_ranks_are_not() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, of) in [("before", "leak"), ("after", "gpt2_train"), ("rank0", "leak"), ("rank1", "leak")] {
        std::fs::copy(trace(of), folder.path().join(format!("{name}.pickle.gz"))).expect("copied");
    }
    let runs = run_in(folder.path(), &["report", "before.pickle.gz", "after.pickle.gz"], None);
    assert_eq!(runs.code, 0);
    assert!(runs.err.contains("gapless diff before.pickle.gz after.pickle.gz"), "{}", runs.err);
    let ranks = run_in(folder.path(), &["report", "rank0.pickle.gz", "rank1.pickle.gz"], None);
    assert_eq!((ranks.code, ranks.err.as_str()), (0, ""));
}

#[test]
fn files_of_other_kinds_are_named_with_the_command_that_reads_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("written");
        path.display().to_string()
    };
    let data = |name: &str| repo("testdata").join(name).display().to_string();
    let cases = [
        (data("fit/safetensors/small.safetensors"), "a safetensors file", "gapless weights info"),
        (data("fit/gguf/llama.gguf.gz"), "a GGUF model", "gapless fit"),
        (data("fit/onnx/block.onnx"), "an ONNX model", "gapless fit"),
        (data("weights/tiny.onnx"), "an ONNX model", "gapless weights info"),
        (data("fit/pt2/block.pt2"), "an exported model (.pt2)", "gapless fit"),
        (data("weights/tiny.pt"), "a checkpoint of torch.save", "gapless weights info"),
        (data("weights/tiny.npz"), "arrays of numpy", "gapless weights info"),
        (data("weights/alone.npy"), "an array of numpy", "gapless weights info"),
        (
            write(
                "trace.json",
                b"{\"schemaVersion\": 1, \"deviceProperties\": [], \"traceEvents\": [{\"ph\": \"X\"}]}",
            ),
            "a timeline of torch.profiler",
            "_dump_snapshot",
        ),
        (
            write("events.json", b"[{\"ph\": \"X\", \"ts\": 1}]"),
            "a timeline of torch.profiler",
            "_dump_snapshot",
        ),
        (
            write("memory.json", b"[[1, 2, 3], [[0, 0], [1, 2], [3, 4]]]"),
            "a memory timeline",
            "_dump_snapshot",
        ),
        (
            write("config.json", b"{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\"}"),
            "a model's configuration",
            "gapless fit",
        ),
        (
            write("index.json", b"{\"metadata\": {}, \"weight_map\": {}}"),
            "the index of a model's shards",
            "gapless weights info",
        ),
        (
            write("old.json", b"{\"schema\": \"gapless.report/1\"}"),
            "a result that Gapless wrote",
            "gapless check",
        ),
        (
            write("ds.json", b"{\"zero_optimization\": {}}"),
            "a configuration of DeepSpeed",
            "--emit deepspeed",
        ),
        (write("n.ipynb", b"{\"cells\": [], \"nbformat\": 4}"), "a notebook", "_record_memory_history"),
        (write("a.nsys-rep", b"\x01\x02\x03nsys"), "a recording of Nsight Systems", "_dump_snapshot"),
        (write("a.sqlite", b"SQLite format 3\0"), "an SQLite database", "_dump_snapshot"),
        (write("train.py", b"import torch\n"), "a Python program", "gapless run --record"),
    ];
    let good = trace("leak");
    for (path, what, next) in &cases {
        for verb in [
            &["report", path][..],
            &["diff", path, &good],
            &["check", path, "--max-peak-reserved", "1GiB"],
            &["advise", path],
            &["replay", path],
            &["oom", path],
            &["export", path, "--to", "csv"],
        ] {
            let done = run_in(folder.path(), verb, None);
            assert_eq!((done.code, done.out.as_str()), (2, ""), "{verb:?}");
            assert!(done.err.contains(what) && done.err.contains(next), "{verb:?}: {}", done.err);
            assert!(!done.err.contains("FILE"), "the file's own name: {}", done.err);
        }
    }
    // A folder in place of a recording, and a recording in place of weights or a model.
    let fit = repo("testdata/fit/models/gpt2").display().to_string();
    told(&["report", &fit], &["no file in this folder is a trace", "gapless fit"]);
    told(&["report", "fit/safetensors"], &["gapless weights info"]);
    told(&["fit", "cases/leak.pickle.gz"], &["gapless report"]);
    told(&["weights", "info", "cases/leak.pickle.gz"], &["gapless report"]);
}

#[test]
fn a_card_is_never_taken_for_another_one() {
    told(&["fit", "gpt2", "--gpu", "3080"], &["no GPU is known as \"3080\"", "--memory", "3090"]);
    let stranger = told(&["fit", "gpt2", "--gpu", "m3"], &["no GPU is known as \"m3\"", "--memory"]);
    assert!(!stranger.contains("nearest") && !stranger.contains("near names"), "{stranger}");
    told(&["fit", "gpt2", "--gpu", "a100"], &["may be any of a100-80, a100-40"]);
    for (asked, name) in [("rtx 5090", "5090"), ("a10", "a10"), ("NVIDIA A100-SXM4-80GB", "a100-80")] {
        let done = run(&["fit", "gpt2", "--gpu", asked]);
        assert!(done.code == 0 && done.out.contains(&format!("fits on {name}")), "{asked}: {}", done.out);
    }
    // An unknown card is accepted with its memory, and keeps its name.
    let own = run(&["fit", "gpt2", "--gpu", "m3", "--memory", "24G"]);
    assert!(own.out.contains("fits on m3 with 24.0 GiB"), "{}", own.out);
    let decimal = run(&["fit", "gpt2", "--memory", "24GB"]);
    assert!(decimal.out.contains("a GPU of 22.4 GiB"), "{}", decimal.out);
}

#[test]
fn formats_that_a_card_does_not_compute_in_are_told() {
    let has = |args: &[&str], words: &str| {
        let done = run(args);
        (done.out.split_whitespace().collect::<Vec<_>>().join(" ")).contains(words)
    };
    for card in ["t4", "v100-16"] {
        assert!(has(&["fit", "gpt2", "--gpu", card], "does not compute in bf16"), "{card}");
        assert!(
            !has(&["fit", "gpt2", "--gpu", card, "--precision", "fp16"], "does not compute in"),
            "{card}"
        );
    }
    assert!(!has(&["fit", "gpt2", "--gpu", "4090"], "does not compute in"));
    let fp8 = ["fit", "gpt2", "--infer", "--precision", "fp8", "--gpu"];
    assert!(has(&[&fp8[..], &["a100-80"]].concat(), "a100-80 does not compute in fp8"));
    assert!(!has(&[&fp8[..], &["l40s"]].concat(), "does not compute in"));
}

#[test]
fn fit_says_what_people_say() {
    let text = |args: &[&str]| run(args).out.split_whitespace().collect::<Vec<_>>().join(" ");
    let head = text(&["fit", "gpt2", "--lora", "r=8", "--checkpointing", "full", "--grad-accum", "4"]);
    for words in ["LoRA r=8", "gradient checkpointing", "gradient accumulation 4"] {
        assert!(head.contains(words), "{words}: {head}");
    }
    assert!(text(&["fit", "gpt2", "--lora", "r=8,base=nf4"]).contains("QLoRA r=8 on nf4 weights"));
    // The same flags by the names that libraries have for them.
    let same = text(&["fit", "gpt2", "--gradient-checkpointing"]);
    assert_eq!(same, text(&["fit", "gpt2", "--checkpointing", "full"]));
    let offload = run(&["fit", "gpt2", "--cpu-offload", "optimizer-state", "--gpus", "2", "--zero", "2"]);
    assert!(offload.code < 2, "{}", offload.err);
    let help = run(&["fit", "--help"]).out;
    for words in ["LoRA", "QLoRA", "Gradient checkpointing", "CPU offload", "24GB (10^9"] {
        assert!(help.contains(words), "{words}");
    }
    // An engine takes more of the card than the question needs.
    let served = text(&["fit", "llama-3.2-1b", "--infer", "--engine", "vllm", "--gpu", "4090"]);
    assert!(served.contains("vllm takes") && served.contains("engine takes"), "{served}");
    let json =
        run(&["fit", "llama-3.2-1b", "--infer", "--engine", "vllm", "--gpu", "4090", "--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json.out).expect("JSON");
    assert!(json["engine_takes"].as_u64() > json["process_total"].as_u64(), "{json}");
}

/// Command lines that print every kind of text.
const TEXTS: &[&[&str]] = &[
    &["report", "traces/gpt2_train_stacks.pickle.gz"],
    &["report", "traces/gpt2_train_stacks.pickle.gz", "--tree"],
    &["report", "cases/leak.pickle.gz", "traces/gpt2_train.pickle.gz"],
    &["diff", "cases/leak.pickle.gz", "traces/gpt2_train.pickle.gz"],
    &["check", "cases/leak.pickle.gz", "--max-peak-reserved", "1MiB"],
    &["replay", "cases/leak.pickle.gz"],
    &["advise", "cases/oom.pickle.gz"],
    &["oom", "cases/oom.pickle.gz"],
    &["fit", "gpt2", "--why"],
    &["fit", "llama-3.2-1b", "--batch", "8", "--memory", "24GiB", "--top", "2"],
    &["fit", "--compare", "gpt2", "gpt2-medium"],
    &["fit", "--list", "gpt"],
    &["fit", "--gpus-list"],
    &["explain"],
    &["explain", "GAP101"],
    &["weights", "info", "weights/tiny.npz"],
    &["help"],
    &["fit", "--help"],
    &["top", "--once"],
    &["nosuch"],
    &["report", "nosuch.pickle"],
    &["fit", "gpt2", "--gpu", "m3"],
];

#[test]
fn a_locale_without_utf_8_gets_ascii_and_its_json_stays() {
    for variables in [
        &[("LANG", "C")][..],
        &[("LC_ALL", "POSIX"), ("LANG", "en_US.UTF-8")],
        &[("TERM", "dumb"), ("LANG", "C.UTF-8")],
    ] {
        for args in TEXTS {
            let done = with(variables, args);
            assert!(
                done.code < 3 && (done.out.is_ascii() && done.err.is_ascii()),
                "{args:?}: {}{}",
                done.out,
                done.err
            );
        }
    }
    let report = ["report", "traces/gpt2_train_stacks.pickle.gz"];
    let utf8 = with(&[("LANG", "C.UTF-8")], &report);
    for variables in [&[][..], &[("LC_ALL", "de_DE.utf8")], &[("LC_ALL", "C.UTF-8"), ("LANG", "C")]] {
        assert_eq!(with(variables, &report).out, utf8.out, "{variables:?}");
    }
    assert!(utf8.out.contains('█'));
    let json = ["report", "traces/gpt2_train_stacks.pickle.gz", "--format", "json"];
    assert_eq!(with(&[("LANG", "C")], &json).out, with(&[("LANG", "C.UTF-8")], &json).out);
}

#[test]
fn every_text_keeps_to_the_width_that_columns_says() {
    use unicode_width::UnicodeWidthStr;
    for columns in [60, 80, 100, 120] {
        let value = columns.to_string();
        for args in TEXTS {
            let done = with(&[("COLUMNS", &value), ("LC_ALL", "C.UTF-8")], args);
            for line in done.out.lines().chain(done.err.lines()) {
                let is_one_word = line.split_whitespace().count() == 1;
                assert!(line.width() <= columns || is_one_word, "{columns} {args:?}: {line}");
            }
        }
    }
}

#[test]
fn findings_are_ranked_by_what_can_be_won_back() {
    let done = run(&["report", "traces/gpt2_train_stacks.pickle.gz"]);
    let at = |code: &str| done.out.find(code).unwrap_or_else(|| panic!("{code}: {}", done.out));
    assert!(at("GAP401") < at("GAP101"), "6.50 GiB of activations come before 1.53 GiB of fragmentation");
    let words = done.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("is the most that could be won back"), "{words}");
    // With advice, the finding promises the same bytes as the advice.
    let advised = run(&["report", "traces/gpt2_train_stacks.pickle.gz", "--advise", "--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&advised.out).expect("JSON");
    let findings = json["findings"].as_array().expect("findings");
    let bytes = |code: &str| findings.iter().find(|one| one["code"] == code).map(|one| one["bytes"].clone());
    assert_eq!(bytes("GAP101"), bytes("GAP108"));
    assert!(
        bytes("GAP101").and_then(|bytes| bytes.as_u64()).is_some_and(|bytes| bytes < 1 << 30),
        "{findings:?}"
    );
}

#[test]
fn one_is_said_in_the_singular_everywhere() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("one.csv"), "id,lower,upper,size\na,0,4,16\n").expect("written");
    std::fs::write(
        folder.path().join("peaks.csv"),
        "pod,group,gpus,requested_mib,peak_mib,status\np,g,1,9,5,ok\n",
    )
    .expect("written");
    let two: Vec<String> = ["leak", "gpt2_train"].iter().map(|name| trace(name)).collect();
    let mut texts = Vec::new();
    for args in [
        &["plan", "one.csv"][..],
        &["report", "one.csv"],
        &["fleet", "advise", "peaks.csv"],
        &["report", &two[0], &two[1]],
        &["fit", "llama-3.2-1b", "--infer", "--engine", "vllm", "--gpu", "4090"],
        &["weights", "info", &repo("testdata/weights/alone.npy").display().to_string()],
    ] {
        let done = run_in(folder.path(), args, None);
        assert!(done.code < 2, "{args:?}: {}", done.err);
        texts.push(done.out);
    }
    for text in &texts {
        let words: Vec<&str> = text.split_whitespace().collect();
        for pair in words.windows(2).filter(|pair| pair[0] == "1") {
            let noun = pair[1].trim_matches(|c: char| !c.is_alphabetic());
            let singular = ["class", "process", "s", "ms", "pass", "us", "µs", "sgd", "adamw"];
            assert!(!noun.ends_with('s') || singular.contains(&noun), "1 {noun}: {text}");
        }
        assert!(!text.contains("(s)"), "{text}");
    }
    assert!(
        texts[3].contains("1 replica does not hold") || !texts[3].contains("1 replica do"),
        "{}",
        texts[3]
    );
}

#[test]
fn strangers_are_led_on() {
    // A misspelt verb, a flag in the wrong place or with one dash, a missing value.
    told(&["reprot", "x"], &["report"]);
    told(&["fit", "gpt2", "-batch", "4"], &["begin with two dashes", "write --batch"]);
    told(&["--batch", "4", "fit", "gpt2"], &["--batch is a flag of `gapless fit`"]);
    told(&["report"], &["FILE"]);
    told(&["check"], &["FILE"]);
    told(&["diff", "a.pickle"], &["AFTER"]);
    told(&["fit"], &["which model?"]);
    told(&["run"], &["COMMAND"]);
    // Files that are not there, folders, empty ones.
    let folder = tempfile::tempdir().expect("a folder");
    let empty = folder.path().join("empty.pickle");
    std::fs::write(&empty, b"").expect("written");
    told(&["report", &empty.display().to_string()], &["the file is empty"]);
    told(&["report", &folder.path().join("none").display().to_string()], &["there is no such file"]);
    told(&["oom", "traces"], &["directory"]);
    told(&["report", "cases/leak.pickle.gz", "cases/leak.pickle.gz"], &["are the same file"]);
    told(&["report", "cases/leak.pickle.gz", "--device", "9"], &["no device 9", "there is: 0"]);
    // Output that cannot be written.
    told(
        &["report", "cases/leak.pickle.gz", "-o", "/nonexistent/x.html"],
        &["cannot write /nonexistent/x.html"],
    );
    told(&["report", "cases/leak.pickle.gz", "-o", "/tmp"], &["it is a directory", "-o"]);
    // An exit code of help and of versions, for every verb.
    let verbs: Vec<String> = run(&["help"])
        .out
        .lines()
        .skip_while(|line| !line.starts_with("Commands:"))
        .skip(1)
        .take_while(|line| line.starts_with("  "))
        .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
        .filter(|name| name.chars().all(|c| c.is_ascii_lowercase()))
        .collect();
    assert!(verbs.len() > 15, "{verbs:?}");
    for verb in verbs.iter().filter(|verb| run(&["help", verb]).code == 0) {
        for flag in ["-h", "--help"] {
            let done = run(&[verb, flag]);
            assert!(
                done.code == 0 && done.err.is_empty() && done.out.contains("Usage: gapless"),
                "{verb} {flag}"
            );
        }
    }
    let version = run(&["--version"]);
    assert!(version.code == 0 && version.out.starts_with("gapless "), "{}", version.out);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let shell = |line: &str| {
        let line = line.replace("gapless", env!("CARGO_BIN_EXE_gapless"));
        let done = Command::new("sh").args(["-c", &line]).current_dir(repo("testdata")).output().expect("sh");
        (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    for line in [
        "gapless report traces/gpt2_train_stacks.pickle.gz | head -1 > /dev/null",
        "gapless fit --list | head -1 > /dev/null",
        "gapless export traces/gpt2_train.pickle.gz --to csv | head -1 > /dev/null",
        "gapless help | head -1 > /dev/null",
        "gapless explain | true",
        "gapless report - < cases/leak.pickle.gz > /dev/null",
    ] {
        assert_eq!(shell(line), (Some(0), String::new()), "{line}");
    }
    let (code, err) = shell("gapless report < cases/leak.pickle.gz");
    assert!(code == Some(2) && err.contains('-'), "{err}");
}

#[test]
fn colour_is_off_where_it_was_asked_to_be() {
    let is_plain = |variables: &[(&str, &str)], args: &[&str]| !with(variables, args).out.contains('\x1b');
    let report = ["report", "cases/leak.pickle.gz"];
    assert!(is_plain(&[], &report) && is_plain(&[("NO_COLOR", "1"), ("TERM", "xterm")], &report));
    assert!(!is_plain(&[], &["--color", "always", "report", "cases/leak.pickle.gz"]));
    let file = tempfile::tempdir().expect("a folder");
    let path = file.path().join("x.txt").display().to_string();
    let done = with(&[], &["--color", "always", "report", "cases/leak.pickle.gz", "-o", &path]);
    assert_eq!(done.code, 0);
    assert!(!std::fs::read_to_string(Path::new(&path)).expect("written").contains('\x1b'));
}

#[test]
fn the_beginning_of_a_flag_leads_to_the_flag() {
    let mut tried = 0;
    for verb in ["report", "diff", "check", "replay", "advise", "oom", "export", "fit", "plan", "top"] {
        let help = run(&[verb, "--help"]).out;
        let flags: Vec<&str> = help
            .lines()
            .filter_map(|line| line.trim_start().strip_prefix("--").or_else(|| line.split(", --").nth(1)))
            .filter_map(|rest| rest.split([' ', '[', '=', '<']).next())
            .collect();
        for flag in &flags {
            let Some((beginning, _)) = flag.rsplit_once('-') else { continue };
            if flags.contains(&beginning) || beginning.len() < 3 {
                continue;
            }
            tried += 1;
            told(&[verb, &format!("--{beginning}"), "1"], &[&format!("--{beginning}"), "did you mean", "--"]);
            if flags.iter().filter(|other| other.starts_with(beginning)).count() == 1 {
                told(&[verb, &format!("--{beginning}")], &[&format!("did you mean --{flag}?")]);
            }
        }
    }
    assert!(tried > 10, "{tried}");
}
