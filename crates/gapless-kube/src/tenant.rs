//! A pod as a tenant of its GPUs: the text that Gapless reads in the pod's containers (`GAPLESS_TENANT`).

use gapless_ledger::promise::Amount;

/// The longest id from which the name of a tenant is made: such a name has at most 63 characters.
const LONGEST: usize = 59;

/// True if an id is safe as a part of a tenant's name, and as the name of a device and of a file.
pub fn is_name(id: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    id.len() <= LONGEST && id.chars().all(inside) && ends(id.chars().next()) && ends(id.chars().last())
}

/// The tenant of a pod's processes.
pub fn of_pod(uid: &str) -> String {
    format!("pod-{uid}")
}

/// The tenant with its part of each GPU. Thousandths stay a part of the GPU that the container sees.
pub fn share(uid: &str, amount: Amount) -> String {
    match amount {
        Amount::Bytes(bytes) => format!("{}:{bytes}", of_pod(uid)),
        Amount::Milli(milli) => format!("{}:{}.{}%", of_pod(uid), milli / 10, milli % 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_one_that_containers_can_read() {
        let uid = "0c1d2e3f-0000-4000-8000-00000000beef";
        assert_eq!(share(uid, Amount::Bytes(1 << 30)), format!("pod-{uid}:1073741824"));
        assert_eq!(share(uid, Amount::Milli(305)), format!("pod-{uid}:30.5%"));
        for amount in [Amount::Bytes(1), Amount::Milli(1), Amount::Milli(1000)] {
            let read = share(&"u".repeat(LONGEST), amount).parse::<gapless_ledger::Share>();
            assert!(read.is_ok(), "{amount}: {read:?}");
        }
    }

    #[test]
    fn ids_that_would_leave_a_folder_are_no_names() {
        assert!(is_name("0c1d2e3f-0000-4000-8000-00000000beef"));
        for wrong in ["", "../c", "a/b", "-a", "a-", &"x".repeat(60)] {
            assert!(!is_name(wrong), "{wrong}");
        }
    }
}
