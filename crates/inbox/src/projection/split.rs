//! A file of SQL taken apart into statements (PostgreSQL documentation, section "Lexical Structure").
//!
//! Only as much of the lexer as it takes to know where a statement ends and how it begins: quotes,
//! dollar quotes and comments hide a semicolon, nothing else does.

/// One statement, without its semicolon.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece<'a> {
    /// From its first token to its last.
    pub(super) text: &'a str,
    /// Byte offset of `text` in the file.
    pub(super) start: usize,
    /// Words at its beginning, upper case: enough to tell what kind of statement it is.
    pub(super) words: Vec<String>,
    /// Byte offset, in `text`, behind `WITH` or `WITH RECURSIVE` where it begins so.
    pub(super) after_with: Option<usize>,
    /// Byte offset, in `text`, of a parameter such as `$1`.
    pub(super) parameter: Option<usize>,
}

/// What hides everything up to its end, and never ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unterminated {
    pub(super) what: &'static str,
    /// Byte offset of its beginning in the file.
    pub(super) at: usize,
}

/// How many words at the beginning of a statement are kept.
const WORDS: usize = 2;

/// Takes `sql` apart. Comments between statements belong to none.
pub(super) fn split(sql: &str) -> Result<Vec<Piece<'_>>, Unterminated> {
    let mut pieces = Vec::new();
    let mut lexer = Lexer { sql, at: 0 };
    let mut open = Open::default();
    while let Some((token, start, end)) = lexer.next()? {
        match token {
            Token::Semicolon => {
                pieces.extend(open.close(sql));
                open = Open::default();
            }
            Token::Word => open.word(sql, start, end),
            Token::Parameter => {
                open.parameter.get_or_insert(start);
                open.other(start, end);
            }
            Token::Other => open.other(start, end),
        }
    }
    pieces.extend(open.close(sql));
    Ok(pieces)
}

/// The statement that is being read; offsets count from the beginning of the file.
#[derive(Default)]
struct Open {
    range: Option<(usize, usize)>,
    words: Vec<String>,
    /// Something else than a word came: the beginning is over.
    begun: bool,
    after_with: Option<usize>,
    parameter: Option<usize>,
}

impl Open {
    fn word(&mut self, sql: &str, start: usize, end: usize) {
        if !self.begun && self.words.len() < WORDS {
            let word = sql.get(start..end).unwrap_or_default().to_ascii_uppercase();
            match (self.words.first().map(String::as_str), word.as_str()) {
                (None, "WITH") | (Some("WITH"), "RECURSIVE") => self.after_with = Some(end),
                _ => {}
            }
            self.words.push(word);
        }
        self.extend(start, end);
    }

    fn other(&mut self, start: usize, end: usize) {
        self.begun = true;
        self.extend(start, end);
    }

    fn extend(&mut self, start: usize, end: usize) {
        self.range = Some((self.range.map_or(start, |(start, _)| start), end));
    }

    fn close(self, sql: &str) -> Option<Piece<'_>> {
        let (start, end) = self.range?;
        Some(Piece {
            text: sql.get(start..end)?,
            start,
            words: self.words,
            after_with: self.after_with.map(|at| at - start),
            parameter: self.parameter.map(|at| at - start),
        })
    }
}

enum Token {
    Semicolon,
    Word,
    Parameter,
    Other,
}

struct Lexer<'a> {
    sql: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    /// The next token with its range; comments and white space are none.
    fn next(&mut self) -> Result<Option<(Token, usize, usize)>, Unterminated> {
        loop {
            let start = self.at;
            let rest = self.rest();
            let Some(first) = rest.chars().next() else { return Ok(None) };
            if first.is_whitespace() {
                self.at += first.len_utf8();
            } else if rest.starts_with("--") {
                self.at += rest.find('\n').unwrap_or(rest.len());
            } else if rest.starts_with("/*") {
                self.block_comment()?;
            } else {
                let token = self.token(first)?;
                return Ok(Some((token, start, self.at)));
            }
        }
    }

    fn token(&mut self, first: char) -> Result<Token, Unterminated> {
        let rest = self.rest();
        match first {
            ';' => {
                self.at += 1;
                Ok(Token::Semicolon)
            }
            '\'' => self.quoted('\'', false, "a string"),
            '"' => self.quoted('"', false, "a quoted name"),
            '$' => match dollar_quote(rest) {
                Some(tag) => {
                    let body = rest.get(tag.len()..).unwrap_or_default();
                    let Some(end) = body.find(tag) else {
                        return Err(Unterminated { what: "a dollar-quoted string", at: self.at });
                    };
                    self.at += tag.len() + end + tag.len();
                    Ok(Token::Other)
                }
                None => {
                    let digits = rest.chars().skip(1).take_while(char::is_ascii_digit).count();
                    self.at += 1 + digits;
                    Ok(if digits > 0 { Token::Parameter } else { Token::Other })
                }
            },
            _ if is_word(first) && !first.is_ascii_digit() => {
                self.at += rest.find(|c| !is_word(c) && c != '$').unwrap_or(rest.len());
                let word = rest.get(..self.at - (self.sql.len() - rest.len())).unwrap_or_default();
                // E'..' is the string in which a backslash escapes a quote
                if word.eq_ignore_ascii_case("e") && self.rest().starts_with('\'') {
                    return self.quoted('\'', true, "a string");
                }
                Ok(Token::Word)
            }
            _ => {
                self.at += first.len_utf8();
                Ok(Token::Other)
            }
        }
    }

    /// A doubled quote inside stays inside: it reads as one quoted part after another.
    fn quoted(
        &mut self,
        quote: char,
        escapes: bool,
        what: &'static str,
    ) -> Result<Token, Unterminated> {
        let at = self.at;
        let mut escaped = false;
        for (offset, c) in self.rest().char_indices().skip(1) {
            if escaped {
                escaped = false;
            } else if escapes && c == '\\' {
                escaped = true;
            } else if c == quote {
                self.at += offset + 1;
                // 'it''s' and E'it''s\'' alike: the second half must keep the escapes
                if escapes && self.rest().starts_with(quote) {
                    return self.quoted(quote, escapes, what);
                }
                return Ok(Token::Other);
            }
        }
        Err(Unterminated { what, at })
    }

    /// Block comments nest.
    fn block_comment(&mut self) -> Result<(), Unterminated> {
        let at = self.at;
        let mut depth = 0_usize;
        loop {
            let rest = self.rest();
            if rest.starts_with("/*") {
                depth += 1;
                self.at += 2;
            } else if rest.starts_with("*/") {
                depth -= 1;
                self.at += 2;
                if depth == 0 {
                    return Ok(());
                }
            } else {
                let Some(c) = rest.chars().next() else {
                    return Err(Unterminated { what: "a comment", at });
                };
                self.at += c.len_utf8();
            }
        }
    }

    fn rest(&self) -> &'a str {
        self.sql.get(self.at..).unwrap_or_default()
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || !c.is_ascii()
}

