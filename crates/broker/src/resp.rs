//! The form of requests and replies (Redis documentation, "Redis serialization protocol
//! specification", RESP2). Pure: bytes in, values out.
//!
//! Two passes over a reply cost less than one that must be able to stop anywhere: [`Scan`] follows
//! the lengths alone, as bytes come in, and [`reply`] takes apart what is known to be complete.

use redis::{ErrorKind, RedisError, RedisResult, Value};

use crate::reply::Reply;

/// Replies of Redis are four levels deep; more are an attack on the stack.
const DEEPEST: u32 = 32;
/// Bytes of a line: a length, a number, a status or an error.
const LONGEST_LINE: usize = 64 << 10;

/// Finds the end of a reply whose bytes come in piece by piece.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Scan {
    /// Bytes that have been looked at.
    at: usize,
    /// Values that are still to come.
    open: u64,
}

impl Scan {
    /// At the first byte of a reply.
    pub(crate) fn new() -> Self {
        Self { at: 0, open: 1 }
    }

    /// Goes on in `bytes`, which start where the reply starts. Its length, once it is all there.
    ///
    /// # Errors
    /// When this is no reply; nothing that follows can be understood.
    pub(crate) fn advance(&mut self, bytes: &[u8]) -> RedisResult<Option<usize>> {
        while self.open > 0 {
            let Some(rest) = bytes.get(self.at..).filter(|rest| !rest.is_empty()) else {
                return Ok(None);
            };
            let Some((kind, line, next)) = line(rest) else {
                return match rest.len() > LONGEST_LINE {
                    true => Err(malformed("a line does not end")),
                    false => Ok(None),
                };
            };
            let size = rest.len() - next.len();
            match kind {
                b'+' | b'-' | b':' => self.at += size,
                b'$' => {
                    let content = length(line)?.map_or(0, |length| length + CRLF);
                    // a bulk string that is not all there is looked at again from its first line
                    if next.len() < content {
                        return Ok(None);
                    }
                    self.at += size + content;
                }
                b'*' => {
                    let items = length(line)?.unwrap_or(0);
                    self.open = self.open.saturating_add(u64::try_from(items).unwrap_or(u64::MAX));
                    self.at += size;
                }
                other => return Err(unknown(other)),
            }
            self.open -= 1;
        }
        Ok(Some(self.at))
    }
}

/// Takes the first reply off `bytes`, in which it is complete. Returns what follows it, too.
///
/// # Errors
/// When it is no reply, or not complete.
pub(crate) fn reply(bytes: &[u8]) -> RedisResult<(Reply<'_>, &[u8])> {
    nested(bytes, DEEPEST)
}

fn nested(bytes: &[u8], deeper: u32) -> RedisResult<(Reply<'_>, &[u8])> {
    let (kind, line, rest) = line(bytes).ok_or_else(|| malformed("a reply is cut off"))?;
    let reply = match kind {
        b'$' => {
            let (string, rest) = bulk(line, rest)?;
            return Ok((string.map_or(Reply::Nil, Reply::Bulk), rest));
        }
        b'*' => return array(line, rest, deeper),
        b'+' => Reply::Status(line),
        b':' => Reply::Int(integer(line)?),
        // rare, and only the client's own parser can make this value
        b'-' => match redis::parse_redis_value(&[b"-", line, b"\r\n"].concat())? {
            Value::ServerError(error) => Reply::Error(Box::new(error)),
            _ => Reply::Other,
        },
        other => return Err(unknown(other)),
    };
    Ok((reply, rest))
}

fn array<'a>(line: &[u8], rest: &'a [u8], deeper: u32) -> RedisResult<(Reply<'a>, &'a [u8])> {
    let Some(length) = length(line)? else { return Ok((Reply::Nil, rest)) };
    let deeper = deeper.checked_sub(1).ok_or_else(|| malformed("a reply is nested too deeply"))?;
    // no value is shorter than `+\r\n`: what claims to be longer than the bytes is no reason to allocate
    let mut items = Vec::with_capacity(length.min(rest.len() / 3));
    let mut rest = rest;
    for _ in 0..length {
        let (item, next) = nested(rest, deeper)?;
        items.push(item);
        rest = next;
    }
    Ok((Reply::Array(items), rest))
}

/// The arguments of the first command of `bytes`: an array of bulk strings. Returns what follows
/// it, too; `None` where there is no (whole) command.
pub(crate) fn command(bytes: &[u8]) -> Option<(Vec<&[u8]>, &[u8])> {
    let (b'*', head, mut rest) = line(bytes)? else { return None };
    let number = length(head).ok()??;
    let mut arguments = Vec::with_capacity(number.min(rest.len() / 3));
    for _ in 0..number {
        let (b'$', head, next) = line(rest)? else { return None };
        let (argument, next) = bulk(head, next).ok()?;
        arguments.push(argument?);
        rest = next;
    }
    Some((arguments, rest))
}

const CRLF: usize = 2;

/// Kind and content of the first line, and what follows it; `None` while it is not all there.
fn line(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&kind, rest) = bytes.split_first()?;
    let end = rest.iter().position(|&byte| byte == b'\r')?;
    let (line, rest) = rest.split_at_checked(end)?;
    Some((kind, line, rest.get(CRLF..)?))
}

/// The content of a bulk string; `None` for a nil.
fn bulk<'a>(line: &[u8], rest: &'a [u8]) -> RedisResult<(Option<&'a [u8]>, &'a [u8])> {
    let Some(length) = length(line)? else { return Ok((None, rest)) };
    let (content, rest) =
        rest.split_at_checked(length).ok_or_else(|| malformed("a bulk string is cut off"))?;
    let rest = rest.strip_prefix(b"\r\n");
    Ok((Some(content), rest.ok_or_else(|| malformed("a bulk string does not end"))?))
}

/// A length; `None` for the length of a nil, which is -1.
fn length(line: &[u8]) -> RedisResult<Option<usize>> {
    // lengths are most of what there is to read: digits only, the rest is rare
    let mut length = 0_usize;
    for byte in line {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return match integer(line)? {
                -1 => Ok(None),
                _ => Err(malformed("a length is negative")),
            };
        }
        length = length
            .checked_mul(10)
            .and_then(|length| length.checked_add(digit.into()))
            // room for what is added to it
            .filter(|length| *length <= isize::MAX.unsigned_abs() - CRLF)
            .ok_or_else(|| malformed("a length is too large"))?;
    }
    match line {
        [] => Err(malformed("a length is missing")),
        _ => Ok(Some(length)),
    }
}

fn integer(line: &[u8]) -> RedisResult<i64> {
    let text = std::str::from_utf8(line).ok();
    text.and_then(|text| text.parse().ok()).ok_or_else(|| malformed("an integer is none"))
}

fn unknown(kind: u8) -> RedisError {
    let detail = format!("byte {kind:#04x} where a reply should start");
    RedisError::from((ErrorKind::Parse, "this is no reply of Redis", detail))
}

fn malformed(what: &'static str) -> RedisError {
    RedisError::from((ErrorKind::Parse, "this is no reply of Redis", what.to_owned()))
}

#[cfg(test)]
mod tests;
