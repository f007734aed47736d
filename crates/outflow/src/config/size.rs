//! Sizes in bytes, written like `16MiB`.

use std::fmt;
use std::str::FromStr;

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ByteSize(pub(crate) usize);

const UNITS: [(&str, usize); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

impl ByteSize {
    /// `n` KiB.
    pub(crate) const fn kib(n: usize) -> Self {
        Self(n << 10)
    }

    /// `n` MiB.
    pub(crate) const fn mib(n: usize) -> Self {
        Self(n << 20)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, factor) in UNITS {
            if self.0 >= factor && self.0.is_multiple_of(factor) {
                return write!(f, "{}{unit}", self.0 / factor);
            }
        }
        write!(f, "{}B", self.0)
    }
}

impl FromStr for ByteSize {
    type Err = ();

    /// Digits and a unit; no unit is bytes. `MB` and the like are refused: they mean two things.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let number: usize = number.parse().map_err(|_| ())?;
        let factor = match unit.trim() {
            "" | "B" => 1,
            unit => UNITS.iter().find(|(known, _)| *known == unit).ok_or(())?.1,
        };
        number.checked_mul(factor).map(Self).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::ByteSize;

    #[test]
    fn sizes_are_read_and_shown() {
        for (text, bytes, shown) in [
            ("16MiB", 16 << 20, "16MiB"),
            ("1024 KiB", 1 << 20, "1MiB"),
            ("100", 100, "100B"),
            ("1025B", 1025, "1025B"),
            ("0", 0, "0B"),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)));
            assert_eq!(ByteSize(bytes).to_string(), shown);
        }
        for text in ["", "MiB", "16MB", "-1", "1.5MiB", "99999999999GiB"] {
            assert_eq!(text.parse::<ByteSize>(), Err(()), "{text}");
        }
    }
}
