//! Did you mean ..?

/// `: did you mean \`x\`?` for the known key that is nearest to `key`, or nothing.
pub(super) fn nearest(key: &str, known: &[&str]) -> String {
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    // the right name in the wrong section is the commonest mistake, a slip of the pen the next
    let moved = known.iter().find(|known| last(known) == last(key));
    let close = known
        .iter()
        .map(|known| (strsim::damerau_levenshtein(key, known), known))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, _)| *distance <= 2.max(key.len() / 5));
    match (close, moved) {
        (Some((_, name)), _) | (None, Some(name)) => format!(", did you mean `{name}`?"),
        (None, None) => "; `outflow config` lists every key".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn slips_and_wrong_sections_are_seen() {
        let known = ["connector", "source.url", "source.slot", "sink.url", "sink.batch_entries"];
        assert_eq!(nearest("source.slto", &known), ", did you mean `source.slot`?");
        assert_eq!(nearest("conector", &known), ", did you mean `connector`?");
        assert_eq!(nearest("batch_entries", &known), ", did you mean `sink.batch_entries`?");
        assert_eq!(nearest("source.batch_entries", &known), ", did you mean `sink.batch_entries`?");
        assert!(nearest("weather", &known).contains("lists every key"));
    }
}
