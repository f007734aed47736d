//! Checked reads over a byte slice, big-endian as PostgreSQL sends them. No read can panic.

/// The input ended before the value did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Short;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    #[inline]
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    #[inline]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], Short> {
        let (head, tail) = self.rest.split_at_checked(len).ok_or(Short)?;
        self.rest = tail;
        Ok(head)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let (head, tail) = self.rest.split_first_chunk::<N>().ok_or(Short)?;
        self.rest = tail;
        Ok(*head)
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, Short> {
        self.array::<1>().map(|[b]| b)
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Result<u16, Short> {
        self.array().map(u16::from_be_bytes)
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Result<u32, Short> {
        self.array().map(u32::from_be_bytes)
    }

    #[inline]
    pub(crate) fn i32(&mut self) -> Result<i32, Short> {
        self.array().map(i32::from_be_bytes)
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Result<u64, Short> {
        self.array().map(u64::from_be_bytes)
    }

    #[inline]
    pub(crate) fn i64(&mut self) -> Result<i64, Short> {
        self.array().map(i64::from_be_bytes)
    }

    /// The bytes before the next zero byte, which is consumed too.
    #[inline]
    pub(crate) fn cstr(&mut self) -> Result<&'a [u8], Short> {
        let end = self.rest.iter().position(|&b| b == 0).ok_or(Short)?;
        let text = self.take(end)?;
        self.take(1)?;
        Ok(text)
    }
}
