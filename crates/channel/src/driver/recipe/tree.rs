//! The body of a request as a tree. Values are put into the tree and never into JSON text, so no value can change the
//! structure.

use minijinja::Value;
use serde_json::{Map, Value as Json};

use super::expression::{Expression, Names, Text, json, small_json};

/// A tree whose leaves may be expressions.
#[derive(Debug)]
pub(super) enum Tree {
    Fixed(Json),
    Text(Text),
    List(Vec<Tree>),
    Table(Box<Table>),
    /// The first tree in this list that is not left out.
    First(Vec<Tree>),
}

/// An object of a tree.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// The table is left out unless this expression is true.
    condition: Option<Expression>,
    /// An object whose fields are added to the table.
    merged: Option<Expression>,
    pub(super) fields: Vec<(String, Tree)>,
}

impl Tree {
    /// Compiles a tree. `path` is its place in the recipe's file, for error messages.
    pub(super) fn new(value: &Json, path: &str, names: &Names<'_>) -> Result<Self, String> {
        let at = |problem: String| format!("{path}: {problem}");
        match value {
            Json::String(text) if text.contains("{{") => Text::new(text, names).map(Self::Text).map_err(at),
            Json::Array(items) => list(items, path, names).map(Self::List),
            Json::Object(fields) => match fields.get("$first") {
                Some(Json::Array(items)) if fields.len() == 1 => list(items, path, names).map(Self::First),
                None if is_null(fields) => Ok(Self::Fixed(Json::Null)),
                Some(_) => Err(at("\"$first\" must be a list, and the only key of its table".into())),
                None => Table::new(fields, path, names).map(|table| Self::Table(table.into())),
            },
            fixed => Ok(Self::Fixed(fixed.clone())),
        }
    }

    /// Whether the tree may have a field at this path.
    pub(super) fn has(&self, path: &[String]) -> bool {
        match self {
            // The value may be an object of the channel data, whose fields are not known here.
            Self::Text(text) => path.is_empty() || text.only().is_some(),
            Self::Fixed(_) | Self::List(_) => path.is_empty(),
            Self::Table(table) => table.has(path),
            Self::First(trees) => trees.iter().any(|tree| tree.has(path)),
        }
    }

    /// The tree with its values. `None` if it is left out.
    pub(super) fn build(&self, context: &Value) -> Result<Option<Json>, String> {
        Ok(match self {
            Self::Fixed(json) => Some(json.clone()),
            Self::Text(text) => match text.only() {
                Some(expression) => small_json(&expression.value(context)?)?,
                None => Some(text.render(context)?.into()),
            },
            Self::List(items) => {
                let built: Result<Vec<Option<Json>>, String> = items.iter().map(|item| item.build(context)).collect();
                Some(built?.into_iter().flatten().collect())
            }
            Self::Table(table) => table.build(context)?.map(Json::Object),
            Self::First(trees) => {
                for tree in trees {
                    if let Some(built) = tree.build(context)? {
                        return Ok(Some(built));
                    }
                }
                None
            }
        })
    }
}

fn list(items: &[Json], path: &str, names: &Names<'_>) -> Result<Vec<Tree>, String> {
    items.iter().enumerate().map(|(i, item)| Tree::new(item, &format!("{path}[{i}]"), names)).collect()
}

/// Whether a table stands for `null`, which TOML does not have.
fn is_null(fields: &Map<String, Json>) -> bool {
    fields.len() == 1 && fields.get("$null") == Some(&Json::Bool(true))
}

impl Table {
    pub(super) fn new(given: &Map<String, Json>, path: &str, names: &Names<'_>) -> Result<Self, String> {
        let mut table = Self::default();
        for (name, value) in given {
            let path = format!("{path}.{name}");
            let expression = || {
                let text = value.as_str().ok_or_else(|| format!("{path}: must be a text with an expression"))?;
                let text = text.trim();
                let text = text.strip_prefix("{{").and_then(|text| text.strip_suffix("}}")).unwrap_or(text);
                Expression::new(text.trim(), names).map_err(|problem| format!("{path}: {problem}"))
            };
            match name.as_str() {
                "$if" => table.condition = Some(expression()?),
                "$merge" => table.merged = Some(expression()?),
                name if name.starts_with("$$") => {
                    table.fields.push((name[1..].to_owned(), Tree::new(value, &path, names)?));
                }
                name if name.starts_with('$') => {
                    return Err(format!(
                        "{path}: is not known; allowed are $if, $first, $merge and {{\"$null\" = true}}"
                    ));
                }
                name => table.fields.push((name.to_owned(), Tree::new(value, &path, names)?)),
            }
        }
        Ok(table)
    }

