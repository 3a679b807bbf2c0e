//! The configuration of a tenant as a folder of files, which a team can keep in git. `export` writes it, `apply` reads
//! it.
//! - `content.json`: the content settings;
//! - `event-types/NAME.json`, `lists/NAME.json`, `providers/NAME.json`;
//! - `layouts/NAME.html` and `partials/NAME.html`;
//! - `templates/ID/template.json`, and in the same folder `text.txt`, `html.html` and `data.json`.
//!
//! `objects` are the contents of the files; `stored` reads and writes the same objects in the database.

mod objects;
mod rehearsal;
mod stored;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, Value, json};

pub use rehearsal::Rehearsal;
pub use stored::Stored;

/// The kinds of objects in a folder, in the order in which they are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    EventType,
    Content,
    Layout,
    List,
    Provider,
    Template,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::EventType => "event type",
            Self::Content => "content",
            Self::Layout => "layout",
            Self::List => "list",
            Self::Provider => "provider",
            Self::Template => "template",
        }
    }
}

/// The fields of an object, without empty fields.
pub type Object = Map<String, Value>;

/// The objects of a tenant.
#[derive(Debug, Default)]
pub struct State {
    /// The objects by kind and name. A kind without an entry was not read, and `apply` changes none of its objects.
    objects: BTreeMap<Kind, BTreeMap<String, Object>>,
    /// The kinds of layouts, `layout` and `partial`, that have a folder. `apply` deletes none of a kind without a
    /// folder.
    layout_kinds: BTreeSet<&'static str>,
    /// The file of each object that was read from a folder. For a template it is `template.json`.
    files: BTreeMap<(Kind, String), PathBuf>,
}

/// The action on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    Create,
    Update,
    Delete,
}

/// A difference between two states.
#[derive(Debug, Serialize)]
pub struct Difference {
    pub kind: Kind,
    pub name: String,
    pub action: Action,
    /// The fields that differ, with their values before and after. For a deleted template, the fields are `active` and
    /// `event_type`.
    pub fields: BTreeMap<String, Value>,
}

/// The subfolders of JSON files, and their kinds.
const FOLDERS: [(&str, Kind); 3] =
    [("event-types", Kind::EventType), ("lists", Kind::List), ("providers", Kind::Provider)];
/// The subfolders of layouts and partials, and their kinds.
const LAYOUTS: [(&str, &str); 2] = [("layouts", "layout"), ("partials", "partial")];
/// The parts of a template that have files of their own.
const PARTS: [(&str, &str); 2] = [("text", "text.txt"), ("html", "html.html")];
/// The part of a template that has a file of its own in JSON.
const DATA: (&str, &str) = ("data", "data.json");
/// The name of the only object of [`Kind::Content`].
const SETTINGS: &str = "settings";

impl State {
    fn put(&mut self, kind: Kind, name: impl Into<String>, object: Object) {
        self.objects.entry(kind).or_default().insert(name.into(), object);
    }

    /// Checks the content of a file, and enters its object.
    fn put_file(&mut self, kind: Kind, name: String, file: PathBuf, content: Value) -> Result<(), String> {
        let object = objects::checked(kind, &file, content)?;
        self.files.insert((kind, name.clone()), file);
        self.put(kind, name, object);
        Ok(())
    }

    pub fn object(&self, kind: Kind, name: &str) -> Option<&Object> {
        self.objects.get(&kind)?.get(name)
    }

    /// The objects of a kind.
    fn of(&self, kind: Kind) -> impl Iterator<Item = (&String, &Object)> {
        self.objects.get(&kind).into_iter().flatten()
    }

    /// Returns the file that a problem of an object is in. `problem` begins with the name of a part or a field.
    pub fn file(&self, kind: Kind, name: &str, problem: &str) -> Option<PathBuf> {
        let part = problem.split(':').next().unwrap_or_default();
        // A problem of a template may lie in a layout or partial that it uses.
        let layout = part.strip_prefix("layout ").or_else(|| part.strip_prefix("partial "));
        if let Some(file) = layout.and_then(|layout| self.files.get(&(Kind::Layout, layout.to_owned()))) {
            return Some(file.clone());
        }
        let file = self.files.get(&(kind, name.to_owned()))?;
        let part = part.split(['.', '[']).next().unwrap_or_default();
        let own = PARTS.into_iter().chain([DATA]).find(|(known, _)| kind == Kind::Template && *known == part);
        let own = own.map(|(_, name)| file.with_file_name(name)).filter(|own| own.exists());
        Some(own.unwrap_or_else(|| file.clone()))
    }

