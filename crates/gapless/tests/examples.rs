//! Every code block in the README and in `docs/` is accounted for. Each names its language:
//!
//! | language | what is checked |
//! |---|---|
//! | `console`, `sh` | commands after `$ ` run, and print the lines that the page shows, in their order; of commands without `$ `, each program is known, and flags of `gapless` exist |
//! | `pycon` | Python after `>>> ` runs, and prints what the page shows |
//! | `python` | it compiles, and every name and keyword of `gapless` exists; it needs torch, a GPU or another package, else it would be `pycon` |
//! | `json`, `toml` | it parses; `yaml` does in `crates/gapless-kube/tests/manifests.rs` |
//! | `c` | `python/tests/test_others.py` compiles it |
//! | `text`, `cpp`, `rust`, `conf`, `csv`, `lua` | it has no command |
//!
//! In what a page shows, a line `...` stands for any lines, and `...` within a line for any text.

#[path = "examples/blocks.rs"]
mod blocks;
#[path = "examples/model.rs"]
mod model;
mod support;

use blocks::{Block, Command, blocks, commands, pages};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use support::{repo, run};

/// The languages that a block may have.
const LANGUAGES: &[&str] = &[
    "c", "conf", "console", "cpp", "csv", "json", "lua", "pycon", "python", "rust", "sh", "text", "toml",
    "yaml",
];

/// Sessions of `gapless` that cannot run here: the beginning of the command, and the reason.
const ELSEWHERE: &[(&str, &str)] = &[
    ("gapless run ", "needs the Python package, and a GPU or a program of the reader"),
    ("gapless estimate ", "needs torch"),
    ("gapless keep ", "needs a GPU"),
    ("gapless fleet agent ", "shows the GPUs of a machine"),
    ("gapless report run.gtrace", "a recording of the reader, unless the page makes one"),
];

/// Beginnings of commands that sessions run, beside those of `gapless`.
const ALSO_RUN: &[&str] = &["cat ", "diff "];

/// Commands of other programs: their beginning, and the test or program that runs them.
const OTHERS: &[(&str, &str)] = &[
    ("cargo run --release -- demo", "the `demo` of crates/gapless/tests/commands.rs"),
    ("cargo install --locked --path crates/gapless", "cargo's own"),
    ("cargo xtask test", "runs this test"),
    ("pip install .", "`cargo xtask dist` builds and tries the wheel"),
    ("ray start ", "`cargo xtask test-fleet ray`"),
    ("kubectl ", "needs a cluster; `crates/gapless-kube/tests/manifests.rs` reads the manifests"),
    ("helm install ", "needs a cluster; `crates/gapless-kube/tests/chart.rs` renders the chart"),
    ("gcc ", "`python/tests/test_others.py` compiles the program"),
    ("INCLUDE=", "`python/tests/test_others.py` asks for the folder"),
    ("FOLDER=", "`python/tests/test_others.py` asks for the folder"),
    ("NUMBA_CUDA_MEMORY_MANAGER=", "`python/tests/test_others.py` has Numba's manager"),
    ("LD_PRELOAD=", "a program of the reader; `crates/gapless-malloc/tests/preload.rs`"),
    ("XLA_FLAGS=", "a program of the reader, which needs jax; `testdata/xla/make.py` sets the same flags"),
];

/// Files that examples name as the reader's own, with stand-ins from `testdata`: the page, the beginning of the
/// command, the file, its stand-in.
const STAND_INS: &[(&str, &str, &str, &str)] = &[
    ("README.md", "gapless oom ", "oom.pickle", "cases/oom.pickle.gz"),
    ("README.md", "gapless report ", "snapshot.pickle", "traces/gpt2_train_stacks.pickle.gz"),
    ("README.md", "gapless replay ", "snapshot.pickle", "traces/llama1b_varlen_ckpt.pickle.gz"),
    ("docs/oom.md", "gapless oom ", "oom.pickle", "cases/oom.pickle.gz"),
    ("docs/ranks.md", "gapless report traces", "traces/rank0.pickle", "traces/gpt2_train_stacks.pickle.gz"),
    ("docs/ranks.md", "gapless report traces", "traces/rank1.pickle", "traces/gpt2_train_stacks.pickle.gz"),
    ("docs/ranks.md", "gapless report traces", "traces/rank2.pickle", "traces/gpt2_train_stacks.pickle.gz"),
    ("docs/ranks.md", "gapless report traces", "traces/rank3.pickle", "cases/oom.pickle.gz"),
    ("docs/style.md", "gapless check ", "run.pickle", "traces/gpt2_train.pickle.gz"),
];

