use std::fs::{self, File};
use std::os::unix::fs::symlink;

use super::*;

const NOWHERE: Search = Search {
    program: "redis-server",
    package: "redis-server",
    variable: "OUTFLOW_REDIS_BIN",
    usual: Vec::new,
};

#[test]
fn a_missing_program_names_package_and_variable() {
    let error = find(None, None, &NOWHERE).unwrap_err().to_string();
    assert!(error.contains("apt-get install redis-server"), "{error}");
    assert!(error.contains("OUTFLOW_REDIS_BIN"), "{error}");

    let error = find(Some("/nowhere".into()), None, &NOWHERE).unwrap_err().to_string();
    assert!(error.contains("looked in /nowhere"), "{error}");
}

#[test]
fn a_chosen_folder_is_not_second_guessed() {
    let folder = tempfile::tempdir().unwrap();
    File::create(folder.path().join("redis-server")).unwrap();
    let path = Some(folder.path().into());
    assert!(find(None, path.clone(), &NOWHERE).is_ok());
    assert!(find(Some("/nowhere".into()), path, &NOWHERE).is_err());
}

#[test]
fn a_link_leads_to_the_folder_of_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let (real, links) = (folder.path().join("real"), folder.path().join("links"));
    fs::create_dir(&real).unwrap();
    fs::create_dir(&links).unwrap();
    File::create(real.join("redis-server")).unwrap();
    symlink(real.join("redis-server"), links.join("redis-server")).unwrap();
    let found = find(None, Some(links.into()), &NOWHERE).unwrap();
    assert_eq!(found, fs::canonicalize(real).unwrap());
}

#[test]
fn the_highest_version_comes_first() {
    let folder = tempfile::tempdir().unwrap();
    for version in ["9", "15", "17", "common"] {
        fs::create_dir(folder.path().join(version)).unwrap();
    }
    let found = versions(folder.path().to_str().unwrap(), "");
    let expected = ["17", "15", "9"].map(|version| folder.path().join(version).join("bin"));
    assert_eq!(found, expected);
}