/// `$$` or `$tag$` at the beginning of `text`.
fn dollar_quote(text: &str) -> Option<&str> {
    let tag = text.get(1..)?;
    let end = tag.find('$')?;
    let tag = tag.get(..end)?;
    let valid = tag.chars().all(is_word) && !tag.starts_with(|c: char| c.is_ascii_digit());
    valid.then(|| text.get(..end + 2)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(sql: &str) -> Vec<&str> {
        split(sql).unwrap().into_iter().map(|piece| piece.text).collect()
    }

    #[test]
    fn semicolons_end_statements_unless_they_are_hidden() {
        assert_eq!(texts(""), [""; 0]);
        assert_eq!(texts(" ; -- nothing;\n /* ; /* ; */ */ ;"), [""; 0]);
        assert_eq!(texts("a 1 ; b 2"), ["a 1", "b 2"]);
        assert_eq!(texts("a ';' ; b"), ["a ';'", "b"]);
        assert_eq!(texts("a 'it''s;' ; b"), ["a 'it''s;'", "b"]);
        assert_eq!(texts("a \"x;\"\"y\" ; b"), ["a \"x;\"\"y\"", "b"]);
        assert_eq!(texts(r"a E'\';' ; b"), [r"a E'\';'", "b"]);
        assert_eq!(texts(r"a e'x''\';' ; b"), [r"a e'x''\';'", "b"]);
        assert_eq!(texts(r"a '\' ; b"), [r"a '\'", "b"]);
        assert_eq!(texts("a $$;$$ ; b $q$ $$ ; $q$ ; c"), ["a $$;$$", "b $q$ $$ ; $q$", "c"]);
        assert_eq!(texts("-- x\na -- y;\n , b ; c"), ["a -- y;\n , b", "c"]);
        assert_eq!(texts("a$x$ ; b$x$"), ["a$x$", "b$x$"]);
    }

    #[test]
    fn the_beginning_tells_the_kind() {
        let piece = |sql| split(sql).unwrap().remove(0);
        let with = piece("/* c */ with x AS (SELECT 1) SELECT");
        assert_eq!((with.words, with.after_with), (vec!["WITH".into(), "X".into()], Some(4)));
        let recursive = piece("WITH\nRECURSIVE t AS");
        assert_eq!(recursive.after_with, Some(14));
        assert_eq!(piece("INSERT INTO x WITH y").after_with, None);
        assert_eq!(piece("(SELECT 1)").words, [""; 0]);
        assert_eq!(piece("SELECT '$1', $2").parameter, Some(13));
        assert_eq!(piece("SELECT '$1'").parameter, None);
    }

    #[test]
    fn what_never_ends_is_named() {
        for (sql, what, at) in [
            ("a 'x", "a string", 2),
            ("a \"x", "a quoted name", 2),
            ("a $$x$", "a dollar-quoted string", 2),
            ("a /* /* */", "a comment", 2),
        ] {
            assert_eq!(split(sql), Err(Unterminated { what, at }));
        }
    }

    proptest! {
        #[test]
        fn never_panics(sql in r#"[a-zE$'"\\;/*\-\n 1\u{e9}]{0,40}"#) {
            for piece in split(&sql).into_iter().flatten() {
                prop_assert_eq!(&sql[piece.start..piece.start + piece.text.len()], piece.text);
            }
        }
    }
}
