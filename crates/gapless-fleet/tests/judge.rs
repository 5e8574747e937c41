//! The judge finds errors in a log: a valid one is changed in every way that it must notice.

mod support;

use gapless_fleet::arrivals::shuffled;
use gapless_fleet::check::{self, check};
use gapless_fleet::log;
use gapless_fleet::sim::Options;
use support::{node, pod, request, run};

const RIGHT: [&str; 8] = [
    "order,pod,node,gpus,milli,cpu_milli,memory_mib,status",
    "0,a,one,0,600,1000,1024,placed",
    "1,b,one,1,1000,1000,1024,placed",
    "2,c,two,0;1,1000,2000,2048,placed",
    "3,d,,,600,1000,1024,failed",
    "4,e,one,0,400,1000,1024,placed",
    "5,f,one,,0,1000,1024,placed",
    "6,g,,,1000,1000,1024,failed",
];

fn judged(lines: &[&str]) -> Result<check::Checked, String> {
    let nodes = [node("one", 4, 2, "A"), node("two", 2, 2, "B")];
    let pods = [
        pod("a", request(1, 1, 600, "")),
        pod("b", request(1, 1, 1000, "A")),
        pod("c", request(2, 2, 1000, "")),
        pod("d", request(1, 1, 600, "")),
        pod("e", request(1, 1, 400, "")),
        pod("f", request(1, 0, 0, "")),
        pod("g", request(1, 1, 1000, "C")),
    ];
    let rows = log::read(&mut lines.join("\n").as_bytes()).map_err(|error| error.to_string())?;
    check(&nodes, &pods, &rows, check::Options::default()).map_err(|wrong| wrong.what)
}

#[test]
fn a_right_log_passes() {
    let checked = judged(&RIGHT).expect("it is right");
    assert_eq!((checked.placed, checked.failed, checked.allocated_milli), (5, 2, 4_000));
}

#[test]
fn every_lie_is_found() {
    for (line, lie, found) in [
        (1, "0,a,one,0,500,1000,1024,placed", "takes 600"),
        (1, "1,a,one,0,600,1000,1024,placed", "count up"),
        (1, "0,z,one,0,600,1000,1024,placed", "not in the list"),
        (1, "0,a,six,0,600,1000,1024,placed", "no node"),
        (1, "0,a,one,2,600,1000,1024,placed", "no GPU 2"),
        (1, "0,a,one,0,600,900,1024,placed", "CPUs or memory differ"),
        (1, "0,a,one,0;1,600,1000,1024,placed", "asks for 1"),
        (1, "0,a,,,600,1000,1024,failed", "has room"),
        (1, "0,a,one,0,600,1000,1024,lost", "unknown status"),
        (1, "0,a,one,x,600,1000,1024,placed", "not indices"),
        (2, "1,b,two,1,1000,1000,1024,placed", "model"),
        (2, "1,b,one,0,1000,1000,1024,placed", "GPU 0 of one lends"),
        (2, "1,a,one,1,600,1000,1024,placed", "second time"),
        (3, "2,c,two,0;0,1000,2000,2048,placed", "named twice"),
        (4, "3,d,two,,600,1000,1024,failed", "names a node"),
        (6, "5,f,two,,0,1000,1024,placed", "thousandths of CPUs"),
    ] {
        let mut lines = RIGHT;
        lines[line] = lie;
        let what = judged(&lines).expect_err(lie);
        assert!(what.contains(found), "{lie}: {what}");
    }
}

#[test]
fn another_order_than_the_seeds_is_found() {
    let nodes = [node("one", 64, 2, "A")];
    let pods: Vec<_> = (0..20).map(|i| pod(&format!("p{i:02}"), request(1, 1, 100, ""))).collect();
    let arrivals = shuffled(&pods, &nodes, 1000, None, 1).expect("arrivals");
    let other = shuffled(&pods, &nodes, 1000, None, 2).expect("arrivals");
    let run = run(&nodes, &pods, &arrivals, "gapless", Options::default());
    let mut written = Vec::new();
    log::write(&mut written, &nodes, &pods, &arrivals, &run).expect("written");
    let rows = log::read(&mut written.as_slice()).expect("a log");
    let judge = |expected| {
        check(&nodes, &pods, &rows, check::Options { expected: Some(expected), ..Default::default() })
    };
    assert!(judge(&arrivals).is_ok());
    assert!(judge(&other).expect_err("another order").what.contains("the seed gives"));
}
