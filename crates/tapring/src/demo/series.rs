//! What the kernel series measured, as their authors give it, on machines of theirs: a virtual machine, vhost-net in the kernel.

use super::table::{DATAGRAMS_A_SECOND, GBIT_A_SECOND, KICKS_A_SECOND};

/// One series' figures.
pub(super) struct Series {
    pub(super) name: &'static str,
    /// By the row of ours that they belong to: before, after, change.
    rows: &'static [(&'static str, [&'static str; 3])],
}

impl Series {
    /// What it has for a row of ours; nothing for most.
    pub(super) fn row(&self, name: &str) -> [&'static str; 3] {
        let row = self.rows.iter().find(|row| row.0 == name);
        row.map_or([""; 3], |row| row.1)
    }
}

pub(super) const DEFERRED_REARM: Series = Series {
    name: "vhost/net: defer TX re-enable until after sendmsg (2025); kicks are EPT_MISCONFIG exits",
    rows: &[
        (KICKS_A_SECOND, ["5411", "58", "93x fewer"]),
        (DATAGRAMS_A_SECOND, ["382000", "650000", "1.70x"]),
        (GBIT_A_SECOND, ["4.43", "7.55", "1.70x"]),
    ],
};

pub(super) const BUSY_POLL: Series = Series {
    name: "vhost_net: avoid vq kicks during busyloop (2018); with 1 byte 9865 -> 37 kicks/s",
    rows: &[
        (KICKS_A_SECOND, ["247758", "27", "9176x fewer"]),
        (GBIT_A_SECOND, ["3.645", "6.958", "1.91x"]),
    ],
};

pub(super) const RX_WAKE: &str = "tun/tap & vhost-net: qdisc backpressure (2026): 1293 kpps and 3918 kpps lost without stopping,\n  \
     989 kpps woken on the first free slot, 1248 kpps on empty; it settled on half, with 0 lost";
