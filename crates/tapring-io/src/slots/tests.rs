use super::*;

fn tokens(slots: &mut Slots, frames: usize) -> Vec<Token> {
    let mut tokens = Vec::new();
    slots.each_read(frames, true, |entry| {
        tokens.push(Token::from_raw(entry.get_user_data()));
    });
    tokens
}

#[test]
fn slots_do_not_share_cache_sets() {
    for bytes in [1526, 4096, 9229, 65_549] {
        let sets: std::collections::HashSet<_> = (0..BATCH_FRAMES)
            .map(|slot| slot * stride(bytes) / LINE % 64)
            .collect();
        assert_eq!(sets.len(), BATCH_FRAMES, "{bytes}");
        assert!(stride(bytes) >= bytes);
    }
}

#[test]
fn frames_are_held_in_order_of_completion() {
    let mut slots = Slots::new(Encoding::Tap, 2048).unwrap();
    assert_eq!(slots.start(3), 3);
    let tokens = tokens(&mut slots, 3);

    slots.complete(tokens[2], 100);
    assert_eq!(slots.take_batch(), None);
    slots.complete(tokens[0], -libc::EAGAIN);
    slots.complete(tokens[1], 200);

    assert_eq!(
        slots.take_batch(),
        Some(RxBatch {
            frames: 2,
            empty: 1,
            ..RxBatch::default()
        })
    );
    assert_eq!(slots.front().unwrap().len(), 100);
    assert!(slots.pop());
    assert_eq!(slots.front().unwrap().len(), 200);
    assert!(slots.pop());
    assert!(!slots.pop());
    assert_eq!(slots.free(), BATCH_FRAMES);
}

#[test]
fn a_full_slot_is_a_cut_frame_and_is_dropped() {
    let mut slots = Slots::new(Encoding::Tap, 100).unwrap();
    assert_eq!(
        slots.read_with(|space| Ok(space.bytes.len())),
        Some(Landed::Cut)
    );
    assert_eq!(
        slots.read_with(|space| Ok(space.bytes.len() - 1)),
        Some(Landed::Frame)
    );
    assert_eq!((slots.held(), slots.free()), (1, BATCH_FRAMES - 1));
}

#[test]
fn only_as_many_reads_as_free_slots_and_one_batch_at_a_time() {
    let mut slots = Slots::new(Encoding::Tap, 100).unwrap();
    for _ in 0..60 {
        slots.read_with(|_| Ok(50));
    }
    assert_eq!(slots.start(64), 4);
    let token = tokens(&mut slots, 1)[0];
    assert_eq!(slots.start(1), 0);
    slots.complete(token, -libc::EBADFD);
    assert_eq!(slots.take_batch().unwrap().fault, Some(TapFault::Gone));
    slots.complete(token, 50);
    assert_eq!(slots.held(), 60, "a stale completion changes nothing");
}
