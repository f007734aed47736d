//! Whether PostgreSQL's `jsonb` accepts a text, decided before it is sent.
//!
//! One payload that `jsonb` refuses fails the statement of a whole batch, and PostgreSQL 15 has no
//! way to ask first (`pg_input_is_valid` came with 16). What `json` accepts is more than what
//! `jsonb` accepts: `\u0000`, lone surrogates and numbers beyond `numeric` pass the first and fail
//! the second (PostgreSQL documentation, section "JSON Types").
//!
//! The answer may err towards `false` (then the payload is compared by its bytes), and where it
//! errs towards `true` (a small `max_stack_depth`, another server encoding) the server's refusal is
//! handled, only more slowly.

/// Nesting beyond this is left to comparison by bytes: the server's parser recurses.
const MAX_DEPTH: usize = 1_000;
/// `jsonb` limits strings, and the sum of a container's elements, to 2^28 - 1 bytes.
const MAX_LEN: usize = (1 << 28) - 1;
/// `numeric` holds this many digits before the point, ...
const MAX_INTEGER_DIGITS: i64 = 131_072;
/// ... and this many after it (PostgreSQL documentation, section "Arbitrary Precision Numbers").
const MAX_FRACTION_DIGITS: i64 = 16_383;

/// Whether `text` is valid input of type `jsonb`.
pub(crate) fn is_jsonb(text: &str) -> bool {
    if text.len() > MAX_LEN {
        return false;
    }
    let mut scanner = Scanner { rest: text.as_bytes() };
    scanner.document().is_some()
}

struct Scanner<'a> {
    rest: &'a [u8],
}

/// `None` is "not valid": the reason does not matter here.
type Valid = Option<()>;