/// Words in a block of Python that cannot run, because it needs torch, a GPU or a package that the tests do not have.
const PYTHON_NEEDS: &[&str] = &[
    "torch",
    "model",
    "gapless.enable",
    "gapless.host",
    "gapless.jax",
    "gapless.ray",
    "gapless.weights",
    "cupy",
    "numba",
    "wandb",
    "pytest",
    "gapless.attach",
    "gapless.on_pressure",
    "gapless.budget",
];

/// True if `line` matches `shown`, in which `...` stands for any text. Spaces before `...` are joined, because
/// figures with more digits have fewer spaces in front.
fn is_same(shown: &str, line: &str) -> bool {
    let mut shown = shown.to_owned();
    while shown.contains("  ...") {
        shown = shown.replace("  ...", " ...");
    }
    let mut parts = shown.split("...");
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<&str> = parts.collect();
    for (index, part) in parts.iter().enumerate() {
        if index + 1 == parts.len() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.is_empty()
}

/// Runs a command line in a shell, in `folder`: both streams together.
fn shell(folder: &Path, line: &str) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_gapless")).parent().expect("a folder");
    let path = std::env::var("PATH").expect("PATH");
    let done = std::process::Command::new("sh")
        .args(["-c", line])
        .current_dir(folder)
        .env("PATH", format!("{}:{path}", program.display()))
        .env("NO_COLOR", "1")
        .env("LC_ALL", "C.UTF-8")
        .env("TERM", "xterm")
        .env_remove("COLUMNS")
        .env_remove("CLICOLOR_FORCE")
        .stdin(std::process::Stdio::null())
        .output()
        .expect("sh runs");
    format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))
}

/// Runs the example in `folder`, and gives the first line shown that it does not print.
fn missing(example: &Command, folder: &Path) -> Option<String> {
    for (page, start, file, source) in STAND_INS {
        if *page == example.page && example.text.starts_with(start) {
            let file = folder.join(file);
            std::fs::create_dir_all(file.parent().expect("a folder")).expect("made");
            std::fs::copy(repo(&format!("testdata/{source}")), file).expect("copied");
        }
    }
    let printed = shell(folder, &example.text);
    let mut lines = printed.lines();
    let shown = example.shown.iter().filter(|line| !line.is_empty() && *line != "...");
    let mut lost = shown.filter(|shown| !lines.any(|line| is_same(shown.trim_end(), line.trim_end())));
    lost.next().map(|line| format!("{}\n  does not print: {line}\n{printed}", example.place()))
}

fn all_commands() -> Vec<Command> {
    let shells = blocks().into_iter().filter(|block| matches!(block.language.as_str(), "console" | "sh"));
    shells.flat_map(|block| commands(&block)).collect()
}

/// True if a session runs it, or the program itself checks its flags.
fn is_run(command: &Command) -> bool {
    let also = command.is_session && ALSO_RUN.iter().any(|start| command.text.starts_with(start));
    also || command.text.starts_with("gapless ")
}

fn is_listed(list: &[(&str, &str)], command: &str) -> bool {
    list.iter().any(|(start, _)| command.starts_with(start))
}

