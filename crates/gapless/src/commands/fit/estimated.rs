//! From a question of `gapless fit` to one of `gapless estimate`: `--run`, and the line that a refusal names.
//!
//! Flags that both have keep their names. `--run` refuses flags that an estimate does not have; a refusal's line
//! names them beside it.

use super::failure;
use crate::cli::estimate::{ConfigurationArgs, EstimateArgs, EstimateFormat, PaceArgs};
use crate::cli::fit::{FitArgs, FitFormat, Settings};
use crate::failure::Failure;
use anyhow::Result;
use gapless_fit::ask::AskError;
use gapless_fit::hardware;
use gapless_fit::read::preset_config;
use std::path::PathBuf;

/// Cards by fit's names, with the names that an estimate has for them.
const CARDS: [(&str, &str); 6] = [
    ("h200", "h200"),
    ("h100", "h100"),
    ("a100-80", "a100-80"),
    ("b200", "b200"),
    ("4090", "rtx-4090"),
    ("l40s", "l40s"),
];

/// The arguments of `gapless estimate` for `gapless fit --run`.
pub(super) fn args(fit: &FitArgs) -> Result<EstimateArgs> {
    let Some(model) = &fit.model else {
        let help = "name a script, as in `gapless fit --run train.py -- --batch 8`, or a configuration";
        return Err(Failure::new("--run: what is to run?", help).into());
    };
    let left = left_out(fit);
    if let Some(flag) = left.first() {
        let help = "leave it out; a script can do what no flag says: `gapless fit --run script.py`";
        return Err(Failure::new(format!("{flag} has no meaning with --run"), help).into());
    }
    let run = flags(&fit.settings);
    let nproc = fit.settings.gpus.unwrap_or(1);
    Ok(EstimateArgs {
        script: PathBuf::from(model),
        jax: false,
        dumps: None,
        device: card(fit.settings.gpu.as_deref())?.to_owned(),
        pace: PaceArgs::default(),
        nproc: u32::try_from(nproc).ok().filter(|n| (1..=64).contains(n)).ok_or_else(|| {
            Failure::new(
                format!("--gpus {nproc}: an estimate runs 1 to 64 ranks"),
                "give fewer; a rank takes about what each of many takes",
            )
        })?,
        format: match fit.format {
            FitFormat::Text => EstimateFormat::Text,
            FitFormat::Json => EstimateFormat::Json,
            FitFormat::Html => EstimateFormat::Html,
        },
        save: None,
        run,
        arguments: fit.arguments.clone(),
    })
}

/// The error of a question, with the line that estimates the model if running it would give an answer.
pub(super) fn refused(error: AskError, model: &str, fit: &FitArgs) -> Failure {
    if !error.estimable || preset_config(model).is_some_and(|text| text.contains("\"torchvision_")) {
        return failure(error);
    }
    let mut words = vec!["gapless".to_owned(), "estimate".to_owned(), quoted(model)];
    words.extend(flags(&fit.settings).words());
    let mut left: Vec<&str> = left_out(fit);
    match card(fit.settings.gpu.as_deref()) {
        Ok("h200") => {}
        Ok(card) => words.extend(["--device".to_owned(), card.to_owned()]),
        Err(_) => left.push("--gpu"),
    }
    if fit.settings.gpus.is_some_and(|gpus| gpus > 1) {
        left.push("--gpus");
    }
    let line = words.join(" ");
    let beside = match left.as_slice() {
        [] => String::new(),
        [one] => format!(" (without {one}, which it does not have)"),
        many => format!(" (without {}, which it does not have)", many.join(", ")),
    };
    Failure::new(
        error.what,
        format!("run `{line}`{beside}: torch itself runs the model without a GPU; {}", error.help),
    )
}

/// The flags of a run that both have.
fn flags(settings: &Settings) -> ConfigurationArgs {
    ConfigurationArgs {
        train: settings.train,
        infer: settings.infer,
        batch: settings.batch,
        seq: settings.seq,
        image: settings.image,
        seconds: None,
        precision: settings.precision,
        optimizer: settings.optimizer,
        checkpointing: settings.checkpointing,
        attention: settings.attention,
        grad_accum: settings.grad_accum,
    }
}

/// Flags that were given and that an estimate does not have.
fn left_out(fit: &FitArgs) -> Vec<&'static str> {
    let s = &fit.settings;
    [
        ("--lora", s.lora.is_some()),
        ("--kv-tokens", s.kv_tokens.is_some()),
        ("--engine", s.engine.is_some()),
        ("--utilization", s.utilization.is_some()),
        ("--stream", s.stream.is_some()),
        ("--quantize", s.quantize.is_some()),
        ("--sparsity", s.sparsity.is_some()),
        ("--memory", s.memory.is_some()),
        ("--nodes", s.nodes.is_some_and(|n| n > 1)),
        ("--host-memory", s.host_memory.is_some()),
        ("--dp", s.dp.is_some()),
        ("--tp", s.tp.is_some()),
        ("--pp", s.pp.is_some()),
        ("--cp", s.cp.is_some()),
        ("--ep", s.ep.is_some()),
        ("--zero", s.zero.is_some()),
        ("--offload", s.offload.is_some()),
        ("--optimize", fit.optimize),
        ("--max-batch", fit.max_batch),
        ("--why", fit.why),
        ("--emit", fit.emit.is_some()),
        ("--compare", fit.compare.is_some()),
        ("--html", fit.html.is_some()),
        ("--output", fit.output.is_some()),
    ]
    .into_iter()
    .filter_map(|(flag, given)| given.then_some(flag))
    .collect()
}

/// The estimate's card for a GPU of fit.
fn card(gpu: Option<&str>) -> Result<&'static str> {
    let Some(asked) = gpu else { return Ok(CARDS[0].1) };
    // The names of estimate's own cards are taken too.
    if let Some((_, card)) = CARDS.iter().find(|(_, card)| card.eq_ignore_ascii_case(asked)) {
        return Ok(card);
    }
    let known = hardware::find(asked).ok().and_then(|gpu| CARDS.iter().find(|(name, _)| *name == gpu.name));
    known.map(|(_, card)| *card).ok_or_else(|| {
        let cards: Vec<&str> = CARDS.iter().map(|(_, card)| *card).collect();
        let help = format!("give one of {}", cards.join(", "));
        Failure::new(format!("--gpu {asked}: estimate does not describe this card"), help).into()
    })
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./+=:,@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::{card, quoted};

    #[test]
    fn cards_of_fit_have_their_names_of_estimate() {
        let of = |name| card(Some(name)).ok();
        assert_eq!(of("4090"), Some("rtx-4090"));
        assert_eq!(of("RTX-4090"), Some("rtx-4090"));
        assert_eq!((of("a100-80"), of("a100")), (Some("a100-80"), None), "two cards are called a100");
        assert_eq!(of("H100-SXM"), Some("h100"));
        assert_eq!(of("t4"), None);
        assert_eq!(card(None).ok(), Some("h200"));
    }

    #[test]
    fn words_survive_a_shell() {
        assert_eq!(quoted("./a/config.json"), "./a/config.json");
        assert_eq!(quoted("my model"), "'my model'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
