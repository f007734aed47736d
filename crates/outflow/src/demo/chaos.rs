//! Kills connector and consumer at random moments and starts them again.
//!
//! Moments are fractions of the producers' work, and all of them come from the seed: another machine
//! kills at the same events, give or take.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::Mutex;

use super::watch::Progress;
use crate::rig::child::Child;

const POLL: Duration = Duration::from_millis(5);

/// One kill.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Kill {
    /// Fraction of the producers' work.
    at: f64,
    /// Further delay: events are not the only clock that faults follow.
    after: Duration,
    /// How long the process stays dead.
    dead: Duration,
}

/// `count` kills at moments of the middle, in their order.
fn plan(count: u32, seed: u64) -> Vec<Kill> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut millis = |most: u64| Duration::from_millis(rng.random_range(0..most));
    let pauses: Vec<_> = (0..count).map(|_| (millis(100), millis(600))).collect();
    let mut kills: Vec<_> = pauses
        .into_iter()
        .map(|(after, dead)| Kill { at: rng.random_range(0.05..0.95), after, dead })
        .collect();
    kills.sort_unstable_by(|one, other| one.at.total_cmp(&other.at));
    kills
}

/// Kills `child` `count` times while the producers work.
///
/// # Errors
/// When the process had ended by itself, or cannot be started again.
pub(super) async fn run(
    child: &Mutex<Child>,
    count: u32,
    seed: u64,
    progress: &Progress,
) -> anyhow::Result<()> {
    for kill in plan(count, seed) {
        while progress.fraction() < kill.at {
            tokio::time::sleep(POLL).await;
        }
        tokio::time::sleep(kill.after).await;
        // nobody else may take it for dead by itself
        let mut child = child.lock().await;
        let pid = child.kill().await?;
        progress.killed(child.name(), pid);
        tokio::time::sleep(kill.dead).await;
        child.start()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_kills_again_and_all_of_them_in_the_middle() {
        let kills = plan(20, 7);
        assert_eq!(kills, plan(20, 7));
        assert_ne!(kills, plan(20, 8));
        assert!(kills.iter().all(|kill| (0.05..0.95).contains(&kill.at)));
        assert!(kills.is_sorted_by(|one, other| one.at <= other.at));
    }
}
