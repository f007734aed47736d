//! Commit times as the connector writes them: RFC 3339 in UTC, `2024-05-01T12:00:00.123456Z`.

/// Microseconds since 1970; `None` if `text` is not of that form, or not a moment.
pub(crate) fn micros_since_epoch(text: &str) -> Option<i64> {
    let text = text.strip_suffix('Z')?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let part = |from: usize, to: usize| {
        let digits = whole.get(from..to)?;
        let all_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
        all_digits.then(|| digits.parse::<i64>().ok()).flatten()
    };
    let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    let bytes = whole.as_bytes();
    if bytes.len() != 19 || separators.iter().any(|(at, sep)| bytes.get(*at) != Some(sep)) {
        return None;
    }
    let (year, month, day) = (part(0, 4)?, part(5, 7)?, part(8, 10)?);
    let (hour, minute, second) = (part(11, 13)?, part(14, 16)?, part(17, 19)?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_of_month = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    let valid = year > 0 && (1..=days_of_month).contains(&day);
    if !valid || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    if fraction.is_empty() || fraction.len() > 6 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let micros = format!("{fraction:0<6}").parse::<i64>().ok()?;
    let seconds = ((days_since_epoch(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
    Some(seconds * 1_000_000 + micros)
}

/// The moment so many microseconds after 1970, in the form that [`micros_since_epoch`] reads.
pub(crate) fn rfc3339(micros: i64) -> String {
    let (seconds, fraction) = (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000));
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    // days_since_epoch, the other way round
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let date = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
    if fraction == 0 { format!("{date}Z") } else { format!("{date}.{fraction:06}Z") }
}

/// Days from 1970-01-01 in the Gregorian calendar (years that begin in March make February last).
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::{micros_since_epoch, rfc3339};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_moment_is_read_as_it_was_written(micros in -60_000_000_000_000_000..250_000_000_000_000_000_i64) {
            prop_assert_eq!(micros_since_epoch(&rfc3339(micros)), Some(micros));
        }
    }

    #[test]
    fn moments() {
        assert_eq!(micros_since_epoch("1970-01-01T00:00:00.000000Z"), Some(0));
        assert_eq!(micros_since_epoch("2024-02-29T12:34:56.5Z"), Some(1_709_210_096_500_000));
        assert_eq!(micros_since_epoch("1969-12-31T23:59:59Z"), Some(-1_000_000));
        assert_eq!(micros_since_epoch("2000-03-01T00:00:00Z"), Some(951_868_800_000_000));
    }

    #[test]
    fn c26_what_is_no_moment() {
        for text in [
            "",
            "infinity",
            "2023-02-29T00:00:00Z",
            "2024-13-01T00:00:00Z",
            "2024-01-01T24:00:00Z",
            "2024-01-01 00:00:00Z",
            "2024-01-01T00:00:00+00:00",
            "2024-01-01T00:00:00.Z",
            "2024-01-01T00:00:00.1234567Z",
            "+024-01-01T00:00:00Z",
            "\u{e9}024-01-01T00:00:0Z",
        ] {
            assert_eq!(micros_since_epoch(text), None, "{text}");
        }
    }
}
