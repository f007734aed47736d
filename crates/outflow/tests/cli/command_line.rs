use tempfile::tempdir;

use crate::run;

/// Every command that `outflow --help` lists.
fn commands() -> Vec<String> {
    let help = run(tempdir().unwrap().path(), ["--help"]).ok();
    let list = help.split("Commands:").nth(1).unwrap().split("\n\n").next().unwrap();
    let names = list.lines().filter_map(|line| {
        let name = line.strip_prefix("  ")?;
        (!name.starts_with(' ')).then(|| name.split_whitespace().next().unwrap().to_owned())
    });
    names.filter(|name| name != "help").collect()
}

#[test]
fn every_help_has_an_example_of_its_command() {
    let folder = tempdir().unwrap();
    let commands = commands();
    assert!(commands.len() >= 6, "{commands:?}");
    for command in &commands {
        let help = run(folder.path(), [command, "--help"]).ok();
        let examples =
            help.split("Examples:").nth(1).unwrap_or_else(|| panic!("{command}: {help}"));
        assert!(examples.contains(&format!("outflow {command}")), "{command}: {examples}");
    }
    let help = run(folder.path(), ["--help"]).ok();
    for code in ["0  done", "1  failed", "2  the command line", "3  refused", "130  stopped"] {
        assert!(help.contains(code), "{help}");
    }
}

#[test]
fn help_names_no_secret_of_the_environment() {
    let folder = tempdir().unwrap();
    let output = crate::outflow(folder.path())
        .arg("--help")
        .env("OUTFLOW_CONFIG", "/run/secrets/here.toml")
        .output()
        .unwrap();
    assert!(!crate::ran(&output).ok().contains("/run/secrets"));
}

#[test]
fn the_version_is_the_package_s() {
    let version = format!("outflow {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(run(tempdir().unwrap().path(), ["--version"]).ok(), version);
}

#[test]
fn completions_are_generated_for_every_shell() {
    let folder = tempdir().unwrap();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(folder.path(), ["completions", shell]).ok();
        for word in ["outflow", "relay", "print-sql"] {
            assert!(script.contains(word), "{shell} has no {word}");
        }
    }
    run(folder.path(), ["completions", "csh"]).failed(2);
}

#[test]
fn a_wrong_command_line_ends_with_2() {
    let folder = tempdir().unwrap();
    assert!(run(folder.path(), ["relya"]).failed(2).contains("relay"));
    run(folder.path(), ["relay", "--nonsense"]).failed(2);
    run(folder.path(), [] as [&str; 0]).failed(2);
}

#[test]
fn what_a_command_lacks_is_named_with_the_ways_to_give_it() {
    let folder = tempdir().unwrap();
    let error = run(folder.path(), ["relay"]).failed(2);
    assert!(error.contains("source.url: is not set"), "{error}");
    assert!(error.contains("OUTFLOW_SOURCE__URL"), "{error}");
    let error = run(folder.path(), ["consume"]).failed(2);
    assert!(error.contains("consumer.id: is not set"), "{error}");
    assert!(error.contains("consumer.streams: is not set"), "{error}");
    let consumer = ["consume", "--set=consumer.id=a", "--set=consumer.streams=order"];
    let with_url = ["--set=consumer.url=postgres://u@h/d"];
    let error = run(folder.path(), consumer.iter().chain(&with_url)).failed(2);
    assert!(error.contains("consumer.projection: is not set"), "{error}");
    let file = ["--projection=none.sql"];
    let error = run(folder.path(), consumer.iter().chain(&with_url).chain(&file)).failed(2);
    assert!(error.contains("consumer.projection = \"none.sql\""), "{error}");
}
