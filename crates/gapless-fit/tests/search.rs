//! The search against a plain loop over all points, its census, and its refusals.

#[path = "common/models.rs"]
#[allow(dead_code)]
mod models;

use gapless_fit::checkpoint::simulate;
use gapless_fit::formulas::sharding::Sharding;
use gapless_fit::formulas::weights::Format;
use gapless_fit::hardware::{self, Cluster, Gpu};
use gapless_fit::model::Attention;
use gapless_fit::search::SearchError;
use gapless_fit::search::cost::CostModel;
use gapless_fit::search::holding::Holding;
use gapless_fit::search::memory::Layout;
use gapless_fit::search::profile::Profile;
use gapless_fit::search::serve::Serving;
use gapless_fit::search::space::{Config, Offload, Space, divisors};
use gapless_fit::search::train::{self, search};
use gapless_fit::search::why;
use gapless_fit::settings::{Checkpointing, Lora, Optimizer, Precision};

fn gpu(name: &str) -> Gpu {
    *hardware::find(name).expect("a known device")
}

fn open(profile: &Profile, cluster: &Cluster, batch: u64) -> Space {
    Space::open(profile, cluster, batch, 4096, Precision::Mixed, Optimizer::AdamWFused)
}

/// The cheapest point by trying all of them, one by one, in another order and without leaving any out.
fn cheapest(profile: &Profile, cluster: &Cluster, space: &Space) -> (Option<f64>, u64) {
    let model = CostModel::default();
    let (mut best, mut points) = (None::<f64>, 0);
    let gpus = cluster.gpus();
    for &checkpointing in space.checkpointing.iter().rev() {
        for &offload in space.offloads.iter().rev() {
            for &sharding in &space.shardings {
                for &chunks in &space.chunks {
                    for &expert in &space.expert {
                        for &context in &space.context {
                            for &pipeline in &space.pipeline {
                                for &tensor in &space.tensor {
                                    let inner = tensor * pipeline * context;
                                    if !gpus.is_multiple_of(inner)
                                        || !space.global_batch.is_multiple_of(gpus / inner)
                                    {
                                        continue;
                                    }
                                    let data = gpus / inner;
                                    if !(data * context * tensor).is_multiple_of(expert) {
                                        continue;
                                    }
                                    for micro_batch in divisors(space.global_batch / data) {
                                        points += 1;
                                        let config = Config {
                                            precision: space.precisions[0],
                                            optimizer: space.optimizers[0],
                                            checkpointing,
                                            sharding,
                                            data,
                                            tensor,
                                            pipeline,
                                            context,
                                            expert,
                                            chunks,
                                            micro_batch,
                                            accumulation: space.global_batch / data / micro_batch,
                                            length: space.length,
                                            offload,
                                            lora: space.lora,
                                            format: space.formats[0],
                                            sequence_parallel: space.sequence_parallel,
                                        };
                                        if let Some(cost) = price(profile, cluster, space, &config, &model) {
                                            best = Some(best.map_or(cost, |best: f64| best.min(cost)));
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    (best, points)
}

fn price(
    profile: &Profile,
    cluster: &Cluster,
    space: &Space,
    config: &Config,
    model: &CostModel,
) -> Option<f64> {
    let gathers = matches!(config.sharding, Sharding::Zero3 | Sharding::Fsdp);
    let alone = config.data * config.context == 1;
    let interleaves = config.chunks > 1;
    if alone && config.sharding != Sharding::Ddp
        || config.offload.parameters && !gathers && !alone
        || config.pipeline > 1 && gathers && config.offload.parameters && space.global_batch / config.data > 1
        || interleaves
            && (config.pipeline == 1 || !profile.blocks().is_multiple_of(config.pipeline * config.chunks))
    {
        return None;
    }
    let layout = Layout::new(profile, cluster, config);
    let holdings: Vec<Holding> =
        layout.stages.iter().map(|stage| Holding::new(&layout, stage, config)).collect();
    let room = cluster.gpu.memory() as f64 * (1.0 - space.headroom) - layout.overhead;
    let mut recompute = 0f64;
    for (stage, holding) in layout.stages.iter().zip(&holdings) {
        let chosen = holding.fit(&layout, stage, config, room)?;
        recompute = recompute.max(chosen.recompute);
    }
    let traffic = model.traffic(profile, cluster, &layout, config);
    Some(model.step(cluster, &layout, &traffic, &holdings, config, recompute).total())
}

#[test]
fn nothing_cheaper_fits_than_what_is_found() {
    let small = Profile::from_decoder("small", &models::llama(12, 2048, 16, 8, 5632, 32000));
    let large = Profile::from_decoder("70B", &models::llama3_70b());
    let experts = Profile::from_decoder("V3", &models::deepseek_v3());
    let eager = gapless_fit::model::Decoder {
        attention: Attention::Eager,
        ..models::llama(16, 2048, 16, 8, 5632, 32000)
    };
    let eager = Profile::from_decoder("eager", &eager);
    let cases = [
        (&small, Cluster::new(gpu("t4"), 4, 1), 16),
        (&small, Cluster::new(gpu("h100"), 1, 1), 8),
        (&eager, Cluster::new(gpu("a100-40"), 2, 1), 8),
        (&large, Cluster::new(gpu("h100"), 8, 2), 32),
        (&large, Cluster::new(gpu("l4"), 8, 1), 8),
        (&experts, Cluster::new(gpu("h200"), 8, 8), 64),
    ];
    for (profile, cluster, batch) in cases {
        let space = open(profile, &cluster, batch);
        let found =
            search(profile, &cluster, &space, &CostModel::default(), 5).expect("a question that makes sense");
        let (best, points) = cheapest(profile, &cluster, &space);
        assert_eq!(found.plans.first().map(|plan| plan.cost.total()), best, "{}", profile.name);
        let census = found.census;
        assert_eq!(census.points, points, "{}", profile.name);
        let sum = census.examined + census.by_memory + census.by_cost + census.by_rule;
        assert_eq!(census.points, sum, "{census:?}");
        assert!(found.plans.is_sorted_by(|a, b| a.cost.total() <= b.cost.total()));
        assert_eq!(found.plans.is_empty(), found.least_needed.is_some());
        if let Some(least) = found.least_needed {
            assert!(least > (cluster.gpu.memory() as f64 * 0.98) as u64, "{}: {least}", profile.name);
        }
        for plan in &found.plans {
            assert!(plan.account.peak <= cluster.gpu.memory() as f64, "{plan:?}");
            assert_eq!(plan.config.gpus(), cluster.gpus());
            assert_eq!(plan.config.global_batch(), batch);
            assert!(plan.largest_micro_batch >= plan.config.micro_batch);
        }
    }
}

#[test]
fn more_memory_never_costs_more() {
    let profile = Profile::from_decoder("8B", &models::llama3_8b());
    let mut last = f64::INFINITY;
    let mut recomputed = Vec::new();
    for gib in [60u64, 70, 80, 90, 100, 120, 140, 192] {
        let device = Gpu { memory_mib: gib << 10, ..gpu("h100") };
        let cluster = Cluster::new(device, 1, 1);
        let mut space = Space::open(&profile, &cluster, 16, 4096, Precision::Bf16, Optimizer::AdamWFused);
        space.offloads = vec![Offload::default()];
        let found = search(&profile, &cluster, &space, &CostModel::default(), 1).expect("sensible");
        let cost = found.plans.first().map_or(f64::INFINITY, |plan| plan.cost.total());
        assert!(cost <= last, "{gib} GiB");
        last = cost;
        recomputed.extend(found.plans.first().map(|plan| plan.counts[0][2]));
    }
    assert!(recomputed.windows(2).any(|pair| pair[0] > pair[1]), "less is recomputed: {recomputed:?}");
}

#[test]
fn seventy_billion_on_one_node_is_sharded_and_nothing_smaller_is() {
    let large = Profile::from_decoder("70B", &models::llama3_70b());
    let cluster = Cluster::new(gpu("h100"), 8, 4);
    let found =
        search(&large, &cluster, &open(&large, &cluster, 64), &CostModel::default(), 20).expect("sensible");
    assert!(!found.plans.is_empty());
    for plan in &found.plans {
        let c = &plan.config;
        let split = c.tensor * c.pipeline > 1 || c.sharding >= Sharding::Zero2 || c.offload.optimizer;
        assert!(split, "1.1 TB of states on one device: {c:?}");
    }
    // On a single T4 nothing fits, and the error tells the least need.
    let alone = Cluster::new(gpu("t4"), 1, 1);
    let found = search(&large, &alone, &open(&large, &alone, 1), &CostModel::default(), 1).expect("sensible");
    assert!(found.plans.is_empty() && found.least_needed.is_some_and(|least| least > alone.gpu.memory()));
}

#[test]
fn adapters_over_a_quantised_base_fit_where_training_does_not() {
    let large = Profile::from_decoder("70B", &models::llama3_70b());
    let cluster = Cluster::new(gpu("h100"), 1, 1);
    let mut space = Space::open(&large, &cluster, 1, 2048, Precision::Bf16, Optimizer::AdamW);
    space.offloads = vec![Offload::default()];
    assert!(search(&large, &cluster, &space, &CostModel::default(), 1).expect("sensible").plans.is_empty());
    space.lora = Some(Lora::all(16));
    space.formats = vec![Format::Half, Format::Nf4];
    let found = search(&large, &cluster, &space, &CostModel::default(), 1).expect("sensible");
    assert_eq!(found.plans[0].config.format, Format::Nf4);
    assert!(found.plans[0].account.weights < 50e9 && found.plans[0].account.states < 2e9);
}

#[test]
fn a_given_point_has_an_account() {
    let profile = Profile::from_decoder("8B", &models::llama3_8b());
    let cluster = Cluster::new(gpu("h200"), 1, 1);
    let space = Space::open(&profile, &cluster, 1, 2048, Precision::Bf16, Optimizer::AdamW);
    let found = search(&profile, &cluster, &space, &CostModel::default(), 1).expect("sensible");
    let config = found.plans[0].config;
    let account = train::account(&profile, &cluster, &config, f64::MAX);
    let p = 8_030_261_248f64;
    assert_eq!((account.weights, account.gradients, account.states), (2.0 * p, 2.0 * p, 4.0 * p));
    assert_eq!(account.optimizer_step, 2.0 * p);
    assert!(account.peak >= 10.0 * p);
}

#[test]
fn bad_questions_are_refused_with_the_reason() {
    let profile = Profile::from_decoder("8B", &models::llama3_8b());
    let cluster = Cluster::new(gpu("h100"), 8, 1);
    let space = open(&profile, &cluster, 64);
    let refuse = |space: Space| {
        let error = search(&profile, &cluster, &space, &CostModel::default(), 1).expect_err("refused");
        (error.to_string(), error)
    };
    let (text, error) = refuse(Space { global_batch: 0, ..space.clone() });
    assert_eq!(
        (text.as_str(), error),
        ("the batch is 0: give at least 1", SearchError::Zero { what: "the batch" })
    );
    let (text, _) = refuse(Space { tensor: vec![3], ..space.clone() });
    assert_eq!(
        text,
        "the tensor-parallel degree 3 does not divide the number of GPUs 8: these do: 1, 2, 4, 8"
    );
    let (text, _) = refuse(Space { tensor: vec![4], pipeline: vec![4], ..space.clone() });
    assert!(text.starts_with("the product of the degrees, 16 does not divide"), "{text}");
    let (text, _) = refuse(Space { expert: vec![4], ..space.clone() });
    assert!(text.contains("a model without experts"), "{text}");
    let (text, _) = refuse(Space { chunks: vec![2], pipeline: vec![1], ..space.clone() });
    assert!(text.contains("one pipeline stage"), "{text}");
    let (text, _) = refuse(Space { micro_batches: vec![5], ..space.clone() });
    assert!(text.starts_with("the micro-batch 5 does not divide the batch 64"), "{text}");
    let (text, _) = refuse(Space { tensor: vec![], ..space.clone() });
    assert!(text.contains("name at least one"), "{text}");
    let away = Offload { parameters: true, ..Offload::default() };
    let (text, _) = refuse(Space { offloads: vec![away], shardings: vec![Sharding::Zero1], ..space.clone() });
    assert!(text.contains("only with zero 3 or fsdp"), "{text}");
    let alone = Cluster::new(gpu("h100"), 1, 1);
    let error = search(
        &profile,
        &alone,
        &Space { shardings: vec![Sharding::Fsdp], ..open(&profile, &alone, 4) },
        &CostModel::default(),
        1,
    );
    assert!(error.expect_err("refused").to_string().contains("one GPU"));
}

#[test]
fn fixed_dimensions_stay_fixed() {
    let profile = Profile::from_decoder("8B", &models::llama3_8b());
    let cluster = Cluster::new(gpu("h100"), 8, 1);
    let space = Space {
        tensor: vec![2],
        checkpointing: vec![Checkpointing::Full],
        micro_batches: vec![2],
        ..open(&profile, &cluster, 64)
    };
    for plan in search(&profile, &cluster, &space, &CostModel::default(), 50).expect("sensible").plans {
        assert_eq!((plan.config.tensor, plan.config.micro_batch), (2, 2));
        assert_eq!(plan.counts[0][2], profile.blocks() / plan.config.pipeline);
    }
}

#[test]
fn serving_holds_what_is_asked_or_says_how_much_it_holds() {
    let profile = Profile::from_decoder("8B", &models::llama3_8b());
    let cluster = Cluster::new(gpu("h100"), 1, 1);
    let served = Serving::open(&profile, &cluster, 8192, 32).search(&profile, &cluster).expect("sensible");
    let plan = served.plans[0];
    assert_eq!(plan.cache_per_token, 131_072);
    assert_eq!(plan.weights, 8_030_261_248 * 2);
    assert!(plan.tokens >= 32 * 8192 && plan.tokens.is_multiple_of(16));
    let all = plan.weights + plan.activations + plan.overhead + plan.tokens * plan.cache_per_token;
    assert!(all as f64 <= cluster.gpu.memory() as f64 * 0.9);
    // Ten times as many sequences do not fit; half the cache's width helps.
    let many = Serving::open(&profile, &cluster, 8192, 100);
    let served = many.search(&profile, &cluster).expect("sensible");
    assert!(
        served.plans.is_empty()
            && served.nearest.is_some_and(|near| near.tokens <= plan.tokens && near.tokens > 0)
    );
    let narrow = Serving { cache_bytes: vec![1, 2], formats: vec![Format::Half, Format::Fp8], ..many };
    let served = narrow.search(&profile, &cluster).expect("sensible");
    assert!(served.plans.iter().all(|plan| plan.cache_bytes == 1) && !served.plans.is_empty());
    let error = Serving { sequences: 0, ..narrow }.search(&profile, &cluster).expect_err("refused");
    assert_eq!(error, SearchError::Zero { what: "the number of sequences" });
}

#[test]
fn serving_divides_over_a_node() {
    let large = Profile::from_decoder("70B", &models::llama3_70b());
    let cluster = Cluster::new(gpu("a100-80"), 8, 1);
    let served = Serving::open(&large, &cluster, 4096, 64).search(&large, &cluster).expect("sensible");
    assert!(served.plans.iter().all(|plan| plan.tensor * plan.pipeline >= 2));
    let eight = served.plans.iter().find(|plan| plan.tensor == 8).expect("a whole node");
    assert_eq!(eight.cache_per_token, 327_680 / 8);
    let latent = Profile::from_decoder("V3", &models::deepseek_v3());
    let node = Cluster::new(gpu("h200"), 8, 1);
    let serving = Serving { formats: vec![Format::Fp8], ..Serving::open(&latent, &node, 4096, 8) };
    let served = serving.search(&latent, &node).expect("sensible");
    let plan = served.plans.iter().find(|plan| plan.tensor == 8).expect("671 GB over eight");
    assert_eq!(plan.cache_per_token, 70_272, "a latent is whole on every rank");
}

#[test]
fn a_plans_estimate_bounds_its_chain_and_the_chain_needs_no_more_recomputation() {
    let profile = Profile::from_decoder("8B", &models::llama3_8b());
    for (name, batch) in [("h100", 1), ("h200", 16), ("b200", 64)] {
        let cluster = Cluster::new(gpu(name), 1, 1);
        let mut space = Space::open(&profile, &cluster, batch, 4096, Precision::Bf16, Optimizer::AdamWFused);
        space.offloads = vec![Offload::default()];
        let found = search(&profile, &cluster, &space, &CostModel::default(), 1).expect("sensible");
        let Some(plan) = found.plans.first() else { panic!("{name}: needs {:?}", found.least_needed) };
        let layout = Layout::new(&profile, &cluster, &plan.config);
        let holding = Holding::new(&layout, &layout.stages[0], &plan.config);
        let chain = gapless_fit::search::holding::chain(&profile, &layout, &holding, &plan.config);
        let recomputed = plan.counts[0][2] as usize;
        let choices: Vec<usize> = (0..32).map(|block| usize::from(block < recomputed)).collect();
        let walked = simulate::chain(&chain, &choices);
        assert!(
            walked.peak as f64 <= plan.account.peak * 1.001,
            "{name}: {walked:?} against {:?}",
            plan.account
        );
        let budget = (cluster.gpu.memory() as f64 * (1.0 - space.headroom)) as u64;
        let best = chain.solve(budget).expect("the plan fits");
        assert!(
            best.is_optimal() && best.cost <= walked.cost,
            "{name}: {} blocks against {recomputed}",
            best.choices.iter().sum::<usize>()
        );
    }
}

#[test]
fn every_number_of_a_plan_says_where_it_comes_from() {
    let profile = Profile::from_decoder("70B", &models::llama3_70b());
    let cluster = Cluster::new(gpu("h100"), 8, 4);
    let found = search(&profile, &cluster, &open(&profile, &cluster, 64), &CostModel::default(), 1)
        .expect("sensible");
    let plan = &found.plans[0];
    let terms = why::account(&profile, &plan.config, &plan.account);
    let value = |name: &str| terms.iter().find(|term| term.name == name).map(|term| term.value);
    assert_eq!(value("peak"), Some(plan.account.peak.round() as u64));
    assert_eq!(value("weights"), Some(plan.account.weights.round() as u64));
    assert!(terms.iter().all(|term| !term.equation.is_empty() && term.to_string().contains("t = ")));
    let parts = why::cost(&plan.cost, &CostModel::default());
    let sum: f64 = parts.iter().map(|(_, seconds, _)| seconds).sum();
    assert!((sum - plan.cost.total()).abs() < 1e-9 * sum, "the parts are the whole");
}
