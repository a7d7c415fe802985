//! Frames cut and placed at random come through unchanged, both ways.

use proptest::prelude::*;

use crate::frames::{frame, with_header};
use crate::rig::{ALL, MRG_RXBUF, Rig};

/// Lengths that add up to `bytes`, cut at the given places.
fn pieces(bytes: usize, cuts: &[usize]) -> Vec<usize> {
    let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % (bytes + 1)).collect();
    cuts.extend([0, bytes]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_transmitted_frame_is_gathered_whole(
        bytes in prop_oneof![14..200usize, 14..9014usize, 60_000..=65_550usize],
        cuts in prop::collection::vec(any::<usize>(), 0..40),
        indirect: bool,
    ) {
        let mut rig = Rig::new(ALL);
        let whole = frame(1, bytes);
        let buffers = rig.cut(&with_header(&whole), &pieces(bytes + 12, &cuts));
        let (table, memory) = (rig.alloc(16 * buffers.len()), rig.memory.clone());
        match indirect {
            true => rig.tx.add_indirect(&memory, table, &buffers),
            false => rig.tx.add(&memory, &buffers),
        };
        rig.run_tx();
        prop_assert!(rig.tap.sent == [whole]);
    }

    #[test]
    fn a_received_frame_is_scattered_whole(
        bytes in prop_oneof![14..200usize, 14..9014usize],
        chains in prop::collection::vec(prop::collection::vec(0..600usize, 1..6), 1..40),
        spare in 0..3usize,
    ) {
        let mut rig = Rig::new(ALL);
        let mut room = Vec::new();
        let mut capacity = 0;
        for mut lengths in chains {
            // A chain that holds no header is malformed, which is not the matter here.
            lengths[0] += 12;
            capacity += lengths.iter().sum::<usize>();
            room.push(rig.post_rx(&lengths));
        }
        for _ in 0..spare {
            capacity += 9100;
            room.push(rig.post_rx(&[9100]));
        }
        let whole = frame(1, bytes);
        rig.deliver(std::slice::from_ref(&whole));
        let used = rig.rx.collect(&rig.memory);
        if capacity < bytes + 12 {
            prop_assert!(used.is_empty());
            return Ok(());
        }
        let mut got = Vec::new();
        for (used, buffers) in used.iter().zip(&room) {
            got.extend(rig.contents(buffers, used.len));
        }
        prop_assert_eq!(usize::from(u16::from_le_bytes([got[10], got[11]])), used.len());
        prop_assert_eq!(&got[12..], &whole[..]);
        prop_assert!(used.iter().all(|used| used.len > 0));
    }

    #[test]
    fn one_chain_holds_a_frame_exactly_or_not_at_all(
        bytes in 14..3000usize,
        cuts in prop::collection::vec(any::<usize>(), 0..12),
        less in 0..3usize,
    ) {
        let mut rig = Rig::new(ALL & !MRG_RXBUF);
        let capacity = (bytes + 12 - less).max(26);
        let room = rig.post_rx(&pieces(capacity, &cuts));
        let whole = frame(1, bytes);
        rig.deliver(std::slice::from_ref(&whole));
        let used = rig.rx.collect(&rig.memory);
        if capacity < bytes + 12 {
            prop_assert!(used.is_empty());
        } else {
            prop_assert_eq!(&rig.contents(&room, used[0].len)[12..], &whole[..]);
        }
    }
}
