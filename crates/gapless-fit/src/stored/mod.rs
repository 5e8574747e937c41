//! How the weights of a quantised checkpoint lie in its files: which module has which layout. `weigh` has what that
//! makes of a model's parameters.

pub mod layout;
pub mod pattern;

pub use layout::{Layout, Piece, ScaleType, Scales};
pub use pattern::Pattern;

/// Where a format comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The configuration beside the weights.
    Checkpoint,
    /// A built-in name, whose files were published in it.
    Released,
    /// What the user asked for.
    Asked,
}

/// Modules, and their layout; `None` where they keep the model's own type.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    pub modules: Pattern,
    pub layout: Option<Layout>,
}

/// A format of weights, module by module.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// The method, as `quantization_config` names it.
    pub method: &'static str,
    /// Method, bits and groups, as people say it.
    pub words: String,
    /// The first that matches counts.
    pub rules: Vec<Rule>,
    /// What no rule names: linear layers of blocks, experts, and the head.
    pub linears: Option<Layout>,
    pub experts: Option<Layout>,
    pub head: Option<Layout>,
    pub origin: Origin,
}

impl Stored {
    /// Bits of the smallest layout: what people call 4-bit weights has some in four.
    #[must_use]
    pub fn bits(&self) -> f64 {
        let layouts = [self.linears, self.experts, self.head].into_iter().flatten();
        let ruled = self.rules.iter().filter_map(|rule| rule.layout);
        layouts.chain(ruled).map(Layout::bits).fold(16.0, f64::min)
    }
}
