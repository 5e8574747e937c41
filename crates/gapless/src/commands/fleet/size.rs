//! The size for `gapless.dev/gpu-memory: auto`: `gapless fit` of the pod's model, or the peak of an earlier run.
//!
//! Any user who may create a pod writes these annotations, so they must not name paths: a model is a built-in name or
//! a text, and a trace is a file in the folder that the extender was given.

use crate::cli::fit::Settings;
use crate::commands::fit::flags;
use crate::load;
use clap::Parser;
use gapless_fit::ask::{self, Question, Wishes};
use gapless_fit::read;
use gapless_kube::auto::{Sizer, Wish};
use gapless_kube::limits::MOST_LAYERS;
use gapless_trace::Bytes;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The share that a run may take above the peak of an earlier one, as `gapless fleet advise` assumes.
const ABOVE_TRACE: f64 = 0.05;
/// Bytes of a process on a card outside PyTorch's allocator, which a trace does not record.
const OUTSIDE_TRACE: u64 = 768 << 20;
/// Sizes are rounded up to this.
const STEP: u64 = 1 << 20;

/// Knows programs by their models and their traces.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) traces: Option<PathBuf>,
}

/// The words of the annotation gapless.dev/fit.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
struct Words {
    model: Option<String>,
    #[command(flatten)]
    settings: Settings,
}

impl Sizer for Programs {
    fn size(&self, wish: &Wish) -> Result<u64, String> {
        match wish {
            Wish::Fit(text) => fit(text, None),
            Wish::Config(config, run) => fit(run, Some(config)),
            Wish::Trace(name) => self.trace(name),
        }
    }
}

/// The bytes that `gapless fit` expects of the run, plus its error bar.
fn fit(text: &str, config: Option<&str>) -> Result<u64, String> {
    let wrong = |what: String| format!("gapless.dev/fit: {what}");
    let words = Words::try_parse_from(text.split_whitespace()).map_err(|error| {
        let message = error.to_string();
        wrong(message.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned())
    })?;
    let asked = flags::asked(&words.settings).map_err(|error| wrong(error.to_string()))?;
    let (name, model) = match (&words.model, config) {
        (Some(name), Some(_)) => return Err(wrong(format!("two models: {name:?} and the configuration"))),
        (None, Some(config)) if has_too_many_layers(config) => {
            return Err(wrong(format!(
                "the configuration has more than {MOST_LAYERS} layers: set a size such as 18GiB"
            )));
        }
        (None, Some(config)) => ("config.json", read::config("config.json", config.as_bytes())),
        (Some(name), None) if name.contains(['/', '\\']) || Path::new(name).exists() => {
            return Err(wrong(format!(
                "{name:?} is a path: use a built-in name, or put the configuration into a ConfigMap"
            )));
        }
        (Some(name), None) => (name.as_str(), read::open(name)),
        (None, None) => {
            return Err(wrong("which model? give a built-in name, such as llama-3.2-1b".to_owned()));
        }
    };
    let model = model.map_err(|error| wrong(error.to_string()))?;
    let question = Question::about(name, model, &asked).map_err(|error| wrong(error.what))?;
    let answer =
        ask::ask(&question, &Wishes { top: 1, ..Wishes::default() }).map_err(|error| wrong(error.what))?;
    match answer.estimate {
        Some(estimate) if answer.fits && !answer.is_plan => {
            Ok(with_margin(estimate.process_total().0, estimate.error))
        }
        _ => Err(wrong(format!(
            "the run does not fit on a GPU of {}: name a larger one with --gpu or --memory, or change the run",
            question.memory()
        ))),
    }
}

/// True if the work would take too long, because each layer is laid out.
fn has_too_many_layers(config: &str) -> bool {
    let object: serde_json::Value = serde_json::from_str(config).unwrap_or_default();
    let nested = object.as_object().into_iter().flat_map(|members| members.values());
    let all = std::iter::once(&object).chain(nested).filter_map(serde_json::Value::as_object);
    let is_many = |value: &serde_json::Value| value.as_f64().is_some_and(|count| count > MOST_LAYERS as f64);
    all.flatten().any(|(name, value)| name.contains("layer") && is_many(value))
}

