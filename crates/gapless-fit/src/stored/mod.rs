//! The format of a quantised checkpoint's weights: which module has which layout. `weigh` has the bytes of a model's
//! parameters in it.

pub mod layout;
pub mod pattern;

pub use layout::{Layout, Piece, ScaleType, Scales};
pub use pattern::Pattern;

/// The source of a format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The configuration beside the weights.
    Checkpoint,
    /// A built-in name, whose files were published in it.
    Released,
    /// The user asked for it.
    Asked,
}

/// Modules, and their layout; `None` if they keep the model's own type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub modules: Pattern,
    pub layout: Option<Layout>,
}

/// A format of weights, module by module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The method, as `quantization_config` names it.
    pub method: &'static str,
    /// Method, bits and groups, as people say it.
    pub words: String,
    /// The first that matches counts.
    pub rules: Vec<Rule>,
    /// Modules that no rule names: linear layers of blocks, experts, and the head.
    pub linears: Option<Layout>,
    pub experts: Option<Layout>,
    pub head: Option<Layout>,
    pub origin: Origin,
    /// Bytes of all of it, if the headers of its files tell them.
    pub total: Option<u64>,
}

impl Stored {
    /// Files whose tensors have types that only their headers tell: so many bytes for so many elements.
    #[must_use]
    pub fn listed(method: &'static str, bytes: u64, elements: u64) -> Stored {
        let thousandths = (u128::from(bytes) * 8000 / u128::from(elements.max(1))) as u64;
        let layout = Some(Layout::Bits { thousandths });
        let embeddings = ["embed_tokens", "wte", "embed_in", "word_embeddings"];
        let rule = |name: &str| Rule { modules: Pattern::Name(name.to_owned()), layout };
        Stored {
            method,
            words: format!("{method}, {:.2} bits a weight in the mean", thousandths as f64 / 1000.0),
            rules: embeddings.map(rule).to_vec(),
            linears: layout,
            experts: layout,
            head: layout,
            origin: Origin::Checkpoint,
            total: Some(bytes),
        }
    }

    /// Bits of the smallest layout: people say 4-bit weights if some have four.
    #[must_use]
    pub fn bits(&self) -> f64 {
        let layouts = [self.linears, self.experts, self.head].into_iter().flatten();
        let ruled = self.rules.iter().filter_map(|rule| rule.layout);
        layouts.chain(ruled).map(Layout::bits).fold(16.0, f64::min)
    }
}
