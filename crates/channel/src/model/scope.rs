use std::collections::BTreeSet;

/// What a key or a session may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Enqueue notifications.
    Enqueue,
    /// Look at everything of the tenant but its keys and the audit log.
    Read,
    /// Retry, discard, cancel, pause, resume; includes read.
    Operate,
    /// Change providers, templates, lists and users; includes read.
    Edit,
    /// All of the above, keys and the audit log: of its tenant.
    Admin,
    /// Admin of every tenant, and the tenants themselves.
    Ops,
    /// A remote site that hands its notifications in; nothing else includes it, and it includes nothing else.
    Site,
}

impl Scope {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Enqueue, Self::Read, Self::Operate, Self::Edit, Self::Admin, Self::Ops, Self::Site];

    /// Its name, as stored.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Enqueue => "enqueue",
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Edit => "edit",
            Self::Admin => "admin",
            Self::Ops => "ops",
            Self::Site => "site",
        }
    }

    /// The scope of that name.
    ///
    /// # Errors
    /// Listing the names.
    pub fn from_name(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|scope| scope.name() == name).ok_or_else(|| {
            format!("scopes: {name:?} is not known; allowed are {}", Self::ALL.map(Self::name).join(", "))
        })
    }

    /// Whether this scope allows everything that the other does.
    #[must_use]
    pub fn includes(self, other: Self) -> bool {
        use Scope::{Admin, Edit, Enqueue, Operate, Ops, Read};
        self == other
            || match self {
                Operate | Edit => other == Read,
                Admin => matches!(other, Enqueue | Read | Operate | Edit),
                Ops => matches!(other, Enqueue | Read | Operate | Edit | Admin),
                _ => false,
            }
    }
}

/// A set of scopes, of a key or a session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scopes(BTreeSet<Scope>);

impl Scopes {
    /// Whether one of them includes this one.
    #[must_use]
    pub fn allows(&self, scope: Scope) -> bool {
        self.0.iter().any(|own| own.includes(scope))
    }

    /// Whether everything that the others allow is allowed: a key cannot give away more than it has.
    #[must_use]
    pub fn cover(&self, others: &Self) -> bool {
        others.0.iter().all(|other| self.allows(*other))
    }

    /// Their names, in order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.0.iter().map(|scope| scope.name().to_owned()).collect()
    }

    /// The set of those names.
    ///
    /// # Errors
    /// When there is none, or one is not known.
    pub fn from_names<S: AsRef<str>>(names: &[S]) -> Result<Self, String> {
        if names.is_empty() {
            return Err(format!(
                "scopes: at least one is needed; allowed are {}",
                Scope::ALL.map(Scope::name).join(", ")
            ));
        }
        names.iter().map(|name| Scope::from_name(name.as_ref())).collect()
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self(scopes.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each scope allows, in the order of `ALL`.
    #[test]
    fn each_scope_allows_itself_and_what_it_includes() {
        let table = [
            ("enqueue", "enqueue"),
            ("read", "read"),
            ("operate", "read operate"),
            ("edit", "read edit"),
            ("admin", "enqueue read operate edit admin"),
            ("ops", "enqueue read operate edit admin ops"),
            ("site", "site"),
        ];
        for (name, allowed) in table {
            let scopes = Scopes::from_names(&[name]).unwrap();
            let found: Vec<_> = Scope::ALL.into_iter().filter(|scope| scopes.allows(*scope)).map(Scope::name).collect();
            assert_eq!(found.join(" "), allowed, "{name}");
        }
    }

    #[test]
    fn a_set_allows_what_any_of_it_does_and_gives_no_more_away() {
        let both = Scopes::from_names(&["enqueue", "operate"]).unwrap();
        assert!(
            both.allows(Scope::Enqueue)
                && both.allows(Scope::Read)
                && !both.allows(Scope::Edit)
                && !both.allows(Scope::Site)
        );
        assert!(both.cover(&Scopes::from_names(&["read", "enqueue"]).unwrap()));
        assert!(!both.cover(&Scopes::from_names(&["admin"]).unwrap()));
        assert_eq!(both.names(), ["enqueue", "operate"]);
        assert!(!Scopes::default().allows(Scope::Read));
    }

    #[test]
    fn what_is_no_scope_is_refused_by_name() {
        assert_eq!(
            Scopes::from_names(&["read", "root"]).unwrap_err(),
            "scopes: \"root\" is not known; allowed are enqueue, read, operate, edit, admin, ops, site"
        );
        assert!(Scopes::from_names::<&str>(&[]).unwrap_err().contains("at least one"));
    }
}
