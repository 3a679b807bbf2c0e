use std::fmt;

/// The originator of a change: its name in the audit log, and the HTTP request that made the change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// `key:<id>`, `cli:<user>`, `system` and similar.
    pub name: String,
    /// The id of the HTTP request that made the change. `None` if the change was not made by HTTP.
    pub request_id: Option<String>,
}

impl Actor {
    /// An actor with this name and no request.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), request_id: None }
    }

    /// Postcommit itself, such as a dispatcher that pauses a lane.
    pub fn system() -> Self {
        Self::new("system")
    }

    /// A user of a tenant's application who changes their own inbox.
    pub fn user(id: &str) -> Self {
        Self::new(format!("user:{id}"))
    }

    /// Adds the id of the HTTP request that makes the change.
    pub fn by_request(self, id: impl Into<String>) -> Self {
        Self { request_id: Some(id.into()), ..self }
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
