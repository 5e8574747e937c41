//! Rank numbers from file names: `rank0.pickle`, `run_rank_12.pickle.gz`, `r3.gtrace`, `trace.0.json`,
//! `worker-7/mem.pickle`.
//!
//! A number behind a word such as "rank" counts first. Otherwise it is the number that differs among names of one
//! pattern. If neither gives a number, the order of the files does.

/// The way in which ranks were numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbering {
    /// By a word such as "rank" and the number behind it.
    Word,
    /// By the number in which the names differ.
    Differing,
    /// By position.
    Order,
}

/// Words that a rank's number follows, the surest first.
const WORDS: [&str; 9] = ["rank", "worker", "proc", "process", "gpu", "device", "dev", "w", "r"];
/// Words for machines, each of which may count its ranks from 0.
const MACHINES: [&str; 4] = ["node", "host", "machine", "pod"];
/// No run has more ranks; a larger number is a date, a process or a job.
const MOST: u64 = 1 << 20;

/// A number in a name, with the word before it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Number {
    word: String,
    value: u64,
}

/// The rank of each of `paths`, and the way in which it was found. Numbers may repeat.
#[must_use]
pub fn ranks(paths: &[String]) -> (Vec<u32>, Numbering) {
    let names: Vec<&str> = distinct_parts(paths);
    let numbers: Vec<Vec<Number>> = names.iter().map(|name| numbers(name)).collect();
    let in_order = || ((0..paths.len() as u32).collect(), Numbering::Order);
    for word in WORDS {
        let Some(values) = behind(&numbers, word) else { continue };
        if distinct(&values) == values.len()
            || distinct(&values) > 1 && word == "rank" && !by_machine(&numbers)
        {
            return (values, Numbering::Word);
        }
        // Every machine may count from 0, so ranks are ordered by machine first.
        for machine in MACHINES {
            let Some(machines) = behind(&numbers, machine) else { continue };
            let pairs: Vec<(u32, u32)> = machines.iter().copied().zip(values.iter().copied()).collect();
            if distinct(&pairs) == pairs.len() {
                let mut order = pairs.clone();
                order.sort_unstable();
                let rank = |pair: &(u32, u32)| order.partition_point(|other| other < pair) as u32;
                return (pairs.iter().map(rank).collect(), Numbering::Word);
            }
        }
        if word == "rank" && paths.len() == 1 {
            return (values, Numbering::Word);
        }
    }
    if let Some(values) = most_by_rank(&numbers) {
        return (values, Numbering::Word);
    }
    match differing(&names, &numbers) {
        Some(values) => (values, Numbering::Differing),
        None => in_order(),
    }
}

/// The numbers behind "rank" if most names have one; the other files get the numbers behind the largest.
fn most_by_rank(numbers: &[Vec<Number>]) -> Option<Vec<u32>> {
    let of = |one: &Vec<Number>| behind(std::slice::from_ref(one), "rank").map(|values| values[0]);
    let values: Vec<Option<u32>> = numbers.iter().map(of).collect();
    let known: Vec<u32> = values.iter().copied().flatten().collect();
    if known.len() < 2 || 2 * known.len() < values.len() || distinct(&known) < known.len() {
        return None;
    }
    let mut next = known.iter().copied().max().unwrap_or(0);
    let number = |value: Option<u32>| {
        value.unwrap_or_else(|| {
            next += 1;
            next
        })
    };
    Some(values.into_iter().map(number).collect())
}

fn by_machine(numbers: &[Vec<Number>]) -> bool {
    MACHINES.iter().any(|machine| behind(numbers, machine).is_some_and(|values| distinct(&values) > 1))
}

/// File names; whole paths if all files have the same name and only folders differ.
fn distinct_parts(paths: &[String]) -> Vec<&str> {
    let name = |path: &'_ String| path.rfind(['/', '\\']).map_or(0, |at| at + 1);
    let names: Vec<&str> = paths.iter().map(|path| &path[name(path)..]).collect();
    if paths.len() > 1 && distinct(&names) == 1 { paths.iter().map(String::as_str).collect() } else { names }
}

/// The numbers of a name, in order. Digits within a word with letters behind them ("h200b") are none.
fn numbers(name: &str) -> Vec<Number> {
    let bytes = name.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if !bytes[at].is_ascii_digit() {
            at += 1;
            continue;
        }
        let start = at;
        while at < bytes.len() && bytes[at].is_ascii_digit() {
            at += 1;
        }
        let before = name[..start].trim_end_matches(['-', '_', '.', '=', ' ', '(', '[']);
        let word: String = {
            let letters = before.bytes().rev().take_while(u8::is_ascii_alphabetic).count();
            before[before.len() - letters..].to_ascii_lowercase()
        };
        if let Ok(value) = name[start..at].parse::<u64>() {
            found.push(Number { word, value });
        }
    }
    found
}

