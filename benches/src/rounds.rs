//! Contestants that take turns.
//!
//! Round 1 goes through them in order, round 2 backwards, round 3 in order again: what a machine does to whoever comes
//! second (heat, a neighbour that wakes up) then meets each as often. Two figures are compared within a round only, where
//! they were measured seconds apart; the ratio that is reported is the median of the rounds' ratios.

use crate::BenchError;

/// Lets each contestant measure once a round. The result has a row for each contestant with a figure for each round.
pub fn take_turns<C, M>(
    contestants: &mut [C],
    rounds: u16,
    mut measure: impl FnMut(&mut C) -> Result<M, BenchError>,
) -> Result<Vec<Vec<M>>, BenchError> {
    let mut figures: Vec<Vec<M>> = contestants.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        let mut order: Vec<usize> = (0..contestants.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            figures[index].push(measure(&mut contestants[index])?);
        }
    }
    Ok(figures)
}

/// The middle of the figures, or the mean of the two in the middle; 0 without any.
pub fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = figures.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[odd / 2],
        even => f64::midpoint(sorted[even / 2 - 1], sorted[even / 2]),
    }
}

/// The figures of `one` over those of `other`, round by round.
pub fn ratios(one: &[f64], other: &[f64]) -> Vec<f64> {
    let pairs = one.iter().zip(other).filter(|(_, other)| **other > 0.0);
    pairs.map(|(one, other)| one / other).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-9
    }

    #[test]
    fn the_order_alternates() {
        let mut seen = Vec::new();
        let figures = take_turns(&mut ['a', 'b', 'c'], 3, |name| {
            seen.push(*name);
            Ok(seen.len())
        });
        assert_eq!(seen.iter().collect::<String>(), "abccbaabc");
        assert_eq!(figures.unwrap(), [[1, 6, 7], [2, 5, 8], [3, 4, 9]]);
    }

    #[test]
    fn a_failure_ends_the_contest() {
        let stuck = || BenchError::Stuck {
            what: "nothing".into(),
            limit: std::time::Duration::ZERO,
        };
        assert!(take_turns(&mut [1, 2], 3, |_| Err::<(), _>(stuck())).is_err());
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert!(same(median([3.0, 1.0, 100.0]), 3.0));
        assert!(same(median([4.0, 1.0, 2.0, 100.0]), 3.0));
        assert!(same(median([]), 0.0));
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let ratios = ratios(&[1.0, 8.0, 5.0], &[2.0, 4.0, 0.0]);
        assert!(ratios.len() == 2 && same(ratios[0], 0.5) && same(ratios[1], 2.0));
    }
}
