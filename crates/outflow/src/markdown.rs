//! Results in a Markdown file of the documentation, between marks, so that a run renews them and
//! nothing else.

use std::fs;
use std::path::Path;

use anyhow::Context;

/// The line below the results of every command.
const END: &str = "<!-- end of results -->";

/// Puts `results` between the marks of `file` that name `command`, or at its end where it has none;
/// makes the file with this title where there is none.
pub(crate) fn write(file: &Path, command: &str, title: &str, results: &str) -> anyhow::Result<()> {
    let name = || file.display().to_string();
    let old =
        if file.exists() { fs::read_to_string(file).with_context(name)? } else { String::new() };
    fs::write(file, place(&old, command, title, results)).with_context(name)
}

fn place(old: &str, command: &str, title: &str, results: &str) -> String {
    let begin = format!("<!-- results: written by {command} --markdown -->");
    let results = format!("{begin}\n{results}{END}");
    let around =
        old.split_once(&begin).and_then(|(head, rest)| Some((head, rest.split_once(END)?.1)));
    match around {
        Some((head, tail)) => format!("{head}{results}{tail}"),
        None if old.is_empty() => format!("# {title}\n\n{results}\n"),
        None => format!("{}\n\n{results}\n", old.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_replace_results_and_nothing_else() {
        let begin = "<!-- results: written by outflow x --markdown -->";
        let placed = |old: &str, results: &str| place(old, "outflow x", "X", results);
        let first = placed("# Title\n\ntext\n", "one\n");
        assert_eq!(first, format!("# Title\n\ntext\n\n{begin}\none\n{END}\n"));
        let second = placed(&format!("{first}\nmore\n"), "two\n");
        assert_eq!(second, format!("# Title\n\ntext\n\n{begin}\ntwo\n{END}\n\nmore\n"));
        assert_eq!(placed("", "x\n"), format!("# X\n\n{begin}\nx\n{END}\n"));
        let other = place(&second, "outflow y", "Y", "three\n");
        assert!(other.starts_with(second.trim_end()) && other.contains("three"), "{other}");
    }
}