    /// Reads a folder. Files that do not belong to it are ignored.
    ///
    /// # Errors
    /// The error names the file.
    pub fn read(folder: &Path) -> Result<Self, String> {
        let mut state = Self::default();
        if !folder.is_dir() {
            return Err(format!("{}: is not a folder; give a folder that `postcommit export` wrote", folder.display()));
        }
        let content = folder.join("content.json");
        if content.exists() {
            let settings = json_of(&content)?;
            state.put_file(Kind::Content, SETTINGS.to_owned(), content, settings)?;
        }
        for (name, kind) in FOLDERS {
            for (name, file) in files(&folder.join(name), "json", &mut state, kind)? {
                let content = json_of(&file)?;
                state.put_file(kind, name, file, content)?;
            }
        }
        for (name, kind) in LAYOUTS {
            let folder = folder.join(name);
            state.layout_kinds.extend(folder.is_dir().then_some(kind));
            for (name, file) in files(&folder, "html", &mut state, Kind::Layout)? {
                let content = json!({"kind": kind, "source": text_of(&file)?});
                state.put_file(Kind::Layout, name, file, content)?;
            }
        }
        for (name, path) in files(&folder.join("templates"), "", &mut state, Kind::Template)? {
            let file = path.join("template.json");
            let mut object = json_of(&file)?;
            for (part, file) in PARTS.map(|(part, name)| (part, path.join(name))) {
                if file.exists() {
                    object[part] = text_of(&file)?.into();
                }
            }
            let data = path.join(DATA.1);
            if data.exists() {
                object[DATA.0] = json_of(&data)?;
            }
            state.put_file(Kind::Template, name, file, object)?;
        }
        Ok(state)
    }

    /// Writes the folder. Returns the files of objects that are not in the state. These files are not changed.
    pub fn write(&self, folder: &Path) -> Result<Vec<PathBuf>, String> {
        let mut written = Vec::new();
        for (kind, objects) in &self.objects {
            for (name, object) in objects {
                for (path, text) in files_of(*kind, name, object) {
                    let path = folder.join(path);
                    write(&path, &text)?;
                    written.push(path);
                }
            }
        }
        let mut others = Vec::new();
        let parts = ["event-types", "lists", "providers", "layouts", "partials", "templates"];
        for part in parts.map(|part| folder.join(part)) {
            all_files(&part, &mut others);
        }
        others.retain(|path| !written.contains(path));
        others.sort();
        Ok(others)
    }

    /// The actions that turn `self` into `wanted`. With `prune`, objects that `wanted` does not have are deleted, but
    /// only of the kinds that `wanted` has.
    pub fn differences(&self, wanted: &Self, prune: bool) -> Vec<Difference> {
        let mut all = Vec::new();
        let none = BTreeMap::new();
        let settings =
            Settings(wanted.object(Kind::Content, SETTINGS).or_else(|| self.object(Kind::Content, SETTINGS)));
        for (kind, objects) in &wanted.objects {
            let present = self.objects.get(kind).unwrap_or(&none);
            for (name, object) in in_order(*kind, objects) {
                let (action, mut fields) = match present.get(name) {
                    None => (Action::Create, differing(*kind, &Object::new(), object)),
                    Some(present) => (Action::Update, differing(*kind, present, object)),
                };
                if *kind == Kind::Template && action == Action::Update {
                    // A template without one of these fields uses the value of the content settings.
                    fields.retain(|name, values| !settings.is_default(name, values));
                }
                // Secrets can only be compared when they are set, so a provider with secrets is always tried.
                let has_secrets = *kind == Kind::Provider && object.contains_key("secrets");
                if action == Action::Create || !fields.is_empty() || has_secrets {
                    all.push(Difference { kind: *kind, name: name.clone(), action, fields });
                }
            }
        }
        for (kind, objects) in wanted.objects.iter().rev().filter(|_| prune) {
            let is_gone = |(name, object): &(&String, &Object)| {
                let layout = object.get("kind").and_then(Value::as_str).filter(|_| *kind == Kind::Layout);
                !objects.contains_key(*name) && layout.is_none_or(|layout| wanted.layout_kinds.contains(layout))
            };
            all.extend(self.of(*kind).filter(is_gone).map(|(name, object)| Difference {
                kind: *kind,
                name: name.clone(),
                action: Action::Delete,
                fields: told_of_deleted(object),
            }));
        }
        all
    }
}