impl Programs {
    fn trace(&self, name: &str) -> Result<u64, String> {
        let wrong = |what: String| format!("gapless.dev/trace: {what}");
        let Some(folder) = &self.traces else {
            return Err(wrong("the extender has no folder with traces: start it with --traces".to_owned()));
        };
        // One plain name: no folder above or below, no absolute path.
        if Path::new(name).file_name() != Some(OsStr::new(name)) {
            return Err(wrong(format!(
                "invalid name {name:?}: use the name of a file in the folder of traces"
            )));
        }
        let path = folder.join(name);
        let trace = load::trace_quietly(&path).map_err(|error| wrong(error.to_string()))?;
        let analysis = load::analyse(&trace, &path).map_err(|error| wrong(error.to_string()))?;
        let report = analysis.report(name, 1);
        let peak = |device: &gapless_report::model::DeviceReport| {
            device.peak_reserved.unwrap_or(device.peak_allocated)
        };
        match report.devices.iter().map(peak).max() {
            Some(peak) if peak > 0 => Ok(with_margin(peak.saturating_add(OUTSIDE_TRACE), ABOVE_TRACE)),
            _ => Err(wrong(format!("{name}: the trace has no memory of a GPU"))),
        }
    }
}

fn with_margin(bytes: u64, share: f64) -> u64 {
    let bytes = Bytes(bytes).0 as f64 * (1.0 + share.max(0.0));
    (bytes.ceil() as u64).div_ceil(STEP) * STEP
}

#[cfg(test)]
mod tests {
    use super::*;

    fn programs() -> Programs {
        Programs { traces: Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/traces")) }
    }

    #[test]
    fn a_model_takes_what_fit_says_and_its_error_bar() {
        let size = |run: &str| programs().size(&Wish::Fit(run.to_owned()));
        let small = size("llama-3.2-1b --batch 1 --memory 80GiB").expect("it fits");
        let large = size("llama-3.2-1b --batch 2 --memory 80GiB").expect("it fits");
        assert!(small > 15 << 30 && small < large && large < 80 << 30, "{small} {large}");
        assert_eq!(small % STEP, 0);
        let config = read::preset_config("llama-3.2-1b").expect("it is built in");
        let same = Wish::Config(config.to_owned(), "--batch 1 --memory 80GiB".to_owned());
        assert_eq!(programs().size(&same), Ok(small), "the configuration says the same");
    }

    #[test]
    fn an_earlier_run_takes_its_peak_and_a_margin() {
        let size = programs().size(&Wish::Trace("gpt2_train_stacks.pickle.gz".to_owned())).expect("a trace");
        // The recording reserves 14.2 GiB at most.
        assert!(size > 15 << 30 && size < 17 << 30, "{size}");
    }

    #[test]
    fn what_makes_no_sense_or_names_files_is_refused() {
        for (wish, part) in [
            (Wish::Fit("/etc/passwd".to_owned()), "is a path"),
            (Wish::Fit("src".to_owned()), "is a path"),
            (Wish::Fit("no-such-model".to_owned()), "no-such-model"),
            (Wish::Fit("llama-3.2-1b --output x".to_owned()), "--output"),
            (Wish::Fit("--batch 8".to_owned()), "which model"),
            (Wish::Fit("llama-3.2-1b --batch many".to_owned()), "many"),
            (Wish::Fit("llama-3.2-1b --batch 64 --memory 8GiB".to_owned()), "does not fit"),
            (Wish::Config("{".to_owned(), String::new()), "gapless.dev/fit"),
            (Wish::Config("{\"num_hidden_layers\": 10000}".to_owned(), String::new()), "layers"),
            (Wish::Config("{\"text_config\": {\"n_layer\": 1e9}}".to_owned(), String::new()), "layers"),
            (Wish::Trace("../secret".to_owned()), "invalid name"),
            (Wish::Trace("none.pickle".to_owned()), "none.pickle"),
        ] {
            let why = programs().size(&wish).expect_err("it is refused");
            assert!(why.contains(part), "{wish:?}: {why}");
        }
        let why = Programs { traces: None }.size(&Wish::Trace("a".to_owned())).expect_err("no folder");
        assert!(why.contains("--traces"), "{why}");
    }
}
