//! What the kernel dropped because the tap's own queue was full.
//!
//! The interface counts it as tx_dropped, for it transmits what we receive. It is read from /proc/thread-self/net/dev,
//! which is that of our own network namespace; /sys may show another's.

use std::fs;

/// Columns of a line: 8 of receiving, then bytes, packets and errors of transmitting.
const TX_DROPPED: usize = 11;

/// The interface's tx_dropped; `None` if it is not there.
pub(crate) fn read(interface: &str) -> Option<u64> {
    let table = fs::read_to_string("/proc/thread-self/net/dev").ok()?;
    find(&table, interface)
}

fn find(table: &str, interface: &str) -> Option<u64> {
    let columns = table.lines().find_map(|line| {
        let (name, columns) = line.split_once(':')?;
        (name.trim() == interface).then_some(columns)
    })?;
    columns.split_whitespace().nth(TX_DROPPED)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16
    t0: 0 0 0 4 0 0 0 0 0 0 0 2004 0 0 0 0
";

    #[test]
    fn finds_the_column_of_the_interface() {
        assert_eq!(find(TABLE, "t0"), Some(2004));
        assert_eq!(find(TABLE, "lo"), Some(12));
        assert_eq!(find(TABLE, "t"), None);
    }

    #[test]
    fn every_namespace_has_a_loopback() {
        assert!(read("lo").is_some());
    }
}
