//! Takes a record of a stream apart, without the codec that made it.

use outflow_event::entry::field;

/// Field names and values of a record, in their order.
pub(super) type Fields = [(Vec<u8>, Vec<u8>)];

/// The one value of the field `name`; none where it is missing.
///
/// # Errors
/// The field stands twice: readers would disagree which one counts.
pub(super) fn value<'a>(fields: &'a Fields, name: &str) -> Result<Option<&'a [u8]>, String> {
    let mut values = fields.iter().filter(|(field, _)| field == name.as_bytes());
    let first = values.next().map(|(_, value)| value.as_slice());
    match values.next() {
        Some(_) => Err(format!("field {name} stands twice")),
        None => Ok(first),
    }
}

/// As [`value`], for text.
///
/// # Errors
/// The field stands twice or is not UTF-8.
pub(super) fn text<'a>(fields: &'a Fields, name: &str) -> Result<Option<&'a str>, String> {
    let Some(bytes) = value(fields, name)? else { return Ok(None) };
    std::str::from_utf8(bytes).map(Some).map_err(|_| format!("field {name} is not UTF-8"))
}

/// `0/16B3748:3` as (LSN, index); none where the entry has no position.
///
/// # Errors
/// The field has another form.
pub(super) fn position(fields: &Fields) -> Result<Option<(u64, u64)>, String> {
    let Some(text) = text(fields, field::POSITION)? else { return Ok(None) };
    let parse = || {
        let (lsn, index) = text.split_once(':')?;
        let (high, low) = lsn.split_once('/')?;
        let half = |digits: &str| u32::from_str_radix(digits, 16).ok().map(u64::from);
        Some((half(high)? << 32 | half(low)?, index.parse().ok()?))
    };
    parse().map(Some).ok_or_else(|| format!("position `{text}` is not <LSN>:<index>"))
}

/// `1526919030474-55` as its two halves.
pub(super) fn entry_id(text: &str) -> Option<(u64, u64)> {
    let (major, minor) = text.split_once('-')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The time of the commit in microseconds since 1970; none where the entry has none, or an empty one
/// as rows of a snapshot do.
///
/// # Errors
/// The field is no time.
pub(super) fn commit_time(fields: &Fields) -> Result<Option<i64>, String> {
    let text = text(fields, field::COMMIT_TIME)?.filter(|text| !text.is_empty());
    let Some(text) = text else { return Ok(None) };
    let time: Result<jiff::Timestamp, _> = text.parse();
    time.map(|time| Some(time.as_microsecond()))
        .map_err(|_| format!("commit_time `{text}` is no time"))
}
