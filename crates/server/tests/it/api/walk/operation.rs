//! The operations of the server's own OpenAPI document.

use postcommit_channel::model::Scope;
use serde_json::{Map, Value, json};

/// One operation of the document.
#[derive(Clone)]
pub struct Operation {
    pub name: String,
    pub method: String,
    /// The path, with parameters in braces.
    pub path: String,
    /// The scope that a key must have. `None` means any key.
    pub scope: Option<Scope>,
    /// Whether no key is needed, because the path contains the credential.
    pub is_open: bool,
    /// The statuses that it may answer.
    pub statuses: Vec<String>,
    /// Whether the answer is an endless stream.
    pub streams: bool,
    /// Whether a body is required.
    pub needs_body: bool,
    /// The schema of the body, with references resolved.
    body: Option<Value>,
}

impl Operation {
    /// All operations of a document.
    pub fn all(document: &Value) -> Vec<Self> {
        let paths = document["paths"].as_object().unwrap().iter();
        paths
            .flat_map(|(path, methods)| {
                methods.as_object().unwrap().iter().map(move |(method, said)| Self::of(document, path, method, said))
            })
            .collect()
    }

    fn of(document: &Value, path: &str, method: &str, said: &Value) -> Self {
        let name = said["operationId"].as_str().unwrap().to_owned();
        let asked = said["security"].as_array().into_iter().flatten().find_map(|way| way["key"].as_array());
        let is_open = said["security"] == json!([{}]);
        let none = vec![];
        let scopes =
            asked.or(is_open.then_some(&none)).unwrap_or_else(|| panic!("{name} does not say which key it needs"));
        assert!(scopes.len() < 2, "{name} needs one scope or any");
        let body = &said["requestBody"]["content"]["application/json"]["schema"];
        Self {
            method: method.to_ascii_uppercase(),
            path: path.to_owned(),
            scope: scopes.first().map(|scope| Scope::from_name(scope.as_str().unwrap()).unwrap()),
            is_open,
            statuses: said["responses"].as_object().unwrap().keys().cloned().collect(),
            streams: said["responses"]["200"]["content"].get("text/event-stream").is_some(),
            needs_body: said["requestBody"]["required"] == true,
            body: body.is_object().then(|| resolved(document, body).clone()),
            name,
        }
    }

    /// The path, with the values that `fill` gives for its parameters.
    pub fn filled(&self, fill: impl Fn(&str) -> Option<String>) -> String {
        let known = |parameter: &str| {
            let value = fill(parameter);
            value.unwrap_or_else(|| {
                panic!(
                    "the walk does not know what {{{parameter}}} of {} is: teach it, or the route is not covered",
                    self.path
                )
            })
        };
        let parts =
            self.path.split('/').map(|part| match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
                Some(parameter) => known(parameter),
                None => part.to_owned(),
            });
        parts.collect::<Vec<_>>().join("/")
    }

    pub fn has_parameter(&self) -> bool {
        self.path.contains('{')
    }

    /// A body with only the required fields of its schema, for operations that have no body in the walk.
    pub fn smallest_body(&self) -> Option<Value> {
        let schema = self.body.as_ref()?;
        let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let fields: Map<String, Value> =
            required.map(|name| (name.to_owned(), sample(&schema["properties"][name]))).collect();
        Some(Value::Object(fields))
    }
}

fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(place) => document.pointer(place.trim_start_matches('#')).unwrap(),
        None => schema,
    }
}

fn sample(schema: &Value) -> Value {
    if let Some(example) = schema.get("example") {
        return example.clone();
    }
    match schema["type"].as_str() {
        Some("integer" | "number") => schema.get("minimum").cloned().unwrap_or(json!(1)),
        Some("boolean") => json!(false),
        Some("array") => json!([]),
        Some("object") => json!({}),
        _ => json!("sample"),
    }
}
