//! Names of streams and pools in messages.

use gapless_pool::{PoolKey, StreamHandle};

pub(super) fn stream(stream: StreamHandle) -> String {
    if stream.0 == 0 { "the default stream".to_owned() } else { format!("stream {:#x}", stream.0) }
}

pub(super) fn pool(pool: PoolKey) -> String {
    match pool {
        PoolKey(0, id) => format!("memory pool {id}"),
        PoolKey(id, _) => format!("graph pool {id}"),
    }
}
