//! Lists of any kind: the default policy works for mixes with few sizes for its linear program, and invalid files are
//! refused with the line and the reason.

mod support;

use gapless_fleet::arrivals::shuffled;
use gapless_fleet::check::{self, check};
use gapless_fleet::mix::Mix;
use gapless_fleet::policy::value::hole_values;
use gapless_fleet::sim::{Options, Outcome};
use gapless_fleet::words::{Pod, Request};
use gapless_fleet::{log, read};
use support::{Dice, node, pod, request, run};

fn named(requests: Vec<Request>) -> Vec<Pod> {
    requests.into_iter().enumerate().map(|(i, request)| pod(&format!("p{i:05}"), request)).collect()
}

#[test]
fn every_kind_of_mix_is_placed_and_judged_right() {
    let mut dice = Dice(5);
    let nodes: Vec<_> = (0..30)
        .map(|i| node(&format!("n{i}"), dice.of(&[8, 32, 400]), dice.of(&[1, 2, 8, 16]), "A"))
        .collect();
    let any = |dice: &mut Dice| 1 + dice.below(999) as u32;
    let mixes: Vec<(&str, Vec<Request>)> = vec![
        ("whole GPUs only", (0..80).map(|i| request(1, 1 + i % 3, 1000, "")).collect()),
        ("one size", (0..80).map(|_| request(1, 1, 510, "")).collect()),
        ("one thousandth", (0..80).map(|_| request(0, 1, 1, "")).collect()),
        ("CPUs only", (0..80).map(|_| request(1, 0, 0, "")).collect()),
        ("one pod", vec![request(1, 1, 700, "")]),
        ("every size", (0..600).map(|_| request(0, 1, any(&mut dice), "")).collect()),
        (
            "no two alike",
            (0..1_500).map(|i| Request { cpu_milli: i, ..request(0, 1, any(&mut dice), "") }).collect(),
        ),
        ("several parts", (0..80).map(|_| request(1, 2, any(&mut dice), "")).collect()),
        ("no such model", (0..80).map(|i| request(1, 1, 500, if i % 2 == 0 { "" } else { "Z" })).collect()),
        ("too large", (0..80).map(|i| request(1, if i % 2 == 0 { 1 } else { 99 }, 1000, "")).collect()),
    ];
    for (name, requests) in mixes {
        let pods = named(requests);
        let arrivals = shuffled(&pods, &nodes, 1000, Some(0.2), 9).expect("arrivals");
        for policy in ["fgd", "gapless"] {
            let run =
                run(&nodes, &pods, &arrivals, policy, Options { fragments: true, ..Options::default() });
            let mut written = Vec::new();
            log::write(&mut written, &nodes, &pods, &arrivals, &run).expect("written");
            let rows = log::read(&mut written.as_slice()).expect("a log");
            let options = check::Options { expected: Some(&arrivals), ..check::Options::default() };
            check(&nodes, &pods, &rows, options)
                .unwrap_or_else(|wrong| panic!("{name}, {policy}: {wrong:?}"));
        }
    }
}

#[test]
fn holes_are_worth_a_finite_amount_that_grows_with_them() {
    let mut dice = Dice(8);
    for round in 0..60 {
        let sizes: Vec<u32> = (0..1 + dice.below(60)).map(|_| 1 + dice.below(1000) as u32).collect();
        let requests: Vec<Request> = (0..200).map(|_| request(1, 1, dice.of(&sizes), "")).collect();
        let worth = hole_values(&Mix::of(requests.iter()), 1000, 100);
        assert!(worth.iter().all(|worth| worth.is_finite()), "round {round}");
        assert!(worth.windows(2).all(|pair| pair[0] <= pair[1]), "round {round}");
        assert!(worth[1000] > 0.0 && worth[1000] < 1e5, "round {round}: {}", worth[1000]);
    }
}