/// The objects in the order in which they are applied: by name, and a provider after the one that its `failover` names.
fn in_order(kind: Kind, objects: &BTreeMap<String, Object>) -> Vec<(&String, &Object)> {
    if kind != Kind::Provider {
        return objects.iter().collect();
    }
    let (mut ordered, mut left): (Vec<(&String, &Object)>, Vec<_>) = (vec![], objects.iter().collect());
    while !left.is_empty() {
        let next_of = |object: &Object| object.get("failover").and_then(Value::as_str).map(str::to_owned);
        let names: BTreeSet<String> = left.iter().map(|(name, _)| (*name).clone()).collect();
        let is_ready = |(name, object): &(&String, &Object)| {
            next_of(object).is_none_or(|next| next == **name || !names.contains(&next))
        };
        let (ready, waiting): (Vec<_>, Vec<_>) = left.into_iter().partition(is_ready);
        // A circle of failovers is refused when its first provider is applied.
        if ready.is_empty() {
            ordered.extend(waiting);
            break;
        }
        ordered.extend(ready);
        left = waiting;
    }
    ordered
}

/// The content settings after the changes.
struct Settings<'a>(Option<&'a Object>);

impl Settings<'_> {
    /// Whether a field of a template changes only between absent and the value of the content settings.
    fn is_default(&self, field: &str, values: &Value) -> bool {
        let defaults = postcommit_engine::store::ContentSettings::default();
        let default = match field {
            "missing" => defaults.missing.name().to_owned(),
            "date_format" => defaults.date_format,
            "time_zone" => defaults.time_zone,
            _ => return false,
        };
        let default = self.0.and_then(|settings| settings.get(field)).cloned().unwrap_or(default.into());
        (values["from"].is_null() && values["to"] == default) || (values["to"].is_null() && values["from"] == default)
    }
}

/// The fields that the difference shows for a deleted object: for a template, whether it is active, and its event type.
fn told_of_deleted(object: &Object) -> BTreeMap<String, Value> {
    let told = |name: &str| Some((name.to_owned(), json!({"from": object.get(name)?, "to": null})));
    ["active", "event_type"].into_iter().filter_map(told).collect()
}

/// The fields that differ. For a provider, only the given fields are compared, because omitted fields keep their
/// values.
fn differing(kind: Kind, from: &Object, to: &Object) -> BTreeMap<String, Value> {
    let mut names: Vec<&String> = to.keys().collect();
    if kind != Kind::Provider {
        names.extend(from.keys());
    }
    let differ = |name: &&String| from.get(*name) != to.get(*name) && !(kind == Kind::Provider && *name == "secrets");
    let pair = |name: &String| json!({"from": from.get(name), "to": to.get(name)});
    names.into_iter().filter(differ).map(|name| (name.clone(), pair(name))).collect()
}

/// The files of an object: path in the folder, and content.
fn files_of(kind: Kind, name: &str, object: &Object) -> Vec<(PathBuf, String)> {
    let pretty = |value: &Value| format!("{value:#}\n");
    let file = escaped(name);
    if let Some((folder, _)) = FOLDERS.iter().find(|(_, of)| *of == kind) {
        return vec![(Path::new(folder).join(format!("{file}.json")), pretty(&json!(object)))];
    }
    if kind == Kind::Content {
        return vec![("content.json".into(), pretty(&json!(object)))];
    }
    let text = |name: &str| object.get(name).and_then(Value::as_str).map(|text| format!("{text}\n"));
    if kind == Kind::Layout {
        let folder = LAYOUTS
            .iter()
            .find(|(_, of)| object.get("kind") == Some(&json!(of)))
            .map_or("layouts", |(folder, _)| folder);
        return vec![(Path::new(folder).join(format!("{file}.html")), text("source").unwrap_or_default())];
    }
    let (folder, mut rest) = (Path::new("templates").join(file), object.clone());
    let mut files: Vec<(PathBuf, String)> =
        PARTS.iter().filter_map(|(part, name)| Some((folder.join(name), text(part)?))).collect();
    files.extend(rest.remove(DATA.0).map(|data| (folder.join(DATA.1), pretty(&data))));
    PARTS.iter().for_each(|(part, _)| drop(rest.remove(*part)));
    files.push((folder.join("template.json"), pretty(&json!(rest))));
    files
}

