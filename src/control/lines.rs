//! Bytes cut into lines, none longer than a limit. It must not know where the bytes come from.

/// The longest request, in bytes without its newline. A path is at most 4,096 bytes (PATH_MAX).
pub const LINE_LIMIT: usize = 8 * 1024;

/// A line that is longer than [`LINE_LIMIT`]. The rest of it is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// What has been read and not yet been taken as lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    buffer: Vec<u8>,
    /// The line that begins here has been reported as too long.
    skipping: bool,
}

impl Lines {
    /// Adds what was read. Take all lines out before reading more, so that the buffer stays within the limit
    /// and one read.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Takes the next whole line, without its newline.
    pub(super) fn next_line(&mut self) -> Option<Result<Vec<u8>, TooLong>> {
        loop {
            let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') else {
                if self.buffer.len() <= LINE_LIMIT && !self.skipping {
                    return None;
                }
                self.buffer.clear();
                return (!std::mem::replace(&mut self.skipping, true)).then_some(Err(TooLong));
            };
            let mut line: Vec<u8> = self.buffer.drain(..=end).collect();
            line.pop();
            if !std::mem::take(&mut self.skipping) {
                return Some(if line.len() > LINE_LIMIT { Err(TooLong) } else { Ok(line) });
            }
        }
    }

    /// At the end of the input: takes what is left as a line of its own.
    pub(super) fn last_line(&mut self) -> Option<Vec<u8>> {
        let line = std::mem::take(&mut self.buffer);
        (!line.is_empty() && !self.skipping).then_some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_lines_however_they_arrive() {
        let mut lines = Lines::default();
        for byte in b"one\n\ntwo" {
            lines.push(&[*byte]);
        }
        assert_eq!(lines.next_line(), Some(Ok(b"one".to_vec())));
        assert_eq!(lines.next_line(), Some(Ok(Vec::new())));
        assert_eq!(lines.next_line(), None);
        assert_eq!(lines.last_line(), Some(b"two".to_vec()));
        assert_eq!(lines.last_line(), None);
    }

    #[test]
    fn an_over_long_line_is_reported_once_and_skipped() {
        let mut lines = Lines::default();
        lines.push(&[b'x'; LINE_LIMIT]);
        assert_eq!(lines.next_line(), None);
        lines.push(b"y");
        assert_eq!(lines.next_line(), Some(Err(TooLong)));
        for _ in 0..10 {
            lines.push(&[b'x'; LINE_LIMIT]);
            assert_eq!(lines.next_line(), None);
            assert!(lines.buffer.is_empty());
        }
        lines.push(b"rest\nstatus\n");
        assert_eq!(lines.next_line(), Some(Ok(b"status".to_vec())));
        lines.push(&[b'x'; LINE_LIMIT + 1]);
        lines.push(b"\nstop\n");
        assert_eq!(lines.next_line(), Some(Err(TooLong)));
        assert_eq!(lines.next_line(), Some(Ok(b"stop".to_vec())));
        assert_eq!(lines.next_line(), None);
    }
}