    /// Whether the table may have a field at this path.
    pub(super) fn has(&self, path: &[String]) -> bool {
        let Some((name, rest)) = path.split_first() else { return true };
        self.merged.is_some() || self.fields.iter().any(|(field, tree)| field == name && tree.has(rest))
    }

    /// The fields with their values. `None` if the table is left out.
    pub(super) fn build(&self, context: &Value) -> Result<Option<Map<String, Json>>, String> {
        if let Some(condition) = &self.condition
            && !condition.is_true(context)?
        {
            return Ok(None);
        }
        let mut fields = match &self.merged {
            Some(merged) => match json(&merged.value(context)?) {
                Some(Json::Object(fields)) => fields,
                None => Map::new(),
                Some(_) => return Err("the value of \"$merge\" is not an object".into()),
            },
            None => Map::new(),
        };
        for (name, tree) in &self.fields {
            if let Some(value) = tree.build(context)? {
                fields.insert(name.clone(), value);
            }
        }
        Ok(Some(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::recipe::expression::value;
    use serde_json::json;

    const NAMES: Names<'static> =
        Names { roots: &["text", "link", "data"], settings: vec![], secrets: vec![], data: vec![] };

    fn built(tree: Json, values: Json) -> Result<Option<Json>, String> {
        Tree::new(&tree, "request.json", &NAMES)?.build(&value(&values))
    }

    #[test]
    fn values_keep_their_type_and_missing_ones_are_left_out() {
        let tree = json!({
            "number": "{{ data.n }}", "missing": "{{ link }}", "around": "<{{ text }}|{{ link }}>", "fixed": true,
            "list": ["{{ link }}", "{{ text }}"], "null": {"$null": true},
            "button": {"$if": "link", "url": "{{ link }}"},
            "blocks": {"$first": ["{{ data.blocks }}", [{"text": "{{ text }}"}]]},
            "vars": {"$merge": "{{ data.vars }}", "to": "fixed"},
        });
        let got = built(tree.clone(), json!({"text": "a\"}{", "data": {"n": 7, "vars": {"to": "other", "x": [1]}}}));
        let wanted = json!({"number": 7, "around": "<a\"}{|>", "fixed": true, "null": null, "list": ["a\"}{"], "blocks": [{"text": "a\"}{"}],
            "vars": {"to": "fixed", "x": [1]}});
        assert_eq!(got, Ok(Some(wanted)));
        let got = built(tree, json!({"link": "https://a", "data": {"blocks": [1]}})).unwrap().unwrap();
        assert_eq!((&got["button"], &got["blocks"]), (&json!({"url": "https://a"}), &json!([1])));
    }

    #[test]
    fn a_tree_that_cannot_work_names_its_place() {
        for (tree, problem) in [
            (json!({"a": [{"b": "{{ txt }}"}]}), "request.json.a[0].b: \"txt\" does not exist here"),
            (json!({"$when": "text"}), "request.json.$when: is not known; allowed are $if, $first, $merge and"),
            (json!({"$first": "text"}), "request.json: \"$first\" must be a list"),
            (json!({"a": "{{ text"}), "request.json.a: \"{{\" is not closed"),
            (json!({"a": {"$if": 1}}), "request.json.a.$if: must be a text with an expression"),
        ] {
            assert!(built(tree.clone(), json!({})).unwrap_err().starts_with(problem), "{tree}");
        }
        let merged = built(json!({"$merge": "text"}), json!({"text": "no object"}));
        assert_eq!(merged, Err("the value of \"$merge\" is not an object".into()));
    }
}
