//! An answer of `fit` as the head of its page: the verdict, the parts of the card's memory, the error
//! bar, and the plans.

use super::paint::{billions, seconds, words};
use super::streamed;
use super::text::{alternative, no_layout, rests_on, short_of, source};
use crate::headline::{Bar, Headline, List, Part, Tile, Tone};
use crate::text::plural;
use gapless_fit::ask::{Answer, Estimate, Plans, Question};
use gapless_fit::settings::Engine;
use gapless_fit::simulated::Verdict;

/// The head of the page.
#[must_use]
pub fn headline(q: &Question, answer: &Answer) -> Headline {
    let mut notes = q.notes.clone();
    let mut lists = Vec::new();
    if let Some(plans) = &answer.plans {
        lists.push(table(plans));
        notes.push(plans.proof.clone());
        notes.extend(plans.notes.iter().cloned());
    }
    if let Some(streamed) = &answer.streamed {
        lists.push(streamed::table(q, streamed));
        notes.push(streamed::placed(streamed));
        notes.extend(streamed::notes(q, streamed));
    }
    let mut tiles = Vec::new();
    if let Some(largest) = &answer.largest {
        tiles.push(match largest {
            Some(found) => Tile::new(
                "Largest batch",
                found.batch.to_string(),
                format!("{} would take {}", found.batch + 1, found.next),
            )
            .strong(),
            None => Tile::new("Largest batch", "none", "not even a batch of 1 fits").strong(),
        });
    }
    notes.extend(alternative(answer));
    let Some(e) = &answer.estimate else {
        let title = format!("does not fit on {}: {}", q.gpu_name, no_layout(q, answer));
        return Headline { title, tone: Tone::Bad, tiles, bar: None, lists, notes };
    };
    tiles.extend(figures(q, e));
    let (title, tone) = verdict(q, e, answer.is_plan);
    Headline { title, tone, tiles, bar: Some(bar(q, e)), lists, notes }
}

fn verdict(q: &Question, e: &Estimate, is_plan: bool) -> (String, Tone) {
    let (total, memory) = (e.process_total(), q.memory());
    let share = total.share_of(memory) * 100.0;
    let each = if q.cluster.gpus() > 1 { " each" } else { "" };
    let how = if is_plan { " with plan 1" } else { "" };
    let (word, tone) = match e.verdict {
        Verdict::Fits => ("fits", Tone::Good),
        Verdict::FitsTightly => ("fits tightly", Tone::Care),
        Verdict::DoesNotFit => ("does not fit", Tone::Bad),
    };
    let more = match e.verdict {
        Verdict::Fits => String::new(),
        Verdict::FitsTightly => "; the allocator has to give cached memory back".to_owned(),
        Verdict::DoesNotFit => short_of(q, e).replace("\n  ", "; "),
    };
    if let (Verdict::Fits, Some(taken)) = (e.verdict, e.taken) {
        let engine = q.engine.map_or("the engine", Engine::name);
        let share = taken.share_of(memory) * 100.0;
        let title = format!(
            "fits on {}{how}: {engine} takes {taken} of {memory}{each}, {share:.0} %; what was asked needs {total} of it",
            q.gpu_name
        );
        return (title, tone);
    }
    (format!("{word} on {}{how}: {total} of {memory}{each}, {share:.0} %{more}", q.gpu_name), tone)
}

