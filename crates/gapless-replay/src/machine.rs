//! The allocators by name: the values of `--with`, and how each replays a script.

use crate::allocator::{Allocator, Inventory, Oom, Stats};
use crate::device::{Placement, SimDevice};
use crate::gapless::Gapless;
use crate::models::{self, Model, SettingsError};
use crate::run::{Failure, Watch, replay_until};
use crate::script::Script;
use crate::torch::{ConfError, Torch, TorchSettings, TorchVersion, version};
use gapless_pool::Options;
use gapless_trace::{Bytes, Tick, Trace};
use std::str::FromStr;

/// An allocator with all of its settings.
#[derive(Clone, Debug, PartialEq)]
pub enum Machine {
    Torch(TorchMachine),
    /// Another system's, with its settings as they were written.
    Model {
        model: Model,
        settings: String,
    },
    /// Our own, as it runs live.
    Gapless(Options),
    /// The floor: the whole run packed, with every lifetime known.
    Plan,
}

/// PyTorch's allocator.
#[derive(Clone, Debug, PartialEq)]
pub struct TorchMachine {
    pub version: TorchVersion,
    pub settings: TorchSettings,
    /// True for the settings that the run had: then the recording itself can be repeated.
    pub recorded: bool,
}

/// The allocator that a user asked for, before a trace fills in the rest.
#[derive(Clone, Debug, PartialEq)]
pub enum Spec {
    Torch { version: Option<TorchVersion>, conf: Conf },
    Model { model: Model, settings: String },
    Gapless,
    Plan,
}

/// The source of the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conf {
    Recorded,
    Default,
    Text(String),
}

/// The reason why a text names no allocator.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SpecError {
    #[error("unknown allocator {text:?}: use one of {}", names().join(", "))]
    Unknown { text: String },
    #[error(transparent)]
    Version(#[from] version::UnknownVersion),
    #[error(transparent)]
    Conf(#[from] ConfError),
    #[error("backend:cudaMallocAsync has no public specification, so there is no model of it")]
    MallocAsync,
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("{0} takes no settings")]
    NoSettings(&'static str),
}

/// Every name that a spec may begin with.
#[must_use]
pub fn names() -> Vec<&'static str> {
    [&["torch", "gapless"], models::NAMES, &["plan"]].concat()
}

impl FromStr for Spec {
    type Err = SpecError;

    /// `torch`, `torch:default`, `torch@2.6:expandable_segments:True`, `rmm-pool:initial:10GiB`, `plan`.
    fn from_str(text: &str) -> Result<Spec, SpecError> {
        let (head, conf) = match text.split_once(':') {
            Some((head, conf)) => (head.trim(), Some(conf.trim())),
            None => (text.trim(), None),
        };
        let (name, version) = match head.split_once('@') {
            Some((name, version)) => (name, Some(version)),
            None => (head, None),
        };
        match name {
            "torch" | "pytorch" => {
                let version = version.map(str::parse::<TorchVersion>).transpose()?;
                let conf = match conf {
                    None => Conf::Recorded,
                    Some("default" | "") => Conf::Default,
                    Some(text) => {
                        // Without a release the trace decides later: here it is enough that one release takes the
                        // settings.
                        let settings = match version {
                            Some(version) => TorchSettings::parse(text, version)?,
                            None => TorchSettings::parse(text, TorchVersion::DEFAULT).or_else(|error| {
                                TorchSettings::parse(text, TorchVersion::NEWEST).map_err(|_| error)
                            })?,
                        };
                        if settings.malloc_async {
                            return Err(SpecError::MallocAsync);
                        }
                        Conf::Text(text.to_owned())
                    }
                };
                Ok(Spec::Torch { version, conf })
            }
            "gapless" if conf.is_some() => Err(SpecError::NoSettings("gapless")),
            "gapless" => Ok(Spec::Gapless),
            "plan" if conf.is_some() => Err(SpecError::NoSettings("plan")),
            "plan" => Ok(Spec::Plan),
            _ if models::NAMES.contains(&name) => {
                Ok(Spec::Model { model: text.parse()?, settings: conf.unwrap_or_default().to_owned() })
            }
            _ => Err(SpecError::Unknown { text: text.to_owned() }),
        }
    }
}

impl Spec {
    /// The allocator that this names for `trace`.
    ///
    /// # Errors
    /// When the settings are not those of the trace's version.
    pub fn machine(&self, trace: &Trace) -> Result<Machine, SpecError> {
        match self {
            Spec::Plan => Ok(Machine::Plan),
            Spec::Gapless => Ok(Machine::Gapless(Options::default())),
            Spec::Model { model, settings } => {
                Ok(Machine::Model { model: *model, settings: settings.clone() })
            }
            Spec::Torch { version, conf } => {
                let of_trace = TorchVersion::of_producer(&trace.source.producer);
                let chosen = version.unwrap_or(of_trace);
                let recorded = trace.settings.clone().unwrap_or_default();
                let settings = match conf {
                    Conf::Recorded => TorchSettings::recorded(&recorded, chosen),
                    Conf::Default => TorchSettings::default(),
                    Conf::Text(text) => TorchSettings::parse(text, chosen)?,
                };
                let recorded = *conf == Conf::Recorded && chosen == of_trace && trace.source.torch_rules;
                Ok(Machine::Torch(TorchMachine { version: chosen, settings, recorded }))
            }
        }
    }
}

