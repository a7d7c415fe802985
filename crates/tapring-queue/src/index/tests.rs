//! Each function against its definition in integers that do not wrap.
//!
//! Two free-running indices say nothing but how far apart they are. So every pair of distances is
//! tried from one starting point, which is all there is to try, and that the starting point makes
//! no difference is tried with all 2^16 of them at the distances where something changes.

use super::*;

/// Distances around which an answer can change.
const EDGES: [u16; 14] = [
    0, 1, 2, 63, 64, 255, 256, 0x3fff, 0x4000, 0x4001, 0x7fff, 0x8000, 0x8001, 0xffff,
];

/// The largest queue, in descriptors.
const LARGEST_QUEUE: u16 = 0x8000;

/// Where something is that lies `distance` ahead of `from`.
const fn ahead(from: u16, distance: u16) -> u16 {
    from.wrapping_add(distance)
}

/// How many of all 2^16 distances satisfy `holds`.
fn count_of(holds: impl Fn(u16) -> bool) -> u32 {
    (0..=u16::MAX).fold(0, |count, distance| count + u32::from(holds(distance)))
}

const ALL: u32 = 1 << 16;

/// The event lies `event` ahead of the old index and the new one `step` ahead: the indices passed
/// are `old, old + 1, … old + step - 1`, where nothing wraps.
const fn passed_in_wide_integers(event: u16, step: u16) -> bool {
    let (old, new) = (0u32, step as u32);
    let event = event as u32;
    old <= event && event < new
}

#[test]
fn passed_is_as_defined_for_every_event_and_step() {
    for step in 0..=u16::MAX {
        let right =
            count_of(|event| passed(event, step, 0) == passed_in_wide_integers(event, step));
        assert_eq!(right, ALL, "of all events, with {step} added");
    }
}

#[test]
fn passed_is_as_defined_from_every_start() {
    for step in EDGES {
        for event in EDGES {
            let expected = passed_in_wide_integers(event, step);
            let right =
                count_of(|old| passed(ahead(old, event), ahead(old, step), old) == expected);
            assert_eq!(
                right, ALL,
                "of all starts, with {step} added and the event at {event}"
            );
        }
    }
}

/// The specification's words, taken literally.
#[test]
fn passed_is_a_walk_from_the_old_index_to_the_new() {
    for old in [0, 1, 0x7fff, 0x8000, 0xfff0, 0xffff] {
        for step in [0, 1, 2, 64, 0x101] {
            let walk: Vec<u16> = (0..step).map(|at| ahead(old, at)).collect();
            let right =
                count_of(|event| passed(event, ahead(old, step), old) == walk.contains(&event));
            assert_eq!(right, ALL, "of all events, from {old} with {step} added");
        }
    }
}

#[test]
fn distance_is_as_defined_for_every_pair() {
    for from in 0..=u16::MAX {
        let wide = |to: u16| (u32::from(to) + ALL - u32::from(from)) % ALL;
        let right = count_of(|to| u32::from(distance(from, to)) == wide(to));
        assert_eq!(right, ALL, "of all distances from {from}");
    }
}

/// The event is stored with the device at `next`. It stands until [`QUIET_FOR`] entries were
/// popped and the batch that runs over is done. By then the driver is at most a queue ahead, and
/// it decides for what it added since it last did, which may be from before `next`.
#[test]
fn a_quiet_event_is_not_passed_by_any_driver_while_it_stands() {
    /// Entries that a driver may have added, and the device popped, before the driver decides.
    const LATE: u16 = 0x3fff;
    const BATCH: u16 = 64;
    let event = quiet_event(0);
    for new in 0..QUIET_FOR + BATCH + LARGEST_QUEUE {
        let passed = (0..new + LATE).filter(|old| passed(event, new, old.wrapping_sub(LATE)));
        assert_eq!(
            passed.count(),
            0,
            "of all decisions made with the driver at {new}"
        );
    }
}

#[test]
fn a_quiet_event_is_as_far_behind_from_every_start() {
    assert_eq!(
        count_of(|next| distance(quiet_event(next), next) == 0x4000),
        ALL
    );
}

/// Not stored again, it would be passed: the second store is not for nothing.
#[test]
fn a_quiet_event_is_passed_in_the_end() {
    let event = quiet_event(0);
    assert!(passed(event, ahead(event, 1), event));
}