fn figures(q: &Question, e: &Estimate) -> Vec<Tile> {
    let bar = format!("± {:.0} %", e.error * 100.0);
    let beside = format!("with {} of context and libraries", e.context);
    let blocks = if e.blocks == 0 { String::new() } else { plural(e.blocks, "block") };
    let worst = if q.cluster.gpus() > 1 { ", on the worst GPU" } else { "" };
    let mut tiles = vec![
        Tile::new("Process total", e.process_total().to_string(), format!("{beside}{worst}")).strong(),
        Tile::new(
            "Peak allocated",
            e.peak_allocated.to_string(),
            format!("{bar}: {}{}", source(e.method), rests_on(q, e)),
        )
        .strong(),
        Tile::new("Peak reserved", e.peak_reserved.to_string(), "as PyTorch's allocator holds it"),
        Tile::new("Memory of the GPU", q.memory().to_string(), q.gpu_name.clone()),
        Tile::new("Parameters", billions(e.parameters), blocks),
    ];
    if let Some(taken) = e.taken {
        tiles.push(
            Tile::new("Engine takes", taken.to_string(), "its share of the card, filled with cache").strong(),
        );
    }
    if let Some(ours) = e.gapless_reserved {
        tiles.push(Tile::new("On Gapless", ours.to_string(), "what the Gapless allocator would hold"));
    }
    if !e.recomputed.is_empty() {
        let value = format!("{} of {}", e.recomputed.len(), e.blocks);
        tiles.push(Tile::new(
            "Recomputed",
            value,
            "blocks under gradient checkpointing: they run forward again",
        ));
    }
    tiles
}

/// The components add up to peak allocated. Memory that the allocator caches and the process holds follows.
fn bar(q: &Question, e: &Estimate) -> Bar {
    let mut components = e.components.clone();
    components.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let mut parts: Vec<Part> =
        components.iter().map(|(name, bytes)| Part { name: words(name), bytes: *bytes }).collect();
    let cached = e.peak_reserved.0.saturating_sub(e.peak_allocated.0);
    let more = [
        ("reserved, not allocated", cached),
        ("context and libraries", e.context.0),
        ("communication buffers", e.outside.0),
    ];
    parts.extend(more.map(|(name, bytes)| Part { name: name.to_owned(), bytes }));
    parts.retain(|part| part.bytes > 0);
    Bar { parts, limit: q.memory().0, of: q.gpu_name.clone() }
}

fn table(plans: &Plans) -> List {
    let columns = ["#", "plan", "memory", "up to batch", "time", "of which"];
    let rows = plans.rows.iter().enumerate().map(|(place, row)| {
        let cost: Vec<String> = row.cost.iter().map(|(name, s)| format!("{name} {}", seconds(*s))).collect();
        vec![
            (place + 1).to_string(),
            row.words.clone(),
            format!("{}{}", if row.exact { "" } else { "~" }, row.process_total),
            row.largest_batch.map_or_else(String::new, |batch| batch.to_string()),
            format!("{} {}", seconds(row.seconds), row.unit),
            cost.join(", "),
        ]
    });
    let least = super::text::least(plans)
        .filter(|_| plans.rows.is_empty())
        .map(|least| vec![String::new(), format!("none: {least}")]);
    List {
        title: format!("{}, cheapest first", plans.title),
        columns: columns.map(str::to_owned).to_vec(),
        rows: rows.chain(least).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_fit::ask::{Asked, Wishes, ask};
    use gapless_trace::Bytes;

    fn of(memory: &str, optimize: bool) -> Headline {
        let asked = Asked {
            batch: Some(8),
            seq: Some(512),
            memory: Some(memory.parse().expect("a size")),
            ..Asked::default()
        };
        let q = Question::read("gpt2", &asked).expect("a question");
        let answer = ask(&q, &Wishes { optimize, top: 3, ..Wishes::default() }).expect("an answer");
        headline(&q, &answer)
    }

    #[test]
    fn the_head_of_the_page_has_the_verdict_the_bar_and_the_plans() {
        let good = of("80GiB", false);
        assert!(good.title.starts_with("fits on ") && good.tone == Tone::Good, "{}", good.title);
        let bar = good.bar.expect("a bar");
        assert_eq!(bar.limit, 80 << 30);
        let value = |name: &str| {
            good.tiles.iter().find(|tile| tile.name == name).map(|tile| tile.value.clone()).expect("a tile")
        };
        let sum: u64 = bar.parts.iter().map(|part| part.bytes).sum();
        assert_eq!(Bytes(sum).to_string(), value("Process total"), "the parts add up");
        assert!(good.tiles.iter().any(|tile| tile.note.starts_with('±')), "the error bar is there");

        let small = of("4GiB", true);
        let rows = &small.lists.first().expect("plans").rows;
        assert!(!rows.is_empty() && rows.iter().all(|row| row.len() == 6), "{rows:?}");
    }
}
