//! Which stream an aggregate belongs to.

use xxhash_rust::xxh3::xxh3_64;

/// How stream keys are made: `<prefix><aggregate_type>`, or with several partitions
/// `<prefix>{<aggregate_type>:<partition>}`.
///
/// The braces are a Redis Cluster hash tag (Redis documentation, "Redis cluster specification",
/// "Hash tags"): partitions of one type spread over the nodes. One aggregate always maps to one
/// stream, which is what keeps its events in order; changing the number of partitions moves
/// aggregates between streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamNaming {
    prefix: String,
    partitions: u32,
}

impl StreamNaming {
    /// Keys that begin with `prefix`, each aggregate type hashed over `partitions` streams
    /// (0 counts as 1).
    #[must_use]
    pub fn new(prefix: impl Into<String>, partitions: u32) -> Self {
        Self { prefix: prefix.into(), partitions: partitions.max(1) }
    }

    /// What every key begins with.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The partition of an aggregate: XXH3-64 of its id, modulo the number of partitions.
    #[must_use]
    pub fn partition(&self, aggregate_id: &[u8]) -> u32 {
        if self.partitions == 1 {
            return 0;
        }
        let partition = xxh3_64(aggregate_id) % u64::from(self.partitions);
        u32::try_from(partition).unwrap_or(0)
    }

    /// Appends the key of partition `partition` of `aggregate_type` to `key`.
    pub fn write_key(&self, aggregate_type: &[u8], partition: u32, key: &mut Vec<u8>) {
        key.extend_from_slice(self.prefix.as_bytes());
        if self.partitions == 1 {
            key.extend_from_slice(aggregate_type);
        } else {
            key.push(b'{');
            key.extend_from_slice(aggregate_type);
            key.extend_from_slice(format!(":{partition}}}").as_bytes());
        }
    }

    /// Every key of one aggregate type, in the order of the partitions: what a consumer reads.
    #[must_use]
    pub fn keys(&self, aggregate_type: &str) -> Vec<String> {
        (0..self.partitions)
            .map(|partition| {
                let mut key = Vec::new();
                self.write_key(aggregate_type.as_bytes(), partition, &mut key);
                String::from_utf8_lossy(&key).into_owned()
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_partition_needs_no_suffix() {
        let naming = StreamNaming::new("outflow:", 1);
        assert_eq!(naming.keys("order"), ["outflow:order"]);
        assert_eq!(naming.partition(b"42"), 0);
    }

    #[test]
    fn partitions_carry_a_hash_tag() {
        let naming = StreamNaming::new("outflow:", 3);
        assert_eq!(
            naming.keys("order"),
            ["outflow:{order:0}", "outflow:{order:1}", "outflow:{order:2}"]
        );
    }

    #[test]
    fn an_aggregate_stays_in_its_partition() {
        // fixed values: a change of the hash would move aggregates of running systems
        let naming = StreamNaming::new("", 8);
        let partitions: Vec<_> =
            ["1", "2", "account-7", ""].iter().map(|id| naming.partition(id.as_bytes())).collect();
        assert_eq!(partitions, [0, 4, 6, 2]);
    }
}