#[test]
fn examples_print_what_the_pages_show() {
    let mut by_page: BTreeMap<String, Vec<Command>> = BTreeMap::new();
    for command in all_commands().into_iter().filter(|command| command.is_session) {
        by_page.entry(command.page.clone()).or_default().push(command);
    }
    let (mut run, mut wrong) = (0, Vec::new());
    for (_, sessions) in by_page {
        let folder = tempfile::tempdir().expect("a folder");
        std::os::unix::fs::symlink(repo("testdata"), folder.path().join("testdata")).expect("linked");
        if sessions.iter().any(|example| example.text.contains(" model/")) {
            model::write(&folder.path().join("model"));
        }
        for example in sessions {
            // A file that the page itself made can be read, even if it is listed as the reader's own.
            let is_made = |word: &str| folder.path().join(word).is_file();
            let is_own = || example.text.split_whitespace().skip(1).any(is_made);
            if let Some(name) = example.text.strip_prefix("cat ") {
                let text: String = example.shown.iter().map(|line| format!("{line}\n")).collect();
                std::fs::write(folder.path().join(name), text).expect("written");
            } else if is_run(&example) && (!is_listed(ELSEWHERE, &example.text) || is_own()) {
                run += 1;
                wrong.extend(missing(&example, folder.path()));
            }
        }
    }
    assert!(run >= 20, "only {run} examples were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_block_names_its_language() {
    let unknown = blocks().into_iter().filter(|block| !LANGUAGES.contains(&block.language.as_str()));
    let wrong: Vec<String> =
        unknown.map(|block| format!("{}: ```{}", block.place(), block.language)).collect();
    let known = LANGUAGES.join(", ");
    assert!(wrong.is_empty(), "name the language of these blocks, one of {known}:\n{}", wrong.join("\n"));
}

#[test]
fn every_command_is_run_or_has_a_reason() {
    let all = all_commands();
    let unknown = all.iter().filter(|command| !is_run(command) && !is_listed(OTHERS, &command.text));
    let wrong: Vec<String> = unknown.map(Command::place).collect();
    assert!(wrong.is_empty(), "nothing runs these: give the reason in OTHERS:\n{}", wrong.join("\n"));
    let is_used = |start: &&str| all.iter().any(|command| command.text.starts_with(start));
    let listed = ELSEWHERE.iter().chain(OTHERS).map(|(start, _)| *start);
    let stale: Vec<&str> = listed.filter(|start| !is_used(start)).collect();
    assert!(
        stale.is_empty(),
        "no page has these commands: remove them from the lists:\n{}",
        stale.join("\n")
    );
    let is_shown = |page: &str, start: &str| {
        all.iter().any(|command| command.page == page && command.text.starts_with(start))
    };
    let stale: Vec<_> = STAND_INS.iter().filter(|(page, start, ..)| !is_shown(page, start)).collect();
    assert!(stale.is_empty(), "no page has these commands: remove them from STAND_INS:\n{stale:?}");
    // A block of output must not hide a command.
    for block in blocks().iter().filter(|block| ["text", "conf", "csv"].contains(&block.language.as_str())) {
        let is_command = |line: &&String| line.starts_with("$ ") || line.starts_with("gapless run ");
        assert!(!block.lines.iter().any(|line| is_command(&line)), "{} is `console` or `sh`", block.place());
    }
}

/// The part of a command up to the arguments of another program, without the shell's own words.
fn own_words(command: &str) -> Vec<&str> {
    let own = command.split(" -- ").next().unwrap_or_default();
    own.split([';', '|', '&', '>']).next().unwrap_or_default().split_whitespace().collect()
}

/// The words that name a command: `gapless fleet dra claims`.
fn verb<'a>(words: &[&'a str]) -> Vec<&'a str> {
    let depth = match words.get(1..3).unwrap_or_default() {
        ["fleet", "dra"] => 3,
        ["fleet" | "weights", word] if !word.starts_with('-') => 2,
        _ => 1,
    };
    words.iter().skip(1).take(depth).copied().collect()
}

/// Texts between backquotes that begin with `gapless `, with their lines.
fn spans(page: &str, text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut is_code = false;
    for (number, line) in text.lines().enumerate() {
        is_code ^= line.trim_start().starts_with("```");
        let spans =
            line.split('`').skip(1).step_by(2).filter(|span| !is_code && span.starts_with("gapless "));
        found.extend(spans.map(|span| (format!("{page}:{}: {span}", number + 1), span.to_owned())));
    }
    found
}