/// The extent of a replay, and whether to take the inventory at its end.
#[derive(Clone, Copy, Debug)]
pub struct Drive {
    /// The size of the card.
    pub capacity: u64,
    /// Ops before this one.
    pub until: u32,
    pub placement: Placement,
    pub inventory: bool,
}

impl Drive {
    /// All of a script on a card of `capacity` bytes.
    #[must_use]
    pub fn on(capacity: u64) -> Drive {
        Drive { capacity, until: u32::MAX, placement: Placement::Lowest, inventory: false }
    }
}

/// The result of a replay.
#[derive(Clone, Debug, Default)]
pub struct Driven {
    pub failure: Option<Failure>,
    pub stats: Stats,
    pub inventory: Option<Inventory>,
}

impl Machine {
    /// The name, without settings.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Machine::Torch(torch) => format!("torch@{}", torch.version),
            Machine::Model { model, .. } => model.name().to_owned(),
            Machine::Gapless(_) => "gapless".to_owned(),
            Machine::Plan => "plan".to_owned(),
        }
    }

    /// The settings as `--with` takes them; empty for the defaults.
    #[must_use]
    pub fn settings(&self) -> String {
        match self {
            Machine::Torch(torch) => torch.settings.to_conf(),
            Machine::Model { settings, .. } => settings.clone(),
            Machine::Gapless(_) | Machine::Plan => String::new(),
        }
    }

    /// Replays `script` on a simulated card. A plan has no replay; it gives nothing here.
    pub fn drive<W: Watch>(&self, script: &Script, drive: Drive, watch: &mut W) -> Driven {
        let device = SimDevice::placing(drive.capacity, drive.placement);
        match self {
            Machine::Torch(m) => {
                let mut torch = Torch::new(m.settings.clone(), m.version, device, &script.lanes);
                finish(script, &mut torch, drive, watch)
            }
            Machine::Model { model, .. } => match model.build(device, &script.lanes) {
                Ok(mut allocator) => finish(script, &mut *allocator, drive, watch),
                // It takes memory before the first request, and the card has not enough.
                Err(_) => {
                    let oom = Oom { free: Bytes(drive.capacity), ..Oom::default() };
                    Driven { failure: Some(Failure { op: 0, tick: Tick(0), oom }), ..Driven::default() }
                }
            },
            Machine::Gapless(options) => {
                finish(script, &mut Gapless::planned(drive.capacity, *options, &script.lanes), drive, watch)
            }
            Machine::Plan => Driven::default(),
        }
    }

    /// True if it takes a share of the card at once: the bytes that it holds then mean nothing without a card.
    #[must_use]
    pub fn takes_a_share(&self) -> bool {
        matches!(self, Machine::Model { model, .. } if model.takes_a_share())
    }
}

fn finish<A: Allocator + ?Sized, W: Watch>(
    script: &Script,
    allocator: &mut A,
    drive: Drive,
    watch: &mut W,
) -> Driven {
    let failure = replay_until(script, allocator, drive.until, watch);
    Driven { failure, stats: *allocator.stats(), inventory: drive.inventory.then(|| allocator.inventory()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_an_allocator() {
        for name in names() {
            let machine = name.parse::<Spec>().expect(name).machine(&Trace::default()).expect(name);
            assert!(machine.name().starts_with(name), "{name}");
        }
    }

    #[test]
    fn settings_and_versions_are_read() {
        let trace = Trace::default();
        let machine = |text: &str| text.parse::<Spec>().expect(text).machine(&trace).expect(text);
        assert_eq!(machine("torch@2.6:expandable_segments:True").name(), "torch@2.6");
        assert_eq!(machine("torch@2.6:expandable_segments:True").settings(), "expandable_segments:True");
        assert_eq!(machine("torch:default").settings(), "");
        assert_eq!(machine("rmm-pool:initial:10GiB").settings(), "initial:10GiB");
    }

    #[test]
    fn settings_are_those_of_the_release_that_the_trace_came_from() {
        let spec: Spec = "torch:expandable_segments_reserve:0.5".parse().expect("a setting of 2.15");
        let of = |producer: &str| {
            let mut trace = Trace::default();
            trace.source.producer = producer.to_owned();
            spec.machine(&trace)
        };
        let newest = of("torch 2.15 or later").expect("2.15 has it");
        assert_eq!(
            (newest.name(), newest.settings()),
            ("torch@2.15".into(), "expandable_segments_reserve:0.5".into())
        );
        for (producer, release) in [("torch 2.13", "2.13"), ("torch 2.14 or later", "2.14"), ("", "2.11")] {
            let error = of(producer).expect_err(producer).to_string();
            assert!(error.contains(&format!("torch {release} has no allocator setting")), "{error}");
            assert!(error.contains("torch 2.15 and later have it"), "{error}");
        }
        assert!("torch@2.14:expandable_segments_reserve:0.5".parse::<Spec>().is_err());
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, part) in [
            ("jemalloc", "torch, gapless, bfc, rmm-pool"),
            ("torch@1.9", "from 2.4 to 2.15"),
            ("torch:expandable:True", "did you mean expandable_segments"),
            ("torch:backend:cudaMallocAsync", "no model of it"),
            ("plan:fast", "takes no settings"),
            ("bfc:speed:9", "it has preallocate"),
        ] {
            let error = text.parse::<Spec>().expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
