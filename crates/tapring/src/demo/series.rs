//! What the kernel series measured, as their authors give it, on machines of theirs: a virtual machine, vhost-net in the kernel.

use super::table::{DATAGRAMS_A_SECOND, GBIT_A_SECOND, KICKS_A_SECOND};

/// One series' figures.
pub(super) struct Series {
    pub(super) name: &'static str,
    /// By the row of ours that they belong to: before, after, how much.
    rows: [(&'static str, &'static str, &'static str, &'static str); 3],
}

impl Series {
    pub(super) fn row(&self, name: &str) -> Option<String> {
        let (_, before, after, change) = self.rows.iter().find(|row| row.0 == name)?;
        Some(format!("{before:>9}{after:>9}{change:>10}"))
    }
}

/// Their kicks are exits: EPT_MISCONFIG.
pub(super) const DEFERRED_REARM: Series = Series {
    name: "vhost/net: defer TX re-enable until after sendmsg (2025); its kicks are counted as EPT_MISCONFIG exits",
    rows: [
        (KICKS_A_SECOND, "5411", "58", "93 x"),
        (DATAGRAMS_A_SECOND, "382000", "650000", "1.70 x"),
        (GBIT_A_SECOND, "4.43", "7.55", "1.70 x"),
    ],
};

/// With a guest that receives as well.
pub(super) const BUSY_POLL: Series = Series {
    name: "vhost_net: avoid vq kicks during busyloop (2018); with 1 byte 9865 -> 37 kicks/s",
    rows: [
        (KICKS_A_SECOND, "247758", "27", "9176 x"),
        (GBIT_A_SECOND, "3.65", "6.96", "1.91 x"),
        (DATAGRAMS_A_SECOND, "", "", ""),
    ],
};

/// A series that settled on half, between the other two.
pub(super) const RX_WAKE: &str = "kernel series: tun/tap & vhost-net: qdisc backpressure (2026); TAP 1293 kpps and 3918 kpps lost without stopping,\n989 kpps woken on the first free slot, 1248 kpps woken on empty; it settled on half, with 0 lost";
