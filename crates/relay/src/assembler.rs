//! Puts transactions together: a pure state machine that gives every event its position.
//!
//! The server sends a transaction only after it has committed (protocol version 1), as Begin, its
//! rows, Commit. The assembler numbers what becomes an event within each transaction, drops what
//! an earlier run has already published, and reports where a transaction is complete. It never
//! holds rows: a transaction of any size passes through.
//!
//! Order and meaning of the messages: PostgreSQL documentation, "Logical Streaming Replication
//! Protocol".

use outflow_event::{Lsn, Position};

/// Numbers the events of the stream.
#[derive(Debug)]
pub struct Assembler {
    open: Option<Open>,
    /// Events below this point are already published.
    resume: (Lsn, u64),
}

/// The transaction that is being received.
#[derive(Debug, Clone, Copy)]
struct Open {
    commit_lsn: Lsn,
    index: u64,
}

/// What to do with an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Publish it at this position.
    Publish(Position),
    /// An earlier run has published it.
    AlreadyPublished,
}

/// Messages in an order that the protocol does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OutOfOrder {
    /// Begin while a transaction is open.
    #[error("a transaction begins at {new} while the one that commits at {open} is not finished")]
    NestedBegin {
        /// Commit LSN of the open transaction.
        open: Lsn,
        /// Commit LSN of the new one.
        new: Lsn,
    },
    /// Row or Commit while no transaction is open.
    #[error("a {0} arrived outside of a transaction")]
    NoTransaction(&'static str),
    /// Commit of another transaction than the open one.
    #[error("the transaction that commits at {open} ends with a commit at {commit}")]
    OtherCommit {
        /// Commit LSN from Begin.
        open: Lsn,
        /// Commit LSN from Commit.
        commit: Lsn,
    },
}

impl Assembler {
    /// Starts at a resume point: `published` events of the transaction that commits at `lsn`, and
    /// everything before it, count as published.
    #[must_use]
    pub fn resume_at(lsn: Lsn, published: u64) -> Self {
        Self { open: None, resume: (lsn, published) }
    }

    /// A transaction begins; `commit_lsn` is Begin's `final_lsn`.
    ///
    /// # Errors
    /// [`OutOfOrder`]: the link cannot be trusted, drop it and resume from the stored offset.
    pub fn begin(&mut self, commit_lsn: Lsn) -> Result<(), OutOfOrder> {
        if let Some(open) = self.open {
            return Err(OutOfOrder::NestedBegin { open: open.commit_lsn, new: commit_lsn });
        }
        self.open = Some(Open { commit_lsn, index: 0 });
        Ok(())
    }

    /// The open transaction has an event: gives it the next position.
    ///
    /// # Errors
    /// As for [`Assembler::begin`].
    pub fn event(&mut self) -> Result<Placement, OutOfOrder> {
        let open = self.open.as_mut().ok_or(OutOfOrder::NoTransaction("row"))?;
        let position = Position::new(open.commit_lsn, open.index);
        open.index += 1;
        if (position.commit_lsn, position.index) < self.resume {
            return Ok(Placement::AlreadyPublished);
        }
        Ok(Placement::Publish(position))
    }

    /// The open transaction is complete.
    ///
    /// # Errors
    /// As for [`Assembler::begin`].
    pub fn commit(&mut self, commit_lsn: Lsn) -> Result<(), OutOfOrder> {
        let open = self.open.take().ok_or(OutOfOrder::NoTransaction("commit"))?;
        if open.commit_lsn != commit_lsn {
            return Err(OutOfOrder::OtherCommit { open: open.commit_lsn, commit: commit_lsn });
        }
        Ok(())
    }

    /// Whether a transaction is open: between transactions, and only there, the server's WAL end
    /// is a place to resume from.
    #[must_use]
    pub fn in_transaction(&self) -> bool {
        self.open.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(lsn: u64, index: u64) -> Placement {
        Placement::Publish(Position::new(Lsn::from(lsn), index))
    }

    #[test]
    fn events_are_numbered_within_their_transaction() {
        let mut assembler = Assembler::resume_at(Lsn::from(0), 0);
        assembler.begin(Lsn::from(10)).unwrap();
        assert_eq!(assembler.event(), Ok(at(10, 0)));
        assert_eq!(assembler.event(), Ok(at(10, 1)));
        assembler.commit(Lsn::from(10)).unwrap();
        assembler.begin(Lsn::from(20)).unwrap();
        assert_eq!(assembler.event(), Ok(at(20, 0)));
    }

    #[test]
    fn c09_a_transaction_that_commits_at_the_resume_point_is_not_skipped() {
        // the commit record of the next transaction may start where the last one ended
        let mut assembler = Assembler::resume_at(Lsn::from(10), 0);
        assembler.begin(Lsn::from(10)).unwrap();
        assert_eq!(assembler.event(), Ok(at(10, 0)));
    }

    #[test]
    fn c55_the_published_part_of_a_transaction_is_dropped_and_counted() {
        let mut assembler = Assembler::resume_at(Lsn::from(10), 2);
        assembler.begin(Lsn::from(10)).unwrap();
        assert_eq!(assembler.event(), Ok(Placement::AlreadyPublished));
        assert_eq!(assembler.event(), Ok(Placement::AlreadyPublished));
        assert_eq!(assembler.event(), Ok(at(10, 2)));
    }

    #[test]
    fn messages_out_of_order_are_refused() {
        let mut assembler = Assembler::resume_at(Lsn::from(0), 0);
        assert_eq!(assembler.event(), Err(OutOfOrder::NoTransaction("row")));
        assert_eq!(assembler.commit(Lsn::from(1)), Err(OutOfOrder::NoTransaction("commit")));
        assembler.begin(Lsn::from(1)).unwrap();
        let nested = OutOfOrder::NestedBegin { open: Lsn::from(1), new: Lsn::from(2) };
        assert_eq!(assembler.begin(Lsn::from(2)), Err(nested));
        let other = OutOfOrder::OtherCommit { open: Lsn::from(1), commit: Lsn::from(3) };
        assert_eq!(assembler.commit(Lsn::from(3)), Err(other));
    }

    proptest! {
        /// Wherever a run stops, the next one publishes exactly the rest.
        #[test]
        fn a_run_resumed_anywhere_publishes_the_rest(
            sizes in proptest::collection::vec(0..5u64, 1..8),
            stop in any::<prop::sample::Index>(),
        ) {
            let run = |lsn: Lsn, published: u64| {
                let mut assembler = Assembler::resume_at(lsn, published);
                let mut positions = Vec::new();
                for (number, size) in (1u64..).zip(&sizes) {
                    let commit_lsn = Lsn::from(number * 10);
                    assembler.begin(commit_lsn).unwrap();
                    for _ in 0..*size {
                        if let Placement::Publish(position) = assembler.event().unwrap() {
                            positions.push(position);
                        }
                    }
                    assembler.commit(commit_lsn).unwrap();
                }
                positions
            };
            let all = run(Lsn::from(0), 0);
            prop_assert_eq!(u64::try_from(all.len()).unwrap(), sizes.iter().sum::<u64>());
            prop_assert!(all.is_sorted());
            let published = stop.index(all.len() + 1);
            let rest = match published.checked_sub(1) {
                None => run(Lsn::from(0), 0),
                Some(last) => run(all[last].commit_lsn, all[last].index + 1),
            };
            prop_assert_eq!(&rest[..], &all[published..]);
        }
    }
}