impl Scanner<'_> {
    fn document(&mut self) -> Valid {
        // true: inside an object, false: inside an array
        let mut stack: Vec<bool> = Vec::new();
        'value: loop {
            self.space();
            match self.peek()? {
                open @ (b'{' | b'[') => {
                    self.next();
                    self.space();
                    if self.peek()? == open + 2 {
                        self.next();
                    } else {
                        if stack.len() == MAX_DEPTH {
                            return None;
                        }
                        stack.push(open == b'{');
                        if open == b'{' {
                            self.key()?;
                        }
                        continue 'value;
                    }
                }
                b'"' => self.string()?,
                b'-' | b'0'..=b'9' => self.number()?,
                b't' => self.word(b"true")?,
                b'f' => self.word(b"false")?,
                b'n' => self.word(b"null")?,
                _ => return None,
            }
            // a value ended: close what ends with it, or go on to the next one
            loop {
                self.space();
                let Some(in_object) = stack.last().copied() else {
                    return self.rest.is_empty().then_some(());
                };
                match (self.next()?, in_object) {
                    (b',', true) => {
                        self.space();
                        self.key()?;
                        continue 'value;
                    }
                    (b',', false) => continue 'value,
                    (b'}', true) | (b']', false) => {
                        stack.pop();
                    }
                    _ => return None,
                }
            }
        }
    }

    fn key(&mut self) -> Valid {
        self.string()?;
        self.space();
        (self.next()? == b':').then_some(())
    }

    fn string(&mut self) -> Valid {
        if self.next()? != b'"' {
            return None;
        }
        loop {
            // most of a payload is the plain inside of strings
            let plain =
                self.rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f))?;
            self.rest = self.rest.get(plain..)?;
            match self.next()? {
                b'"' => return Some(()),
                b'\\' => self.escape()?,
                _ => return None,
            }
        }
    }

    fn escape(&mut self) -> Valid {
        match self.next()? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(()),
            b'u' => match self.hex4()? {
                0 | 0xDC00..=0xDFFF => None,
                0xD800..=0xDBFF => {
                    self.word(b"\\u")?;
                    matches!(self.hex4()?, 0xDC00..=0xDFFF).then_some(())
                }
                _ => Some(()),
            },
            _ => None,
        }
    }

    fn hex4(&mut self) -> Option<u32> {
        (0..4).try_fold(0, |value, _| {
            let digit = char::from(self.next()?).to_digit(16)?;
            Some(value << 4 | digit)
        })
    }

    fn number(&mut self) -> Valid {
        if self.peek()? == b'-' {
            self.next();
        }
        let integer = match self.peek()? {
            b'0' => {
                self.next();
                1
            }
            _ => self.digits()?,
        };
        let fraction = if self.peek() == Some(b'.') {
            self.next();
            self.digits()?
        } else {
            0
        };
        let exponent = if matches!(self.peek(), Some(b'e' | b'E')) {
            self.next();
            self.exponent()?
        } else {
            0
        };
        (integer + exponent <= MAX_INTEGER_DIGITS && fraction - exponent <= MAX_FRACTION_DIGITS)
            .then_some(())
    }

    fn digits(&mut self) -> Option<i64> {
        let len = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.rest = self.rest.get(len..)?;
        (len > 0).then_some(i64::try_from(len).ok()?)
    }

    fn exponent(&mut self) -> Option<i64> {
        let sign = match self.peek()? {
            b'-' => -1,
            _ => 1,
        };
        if matches!(self.peek()?, b'-' | b'+') {
            self.next();
        }
        let before = self.rest;
        let len = usize::try_from(self.digits()?).ok()?;
        let value = std::str::from_utf8(before.get(..len)?).ok()?.parse::<i64>().ok()?;
        // far beyond what numeric holds, and the sums above stay within i64
        (value < 1 << 32).then_some(sign * value)
    }

    fn word(&mut self, word: &[u8]) -> Valid {
        self.rest = self.rest.strip_prefix(word)?;
        Some(())
    }

    fn space(&mut self) {
        while let [b' ' | b'\t' | b'\n' | b'\r', rest @ ..] = self.rest {
            self.rest = rest;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_jsonb_accepts() {
        for text in [
            "null",
            " true ",
            "[]",
            "{}",
            "[[], {}, [1]]",
            r#"{"a":{"b":[1,-0,0.10,1e400,1E-5,2e+3,9007199254740993]},"":""}"#,
            r#""\ud83d\ude00 \u0001 \" \\ \/ \b\f\n\r\t""#,
            "\"\u{7f}\u{e9}\u{1F600}\"",
            "1e131071",
            "1e-16383",
            "\t\r\n[ 1 , 2 ]",
        ] {
            assert!(is_jsonb(text), "{text}");
        }
    }

    #[test]
    fn c22_c23_what_jsonb_refuses() {
        for text in [
            "",
            " ",
            "{",
            "[1,]",
            "{\"a\"}",
            "{\"a\":1,}",
            "{a:1}",
            "[1}",
            "nul",
            "01",
            "1.",
            ".5",
            "+1",
            "1e",
            "--1",
            "1 2",
            "\"",
            "\"\n\"",
            r#""\x""#,
            r#""\u00""#,
            r#"{"a":"x\u0000y"}"#,
            r#""\ud800""#,
            r#""\ud800\n""#,
            r#""\ud800\ud800""#,
            r#""\udc00""#,
            "1e131072",
            "1e-16384",
            "1e99999999999999999999",
            "NaN",
        ] {
            assert!(!is_jsonb(text), "{text}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(is_jsonb(&nested(MAX_DEPTH)));
        assert!(!is_jsonb(&nested(MAX_DEPTH + 2)));
        assert!(!is_jsonb(&"[".repeat(1 << 20)));
    }

    proptest! {
        /// serde_json is another reading of the same grammar: what it refuses, jsonb refuses too.
        #[test]
        fn never_accepts_what_is_not_json(text in r#"[\[\]{}",:0-9eE.\-+\\utrfalsn d]{0,24}"#) {
            if is_jsonb(&text) {
                prop_assert!(serde_json::from_str::<&serde_json::value::RawValue>(&text).is_ok());
            }
        }

        #[test]
        fn never_panics(text in ".*") {
            let _ = is_jsonb(&text);
        }
    }
}