#[test]
fn moves_make_room_and_are_judged_right() {
    let nodes = vec![node("b", 8, 1, "B"), node("c", 8, 1, "C")];
    let small = |name: &str| pod(name, request(1, 1, 400, "B|C"));
    let alone = [small("first")];
    let arrivals = gapless_fleet::arrivals::listed(&alone, &nodes, 1);
    let first = run(&nodes, &alone, &arrivals, "bestfit", Options::default());
    let Outcome::Placed { node: taken, .. } = first.outcomes[0] else { panic!("it fits") };
    // A whole GPU of the model that the first pod is on: there is only that one.
    let pods = [small("first"), pod("whole", request(1, 1, 1000, &nodes[taken as usize].model))];
    let arrivals = gapless_fleet::arrivals::listed(&pods, &nodes, 1);
    assert_eq!(run(&nodes, &pods, &arrivals, "bestfit", Options::default()).placed(), 1);
    let options = Options { moves: 10, moves_for_one: 2, ..Options::default() };
    let moved = run(&nodes, &pods, &arrivals, "bestfit", options);
    assert_eq!((moved.placed(), moved.moves.len()), (2, 1), "{:?}", moved.outcomes);
    assert_eq!(moved.moves[0].1.gained_milli, 1000);
    let (mut written, mut moves) = (Vec::new(), Vec::new());
    log::write(&mut written, &nodes, &pods, &arrivals, &moved).expect("written");
    log::write_moves(&mut moves, &nodes, &pods, &arrivals, &moved).expect("written");
    let rows = log::read(&mut written.as_slice()).expect("a log");
    let moves = log::read_moves(&mut moves.as_slice()).expect("moves");
    let options = check::Options { moves: &moves, expected: Some(&arrivals), ..Default::default() };
    let checked = check(&nodes, &pods, &rows, options).expect("it is right");
    assert_eq!(checked.moved as usize, moved.moves.len());
    assert_eq!(checked.allocated_milli, moved.allocated_milli);
}

/// Node a has a free GPU and no CPU, node b has CPUs and no GPU: no pod can move, but two pods can be exchanged.
#[test]
fn pods_are_exchanged_where_none_can_move() {
    let nodes = vec![node("a", 8, 2, "A"), node("b", 12, 1, "B")];
    let pods = [
        pod("heavy", request(8, 1, 1000, "A|B")),
        pod("light", request(2, 1, 1000, "A|B")),
        pod("last", request(5, 1, 1000, "A")),
    ];
    // The pods are placed by hand so that they block each other.
    let ledger = gapless_fleet::ledger::Ledger::new(nodes.clone());
    let policy = gapless_fleet::policy::Policy::BestFit;
    let mut placer = gapless_fleet::place::Placer::new(ledger, policy);
    let mut held = Vec::new();
    for (at, pod) in pods[..2].iter().enumerate() {
        let booking = placer.book(at as u32, &pod.request, &[0]).expect("it fits");
        held.push(Some(gapless_fleet::repack::Movable { booking, request: pod.request.clone() }));
    }
    let mut on_node = vec![vec![0], vec![1]];
    assert!(placer.choose(&pods[2].request).is_none(), "a has no CPU left");
    let request = &pods[2].request;
    let one_way = gapless_fleet::repack::make_room(&mut placer, &mut held, &mut on_node, request, 4);
    assert!(one_way.is_none(), "neither has another place");
    assert!(
        gapless_fleet::exchange::make_room(&mut placer, &mut held, &mut on_node, request, 1).is_none(),
        "an exchange is two moves"
    );
    let (booking, moves) =
        gapless_fleet::exchange::make_room(&mut placer, &mut held, &mut on_node, request, 4)
            .expect("one exchange");
    assert_eq!((booking.node, booking.gpus.as_slice()), (0, &[1][..]));
    let shown: Vec<(usize, u32, u32, u64)> =
        moves.iter().map(|one| (one.pod, one.from, one.to, one.gained_milli)).collect();
    assert_eq!(shown, [(0, 0, 1, 500), (1, 1, 0, 500)]);
    assert_eq!(on_node, [vec![1], vec![0]]);
    let out: Vec<_> = held.iter().flatten().map(|pod| pod.booking.clone()).chain([booking]).collect();
    placer.ledger().check(out.iter()).expect("the account is right");
}