#[test]
fn flags_that_pages_show_exist() {
    let mut asked: Vec<(String, String)> = all_commands()
        .into_iter()
        .filter(|command| command.text.starts_with("gapless "))
        .map(|command| (command.place(), command.text))
        .collect();
    asked.extend(pages().iter().flat_map(|(page, text)| spans(page, text)));
    let mut known: BTreeMap<Vec<String>, BTreeSet<String>> = BTreeMap::new();
    let mut wrong = Vec::new();
    for (place, text) in &asked {
        let text = text.replace("\\|", " ");
        let words = own_words(&text);
        let verb = verb(&words);
        let flags = words.iter().filter(|word| word.starts_with("--") && word.len() > 2);
        let flags: Vec<&str> =
            flags.map(|flag| flag.split(['=', ',', '[', ']']).next().unwrap_or(flag)).collect();
        if flags.is_empty()
            || verb.iter().any(|word| word.starts_with('-') || word.chars().any(char::is_uppercase))
        {
            continue;
        }
        let key: Vec<String> = verb.iter().map(|&word| word.to_owned()).collect();
        let help = known.entry(key).or_insert_with(|| {
            let asked: Vec<&str> = verb.iter().copied().chain(["--help"]).collect();
            let help = run(&asked).out;
            let words = help.split(|c: char| !c.is_alphanumeric() && c != '-');
            words.filter(|word| word.starts_with("--")).map(str::to_owned).collect()
        });
        let lost = flags.iter().filter(|flag| !help.contains(**flag));
        wrong
            .extend(lost.map(|flag| format!("{place}\n  `gapless {} --help` has no {flag}", verb.join(" "))));
    }
    assert!(asked.len() > 40, "only {} commands were found", asked.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs python3 with the package of this repository and the program under test.
fn python(arguments: &[&str], input: &str) -> (bool, String) {
    use std::io::Write as _;
    let mut child = std::process::Command::new("python3")
        .args(arguments)
        .current_dir(repo("."))
        .env("PYTHONPATH", repo("python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("GAPLESS_PROGRAM", env!("CARGO_BIN_EXE_gapless"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("python3 starts");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("written");
    let done = child.wait_with_output().expect("python3 ends");
    let text = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    (done.status.success(), text)
}

fn of_language(language: &str) -> Vec<Block> {
    let found: Vec<Block> = blocks().into_iter().filter(|block| block.language == language).collect();
    assert!(!found.is_empty(), "no page has a block of {language}");
    found
}

#[test]
fn python_names_what_exists_and_needs_what_the_tests_do_not_have() {
    // One process looks at all blocks, as a list of places and texts.
    let all: Vec<_> = of_language("python").iter().map(|block| [block.place(), block.text()]).collect();
    let text = serde_json::to_string(&all).expect("JSON");
    let (ended, told) = python(&["crates/gapless/tests/examples/names.py"], &text);
    let found = told.trim().parse::<u32>().unwrap_or_else(|_| panic!("{told}"));
    assert!(ended && found > 100, "{found} names of the package");
    // A wrong name and a wrong keyword are noticed.
    let wrong = r#"[["a", "import gapless\ngapless.enabel()"], ["b", "import gapless\ngapless.enable(budgte=1)"], ["c", "("]]"#;
    let (_, told) = python(&["crates/gapless/tests/examples/names.py"], wrong);
    assert!(
        ["a: gapless.enabel", "b: gapless.enable()", "c "].iter().all(|word| told.contains(word)),
        "{told}"
    );
    let runs = |text: &str| !PYTHON_NEEDS.iter().any(|need| text.contains(need));
    let wrong: Vec<&str> =
        all.iter().filter(|[_, text]| runs(text)).map(|[place, _]| place.as_str()).collect();
    assert!(wrong.is_empty(), "these need no torch and no GPU: show them as `pycon`:\n{}", wrong.join("\n"));
}

#[test]
fn python_sessions_print_what_the_pages_show() {
    let program = "import doctest, json, sys\nfailed = 0\nfor page, text in json.load(sys.stdin):\n    \
                   test = doctest.DocTestParser().get_doctest(text, {}, page, page, 0)\n    \
                   runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)\n    \
                   failed += runner.run(test).failed\nsys.exit(failed > 0)";
    // The sessions of a page are one program.
    let mut by_page: BTreeMap<String, String> = BTreeMap::new();
    for block in of_language("pycon") {
        *by_page.entry(block.page.clone()).or_default() += &(block.text() + "\n");
    }
    let all: Vec<_> = by_page.into_iter().collect();
    let (ended, told) = python(&["-c", program], &serde_json::to_string(&all).expect("JSON"));
    assert!(ended, "{told}");
}

#[test]
fn json_and_toml_parse() {
    let mut wrong = Vec::new();
    for block in of_language("json") {
        let text = block.text();
        let values = serde_json::Deserializer::from_str(&text).into_iter::<serde_json::Value>();
        wrong.extend(
            values.filter_map(Result::err).take(1).map(|error| format!("{}: {error}", block.place())),
        );
    }
    for block in of_language("toml") {
        wrong.extend(
            block.text().parse::<toml::Table>().err().map(|error| format!("{}: {error}", block.place())),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn dots_stand_for_any_text() {
    assert!(is_same("a ... c", "a b c") && is_same("a ...", "a b") && is_same("a", "a"));
    assert!(is_same("a     ...", "a 1,000") && is_same("a     ...", "a     10") && !is_same("a   ...", "a"));
    assert!(!is_same("a ... c", "a b") && !is_same("a", "a b") && !is_same("... c", "c d"));
}
