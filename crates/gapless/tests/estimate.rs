//! `gapless estimate` and `gapless fit --run` before Python starts: mistakes give exit code 2, and the question
//! reaches the Python package. `python/tests/test_estimate.py` has the rest.

mod support;

use std::process::Command;
use support::run;

#[test]
fn a_script_that_is_not_there_and_numbers_that_make_no_sense_are_refused() {
    let missing = run(&["estimate", "no-such-script.py"]);
    assert_eq!(missing.code, 2);
    assert!(missing.err.contains("no-such-script.py: no such file"), "{}", missing.err);
    assert!(missing.err.contains("gapless estimate train.py -- --batch 8"), "{}", missing.err);
    for wrong in [["--steps", "0"], ["--nproc", "0"], ["--nproc", "65"], ["--format", "csv"]] {
        assert_eq!(run(&["estimate", "train.py", wrong[0], wrong[1]]).code, 2, "{wrong:?}");
    }
    let torchvision = run(&["estimate", "resnet50"]);
    assert!(torchvision.code == 2 && torchvision.err.contains("torchvision"), "{}", torchvision.err);
}

/// The arguments that a stand-in for Python received.
fn handed_over(args: &[&str]) -> (i32, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let python = folder.path().join("python");
    std::fs::write(&python, "#!/bin/sh\necho \"$@\"\nexit 1\n").expect("written");
    let mut permissions = std::fs::metadata(&python).expect("there").permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
    std::fs::set_permissions(&python, permissions).expect("set");
    let mut command = Command::new(env!("CARGO_BIN_EXE_gapless"));
    let done = command.args(args).env("GAPLESS_PYTHON", &python).output().expect("the binary runs");
    (done.status.code().expect("an exit code"), String::from_utf8(done.stdout).expect("UTF-8"))
}

#[test]
fn what_is_asked_of_a_configuration_reaches_the_package_whichever_verb_asks() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("config.json");
    std::fs::write(&config, "{}").expect("written");
    let config = config.to_str().expect("UTF-8");
    let flags = ["--batch", "8", "--seq", "64", "--precision", "amp-bf16", "--checkpointing", "full"];
    let (code, estimated) =
        handed_over(&[&["estimate", config, "--device", "rtx-4090"][..], &flags].concat());
    assert_eq!(code, 1, "the exit code is Python's own");
    assert!(estimated.contains("--device rtx-4090"), "{estimated}");
    assert!(
        estimated.contains("--batch 8 --seq 64 --precision amp-bf16 --checkpointing full"),
        "{estimated}"
    );
    let (code, fitted) = handed_over(&[&["fit", config, "--run", "--gpu", "4090"][..], &flags].concat());
    assert_eq!((code, fitted), (1, estimated));
    // A built-in name is passed on as its configuration.
    let (_, named) = handed_over(&["fit", "gpt-oss-20b", "--run", "--infer"]);
    assert!(named.contains("--infer") && named.contains(r#"--text {"model_type":"gpt_oss""#), "{named}");
}

#[test]
fn fit_runs_a_script_with_its_own_arguments() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("train.py");
    std::fs::write(&script, "").expect("written");
    let script = script.to_str().expect("UTF-8");
    let words =
        ["fit", "--run", script, "--gpus", "4", "--gpu", "h100", "--format", "json", "--", "--batch", "8"];
    let (code, handed) = handed_over(&words);
    assert_eq!(code, 1);
    assert!(handed.contains("--device h100 --format json --nproc 4"), "{handed}");
    assert!(handed.trim_end().ends_with(&format!("{script} -- --batch 8")), "{handed}");
}