#[test]
fn gangs_are_placed_together_or_not_at_all() {
    let nodes = vec![node("a", 8, 2, "A")];
    let mut pods = named(vec![
        request(1, 1, 1000, ""),
        request(1, 1, 1000, ""),
        request(1, 1, 1000, ""),
        request(1, 1, 900, ""),
    ]);
    pods[..3].iter_mut().for_each(|pod| "g".clone_into(&mut pod.gang));
    let arrivals = gapless_fleet::arrivals::listed(&pods, &nodes, 1);
    let run = run(&nodes, &pods, &arrivals, "gapless", Options::default());
    assert_eq!(run.placed(), 1, "three whole GPUs are not there, so none of the gang is placed");
    assert_eq!(run.allocated_milli, 900);
}

#[test]
fn pods_leave_when_their_time_is_over() {
    let nodes = vec![node("a", 8, 1, "A")];
    let mut pods = named(vec![request(1, 1, 1000, ""); 3]);
    for (pod, (created, deleted)) in pods.iter_mut().zip([(0, 10), (5, 20), (10, 30)]) {
        (pod.created, pod.deleted) = (Some(created), Some(deleted));
    }
    let arrivals = gapless_fleet::arrivals::listed(&pods, &nodes, 1);
    let run = run(&nodes, &pods, &arrivals, "gapless", Options { departures: true, ..Options::default() });
    assert_eq!((run.placed(), run.departed), (2, 1), "the second comes too early");
}

#[test]
fn wrong_lists_are_refused_with_their_place() {
    let nodes = |text: &str| read::nodes(&mut text.as_bytes()).expect_err(text).to_string();
    let pods = |text: &str| read::pods(&mut text.as_bytes()).expect_err(text).to_string();
    let node_head = "sn,cpu_milli,memory_mib,gpu,model\n";
    let pod_head = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n";
    for (found, part) in [
        (nodes(""), "no column"),
        (nodes("sn,cpu_milli\n"), "no column \"memory_mib\""),
        (nodes(node_head), "no nodes"),
        (nodes(&format!("{node_head}a,1,1,0,\n")), "no node has a GPU"),
        (nodes(&format!("{node_head}a,-1,1,1,A\n")), "line 2: column cpu_milli is negative"),
        (nodes(&format!("{node_head}a,1,99999999999999999999,1,A\n")), "line 2: column memory_mib"),
        (nodes(&format!("{node_head}a,1,9999999999999999,1,A\n")), "too large"),
        (nodes(&format!("{node_head}a,1,1,5000,A\n")), "5000 GPUs"),
        (nodes(&format!("{node_head}a,1,1,1,A\na,1,1,1,A\n")), "two nodes are named \"a\""),
        (nodes(&format!("{node_head}a,1,1\n")), "line 2: 3 fields"),
        (nodes("[{\"name\":\"a\"}]"), "nodes[0]: missing field"),
        (nodes("{\"pods\":[]}"), "no list \"nodes\""),
        (nodes("[1"), "invalid JSON"),
        (nodes("[{\"name\":\"a\",\"cpus\":1,\"memory\":\"1XiB\",\"gpus\":1}]"), "nodes[0]: memory"),
        (pods(&format!("{pod_head}a,1,1,1,1001,\n")), "1001 thousandths"),
        (pods(&format!("{pod_head}a,1,1,0,5,\n")), "no GPU"),
        (pods(&format!("{pod_head}a,1,1,2,0,\n")), "0 of each"),
        (pods(&format!("{pod_head}a,1.5,1,2,0,\n")), "not a whole number"),
        (pods(&format!("{pod_head},1,1,1,500,\n")), "no name"),
        (pods("[{\"name\":\"a\",\"gpus\":1,\"gpu_milli\":5,\"gpu_memory\":1}]"), "give one"),
        (pods("[{\"name\":\"a\",\"duration\":5}]"), "needs created"),
        (pods("\u{fd}7zXZ\0"), "no column"),
    ] {
        assert!(found.contains(part), "{found:?} does not say {part:?}");
    }
    let xz = [0xfd, b'7', b'z', b'X', b'Z', 0, 1, 2];
    assert!(read::nodes(&mut &xz[..]).expect_err("xz").to_string().contains("xz -d"));
}

