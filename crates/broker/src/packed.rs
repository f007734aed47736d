//! Commands that are encoded as they come in.

use redis::{Cmd, Pipeline, RedisWrite as _};

use crate::resp;

/// Commands in the form in which they are sent, one after the other in one buffer: what a value is
/// copied into first is what goes out.
///
/// The client's own [`Pipeline`] copies every byte three times and allocates twice a command.
#[derive(Debug, Default, Clone)]
pub struct Packed {
    bytes: Vec<u8>,
    commands: usize,
}

/// Bytes of memory that an emptied buffer keeps at most: one batch of unusual size does not keep
/// its memory for ever.
const KEPT: usize = 4 << 20;

impl Packed {
    /// Number of commands.
    #[must_use]
    pub fn len(&self) -> usize {
        self.commands
    }

    /// Whether there is no command.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.commands == 0
    }

    /// Starts a command of exactly `arguments` arguments, its name included.
    pub fn command(&mut self, arguments: usize) -> Arguments<'_> {
        self.commands += 1;
        number(&mut self.bytes, b'*', arguments);
        Arguments { bytes: &mut self.bytes, left: arguments }
    }

    /// Adds a command that somebody else has made.
    pub fn add(&mut self, command: &Cmd) {
        self.commands += 1;
        command.write_packed_command(&mut self.bytes);
    }

    /// The arguments of each command, in order.
    pub fn commands(&self) -> impl Iterator<Item = Vec<&[u8]>> {
        let mut rest = self.bytes.as_slice();
        std::iter::from_fn(move || {
            let (arguments, next) = resp::command(rest)?;
            rest = next;
            Some(arguments)
        })
    }

    /// Empties it and keeps its memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT);
        self.commands = 0;
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The same as a transaction of the client's own: in a cluster it is the client that finds the
    /// node.
    pub(crate) fn pipeline(&self) -> Pipeline {
        let mut pipe = Pipeline::with_capacity(self.commands);
        pipe.atomic().ignore_errors();
        for arguments in self.commands() {
            let mut command = Cmd::new();
            arguments.into_iter().for_each(|argument| command.write_arg(argument));
            pipe.add_command(command);
        }
        pipe
    }
}

/// Room for the line in front of an argument, as a rule.
const LINE: usize = 8;

/// The arguments of a command that was started.
#[derive(Debug)]
#[must_use = "a command lacks its arguments"]
pub struct Arguments<'a> {
    bytes: &'a mut Vec<u8>,
    left: usize,
}

impl Arguments<'_> {
    /// Adds one of them.
    pub fn arg(&mut self, argument: &[u8]) -> &mut Self {
        debug_assert!(self.left > 0, "more arguments than announced");
        self.left = self.left.saturating_sub(1);
        self.bytes.reserve(argument.len() + 2 * LINE);
        number(self.bytes, b'$', argument.len());
        self.bytes.extend_from_slice(argument);
        self.bytes.extend_from_slice(b"\r\n");
        self
    }
}

impl Drop for Arguments<'_> {
    fn drop(&mut self) {
        debug_assert!(self.left == 0, "fewer arguments than announced");
    }
}

/// The line that says how long what follows is: in front of every argument of every event.
#[inline]
fn number(bytes: &mut Vec<u8>, kind: u8, number: usize) {
    // nearly all are below a thousand
    let digit = |value: usize| b'0' + u8::try_from(value % 10).unwrap_or_default();
    match number {
        0..10 => bytes.extend_from_slice(&[kind, digit(number), b'\r', b'\n']),
        10..100 => {
            bytes.extend_from_slice(&[kind, digit(number / 10), digit(number), b'\r', b'\n']);
        }
        100..1000 => bytes.extend_from_slice(&[
            kind,
            digit(number / 100),
            digit(number / 10),
            digit(number),
            b'\r',
            b'\n',
        ]),
        _ => {
            bytes.push(kind);
            bytes.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
            bytes.extend_from_slice(b"\r\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_any_number_of_digits() {
        for length in [0, 1, 9, 10, 42, 99, 100, 507, 999, 1000, 65_536, 1_048_577] {
            let mut packed = Packed::default();
            packed.command(2).arg(b"ECHO").arg("x".repeat(length).as_bytes());
            let expected = redis::cmd("ECHO").arg("x".repeat(length)).get_packed_command();
            assert!(packed.bytes() == expected, "{length}");
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_client() {
        let mut packed = Packed::default();
        packed.command(3).arg(b"SET").arg(b"key").arg(b"");
        let mut long = redis::cmd("SET");
        packed.add(long.arg("other").arg("x".repeat(1000)));
        let mut pipe = redis::pipe();
        pipe.cmd("SET").arg("key").arg("").add_command(long);
        assert_eq!(packed.bytes(), pipe.get_packed_pipeline());
        assert_eq!(packed.pipeline().get_packed_pipeline(), pipe.atomic().get_packed_pipeline());
        assert_eq!(packed.len(), 2);
        packed.clear();
        assert!(packed.is_empty() && packed.commands().next().is_none());
    }
}
