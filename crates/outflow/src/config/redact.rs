//! Hides secrets in what is shown: passwords in URLs and in libpq connection strings.

const MASK: &str = "***";

/// A URL that shows no password, whoever prints the structure it is in.
pub(crate) struct Url(pub(crate) String);

impl std::ops::Deref for Url {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&url(&self.0))
    }
}

/// `url` with its password hidden.
///
/// Errs on the side of hiding: what stands between the first `:` of the user part and the last `@`
/// counts as the password, so that one with a raw `/`, `?` or `@` in it stays hidden too.
pub(crate) fn url(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return mask_parameters(url, ' ');
    };
    let shown = match rest.rsplit_once('@') {
        Some((user, host)) => {
            let user =
                user.split_once(':').map_or(user.to_owned(), |(user, _)| format!("{user}:{MASK}"));
            format!("{scheme}://{user}@{host}")
        }
        None => url.to_owned(),
    };
    match shown.split_once('?') {
        Some((base, query)) => format!("{base}?{}", mask_parameters(query, '&')),
        None => shown,
    }
}

/// Hides the values of `password=..` and `sslpassword=..` in `name=value` pairs.
fn mask_parameters(text: &str, separator: char) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = find_password(rest) {
        let (before, from) = rest.split_at(at);
        shown.push_str(before);
        let end = value_end(from, separator);
        shown.push_str(from.split('=').next().unwrap_or_default());
        shown.push('=');
        shown.push_str(MASK);
        rest = from.get(end..).unwrap_or_default();
    }
    shown.push_str(rest);
    shown
}

/// Where `password` begins that has a `=` behind it.
fn find_password(text: &str) -> Option<usize> {
    let lower = text.to_ascii_lowercase();
    lower.match_indices("password").find_map(|(at, word)| {
        let after = lower.get(at + word.len()..)?;
        after.trim_start().starts_with('=').then_some(at)
    })
}

/// Where the value of the parameter that `text` begins with ends; libpq allows blanks around `=`
/// and quotes around values.
fn value_end(text: &str, separator: char) -> usize {
    let Some(equals) = text.find('=') else { return text.len() };
    let value = text.get(equals + 1..).unwrap_or_default();
    let blanks = value.len() - value.trim_start().len();
    let value = value.trim_start();
    let length = if value.starts_with('\'') {
        let mut escaped = false;
        let mut end = value.len();
        for (at, letter) in value.char_indices().skip(1) {
            match letter {
                '\\' if !escaped => escaped = true,
                '\'' if !escaped => {
                    end = at + 1;
                    break;
                }
                _ => escaped = false,
            }
        }
        end
    } else {
        value.find(separator).unwrap_or(value.len())
    };
    equals + 1 + blanks + length
}

#[cfg(test)]
mod tests {
    use super::url;

    #[test]
    fn passwords_are_hidden() {
        for (given, shown) in [
            ("postgres://u:secret@h:5432/db", "postgres://u:***@h:5432/db"),
            ("postgres://u:se/cr?e@t@h/db", "postgres://u:***@h/db"),
            ("redis://:secret@h", "redis://:***@h"),
            ("redis://h:6379/0", "redis://h:6379/0"),
            ("postgres://u@h/db", "postgres://u@h/db"),
            ("postgres://h/db?password=secret&user=u", "postgres://h/db?password=***&user=u"),
            ("host=h password=secret user=u", "host=h password=*** user=u"),
            ("host=h password = 'se cr\\'et' user=u", "host=h password =*** user=u"),
            ("host=h password=secret", "host=h password=***"),
            ("host=h sslpassword=secret PASSWORD=x", "host=h sslpassword=*** PASSWORD=***"),
            ("", ""),
            ("password", "password"),
        ] {
            let hidden = url(given);
            assert_eq!(hidden, shown);
            assert!(!hidden.contains("secret"));
        }
    }
}
