use gapless_fleet::{arrivals, policy::Policy, sim, words::*};
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let dir = "/tmp/fl";
    let rows = |f: &str| -> Vec<Vec<String>> { std::fs::read_to_string(format!("{dir}/{f}.csv")).unwrap().lines().skip(1).map(|l| l.split(',').map(str::to_owned).collect()).collect() };
    let nodes: Vec<Node> = rows("openb_node_list_gpu_node").iter().map(|r| Node { name: r[0].clone(), cpu_milli: r[1].parse().unwrap(), memory: r[2].parse::<u64>().unwrap() << 20, gpus: r[3].parse().unwrap(), model: r[4].clone(), gpu_memory: None, max_pods: MAX_PODS }).collect();
    let seeds: Vec<i64> = args[3].split(',').map(|s| s.parse().unwrap()).collect();
    for trace in args[1].split(',') {
        let pods: Vec<Pod> = rows(&format!("openb_pod_list_{trace}")).iter().map(|r| Pod { name: r[0].clone(), request: Request { cpu_milli: r[1].parse().unwrap(), memory: r[2].parse::<u64>().unwrap() << 20, gpus: r[3].parse().unwrap(), share: Share::Milli(r[4].parse().unwrap()), models: r.get(5).cloned().unwrap_or_default() }, created: None, deleted: None, priority: 0, gang: String::new() }).collect();
        for policy in args[2].split(',') {
            let (mut a, mut b, mut dps, mut prep) = (vec![], vec![], 0.0, 0.0);
            for &seed in &seeds {
                let arr = arrivals::shuffled(&pods, &nodes, 1000, Some(1.3), seed).unwrap();
                let r = sim::run(&nodes, &pods, &arr, sim::Options::default(), |l, m, g| Policy::named(policy, l, m, g).unwrap());
                a.push(r.columns[100].unwrap()); b.push(r.columns[130].unwrap());
                dps += r.decisions_per_second() / seeds.len() as f64; prep += r.preparing.as_secs_f64() / seeds.len() as f64;
            }
            let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
            println!("{trace:12} {policy:10} 100: {:.2}  130: {:.2}   {dps:.0}/s prep {prep:.3}  {:?}", mean(&a), mean(&b), b.iter().map(|x| (x * 100.0).round() / 100.0).collect::<Vec<_>>());
        }
    }
}
