//! ARCHITECTURE.md's map is true: the paths that it names exist, and it has every folder and top-level file of the
//! source.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The paths that the map has an entry for, and the file names that the text of each entry mentions.
fn entries() -> Vec<(PathBuf, Vec<String>)> {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let map = text.split("## The map").nth(1).and_then(|rest| rest.split("```").nth(1)).expect("a map in a code block");
    let (mut base, mut entries) = (PathBuf::new(), Vec::<(PathBuf, Vec<String>)>::new());
    for line in map.lines().filter(|line| !line.trim().is_empty()) {
        let indent = line.len() - line.trim_start().len();
        let (paths, words) =
            if indent > 2 { ("", line) } else { line.trim_start().split_once("  ").unwrap_or((line.trim(), "")) };
        for path in paths.split(", ").filter(|path| !path.is_empty()) {
            if indent == 0 {
                base = root().join(path);
            }
            let whole = if indent == 0 { base.clone() } else { base.join(path) };
            entries.push((whole, vec![]));
        }
        let is_name = |word: &&str| {
            [".rs", ".sql", ".toml", ".json", ".md"].iter().any(|ending| word.ends_with(ending))
                && !word.starts_with('.')
        };
        let names = words.split([' ', ',', ';', ':', '(', ')']).filter(is_name).map(str::to_owned);
        entries.last_mut().expect("an entry before its text").1.extend(names);
    }
    entries
}

fn folders(below: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(below).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir()) {
        all.push(entry.path());
        all.extend(folders(&entry.path()));
    }
    all
}

#[test]
fn everything_the_map_names_exists() {
    let mut missing = Vec::new();
    for (path, names) in entries() {
        if !path.exists() {
            missing.push(path.display().to_string());
        }
        // A file named in the text is in the entry's folder, or in the folder of the entry's file.
        let folders = [path.clone(), path.with_extension(""), path.parent().unwrap_or(&path).to_owned()];
        for name in names
            .iter()
            .filter(|name| !folders.iter().any(|folder| folder.join(name).exists()) && !root().join(name).exists())
        {
            missing.push(format!("{}: {name}", path.display()));
        }
    }
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn every_folder_and_top_level_file_stands_in_the_map() {
    let mut known = BTreeSet::new();
    for (path, names) in entries() {
        let folder = if path.is_dir() { path.clone() } else { path.parent().unwrap_or(&path).to_owned() };
        known.extend(names.iter().map(|name| folder.join(name)));
        known.insert(path);
    }
    let mut missing = Vec::new();
    let hidden = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
    for entry in
        std::fs::read_dir(root()).unwrap().flatten().filter(|entry| entry.path().is_dir() && !hidden(&entry.path()))
    {
        let is_built = entry.file_name() == "target";
        if !is_built && !known.iter().any(|path| path.starts_with(entry.path())) {
            missing.push(entry.path());
        }
    }
    for part in std::fs::read_dir(root().join("crates")).unwrap().flatten() {
        let source = part.path().join("src");
        let files =
            std::fs::read_dir(&source).into_iter().flatten().flatten().map(|entry| entry.path()).filter(|path| {
                path.extension().is_some_and(|ending| ending == "rs")
                    && !["lib.rs", "main.rs"].iter().any(|name| path.ends_with(name))
            });
        let wanted = folders(&source).into_iter().chain(folders(&part.path().join("migrations"))).chain(files);
        // A module's folder is known by its file: `store.rs` also means `store/`.
        let is_known = |path: &PathBuf| known.contains(path) || known.contains(&path.with_extension("rs"));
        missing.extend(wanted.filter(|path| !is_known(path)));
    }
    missing.sort();
    assert_eq!(missing, Vec::<PathBuf>::new(), "add them to the map in ARCHITECTURE.md");
}