#[test]
fn what_an_estimate_does_not_have_is_refused() {
    for (args, words) in [
        (&["fit", "--run"][..], "what is to run?"),
        (&["fit", "--run", "train.py", "--zero", "3"], "--zero has no meaning with --run"),
        (&["fit", "--run", "train.py", "--gpu", "t4"], "--gpu t4: estimate does not describe this card"),
        (&["fit", "gpt2", "--", "--batch", "8"], "arguments after `--` are for a script"),
    ] {
        let done = run(args);
        assert!(done.code == 2 && done.err.contains(words), "{args:?}: {}", done.err);
    }
}

#[test]
fn a_refusal_of_fit_names_the_line_that_answers() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("my model");
    std::fs::create_dir(&path).expect("made");
    let path = path.to_str().expect("UTF-8");
    for (config, name) in [
        (r#"{"model_type":"hubert"}"#, path),
        (r#"{"_class_name":"UNet2DConditionModel","in_channels":4}"#, path),
        ("", "gpt-oss-20b"),
    ] {
        if !config.is_empty() {
            std::fs::write(format!("{path}/config.json"), config).expect("written");
        }
        let flags = ["--batch", "4", "--precision", "amp-bf16", "--lora", "r=16", "--gpu", "4090"];
        let done = run(&[&["fit", name][..], &flags].concat());
        let quoted = if name.contains(' ') { format!("'{name}'") } else { name.to_owned() };
        let line = format!(
            "`gapless estimate {quoted} --batch 4 --precision amp-bf16 --device rtx-4090` (without --lora, which it does not have)"
        );
        assert!(done.code == 2 && done.err.contains(&line), "{}", done.err);
    }
    // A question that contradicts itself has no answer by `estimate` either.
    assert!(!run(&["fit", "gpt2", "--infer", "--optimizer", "sgd"]).err.contains("gapless estimate"));
}

#[test]
fn how_far_a_script_runs_and_what_is_assumed_reach_the_package() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("train.py");
    std::fs::write(&script, "").expect("written");
    let script = script.to_str().expect("UTF-8");
    let words = [
        "estimate",
        script,
        "--until-stable",
        "--time-limit",
        "5",
        "--assume",
        "a.py:3=true",
        "--assume",
        "b.py:4=[3,5]",
    ];
    let (_, handed) = handed_over(&words);
    assert!(
        handed.contains("--until-stable --time-limit 5 --assume=a.py:3=true --assume=b.py:4=[3,5]"),
        "{handed}"
    );
    let both = run(&["estimate", script, "--until-stable", "--steps", "3"]);
    assert!(both.code == 2 && both.err.contains("--steps"), "{}", both.err);
}

/// A `gapless` in an environment that is called by its path uses that environment's interpreter, and prints a note.
#[test]
fn the_interpreter_beside_the_program_is_taken() {
    let folder = tempfile::tempdir().expect("a folder");
    let bin = folder.path().join("bin");
    let package = folder.path().join("lib/python3.11/site-packages/gapless");
    std::fs::create_dir_all(&bin).expect("made");
    std::fs::create_dir_all(package.join("_run")).expect("made");
    std::fs::write(package.join("_run/sitecustomize.py"), "").expect("written");
    let program = bin.join("gapless");
    std::fs::copy(env!("CARGO_BIN_EXE_gapless"), &program).expect("copied");
    let python = bin.join("python3");
    std::fs::write(&python, "#!/bin/sh\necho beside \"$@\"\n").expect("written");
    let mut permissions = std::fs::metadata(&python).expect("there").permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
    std::fs::set_permissions(&python, permissions).expect("set");
    let script = folder.path().join("train.py");
    std::fs::write(&script, "").expect("written");
    let link = folder.path().join("linked");
    std::os::unix::fs::symlink(&program, &link).expect("linked");
    for called in [&program, &link] {
        let mut command = Command::new(called);
        let done =
            command.arg("estimate").arg(&script).env_remove("GAPLESS_PYTHON").output().expect("it runs");
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(out.starts_with("beside -m gapless._estimate.command"), "{out}\n{err}");
        assert!(err.contains(&python.canonicalize().expect("there").display().to_string()), "{err}");
    }
}
