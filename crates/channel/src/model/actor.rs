use std::fmt;

/// Who changes something: what the audit log calls them, and the request they made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// `key:<id>`, `cli:<user>`, `system`, ….
    pub name: String,
    /// The request that it was done by, if it was one.
    pub request_id: Option<String>,
}

impl Actor {
    /// An actor of that name.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), request_id: None }
    }

    /// The product itself, such as a dispatcher that pauses a lane.
    #[must_use]
    pub fn system() -> Self {
        Self::new("system")
    }

    /// A user of a tenant's application, in their own inbox.
    #[must_use]
    pub fn user(id: &str) -> Self {
        Self::new(format!("user:{id}"))
    }

    /// Adds the request that it was done by.
    #[must_use]
    pub fn by_request(self, id: impl Into<String>) -> Self {
        Self { request_id: Some(id.into()), ..self }
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