/// The number behind `word` in every name: the last one of a name.
fn behind(numbers: &[Vec<Number>], word: &str) -> Option<Vec<u32>> {
    let of = |all: &Vec<Number>| {
        let number = all
            .iter()
            .rev()
            .find(|number| number.word == word || number.word.ends_with(word) && word.len() > 3)?;
        (number.value < MOST).then_some(number.value as u32)
    };
    numbers.iter().map(of).collect()
}

/// The one number in which names of one pattern differ; of several, the one that looks most like 0, 1, 2...
fn differing(names: &[&str], numbers: &[Vec<Number>]) -> Option<Vec<u32>> {
    let pattern = |name: &str| -> String {
        let mut out = String::new();
        for c in name.chars() {
            match c.is_ascii_digit() {
                true if out.ends_with('#') => {}
                true => out.push('#'),
                false => out.push(c),
            }
        }
        out
    };
    let first = pattern(names.first()?);
    if names.len() < 2 || names.iter().any(|name| pattern(name) != first) {
        return None;
    }
    let places = numbers.iter().map(Vec::len).min()?;
    (0..places)
        .filter_map(|place| {
            let values: Vec<u64> = numbers.iter().map(|all| all[place].value).collect();
            let most = *values.iter().max()?;
            // Numbers far above the number of files are not ranks.
            let dense = most < 4 * values.len() as u64 + 64;
            (distinct(&values) == values.len() && dense).then_some((most, values))
        })
        .min_by_key(|(most, _)| *most)
        .map(|(_, values)| values.into_iter().map(|value| value as u32).collect())
}

fn distinct<T: Ord + Clone>(values: &[T]) -> usize {
    let mut sorted = values.to_vec();
    sorted.sort();
    sorted.dedup();
    sorted.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(paths: &[&str]) -> (Vec<u32>, Numbering) {
        ranks(&paths.iter().map(|&path| path.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_file_that_names_no_rank_does_not_renumber_the_others() {
        let paths = ["other.pickle", "rank0.pickle", "rank2.pickle", "rank5.pickle"].map(str::to_owned);
        assert_eq!(ranks(&paths), (vec![6, 0, 2, 5], Numbering::Word));
    }

    #[test]
    fn ranks_are_read_as_people_name_files() {
        let cases: [(&[&str], &[u32], Numbering); 12] = [
            (&["rank0.pickle", "rank1.pickle", "rank10.pickle"], &[0, 1, 10], Numbering::Word),
            (&["a/run2_rank_12.pickle.gz", "a/run2_rank_3.pickle.gz"], &[12, 3], Numbering::Word),
            (&["r0.gtrace", "r1.gtrace"], &[0, 1], Numbering::Word),
            (&["worker-7.json", "worker-9.json"], &[7, 9], Numbering::Word),
            (&["mem.0.pickle", "mem.1.pickle"], &[0, 1], Numbering::Differing),
            (&["20250101_120000.0.pickle", "20250101_120003.1.pickle"], &[0, 1], Numbering::Differing),
            (&["rank0/mem.pickle", "rank1/mem.pickle"], &[0, 1], Numbering::Word),
            (
                &["node0_rank0.p", "node0_rank1.p", "node1_rank0.p", "node1_rank1.p"],
                &[0, 1, 2, 3],
                Numbering::Word,
            ),
            (&["a.pickle", "b.pickle"], &[0, 1], Numbering::Order),
            (&["host-pid8812.pickle", "host-pid9921.pickle"], &[0, 1], Numbering::Order),
            (&["snapshot_RANK=4.pickle", "snapshot_RANK=5.pickle"], &[4, 5], Numbering::Word),
            (&["rank3.pickle", "rank3 copy.pickle", "rank4.pickle"], &[3, 3, 4], Numbering::Word),
        ];
        for (paths, expected, numbering) in cases {
            assert_eq!(of(paths), (expected.to_vec(), numbering), "{paths:?}");
        }
    }

    #[test]
    fn numbers_that_cannot_be_ranks_are_none() {
        assert_eq!(of(&["rank99999999999.p", "rank99999999998.p"]).1, Numbering::Order);
        assert_eq!(of(&[]).0, Vec::<u32>::new());
        assert_eq!(of(&["naïve-é0.p", "naïve-é1.p"]).0, [0, 1]);
    }
}
