use super::*;

fn raw() -> Flow {
    Flow {
        wrapping: Wrapping::Raw,
        ..Flow::default()
    }
}

#[test]
fn every_length_is_verified_as_built() {
    for flow in [Flow::default(), raw()] {
        let mut verifier = Verifier::new(flow);
        for (sequence, bytes) in (0..).zip(SHORTEST_BYTES..=LONGEST_BYTES) {
            assert_eq!(verifier.frame(&flow.build(sequence, bytes)), Verdict::Good);
        }
        let sent = (LONGEST_BYTES - SHORTEST_BYTES + 1) as u64;
        let report = verifier.report(sent);
        assert!(report.is_perfect(), "{report:?}");
        assert_eq!(report.received, sent);
    }
}

#[test]
fn no_changed_byte_passes() {
    for flow in [Flow::default(), raw()] {
        let frame = flow.build(77, 101);
        for at in 0..frame.len() {
            let mut changed = frame.clone();
            changed[at] ^= 0x10;
            let verdict = Verifier::starting_at(flow, 77).frame(&changed);
            assert!(
                matches!(verdict, Verdict::Corrupt(_) | Verdict::Foreign),
                "byte {at}: {verdict:?}"
            );
        }
    }
}

#[test]
fn a_cut_or_lengthened_frame_is_corrupt() {
    let flow = Flow::default();
    let mut frame = flow.build(0, 200);
    frame.push(0);
    assert_eq!(
        Verifier::new(flow).frame(&frame),
        Verdict::Corrupt(Fault::Length)
    );
    assert_eq!(
        Verifier::new(flow).frame(&frame[..199]),
        Verdict::Corrupt(Fault::Length)
    );
}

#[test]
fn any_payload_can_be_wrapped() {
    let flow = Flow::default();
    for bytes in 0..8 {
        let mut frame = vec![7; flow.header_bytes() + bytes];
        flow.wrap(3, &mut frame);
        let segment = &frame[ETHERNET_BYTES + IPV4_BYTES..];
        let pseudo = Sum::pseudo(
            flow.source.ip,
            flow.destination.ip,
            wire_length(segment.len()),
        );
        assert_eq!(pseudo.and(Sum::of(segment)).checksum(), 0, "{bytes} bytes");
        assert!(segment[UDP_BYTES..].iter().all(|byte| *byte == 7));
    }
}

#[test]
fn checksums_agree_with_the_definition() {
    let ip = [
        0x45, 0, 0, 34, 0x12, 0x34, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2,
    ];
    assert_eq!(Sum::of(&ip).checksum(), reference(&ip));
    let odd = b"hello\n\0\x01\x02\x03\x04\x05\x06\x07\x08\x09\xff";
    assert_eq!(Sum::of(odd).checksum(), reference(odd));
}

/// RFC 1071's definition, word by word.
fn reference(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        let word = u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
        sum += u32::from(word);
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}
