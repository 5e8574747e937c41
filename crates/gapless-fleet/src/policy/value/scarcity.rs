//! The scarcity of each model of GPU. Pods that accept any model should leave those free that others need.
//!
//! The scarcity of a model is the part of its capacity that pods with a choice of models will want, if the demand is as
//! large as the whole cluster. A pod spreads over the models that it accepts by their capacity. Pods that accept every
//! model do not count. The lowest scarcity of all models is subtracted, so that none is scarce if all pods accept any.

use crate::ledger::Ledger;
use crate::mix::{Mix, demand};

/// From 0 to 1 for each model of the ledger.
pub(super) fn scarcity(ledger: &Ledger, mix: &Mix, units: u64) -> Vec<f64> {
    let models = ledger.models();
    let mut capacity = vec![0.0; models.len()];
    for node in 0..ledger.len() as u32 {
        capacity[ledger.slot(node).model as usize] += f64::from(ledger.node(node).gpus) * 1000.0;
    }
    let asked = |part: &crate::mix::Part| (demand(&part.request, units) * part.count) as f64;
    let total: f64 = mix.parts.iter().map(asked).sum();
    let scale = if total > 0.0 { capacity.iter().sum::<f64>() / total } else { 0.0 };
    let mut wanted = vec![0.0; models.len()];
    for part in mix.parts.iter().filter(|part| part.request.gpus > 0) {
        let accepts = |model: usize| capacity[model] > 0.0 && part.request.accepts(&models[model].name);
        let accepted: f64 =
            (0..models.len()).filter(|&model| accepts(model)).map(|model| capacity[model]).sum();
        if accepted == 0.0 || (0..models.len()).all(|model| capacity[model] == 0.0 || accepts(model)) {
            continue;
        }
        for model in (0..models.len()).filter(|&model| accepts(model)) {
            wanted[model] += asked(part) * scale * capacity[model] / accepted;
        }
    }
    let load = |model: usize| if capacity[model] > 0.0 { wanted[model] / capacity[model] } else { 0.0 };
    let loads: Vec<f64> = (0..models.len()).map(|model| load(model).min(1.0)).collect();
    let with_gpus = (0..models.len()).filter(|&model| capacity[model] > 0.0);
    let lowest = with_gpus.map(|model| loads[model]).fold(1.0, f64::min);
    loads.iter().map(|load| (load - lowest).max(0.0)).collect()
}
