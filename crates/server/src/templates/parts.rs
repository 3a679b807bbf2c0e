//! Finds the layouts and partials that a template uses. A version of the template contains copies of them.

use std::collections::{BTreeMap, BTreeSet};

use postcommit_channel::template::{LAYOUTS as SHIPPED, Source};
use postcommit_engine::store::{ContentSettings, EditError, MadeFrom};
use serde_json::Value;

/// A tenant's layout or partial.
#[derive(Clone)]
pub struct Layout {
    pub kind: String,
    pub source: String,
    /// The revision. 0 means that the layout is not stored yet.
    pub revision: i32,
}

/// Copies the layout, the partials and the brand values that the parts use into the version.
pub fn copy_into(
    source: &mut Source,
    layouts: &BTreeMap<String, Layout>,
    settings: &ContentSettings,
) -> Result<MadeFrom, EditError> {
    let mut wanted = Vec::new();
    if let Some(name) = &source.layout {
        let is_partial = layouts.get(name).is_some_and(|layout| layout.kind != "layout");
        if is_partial || find(name, layouts).is_none() {
            let known = names(layouts, "layout");
            return Err(EditError::Refused(format!(
                "layout: {name:?} is not a layout of this tenant; allowed are {known}"
            )));
        }
        wanted.push(("layout".to_owned(), name.clone()));
    }
    for (part, text) in texts(source) {
        wanted.extend(included(&text).into_iter().map(|name| (part.to_owned(), name)));
    }
    let (parts, made_from) = closure(wanted, layouts, settings.revision)?;
    source.parts = parts;
    // A version that uses no brand values gets no copy, so a change of the brand values creates no new version of it.
    source.brand = if mentions_brand(source) { settings.brand.clone() } else { Value::Object(serde_json::Map::new()) };
    Ok(made_from)
}

/// The wanted layouts and partials, and the partials that they include in turn. `wanted` holds pairs: the part that
/// includes the layout or partial, and its name.
pub fn closure(
    mut wanted: Vec<(String, String)>,
    layouts: &BTreeMap<String, Layout>,
    settings: i32,
) -> Result<(BTreeMap<String, String>, MadeFrom), EditError> {
    let (mut parts, mut made_from) = (BTreeMap::new(), MadeFrom { layouts: vec![], settings });
    while let Some((part, name)) = wanted.pop() {
        if parts.contains_key(&name) {
            continue;
        }
        let Some(text) = find(&name, layouts) else {
            let known = names(layouts, "partial");
            let problem =
                format!("{part}: includes {name:?}, which is not a partial of this tenant; allowed are {known}");
            return Err(EditError::Refused(problem));
        };
        wanted.extend(included(text).into_iter().map(|inner| (format!("layout {name}"), inner)));
        let revision = layouts.get(&name).map(|layout| layout.revision).filter(|revision| *revision > 0);
        made_from.layouts.push((name.clone(), revision));
        parts.insert(name, text.to_owned());
    }
    Ok((parts, made_from))
}

/// The source of a tenant's layout or partial, or of a built-in layout.
fn find<'a>(name: &str, layouts: &'a BTreeMap<String, Layout>) -> Option<&'a str> {
    let shipped = || SHIPPED.iter().find(|(shipped, _)| *shipped == name).map(|(_, text)| *text);
    layouts.get(name).map(|layout| layout.source.as_str()).or_else(shipped)
}

fn names(layouts: &BTreeMap<String, Layout>, kind: &str) -> String {
    let own = layouts.iter().filter(|(_, layout)| layout.kind == kind).map(|(name, _)| name.as_str());
    let shipped = SHIPPED.iter().filter(|_| kind == "layout").map(|(name, _)| *name);
    let all: BTreeSet<&str> = own.chain(shipped).collect();
    if all.is_empty() { "none".into() } else { all.into_iter().collect::<Vec<_>>().join(", ") }
}

/// The names that a text includes: the quoted names in tags that begin with `include`.
pub fn included(text: &str) -> BTreeSet<String> {
    let tags = text.split("{%").skip(1).filter_map(|rest| rest.split_once("%}")).map(|(tag, _)| tag);
    let includes = tags.filter_map(|tag| tag.trim_start_matches(['-', '+']).trim_start().strip_prefix("include"));
    includes.filter_map(quoted).map(str::to_owned).collect()
}

fn quoted(text: &str) -> Option<&str> {
    let text = text.trim_start();
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    text[1..].split_once(quote).map(|(name, _)| name)
}

/// The source texts of a version, by part.
fn texts(source: &Source) -> Vec<(&'static str, String)> {
    let plain = [("to", &source.to), ("subject", &source.subject), ("text", &source.text), ("html", &source.html)];
    let mut all: Vec<_> = plain.into_iter().filter_map(|(part, text)| Some((part, text.clone()?))).collect();
    if let Some(data) = &source.data {
        within(data, &mut all);
    }
    all
}

fn within(data: &Value, texts: &mut Vec<(&'static str, String)>) {
    match data {
        Value::String(text) => texts.push(("data", text.clone())),
        Value::Array(items) => items.iter().for_each(|item| within(item, texts)),
        Value::Object(fields) => fields.values().for_each(|field| within(field, texts)),
        _ => {}
    }
}

/// Whether a version may read brand values. The store applies the same rule in SQL.
fn mentions_brand(source: &Source) -> bool {
    let mentions = |text: &str| text.to_ascii_lowercase().contains("brand");
    texts(source).iter().any(|(_, text)| mentions(text)) || source.parts.values().any(|text| mentions(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tags_include() {
        let text = r#"{% include "a" %} {%- include 'b' -%} include "c" {{ "d" }} {% if x == "e" %}{%include "f"%} {% include g %}"#;
        assert_eq!(included(text).into_iter().collect::<Vec<_>>(), ["a", "b", "f"]);
    }
}
