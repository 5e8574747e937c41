//! Counts of the interesting events: a checker that never reaches a state proves nothing about it.

macro_rules! totals {
    ($($(#[$doc:meta])* $name:ident: $text:literal,)*) => {
        /// The sums of all programs.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Totals {
            $($(#[$doc])* pub $name: u64,)*
            /// The most addresses that one program had mapped, beyond twice the bytes mapped at once, in cards.
            pub most_cards: u64,
        }

        impl Totals {
            /// Each count with its name.
            #[must_use]
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$(($text, self.$name),)* ("cards of addresses beyond what was mapped, at most", self.most_cards)]
            }

            pub fn add(&mut self, other: &Totals) {
                $(self.$name += other.$name;)*
                self.most_cards = self.most_cards.max(other.most_cards);
            }
        }
    };
}

totals! {
    operations: "operations",
    programs: "programs",
    requests: "requests served",
    frees: "frees",
    out_of_memory: "requests out of memory",
    announced: "uses announced with record_stream",
    borrowed: "uses with waits both ways",
    late_waits: "late waits",
    destroyed_busy: "streams destroyed with work queued",
    announced_dead: "frees of blocks announced on dead streams",
    handles_reused: "stream handles used again",
    per_thread: "uses of handle 2",
    foreign: "uses by another context",
    captures: "captures",
    joined: "streams that joined captures",
    capture_requests: "requests in captures",
    capture_frees: "frees of others during captures",
    raw_captures: "requests in captures that nobody told of",
    replays: "replays",
    replays_after_activity: "replays after other requests",
    replayed_windows: "replays into windows",
    captured_windows: "requests in captures that windows served",
    pools_again: "pools of graphs used again after they were released",
    private_requests: "requests to private pools",
    trims: "trims",
    pool_trims: "trims of private pools",
    restores: "restores",
    restored_graphs: "restores of pools of graphs",
    restored_windows: "allocations in windows brought back",
    shared: "allocations that another process mapped",
    refused_shared: "sleeps refused because of those",
    refused_windows: "sleeps refused because of windows",
    resized: "elastic ranges resized",
    not_grown: "elastic ranges that could not grow",
    touched_ranges: "uses of elastic ranges",
    limits: "limits set",
    budgets: "requests charged to budgets",
    refused: "requests refused by budgets",
    failures: "device calls that failed on purpose",
    unreserved: "reservations without addresses",
    records: "events recorded",
    captured_records: "events that captures took in",
    meddles: "captures begun or ended between driver calls",
    host_waits: "host waits",
    unmaps: "unmaps",
    outside_waits: "waits outside of the pool",
    meanwhile: "operations of other threads meanwhile",
    lent: "pages lent",
    windows: "windows made",
    window_hits: "windows used again",
    private_windows: "windows made in private pools",
    harvested: "pages harvested",
    installed: "plans installed late",
    plans: "plans in place at an end",
    planned: "requests served by plans",
    ladder_wait: "served by the ladder: wait",
    ladder_harvest: "served by the ladder: harvest",
    ladder_trim: "served by the ladder: trim",
    ladder_shrink: "served by the ladder: shrink",
    slept: "private pools that fell asleep",
    woken: "private pools that woke up",
    freed_asleep: "frees of memory that slept",
    fronts: "requests served by fronts alone",
    native: "requests that wait for nobody natively",
}