#[test]
fn our_json_gives_what_the_csv_gives() {
    let json =
        r#"{"pods":[{"name":"a","cpus":1.5,"memory":"2MiB","gpus":1,"gpu_milli":300,"models":["A","B"]}]}"#;
    let csv = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\na,1500,2,1,300,A|B\n";
    let read = |text: &str| read::pods(&mut text.as_bytes()).expect("pods");
    assert_eq!(read(json), read(csv));
}

#[test]
fn damaged_lists_never_panic() {
    let nodes = "sn,cpu_milli,memory_mib,gpu,model\na,8000,8192,2,A\nb,16000,8192,4,B\n";
    let nodes_json = r#"[{"name":"a","cpus":8,"memory":"8GiB","gpus":2,"model":"A","gpu_memory":"80GiB"}]"#;
    let pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time\n\
                p,1000,1024,1,600,A|B,5,9\nq,2000,1024,1,1000,,6,7\nr,1000,0,0,0,,1,2\n";
    let pods_json =
        r#"{"pods":[{"name":"p","cpus":1,"gpus":1,"gpu_memory":"18GiB","created":1,"duration":5}]}"#;
    let mut dice = Dice(3);
    let mut damaged = |text: &[u8]| {
        let mut bytes = text.to_vec();
        for _ in 0..1 + dice.below(2) {
            let at = dice.below(bytes.len() as u64) as usize;
            match dice.below(4) {
                0 => bytes[at] = dice.of(b"0123456789,-.|\"\n\0{}[]:e"),
                1 => bytes.truncate(at),
                2 => bytes.insert(at, dice.of(b"09,-\n\"")),
                _ => bytes[at] = dice.below(256) as u8,
            }
            if bytes.is_empty() {
                break;
            }
        }
        bytes
    };
    let mut runs = 0;
    for round in 0..4_000 {
        let (nodes, pods) = if round % 2 == 0 { (nodes, pods) } else { (nodes_json, pods_json) };
        // One of the two is damaged, so that some can still be read.
        let (mut nodes, mut pods) = (nodes.as_bytes().to_vec(), pods.as_bytes().to_vec());
        let which = if round % 4 < 2 { &mut nodes } else { &mut pods };
        *which = damaged(which);
        let Ok(nodes) = read::nodes(&mut nodes.as_slice()) else { continue };
        let Ok(pods) = read::pods(&mut pods.as_slice()) else { continue };
        if nodes.iter().map(|node| node.gpus).sum::<u32>() > 64 {
            continue;
        }
        let Ok(arrivals) = shuffled(&pods, &nodes, 1000, Some(0.1), round) else { continue };
        let run = run(&nodes, &pods, &arrivals, "gapless", Options::default());
        let mut written = Vec::new();
        log::write(&mut written, &nodes, &pods, &arrivals, &run).expect("written");
        let rows = log::read(&mut written.as_slice()).expect("a log");
        check(&nodes, &pods, &rows, check::Options::default()).unwrap_or_else(|wrong| panic!("{wrong:?}"));
        runs += 1;
    }
    assert!(runs > 100, "only {runs} lists could still be read");
}