/// Converts a name to a file name: letters, digits, `_`, `-` and `.` are kept, other bytes are percent-encoded (`%2F`).
fn escaped(name: &str) -> String {
    let plain =
        |place: usize, byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte) || (byte == b'.' && place > 0);
    let write = |(place, byte): (usize, u8)| match plain(place, byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    name.bytes().enumerate().map(write).collect()
}

/// The files of a folder with this extension, or its subfolders if the extension is `""`: name of the object and path.
/// The kind counts as read if the folder exists.
fn files(folder: &Path, extension: &str, state: &mut State, kind: Kind) -> Result<Vec<(String, PathBuf)>, String> {
    if !folder.is_dir() {
        return Ok(vec![]);
    }
    state.objects.entry(kind).or_default();
    let wrong = |e: std::io::Error| format!("{}: {e}", folder.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        let belongs = match extension {
            "" => path.is_dir(),
            extension => path.extension().is_some_and(|found| found == extension),
        };
        let name = if extension.is_empty() { path.file_name() } else { path.file_stem() };
        let Some(name) = name.and_then(|name| name.to_str()).filter(|_| belongs) else { continue };
        let name = percent_encoding::percent_decode_str(name).decode_utf8();
        let name = name.map_err(|e| format!("{}: {e}", path.display()))?.into_owned();
        found.push((name, path));
    }
    found.sort();
    Ok(found)
}

fn all_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { all_files(&path, found) } else { found.push(path) }
    }
}

/// Reads a file, without the line break at its end.
fn text_of(file: &Path) -> Result<String, String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    Ok(text.strip_suffix('\n').map(str::to_owned).unwrap_or(text))
}

fn json_of(file: &Path) -> Result<Value, String> {
    serde_json::from_str(&text_of(file)?).map_err(|e| format!("{}: is not JSON: {e}", file.display()))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    let folder = file.parent().unwrap_or(file);
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(file, text))
        .map_err(|e| format!("{}: {e}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_becomes_a_file_in_its_folder_and_back() {
        for (name, file) in
            [("booking.confirmed", "booking.confirmed"), ("../a b", "%2E.%2Fa%20b"), (".", "%2E"), ("ü", "%C3%BC")]
        {
            assert_eq!(escaped(name), file);
            assert_eq!(percent_encoding::percent_decode_str(file).decode_utf8().unwrap(), name);
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut state = State::default();
        let object = |value: Value| value.as_object().unwrap().clone();
        state.put(Kind::Template, "guest", object(json!({
            "event_type": "a", "channel": "email", "active": true, "once_per": "entity", "subject": "Hi", "text": "a\n", "html": "<p>\n</p>", "data": {"a": [1, null]},
        })));
        state.put(Kind::Layout, "page", object(json!({"kind": "layout", "source": "{{ content }}"})));
        state.put(Kind::Layout, "foot", object(json!({"kind": "partial", "source": "bye"})));
        state.put(Kind::List, "a/b", object(json!({"members": [{"kind": "user", "member": "1"}]})));
        assert_eq!(state.write(folder.path()).unwrap(), Vec::<PathBuf>::new());
        let read = State::read(folder.path()).unwrap();
        assert_eq!(read.objects, state.objects);
        for (part, file) in [
            ("text: line 1", "text.txt"),
            ("html: x", "html.html"),
            ("data.a[0]: x", "data.json"),
            ("subject: x", "template.json"),
        ] {
            assert_eq!(
                read.file(Kind::Template, "guest", part),
                Some(folder.path().join("templates/guest").join(file))
            );
        }
        assert_eq!(
            read.file(Kind::Template, "guest", "partial foot: line 1"),
            Some(folder.path().join("partials/foot.html"))
        );
        std::fs::write(folder.path().join("lists/old.json"), "{}").unwrap();
        assert_eq!(state.write(folder.path()).unwrap(), [folder.path().join("lists/old.json")]);
        std::fs::write(folder.path().join("lists/old.json"), r#"{"nonsense": 1}"#).unwrap();
        let refused = State::read(folder.path()).unwrap_err();
        assert!(refused.contains("lists/old.json: ") && refused.contains("nonsense"), "{refused}");
    }
}
