//! The values that a person typed into a form, and the problems with them. A refused form is shown again with both.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use minijinja::Value;
use serde::Serialize;

use super::acts::Fields;
use super::words::shown;
use crate::problem::Problem;

/// The fields of a form.
#[derive(Default, Serialize)]
pub struct Typed {
    values: BTreeMap<String, String>,
    /// The problems, by field.
    errors: BTreeMap<String, String>,
    /// A problem that belongs to no field of the form.
    problem: Option<String>,
    /// Whether the person may read the form but not change it.
    pub locked: bool,
    #[serde(skip)]
    status: StatusCode,
}

impl Typed {
    /// The fields as they were typed. Browsers send line breaks as CR LF.
    pub fn of(fields: &Fields, names: &[&str]) -> Self {
        let mut typed = Self::default();
        for name in names {
            typed.set(name, fields.get(name).unwrap_or_default());
        }
        typed
    }

    /// An empty form. A locked one can only be read.
    pub fn locked(locked: bool) -> Self {
        Self { locked, ..Self::default() }
    }

    pub fn set(&mut self, name: &str, value: &str) {
        self.values.insert(name.to_owned(), value.replace("\r\n", "\n"));
    }

    pub fn get(&self, name: &str) -> &str {
        self.values.get(name).map_or("", String::as_str)
    }

    /// The text of a field. `None` if it is empty.
    pub fn some(&self, name: &str) -> Option<String> {
        Some(self.get(name)).filter(|text| !text.is_empty()).map(str::to_owned)
    }

    /// Returns the fields that are not empty, for a form that repeats them.
    pub fn repeated(&self) -> Vec<(String, String)> {
        self.values.iter().filter(|(_, value)| !value.is_empty()).map(|(n, v)| (n.clone(), v.clone())).collect()
    }

    /// Shows the problem beside its field, or above the form if the form has no such field.
    pub fn refuse(&mut self, problem: &Problem) {
        self.status = problem.status();
        let field = problem.field().unwrap_or_default();
        let flat = field.replace('.', "_");
        let (first, last) = (field.split(['.', '[']).next(), field.rsplit('.').next());
        let known = [field, flat.as_str(), first.unwrap_or_default(), last.unwrap_or_default()];
        match known.into_iter().find(|name| self.values.contains_key(*name)) {
            Some(name) => drop(self.errors.insert(name.to_owned(), problem.to_string())),
            None if field.is_empty() => self.problem = Some(problem.to_string()),
            None => self.problem = Some(format!("{field}: {problem}")),
        }
    }

    /// Refuses a form because of its values. A failure of the server is returned instead.
    pub fn refused(&mut self, problem: Problem) -> Result<(), Problem> {
        if problem.status().is_server_error() {
            return Err(problem);
        }
        self.refuse(&problem);
        Ok(())
    }

    /// The status of the page with the form.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The value `form` of the macros in `fields.html`.
    pub fn shown(&self) -> Value {
        shown(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_beside_its_field_or_above_the_form() {
        let mut typed = Typed::default();
        for name in ["name", "throttle_max", "addresses", "member"] {
            typed.set(name, "x\r\ny");
        }
        assert_eq!(typed.get("name"), "x\ny");
        for text in [
            "name: is long",
            "throttle.max: is 0",
            "addresses[1].kind: is x",
            "add[0].member: is y",
            "revision: is 1",
            "at all",
        ] {
            typed.refuse(&Problem::of_field(text));
        }
        let errors: Vec<_> = typed.errors.iter().map(|(name, said)| format!("{name} {said}")).collect();
        assert_eq!(errors, ["addresses is x", "member is y", "name is long", "throttle_max is 0"]);
        assert_eq!((typed.problem.as_deref(), typed.status().as_u16()), (Some("at all"), 422));
    }
}
