//! Odd but legal configurations, held against transformers: a key at a time and several at once, for every type that
//! is read. The listed parameters, and those of the simulated step, are as many as transformers makes, or the
//! configuration is refused by the name of a key. `testdata/fit/oracle/odd.py` writes the data.

use flate2::read::GzDecoder;
use gapless_fit::ask::{Asked, Question, Wishes, ask};
use gapless_fit::model::Architecture;
use gapless_fit::{parameters, read};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};

#[test]
fn no_odd_configuration_is_counted_wrongly() {
    let path = format!("{}/../../testdata/fit/odd.jsonl.gz", env!("CARGO_MANIFEST_DIR"));
    let lines = BufReader::new(GzDecoder::new(File::open(path).expect("test data"))).lines();
    let (mut wrong, mut nameless, mut refused, mut right) = (Vec::new(), Vec::new(), 0, 0);
    let mut seen = BTreeSet::new();
    for line in lines {
        let row: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
        let count = row["count"].as_u64().expect("a count");
        let text = row["config"].to_string();
        seen.insert(row["config"]["model_type"].as_str().expect("a type").to_owned());
        let model = match read::config("config.json", text.as_bytes()) {
            Ok(model) => model,
            Err(error) => {
                refused += 1;
                let error = error.to_string();
                if !error.contains("key \"") && !error.contains("this ResNet differs") {
                    nameless.push(format!("{error}: {text}"));
                }
                continue;
            }
        };
        let architecture = model.architecture.clone().expect("a type that is known");
        let mut counts = vec![parameters::count(&architecture)];
        if !matches!(architecture, Architecture::Counted(_)) {
            let seq = (!matches!(architecture, Architecture::Vision(_))).then_some(1);
            let asked = Asked { batch: Some(1), seq, ..Asked::default() };
            // The reader takes pictures that no patch divides; a question refuses them.
            if let Ok(q) = Question::about("config.json", model, &asked) {
                let answer = ask(&q, &Wishes::default()).expect("an answer");
                counts.push(answer.estimate.map(|estimate| estimate.parameters));
            }
        }
        if counts.iter().all(|ours| *ours == Some(count)) {
            right += 1;
        } else {
            wrong.push(format!("{counts:?} instead of {count}: {text}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {} are wrong:\n{}", wrong.len(), wrong.len() + right, wrong.join("\n"));
    assert!(nameless.is_empty(), "refused without a key:\n{}", nameless.join("\n"));
    assert!(
        right > 2000 && right > 4 * refused && seen.len() > 50,
        "{right}, {refused}, {} types",
        seen.len()
    );
}
